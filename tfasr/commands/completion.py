"""``tfasr completion``: completes commands, flags and folders in your shell.

For bash: tfasr completion bash > ~/.local/share/bash-completion/completions/tfasr
"""

import argparse
import sys
from collections.abc import Iterator

from tfasr.errors import optional_package

EXAMPLE = "completion bash > ~/.local/share/bash-completion/completions/tfasr"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell; the script for it goes to standard output."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> None:
    """Prints the script, which knows what is a folder, a file or one of some words."""
    with optional_package("shtab", "tfasr completion", "shtab"):
        import shtab

    parser = arguments.whole_parser()

    for action in _actions(parser):
        if action.dest.endswith("_dir") or action.dest == "run_dirs":
            action.complete = shtab.DIRECTORY
        # A flag with a value that is neither a number nor one of some words.
        elif action.type is None and action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE

    sys.stdout.write(shtab.complete(parser, arguments.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields all flags of a parser and of its commands."""
    for action in parser._actions:  # noqa: SLF001 - no public way
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                yield from _actions(subparser)
