"""A split's folder while it is prepared: whose it is, and which files in it are tfasr's.

``plan.json`` is written first and holds the number of shards, hence every name. Nothing else is
ever overwritten or removed.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tfasr.data.manifest import COLUMNS_FILE, INDEX_FILE, MANIFEST_FILE
from tfasr.errors import UsageError
from tfasr.kit.files import (
    PARTIAL_SUFFIX,
    check_owned,
    locked,
    make_folder,
    sync_folder,
    write_whole,
)

PLAN_FILE = "plan.json"
DROPPED_FILE = "dropped.json"
LISTING_FILE = "prepare-listing.jsonl"
_LOCK_FILE = "prepare.lock"
_BEFORE_THE_PLAN = (_LOCK_FILE, LISTING_FILE, LISTING_FILE + PARTIAL_SUFFIX)
_SUFFIXES = (".tfrecord", ".json", ".partial", ".partial-json", ".json" + PARTIAL_SUFFIX)
_OF_A_SPLIT = (INDEX_FILE, MANIFEST_FILE, COLUMNS_FILE, DROPPED_FILE)
_OLD_PLAN = re.compile(r"[0-9a-f]{64}\s*")
_LISTED = 8


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}"


def check_split_folder(folder: Path) -> None:
    """Raises UsageError unless a folder is new, empty, or one that ``tfasr prepare`` made."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    names -= {*_BEFORE_THE_PLAN, PLAN_FILE + PARTIAL_SUFFIX}
    flag, claim = "A split's folder in --shard_dir", f"{PLAN_FILE} of tfasr prepare"
    check_owned(folder, flag, claim, names, owned=_plan(folder) is not None)


@contextlib.contextmanager
def own_split_folder(folder: Path) -> Iterator[None]:
    """Reserves a split's folder during the block; UsageError if it isn't tfasr's, or in use."""
    check_split_folder(folder)
    make_folder(folder)
    held = (
        f"Only one process may prepare a split. {folder} is being prepared by another one: wait "
        "for it, or choose another --shard_dir."
    )
    with locked(folder / _LOCK_FILE, held):
        check_split_folder(folder)
        yield


def keep_only_plan(folder: Path, split: str, key: str, shards: int) -> None:
    """Removes another plan's files; a resumed plan keeps its own files except the index."""
    plan = _plan(folder)
    if plan is not None:
        remove_unfinished(folder, split)
    names = [path.name for path in folder.iterdir()]
    listed = [name for name in names if plan is not None and _is_shards(name, split, plan[1])]
    needed = {name for name in names if _is_shards(name, split, shards)}.difference(listed)
    if plan is None:
        needed.update(name for name in names if name in _OF_A_SPLIT)
    if foreign := sorted(needed):
        raise UsageError(
            f"{folder} must not hold files of others that have a shard's name. Received: "
            f"{', '.join(foreign[:_LISTED])}. Move them away."
        )
    (folder / INDEX_FILE).unlink(missing_ok=True)
    sync_folder(folder)  # no power loss may bring it back with other shards
    if plan is None or plan[0] != key:
        for name in listed:
            (folder / name).unlink(missing_ok=True)
    write_whole(folder / PLAN_FILE, json.dumps({"key": key, "shards": shards}) + "\n")


def remove_unfinished(folder: Path, split: str) -> None:
    """Removes what killed workers of an executor left: names that end in 16 hexadecimal digits."""
    name = rf"{re.escape(split)}-\d{{5,}}(\.json)?{re.escape(PARTIAL_SUFFIX)}-[0-9a-f]{{16}}"
    ours = re.compile(name)
    for path in folder.iterdir():
        if ours.fullmatch(path.name):
            path.unlink(missing_ok=True)


def plan_key(folder: Path) -> str | None:
    """Returns the key of the plan in a split's folder, or None."""
    plan = _plan(folder)
    return None if plan is None else plan[0]


def _is_shards(name: str, split: str, shards: int) -> bool:
    match = re.fullmatch(rf"{re.escape(split)}-(\d{{5,}})(\..+)", name)
    if match is None or match[2] not in _SUFFIXES:
        return False
    number = int(match[1])
    return (shards < 0 or number < shards) and name.startswith(shard_name(split, number) + ".")


def _plan(folder: Path) -> tuple[str, int] | None:
    """Returns the plan's key and number of shards, -1 for a plan of 0.1.0, which noted none."""
    try:
        text = (folder / PLAN_FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None
    if _OLD_PLAN.fullmatch(text):
        return text.strip(), -1
    with contextlib.suppress(ValueError, TypeError, KeyError):
        plan = json.loads(text)
        if isinstance(plan["key"], str) and isinstance(plan["shards"], int):
            return plan["key"], plan["shards"]
    return None
