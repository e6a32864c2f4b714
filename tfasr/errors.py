"""The two kinds of failure that the command line tells apart."""

import contextlib
from collections.abc import Iterator


class UsageError(ValueError):
    """What was asked for cannot be done as asked: a wrong flag, preset, folder or value."""


class RunError(RuntimeError):
    """The work was well asked for and failed on the way; what was done before is kept."""


@contextlib.contextmanager
def wrong_values_are_wrong_use() -> Iterator[None]:
    """Turns a TypeError or ValueError of a config, made of what a user gave, into a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
