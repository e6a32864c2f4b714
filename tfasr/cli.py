"""The command line: ``tfasr COMMAND``. Results go to stdout, logs to stderr.

Exit codes: 0 done, 1 the work failed, 2 wrong use.
"""

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator

from absl import app
from absl.flags import argparse_flags

from tfasr.errors import RunError, UsageError

COMMANDS = {
    "prepare": "pack a corpus's audio and transcripts into shards of features",
    "train": "train a model and record the run",
    "evaluate": "score a trained model on a prepared split",
    "report": "time to accuracy of runs: table, figures, HTML",
    "bench": "what a part costs: decoders over beam widths, a training step",
    "demo": "the whole chain on synthetic speech, without a download",
}
_TENSORFLOW_REMEDIES = {
    "DataLossError": "A shard is damaged: remove its split's folder and run tfasr prepare again.",
    "ResourceExhaustedError": "The memory or disk is full: try a smaller "
    "PipelineConfig.global_batch_size, or free some space; checkpoints are kept.",
}
NEED_TENSORFLOW = ("prepare", "train", "evaluate")


def parse(argv: list[str]):
    """Parses the command line; wrong flags exit with 2 and a message."""
    from tfasr import __version__

    parser = argparse_flags.ArgumentParser(prog="tfasr", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"tfasr {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        module = importlib.import_module(f"tfasr.commands.{name}")
        command = commands.add_parser(name, help=purpose, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser.parse_args(argv[1:])


def run(arguments) -> int:
    """Runs the parsed command and returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    # bench takes a run's model, or what some model answered and needs none.
    of_run = arguments.command == "bench" and getattr(arguments, "run_dir", None) is not None
    if arguments.command in NEED_TENSORFLOW or of_run:
        load_tensorflow()
    try:
        return arguments.run(arguments) or 0
    except UsageError as error:
        print(f"tfasr {arguments.command}: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(f"tfasr {arguments.command}: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        remedy = _TENSORFLOW_REMEDIES.get(type(error).__name__)
        if remedy is None:
            raise
        print(f"tfasr {arguments.command}: {remedy} TensorFlow says: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"tfasr {arguments.command}: interrupted", file=sys.stderr)
        return 1


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Sends what C++ code prints to nowhere; Python's exceptions come through all the same."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor, no path
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def load_tensorflow() -> None:
    """Imports TensorFlow without its twenty lines on devices, which bury tfasr's own."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _quiet_stderr():
        import tensorflow as tf

        tf.config.list_physical_devices()


def main() -> None:
    """Entry point of the ``tfasr`` script."""
    app.run(run, flags_parser=parse)


if __name__ == "__main__":
    main()
