"""A prepared split's index and manifest: read, and compared with the hashes they were given.

``index.json`` holds a hash of each shard (``sha256``), of the manifest (``manifest_sha256``) and
of all else in itself (``index_sha256``). Splits prepared by tfasr 0.1.0 have none of the three.
"""

import hashlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.checked_files import read_object
from tfasr.errors import UsageError

INDEX_FILE = "index.json"
MANIFEST_FILE = "manifest.jsonl"
FORMAT = 1

AGAIN = "Run tfasr prepare again; it makes what is damaged anew."
_BLOCK_BYTES = 1 << 20
_LISTED = 10
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
}
_SHARD_TYPES = {"file": str, "bytes": int, "utterances": int}

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class ShardedUtterance:
    """A line of ``manifest.jsonl``: an utterance as packed, without its features.

    Attributes:
        position: unique in the split; records carry it.
        id: the corpus's id.
        text: normalised transcript.
        speaker: name, or "".
        duration_s: seconds of audio.
        frames: feature frames.
        frames_needed: the fewest output frames on which CTC has a path.
        content: a hash of the features, "" where an older tfasr prepared them.
    """

    position: int
    id: str
    text: str
    speaker: str
    duration_s: float
    frames: int
    frames_needed: int
    content: str = ""


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sealed(index: dict[str, Any]) -> dict[str, Any]:
    """Returns an index with the hash of all else in it."""
    return {**index, "index_sha256": _own_hash(index)}


def _own_hash(index: dict[str, Any]) -> str:
    content = {name: value for name, value in index.items() if name != "index_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_index(folder: Path) -> dict[str, Any]:
    """Returns the content of a split's ``index.json``.

    Args:
        folder: the split's.

    Raises:
        UsageError: if it is cut, edited, of another format, or names files outside its folder.
    """
    path = folder / INDEX_FILE
    index = read_object(path, AGAIN, tuple(_TYPES))
    if index["format"] != FORMAT:
        raise UsageError(
            f"Shards must be in format {FORMAT}. {path} says {index['format']!r}: another version "
            "of tfasr wrote them. Run tfasr prepare into another --shard_dir."
        )
    wrong = [name for name, kind in _TYPES.items() if not isinstance(index[name], kind)]
    packing = index["packing"] if not wrong else {}
    if packing.get("dtype") not in ("float16", "float32"):
        wrong.append("packing.dtype")
    if packing.get("compression") not in ("GZIP", "ZLIB", ""):
        wrong.append("packing.compression")
    if not wrong:
        wrong = [f"shards: {shard!r}" for shard in index["shards"] if not _is_shard(shard)]
    if not wrong and not {"frames", "total", "squares"} <= index["feature_sums"].keys():
        wrong.append("feature_sums")
    if wrong:
        raise UsageError(f"{path} is damaged: it has no valid {', '.join(wrong[:3])}. {AGAIN}")
    outside = [shard["file"] for shard in index["shards"] if not _is_plain_name(shard["file"])]
    if outside:
        raise UsageError(
            f"The shards of {path} must lie in its folder. It names {', '.join(outside[:_LISTED])}."
        )
    if "index_sha256" not in index:
        log.warning(
            "%s was prepared by an older tfasr, without hashes: whether it was changed is not "
            "checked. tfasr prepare adds them.",
            folder,
        )
    elif index["index_sha256"] != _own_hash(index):
        raise UsageError(f"{path} must be as it was written: it does not match its hash. {AGAIN}")
    return index


def _is_shard(shard: Any) -> bool:
    if not isinstance(shard, dict):
        return False
    return all(isinstance(shard.get(name), kind) for name, kind in _SHARD_TYPES.items())


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def check_shards(folder: Path, index: dict[str, Any], *, content: bool) -> None:
    """Checks that a split's shards are there, with the size and, if asked, the hash they had.

    Args:
        folder: the split's.
        index: its index.
        content: whether to read them whole and compare their hashes: a second a gigabyte or so.

    Raises:
        UsageError: if one is missing, cut or other than it was; it names the files.
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
            + ", ".join(f"{n} with {sizes[n]} of {shards[n]['bytes']} bytes" for n in wrong[:10])
            + ". Run tfasr prepare again; it replaces them."
        )
    if not content:
        return
    stated = {name: shard["sha256"] for name, shard in shards.items() if "sha256" in shard}
    try:
        with ThreadPoolExecutor() as threads:
            hashes = list(threads.map(file_sha256, (folder / name for name in stated)))
    except OSError as error:
        raise UsageError(
            f"Shards must be readable. {error.filename}: {error.strerror}. Correct its "
            "permissions, or run tfasr prepare again."
        ) from None
    other = [n for n, found in zip(stated, hashes, strict=True) if found != stated[n]]
    if other:
        raise UsageError(
            f"Shards must be as they were written. In {folder} these do not match their hash: "
            f"{', '.join(other[:_LISTED])}. {AGAIN}"
        )
