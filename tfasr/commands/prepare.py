"""``tfasr prepare``: turns a corpus into shards of features and labels."""

import argparse
import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.commands.shared import (
    add_gin_arguments,
    add_scheduler_arguments,
    tls_of,
)
from tfasr.display.table import plural
from tfasr.errors import UsageError, wrong_values_are_wrong_use

if TYPE_CHECKING:
    from tfasr.data.alphabets import AlphabetConfig

EXAMPLE = "prepare --gin_file an4.gin --corpus tsv --corpus_dir an4 --shard_dir shards"
log = logging.getLogger("tfasr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: which corpus, how its texts become labels, who does the work."""
    # Imported here, because tfasr help must not wait for readers of audio.
    from tfasr.corpora.corpus import CORPORA
    from tfasr.normalisers import NORMALISERS

    add = parser.add_argument

    # The corpus.
    add(
        "--corpus",
        required=True,
        choices=tuple(CORPORA),
        help="its layout; --import adds your own",
    )
    add("--corpus_dir", required=True, help="the corpus's folder")
    add("--shard_dir", required=True, help="a folder is written here per split")

    add(
        "--split",
        help=(
            "train, validation, test, or another that the corpus has, such as "
            "test-other of LibriSpeech; default: the first three"
        ),
    )
    add(
        "--manifest",
        help="a tsv or json corpus's list, within --corpus_dir; needs --split",
    )
    add("--subsets", help="folders of LibriSpeech, comma-separated; needs --split")

    add(
        "--language",
        metavar="TAG",
        help=(
            "of the transcripts, such as tr: its rules for upper and lower case hold "
            "(BCP 47); with --corpus synthetic, first make a corpus of it in "
            "--corpus_dir, such as de or cmn"
        ),
    )
    add(
        "--voice", help="its espeak-ng voices, comma-separated; default: the language's"
    )
    add_gin_arguments(add)

    # The labels.
    add(
        "--alphabet",
        metavar="NAME",
        help="english, auto (from the training text) or a file",
    )
    add(
        "--mapping",
        metavar="FILE",
        help="replacements, one a line: old text, tab, new text",
    )

    add(
        "--normalise",
        choices=tuple(NORMALISERS),
        help=(
            "write other spellings of the same speech alike, by a named rule; "
            "docs/languages.md"
        ),
    )
    add("--keep_case", action="store_true", default=None, help="keep upper case")
    add(
        "--keep_punctuation",
        action="store_true",
        default=None,
        help="with --alphabet auto",
    )
    add(
        "--units",
        metavar="N",
        help="sub-word units: how many, or a sentencepiece model's file",
    )
    add("--units_kind", choices=("unigram", "bpe", "word"), help="default: unigram")

    # The work.
    add(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        help=(
            "fail if a larger share of the utterances is unusable (too long ones don't "
            "count); default: %(default)s"
        ),
    )
    add("--num_workers", type=int, help="default: all cores")
    add_scheduler_arguments(add, "do the work; docs/preparing_at_scale.md")
    add(
        "--noise_dir",
        help="recordings to mix into copies of utterances; see NoiseConfig",
    )
    add("--impulse_dir", help="rooms' impulse responses to convolve copies with")
    add("--audio_reader", choices=("soundfile", "tfio"), default="soundfile")


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError if the corpus's folder or its list of the split is missing."""
    from tfasr.corpora.corpus import CORPORA, find_manifest
    from tfasr.corpora.reading import require_folder

    # The corpus may be generated first.
    if arguments.language or arguments.voice:
        return

    # A plug-in's corpus may need no folder.
    if CORPORA.entry(arguments.corpus).attribute is None:
        return

    require_folder(arguments.corpus_dir, "the folder with the corpus")
    suffix = CORPORA[arguments.corpus].list_suffix
    if suffix is not None and arguments.split:
        find_manifest(
            Path(arguments.corpus_dir), arguments.split, suffix, arguments.manifest
        )


def run(arguments: argparse.Namespace) -> None:
    """Prepares the splits, here or on a Dask cluster, and prints a line on each."""
    from tfasr.data.packing import cluster_executor
    from tfasr.data.prepare_corpus import prepare
    from tfasr.training.from_gin import load_config

    config = load_config(arguments.gin_file, arguments.gin_binding)
    scheduler = arguments.scheduler
    if scheduler is not None and arguments.num_workers is not None:
        raise UsageError(
            "--num_workers is for the threads of this machine: the workers of "
            "--scheduler have their own. Leave one of the two out."
        )

    tls = tls_of(arguments)
    if scheduler is None:
        cluster = contextlib.nullcontext()
    else:
        cluster = cluster_executor(scheduler, tls)

    if arguments.voice or (arguments.language and arguments.corpus == "synthetic"):
        _make_corpus(arguments)

    subsets = None
    if arguments.subsets:
        subsets = arguments.subsets.split(",")

    with cluster as executor:
        indexes = prepare(
            corpus=arguments.corpus,
            corpus_dir=arguments.corpus_dir,
            shard_dir=arguments.shard_dir,
            split=arguments.split,
            manifest=arguments.manifest,
            subsets=subsets,
            max_bad_fraction=arguments.max_bad_fraction,
            features=config.experiment.features,
            shards=config.shards,
            noise=config.noise,
            noise_dir=arguments.noise_dir,
            impulse_dir=arguments.impulse_dir,
            model=config.experiment.model,
            alphabet=_alphabet(config.alphabet, arguments),
            num_workers=arguments.num_workers,
            audio_reader=arguments.audio_reader,
            executor=executor,
            progress=log.isEnabledFor(logging.INFO),  # not with --quiet
        )

    for name, index in indexes.items():
        print(_describe(name, index, Path(arguments.shard_dir)))


def _make_corpus(arguments: argparse.Namespace) -> None:
    """Generates speech in ``--corpus_dir`` with the language or voices of the flags.

    Raises:
        UsageError: for a corpus of real speech.
    """
    from tfasr.corpora.synthetic import ENGLISH, make_synthetic_corpus

    if arguments.corpus != "synthetic":
        raise UsageError(
            "--voice makes a synthetic corpus: add --corpus synthetic. "
            f"Received: --corpus {arguments.corpus}."
        )

    voices = ()
    if arguments.voice:
        voices = arguments.voice.split(",")

    make_synthetic_corpus(
        arguments.corpus_dir, language=arguments.language or ENGLISH, voices=voices
    )


def _alphabet(
    config: "AlphabetConfig", arguments: argparse.Namespace
) -> "AlphabetConfig":
    """Returns the gin files' settings of the alphabet, changed by the flags.

    Raises UsageError if the flags contradict each other.
    """
    from tfasr.letters import SPECIAL_CASING, primary_language

    changes = {
        "source": arguments.alphabet,
        "mapping": arguments.mapping,
        "normaliser": arguments.normalise,
        "keep_case": arguments.keep_case,
        "keep_punctuation": arguments.keep_punctuation,
        "units_kind": arguments.units_kind,
    }
    # Unlike Turkish, most languages have no rules of their own for upper and lower
    # case, so that their tag changes no transcript.
    if arguments.language and (
        arguments.normalise or primary_language(arguments.language) in SPECIAL_CASING
    ):
        changes["language"] = arguments.language

    # A number of units to train, or the file of a trained model: one replaces the other.
    if arguments.units is not None and arguments.units.isdecimal():
        changes["units"] = int(arguments.units)
        changes["units_model"] = ""
    elif arguments.units is not None:
        changes["units"] = 0
        changes["units_model"] = arguments.units

    changed_fields = {
        name: value for name, value in changes.items() if value is not None
    }
    with wrong_values_are_wrong_use():
        return dataclasses.replace(config, **changed_fields)


def _describe(split: str, index: dict[str, Any], shard_dir: Path) -> str:
    """Returns a line on a prepared split: how much speech it has, and what it lacks.

    Args:
        split: its name.
        index: what `tfasr.data.prepare_corpus.prepare` returned for it.
        shard_dir: the folder of the splits.
    """
    kept_count = index["utterances"]
    listed = kept_count + index["too_long"] + index["bad"]
    left_out = f"{index['too_long']} too long, {index['bad']} bad"
    if index["bad"]:
        left_out += f", listed in {shard_dir / split / 'dropped.json'}"

    utterances = plural(kept_count, "utterance")
    shards = plural(len(index["shards"]), "shard")
    hours = index["duration_s"] / 3600

    share = index["kept_share"]

    return (
        f"{split}: {utterances}, {hours:.2f} h, in {shards}; "
        f"kept {kept_count} of {listed}, {share:.1%}; left out: {left_out}"
    )
