"""Reads files that may be damaged or forged: every error is one line that names the file."""

import json
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError


def read_text(path: str | Path, remedy: str) -> str:
    """Returns a UTF-8 file's text.

    Args:
        remedy: a sentence that says what to do if it cannot be read.

    Raises:
        UsageError: if it is missing, unreadable or no UTF-8; it names the file.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        cause = f"which is no UTF-8 text ({error.reason} at byte {error.start})"
    except OSError as error:
        cause = f"which cannot be read ({error.strerror or error})"
    raise UsageError(f"A readable text file is needed. Received: {path}, {cause}. {remedy}")


def read_object(path: str | Path, remedy: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns a JSON file's object.

    Args:
        remedy: a sentence that says what to do if it is damaged.
        required: names that the object must have.

    Raises:
        UsageError: if it is missing, unreadable, cut, no object, or lacks a name; it names the
            file.
    """
    text = read_text(path, remedy)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} must be a JSON object. It is cut or damaged: {error}. {remedy}"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(
            f"{path} must be a JSON object. Received: a JSON {type(content).__name__}. {remedy}"
        )
    missing = [name for name in required if name not in content]
    if missing:
        raise UsageError(f"{path} must hold {', '.join(missing)}, which it lacks. {remedy}")
    return content


def object_or_empty(path: str | Path) -> dict[str, Any]:
    """Returns a JSON file's object; {} if the file is missing, damaged or no object."""
    try:
        return read_object(path, "")
    except UsageError:
        return {}
