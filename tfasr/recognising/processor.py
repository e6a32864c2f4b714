"""How many cores there are for a recogniser."""

import os


def usable_cores() -> int:
    """Returns on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
