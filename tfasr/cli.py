"""The command line: ``tfasr COMMAND``. Results go to stdout, logs to stderr.

Exit codes: 0: done; 1: the work failed; 2: wrong use; 3: ``tfasr report --history``
found a slowdown; 130 and 143: SIGINT or SIGTERM ended training, which saved a
checkpoint; 141: the output's pipe closed.
"""

import argparse
import contextlib
import faulthandler
import importlib
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TextIO

from tfasr import errors
from tfasr.errors import RunError, UsageError, imported

# Further imports are within functions: `tfasr --help` and wrong flags need none of
# them.

# The purpose of each command, as ``tfasr --help`` lists them.
COMMANDS = {
    "prepare": "pack a corpus's audio and transcripts into shards of features",
    "estimate": "say how long training will take until its target, and at what price",
    "train": "train a model and record the run",
    "launch": "train in several processes on this machine, see docs/cluster.md",
    "evaluate": "score a trained model on a prepared split",
    "ngram": "train an n-gram language model on a split's transcripts, for word beam search",
    "transcribe": "turn recordings into text, subtitles, word times",
    "serve": "open a web page to drop recordings on or to speak into",
    "export": "convert a trained recogniser for other programs: ONNX, LiteRT, Keras",
    "watch": "show where runs stand, and when they will meet their targets",
    "report": "show times to accuracy of runs: table, figures, HTML",
    "bench": "measure decoders, training steps, synthetic workloads",
    "presets": "list the gin files that come with tfasr, quick recipes first",
    "settings": "list what gin can bind, with type, default and meaning, or what a preset sets",
    "doctor": "show this machine, and what would distort measured times",
    "study": "train a list of experiments, with resume, and report on them",
    "verify": "check runs, studies and submissions: recompute every number from its sources",
    "record": "race a recipe against a record, and write evidence that anybody can check",
    "demo": "run everything on synthetic speech, without a download",
    "completion": "print a script that completes commands, flags and folders in bash, zsh or tcsh",
}

# What to do about TensorFlow's own errors, by the name of their class.
_TENSORFLOW_REMEDIES = {
    "DataLossError": "A shard is damaged: run tfasr prepare again, which replaces that shard.",
    "ResourceExhaustedError": "The memory or disk is full: try a smaller "
    "PipelineConfig.global_batch_size, or free some space; checkpoints are kept.",
}

# The commands of tfasr-measure, see docs/light_install.md.
MEASURING = ("watch", "report", "doctor", "verify")

# The exit code of a process that SIGPIPE ends.
PIPE_CLOSED = 141

# Commands for which TensorFlow is loaded before they begin, without its messages. The
# others load it when they need it, or never.
NEED_TENSORFLOW = ("prepare", "estimate", "train", "evaluate", "ngram", "export")


class Terminal:
    """Escapes control sequences in text for a terminal, as file names may contain some.

    Args:
        stream: standard output or standard error.
    """

    def __init__(self, stream: TextIO):
        # Under this name rich looks for the stream to colour.
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Writes a text without control sequences."""
        return self.rich_proxied_file.write(errors.printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _Lines(logging.Formatter):
    """Escapes log lines, which bypass `Terminal` while rich shows a progress line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        return errors.printable(super().format(record))


def _guard_terminal() -> None:
    """Puts a `Terminal` in the place of each standard stream that is one."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty() and not isinstance(stream, Terminal):
            setattr(sys, name, Terminal(stream))


class _HelpFormatter(argparse.HelpFormatter):
    """Formats help: most flags take one line, and examples are never broken.

    Args:
        prog: the command, as argparse passes it.
        options: others of `argparse.HelpFormatter`.
    """

    def __init__(self, prog: str, **options: Any):
        # Wide enough for most flags with their value, so that they take one line.
        super().__init__(prog, **{"max_help_position": 30, **options})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Returns a paragraph in lines of at most ``width`` columns."""
        # An example command stays on one line, so that it can be copied whole.
        if text.startswith("example:"):
            return text

        return super()._fill_text(text, width, indent)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the command line; wrong flags exit with 2 and a message.

    Args:
        argv: the program's name and its words, as ``sys.argv``.

    Returns:
        The namespace of the command's flags, with its function as ``run``.
    """
    _guard_terminal()
    words = _with_flag_files(argv[1:])

    # "help train" is the same as "train --help".
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]

    _load_plugins(words)
    installed = installed_commands()
    if words and words[0] in COMMANDS and words[0] not in installed:
        raise UsageError(
            f"{words[0]} needs more than tfasr-measure, whose commands are "
            f"{', '.join(installed)}: pip install tfasr."
        )

    parser = make_parser(words)
    if not words:
        parser.print_help(sys.stderr)
        sys.exit(2)

    arguments, unknown = parser.parse_known_args(words)
    # The usage of the command, not of tfasr, lists the possible flags.
    if unknown:
        commands = _subparsers(parser)
        commands[arguments.command].error(
            f"unrecognized arguments: {' '.join(unknown)}"
        )

    _refuse_empty_words(arguments, _subparsers(parser)[arguments.command])

    return arguments


def _with_flag_files(words: list[str]) -> list[str]:
    """Replaces each ``--flagfile FILE`` by the flags in that file, one per line.

    Args:
        words: of the command line, without the program's name.

    Raises:
        UsageError: if a file can't be read.
    """
    if not any(word.startswith(("--flagfile", "-flagfile")) for word in words):
        return words

    flags = imported("absl.flags", "--flagfile")
    try:
        return flags.FlagValues().read_flags_from_files(words, force_gnu=True)
    except (flags.Error, OSError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("ERROR:: ").removesuffix(".")
        raise UsageError(
            f"--flagfile must be a text file with one flag per line. {reason}."
        ) from error


def _refuse_empty_words(
    arguments: argparse.Namespace, command: argparse.ArgumentParser
) -> None:
    """Exits with 2 if a flag has the value "".

    As a path, "" is the working directory, for instance in --out "$OUT" if OUT is
    unset.

    Args:
        arguments: the parsed flags.
        command: has the flags; those of its subcommands are checked too.
    """
    free_texts = ("gin_binding", "arguments")
    for parser in (command, *_subparsers(command).values()):
        for action in parser._actions:  # noqa: SLF001 - no public way
            value = getattr(arguments, action.dest, None)
            empty = value == "" or (isinstance(value, list) and "" in value)
            may_be_empty = action.default == "" or action.dest in free_texts

            if empty and not may_be_empty:
                name = (action.option_strings or [action.metavar or action.dest])[0]
                command.error(
                    f"{name} must not be empty: leave it out, or give it a value"
                )


def installed_commands() -> dict[str, str]:
    """Returns the commands that are installed here, each with its purpose."""
    if not errors.is_measure_only():
        return COMMANDS

    return {name: COMMANDS[name] for name in COMMANDS if name in MEASURING}


def make_parser(words: Iterable[str]) -> argparse.ArgumentParser:
    """Returns the parser; only commands among ``words`` get their flags.

    Importing all commands takes longer than running some of them.

    Args:
        words: of the command line, without the program's name.
    """
    from tfasr import __version__

    words = list(words)

    class Parser(argparse.ArgumentParser):
        """A parser with our words for ``--help``, and with advice in its errors."""

        def __init__(self, **options: Any):
            super().__init__(add_help=False, **options)
            self.add_argument(
                "-h", "--help", action="help", help="show this text and exit"
            )

        def error(self, message: str):
            """Exits with 2 and a message on standard error."""
            # argparse names the wrong word, but not the right one.
            flags = list(self._option_string_actions)
            super().error(message + _meant(message, words[1:], flags, self.prog))

    installed = installed_commands()
    begin = "tfasr help COMMAND explains a command, with an example."
    if "demo" in installed:
        begin += " To see it all work: tfasr demo"
    else:
        begin += " Training and recognising need more: pip install tfasr"

    parser = Parser(
        prog="tfasr",
        description=__doc__.split("\n")[0],
        epilog=begin,
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tfasr {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    for name, purpose in installed.items():
        if name not in words:
            commands.add_parser(name, help=purpose)
            continue

        module = command_module(name)
        command = commands.add_parser(
            name,
            help=purpose,
            description=module.__doc__,
            formatter_class=_HelpFormatter,
        )
        module.add_arguments(command)

        examples = command_examples(module)
        for key, subparser in {"": command, **_subparsers(command)}.items():
            _add_import(subparser)
            _add_common_flags(subparser)
            subparser.formatter_class = _HelpFormatter
            # From the docstring, without the command's name and backquotes.
            text = (subparser.description or "").rpartition("``: ")[2].replace("``", "")
            subparser.description = text[:1].upper() + text[1:]
            subparser.epilog = f"example: tfasr {examples[key]}"

        # For shell completion, which needs the flags of all commands.
        command.set_defaults(
            run=module.run, whole_parser=lambda: make_parser(installed)
        )

    return parser


def command_module(name: str) -> ModuleType:
    """Imports the file of a command, ``tfasr/commands/NAME.py``.

    It has ``add_arguments(parser)``, ``run(arguments)``, which returns the exit code or
    None for 0, and an ``EXAMPLE``; its docstring is the command's help text. It may
    have ``check(arguments)``, see `_check_early`.

    Args:
        name: one of `COMMANDS`.
    """
    return importlib.import_module(f"tfasr.commands.{name}")


def command_examples(module: ModuleType) -> dict[str, str]:
    """Returns an example for the command, under "", and for each of its subcommands."""
    if hasattr(module, "EXAMPLES"):
        return module.EXAMPLES

    return {"": module.EXAMPLE}


def _meant(message: str, flags: list[str], known: list[str], command: str) -> str:
    """Returns ". Did you mean ..." for a misspelt word, or what lists the words.

    >>> _meant("unrecognized", ["--epoch"], ["--epochs", "--seed"], "tfasr train")
    '. tfasr help train lists them.'

    Args:
        message: argparse's.
        flags: the words of the command line.
        known: the command's flags.
        command: such as "tfasr train".
    """
    choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    misspelt = []
    if choice:
        misspelt.append((choice[1], re.findall(r"[\w.-]+", choice[2])))

    for word in flags:
        if word.startswith("--"):
            misspelt.append((word.split("=")[0], known))

    for name, right in misspelt:
        # It is right, or an abbreviation, which argparse accepts.
        if any(word.startswith(name) for word in right):
            continue

        near = errors.nearest(name, right)
        if near:
            return f". Did you mean {near} instead of {name}?"

    # A wrong choice's message lists them itself.
    if choice:
        return ""

    return f". {command.replace('tfasr', 'tfasr help')} lists them."


def _load_plugins(words: list[str]) -> None:
    """Loads the modules of ``--import`` first: other flags' choices depend on them.

    Args:
        words: of the command line, without the program's name.

    Raises:
        UsageError: if a module can't be imported.
    """
    early = argparse.ArgumentParser(prog="tfasr", add_help=False, allow_abbrev=False)
    _add_import(early)
    names = getattr(early.parse_known_args(words)[0], "import", ())
    if not names:
        return

    from tfasr.kit.process import load_tensorflow, without_noise
    from tfasr.kit.registry import load_plugin

    # A plug-in may be the first to import TensorFlow, which speaks of devices and
    # instructions.
    with without_noise():
        for name in names:
            load_plugin(name)

        if "tensorflow" in sys.modules:
            load_tensorflow()


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of a parser's commands, by name; {} if it has none."""
    parsers = {}
    for action in parser._actions:  # noqa: SLF001 - no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            parsers.update(action.choices)

    return parsers


def _add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that all commands have, for which `run` and `parse` look.

    They have no defaults: a flag before a subcommand would be overwritten by the
    default of the same flag behind it. `_with_flag_files` reads the files of
    ``--flagfile`` before anything is parsed.
    """
    parser.add_argument(
        "--flagfile",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="flags from a text file, one a line; repeatable",
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        default=argparse.SUPPRESS,
        help="log only warnings and errors",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=argparse.SUPPRESS,
        help="log TensorFlow's messages and tracebacks too",
    )


def _add_import(parser: argparse.ArgumentParser) -> None:
    """Adds ``--import`` to a command's help; `_load_plugins` loads the modules."""
    parser.add_argument(
        "--import",
        action="append",
        default=argparse.SUPPRESS,
        metavar="MODULE|FILE.py",
        help="your plug-in, see docs/extending.md; repeatable",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the parsed command and returns the exit code.

    Args:
        arguments: from `parse`.

    Raises:
        Exception: a defect of tfasr or a library, which needs a traceback.
    """
    # Without the flags, neither attribute is there.
    verbose = getattr(arguments, "verbose", False)
    _set_up_output(verbose=verbose, quiet=getattr(arguments, "quiet", False))

    # bench needs TensorFlow for the model of a run or preset, not to decode
    # log-probabilities.
    sources = (getattr(arguments, name, None) for name in ("run_dir", "gin_file"))
    named = any(source is not None for source in sources)
    has_model = arguments.command == "bench" and named

    try:
        needs_tensorflow = arguments.command in NEED_TENSORFLOW or has_model
        if needs_tensorflow and find_spec("tensorflow") is None:
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

        _check_early(arguments)
        if needs_tensorflow:
            _load_tensorflow(verbose)

        status = arguments.run(arguments) or 0
        # An error such as a full disk is still explained here.
        if sys.stdout is not None:
            sys.stdout.flush()

        return status
    # As in tfasr watch | head.
    except BrokenPipeError:
        _forget_output()
        return PIPE_CLOSED
    except (Exception, KeyboardInterrupt) as error:
        if verbose:
            traceback.print_exc()

        status = _reported(error, f" {arguments.command}")
        if status is None:
            raise
        if isinstance(error, OSError):
            _forget_output()

        return status


def _set_up_output(*, verbose: bool, quiet: bool) -> None:
    """Prepares standard output and the log for a command.

    Results go to standard output, and the log to standard error.

    Args:
        verbose: whether TensorFlow logs everything.
        quiet: whether only warnings and errors are logged.
    """
    # It is None if it was closed, as by >&-.
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BytesIO())

    # Names of folders that aren't valid UTF-8 must not end a report.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")

    if verbose:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)

    # Live progress lines are shown according to the level of tfasr's own logger.
    logging.getLogger("tfasr").setLevel(logging.NOTSET)
    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("tfasr").setLevel(logging.WARNING)


def _load_tensorflow(verbose: bool) -> None:
    """Loads TensorFlow before a command that needs it.

    Args:
        verbose: whether it, and absl, log everything.

    Raises:
        MemoryError: if so little is left that the command would hang.
    """
    # Imported here: --help doesn't need it.
    from tfasr.kit.process import load_tensorflow

    load_tensorflow()
    errors.check_memory()

    # TensorFlow sets these levels when it is imported.
    level = logging.WARNING
    if verbose:
        level = logging.NOTSET

    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(level)


def _forget_output() -> None:
    """Drops unwritten standard output, which Python would try to write again at exit.

    Its error would then follow the message that was printed.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_early(arguments: argparse.Namespace) -> None:
    """Finds mistakes before TensorFlow is loaded, which takes seconds.

    The commands that measure don't load it, so only their own checks are made.

    Raises:
        UsageError: for a mistake.
    """
    if arguments.command not in MEASURING:
        imported("tfasr.commands.early", "the command").check(arguments)

    check = getattr(command_module(arguments.command), "check", None)
    if check is not None:
        check(arguments)


def _reported(error: BaseException, command: str = "") -> int | None:
    """Prints what went wrong and returns the exit code.

    Args:
        error: any that was raised.
        command: such as " train"; "" before a command runs.

    Returns:
        1 if the work failed, 2 for wrong use, or the error's own code. None for an error
        that needs a traceback: a defect of tfasr or of a library.
    """
    status = 1
    if isinstance(error, KeyboardInterrupt):
        message = "interrupted"
    elif isinstance(error, UsageError):
        message = error
        status = 2
    elif isinstance(error, ModuleNotFoundError):
        what = "the command"
        if not command:
            what = "the command line"

        message = errors.lacking(error, what)
        status = 2
    elif command and isinstance(error, RunError):
        message = error
        status = error.exit_code
    elif command and isinstance(error, OSError):
        message, status = errors.explained(error)
    else:
        message = errors.out_of_memory(error)
        remedy = _TENSORFLOW_REMEDIES.get(type(error).__name__)
        if message is None and remedy is not None:
            message = f"{remedy} TensorFlow's message: {error}"

    if message is None:
        return None

    print(f"tfasr{command}: {message}", file=sys.stderr)

    return status


def main() -> None:
    """Runs the ``tfasr`` script: parses the command line, then runs the command.

    Whatever happens before a command runs, such as a wrong flag or a plug-in that
    can't be imported, is reported here.
    """
    try:
        # Shows where native code, such as TensorFlow's, crashed. It fails if standard
        # error is closed.
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            faulthandler.enable()

        sys.exit(run(parse(sys.argv)))
    # In a plug-in, or while commands are imported.
    except (Exception, KeyboardInterrupt) as error:
        status = _reported(error)
        if status is None:
            raise

        sys.exit(status)


if __name__ == "__main__":
    main()
