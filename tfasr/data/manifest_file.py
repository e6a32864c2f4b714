"""A prepared split's manifest: the utterances in the order of the records."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfasr.data.columns import needs_columns, read_columns
from tfasr.data.packed_utterances import PackedUtterances
from tfasr.data.shard_index import AGAIN, MANIFEST_FILE, ShardedUtterance, file_sha256
from tfasr.errors import UsageError


def read_manifest(folder: Path, index: dict[str, Any]) -> Sequence[ShardedUtterance]:
    """Returns a split's utterances, in the order of the records.

    Of a split with more than 100 000, `PackedUtterances` that read the file as they are asked;
    one that an older tfasr prepared is held in any case.

    Args:
        folder: the split's.
        index: its index.

    Raises:
        UsageError: if the manifest is missing or is not the one that the index was made with.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} must hold {MANIFEST_FILE} beside its index. It is missing. "
            "Run tfasr prepare again; it resumes."
        )
    try:
        if needs_columns(index["utterances"]) and "columns_sha256" in index:
            return _opened(path, index)
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} must be readable. Received: {error.strerror}.") from None
    lines = [line for line in content.split(b"\n") if line]
    _check_count(path, len(lines), index)
    _check_hash(path, hashlib.sha256(content).hexdigest(), index)
    return [_utterance(line, path, number) for number, line in enumerate(lines, start=1)]


def _opened(path: Path, index: dict[str, Any]) -> PackedUtterances:
    _check_hash(path, file_sha256(path), index)
    count, stated = index["utterances"], index["columns_sha256"]
    return PackedUtterances(path, read_columns(path.parent, count, stated, AGAIN))


def _check_count(path: Path, count: int, index: dict[str, Any]) -> None:
    if count != index["utterances"]:
        raise UsageError(
            f"{path} must list the index's {index['utterances']} utterances. "
            f"Received: {count}. Run tfasr prepare again; it resumes."
        )


def _check_hash(path: Path, found: str, index: dict[str, Any]) -> None:
    stated = index.get("manifest_sha256")
    if stated is not None and found != stated:
        raise UsageError(f"{path} must be as it was written: it does not match its hash. {AGAIN}")


def _utterance(line: bytes, path: Path, number: int) -> ShardedUtterance:
    try:
        found = ShardedUtterance(**json.loads(line))
        for field in dataclasses.fields(found):
            kind = (int, float) if field.type is float else field.type
            if not isinstance(getattr(found, field.name), kind):
                raise ValueError(f"{field.name} is no {field.type.__name__}")
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"Every line of {path} must be an utterance. Line {number} is not: {error}. {AGAIN}"
        ) from None
    return found
