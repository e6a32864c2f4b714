"""The names of a corpus's splits."""

from tfasr.errors import UsageError

SPLITS = ("train", "validation", "test")


def check_split(split: str) -> None:
    """Raises UsageError unless ``split`` is one of `SPLITS`."""
    if split not in SPLITS:
        raise UsageError(f"--split must be one of {', '.join(SPLITS)}. Received: {split!r}.")
