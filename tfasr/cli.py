"""The command line: ``tfasr COMMAND``. Results go to stdout, logs to stderr.

Exit codes: 0 done, 1 the work failed, 2 wrong use; 3: ``tfasr history`` found a slowdown; 130 and
143: SIGINT and SIGTERM ended a training, whose checkpoint was saved.
"""

import argparse
import difflib
import importlib
import logging
import os
import sys

from tfasr.errors import RunError, UsageError, explained, lacking, out_of_memory
from tfasr.kit.process import load_tensorflow
from tfasr.kit.registry import load_plugin

COMMANDS = {
    "prepare": "pack a corpus's audio and transcripts into shards of features",
    "train": "train a model and record the run",
    "launch": "train in several processes on this machine, see docs/cluster.md",
    "evaluate": "score a trained model on a prepared split",
    "ngram": "write an n-gram language model of a split's transcripts, for evaluate",
    "transcribe": "write down what recordings say: text, subtitles, word times",
    "serve": "a page to drop recordings on or to speak into",
    "export": "write a trained recogniser for other programs: ONNX, LiteRT, Keras",
    "watch": "where runs stand, and when they will meet their targets",
    "history": "times to accuracy over commits: what became slower, and why",
    "report": "time to accuracy of runs: table, figures, HTML",
    "bench": "what a part costs: decoders, training steps, synthetic workloads",
    "doctor": "what this machine is, and whether its clocks can be trusted",
    "study": "train a list of experiments, resume it where it was killed, report on all",
    "demo": "the whole chain on synthetic speech, without a download",
}
# Commands that share the file of another: run_NAME and add_NAME_arguments.
_FILES = {"history": "watch", "launch": "train", "ngram": "prepare", "serve": "transcribe"}
_FILES |= {"export": "evaluate", "study": "demo"}
_TENSORFLOW_REMEDIES = {
    "DataLossError": "A shard is damaged: run tfasr prepare again; it replaces that one.",
    "ResourceExhaustedError": "The memory or disk is full: try a smaller "
    "PipelineConfig.global_batch_size, or free some space; checkpoints are kept.",
}
NEED_TENSORFLOW = ("prepare", "train", "evaluate", "ngram", "export")


def parse(argv: list[str]):
    """Parses the command line; wrong flags exit with 2 and a message."""
    from absl.flags import argparse_flags

    from tfasr import __version__

    class Parser(argparse_flags.ArgumentParser):
        def error(self, message: str):
            if self is parser:
                super().error(message + _meant(argv[1:2], list(COMMANDS)))
            flags = [word for word in argv[2:] if word.startswith("--")]
            super().error(message + _meant(flags, list(self._option_string_actions)))

    _load_plugins(argv[1:])
    parser = Parser(prog="tfasr", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"tfasr {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        if name not in argv:  # to import all commands takes longer than some of them work
            commands.add_parser(name, help=purpose)
            continue
        module = importlib.import_module(f"tfasr.commands.{_FILES.get(name, name)}")
        ending = f"_{name}" if name in _FILES else ""
        run = getattr(module, "run" + ending)
        description = run.__doc__ if ending else module.__doc__
        command = commands.add_parser(name, help=purpose, description=description)
        getattr(module, f"add{ending}_arguments")(command)
        for subparser in _with_subcommands(command):
            _add_import(subparser)
        command.set_defaults(run=run)
    if not argv[1:]:
        parser.print_help(sys.stderr)
        sys.exit(2)
    arguments, unknown = parser.parse_known_args(argv[1:])
    if unknown:  # the command's usage, not that of tfasr, lists what it could have been
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _meant(words: list[str], known: list[str]) -> str:
    """Returns what a misspelt word of ``words`` may have been, to end a message with, or ""."""
    for name in (word.split("=")[0] for word in words):
        if any(right.startswith(name) for right in known):
            continue  # or an abbreviation, which argparse takes
        dashes = len(name) - len(name.lstrip("-"))
        spelt = name[:dashes] + name[dashes:].replace("-", "_")
        for near in difflib.get_close_matches(spelt, known, n=1):
            return f". Did you mean {near} instead of {name}?"
    return ""


def _load_plugins(words: list[str]) -> None:
    """Loads what ``--import`` names before the flags are declared: their choices depend on it."""
    early = argparse.ArgumentParser(prog="tfasr", add_help=False, allow_abbrev=False)
    _add_import(early)
    names = getattr(early.parse_known_args(words)[0], "import", ())
    # A plug-in that imports Keras must not hide the command's output in TensorFlow's messages.
    if names and words[0] in NEED_TENSORFLOW:
        load_tensorflow()
    for name in names:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        load_plugin(name)


def _with_subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Returns a command's parser and those of its subcommands."""
    found = [parser]
    for action in parser._actions:  # noqa: SLF001 - no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found += action.choices.values()
    return found


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        action="append",
        default=argparse.SUPPRESS,
        metavar="MODULE|FILE.py",
        help="a module of your own that registers models, corpora, figures and so on, see "
        "docs/extending.md; its code is run; repeatable",
    )


def run(arguments) -> int:
    """Runs the parsed command and returns the exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        # A folder's name may be no UTF-8, and that must not end the report on what is in it.
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    # bench needs TensorFlow for the model of a run or preset, not to decode a file of scores.
    sources = (getattr(arguments, name, None) for name in ("run_dir", "gin_file"))
    has_model = arguments.command == "bench" and any(source is not None for source in sources)
    if getattr(arguments, "subcommand", None) == "inference":  # its processes load what they need
        has_model = False
    try:
        if arguments.command in NEED_TENSORFLOW or has_model:
            load_tensorflow()
        return arguments.run(arguments) or 0
    except UsageError as error:
        return _failed(f" {arguments.command}", error, 2)
    except RunError as error:
        return _failed(f" {arguments.command}", error, error.exit_code)
    except OSError as error:
        return _failed(f" {arguments.command}", *explained(error))
    except ModuleNotFoundError as error:
        said = lacking(error, "the command")
        if said is None:
            raise
        return _failed(f" {arguments.command}", said, 2)
    except Exception as error:
        said = out_of_memory(error)
        if said is not None:
            return _failed(f" {arguments.command}", said, 1)
        remedy = _TENSORFLOW_REMEDIES.get(type(error).__name__)
        if remedy is None:
            raise
        return _failed(f" {arguments.command}", f"{remedy} TensorFlow says: {error}", 1)
    except KeyboardInterrupt:
        return _failed(f" {arguments.command}", "interrupted", 1)


def _failed(command: str, message: object, status: int) -> int:
    print(f"tfasr{command}: {message}", file=sys.stderr)
    return status


def main() -> None:
    """Entry point of the ``tfasr`` script."""
    try:
        from absl import app

        app.run(run, flags_parser=parse)
    except UsageError as error:  # a plug-in that cannot be imported
        sys.exit(_failed("", error, 2))
    except ModuleNotFoundError as error:  # while the modules of the commands are imported
        said = lacking(error, "the command line")
        if said is None:
            raise
        sys.exit(_failed("", said, 2))
    except Exception as error:  # likewise
        said = out_of_memory(error)
        if said is None:
            raise
        sys.exit(_failed("", said, 1))
    except KeyboardInterrupt:  # likewise
        sys.exit(_failed("", "interrupted", 1))


if __name__ == "__main__":
    main()
