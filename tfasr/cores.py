"""How many cores there are for this process."""

import os


def usable_cores() -> int:
    """Returns the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
