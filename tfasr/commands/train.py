"""``tfasr train``: trains a model and records the run."""

import argparse
import os
from pathlib import Path

from tfasr.commands.shared import SHORT_CUTS, add_gin_arguments, short_cut
from tfasr.display.table import plural
from tfasr.errors import UsageError
from tfasr.kit.files import GIN_GIVEN_FILE, GIN_OPERATIVE_FILE, LOCK_FILE
from tfasr.training.logs import LOGS

EXAMPLE = "train --gin_file fast/an4 --shard_dir shards --run_dir runs/a --epochs 5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags; whatever influences a measurement is a gin binding instead."""
    add = parser.add_argument
    add_gin_arguments(add)

    # They become gin bindings, so the run records them as such.
    for flag, setting in SHORT_CUTS.items():
        add(
            flag,
            dest="gin_binding",
            action="append",
            default=[],
            type=short_cut(setting),
            metavar="N",
            help=f"short for --gin_binding '{setting} = N'",
        )

    add(
        "--shard_dir",
        required=True,
        help="folder with the prepared splits train and validation",
    )
    add("--run_dir", required=True, help="the run's folder, created if missing")

    add(
        "--lexicon",
        metavar="FILE",
        help=(
            "a dictionary for word_beam, one word a line; default: the training "
            "split's words"
        ),
    )

    add("--resume", action="store_true", help="continue an interrupted run")
    add(
        "--no_memory_probe",
        action="store_true",
        help="skip the check that the longest batch fits into memory",
    )
    add(
        "--log_to",
        action="append",
        choices=tuple(LOGS),
        default=[],
        help="also log scalars there; repeatable",
    )
    add(
        "--dry_run",
        action="store_true",
        help="check everything, memory too, and write nothing",
    )

    add(
        "--cluster",
        metavar="tf_config|slurm|HOST:PORT,...",
        help=(
            "train together with other processes that run the same command "
            "(docs/cluster.md): read their addresses from TF_CONFIG or SLURM's "
            "variables, or list all, the chief's first"
        ),
    )
    add("--rank", type=int, help="index of this process in --cluster, from 0")


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError if ``--run_dir`` has a run already and doesn't continue it.

    Training checks it too, but only after TensorFlow is loaded.
    """
    from tfasr.recording.session import events_so_far, has_begun

    if arguments.resume or arguments.dry_run or arguments.cluster:
        return

    run_dir = Path(arguments.run_dir)
    if (run_dir / LOCK_FILE).exists():
        return  # a process is training in it now, which a later check reports

    if has_begun(events_so_far(run_dir)):
        raise UsageError(
            f"--run_dir must not contain a run yet. Received: {arguments.run_dir}, "
            "which does. Continue it with --resume, or choose another folder."
        )


def run(arguments: argparse.Namespace) -> None:
    """Trains a model and prints its last error rates.

    With ``--dry_run`` it only checks the configuration and the data. In a cluster, each
    of its processes calls this; the chief (rank 0) prints.
    """
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
        answer = dry_run(
            config.experiment,
            shard_dir=arguments.shard_dir,
            lexicon=arguments.lexicon,
            memory_probe=not arguments.no_memory_probe,
        )
        print(answer)
        return

    from tfasr.training.run_folder import epochs_done
    from tfasr.training.train import train
    from tfasr.training.workers.team import joined

    in_rounds = cluster is not None and trains_in_rounds(
        arguments.gin_file, arguments.gin_binding
    )
    with joined(cluster, in_rounds=in_rounds) as team:
        # Only after joining, because this creates the optimizer, which initialises
        # TensorFlow.
        config = load_config(arguments.gin_file, arguments.gin_binding)
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
        epochs = plural(epochs_done(history), "epoch")

        print(
            f"{Path(arguments.run_dir)}: {epochs}, "
            f"validation CER {last['cer']:.2%}, WER {last['wer']:.2%}"
        )
