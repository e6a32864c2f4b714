"""``tfasr launch``: trains in several processes on this machine; ends all when one fails."""

import argparse

from tfasr.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--workers", type=int, required=True, help="how many processes train together"
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="-- train FLAGS",
        help="what each of them runs: train and its flags, but for --cluster and --rank",
    )


def run(arguments: argparse.Namespace) -> int:
    from tfasr.cluster.launcher import launch

    words = arguments.arguments
    words = words[1:] if words[:1] == ["--"] else words
    if arguments.workers < 1:
        raise UsageError(f"-n must be at least 1 worker. Received: {arguments.workers}.")
    if words[:1] != ["train"]:
        raise UsageError(
            "launch must be given the command train behind --, such as tfasr launch -n 2 -- train "
            f"--shard_dir shards --run_dir run. Received: {' '.join(words[:1]) or 'no command'}."
        )
    own = [w for w in words if w.split("=")[0] in ("--cluster", "--rank")]
    if own:
        raise UsageError(
            f"launch must tell the workers their cluster itself. Received: {', '.join(own)}. Leave "
            "it out."
        )
    return launch(arguments.workers, [*words, "--cluster", "tf_config"])
