"""``tfasr evaluate``: scores trained models on prepared splits."""

import argparse
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.commands.shared import (
    add_decoder_arguments,
    decoder_name,
    language_model,
    progress,
)
from tfasr.commands.targets import add_text_rule_arguments
from tfasr.decoding.choice import DECODERS, with_hot_words
from tfasr.display.table import WRITERS, formats
from tfasr.errors import UsageError
from tfasr.kit.files import check_owned, check_replaceable, object_or_empty, write_whole
from tfasr.normalisers import check_normaliser, described, normalised
from tfasr.tta.metrics import METRICS, compute_metrics

if TYPE_CHECKING:
    from tfasr.decoding.choice import DecoderConfig
    from tfasr.decoding.language_models import KenlmModel
    from tfasr.scoring.summary import RateSummary
    from tfasr.training.evaluation import EvaluationResult

EXAMPLE = "evaluate --run_dir runs/a --split test"
_FILES = ("scores.json", "scores.md", "scores.csv", "scores.tex")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    several = {"action": "append", "required": True}
    add(
        "--run_dir",
        **several,
        help="a folder that tfasr train wrote; repeatable, one row each",
    )
    add("--shard_dir", help="default: the one that the run was trained with")
    add("--split", **several, help="a prepared split; repeatable, one column each")
    add_decoder_arguments(add)
    priors = "divide probabilities by their means in training to this power, say 0.5; default: 0"
    add("--prior_weight", type=float, default=0.0, help=priors)
    middle = "rescore word_beam's best texts by the middle layer, times this, say 0.5; default: 0"
    add("--middle_weight", type=float, default=0.0, help=middle)
    add("--checkpoint", default="best", help="best, last or a file")
    add_text_rule_arguments(add)
    add("--hypotheses", help="a file to write the texts to, as JSON lines")
    files = f"write {', '.join(_FILES[:-1])} and {_FILES[-1]} to this folder"
    add("--out", metavar="DIR", help=files)
    add("--format", choices=formats(), default="table")


def run(arguments: argparse.Namespace) -> None:
    for name in ("run_dir", "split"):  # a repeated one is scored once
        setattr(arguments, name, list(dict.fromkeys(getattr(arguments, name))))
    single = len(arguments.run_dir) == len(arguments.split) == 1
    if arguments.hypotheses:
        path = Path(arguments.hypotheses)
        check_replaceable(path)
        if not path.absolute().parent.is_dir():
            raise UsageError(
                f"--hypotheses must be in a folder that exists. Received: {path}. Make its folder, "
                "or choose another one."
            )

        if not single:
            raise UsageError(
                "--hypotheses needs a single run and a single split. Received: "
                f"{len(arguments.run_dir)} runs, {len(arguments.split)} splits."
            )

    if arguments.out:  # fails now, not after the work, if the place can't be written to
        folder = Path(arguments.out)
        owned = "rows" in object_or_empty(folder / _FILES[0])
        check_owned(folder, "--out", "scores of tfasr", _FILES, owned=owned)
        folder.mkdir(parents=True, exist_ok=True)

    rows = _scored(arguments, single)
    if arguments.out:
        from tfasr.reports.tables.paper import scores_table
        from tfasr.reports.write import write_tables

        write_tables([scores_table(rows)], folder)
        write_whole(folder / "scores.md", _collated(rows, "markdown"))
        # last: if this file exists, all others do
        write_whole(folder / "scores.json", _collated(rows, "json"))

    if not single or arguments.format not in ("table", "markdown", "json"):
        print(_collated(rows, arguments.format), end="")


def _scored(arguments: argparse.Namespace, single: bool) -> list[dict[str, Any]]:
    from tfasr.reports.numbers import distinct_names
    from tfasr.training.trained import open_trained

    model = language_model(arguments)
    names = distinct_names([Path(run_dir) for run_dir in arguments.run_dir])
    rows = []
    for name, run_dir in zip(names, arguments.run_dir, strict=True):
        trained = open_trained(run_dir)
        language = arguments.language or trained.alphabet.language
        if arguments.normalise:  # before the evaluation, which takes a while
            check_normaliser(arguments.normalise, language)
        decoder = trained.decoder(
            name=decoder_name(arguments),
            beam_width=arguments.beam_width,
            recombine=arguments.recombine,
        )
        if arguments.hot_words is not None:
            decoder = with_hot_words(decoder)
        for split in arguments.split:
            result = trained.evaluate(
                split,
                decoder,
                shard_dir=arguments.shard_dir,
                lexicon=arguments.lexicon,
                language_model=model,
                hot_words=arguments.hot_words,
                hot_word_weight=arguments.hot_word_weight,
                prior_weight=arguments.prior_weight,
                middle_weight=arguments.middle_weight,
                checkpoint=arguments.checkpoint,
                progress=functools.partial(progress, f"{name}, {split}: evaluated"),
            )
            if arguments.hypotheses:
                result.write_hypotheses(Path(arguments.hypotheses))
            texts = _texts(result, arguments.normalise or "", language)
            summary = _summary(result, *texts)
            own = compute_metrics(*texts)
            scores = summary.to_json() | own
            if single:
                _print_one(summary, own, result.loss, arguments.format)
            about = {"run": name, "split": split, **_decoder(decoder, arguments, model)}
            about["text_normalisation"] = trained.alphabet.text_rule
            if arguments.normalise:
                about["normaliser"] = described(arguments.normalise, language)
            if trained.experiment.features.normalisation == "speaker":
                about["normalised_over"] = "speaker"
            rows.append({**about, **scores, "loss": result.loss})

    return rows


def _texts(
    result: "EvaluationResult", normaliser: str, language: str
) -> tuple[list[str], list[str]]:
    """Returns references and hypotheses, as the normaliser writes them."""
    references = [normalised(u.text, normaliser, language) for u in result.utterances]
    hypotheses = [normalised(h.text, normaliser, language) for h in result.hypotheses]
    return references, hypotheses


def _summary(
    result: "EvaluationResult", references: list[str], hypotheses: list[str]
) -> "RateSummary":
    from tfasr.scoring.errors import count_errors
    from tfasr.scoring.summary import summarise

    pairs = zip(references, hypotheses, strict=True)
    counts = [
        count_errors([reference], [hypothesis]) for reference, hypothesis in pairs
    ]
    return summarise(counts, [utterance.speaker for utterance in result.utterances])


def _decoder(
    decoder: "DecoderConfig", arguments: argparse.Namespace, model: "KenlmModel | None"
) -> dict[str, Any]:
    width = decoder.beam_width if DECODERS[decoder.name].has_beam else None
    about = {
        "decoder": decoder.name,
        "beam_width": width,
        "checkpoint": arguments.checkpoint,
    }
    if arguments.lexicon is not None:
        about["lexicon"] = arguments.lexicon
    about |= {
        n: v for n in ("prior_weight", "middle_weight") if (v := getattr(arguments, n))
    }
    if arguments.hot_words is not None:
        about |= {
            "hot_words": arguments.hot_words,
            "hot_word_weight": arguments.hot_word_weight,
        }
    if model is not None:
        about |= {"language_model": str(model.path), "lm_weight": model.weight}
        about |= {"word_bonus": model.word_bonus, "lm_unknown": model.unknown}

    return about


def _collated(rows: list[dict[str, Any]], output_format: str) -> str:
    if output_format == "json":
        return json.dumps({"rows": rows}, indent=1) + "\n"
    from tfasr.reports.tables.paper import scores_table

    return WRITERS[output_format]([scores_table(rows)])


def _print_one(
    summary: "RateSummary", own: dict[str, float], loss: float, output_format: str
) -> None:
    from tfasr.scoring.errors import kaldi_line

    scores = summary.to_json() | own
    if output_format == "json":
        print(json.dumps({**scores, "loss": loss}))
    elif output_format in ("table", "markdown"):
        rows = _rows(scores, own, loss)
        if output_format == "markdown":
            print("| measure | value |\n|---|---|")
            print("\n".join(f"| {name} | {value} |" for name, value in rows))
        else:
            from rich.console import Console
            from rich.table import Table

            table = Table("measure", "value")
            for row in rows:
                table.add_row(*row)
            Console().print(table)

        print(kaldi_line(summary.counts))


def _rows(
    scores: dict[str, Any], own: dict[str, float], loss: float
) -> list[tuple[str, str]]:
    rates = {"WER": "wer", "CER": "cer", "CER over the reference": "cer_reference"}
    counts = ("substitutions", "deletions", "insertions", "words")
    return [
        ("utterances", str(scores["utterances"])),
        *(
            (label, f"{scores[key]:.2%}{_interval(scores, key)}")
            for label, key in rates.items()
        ),
        *(
            (METRICS[name].label or name, METRICS[name].shown(value))
            for name, value in own.items()
        ),
        *((name, str(scores[name])) for name in counts),
        ("CTC loss per utterance", f"{loss:.3f}"),
    ]


def _interval(scores: dict[str, Any], key: str) -> str:
    by_speaker = scores.get(f"{key}_interval_by_speaker")
    ends = by_speaker or scores.get(f"{key}_interval")
    if ends is None:
        return ""
    count = scores["utterances"]
    of = "utterances"
    if by_speaker:
        count = scores["speakers_resampled"]
        of = "speakers"

    low = 100 * ends[0]
    high = ends[1]
    share = scores["confidence"]
    return f" ({share:.0%}: {low:.2f} to {high:.2%}, resampling {count} {of})"
