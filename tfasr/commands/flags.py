"""Parses flags with several values."""

from tfasr.errors import UsageError


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """Returns the integers of a flag such as ``--batch 8,16``.

    Raises:
        UsageError: if they are not integers.
    """
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{flag} must be integers with commas, such as 8,16. Received: {text!r}."
        ) from error
