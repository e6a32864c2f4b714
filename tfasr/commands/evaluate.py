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

# Further imports are within functions: they load TensorFlow, which wrong flags must not
# wait for.

# The files that ``--out`` gets. The first one is written last: if it exists, the folder
# is complete.
_FILES = ("scores.json", "scores.md", "scores.csv", "scores.tex")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: runs and splits, how to decode, how to compare, what to write."""
    add = parser.add_argument
    add(
        "--run_dir",
        action="append",
        required=True,
        help="a folder that tfasr train wrote; repeatable, one row each",
    )
    add("--shard_dir", help="default: the one that the run was trained with")
    add(
        "--split",
        action="append",
        required=True,
        help="a prepared split; repeatable, one column each",
    )
    add_decoder_arguments(add)

    add(
        "--prior_weight",
        type=float,
        default=0.0,
        help=(
            "divide probabilities by their means in training to this power, say 0.5; "
            "default: 0"
        ),
    )

    add(
        "--middle_weight",
        type=float,
        default=0.0,
        help=(
            "rescore word_beam's best texts by the middle layer, times this, say 0.5; "
            "default: 0"
        ),
    )

    add("--checkpoint", default="best", help="best, last or a file")
    add_text_rule_arguments(add)
    add("--hypotheses", help="a file to write the texts to, as JSON lines")

    add(
        "--out",
        metavar="DIR",
        help=f"write {', '.join(_FILES[:-1])} and {_FILES[-1]} to this folder",
    )

    add("--format", choices=formats(), default="table")


def run(arguments: argparse.Namespace) -> None:
    """Scores each run on each split; prints the scores and writes them to ``--out``."""
    # What is named twice is scored once.
    arguments.run_dir = list(dict.fromkeys(arguments.run_dir))
    arguments.split = list(dict.fromkeys(arguments.split))

    single = len(arguments.run_dir) == len(arguments.split) == 1
    if arguments.hypotheses:
        path = Path(arguments.hypotheses)
        check_replaceable(path)
        if not path.absolute().parent.is_dir():
            raise UsageError(
                f"--hypotheses must be in a folder that exists. Received: {path}. "
                "Make its folder, or choose another one."
            )

        if not single:
            raise UsageError(
                "--hypotheses needs a single run and a single split. Received: "
                f"{len(arguments.run_dir)} runs, {len(arguments.split)} splits."
            )

    # This fails now, not after the work, if the place can't be written to.
    if arguments.out:
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
        write_whole(folder / "scores.json", _collated(rows, "json"))

    # `_scored` has printed a single row in these formats, with its intervals.
    if not single or arguments.format not in ("table", "markdown", "json"):
        print(_collated(rows, arguments.format), end="")


def _scored(arguments: argparse.Namespace, single: bool) -> list[dict[str, Any]]:
    """Evaluates each run on each split; returns a row of scores for each.

    Args:
        arguments: the flags.
        single: whether there is only one row. It is printed as a table of its own, with
            confidence intervals.

    Returns:
        The columns of each row by name, those that the scores depend on first. Rates
        are fractions.
    """
    from tfasr.reports.numbers import distinct_names
    from tfasr.training.trained import open_trained

    model = language_model(arguments)
    names = distinct_names([Path(run_dir) for run_dir in arguments.run_dir])
    rows = []

    for name, run_dir in zip(names, arguments.run_dir, strict=True):
        trained = open_trained(run_dir)
        language = arguments.language or trained.alphabet.language
        # Before the evaluation, which takes a while.
        if arguments.normalise:
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

            # The errors of normalised texts are counted; hypotheses stay as they are.
            references, hypotheses = _texts(result, arguments.normalise or "", language)
            summary = _summary(result, references, hypotheses)
            user_metrics = compute_metrics(references, hypotheses)
            if single:
                _print_one(summary, user_metrics, result.loss, arguments.format)

            # What scores depend on comes first.
            row = {"run": name, "split": split, **_decoder(decoder, arguments, model)}
            row["text_normalisation"] = trained.alphabet.text_rule
            if arguments.normalise:
                row["normaliser"] = described(arguments.normalise, language)
            # Features then use a speaker's other utterances, which makes rates lower.
            if trained.experiment.features.normalisation == "speaker":
                row["normalised_over"] = "speaker"

            row.update(summary.to_json())
            row.update(user_metrics)
            row["loss"] = result.loss
            rows.append(row)

    return rows


def _texts(
    result: "EvaluationResult", normaliser: str, language: str
) -> tuple[list[str], list[str]]:
    """Returns references and hypotheses, as the normaliser writes them.

    Args:
        result: of the evaluation.
        normaliser: its name; "" leaves texts as they are.
        language: BCP 47 tag of the texts.
    """
    references = [normalised(u.text, normaliser, language) for u in result.utterances]
    hypotheses = [normalised(h.text, normaliser, language) for h in result.hypotheses]
    return references, hypotheses


def _summary(
    result: "EvaluationResult", references: list[str], hypotheses: list[str]
) -> "RateSummary":
    """Returns the error rates of a result's texts, with confidence intervals.

    Args:
        result: knows the speakers.
        references: the texts to compare with.
        hypotheses: what was recognised.
    """
    from tfasr.scoring.errors import count_errors
    from tfasr.scoring.summary import summarise

    # Utterances are counted one by one, since the intervals resample them.
    pairs = zip(references, hypotheses, strict=True)
    counts = [
        count_errors([reference], [hypothesis]) for reference, hypothesis in pairs
    ]

    return summarise(counts, [utterance.speaker for utterance in result.utterances])


def _decoder(
    decoder: "DecoderConfig", arguments: argparse.Namespace, model: "KenlmModel | None"
) -> dict[str, Any]:
    """Returns the columns that say how a row was decoded.

    Only what was used is named: a setting without effect would make rows of the same
    decoder look different.
    """
    width = None
    if DECODERS[decoder.name].has_beam:
        width = decoder.beam_width

    about = {
        "decoder": decoder.name,
        "beam_width": width,
        "checkpoint": arguments.checkpoint,
    }
    if arguments.lexicon is not None:
        about["lexicon"] = arguments.lexicon
    if arguments.prior_weight:
        about["prior_weight"] = arguments.prior_weight
    if arguments.middle_weight:
        about["middle_weight"] = arguments.middle_weight
    if arguments.hot_words is not None:
        about["hot_words"] = arguments.hot_words
        about["hot_word_weight"] = arguments.hot_word_weight
    if model is not None:
        about["language_model"] = str(model.path)
        about["lm_weight"] = model.weight
        about["word_bonus"] = model.word_bonus
        about["lm_unknown"] = model.unknown

    return about


def _collated(rows: list[dict[str, Any]], output_format: str) -> str:
    """Returns all rows as JSON, or as a table in another format.

    Args:
        rows: from `_scored`.
        output_format: of ``--format``.
    """
    if output_format == "json":
        return json.dumps({"rows": rows}, indent=1) + "\n"

    from tfasr.reports.tables.paper import scores_table

    return WRITERS[output_format]([scores_table(rows)])


def _print_one(
    summary: "RateSummary", own: dict[str, float], loss: float, output_format: str
) -> None:
    """Prints a single row with its intervals, and Kaldi's line of counts.

    Args:
        summary: the error rates.
        own: the values of users' metrics, by name.
        loss: mean CTC loss of an utterance, in nats.
        output_format: nothing is printed but for "json", "table" and "markdown".
    """
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
    """Returns names and values of a single row's table.

    Args:
        scores: the columns of the row.
        own: the values of users' metrics, by name.
        loss: mean CTC loss of an utterance, in nats.
    """
    # The last one divides by the reference's characters alone, so it can exceed 100 %.
    rates = {"WER": "wer", "CER": "cer", "CER over the reference": "cer_reference"}
    counts = ("substitutions", "deletions", "insertions", "words")
    rows = [("utterances", str(scores["utterances"]))]
    for label, key in rates.items():
        rows.append((label, f"{scores[key]:.2%}{_interval(scores, key)}"))

    for name, value in own.items():
        rows.append((METRICS[name].label or name, METRICS[name].shown(value)))

    rows += [(name, str(scores[name])) for name in counts]
    rows.append(("CTC loss per utterance", f"{loss:.3f}"))
    return rows


def _interval(scores: dict[str, Any], key: str) -> str:
    """Returns a rate's confidence interval, by speaker where speakers are known.

    It is text to follow the rate, such as " (95 %: 3.10 to 4.25%, resampling 12
    speakers)", or "" if there are too few utterances for an interval.
    """
    by_speaker = scores.get(f"{key}_interval_by_speaker")
    ends = by_speaker or scores.get(f"{key}_interval")
    if ends is None:
        return ""

    # Whole speakers are resampled if possible, since their utterances resemble each
    # other.
    resampled = f"{scores['utterances']} utterances"
    if by_speaker:
        resampled = f"{scores['speakers_resampled']} speakers"

    low, high = ends
    share = scores["confidence"]

    return f" ({share:.0%}: {100 * low:.2f} to {high:.2%}, resampling {resampled})"
