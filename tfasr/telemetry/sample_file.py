"""A file of samples, a line each under a heading, that a kill leaves readable."""

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tfasr.durable import write_whole

FLUSH_S = 1.0
"""Seconds between writes, and so of the samples that a kill may lose."""

log = logging.getLogger("tfasr")


class SampleFile:
    """Appends lines of numbers; a full disk ends the samples with a word, not the run.

    A file that is there already is continued with its own columns: one of an older tfasr keeps
    its heading, and one whose heading a kill has lost is given it.

    Args:
        path: the file; it begins with its heading from its first moment.
        columns: names of what `add` is given.
    """

    def __init__(self, path: Path, columns: Sequence[str]):
        self._path = path
        self._columns = list(columns)
        self._file = None
        self._flushed_s = time.monotonic()
        try:
            self._chosen = self._prepared()
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)

    @property
    def works(self) -> bool:
        """Whether samples are still written."""
        return self._file is not None

    def add(self, *values: object) -> None:
        """Writes a line."""
        if self._file is None:
            return
        try:
            self._file.write(",".join(str(values[index]) for index in self._chosen) + "\n")
            now_s = time.monotonic()
            if now_s - self._flushed_s >= FLUSH_S:
                self._file.flush()
                self._flushed_s = now_s
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def _prepared(self) -> list[int]:
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        first = whole.split(b"\n", 1)[0].decode("utf-8", "replace")
        if not whole or first[:1].isdigit():
            cells = first.count(",") + 1 if whole else len(self._columns)
            heading = self._columns[:cells]
            write_whole(self._path, ",".join(heading).encode() + b"\n" + whole)
            return list(range(len(heading)))
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        known = [name for name in first.split(",") if name in self._columns]
        return [self._columns.index(name) for name in known]

    def _give_up(self, error: OSError) -> None:
        log.warning("%s gets no more samples: %s.", self._path, error.strerror or error)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what is buffered finds no room either
                file.close()
