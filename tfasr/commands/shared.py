"""Flags that several commands share, and a progress bar.

Each file of this folder is a command: it declares its flags, turns them into the
arguments of the package that does the work, and prints what that returns. Flags that
more than one command has are declared here, next to the function that reads them, so
that a flag means the same everywhere. Those about targets and texts are in
`tfasr.commands.targets`.

Whatever loads TensorFlow or the decoders' compiled code is imported within functions:
``tfasr help`` and a wrong flag must not wait for it.
"""

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


def add_gin_arguments(add: Callable) -> None:
    """Adds ``--gin_file`` and ``--gin_binding``, which configure an experiment.

    Args:
        add: a parser's ``add_argument``, here and in the functions below.
    """
    add(
        "--gin_file",
        action="append",
        help="preset or file, such as demo.gin, repeatable; default: the paper's recipe",
    )

    add(
        "--gin_binding",
        action="append",
        default=[],
        metavar="LINE",
        help="overrides the files, such as 'TrainingConfig.epochs = 5'; repeatable",
    )


# Flags for the settings that people change most, and the settings that they bind.
SHORT_CUTS = {
    "--epochs": "TrainingConfig.epochs",
    "--batch_size": "PipelineConfig.global_batch_size",
    "--seed": "TrainingConfig.seed",
}


def short_cut(setting: str) -> Callable[[str], str]:
    """Returns a flag's ``type`` that makes a gin line, which the run records.

    >>> short_cut("TrainingConfig.epochs")("5")
    'TrainingConfig.epochs = 5'

    Args:
        setting: the bound setting, one of `SHORT_CUTS`.
    """

    def whole_number(text: str) -> str:
        # Any integer is a seed, but there are no 0 epochs.
        if int(text) < 1 and setting != SHORT_CUTS["--seed"]:
            raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}")

        return f"{setting} = {int(text)}"

    return whole_number


def add_decoder_arguments(add: Callable) -> None:
    """Adds the flags that choose the decoder, its dictionary and language model.

    A flag that isn't given leaves the run's own setting.
    """
    add("--decoder", choices=tuple(DECODERS), help="default: the run's own")
    add("--beam_width", type=int, help="default: the run's own")

    add(
        "--recombine",
        action="store_true",
        default=None,
        help="for word_beam: merge beams that would continue in the same way",
    )

    add(
        "--language_model",
        metavar="FILE",
        help=(
            "an n-gram model: an ARPA file, which tfasr ngram writes, also gzipped, or "
            "KenLM's binary format; decodes with word_beam; needs tfasr[kenlm]"
        ),
    )

    add(
        "--lexicon",
        metavar="FILE",
        help="a dictionary for word_beam, one word a line; default: the run's",
    )

    add(
        "--lm_unknown",
        choices=UNKNOWN_RULES,
        help=(
            "words of the lexicon that the language model lacks: score them as its "
            "<unk>, or drop them; default: score"
        ),
    )

    add(
        "--hot_words",
        metavar="FILE",
        help=(
            "words and names that are expected, one a line, after a tab their weight "
            "if not the default; decodes with beam if the run does with greedy"
        ),
    )

    add(
        "--hot_word_weight",
        type=float,
        default=DEFAULT_WEIGHT,
        help="added to the log score at each hot word; default: %(default)g",
    )

    add(
        "--lm_weight",
        type=float,
        help="power of the language model's probabilities; default: 1",
    )

    add(
        "--word_bonus",
        type=float,
        help="added to the log score per word; higher gives more words; default: 0",
    )


def path_of(value: str | None) -> Path | None:
    """Returns a flag's value as a path; None if the flag was not given."""
    if value is None:
        return None

    return Path(value)


def add_recogniser_arguments(add: Callable) -> None:
    """Adds the flags of commands that load a recogniser: its checkpoint and decoder."""
    add(
        "--checkpoint",
        default="best",
        help="of a run: best, last or a file; default: %(default)s",
    )
    add_decoder_arguments(add)


def recogniser_of(arguments: argparse.Namespace) -> "Recogniser":
    """Loads the recogniser that the flags of `add_recogniser_arguments` name.

    Raises:
        UsageError: if the run, its checkpoint or a file for the decoder is missing.
    """
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
    """Loads the language model that the flags name; None if they name none.

    Raises:
        UsageError: if the model can't be loaded, or its weights are set without it.
    """
    from tfasr.decoding.language_models import KenlmModel

    flags = {
        "weight": arguments.lm_weight,
        "word_bonus": arguments.word_bonus,
        "unknown": arguments.lm_unknown,
    }
    # The defaults of the others are in the model's class only.
    options = {name: value for name, value in flags.items() if value is not None}

    if arguments.language_model is not None:
        with errors.wrong_values_are_wrong_use():
            return KenlmModel(arguments.language_model, **options)

    if options:
        raise UsageError(
            "--lm_weight, --word_bonus and --lm_unknown need a language model. "
            "Received: no --language_model."
        )

    return None


def add_scheduler_arguments(add: Callable, work: str) -> None:
    """Adds the flags of a Dask scheduler.

    Args:
        add: a parser's ``add_argument``.
        work: what its workers do, such as "train the runs", for the help.
    """
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
    """Returns the files of the flags that `add_scheduler_arguments` adds.

    Raises:
        UsageError: if there are any without a scheduler.
    """
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
        done: what is done with each item, such as "transcribed".
        total: how many items there are.

    Yields:
        A function that adds 1, or N, to the bar's count. It does nothing with
        ``--quiet``, without a terminal, or for a single item.
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

    with Progress(
        done,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors.stderr_console(),
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda count=1: bar.advance(task, count)
