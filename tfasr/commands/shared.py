"""Flags and a progress bar that several commands share."""

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr import errors
from tfasr.decoding.choice import DECODERS
from tfasr.decoding.hot_words import DEFAULT_WEIGHT
from tfasr.decoding.language_models import UNKNOWN_RULES
from tfasr.errors import UsageError
from tfasr.kit.scheduler import Tls

if TYPE_CHECKING:
    from tfasr.decoding.language_models import KenlmModel
    from tfasr.recognising.recogniser import Recogniser


def add_decoder_arguments(add: Callable) -> None:
    """Adds the flags that choose the decoder, its dictionary and language model."""
    add("--decoder", choices=tuple(DECODERS), help="default: the run's own")
    add("--beam_width", type=int, help="default: the run's own")

    recombine = "for word_beam: merge beams that would continue in the same way"
    add("--recombine", action="store_true", default=None, help=recombine)

    ngrams = (
        "an n-gram model: an ARPA file, which tfasr ngram writes, also gzipped, or KenLM's binary "
        "format; decodes with word_beam; needs tfasr[kenlm]"
    )
    add("--language_model", metavar="FILE", help=ngrams)

    lexicon = "a dictionary for word_beam, one word a line; default: the run's"
    add("--lexicon", metavar="FILE", help=lexicon)

    unknown = "words of the lexicon that the language model lacks: score them as its <unk>, or drop"
    add("--lm_unknown", choices=UNKNOWN_RULES, help=f"{unknown} them; default: score")

    hot = (
        "words and names that are expected, one a line, "
        "after a tab their weight if not the default"
    )
    add(
        "--hot_words",
        metavar="FILE",
        help=f"{hot}; decodes with beam if the run does with greedy",
    )

    weight = "added to the log score at each hot word; default: %(default)g"
    add("--hot_word_weight", type=float, default=DEFAULT_WEIGHT, help=weight)

    add(
        "--lm_weight",
        type=float,
        help="power of the language model's probabilities; default: 1",
    )

    bonus = "added to the log score per word; higher gives more words; default: 0"
    add("--word_bonus", type=float, help=bonus)


def path_of(value: str | None) -> Path | None:
    """Returns a flag's value as a path; None if the flag was not given."""
    return None if value is None else Path(value)


def add_recogniser_arguments(add: Callable) -> None:
    """Adds the flags of commands that load a recogniser: its checkpoint and decoder."""
    add(
        "--checkpoint",
        default="best",
        help="of a run: best, last or a file; default: %(default)s",
    )
    add_decoder_arguments(add)


def recogniser_of(arguments: argparse.Namespace) -> "Recogniser":
    """Loads the recogniser that the flags of `add_recogniser_arguments` name."""
    from tfasr.recognising.recogniser import load_recogniser

    return load_recogniser(
        arguments.run_dir,
        checkpoint=arguments.checkpoint,
        decoder=decoder_name(arguments),
        beam_width=arguments.beam_width,
        recombine=arguments.recombine,
        lexicon=arguments.lexicon,
        language_model=language_model(arguments),
        hot_words=arguments.hot_words,
        hot_word_weight=arguments.hot_word_weight,
    )


def decoder_name(arguments: argparse.Namespace) -> str | None:
    """Returns the flags' decoder; None means the run's own.

    A language model is only used by word beam search, so it chooses that.
    """
    if arguments.decoder is None and arguments.language_model:
        return "word_beam"

    return arguments.decoder


def language_model(arguments: argparse.Namespace) -> "KenlmModel | None":
    """Loads the language model that the flags name; UsageError if it can't be loaded."""
    from tfasr.decoding.language_models import KenlmModel

    flags = {
        "weight": arguments.lm_weight,
        "word_bonus": arguments.word_bonus,
        "unknown": arguments.lm_unknown,
    }
    options = {name: value for name, value in flags.items() if value is not None}

    if arguments.language_model is not None:
        with errors.wrong_values_are_wrong_use():
            return KenlmModel(arguments.language_model, **options)

    if options:
        raise UsageError(
            "--lm_weight, --word_bonus and --lm_unknown need a language model. Received: no "
            "--language_model."
        )

    return None


def add_scheduler_arguments(add: Callable, work: str) -> None:
    """Adds the flags of a Dask scheduler whose workers do the ``work``."""
    add(
        "--scheduler",
        metavar="tls://HOST:PORT",
        help=f"a Dask scheduler whose workers {work}",
    )
    add(
        "--tls_ca_file",
        metavar="FILE",
        help="who signed the certificates of a tls:// scheduler",
    )
    add(
        "--tls_cert",
        metavar="FILE",
        help="this process's certificate for a tls:// scheduler",
    )
    add("--tls_key", metavar="FILE", help="the private key of --tls_cert")


def tls_of(arguments: argparse.Namespace) -> Tls:
    """Returns the flags' certificates; UsageError if there are any without a scheduler."""
    tls = Tls(arguments.tls_ca_file, arguments.tls_cert, arguments.tls_key)
    if tls != Tls() and arguments.scheduler is None:
        raise UsageError(
            "--tls_ca_file, --tls_cert and --tls_key need --scheduler tls://HOST:PORT."
        )

    return tls


@contextlib.contextmanager
def progress(done: str, total: int) -> Iterator[Callable[..., None]]:
    """Draws a progress bar on a terminal.

    Args:
        done: what was done to each of them, such as "transcribed".
        total: how many there are.

    Yields:
        A function that adds 1, or N, to the bar's count. It does nothing with ``--quiet``,
        without a terminal, or for a single one.
    """
    quiet = not logging.getLogger("tfasr").isEnabledFor(logging.INFO)
    if total < 2 or quiet or not sys.stderr.isatty():
        yield lambda _=1: None
        return

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )

    columns = (done, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    with Progress(*columns, console=errors.stderr_console()) as bar:
        task = bar.add_task("", total=total)
        yield lambda count=1: bar.advance(task, count)
