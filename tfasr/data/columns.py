"""A split's utterances as columns of numbers: what training asks of millions at once.

``columns.npy`` lies beside the ``manifest.jsonl`` of a large split, a row for each of its lines. It
holds nothing that the manifest does not, in a form that is read in a second where the lines take
minutes.
"""

import hashlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.durable import whole_file
from tfasr.errors import UsageError

COLUMNS_FILE = "columns.npy"
COLUMNS = np.dtype(
    [
        ("offset", "<u8"),  # of the line in the manifest, in bytes
        ("content", "<u8"),  # of the hash of the features
        ("speaker", "<u8"),  # a hash of the name; 0 for none
        ("duration_s", "<f8"),
        ("frames", "<u4"),
        ("frames_needed", "<u4"),
    ]
)
# Utterances of some 500 bytes, which a process may hold without columns.
MOST_HELD = 100_000
_IN_MEMORY_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20
_MOST_SPEAKERS = 100_000  # whose codes are remembered


def needs_columns(count: int) -> bool:
    """Tells whether a split of so many utterances is read by columns."""
    return count > MOST_HELD


def speaker_code(name: str) -> int:
    """Returns a number of 64 bits for a speaker's name, 0 for ""."""
    digest = hashlib.blake2b(name.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") if name else 0


class ColumnsWriter:
    """Collects a split's columns in the order of its manifest.

    Args:
        folder: the split's.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._rows = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=folder)  # noqa: SIM115
        self._count = 0
        self._offset = 0
        self._codes: dict[str, int] = {}

    def add(self, utterances: Sequence[dict[str, Any]], lines: Sequence[bytes]) -> None:
        """Adds utterances, as JSON of a `ShardedUtterance`, with their lines of the manifest."""
        rows = np.empty(len(utterances), COLUMNS)
        for row, (utterance, line) in enumerate(zip(utterances, lines, strict=True)):
            rows[row] = (
                self._offset,
                int(utterance["content"] or "0", 16),
                self._code(utterance["speaker"]),
                utterance["duration_s"],
                utterance["frames"],
                utterance["frames_needed"],
            )
            self._offset += len(line)
        self._rows.write(rows.tobytes())
        self._count += len(rows)

    def __del__(self) -> None:
        self._rows.close()

    def _code(self, speaker: str) -> int:
        if speaker not in self._codes:
            if len(self._codes) > _MOST_SPEAKERS:
                self._codes.clear()
            self._codes[speaker] = speaker_code(speaker)
        return self._codes[speaker]

    def write(self) -> str:
        """Writes the file and returns its SHA-256, in hexadecimal."""
        header = io.BytesIO()
        shape = {"descr": COLUMNS.descr, "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(header, shape)
        digest = hashlib.sha256()
        with self._rows, whole_file(self._folder / COLUMNS_FILE) as file:
            self._rows.seek(0)
            block = header.getvalue()
            while block:
                digest.update(block)
                file.write(block)
                block = self._rows.read(_BLOCK_BYTES)
        return digest.hexdigest()


def read_columns(folder: Path, count: int, sha256: str, remedy: str) -> np.ndarray:
    """Returns a split's columns, a structured array of `COLUMNS` ``(utterances,)``.

    Args:
        folder: the split's.
        count: how many utterances there must be.
        sha256: what the file's hash must be.
        remedy: a sentence that says what to do if they cannot be read.

    Raises:
        UsageError: if the file is missing or not as it was written.
    """
    path = folder / COLUMNS_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} must be readable. Received: {error.strerror}. {remedy}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UsageError(f"{path} must be as it was written: it does not match its hash. {remedy}")
    file = io.BytesIO(content)
    try:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        rows = np.frombuffer(content, COLUMNS, offset=file.tell())
    except ValueError as error:
        raise UsageError(f"{path} must hold a split's columns: {error}. {remedy}") from None
    if len(rows) != count:
        raise UsageError(
            f"{path} must list the index's {count} utterances. Received: {len(rows)}. {remedy}"
        )
    return rows
