"""The command line: ``tfasr COMMAND``. Results go to stdout, logs to stderr.

Exit codes: 0 done, 1 the work failed, 2 wrong use.
"""

import importlib
import logging
import sys

from absl import app
from absl.flags import argparse_flags

from tfasr.errors import RunError, UsageError
from tfasr.quiet import load_tensorflow

COMMANDS = {
    "prepare": "pack a corpus's audio and transcripts into shards of features",
    "train": "train a model and record the run",
    "evaluate": "score a trained model on a prepared split",
    "report": "time to accuracy of runs: table, figures, HTML",
    "bench": "what a part costs: decoders, training steps, synthetic workloads",
    "doctor": "what this machine is, and whether its clocks can be believed",
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
    # bench takes a run's model or a preset, or what some model answered and needs none.
    sources = (getattr(arguments, name, None) for name in ("run_dir", "gin_file"))
    of_run = arguments.command == "bench" and any(source is not None for source in sources)
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


def main() -> None:
    """Entry point of the ``tfasr`` script."""
    app.run(run, flags_parser=parse)


if __name__ == "__main__":
    main()
