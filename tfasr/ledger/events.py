"""The append-only record of a run: ``events.jsonl``, JSON lines with mllog's keys.

Training and `tfasr.Recorder` write it with `Ledger`; everything that tfasr says about a
run later (`tfasr.tta`, `tfasr.reports`, `tfasr.verifying`) begins with `read_ledger`.
This module knows lines, hashes and disks; `tfasr.ledger.schema` knows what the values
are, `tfasr.ledger.timeline` what follows from them.

Each line is ``{"namespace", "time_ms", "event_type", "key", "value", "metadata"}``,
where ``event_type`` is INTERVAL_START, INTERVAL_END or POINT_IN_TIME. Every line's
metadata has ``session`` (0 for the process that started the run, then 1, 2, ... for
those that resumed it) and ``mono_s`` (that process's monotonic clock, which clock
adjustments don't affect). The first line after a `Ledger.sync` also has
``synced_bytes``: how much of the file was on disk by then.

The last field, ``chain``, protects against damage. It has 32 hexadecimal digits:
BLAKE2b (16 bytes) of the previous line's ``chain`` followed by this line's bytes up to
``,"chain"``. The first chained line starts from the hash of all bytes before it: none,
or lines of format 1 that it resumes. A changed, removed, repeated or moved line breaks
the chain, and `read_events` names the line. The chain is not a signature: anyone can
recompute it, but its last hash (`tfasr.tta.run.Run.ledger_hash`) then differs from one
that was published earlier.

`tfasr.ledger.schema` has the type and the meaning of each key's value, and
``docs/ledger.schema.json`` the same as JSON Schema. A training run writes, in order:

- ``session_start``, then ``init_start``, ``model_creation`` (the paper's clock starts
  here), ``init_stop``, ``run_start`` (again in every session), and the run's facts as
  points.
- per epoch: ``epoch_start``, a ``train_step`` per optimizer update,
  ``checkpoint_start/_stop``, ``sentences_start/_stop`` and ``logging_start/_stop``
  (time spent on ``--log_to``), all with metadata ``step``; ``eval_start``,
  ``eval_forward_start/_stop``, ``decode_start/_stop`` (training waits for the decoder),
  ``decode_work``, ``eval_accuracy`` (WER, a fraction), ``tracked_stats``,
  ``eval_stop``, ``epoch_stop``, all with metadata ``epoch_num``, from 1. An overlapped
  evaluation writes its result when it is known, between a second pair of ``eval_start``
  and ``eval_stop``, possibly in a later epoch. Evaluations within epochs have metadata
  ``at_epoch``, such as 2.5 in the middle of epoch 3.
- if the optimizer averages weights: ``averaging_start/_stop`` before a checkpoint
  (metadata ``step``) while averages and their batch statistics are computed, and
  ``swap_start/_stop`` twice per evaluation, when the averages replace the training
  weights and when these come back.
- if another model evaluates: ``swap_start/_stop`` twice per evaluation, while models
  are exchanged on the devices. If that model is in another process:
  ``eval_wait_start/_stop`` (training waits for it); the first pair of ``eval_start``
  and ``eval_stop`` is then the handover of the checkpoint, the second the arrival of
  the scores.
- at the end of a finished run, ``traces`` of its last session and ``checkpoints``.
- ``run_stop`` with metadata ``status``: "success", "aborted" or, after a signal,
  "interrupted" (the last two with ``reason``).

If a killed run is resumed, whatever it did after the checkpoint it resumes from is lost
work.

If several workers train together, the link is measured between ``link_start`` and
``link_stop`` in ``init``. Each worker, including the chief, writes
``events-worker-<rank>.jsonl`` in the same folder: ``worker_start``, a ``worker_step``
per step, ``worker_machine`` and ``worker_sample``. All but the chief also write the
intervals ``init``, ``epoch``, ``eval_forward`` and ``decode``. In rounds, workers write
``worker_round`` instead of ``worker_step``, the chief's ``train_step`` counts its own
utterances, and the last one of a segment (`tfasr.training.workers.hub`) also all that
the others trained on; ``exchange_start/_stop`` and ``wait_start/_stop`` enclose these
intervals.

Source: MLCommons logging (github.com/mlcommons/logging), the intervals: the paper,
section 4.4.2.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from tfasr.errors import RunError, UsageError
from tfasr.kit import files
from tfasr.ledger import schema

# Increase this if older versions of tfasr would misread the events: they reject newer
# formats.
LEDGER_FORMAT = 2

# A killed process is known to have run up to so many seconds before its end.
HEARTBEAT_S = 1.0

# Lines that are parsed in one call. More don't make it faster, and if one of them is
# damaged, all of them are parsed again to find it.
_LINES_AT_ONCE = 2000

_FIELD = b',"chain":"'
_HASH_BYTES = 16  # 128 bits: nobody can make two ledgers with the same last hash
_FIELD_BYTES = len(_FIELD) + 2 * _HASH_BYTES + len('"}')  # of a whole field

# The smallest unit of a disk. What a power loss replaces by zeros consists of these.
_SECTOR_BYTES = 512

# How a ledger begins if json wrote its first line, or orjson.
_STARTS = (b'{"namespace": "", "time_ms": ', b'{"namespace":"","time_ms":')


@dataclass(frozen=True)
class LedgerContent:
    """What a ledger on disk holds."""

    events: list[dict[str, Any]]  # in file order, without ``chain``
    cut: bool  # whether a crash damaged the end, which is then missing here
    chain: str | None  # the last line's hash; None if the lines have none


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """Reads a ledger's events in file order, leaving out what a crash left incomplete.

    A killed process leaves at most its last line incomplete. A power loss may also
    replace lines since the last `Ledger.sync` by zeros; events are read up to the first
    of these.

    Example:
        ::

            events = tfasr.read_events("runs/small")
            losses = [e["value"]["loss"] for e in events if e["key"] == "train_step"]

    Args:
        path: ``events.jsonl`` or the run folder that holds it.

    Raises:
        FileNotFoundError: if there is no ledger.
        UsageError: if a line was damaged, removed or moved, or a newer tfasr wrote the
            ledger.
    """
    return read_ledger(path).events


def read_ledger(path: str | Path) -> LedgerContent:
    """Reads a ledger like `read_events`, plus its last hash and whether its end was lost.

    Args:
        path: ``events.jsonl`` or the run folder that holds it.

    Raises:
        FileNotFoundError: if there is no ledger.
        UsageError: as `read_events` does.
    """
    path = Path(path)
    if path.is_dir():
        path = path / files.EVENTS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"A run folder must hold {files.EVENTS_FILE}. Received: {path}, which does "
            "not exist. Name the --run_dir of tfasr train."
        )

    parsed = _whole_lines(_content(path), path, goes_on=False)
    lines = parsed.lines
    chain = None
    # Without hashes, the last line may be incomplete.
    may_end_at = len(lines) - 1
    if parsed.chained:
        chain = parsed.head.decode()
        may_end_at = len(lines) + 1  # `_whole_lines` has left an incomplete one out

    events = []
    for first in range(0, len(lines), _LINES_AT_ONCE):
        block = lines[first : first + _LINES_AT_ONCE]
        events += _whole_block(block) or _line_by_line(block, path, first, may_end_at)

    filled = sum(map(bool, map(bytes.strip, lines)))
    return LedgerContent(events, parsed.cut or len(events) < filled, chain)


def _content(path: Path) -> bytes:
    """Returns a ledger's bytes; UsageError if it is no file or too large."""
    try:
        return files.read_bytes(path)
    except UsageError as error:
        raise UsageError(
            f"A ledger must be a file that fits into memory. {error} Name another run, "
            "or restore the file from a copy."
        ) from None


@dataclass(frozen=True)
class _Lines:
    """A ledger's bytes, split into lines whose hashes hold."""

    lines: list[bytes]  # one event each, without ``chain``
    end: int  # length in bytes up to the end of the last complete line
    cut: bool  # whether an incomplete line follows
    chained: bool  # whether the last lines have hashes
    head: bytes  # the last line's hash, from which the next one's is computed


def _whole_lines(content: bytes, path: Path, *, goes_on: bool = True) -> _Lines:
    """Splits a ledger into lines; raises UsageError for damage or a newer format.

    Args:
        content: the file's bytes.
        path: the file, for messages.
        goes_on: whether lines will be appended. Without it, ``head`` stays empty for a
            ledger without hashes, to save time.
    """
    _check_version(content, path)
    before_zeros = _before_zeros(content, path)
    lines = content[:before_zeros].split(b"\n")
    end = before_zeros - len(lines[-1])

    # Lines before the first chained one are of a ledger without hashes, resumed later.
    first = len(lines)
    if _FIELD in content:  # faster than checking each line
        first = next((n for n, line in enumerate(lines) if _is_chained(line)), first)

    cut = before_zeros < len(content)
    if first < len(lines):
        incomplete = lines.pop()  # what a crash left of a line, or b""
        cut = cut or bool(incomplete)

    chained = first < len(lines)
    head = b""
    if goes_on or chained:
        start = sum(map(len, lines[:first])) + first
        head = _hash(b"", content[: min(start, end)])

    for index in range(first, len(lines)):
        line = lines[index]
        text = line[:-_FIELD_BYTES]
        head = _hash(head, text)
        if line[-_FIELD_BYTES:] != _FIELD + head + b'"}':
            cause = "its hash does not follow from the line before"
            raise _damaged(path, index + 1, cause)

        lines[index] = text + b"}"

    return _Lines(lines, end, cut, chained, head)


def _hash(before: bytes, text: bytes) -> bytes:
    """Returns a line's ``chain`` from the previous one and the line's bytes before it."""
    return blake2b(before + text, digest_size=_HASH_BYTES).hexdigest().encode()


def _damaged(path: Path, line: int, cause: str) -> UsageError:
    return UsageError(
        f"Line {line} of {path} is damaged: {cause}. It was changed, or lines before it "
        "were changed, removed or moved. Nothing was deleted. Restore the file from a "
        f"copy, or keep its first {line - 1} lines (head -n {line - 1}): training then "
        "continues from a checkpoint that they cover."
    )


def _check_version(content: bytes, path: Path) -> None:
    """Raises UsageError for sessions of a newer format, or of this one without hashes.

    Without this check, a ledger from which someone removed all hashes would pass.
    """
    at = -1
    while (at := content.find(b'"session_start"', at + 1)) >= 0:
        first = content.rfind(b"\n", 0, at) + 1
        end = content.find(b"\n", at)
        is_whole = end >= 0
        line = content[first:end] if is_whole else content[first:]

        version = 0
        readable = True
        with contextlib.suppress(ValueError, TypeError, KeyError):
            version = json.loads(line)["value"]["ledger_format"]
            readable = version <= LEDGER_FORMAT

        if not readable:
            raise UsageError(
                f"{path} has version {version} of the ledger format, but this tfasr "
                f"reads versions up to {LEDGER_FORMAT}. Update it: pip install "
                "--upgrade tfasr."
            )

        if version == LEDGER_FORMAT and is_whole and not _is_chained(line):
            raise _damaged(path, _line_number(content, at), "its hash is missing")


def _is_chained(line: bytes) -> bool:
    """Whether a line ends with a field ``chain``; its hash may still be wrong."""
    return line[-_FIELD_BYTES : len(_FIELD) - _FIELD_BYTES] == _FIELD


def _line_number(content: bytes, at: int) -> int:
    return content.count(b"\n", 0, at) + 1


def _before_zeros(content: bytes, path: Path) -> int:
    """Returns up to which byte a ledger can be read: up to the first line with zeros.

    No event contains a zero byte. But a file system may extend a file before it writes
    the data, one or more sectors at a time, so a power loss can leave gaps of zeros
    behind what was synced.

    Raises:
        UsageError: if the zeros are no such gap: they are not whole sectors, or a later
            line proves that the replaced bytes had reached the disk.
    """
    gap = content.find(b"\0")
    if gap < 0:
        return len(content)

    line_start = content.rfind(b"\n", 0, gap) + 1
    behind = content[gap:].lstrip(b"\0")
    if not behind:
        return line_start

    gap_end = len(content) - len(behind)
    starts_like_one = gap == line_start or gap % _SECTOR_BYTES == 0
    of_sectors = starts_like_one and gap_end % _SECTOR_BYTES == 0

    later = filter(None, map(_event_in, behind.split(b"\n")))
    if not of_sectors or max(map(_synced_bytes, later), default=0) > gap:
        raise _damaged(path, _line_number(content, gap), "it has zero bytes")

    return line_start


def _synced_bytes(event: dict[str, Any]) -> int:
    """Returns how much of the file was on disk before an event; 0 if it doesn't say."""
    about = event.get("metadata")
    if not isinstance(about, dict):
        return 0

    synced = about.get("synced_bytes")
    if not isinstance(synced, int):
        return 0

    return synced


def _event_in(line: bytes) -> dict[str, Any] | None:
    """Parses a line; returns None if it is not an event."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if _is_event(event):
            return event

    return None


def is_ledger(path: Path) -> bool:
    """Whether a file starts like a ledger.

    It also does if a killed process wrote less than that.
    """
    with contextlib.suppress(OSError, UsageError), files.opened(path, None) as file:
        content = file.read(len(_STARTS[0])).rstrip(b"\0")
        return any(
            content.startswith(start) or start.startswith(content) for start in _STARTS
        )

    return False


def last_value(run_dir: str | Path, key: str) -> Any:
    """Returns the value of a ledger's last event with a key, or None.

    It parses only that event.
    """
    return next(values_of(run_dir, key), None)


def values_of(run_dir: str | Path, key: str) -> Iterator[Any]:
    """Yields the values of a ledger's events with a key, last first.

    It parses only those events, so it is fast for keys that are rare. Values of a wrong
    type are left out.

    Args:
        run_dir: the run's folder, which may lack a ledger.
        key: the key, such as "session_start".

    Raises:
        UsageError: if a newer tfasr wrote the ledger.
    """
    path = Path(run_dir) / files.EVENTS_FILE
    if not path.is_file():
        return

    content = _content(path)
    _check_version(content, path)
    quoted = f'"{key}"'.encode()
    end = content.rfind(b"\n") + 1  # the rest is a line that a crash cut off
    while (at := content.rfind(quoted, 0, end)) >= 0:
        end = content.rfind(b"\n", 0, at) + 1
        event = _event_in(content[end : content.index(b"\n", at)])
        if event is not None and event["key"] == key and not schema.wrong_event(event):
            yield event.get("value")


def ledger_mark(run_dir: str | Path) -> dict[str, Any] | None:
    """Returns the `Ledger.mark` of a ledger on disk; None before the first step.

    Before that, a run may begin again from nothing, so its ledger may be replaced.
    """
    path = Path(run_dir) / files.EVENTS_FILE
    if not path.is_file():
        return None

    content = _content(path)
    if b'"train_step"' not in content:
        return None

    parsed = _whole_lines(content, path)
    return {"chain": parsed.head.decode(), "bytes": parsed.end}


def chain_of(path: Path) -> list[str]:
    """Returns each line's hash (``chain``); "" for lines without one.

    An incomplete last line is left out. The hashes aren't checked: `read_events` does.
    """
    hashes = []
    for line in _content(path).split(b"\n")[:-1]:
        digits = b""
        if _is_chained(line):
            digits = line[-2 * _HASH_BYTES - len('"}') : -len('"}')]

        hashes.append(digits.decode(errors="replace"))

    return hashes


def ledger_covers(run_dir: str | Path, mark: Mapping[str, Any]) -> bool:
    """Whether a ledger still has, in its place, the line that was last at `Ledger.mark`.

    As each line's hash covers all lines before it, they are the same too.

    Args:
        run_dir: the run's folder.
        mark: what `Ledger.mark` or `ledger_mark` returned earlier.
    """
    ending = f'{mark["chain"]}"}}\n'.encode()
    try:
        with files.opened(Path(run_dir) / files.EVENTS_FILE, None) as file:
            file.seek(mark["bytes"] - len(ending))
            return file.read(len(ending)) == ending
    except (OSError, ValueError, OverflowError):
        return False


def _whole_block(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Parses many lines at once; returns None if one of them is not an event."""
    lines = [line for line in lines if line.strip()]
    text = b"[%s]" % b",".join(lines)
    try:
        events = _parsed(text)
    except ValueError:
        return None

    if len(events) != len(lines) or not all(map(_is_event, events)):
        return None

    return events


def _parsed(text: bytes) -> Any:
    """Parses JSON fast, or slower if it contains NaN, the loss of a diverged run."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def _line_by_line(
    lines: list[bytes], path: Path, before: int, may_end_at: int
) -> list[dict[str, Any]]:
    """Parses lines like `_whole_block`, but slower, and finds the bad one.

    Args:
        lines: some of a ledger's lines.
        path: the ledger, for messages.
        before: how many lines precede these.
        may_end_at: from this line's number on, a bad line ends the events.

    Raises:
        UsageError: naming a bad line before that one.
    """
    events = []
    for number, line in enumerate(lines, start=before + 1):
        if not line.strip():
            continue

        try:
            event = json.loads(line)
            if not _is_event(event):
                raise ValueError("it has no key or no time_ms")
        except ValueError as error:
            if number >= may_end_at:
                break

            raise UsageError(
                f"Line {number} of {path} is not an event: {error}. Restore the file "
                "from a copy."
            ) from None

        events.append(event)

    return events


def _is_event(event: Any) -> bool:
    """Whether a JSON value has what every event needs; its types may still be wrong."""
    return isinstance(event, dict) and "key" in event and "time_ms" in event


def _written(event: dict[str, Any]) -> bytes:
    """Returns an event as JSON.

    NaN and infinity are written as NaN and Infinity, which standard JSON doesn't allow.
    """
    # orjson rejects what json accepts, such as numbers as keys, and writes null for
    # NaN. Both are rare, so json does them again.
    text = b"null"
    with contextlib.suppress(TypeError):
        text = orjson.dumps(event)

    if b"null" in text:
        return json.dumps(event).encode()

    return text


class Ledger:
    """Appends events to a run's ``events.jsonl`` and shows that the process is alive.

    Every event goes to the operating system at once, so ``kill -9`` loses at most the
    line being written. After `sync`, all events so far also survive a power loss. A
    lock keeps a second process from writing the same run.

    Example:
        ::

            ledger = Ledger("runs/small")
            ledger.begin_session(resumed_from_step=None)
            with ledger.interval("epoch", epoch_num=1):
                ledger.write(TrainStep(loss=2.5, train_s=0.1), epoch_num=1, step=1)

            ledger.close()

    Args:
        run_dir: an existing folder.
        session: 0 for a new run, one more than the last session for a resumed one.
        file: the ledger's name in the folder; each worker of a cluster writes a
            separate file.

    Attributes:
        alive_until_ms: wall clock, in ms since 1970, of the previous session's last
            heartbeat; None in a new run.

    Raises:
        UsageError: if another process is writing this run.
    """

    def __init__(
        self, run_dir: str | Path, session: int = 0, *, file: str = files.EVENTS_FILE
    ):
        self.run_dir = Path(run_dir)
        self.session = session
        self._path = self.run_dir / file
        self._mutex = threading.Lock()
        self._owner = os.getpid()
        self._file = self._path.open("a+b", buffering=0)
        refusal = (
            f"Another process is writing the run {self.run_dir}. Wait for it, stop it, "
            "or choose another --run_dir."
        )
        try:
            files.take_lock(self._file.fileno(), self._path, refusal)
            self._continue()
        except BaseException:
            self._file.close()
            raise

        # So that a new ledger's name survives a power loss.
        files.sync_folder(self.run_dir)

        # What the last `sync` wrote, until the next event records it.
        self._synced_bytes: int | None = None

        self._heartbeat = self.run_dir / files.HEARTBEAT_FILE
        self.alive_until_ms: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self.alive_until_ms = int(self._heartbeat.stat().st_mtime * 1000)

        self._closed = threading.Event()
        # Only the run's own ledger has a heartbeat.
        self._beats = file == files.EVENTS_FILE
        # Starts with the first event. An earlier heartbeat would count for the previous
        # session, which would then seem to have lasted until now.
        self._beat: threading.Thread | None = None

    def _keep_beating(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            self._touch()

    def _touch(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the heartbeat must go on
            self._heartbeat.touch()

    def event(
        self,
        key: str,
        value: Any = None,
        event_type: str = "POINT_IN_TIME",
        **metadata: Any,
    ) -> None:
        """Appends an event, with the wall clock's time and the monotonic clock's.

        Args:
            key: what happened, such as "eval_accuracy".
            value: a JSON value of the key's type, None if it is unknown.
            event_type: "INTERVAL_START", "INTERVAL_END" or "POINT_IN_TIME".
            **metadata: JSON values that say what it is about, such as ``step=3``.

        Raises:
            TypeError: if the value isn't of the key's type in `tfasr.ledger.schema`.
        """
        if self.inherited:
            return

        problem = schema.wrong(key, value)
        if problem is not None:
            raise TypeError(f"An event can't be written: {problem}.")

        with self._mutex:
            if not self._is_whole:
                self._continue()

            clock = {"session": self.session, "mono_s": round(time.monotonic(), 6)}
            if self._synced_bytes is not None:
                clock["synced_bytes"] = self._synced_bytes
                self._synced_bytes = None

            line = {
                "namespace": "",
                "time_ms": int(time.time() * 1000),
                "event_type": event_type,
                "key": key,
                "value": value,
                "metadata": {**metadata, **clock},
            }
            self._append(_written(line)[:-1])  # without "}", as ``chain`` follows
            if self._beat is None and self._beats:
                self._touch()
                self._beat = threading.Thread(
                    target=self._keep_beating, name="ledger", daemon=True
                )
                self._beat.start()

    def write(self, value: Any, **metadata: Any) -> None:
        """Appends an instance of a dataclass in `tfasr.ledger.schema`, under its key.

        Args:
            value: the instance, such as a `TrainStep`.
            **metadata: as in `event`.
        """
        self.event(schema.KEYS[type(value)], schema.to_json(value), **metadata)

    def _continue(self) -> None:
        """Removes what a crash, a full disk or a signal left after the last whole line."""
        self._file.seek(0)
        content = self._file.read()
        parsed = _whole_lines(content, self._path)
        if parsed.end < len(content):
            os.ftruncate(self._file.fileno(), parsed.end)

        self._head = parsed.head
        self._bytes = parsed.end
        self._is_whole = True

    def _append(self, text: bytes) -> None:
        """Writes a line, given without its hash and its end."""
        head = _hash(self._head, text)
        line = text + _FIELD + head + b'"}\n'

        # Until the line is written; a signal may interrupt this anywhere.
        self._is_whole = False
        rest = line
        # Called in every step: using `named_in_errors` here would double its time.
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            files.name_in_error(error, self._path)
            raise

        self._head = head
        self._bytes += len(line)
        self._is_whole = True

    @property
    def inherited(self) -> bool:
        """Whether this object is a copy in a forked process, which writes nothing.

        Otherwise both processes would write from the same position and hash.
        """
        return os.getpid() != self._owner

    def mark(self) -> dict[str, Any]:
        """Returns the last line's hash and the ledger's length, for `ledger_covers`.

        Example:
            ::

                {"chain": "9f86d081884c7d659a2feaa0c55ad015", "bytes": 4096}
        """
        return {"chain": self._head.decode(), "bytes": self._bytes}

    def begin_session(
        self, resumed_from_step: int | None, declared: Any = None, **metadata: Any
    ) -> None:
        """Writes ``session_start``, each process's first event.

        Args:
            resumed_from_step: the step of the checkpoint that training continues from.
            declared: what `tfasr.ledger.declared.declaration` returned.
            **metadata: what else is known of the process, such as ``process_age_s``.
        """
        alive_until_ms = None
        if self.session:
            alive_until_ms = self.alive_until_ms

        value = schema.SessionStart(
            session=self.session,
            resumed_from_step=resumed_from_step,
            alive_until_ms=alive_until_ms,
            ledger_format=LEDGER_FORMAT,
            declared=declared,
        )
        self.write(value, pid=os.getpid(), **metadata)

    def sync(self) -> None:
        """Waits until all events are on disk.

        Raises:
            RunError: if the file was removed, replaced or cut meanwhile.
        """
        if self.inherited:
            return

        with self._mutex, files.named_in_errors(self._path):
            if not self._is_whole:
                self._continue()

            os.fsync(self._file.fileno())
            self._synced_bytes = self._bytes

        if not self._is_in_place():
            raise RunError(
                f"{self._path} was removed, replaced or cut while the run was writing "
                "it, so its record is gone. Restore the file and continue with "
                "--resume, or start again in an empty folder."
            )

    def _is_in_place(self) -> bool:
        """Whether the file still has its name and everything that was written."""
        about = os.fstat(self._file.fileno())
        try:
            named = self._path.stat()
        except OSError:
            return False

        # A rotation of logs (copytruncate) leaves the file in its place, but cuts it.
        return os.path.samestat(about, named) and about.st_size >= self._bytes

    def start(self, name: str, **metadata: Any) -> None:
        """Writes the event ``<name>_start``, at which an interval begins."""
        self.event(f"{name}_start", event_type="INTERVAL_START", **metadata)

    def stop(self, name: str, **metadata: Any) -> None:
        """Writes the event ``<name>_stop``, at which an interval ends."""
        self.event(f"{name}_stop", event_type="INTERVAL_END", **metadata)

    @contextlib.contextmanager
    def interval(self, name: str, **metadata: Any) -> Iterator[None]:
        """Writes the start and stop of ``name`` around a block.

        It writes no stop if the block raises: that interval lasts until the session's
        end.
        """
        self.start(name, **metadata)
        yield
        self.stop(name, **metadata)

    def close(self) -> None:
        """Ends the heartbeat and releases the lock; may be called again.

        It doesn't wait for the disk: call `sync` before, if the events must survive a
        power loss.
        """
        self._closed.set()
        if self._beat is not None and not self.inherited:
            self._beat.join()

        # If the last line could not be written, `event` has already reported it.
        if self._file.closed:
            return

        files.forget_lock(self._file.fileno())
        with contextlib.suppress(OSError):
            self._file.close()
