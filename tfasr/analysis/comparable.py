"""Whether two runs may be ranked: what makes their results comparable, and what differs."""

import json
from collections.abc import Mapping
from typing import Any

Differences = dict[str, tuple[str, str]]
"""What differs, by name: the first run's value and the other's, as text."""

ABSENT = "not stated"
_LONGEST = 60


def differences(first: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Differences:
    """Returns what keeps two runs' results from being comparable; {} where nothing does.

    Two runs without a ``comparability`` are taken to be alike; one with and one without are not.
    """
    if first is None and other is None:
        return {}
    if first is None or other is None:
        stated = "stated"
        return {"comparability": (ABSENT, stated) if first is None else (stated, ABSENT)}
    missing = object()
    return {
        key: (_shown(first, key), _shown(other, key))
        for key in [*first, *(key for key in other if key not in first)]
        if first.get(key, missing) != other.get(key, missing)
    }


def difference_text(found: Differences) -> str:
    """Returns "beam_width (8, here 256) and lexicon (...)": what differs from the first run."""
    return ", ".join(f"{key} ({first}, here {other})" for key, (first, other) in found.items())


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return ABSENT
    text = json.dumps(values[key], ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
