"""Forgeries without end: each field of each file of a submission and of a study is changed.

``python -m campaigns.forgeries`` takes the submission and the study of tests/data_records, changes
one value at a time, makes all hashes anew as `tests.studies.forging` does, and asks ``tfasr
verify``. It also puts a pipe, a device, a link, noise and nested JSON in the place of each file.
``--only WORD`` takes the cases whose names hold a word, ``--every N`` each N-th.

A change must be refused, or belong to what ``verify`` lists as not checked (`NOT_CHECKED` below).
It is *bad* if it is accepted all the same, if verify raises, or if it needs more than a minute. The
last line counts; the exit status is 1 if any is bad.
"""

import argparse
import functools
import json
import math
import os
import re
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.studies.forging import Forger
from tests.studies.races import RECORDS, unpack
from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError
from tfasr.ledger.declared import STARTS_FILE
from tfasr.ledger.events import chain_of
from tfasr.studies.records import STUDY_FILE, SUBMISSION_FILE, verify_submission
from tfasr.studies.verify import verify_study

_LONGEST_S = 60

# What `verify` lists as not checked: patterns of the cases' names, by the words of that list.
NOT_CHECKED = {
    "losses": r"train_step\.value\.loss|tracked_stats\.value\.loss",
    "frames and seconds of audio": r"train_step\.value\.(audio_s|frames|padded_frames)",
    "how a step's time divides into waiting, compiling and training": (
        r"train_step\.value\.(input_wait_s|compile_s|train_s)|events\.jsonl traces\."
    ),
    "speakers and scores of hypotheses": r"hypotheses (speaker|score)",
    "samples of energy, GPUs and workers": r"\b(energy|gpu)\.csv",
    "what run.json says of machine, software and features": r"run\.json ",
    "the optimizer's settings beyond its gin statements": (
        r"experiment\.json training\.optimizer|events\.jsonl opt_|operative_config\.gin"
    ),
    "facts that no result stands on": (
        r"\.jsonl \w+\.(namespace|event_type|metadata\.(synced_bytes|pid|reason))|"
        r"events\.jsonl (parameters|num_replicas|instruction_set|missing_compiled_parts|hardware|"
        r"evaluation_placement|decode_work|shared_with_training|evaluated_weights|sentences_\w+|"
        r"checkpoint_\w+|swap_\w+|logging_\w+)"
    ),
    "times, within what two processes' clocks show (5 s plus 5 %)": (
        r"time_ms: one more|(mono_s|process_age_s): halved"
    ),
    "threads and processor settings, except in records": (
        r"study, events\.jsonl conditions|conditions\.value\.load"
    ),
    "files that tfasr doesn't write, and logs": r"\.log is|notes\.txt",
}


@dataclass(frozen=True)
class Case:
    name: str  # the victim, the file and the place in it, and the change
    make: Callable[[Path], Callable[[], Any]]  # forges in a new folder; returns the verification


Place = tuple[str | int, ...]


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yields the place and value of each text, number, boolean and null in a JSON value."""
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    else:
        yield place, value
        return
    for name, part in parts:
        yield from leaves(part, (*place, name))


def shown(place: Place) -> str:
    """Returns a place as text; all elements of a list have the same one."""
    return ".".join("*" if isinstance(part, int) else str(part) for part in place)


def changed(value: Any) -> dict[str, Any]:
    """Returns other values by what was done."""
    if isinstance(value, bool):
        return {"turned round": not value}
    if isinstance(value, int):
        return {"one more": value + 1, "negative": -abs(value) - 1, "NaN": math.nan}
    if isinstance(value, float):
        return {"halved": value / 2, "NaN": math.nan, "infinite": math.inf}
    if isinstance(value, str):
        return {"other text": f"{value}x"}
    return {"a number": 1}


def put(content: Any, place: Place, value: Any) -> None:
    for part in place[:-1]:
        content = content[part]
    content[place[-1]] = value


def removed(content: Any, place: Place) -> None:
    for part in place[:-1]:
        content = content[part]
    del content[place[-1]]


def edits(content: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yields changes of a JSON value with their names: each kind of place once."""
    seen = set()
    for place, value in leaves(content):
        if shown(place) in seen or not place:
            continue
        seen.add(shown(place))
        for what, other in changed(value).items():
            yield f"{shown(place)}: {what}", functools.partial(put, place=place, value=other)
        if isinstance(place[-1], str):
            yield f"{shown(place)}: removed", functools.partial(removed, place=place)


# Victims.


class Submission:
    def __init__(self, folder: Path):
        self.folder = Path(shutil.copytree(RECORDS / "faster", folder / "submission"))
        self.study = unpack(self.folder / STUDY_FILE, folder / "study")
        self.forger = Forger(self.study)

    def sealed_again(self, *, study: bool = True) -> Callable[[], Any]:
        if study:
            self.forger.write()
            options = {"preset": 0, "format": tarfile.USTAR_FORMAT}
            with tarfile.open(self.folder / STUDY_FILE, "w:xz", **options) as archive:
                for path in sorted(self.study.rglob("*")):
                    if path.is_file() and not path.is_symlink():
                        archive.add(path, path.relative_to(self.study).as_posix())
        path = self.folder / SUBMISSION_FILE
        stated = json.loads(path.read_text())
        if study:
            stated["study"] = chain_of(self.study / STARTS_FILE)[-1]
        names = (p for p in self.folder.rglob("*") if p.is_file() and not p.is_symlink())
        stated["files"] = {
            p.relative_to(self.folder).as_posix(): file_sha256(p) for p in names if p != path
        }
        path.write_text(json.dumps(stated))
        return self.verified()

    def verified(self) -> Callable[[], Any]:
        return lambda: verify_submission(self.folder, None, RECORDS)


class Study:
    def __init__(self, folder: Path):
        self.study = self.folder = unpack(RECORDS / "studies" / "plain.tar.xz", folder / "study")
        self.forger = Forger(self.study)

    def sealed_again(self) -> Callable[[], Any]:
        self.forger.write()
        return self.verified()

    def verified(self) -> Callable[[], Any]:
        return lambda: verify_study(self.study)


VICTIMS = {"submission": Submission, "study": Study}


def cases() -> Iterator[Case]:
    for name, victim in VICTIMS.items():
        with tempfile.TemporaryDirectory() as folder:
            example = victim(Path(folder))
            run = list(example.forger.folders)[-1]  # the challenger's or the last run
            yield from _of_ledgers(name, victim, example, run)
            yield from _of_plans(name, victim, example)
            yield from _of_files(name, victim, example, run)
            yield from _of_strange_files(name, victim, example)
    yield from _of_submission()


def _of_ledgers(name: str, victim: type, example: Any, run: Any) -> Iterator[Case]:
    for file, events in (
        ("events.jsonl", example.forger.ledgers[run]),
        ("starts.jsonl", example.forger.list),
    ):
        last = {event["key"]: place for place, event in enumerate(events)}
        for key, place in last.items():
            content = {part: events[place][part] for part in events[place] if part != "key"}
            for what, edit in edits(content):

                def make(folder: Path, *, file=file, place=place, edit=edit):
                    forged = victim(folder)
                    of_run = file == "events.jsonl"
                    content = forged.forger.ledgers[run] if of_run else forged.forger.list
                    edit(content[place])
                    return forged.sealed_again()

                yield Case(f"{name}, {file} {key}.{what}", make)

            def drop(folder: Path, *, file=file, place=place):
                forged = victim(folder)
                of_run = file == "events.jsonl"
                content = forged.forger.ledgers[run] if of_run else forged.forger.list
                del content[place]
                return forged.sealed_again()

            yield Case(f"{name}, {file} {key}: the last one removed", drop)


def _of_plans(name: str, victim: type, example: Any) -> Iterator[Case]:
    for what, edit in edits(example.forger.sealed):

        def make(folder: Path, *, edit=edit):
            forged = victim(folder)
            edit(forged.forger.sealed)
            return forged.sealed_again()

        yield Case(f"{name}, sealed_plan.json {what}", make)


def _of_files(name: str, victim: type, example: Any, run: Any) -> Iterator[Case]:
    run_dir = example.forger.folders[run]
    for file in ("experiment.json", "alphabet.json", "run.json"):
        for what, edit in edits(json.loads((run_dir / file).read_text())):

            def make(folder: Path, *, file=file, edit=edit):
                forged = victim(folder)

                def change(text: str) -> str:
                    content = json.loads(text)
                    edit(content)
                    return json.dumps(content)

                forged.forger.file(run, file, change)
                return forged.sealed_again()

            yield Case(f"{name}, {file} {what}", make)
    for file in ("config.gin", "operative_config.gin"):
        for number in range(len((run_dir / file).read_text().splitlines())):

            def make(folder: Path, *, file=file, number=number):
                forged = victim(folder)

                def change(text: str) -> str:
                    lines = text.splitlines()
                    del lines[number]
                    return "\n".join(lines) + "\n"

                forged.forger.file(run, file, change)
                return forged.sealed_again()

            line = (run_dir / file).read_text().splitlines()[number].strip()
            if line and not line.startswith("#"):
                yield Case(f"{name}, {file} {line[:50]}: removed", make)
    hypotheses = sorted((run_dir / "hypotheses").iterdir())[-1]
    for what, edit in edits(json.loads(hypotheses.read_text().splitlines()[0])):

        def make(folder: Path, *, edit=edit):
            forged = victim(folder)
            path = forged.forger.folders[run] / "hypotheses" / hypotheses.name
            first, *others = path.read_text().splitlines()
            content = json.loads(first)
            edit(content)
            path.write_text("\n".join([json.dumps(content), *others]) + "\n")
            return forged.sealed_again()

        yield Case(f"{name}, hypotheses {what}", make)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _link(path: Path) -> None:
    moved = path.rename(path.with_name(f"{path.name}.moved"))
    path.symlink_to(moved.name)


def _noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def _nested(path: Path) -> None:
    path.write_text('{"a":' * 100_000)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _gone(path: Path) -> None:
    path.unlink()


STRANGE = {
    "a pipe": _pipe,
    "a device": _endless,
    "a link": _link,
    "noise": _noise,
    "nested JSON": _nested,
    "empty": _empty,
    "removed": _gone,
}


def _of_strange_files(name: str, victim: type, example: Any) -> Iterator[Case]:
    kinds: dict[str, Path] = {}
    for path in sorted(example.folder.rglob("*")):
        if path.is_file():
            kinds.setdefault(re.sub(r"[\d.-]*(?=\.jsonl)", "", path.name), path)
    for path in kinds.values():
        place = path.relative_to(example.folder)
        for what, change in STRANGE.items():

            def make(folder: Path, *, place=place, change=change):
                forged = victim(folder)
                change(forged.folder / place)
                return forged.verified()

            yield Case(f"{name}, {place.name} is {what}", make)


def _of_submission() -> Iterator[Case]:
    for what, edit in edits(json.loads((RECORDS / "faster" / SUBMISSION_FILE).read_text())):

        def make(folder: Path, *, edit=edit):
            forged = Submission(folder)
            path = forged.folder / SUBMISSION_FILE
            content = json.loads(path.read_text())
            edit(content)
            path.write_text(json.dumps(content))
            return forged.verified()

        yield Case(f"submission, {SUBMISSION_FILE} {what}", make)
    for file in ("card.json", "card.md", "track.gin"):
        text = (RECORDS / "faster" / file).read_text()
        for number, line in enumerate(text.splitlines()):
            if not re.search(r"\d", line):
                continue

            def make(folder: Path, *, file=file, number=number):
                forged = Submission(folder)
                path = forged.folder / file
                lines = path.read_text().splitlines()
                lines[number] = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), lines[number])
                path.write_text("\n".join(lines) + "\n")
                return forged.sealed_again(study=False)

            yield Case(f"submission, {file} {line.strip()[:40]}: other digits", make)


# Judging.


def judged(case: Case) -> tuple[str, str]:
    """Returns what came of a case ("refused", "listed" or "bad"), and why."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            verify = case.make(Path(folder))
        except (ValueError, OSError, TypeError, KeyError, IndexError) as error:
            return "impossible", f"the forger can't: {error!r}"
        began = time.monotonic()
        signal.alarm(_LONGEST_S)
        try:
            failed = [check for check in verify() if check.passed is False]
        except UsageError as error:
            return "refused", str(error)
        except BaseException as error:  # noqa: BLE001 - also what is no Exception
            return "bad", f"verify raised {error!r} after {time.monotonic() - began:.0f} s"
        finally:
            signal.alarm(0)
    if failed:
        return "refused", failed[0].line
    words = [word for word, pattern in NOT_CHECKED.items() if re.search(pattern, case.name)]
    return ("listed", words[0]) if words else ("bad", "it is accepted and not listed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="take the cases whose names hold this")
    parser.add_argument("--every", type=int, default=1, help="take each N-th case")
    parser.add_argument("--show", action="store_true", help="print every case")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    chosen = [case for case in cases() if arguments.only in case.name][:: arguments.every]
    for case in chosen:
        outcome, why = judged(case)
        counts[outcome] += 1
        if outcome == "bad" or arguments.show:
            print(f"{outcome:<12}{case.name}: {why[:200]}", flush=True)
    print(f"{len(chosen)} forgeries: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    return int(counts["bad"] > 0)


if __name__ == "__main__":
    sys.exit(main())
