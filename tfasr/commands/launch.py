"""``tfasr launch``: trains in several processes; without --restarts, one failure
ends all.
"""

import argparse

from tfasr.errors import UsageError

EXAMPLE = (
    "launch -n 2 -- train --gin_file an4.gin --shard_dir shards --run_dir runs/two"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the number of processes, and the training that each of them runs."""
    add = parser.add_argument
    add(
        "-n",
        "--workers",
        type=int,
        required=True,
        help="how many processes train together",
    )
    add(
        "--restarts",
        type=int,
        metavar="N",
        help="if they train in rounds (TrainingConfig.exchange): restart a worker that "
        "fails, up to N times, while the others go on",
    )
    add(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="-- train FLAGS",
        help="the command that each worker runs, without --cluster and --rank",
    )


def run(arguments: argparse.Namespace) -> int:
    """Starts the processes and waits for them.

    Returns:
        The exit code: of the first process that failed, or 0.
    """
    from tfasr.cluster.launcher import launch

    words = arguments.arguments
    # argparse keeps the separator.
    if words[:1] == ["--"]:
        words = words[1:]

    if arguments.workers < 1:
        raise UsageError(
            f"-n must be at least 1 worker. Received: {arguments.workers}."
        )

    if words[:1] != ["train"]:
        received = " ".join(words[:1]) or "no command"
        raise UsageError(
            "launch needs the train command after --, such as tfasr launch -n 2 -- "
            f"train --shard_dir shards --run_dir run. Received: {received}."
        )

    # A worker's place in the cluster is in the variable TF_CONFIG of its process.
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
