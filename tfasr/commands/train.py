"""``tfasr train``: trains a model and records the run."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from tfasr.cluster.description import named_cluster
from tfasr.errors import UsageError
from tfasr.kit.files import GIN_GIVEN_FILE, GIN_OPERATIVE_FILE
from tfasr.training.logs import LOGS


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-n", "--workers", type=int, required=True, help="how many processes train together")
    again = (
        "if they train in rounds (TrainingConfig.exchange): restart a worker that fails, up to N "
    )
    add("--restarts", type=int, metavar="N", help=again + "times, while the others go on")
    more = {"nargs": argparse.REMAINDER, "metavar": "-- train FLAGS"}
    add("arguments", **more, help="the command that each worker runs, without --cluster and --rank")


def run_launch(arguments: argparse.Namespace) -> int:
    """``tfasr launch``: trains in several processes; without --restarts, one failure ends all."""
    from tfasr.cluster.launcher import launch

    words = arguments.arguments
    words = words[1:] if words[:1] == ["--"] else words
    if arguments.workers < 1:
        raise UsageError(f"-n must be at least 1 worker. Received: {arguments.workers}.")
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
        raise UsageError(f"--restarts must be at least 0. Received: {arguments.restarts}.")
    return launch(arguments.workers, [*words, "--cluster", "tf_config"], arguments.restarts)


def add_gin_arguments(add: Callable) -> None:
    add(
        "--gin_file",
        action="append",
        help="preset or file, such as demo.gin, repeatable; default: the paper's model",
    )
    add("--gin_binding", action="append", default=[], metavar="LINE",
        help="overrides the files, such as 'TrainingConfig.epochs = 5'; repeatable")  # fmt: skip


def _short_cut(setting: str) -> Callable[[str], str]:
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
LEXICON_HELP = "a dictionary for word_beam, one word a line; default: the training split's words"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_gin_arguments(add)
    for flag, setting in SHORT_CUTS.items():
        short = f"short for --gin_binding '{setting} = N'"
        binding = {"dest": "gin_binding", "action": "append", "default": [], "metavar": "N"}
        add(flag, **binding, type=_short_cut(setting), help=short)
    add("--shard_dir", required=True, help="folder with the prepared splits train and validation")
    add("--run_dir", required=True, help="the run's folder, created if missing")
    add("--lexicon", metavar="FILE", help=LEXICON_HELP)
    add("--resume", action="store_true", help="continue an interrupted run")
    add(
        "--no_memory_probe",
        action="store_true",
        help="skip the check that the longest batch fits into memory",
    )
    logs = {"action": "append", "choices": tuple(LOGS), "default": []}
    add("--log_to", **logs, help="also log scalars there; repeatable")
    add("--dry_run", action="store_true", help="estimate memory and time, write nothing")
    add(
        "--cluster",
        metavar="tf_config|slurm|HOST:PORT,...",
        help="train together with other processes that run the same command (docs/cluster.md): "
        "read their addresses from TF_CONFIG or SLURM's variables, or list all, the chief's first",
    )
    add("--rank", type=int, help="index of this process in --cluster, from 0")


def run(arguments: argparse.Namespace) -> None:
    cluster = named_cluster(arguments.cluster, arguments.rank, os.environ)
    from tfasr.kit.registry import require_plugins
    from tfasr.training.from_gin import load_config, trains_in_rounds

    if arguments.resume:  # without the run's plug-ins, names in the preset may be unknown
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
        # Only after joining, because this creates the optimizer, which initialises TensorFlow.
        config = load_config(*files)
        history = train(
            config.experiment,
            shard_dir=arguments.shard_dir,
            run_dir=arguments.run_dir,
            resume=arguments.resume,
            gin_texts={GIN_GIVEN_FILE: config.given, GIN_OPERATIVE_FILE: config.operative},
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
