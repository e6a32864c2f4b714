"""``tfasr prepare``: turns a corpus's audio and transcripts into shards of features and labels."""

import argparse
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.commands.evaluate import progress
from tfasr.commands.train import add_gin_arguments
from tfasr.corpora.corpus import CORPORA
from tfasr.errors import UsageError, wrong_values_are_wrong_use

if TYPE_CHECKING:
    from tfasr.data.alphabets import AlphabetConfig

log = logging.getLogger("tfasr")


def add_ngram_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shard_dir", required=True, help="what tfasr prepare wrote")
    add("--split", default="train", help="default: %(default)s")
    add("--order", type=int, default=3, help="words of an n-gram; default: 3")
    add("--out", required=True, help="the ARPA file, for tfasr evaluate --language_model")


def run_ngram(arguments: argparse.Namespace) -> None:
    """``tfasr ngram``: an n-gram language model of a split's transcripts, as an ARPA file."""
    from tfasr.data.shards import open_split
    from tfasr.decoding.language_models import NgramModel

    out = Path(arguments.out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out must be a file in a folder that exists. Received: {out}.")
    split = open_split(arguments.shard_dir, arguments.split)
    utterances = split.utterances

    def texts(advance: Callable[[], None]) -> Iterator[str]:
        for utterance in utterances:
            yield utterance.text
            advance()

    with wrong_values_are_wrong_use(), progress("counted", len(utterances)) as advance:
        model = NgramModel(texts(advance), arguments.order)
    model.write(out)
    sizes = ", ".join(str(len(order.probabilities)) for order in model.orders)
    print(f"{out}: {sizes} n-grams of 1 to {arguments.order} words, Kneser-Ney")


def _describe(split: str, index: dict[str, Any], shard_dir: Path) -> str:
    listed = index["utterances"] + index["too_long"] + index["bad"]
    left_out = f"{index['too_long']} too long, {index['bad']} bad"
    if index["bad"]:
        left_out += f", listed in {shard_dir / split / 'dropped.json'}"
    count, shards = index["utterances"], len(index["shards"])
    return (
        f"{split}: {count} utterance{'s' * (count != 1)}, {index['duration_s'] / 3600:.2f} h, in "
        f"{shards} shard{'s' * (shards != 1)}; kept {count} of {listed}, "
        f"{index['kept_share']:.1%}; left out: {left_out}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    layout = "its layout; --import adds your own"
    add("--corpus", required=True, choices=tuple(CORPORA), help=layout)
    add("--corpus_dir", required=True, help="the corpus's folder")
    add("--shard_dir", required=True, help="a folder is written here per split")
    split = "train, validation, test, or another that the corpus has, such as test-other of "
    add("--split", help=f"{split}LibriSpeech; default: the first three")
    add("--manifest", help="a tsv or json corpus's list, within --corpus_dir; needs --split")
    add("--subsets", help="folders of LibriSpeech, comma-separated; needs --split")
    add("--language", help="first make a synthetic corpus of it in --corpus_dir, such as de or cmn")
    add("--voice", help="its espeak-ng voices, comma-separated; default: the language's")
    add_gin_arguments(add)
    add("--alphabet", metavar="NAME", help="english, auto (from the training text) or a file")
    add("--mapping", metavar="FILE", help="replacements, one a line: old text, tab, new text")
    add("--keep_case", action="store_true", default=None, help="keep upper case")
    add("--keep_punctuation", action="store_true", default=None, help="with --alphabet auto")
    add("--units", metavar="N", help="sub-word units: how many, or a sentencepiece model's file")
    add("--units_kind", choices=("unigram", "bpe"), help="default: unigram")
    bad = "fail if a larger share of the utterances is unusable (too long ones don't count); "
    add("--max_bad_fraction", type=float, default=0.01, help=f"{bad}default: %(default)s")
    add("--num_workers", type=int, help="default: all cores")
    scheduler = "a Dask cluster whose workers do the work; docs/preparing_at_scale.md"
    add("--scheduler", metavar="tcp://HOST:PORT", help=scheduler)
    add("--noise_dir", help="recordings to mix into copies of utterances; see NoiseConfig")
    add("--impulse_dir", help="rooms' impulse responses to convolve copies with")
    add("--audio_reader", choices=("soundfile", "tfio"), default="soundfile")


def run(arguments: argparse.Namespace) -> None:
    from tfasr.data.packing import cluster_executor
    from tfasr.data.prepare_corpus import prepare
    from tfasr.training.from_gin import load_config

    config = load_config(arguments.gin_file, arguments.gin_binding)
    if arguments.language or arguments.voice:
        _make_corpus(arguments)
    names = ("corpus", "corpus_dir", "shard_dir", "split", "manifest", "max_bad_fraction")
    scheduler = arguments.scheduler
    if scheduler is not None and arguments.num_workers is not None:
        raise UsageError(
            "--num_workers is for the threads of this machine: the workers of --scheduler have "
            "their own. Leave one of the two out."
        )
    cluster = contextlib.nullcontext() if scheduler is None else cluster_executor(scheduler)
    with cluster as executor:
        indexes = prepare(
            subsets=arguments.subsets.split(",") if arguments.subsets else None,
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
            **{name: getattr(arguments, name) for name in names},
        )
    for name, index in indexes.items():
        print(_describe(name, index, Path(arguments.shard_dir)))


def _make_corpus(arguments: argparse.Namespace) -> None:
    from tfasr.corpora.synthetic import ENGLISH, make_synthetic_corpus

    if arguments.corpus != "synthetic":
        raise UsageError(
            "--language and --voice make a synthetic corpus: add --corpus synthetic. For recorded "
            f"speech --alphabet auto is enough. Received: --corpus {arguments.corpus}."
        )
    make_synthetic_corpus(
        arguments.corpus_dir,
        language=arguments.language or ENGLISH,
        voices=arguments.voice.split(",") if arguments.voice else (),
    )


def _alphabet(config: "AlphabetConfig", arguments: argparse.Namespace) -> "AlphabetConfig":
    names = ("mapping", "keep_case", "keep_punctuation", "units_kind")
    changes = {name: getattr(arguments, name) for name in names}
    changes["source"] = arguments.alphabet
    if arguments.units is not None:
        counted = arguments.units.isdecimal()
        changes["units"] = int(arguments.units) if counted else 0
        changes["units_model"] = "" if counted else arguments.units
    with wrong_values_are_wrong_use():
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(config, **given)
