"""Writes and reads a prepared split's index, manifest and columns.

Packing writes them last, when all shards are on the disk, so a folder with an index is
complete. Training, reports and comparisons of splits read them without opening a shard.

The index, ``index.json``, has the settings, the list of shards and hashes of each shard
(``sha256``), the manifest (``manifest_sha256``), the columns (``columns_sha256``) and
the rest of the index (``index_sha256``). They are checked when a split is opened.

The manifest, ``manifest.jsonl``, has a line for each utterance. A large split also has
``columns.npy``, its numbers as an array, which is read in a second instead of minutes.
"""

import bisect
import dataclasses
import hashlib
import io
import json
import logging
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tfasr.data.rows import IN_MEMORY_BYTES, Rows, encoded
from tfasr.errors import UsageError, did_you_mean, received_path
from tfasr.kit.files import file_sha256, read_object, whole_file, write_whole
from tfasr.kit.process import usable_cores

INDEX_FILE = "index.json"
MANIFEST_FILE = "manifest.jsonl"
COLUMNS_FILE = "columns.npy"
# Of all files of a split. Raise it when they change, so that other versions refuse
# them.
FORMAT = 1
# The most utterances, of some 500 bytes each, to keep in memory; larger splits get
# columns.
MOST_HELD = 100_000

_AGAIN = "Run tfasr prepare again; it recreates damaged files."
# Bytes to read at once: of columns to hash, of many lines, and of a single line, which
# rarely has more than 500 bytes.
_BLOCK_BYTES = 1 << 20
_LINES_BYTES = 1 << 22
_LINE_BYTES = 1 << 16
_MOST_NAMES = 100_000  # of speakers and recordings, whose hashes are remembered
# Files, and ids of utterances with the same remark, to list in a message.
_LISTED = 10
_REMARKED = 5
_COLUMNS = np.dtype(
    [
        ("offset", "<u8"),  # where the manifest's line begins, in bytes
        ("content", "<u8"),  # a hash of the audio
        ("speaker", "<u8"),  # a hash of the name; 0 if unknown
        ("recording", "<u8"),  # a hash of the name; 0 if it isn't a segment
        ("duration_s", "<f8"),
        ("frames", "<u4"),
        ("frames_needed", "<u4"),
    ]
)
# What an index must have; a damaged one is rejected with the names of what is wrong.
_TYPES = {
    "format": int,
    "content_hash": str,
    "alphabet": dict,
    "features": dict,
    "packing": dict,
    "conv": list,
    "utterances": int,
    "feature_sums": dict,
    "shards": list,
    "manifest_sha256": str,
    "index_sha256": str,
}
_SHARD_TYPES = {"file": str, "bytes": int, "utterances": int, "sha256": str}

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class ShardedUtterance:
    """A line of ``manifest.jsonl``: a packed utterance without its features."""

    position: int  # number in the split, unique; the shards' records contain it too
    id: str
    text: str  # normalised
    speaker: str  # "" if unknown
    duration_s: float
    frames: int  # feature frames
    frames_needed: int  # the fewest output frames with which CTC can align the text
    content: str  # a hash of the audio; noisy copies have their original's
    # Name of the recording of which it is a segment; "" if it is all of one.
    recording: str = ""


def _content_code(content: str) -> int:
    """Returns the number in the column "content" for a hash of 16 hexadecimal digits."""
    return int(content, 16)


def _name_code(name: str) -> int:
    """Returns the number for a speaker's or recording's name; 0 for "".

    It is a hash of 64 bits: two of a million names get the same with 1 in 37 million.
    """
    digest = hashlib.blake2b(
        name.encode(errors="backslashreplace"), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little") if name else 0


class HeldUtterances(list[ShardedUtterance]):
    """The utterances of a split that fits into memory; else see `PackedUtterances`.

    Both have the same methods, so that callers needn't know which one a split has.
    """

    @property
    def duration_s(self) -> float:
        return sum(utterance.duration_s for utterance in self)

    def column(self, name: str) -> np.ndarray:
        """Returns the column of `_COLUMNS` with this name, ``(utterances,)``.

        Names and hashes become numbers, which can be compared between splits.
        """
        codes = {
            "content": _content_code,
            "speaker": _name_code,
            "recording": _name_code,
        }
        code = codes.get(name, lambda value: value)
        return np.array([code(getattr(u, name)) for u in self], _COLUMNS[name])

    def texts(self) -> Iterator[str]:
        """Yields the normalised transcripts, in the order of the positions."""
        return (utterance.text for utterance in self)

    def at(self, positions: Sequence[int]) -> list[ShardedUtterance]:
        """Returns the utterances at these positions, in this order; KeyError for a gap."""
        wanted = set(positions)
        by_position = {u.position: u for u in self if u.position in wanted}
        return [by_position[position] for position in positions]


class PackedUtterances(Sequence[ShardedUtterance]):
    """The utterances of a split too large for memory, read from its file when needed.

    Numbers come from the columns, and everything else from the lines to which they
    point. Iterating reads the file once, in large blocks; indexing reads a single line.
    """

    def __init__(self, path: Path, columns: np.ndarray):
        self._columns = columns
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return [self[number] for number in range(*which.indices(len(self)))]

        offset = int(self._columns["offset"][which])
        line = b""
        while b"\n" not in line and (
            block := os.pread(self._file, _LINE_BYTES, offset + len(line))
        ):
            line += block

        return _unchecked(line.partition(b"\n")[0])

    def __iter__(self) -> Iterator[ShardedUtterance]:
        for lines in self._lines():
            yield from map(_unchecked, lines)

    @property
    def duration_s(self) -> float:
        return float(self._columns["duration_s"].sum())

    def column(self, name: str) -> np.ndarray:
        """Returns the column with this name, ``(utterances,)``, without reading lines."""
        return self._columns[name]

    def texts(self) -> Iterator[str]:
        # Takes a third of the time of iterating over utterances.
        for lines in self._lines():
            for fields in orjson.loads(b"[%b]" % b",".join(lines)):
                yield fields["text"]

    def at(self, positions: Sequence[int]) -> list[ShardedUtterance]:
        return [self._at(position) for position in positions]

    def _at(self, position: int) -> ShardedUtterance:
        # Positions increase from line to line, with gaps.
        number = bisect.bisect_left(
            self,
            position,
            key=lambda utterance: utterance.position,
        )
        if number == len(self) or self[number].position != position:
            raise KeyError(position)

        return self[number]

    def _lines(self) -> Iterator[list[bytes]]:
        """Yields the manifest's lines, some thousands at a time."""
        offset = 0
        begun = b""

        while block := os.pread(self._file, _LINES_BYTES, offset):
            offset += len(block)
            *lines, begun = (begun + block).split(b"\n")
            yield lines

        if begun:
            yield [begun]


def _unchecked(line: bytes) -> ShardedUtterance:
    """Makes an utterance of a line without checking its fields.

    The hash of the whole file has been checked, and `_checked` would take much longer.
    """
    utterance = ShardedUtterance.__new__(ShardedUtterance)
    object.__setattr__(utterance, "__dict__", orjson.loads(line))
    return utterance


@dataclass
class FeatureSums:
    """Sums over frames, from which a split's mean and deviation are computed.

    Each shard's sidecar has its own, and the index their total. Sums are added in
    float64 and in the order of the shards, so that they are the same bit for bit in
    every run.

    Attributes:
        frames: number of frames added.
        total: sum of each feature, float64 ``(num_features,)``; 0.0 before any.
        squares: sum of each feature's square, float64 ``(num_features,)``.
    """

    frames: int = 0
    total: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0

    def add(self, features: np.ndarray) -> None:
        """Adds features ``(frames, num_features)``, of any floating-point type."""
        exact = features.astype(np.float64)
        total = exact.sum(axis=0)
        # In place, as arrays of this size are slow to allocate.
        squares = np.square(exact, out=exact).sum(axis=0)
        self.merge(FeatureSums(len(exact), total, squares))

    def to_json(self) -> dict[str, Any]:
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @property
    def finite(self) -> bool:
        """Whether no feature was NaN or infinite."""
        return bool(np.isfinite(self.total).all() and np.isfinite(self.squares).all())

    def merge(self, other: "FeatureSums") -> None:
        self.frames += other.frames
        self.total = self.total + other.total
        self.squares = self.squares + other.squares

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and standard deviation of each feature, float32 ``(num_features,)``."""
        mean = np.asarray(self.total) / self.frames
        variance = np.maximum(np.asarray(self.squares) / self.frames - mean**2, 0.0)
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)

    @classmethod
    def merged(cls, parts: Iterable[dict[str, Any]]) -> "FeatureSums":
        """Adds up several shards' sums, each as returned by `to_json`."""
        result = cls()
        for part in parts:
            total = np.asarray(part["total"])
            squares = np.asarray(part["squares"])
            result.merge(cls(part["frames"], total, squares))

        return result


def _index_hash(index: dict[str, Any]) -> str:
    """Returns the SHA-256 of an index without its own hash, as hex."""
    # A hash can't include itself.
    content = {name: value for name, value in index.items() if name != "index_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def require_prepared(shard_dir: str | Path, split: str) -> None:
    """Raises UsageError unless a folder has a split that ``tfasr prepare`` finished."""
    if (Path(shard_dir) / split / INDEX_FILE).is_file():
        return

    prepared = sorted(
        path.parent.name for path in Path(shard_dir).glob(f"*/{INDEX_FILE}")
    )
    rule = f"--shard_dir must hold the prepared split {split!r}."
    remedy = f"Run tfasr prepare for {split!r}; it resumes."
    if not Path(shard_dir).exists():
        raise UsageError(f"{rule} {received_path(shard_dir, otherwise=remedy)}")

    remedy = did_you_mean(split, prepared, remedy)
    raise UsageError(
        f"{rule} Received: {shard_dir}, with the finished splits {prepared}.{remedy}"
    )


def read_index(folder: Path) -> dict[str, Any]:
    """Returns a split's index.

    Raises:
        UsageError: if it is damaged, in another format, or names files outside its
        folder, which an index from elsewhere might do.
    """
    path = folder / INDEX_FILE
    index = read_object(path, _AGAIN, tuple(_TYPES))
    if index["format"] != FORMAT:
        raise UsageError(
            f"Shards must be in format {FORMAT}. Those of {path} are in {index['format']!r}: "
            "another version of tfasr wrote them. Run tfasr prepare into another --shard_dir."
        )

    # An index may be damaged, or made by others: nothing in it is trusted.
    wrong = [name for name, kind in _TYPES.items() if not isinstance(index[name], kind)]
    packing = index["packing"] if not wrong else {}
    if packing.get("dtype") not in ("float16", "float32"):
        wrong.append("packing.dtype")
    if packing.get("compression") not in ("GZIP", "ZLIB", ""):
        wrong.append("packing.compression")
    if not wrong:
        wrong = [
            f"shards: {shard!r}" for shard in index["shards"] if not _is_shard(shard)
        ]
    if not wrong and not {"frames", "total", "squares"} <= index["feature_sums"].keys():
        wrong.append("feature_sums")
    if wrong:
        raise UsageError(
            f"{path} is damaged: it has no valid {', '.join(wrong[:3])}. {_AGAIN}"
        )

    names = [shard["file"] for shard in index["shards"]]
    outside = [n for n in names if n in ("", ".", "..") or {"/", "\\", "\0"} & set(n)]
    if outside:
        raise UsageError(
            f"The shards of {path} must lie in its folder. It names {', '.join(outside[:_LISTED])}."
        )

    _check_hash(path, _index_hash(index), index["index_sha256"])

    return index


def _check_hash(path: Path, digest: str, stated: str) -> None:
    if digest != stated:
        raise UsageError(
            f"{path} must be as it was written: it does not match its hash. {_AGAIN}"
        )


def _is_shard(shard: Any) -> bool:
    """Whether an index's entry names a shard's file, size, utterances and hash."""
    return isinstance(shard, dict) and all(
        isinstance(shard.get(name), kind) for name, kind in _SHARD_TYPES.items()
    )


def check_shards(folder: Path, index: dict[str, Any], *, content: bool) -> None:
    """Checks that all shards have the sizes that the index states.

    With ``content``, their hashes are checked too, on all cores, which takes as long as
    reading the files.

    Raises:
        UsageError: naming files that are missing, unreadable or different.
    """
    shards = {shard["file"]: shard for shard in index["shards"]}
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"Shard index lists {len(shards)} shards but {len(shards) - len(missing)} files exist. "
            f"Missing in {folder}: {', '.join(missing[:_LISTED])}. "
            "Run tfasr prepare again; it resumes."
        )

    sizes = {name: (folder / name).stat().st_size for name in shards}
    wrong = [name for name, size in sizes.items() if size != shards[name]["bytes"]]
    if wrong:
        raise UsageError(
            f"Shards in {folder} must have the size that their index notes. Received: "
            + ", ".join(
                f"{n} with {sizes[n]} of {shards[n]['bytes']} bytes" for n in wrong[:10]
            )
            + ". Run tfasr prepare again; it replaces them."
        )

    if not content:
        return

    stated = {name: shard["sha256"] for name, shard in shards.items()}
    try:
        with ThreadPoolExecutor(usable_cores()) as threads:
            hashes = list(threads.map(file_sha256, (folder / name for name in stated)))
    except OSError as error:
        raise UsageError(
            f"Shards must be readable. {error.filename}: {error.strerror}. Correct its "
            "permissions, or run tfasr prepare again."
        ) from None

    other = [
        name
        for name, digest in zip(stated, hashes, strict=True)
        if digest != stated[name]
    ]
    if other:
        raise UsageError(
            f"Shards must be as they were written. In {folder} these do not match their hash: "
            f"{', '.join(other[:_LISTED])}. {_AGAIN}"
        )


def read_manifest(
    folder: Path, index: dict[str, Any]
) -> HeldUtterances | PackedUtterances:
    """Returns a split's utterances in the order of its records.

    Large splits stay on the disk. The hashes of the files are checked in any case.

    Raises:
        UsageError: if a file is missing, damaged or not that of the index.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} must hold {MANIFEST_FILE} in addition to its index. It is missing. "
            "Run tfasr prepare again; it resumes."
        )

    try:
        # A large split is never read as a whole.
        if index["utterances"] > MOST_HELD and "columns_sha256" in index:
            _check_hash(path, file_sha256(path), index["manifest_sha256"])
            return PackedUtterances(path, _read_columns(folder / COLUMNS_FILE, index))

        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} must be readable. Received: {error.strerror}."
        ) from None

    lines = [line for line in content.split(b"\n") if line]
    if len(lines) != index["utterances"]:
        raise UsageError(
            f"{path} must list the index's {index['utterances']} utterances. "
            f"Received: {len(lines)}. Run tfasr prepare again; it resumes."
        )

    _check_hash(path, hashlib.sha256(content).hexdigest(), index["manifest_sha256"])

    return HeldUtterances(
        _checked(line, path, n) for n, line in enumerate(lines, start=1)
    )


_UTTERANCE_FIELDS = dataclasses.fields(ShardedUtterance)


def _checked(line: bytes, path: Path, number: int) -> ShardedUtterance:
    """Reads a line of the manifest; UsageError if a field is missing or of a wrong type."""
    try:
        utterance = ShardedUtterance(**json.loads(line))
        for field in _UTTERANCE_FIELDS:
            kind = (int, float) if field.type is float else field.type
            if not isinstance(getattr(utterance, field.name), kind):
                raise ValueError(f"{field.name} is not of type {field.type.__name__}")

        # Raises if it isn't a number of 64 bits.
        np.uint64(_content_code(utterance.content))
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise UsageError(
            f"Every line of {path} must be an utterance. Line {number} is not: {error}. {_AGAIN}"
        ) from None

    return utterance


def _read_columns(path: Path, index: dict[str, Any]) -> np.ndarray:
    """Returns the columns, ``(utterances,)`` of `_COLUMNS`; UsageError if damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} must be readable. Received: {error.strerror}. {_AGAIN}"
        ) from None

    _check_hash(path, hashlib.sha256(content).hexdigest(), index["columns_sha256"])
    file = io.BytesIO(content)
    try:
        # Rows are used where they lie, with the expected type; `np.load` would copy.
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        rows = np.frombuffer(content, _COLUMNS, offset=file.tell())
    except ValueError as error:
        raise UsageError(
            f"{path} must hold a split's columns: {error}. {_AGAIN}"
        ) from None

    if len(rows) != index["utterances"]:
        raise UsageError(
            f"{path} must list the index's {index['utterances']} utterances. Received: "
            f"{len(rows)}. {_AGAIN}"
        )

    return rows


class PackedIndex:
    """Writes a split's manifest, columns and index from its shards' sidecars.

    They are written in this order, so that a complete index means a complete split. A
    sidecar is a shard's JSON file with everything that the index needs to know of it,
    so no shard is read again. One pass over the sidecars keeps memory constant.

    Attributes:
        unpacked: rows of the utterances that couldn't be packed.
        remarks: numbers of utterances, by the remark's kind.
        remarked: the first ids with each kind.
    """

    def __init__(self, folder: Path, sidecars: Iterable[dict[str, Any]]):
        self._folder = folder
        self._sidecars = sidecars
        self.unpacked = Rows(folder)
        self._rows = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._rows.close)
        self._names: dict[str, int] = {}
        self.remarks: Counter[str] = Counter()
        self.remarked: dict[str, list[str]] = {}
        self._shards: list[dict[str, Any]] = []
        self._sums = FeatureSums()
        self._records_hashes: list[str] = []
        self._utterances = self._frames = self._bytes = 0
        self._duration_s = 0.0

    def write_manifest(self) -> str:
        """Reads the sidecars and writes the manifest; returns its SHA-256 as hex."""
        digest = hashlib.sha256()
        with whole_file(self._folder / MANIFEST_FILE) as file:
            for sidecar in self._sidecars:
                lines = self._added(sidecar)
                digest.update(lines)
                file.write(lines)

        return digest.hexdigest()

    def write_index(
        self,
        split: str,
        packing: dict[str, Any],
        planned: str,
        dropped: Any,
        manifest_sha256: str,
    ) -> dict[str, Any]:
        """Writes a large split's columns and then the index; returns the index.

        Args:
            split: its name.
            packing: the settings, as `tfasr.data.packing.Packing.content` returns them.
            planned: the hash of what was to be packed. The content hash adds the
                records.
            dropped: counts of utterances that were left out, by ``too_long`` and
                ``bad``.
            manifest_sha256: as `write_manifest` returned it.
        """
        content = planned + "".join(self._records_hashes)
        left_out = dropped.too_long + dropped.bad
        index = {
            "split": split,
            "content_hash": hashlib.sha256(content.encode()).hexdigest(),
            **packing,
            "utterances": self._utterances,
            "duration_s": round(self._duration_s, 3),
            "frames": self._frames,
            "too_long": dropped.too_long,
            "bad": dropped.bad,
            "kept_share": round(self._utterances / (self._utterances + left_out), 4),
            "remarks": dict(self.remarks),
            "feature_sums": self._sums.to_json(),
            "shards": self._shards,
            "manifest_sha256": manifest_sha256,
        }
        if self._utterances > MOST_HELD:
            index["columns_sha256"] = self._write_columns()

        index["index_sha256"] = _index_hash(index)
        write_whole(self._folder / INDEX_FILE, json.dumps(index, indent=1) + "\n")

        return index

    def _added(self, sidecar: dict[str, Any]) -> bytes:
        """Adds a shard to all sums and columns; returns its lines of the manifest."""
        utterances = sidecar["utterances"]
        shard = {
            name: sidecar[name] for name in ("file", "bytes", "utterances", "sha256")
        }
        self._shards.append({**shard, "utterances": len(utterances)})
        self._records_hashes.append(sidecar["records_sha256"])
        self._sums.merge(FeatureSums.merged([sidecar["feature_sums"]]))
        self.unpacked.extend(
            [bad["id"], bad["reason"], bad["detail"]] for bad in sidecar["bad"]
        )

        for id_, kind, _ in sidecar["remarks"]:
            self.remarks[kind] += 1
            if self.remarks[kind] <= _REMARKED:
                self.remarked.setdefault(kind, []).append(id_)

        lines = [encoded(utterance) for utterance in utterances]
        rows = np.empty(len(utterances), _COLUMNS)
        for row, (utterance, line) in enumerate(zip(utterances, lines, strict=True)):
            rows[row] = (
                self._bytes,
                _content_code(utterance["content"]),
                self._name(utterance["speaker"]),
                self._name(utterance["recording"]),
                utterance["duration_s"],
                utterance["frames"],
                utterance["frames_needed"],
            )
            self._bytes += len(line)
            self._frames += utterance["frames"]
            self._duration_s += utterance["duration_s"]

        self._utterances += len(utterances)
        self._rows.write(rows.tobytes())

        return b"".join(lines)

    def _name(self, name: str) -> int:
        """Returns a name's code, remembered because hashing it anew takes longer."""
        if name not in self._names:
            if len(self._names) > _MOST_NAMES:
                self._names.clear()
            self._names[name] = _name_code(name)

        return self._names[name]

    def _write_columns(self) -> str:
        """Writes the columns in NumPy's format; returns their SHA-256 as hex."""
        header = io.BytesIO()
        shape = {
            "descr": _COLUMNS.descr,
            "fortran_order": False,
            "shape": (self._utterances,),
        }
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
