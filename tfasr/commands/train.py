"""``tfasr train``: trains a model and records the run."""

import argparse
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.commands.shared import add_scheduler_arguments, tls_of
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.files import GIN_GIVEN_FILE, GIN_OPERATIVE_FILE
from tfasr.training.logs import LOGS

if TYPE_CHECKING:
    from tfasr.data.alphabets import AlphabetConfig

log = logging.getLogger("tfasr")


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-n",
        "--workers",
        type=int,
        required=True,
        help="how many processes train together",
    )
    again = (
        "if they train in rounds (TrainingConfig.exchange): "
        "restart a worker that fails, up to N "
    )
    add(
        "--restarts",
        type=int,
        metavar="N",
        help=again + "times, while the others go on",
    )
    more = {"nargs": argparse.REMAINDER, "metavar": "-- train FLAGS"}
    add(
        "arguments",
        **more,
        help="the command that each worker runs, without --cluster and --rank",
    )


def run_launch(arguments: argparse.Namespace) -> int:
    """``tfasr launch``: trains in several processes; without --restarts, one failure
    ends all.
    """
    from tfasr.cluster.launcher import launch

    words = arguments.arguments
    words = words[1:] if words[:1] == ["--"] else words

    if arguments.workers < 1:
        raise UsageError(
            f"-n must be at least 1 worker. Received: {arguments.workers}."
        )

    if words[:1] != ["train"]:
        raise UsageError(
            "launch needs the train command after --, such as tfasr launch -n 2 -- train "
            f"--shard_dir shards --run_dir run. Received: {' '.join(words[:1]) or 'no command'}."
        )

    worker_flags = [w for w in words if w.split("=")[0] in ("--cluster", "--rank")]
    if worker_flags:
        raise UsageError(
            "tfasr launch sets the workers' cluster itself. Received: "
            f"{', '.join(worker_flags)}. Leave it out."
        )

    if arguments.restarts is not None and arguments.restarts < 0:
        raise UsageError(
            f"--restarts must be at least 0. Received: {arguments.restarts}."
        )

    return launch(
        arguments.workers, [*words, "--cluster", "tf_config"], arguments.restarts
    )


def add_gin_arguments(add: Callable) -> None:
    files = "preset or file, such as demo.gin, repeatable; default: the paper's recipe"
    add("--gin_file", action="append", help=files)
    line = "overrides the files, such as 'TrainingConfig.epochs = 5'; repeatable"
    add("--gin_binding", action="append", default=[], metavar="LINE", help=line)


def short_cut(setting: str) -> Callable[[str], str]:
    """Returns a function that turns a flag's text into a gin line, which the run records."""

    def whole_number(text: str) -> str:
        if int(text) < 1 and setting != SHORT_CUTS["--seed"]:
            raise argparse.ArgumentTypeError(f"must be at least 1. Received: {text}")
        return f"{setting} = {int(text)}"

    return whole_number


SHORT_CUTS = {
    "--epochs": "TrainingConfig.epochs",
    "--batch_size": "PipelineConfig.global_batch_size",
    "--seed": "TrainingConfig.seed",
}
LEXICON_HELP = (
    "a dictionary for word_beam, one word a line; default: the training split's words"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_gin_arguments(add)

    for flag, setting in SHORT_CUTS.items():
        short = f"short for --gin_binding '{setting} = N'"
        binding = {
            "dest": "gin_binding",
            "action": "append",
            "default": [],
            "metavar": "N",
        }
        add(flag, **binding, type=short_cut(setting), help=short)

    add(
        "--shard_dir",
        required=True,
        help="folder with the prepared splits train and validation",
    )
    add("--run_dir", required=True, help="the run's folder, created if missing")
    add("--lexicon", metavar="FILE", help=LEXICON_HELP)
    add("--resume", action="store_true", help="continue an interrupted run")
    probe = "skip the check that the longest batch fits into memory"
    add("--no_memory_probe", action="store_true", help=probe)
    logs = {"action": "append", "choices": tuple(LOGS), "default": []}
    add("--log_to", **logs, help="also log scalars there; repeatable")
    add(
        "--dry_run",
        action="store_true",
        help="check everything, memory too, and write nothing",
    )
    add(
        "--cluster",
        metavar="tf_config|slurm|HOST:PORT,...",
        help="train together with other processes that run the same command (docs/cluster.md): "
        "read their addresses from TF_CONFIG or SLURM's variables, or list all, the chief's first",
    )
    add("--rank", type=int, help="index of this process in --cluster, from 0")


def run(arguments: argparse.Namespace) -> None:
    from tfasr.cluster.description import named_cluster
    from tfasr.kit.registry import require_plugins
    from tfasr.training.from_gin import load_config, trains_in_rounds

    cluster = named_cluster(arguments.cluster, arguments.rank, os.environ)

    # Without the run's plug-ins, names in the preset may be unknown.
    if arguments.resume:
        require_plugins(arguments.run_dir)
    if arguments.dry_run:
        config = load_config(arguments.gin_file, arguments.gin_binding)
        from tfasr.training.dry_run import dry_run

        print(config.operative)
        probe = not arguments.no_memory_probe
        data = {"shard_dir": arguments.shard_dir, "lexicon": arguments.lexicon}
        print(dry_run(config.experiment, **data, memory_probe=probe))
        return

    from tfasr.training.run_folder import epochs_done
    from tfasr.training.train import train
    from tfasr.training.workers.team import joined

    files = arguments.gin_file, arguments.gin_binding
    in_rounds = cluster is not None and trains_in_rounds(*files)

    with joined(cluster, in_rounds=in_rounds) as team:
        # Only after joining, because this creates the optimizer, which initialises
        # TensorFlow.
        config = load_config(*files)
        history = train(
            config.experiment,
            shard_dir=arguments.shard_dir,
            run_dir=arguments.run_dir,
            resume=arguments.resume,
            gin_texts={
                GIN_GIVEN_FILE: config.given,
                GIN_OPERATIVE_FILE: config.operative,
            },
            hardware=config.hardware,
            memory_probe=not arguments.no_memory_probe,
            log_to=arguments.log_to,
            lexicon=arguments.lexicon,
            own_process=True,
            team=team,
        )

    if history and team.rank == 0:
        last = history[-1]
        print(
            f"{Path(arguments.run_dir)}: {(n := epochs_done(history))} epoch{'s' * (n != 1)}, "
            f"validation CER {last['cer']:.2%}, WER {last['wer']:.2%}"
        )


def _describe(split: str, index: dict[str, Any], shard_dir: Path) -> str:
    listed = index["utterances"] + index["too_long"] + index["bad"]
    left_out = f"{index['too_long']} too long, {index['bad']} bad"
    if index["bad"]:
        left_out += f", listed in {shard_dir / split / 'dropped.json'}"
    count = index["utterances"]
    shards = len(index["shards"])

    return (
        f"{split}: {count} utterance{'s' * (count != 1)}, {index['duration_s'] / 3600:.2f} h, in "
        f"{shards} shard{'s' * (shards != 1)}; kept {count} of {listed}, "
        f"{index['kept_share']:.1%}; left out: {left_out}"
    )


def add_prepare_arguments(parser: argparse.ArgumentParser) -> None:
    # here, as tfasr train doesn't need soundfile
    from tfasr.corpora.corpus import CORPORA
    from tfasr.normalisers import NORMALISERS

    add = parser.add_argument
    layout = "its layout; --import adds your own"
    add("--corpus", required=True, choices=tuple(CORPORA), help=layout)
    add("--corpus_dir", required=True, help="the corpus's folder")
    add("--shard_dir", required=True, help="a folder is written here per split")
    split = "train, validation, test, or another that the corpus has, such as test-other of "
    add("--split", help=f"{split}LibriSpeech; default: the first three")
    add(
        "--manifest",
        help="a tsv or json corpus's list, within --corpus_dir; needs --split",
    )
    add("--subsets", help="folders of LibriSpeech, comma-separated; needs --split")
    language = (
        "of the transcripts, such as tr: its rules for upper and lower case hold (BCP 47); with "
        "--corpus synthetic, first make a corpus of it in --corpus_dir, such as de or cmn"
    )
    add("--language", metavar="TAG", help=language)
    add(
        "--voice", help="its espeak-ng voices, comma-separated; default: the language's"
    )
    add_gin_arguments(add)
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
    rule = "write other spellings of the same speech alike, by a named rule; docs/languages.md"
    add("--normalise", choices=tuple(NORMALISERS), help=rule)
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
    bad = "fail if a larger share of the utterances is unusable (too long ones don't count); "
    add(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        help=f"{bad}default: %(default)s",
    )
    add("--num_workers", type=int, help="default: all cores")
    add_scheduler_arguments(add, "do the work; docs/preparing_at_scale.md")
    add(
        "--noise_dir",
        help="recordings to mix into copies of utterances; see NoiseConfig",
    )
    add("--impulse_dir", help="rooms' impulse responses to convolve copies with")
    add("--audio_reader", choices=("soundfile", "tfio"), default="soundfile")


def run_prepare(arguments: argparse.Namespace) -> None:
    """``tfasr prepare``: turns a corpus into shards of features and labels."""
    from tfasr.data.packing import cluster_executor
    from tfasr.data.prepare_corpus import prepare
    from tfasr.training.from_gin import load_config

    config = load_config(arguments.gin_file, arguments.gin_binding)
    if arguments.voice or (arguments.language and arguments.corpus == "synthetic"):
        _make_corpus(arguments)
    names = (
        "corpus",
        "corpus_dir",
        "shard_dir",
        "split",
        "manifest",
        "max_bad_fraction",
    )
    scheduler = arguments.scheduler
    if scheduler is not None and arguments.num_workers is not None:
        raise UsageError(
            "--num_workers is for the threads of this machine: the workers of --scheduler have "
            "their own. Leave one of the two out."
        )

    tls = tls_of(arguments)
    if scheduler is None:
        cluster = contextlib.nullcontext()
    else:
        cluster = cluster_executor(scheduler, tls)

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
            "--voice makes a synthetic corpus: add --corpus synthetic. Received: --corpus "
            f"{arguments.corpus}."
        )

    make_synthetic_corpus(
        arguments.corpus_dir,
        language=arguments.language or ENGLISH,
        voices=arguments.voice.split(",") if arguments.voice else (),
    )


def _alphabet(
    config: "AlphabetConfig", arguments: argparse.Namespace
) -> "AlphabetConfig":
    from tfasr.letters import SPECIAL_CASING, primary_language

    names = ("mapping", "keep_case", "keep_punctuation", "units_kind")
    changes = {name: getattr(arguments, name) for name in names}
    changes["source"] = arguments.alphabet
    changes["normaliser"] = arguments.normalise

    if arguments.language and (
        arguments.normalise or primary_language(arguments.language) in SPECIAL_CASING
    ):  # other languages change no transcript
        changes["language"] = arguments.language

    if arguments.units is not None:
        counted = arguments.units.isdecimal()
        changes["units"] = int(arguments.units) if counted else 0
        changes["units_model"] = "" if counted else arguments.units

    with wrong_values_are_wrong_use():
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(config, **given)
