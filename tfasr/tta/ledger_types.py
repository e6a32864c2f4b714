"""Whether the values of a ledger are of the kinds that everything after it relies on."""

import math
from collections.abc import Callable
from typing import Any

from tfasr.tta.timeline import Timeline

_INTEGERS = {int, type(None)}
_METADATA = ("session", "epoch_num", "step")
_LATEST_MS = 1e15


def wrong_value(timeline: Timeline) -> tuple[int, str] | None:
    """Returns which event has a value of a wrong kind and what must hold, or None if none has."""
    found = None if _usual(timeline) else _wrong_event(timeline)
    if found is not None:
        return found
    for key, (holds, kind) in _VALUES.items():
        for index in timeline.of(key):
            value = timeline.events[index].get("value")
            if not holds(value):
                return index, f"the value of {key} must be {kind}, not {_shown(value)}"
    return None


def _usual(timeline: Timeline) -> bool:
    kinds = {type(event.get("metadata")) for event in timeline.events}
    times = [event["time_ms"] for event in timeline.events]
    return (
        set(map(type, timeline.keys)) <= {str}
        and set(map(type, times)) <= {int}
        and max(map(abs, times), default=0) <= _LATEST_MS
        and kinds <= {dict, type(None)}
        and all(
            {type(about.get(name)) for about in timeline.metadata} <= _INTEGERS
            for name in _METADATA
        )
    )


def _wrong_event(timeline: Timeline) -> tuple[int, str] | None:
    for index, event in enumerate(timeline.events):
        if type(event["key"]) is not str:
            return index, f"an event's key must be text, not {_shown(event['key'])}"
        if not _number(event["time_ms"]) or abs(event["time_ms"]) > _LATEST_MS:
            shown = _shown(event["time_ms"])
            return index, f"time_ms must be a finite number of usual size, not {shown}"
        about = event.get("metadata")
        if about is None:
            continue
        if type(about) is not dict:
            return index, f"an event's metadata must be an object, not {_shown(about)}"
        for name in _METADATA:
            if type(about.get(name)) not in _INTEGERS:
                return index, f"{name} must be a whole number, not {_shown(about[name])}"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _whole(value: Any) -> bool:
    return type(value) in _INTEGERS


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _targets(value: Any) -> bool:
    return value is None or (
        type(value) is list
        and all(
            type(pair) is list and len(pair) == 2 and type(pair[0]) is str and _number(pair[1])
            for pair in value
        )
    )


def _metrics(value: Any) -> bool:
    return value is None or (
        type(value) is dict and all(type(one) is dict for one in value.values())
    )


def _session(value: Any) -> bool:
    return type(value) is not dict or _whole(value.get("resumed_from_step"))


def _text(value: Any) -> bool:
    return value is None or type(value) is str


_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "session_start": (_session, "an object whose resumed_from_step is a whole number or null"),
    "targets": (_targets, "a list of pairs of a metric and a number"),
    "metrics": (_metrics, "an object with an object for each metric"),
    "global_batch_size": (_whole, "a whole number"),
    "num_replicas": (_whole, "a whole number"),
    "train_samples": (_whole, "a whole number"),
    "opt_name": (_text, "text"),
}
