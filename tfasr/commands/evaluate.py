"""``tfasr evaluate``: scores a trained model on a prepared split."""

import argparse
import json
from pathlib import Path
from typing import Any

from tfasr.decoding.choice import DECODERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument("--run_dir", required=True, help="a folder that tfasr train wrote")
    parser.add_argument("--shard_dir", help="default: the one that the run was trained with")
    parser.add_argument("--split", required=True, help="a prepared split")
    parser.add_argument("--decoder", choices=tuple(DECODERS), help="default: the run's own")
    parser.add_argument("--beam_width", type=int, help="default: the run's own")
    parser.add_argument(
        "--recombine",
        action="store_true",
        default=None,
        help="for word_beam: keep one beam for each future; see WordBeamSearch",
    )
    parser.add_argument("--checkpoint", default="best", help="best, last or a file")
    parser.add_argument("--hypotheses", help="a file to write the texts to, as JSON lines")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    from tfasr.errors import UsageError
    from tfasr.metrics import count_errors, kaldi_line
    from tfasr.scoring.summary import summarise
    from tfasr.training.trained import evaluate

    if arguments.hypotheses and Path(arguments.hypotheses).is_dir():
        raise UsageError(
            f"--hypotheses must be a file. Received: {arguments.hypotheses}, a folder."
        )
    result = evaluate(
        run_dir=arguments.run_dir,
        split=arguments.split,
        shard_dir=arguments.shard_dir,
        decoder=arguments.decoder,
        beam_width=arguments.beam_width,
        recombine=arguments.recombine,
        checkpoint=arguments.checkpoint,
    )
    if arguments.hypotheses:
        result.write_hypotheses(Path(arguments.hypotheses))
    summary = summarise(
        [
            count_errors([utterance.text], [hypothesis.text])
            for utterance, hypothesis in zip(result.utterances, result.hypotheses, strict=True)
        ],
        [utterance.speaker for utterance in result.utterances],
    )
    scores = summary.to_json()
    if arguments.format == "json":
        print(json.dumps({**scores, "loss": result.loss}))
        return
    _print_rows(_rows(scores, result.loss), arguments.format)
    print(kaldi_line(result.counts))


def _rows(scores: dict[str, Any], loss: float) -> list[tuple[str, str]]:
    rates = {"WER": "wer", "CER": "cer", "CER over the reference": "cer_reference"}
    counts = ("substitutions", "deletions", "insertions", "words")
    return [
        ("utterances", str(scores["utterances"])),
        *((label, f"{scores[key]:.2%}{_interval(scores, key)}") for label, key in rates.items()),
        *((name, str(scores[name])) for name in counts),
        ("CTC loss per utterance", f"{loss:.3f}"),
    ]


def _interval(scores: dict[str, Any], key: str) -> str:
    """Returns the bootstrap interval beside a rate, by speaker where that is known."""
    by_speaker = scores.get(f"{key}_interval_by_speaker")
    ends = by_speaker or scores.get(f"{key}_interval")
    if ends is None:
        return ""
    speakers, utterances = scores["speakers_resampled"], scores["utterances"]
    resampled = f"{speakers} speakers" if by_speaker else f"{utterances} utterances"
    return (
        f" ({scores['confidence']:.0%}: {100 * ends[0]:.2f} to {ends[1]:.2%}, resampling "
        f"{resampled})"
    )


def _print_rows(rows: list[tuple[str, str]], output_format: str) -> None:
    if output_format == "markdown":
        print("| measure | value |\n|---|---|")
        for name, value in rows:
            print(f"| {name} | {value} |")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("measure", "value")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
