"""The command line: ``tfasr COMMAND``. Results go to stdout, logs to stderr.

Exit codes: 0 done, 1 the work failed, 2 wrong use; 3: ``tfasr history`` found a slowdown; 130 and
143: SIGINT and SIGTERM ended a training, whose checkpoint was saved.
"""

import argparse
import contextlib
import difflib
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tfasr.errors import RunError, UsageError, explained, lacking, out_of_memory, printable
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
_TENSORFLOW_REMEDIES = {
    "DataLossError": "A shard is damaged: run tfasr prepare again; it replaces that one.",
    "ResourceExhaustedError": "The memory or disk is full: try a smaller "
    "PipelineConfig.global_batch_size, or free some space; checkpoints are kept.",
}
PIPE_CLOSED = 141  # as of a process that SIGPIPE ends
NEED_TENSORFLOW = ("prepare", "train", "evaluate", "ngram", "export")


class Terminal:
    """A terminal that obeys nothing in the text written to it: a file's name may be hostile."""

    def __init__(self, stream: TextIO):
        self.rich_proxied_file = stream  # under this name rich looks for the stream to colour

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _Lines(logging.Formatter):
    """Escapes each line of the log: while rich renews a line, it writes the log itself."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _guard_terminal() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty() and not isinstance(stream, Terminal):
            setattr(sys, name, Terminal(stream))


def parse(argv: list[str]):
    """Parses the command line; wrong flags exit with 2 and a message."""
    _guard_terminal()
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
        add_arguments, run, description = command_parts(name)
        command = commands.add_parser(name, help=purpose, description=description)
        add_arguments(command)
        for subparser in _with_subcommands(command):
            _add_import(subparser)
        command.set_defaults(run=run)
    if not argv[1:]:
        parser.print_help(sys.stderr)
        sys.exit(2)
    arguments, unknown = parser.parse_known_args(argv[1:])
    if unknown:  # the command's usage, not that of tfasr, lists what it could have been
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    _refuse_empty_words(arguments, commands.choices[arguments.command])
    return arguments


def _refuse_empty_words(arguments: argparse.Namespace, command: argparse.ArgumentParser) -> None:
    # As a path, "" is the working directory: of --out "$OUT" without such a variable.
    for parser in _with_subcommands(command):
        for action in parser._actions:  # noqa: SLF001 - no public way
            value = getattr(arguments, action.dest, None)
            empty = value == "" or (isinstance(value, list) and "" in value)
            if empty and action.default != "" and action.dest not in ("gin_binding", "arguments"):
                name = action.option_strings[0] if action.option_strings else action.metavar
                command.error(f"{name or action.dest} must not be empty: leave it out, or name it")


def _load_tensorflow() -> None:
    from tfasr.kit.process import load_tensorflow  # here: --help has no use for processes

    load_tensorflow()


def command_parts(name: str) -> tuple[Callable, Callable, str | None]:
    """Imports a command; returns what declares its flags, what runs it and its description."""
    module = importlib.import_module(f"tfasr.commands.{_FILES.get(name, name)}")
    if name not in _FILES:
        return module.add_arguments, module.run, module.__doc__
    run = getattr(module, f"run_{name}")
    return getattr(module, f"add_{name}_arguments"), run, run.__doc__


def _meant(words: list[str], known: list[str]) -> str:
    """Returns ". Did you mean ..." for a misspelt word, or ""."""
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
        _load_tensorflow()
    for name in names:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        load_plugin(name)


def _with_subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    parsers = [parser]
    for action in parser._actions:  # noqa: SLF001 - no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            parsers += action.choices.values()
    return parsers


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
    if sys.stdout is None:  # closed, as by >&-
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    if hasattr(sys.stdout, "reconfigure"):
        # A folder's name may be no UTF-8, and that must not end the report on what is in it.
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # bench needs TensorFlow for the model of a run or preset, not to decode a file of scores.
    sources = (getattr(arguments, name, None) for name in ("run_dir", "gin_file"))
    has_model = arguments.command == "bench" and any(source is not None for source in sources)
    if getattr(arguments, "subcommand", None) == "inference":  # its processes load what they need
        has_model = False
    try:
        if arguments.command in NEED_TENSORFLOW or has_model:
            _load_tensorflow()
        status = arguments.run(arguments) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here a full disk is still an error with a line of its own
        return status
    except BrokenPipeError:  # such as of ``tfasr watch | head``: who reads has seen enough
        _forget_output()
        return PIPE_CLOSED
    except (Exception, KeyboardInterrupt) as error:
        status = _reported(error, f" {arguments.command}")
        if status is None:
            raise
        if isinstance(error, OSError):
            _forget_output()
        return status


def _forget_output() -> None:
    """Drops what standard output could not take, which Python would try again to write."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reported(error: BaseException, command: str = "") -> int | None:
    """Prints what went wrong and returns the exit code; None for errors that need a traceback."""
    status = 1
    if isinstance(error, KeyboardInterrupt):
        message = "interrupted"
    elif isinstance(error, UsageError):
        message, status = error, 2
    elif isinstance(error, ModuleNotFoundError):
        message, status = lacking(error, "the command" if command else "the command line"), 2
    elif command and isinstance(error, RunError):
        message, status = error, error.exit_code
    elif command and isinstance(error, OSError):
        message, status = explained(error)
    else:
        message = out_of_memory(error)
        remedy = _TENSORFLOW_REMEDIES.get(type(error).__name__)
        if message is None and remedy is not None:
            message = f"{remedy} TensorFlow says: {error}"
    if message is None:
        return None
    print(f"tfasr{command}: {message}", file=sys.stderr)
    return status


def main() -> None:
    """Entry point of the ``tfasr`` script."""
    try:
        from absl import app

        app.run(run, flags_parser=parse)
    except (Exception, KeyboardInterrupt) as error:  # of a plug-in, or while commands are imported
        status = _reported(error)
        if status is None:
            raise
        sys.exit(status)


if __name__ == "__main__":
    main()
