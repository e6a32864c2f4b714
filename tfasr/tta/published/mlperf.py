"""MLPerf Training's ``result_*.txt``: lines with ``:::MLLOG`` and an event.

Source: github.com/mlcommons/logging, mllog.
"""

import json
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import write_whole
from tfasr.ledger.intervals import Event, metadata
from tfasr.tta.run import Run

PREFIX = ":::MLLOG"
# eval_accuracy is an error rate in these benchmarks only.
ERROR_RATE_BENCHMARKS = ("rnnt", "tfasr")
_KEYS = {
    "init_start", "init_stop", "run_start", "run_stop", "epoch_start", "epoch_stop",
    "eval_start", "eval_stop", "eval_accuracy", "tracked_stats", "global_batch_size", "seed",
    "train_samples", "eval_samples", "opt_name", "opt_base_learning_rate",
    "gradient_accumulation_steps",
}  # fmt: skip


def recognises(path: Path) -> bool:
    if path.suffix not in (".txt", ".log"):
        return False
    with path.open("rb") as file:
        return PREFIX.encode() in file.read(65536)


def read(path: Path, name: str | None = None) -> Run:
    """Reads a log, dropping an incomplete last line; events are sorted by time."""
    events: list[Event] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    cut = False
    for number, line in enumerate(lines, start=1):
        _, prefix, text = line.partition(PREFIX)
        if not prefix:
            continue
        try:
            event = json.loads(text)
            _check(event)
            events.append(event)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number < len(lines):
                raise UsageError(
                    f"Line {number} of {path} is not a valid {PREFIX} event: {error!r}. Leave the "
                    "log out, or download it again."
                ) from None
            cut = True
    benchmark = next((e.get("value") for e in events if e["key"] == "submission_benchmark"), None)
    if benchmark is not None and benchmark not in ERROR_RATE_BENCHMARKS:
        raise UsageError(
            "A log's eval_accuracy must be a word error rate, as in one of "
            f"{ERROR_RATE_BENCHMARKS}. Received: {path}, of the benchmark {benchmark!r}."
        )
    if not events:
        raise UsageError(f"A log must have {PREFIX} events. {path} has no complete one.")
    events.sort(key=lambda event: event["time_ms"])
    return Run(path, name or path.stem, _with_parts(events), cut=cut)


def _check(event: Any) -> None:
    event["time_ms"] + 0
    about = event.get("metadata") or {}
    if not isinstance(event["key"], str) or not isinstance(about, dict):
        raise TypeError("its key must be text, its metadata an object")
    if not isinstance(about.get("epoch_num"), int | float | None):
        raise TypeError("its epoch_num must be a number")


def _with_parts(events: list[Event]) -> list[Event]:
    """Adds events that mllog lacks: one step per epoch, and the forward pass of evaluations."""
    samples = next((e.get("value") for e in events if e["key"] == "train_samples"), None)
    parts: list[Event] = []
    began_ms = None
    for event in events:
        key = event["key"]
        if key == "epoch_start":
            began_ms = event["time_ms"]
        elif key == "epoch_stop" and began_ms is not None:
            seconds = (event["time_ms"] - began_ms) / 1000
            value = {"train_s": seconds, "input_wait_s": 0.0, "compile_s": 0.0}
            value |= {} if samples is None else {"utterances": samples}
            parts.append({**event, "key": "train_step", "value": value})
            began_ms = None
        if key == "eval_stop":
            parts.append({**event, "key": "eval_forward_stop"})
        parts.append(event)
        if key == "eval_start":
            parts.append({**event, "key": "eval_forward_start"})
    return parts


def write(run: Run, path: Path, **submission: str) -> None:
    """Writes a run as an MLPerf log in wall-clock time, which includes a resumed run's downtime.

    MLPerf's clock may not pause, so its checker rejects resumed runs. The header states an open
    division and no cleared caches; ``submission`` replaces its values, such as ``submission_org``.
    """
    header = {
        "submission_benchmark": "tfasr",
        "submission_org": "n/a",
        "submission_platform": (run.system.get("system") or {}).get("processor", "n/a"),
        "submission_division": "open",
        "submission_status": "research",
        "cache_clear": False,
        **submission,
    }
    if run.fact("gradient_accumulation_steps") is None:
        header["gradient_accumulation_steps"] = 1
    began = {"time_ms": run.events[0]["time_ms"]}
    lines = [_line(1, began, key, value) for key, value in header.items()]
    for number, event in enumerate(run.events, start=1):
        if event["key"] in _KEYS:
            lines.append(_line(number, event, event["key"], event.get("value")))
    write_whole(path, "".join(lines))


def _line(number: int, event: Event, key: str, value: object) -> str:
    about = {k: v for k, v in metadata(event).items() if k not in ("mono_s", "session")}
    logged = {
        "namespace": "",
        "time_ms": event["time_ms"],
        "event_type": event.get("event_type", "POINT_IN_TIME"),
        "key": key,
        "value": value,
        "metadata": {"file": "events.jsonl", "lineno": number, **about},
    }
    return f"{PREFIX} {json.dumps(logged)}\n"
