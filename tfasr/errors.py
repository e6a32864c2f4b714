"""The two kinds of failure that the command line tells apart."""


class UsageError(ValueError):
    """What was asked for cannot be done as asked: a wrong flag, preset, folder or value."""


class RunError(RuntimeError):
    """The work was well asked for and failed on the way; what was done before is kept."""
