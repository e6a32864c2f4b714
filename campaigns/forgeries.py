"""Forgeries without end: each field of each file of a submission and of a study is changed.

``python -m campaigns.forgeries`` takes the submission and the study of
tests/data_records, changes one thing at a time, makes all hashes anew as
`tests.studies.forging` does, and asks ``tfasr verify``. Cards and verdicts are computed
anew too. It tries each 5th forgery of the study and each 20th of the submission, which
take longer: ``--every 1`` takes all (two hours). ``--only WORD`` takes the cases whose
names contain a word, ``--show`` prints every case.

A forgery is

- *refused* by a check whose line names what was changed: the run, the file or the
  field;
- refused for a *wrong reason*, if no failed check names it, or if the line shows an
  exception;
- *listed*, if it is accepted but belongs to what ``verify`` lists as not checked
  (`NOT_CHECKED`);
- *not noticed*, if it is accepted and not listed; also if verify raises or takes over a
  minute;
- *without effect*, if making the hashes anew undoes it, or they can't be made.

The last line counts. The exit status is 1 if there are wrong reasons or unnoticed
forgeries.
"""

import argparse
import functools
import hashlib
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.studies.forging import Forger, written
from tests.studies.races import RECORDS, unpack
from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError
from tfasr.ledger.declared import DECISION_FILE, SEALED_FILE, STARTS_FILE
from tfasr.ledger.events import chain_of
from tfasr.reports.write import CARD, CARD_JSON, report
from tfasr.studies.perform import decision, decision_text
from tfasr.studies.plan import PLAN_FILE, plan_of
from tfasr.studies.records import (
    STUDY_FILE,
    SUBMISSION_FILE,
    TRACK_FILE,
    load_track,
    stated_outcome,
    verify_submission,
)
from tfasr.studies.verify import verify_study
from tfasr.verifying.run import Check

_LONGEST_S = 60
_EXCEPTION = re.compile(r"a value is missing or of a wrong kind|Error\(")

# What `verify` lists as not checked: patterns of the cases' names, by the words of that
# list.
NOT_CHECKED = {
    "losses": r"train_step\.value\.loss|tracked_stats\.value\.loss",
    "frames and seconds of audio": r"train_step\.value\.(audio_s|frames|padded_frames)",
    "how a step's time divides into waiting, compiling and training": (
        r"train_step\.value\.(input_wait_s|compile_s|train_s): (smaller|0)|events\.jsonl traces"
    ),
    "speakers and scores of hypotheses": r"hypotheses (speaker|score)",
    "samples of load, except in records": r"study, host\.csv",
    "samples of energy, GPUs and workers": r"\b(energy|gpu)\.csv",
    "what run.json says of machine, software and features": r"run\.json ",
    "the name under which the model is registered": r"experiment\.json recogniser\.",
    "the optimizer's settings beyond its gin statements": (
        r"experiment\.json training\.optimizer|events\.jsonl opt_|operative_config\.gin"
    ),
    "facts that no result stands on": (
        r"\.jsonl \w+\.metadata\.(synced_bytes|pid|reason)|"
        r"events\.jsonl (parameters|instruction_set|missing_compiled_parts|hardware|lstm_kernel|"
        r"evaluation_placement|decode_work|shared_with_training|evaluated_weights|sentences_\w+|"
        r"checkpoint_\w+|swap_\w+|logging_\w+)"
    ),
    "times, within what two processes' clocks show (5 s plus 5 %)": (
        r"time_ms: one more|(mono_s|process_age_s): smaller"
    ),
    "threads and processor settings, except in records": (
        r"study, events\.jsonl conditions|conditions\.value\.load"
    ),
    "files that tfasr doesn't write, and logs": r"\.log is|notes\.txt",
    "titles, labels, parts of tables and published results to compare with": (
        r"sealed_plan\.json (study\.(title|published)|experiments\.\w+\.(label|part|published_))"
    ),
    "the presets and the version of tfasr that the plan names, beyond statements and code": (
        r"sealed_plan\.json (experiments\.\w+\.gin_files|code\.tfasr)|starts\.jsonl plan\.value\.ch"
    ),
    "final scores and beam widths": r"sealed_plan\.json study\.(final_|beam_widths)",
    "the newest lines of starts.jsonl, if they were cut off": r"starts\.jsonl end: the last",
    "what hosts of a cluster say of their machines": r"starts\.jsonl host\.value\.(desc|clock)",
    # Submissions and studies are kept without them.
    "checkpoints": r"events\.jsonl checkpoints",
}

Place = tuple[str | int, ...]
Change = Callable[[Any], None]  # changes a victim, or a JSON value


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
    others: dict[str, Any] = {"nested": [[{"a": [value]}]]}
    if isinstance(value, bool):
        others["turned round"] = not value
    elif isinstance(value, int):
        others["one more"] = value + 1
        others["negative"] = -abs(value) - 1
        others["huge"] = 10**30
        others["NaN"] = math.nan
    elif isinstance(value, float):
        others["smaller"] = value / 2 if value else -0.5
        others["huge"] = 1e300
        others["NaN"] = math.nan
        others["infinite"] = math.inf
    elif isinstance(value, str):
        others["other text"] = f"{value}x"
        others["escape codes"] = f"\x1b[2J{value}\nok          all: fine"
    else:
        others["a number"] = 1

    return others


def put(content: Any, place: Place, value: Any) -> None:
    for part in place[:-1]:
        content = content[part]
    content[place[-1]] = value


def removed(content: Any, place: Place) -> None:
    for part in place[:-1]:
        content = content[part]
    del content[place[-1]]


def reversed_list(content: Any, place: Place) -> None:
    for part in place:
        content = content[part]
    content.reverse()


def edits(content: Any) -> Iterator[tuple[str, Place, Change]]:
    """Yields changes of a JSON value with their names and places: each kind of place once."""
    seen = set()
    for place, value in leaves(content):
        if shown(place) in seen or not place:
            continue
        seen.add(shown(place))
        for what, other in changed(value).items():
            change = functools.partial(put, place=place, value=other)
            yield f"{shown(place)}: {what}", place, change

        if isinstance(place[-1], str):
            change = functools.partial(removed, place=place)
            yield f"{shown(place)}: removed", place, change
        elif place[-1] == 0:
            change = functools.partial(reversed_list, place=place[:-1])
            yield f"{shown(place[:-1])}: reversed", place, change


# Victims.


class Victim:
    """Copies of a study, and of its submission if it has one, in a folder to forge in."""

    name: str
    study: Path
    forger: Forger

    @property
    def folder(self) -> Path:  # what is verified
        return self.study

    @property
    def run(self) -> tuple[str, int]:
        """The run that is forged: the last one."""
        return list(self.forger.folders)[-1]

    @property
    def run_dir(self) -> Path:
        return self.forger.folders[self.run]

    def write(self, late: Change | None = None) -> None:
        """Writes everything with new hashes; ``late`` changes the list of starts after
        that.
        """
        self.forger.write()
        if late is not None:
            late(self.forger.list)
            (self.study / STARTS_FILE).write_bytes(written(self.forger.list))

    def content(self) -> str:
        """Returns a hash of everything in the folder, to see whether a change had an
        effect.
        """
        digest = hashlib.sha256()
        for path in sorted(self.study.parent.rglob("*")):
            digest.update(str(path.relative_to(self.study.parent)).encode())
            if path.is_file() and path.name not in (STUDY_FILE, SUBMISSION_FILE):
                digest.update(path.read_bytes())

        return digest.hexdigest()

    def checks(self) -> Iterator[Check]:
        raise NotImplementedError


class Study(Victim):
    name = "study"

    def __init__(self, folder: Path):
        self.study = unpack(RECORDS / "studies" / "plain.tar.xz", folder / "study")
        self.forger = Forger(self.study)

    def checks(self) -> Iterator[Check]:
        return verify_study(self.study)


class Submission(Victim):
    name = "submission"

    def __init__(self, folder: Path):
        self._folder = Path(shutil.copytree(RECORDS / "faster", folder / "submission"))
        self.study = unpack(self._folder / STUDY_FILE, folder / "study")
        self.forger = Forger(self.study)

    @property
    def folder(self) -> Path:
        return self._folder

    def write(self, late: Change | None = None) -> None:
        super().write(late)
        stated = json.loads((self.folder / SUBMISSION_FILE).read_text())
        # A study that is too badly damaged to be read has no other verdict.
        with suppress(UsageError, LookupError, TypeError, ValueError, AttributeError):
            plan = plan_of(self.forger.sealed)
            decided = decision_text(plan, decision(plan, self.study))
            (self.study / DECISION_FILE).write_text(f"{decided}\n")
            stated |= stated_outcome(
                plan, self.study, load_track(stated["track"], RECORDS)
            )
            for file, kind in (("card.md", CARD), ("card.json", CARD_JSON)):
                (self.folder / file).write_text(
                    report([self.study], output_format=kind)
                )

        stated["study"] = chain_of(self.study / STARTS_FILE)[-1]
        with tarfile.open(
            self.folder / STUDY_FILE, "w:xz", preset=0, format=tarfile.USTAR_FORMAT
        ) as archive:
            for path in sorted(self.study.rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(self.study).as_posix())

        self.state(stated)

    def state(self, stated: dict[str, Any]) -> None:
        """Writes submission.json with the hashes of the files as they are now."""
        paths = (
            path for path in self.folder.rglob("*") if path.name != SUBMISSION_FILE
        )
        stated["files"] = {
            path.relative_to(self.folder).as_posix(): file_sha256(path)
            for path in paths
        }
        (self.folder / SUBMISSION_FILE).write_text(json.dumps(stated))

    def checks(self) -> Iterator[Check]:
        return verify_submission(self.folder, None, RECORDS)


# Forgeries.


@dataclass(frozen=True)
class Case:
    name: str  # the victim, the file and the place in it, and the change
    victim: type[Victim]
    make: Callable[[Victim], None]  # forges everything, hashes included
    reason: str  # a pattern that the line of a failed check must have


def cases() -> Iterator[Case]:
    for victim in (Study, Submission):
        with tempfile.TemporaryDirectory() as folder:
            example = victim(Path(folder))
            yield from _of_ledger(example)
            yield from _of_starts(example)
            yield from _of_plan(example)
            yield from _of_files(example)
            yield from _of_exchanged_files(example)
            yield from _of_strange_files(example)

    yield from _of_submission()


def _made(change: Change, victim: Victim) -> None:
    change(victim)
    victim.write()


def _of_ledger(example: Victim) -> Iterator[Case]:
    reason = "{} seed {}".format(*example.run)
    last = {event["key"]: number for number, event in enumerate(_ledger(example))}
    for key, number in last.items():
        content = {
            part: value
            for part, value in _ledger(example)[number].items()
            if part != "key"
        }
        for what, place, edit in edits(content):
            make = functools.partial(
                _made, functools.partial(_edit_event, number, edit)
            )
            fields = (
                part for part in place if isinstance(part, str) and part != "value"
            )
            named = "|".join([reason, *map(re.escape, fields)])
            yield Case(
                f"{example.name}, events.jsonl {key}.{what}", type(example), make, named
            )

        for what, change in (
            ("removed", _drop),
            ("doubled", _double),
            ("moved", _move),
        ):
            make = functools.partial(_made, functools.partial(change, number))
            name = f"{example.name}, events.jsonl {key}: the last one {what}"
            yield Case(name, type(example), make, reason)

    for what, shift_s in (("an hour later", 3600), ("an hour earlier", -3600)):
        make = functools.partial(_made, functools.partial(_shift, shift_s))
        yield Case(
            f"{example.name}, events.jsonl all times: {what}",
            type(example),
            make,
            reason,
        )


def _ledger(victim: Victim) -> list[dict[str, Any]]:
    return victim.forger.ledgers[victim.run]


def _edit_event(number: int, edit: Change, victim: Victim) -> None:
    edit(_ledger(victim)[number])


def _drop(number: int, victim: Victim) -> None:
    del _ledger(victim)[number]


def _double(number: int, victim: Victim) -> None:
    _ledger(victim).insert(number, json.loads(json.dumps(_ledger(victim)[number])))


def _move(number: int, victim: Victim) -> None:
    _ledger(victim).insert(max(1, number - 3), _ledger(victim).pop(number))


def _shift(seconds: float, victim: Victim) -> None:
    for event in _ledger(victim):
        event["time_ms"] += 1000 * seconds
        event["metadata"]["mono_s"] += seconds


def _of_starts(example: Victim) -> Iterator[Case]:
    reason = rf"starts\.jsonl|plan: |times: |{example.run[0]} seed"
    last = {event["key"]: number for number, event in enumerate(example.forger.list)}
    for key, number in last.items():
        content = {n: v for n, v in example.forger.list[number].items() if n != "key"}
        for what, place, edit in edits(content):
            name = f"{example.name}, starts.jsonl {key}.{what}"
            make = functools.partial(
                _edit_start, number, edit, place[:2] == ("value", "ledger")
            )
            yield Case(name, type(example), make, reason)

        name = f"{example.name}, starts.jsonl {key}: the last one removed"
        yield Case(name, type(example), functools.partial(_drop_start, number), reason)


def _edit_start(number: int, edit: Change, late: bool, victim: Victim) -> None:
    if late:
        victim.write(late=lambda events: edit(events[number]))
        return

    edit(victim.forger.list[number])
    victim.write()


def _drop_start(number: int, victim: Victim) -> None:
    del victim.forger.list[number]
    victim.write()


def _of_plan(example: Victim) -> Iterator[Case]:
    reason = "plan|rules: |seeds: |verdict: |declared|against: "
    for what, _, edit in edits(example.forger.sealed):
        make = functools.partial(_made, functools.partial(_edit_plan, edit))
        yield Case(f"{example.name}, {SEALED_FILE} {what}", type(example), make, reason)


def _edit_plan(edit: Change, victim: Victim) -> None:
    edit(victim.forger.sealed)


def _of_files(example: Victim) -> Iterator[Case]:
    reason = "{} seed {}".format(*example.run)
    for file in ("experiment.json", "alphabet.json", "run.json"):
        for what, place, edit in edits(
            json.loads((example.run_dir / file).read_text())
        ):
            change = functools.partial(
                _edit_file, file, functools.partial(_edited, edit)
            )
            make = functools.partial(_made, change)
            fields = (part for part in place if isinstance(part, str))
            named = "|".join([reason, *map(re.escape, fields)])
            yield Case(f"{example.name}, {file} {what}", type(example), make, named)

        change = functools.partial(_edit_file, file, _doubled_key)
        make = functools.partial(_made, change)
        yield Case(f"{example.name}, {file} a key twice", type(example), make, reason)

    for file in ("config.gin", "operative_config.gin"):
        for number, line in enumerate(
            (example.run_dir / file).read_text().splitlines()
        ):
            if line.strip() and not line.startswith("#"):
                change = functools.partial(
                    _edit_file, file, functools.partial(_without, number)
                )
                name = f"{example.name}, {file} {line.strip()[:50]}: removed"
                yield Case(
                    name, type(example), functools.partial(_made, change), reason
                )

    hypotheses = sorted((example.run_dir / "hypotheses").iterdir())[-1]
    first = hypotheses.read_text().splitlines()[0]
    for what, _, edit in edits(json.loads(first)):
        make = functools.partial(
            _made, functools.partial(_edit_row, hypotheses.name, edit)
        )
        yield Case(f"{example.name}, hypotheses {what}", type(example), make, reason)


def _edit_file(file: str, change: Callable[[str], str], victim: Victim) -> None:
    victim.forger.file(victim.run, file, change)


def _edited(edit: Change, text: str) -> str:
    content = json.loads(text)
    edit(content)
    return json.dumps(content)


def _doubled_key(text: str) -> str:
    name, value = next(iter(json.loads(text).items()))
    return f"{text.rstrip()[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"


def _without(number: int, text: str) -> str:
    lines = text.splitlines()
    del lines[number]
    return "\n".join(lines) + "\n"


def _edit_row(file: str, edit: Change, victim: Victim) -> None:
    path = victim.run_dir / "hypotheses" / file
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([_edited(edit, first), *others]) + "\n")


def _of_exchanged_files(example: Victim) -> Iterator[Case]:
    """Yields forgeries that give a run files of another run, with their hashes in its
    ledger.
    """
    for file in ("experiment.json", "config.gin", "operative_config.gin", "hypotheses"):
        make = functools.partial(_made, functools.partial(_take, file))
        reason = "{} seed {}".format(*example.run)
        name = f"{example.name}, {file} is that of the first run"
        yield Case(name, type(example), make, reason)

    make = functools.partial(_made, _take_ledger)
    name = f"{example.name}, events.jsonl is that of the first run"
    yield Case(name, type(example), make, "{} seed {}".format(*example.run))


def _take(file: str, victim: Victim) -> None:
    other = next(iter(victim.forger.folders.values())) / file
    if other.is_dir():
        shutil.copytree(other, victim.run_dir / file, dirs_exist_ok=True)
        return

    victim.forger.file(victim.run, file, lambda text: other.read_text())


def _take_ledger(victim: Victim) -> None:
    own = _ledger(victim)
    first = next(iter(victim.forger.ledgers.values()))
    own[1:] = json.loads(json.dumps(first[1:]))


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


def _list(path: Path) -> None:
    path.write_text("[]")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


STRANGE: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a device": _endless,
    "a link": _link,
    "noise": _noise,
    "nested JSON": _nested,
    "a list": _list,
    "empty": _empty,
    "a terabyte": _sparse,
    "a folder": _folder,
    "removed": Path.unlink,
}


def _of_strange_files(example: Victim) -> Iterator[Case]:
    kinds: dict[str, Path] = {}
    for path in sorted(example.folder.rglob("*")):
        if path.is_file():
            kinds.setdefault(re.sub(r"[\d.-]*(?=\.jsonl)", "", path.name), path)

    for path in kinds.values():
        place = path.relative_to(example.folder)
        for what, change in STRANGE.items():
            make = functools.partial(_put_strange, place, change)
            reason = re.escape(place.stem.rstrip("0123456789"))
            if place.parts[0] == "runs":  # readers that want several files name the run
                reason += f"|{place.parts[1]} seed"
            elif place.name in (PLAN_FILE, SEALED_FILE):
                reason += "|plan: "

            yield Case(
                f"{example.name}, {place.name} is {what}", type(example), make, reason
            )


def _put_strange(place: Path, change: Callable[[Path], None], victim: Victim) -> None:
    change(victim.folder / place)


def _of_submission() -> Iterator[Case]:
    for what, place, edit in edits(
        json.loads((RECORDS / "faster" / SUBMISSION_FILE).read_text())
    ):
        make = functools.partial(_edit_submission, edit)
        reason = f"{re.escape(str(place[0]))}|against|track"
        yield Case(f"submission, {SUBMISSION_FILE} {what}", Submission, make, reason)

    for file in ("card.json", "card.md", TRACK_FILE):
        lines = (RECORDS / "faster" / file).read_text().splitlines()
        for number, line in enumerate(lines):
            if re.search(r"\d", line):
                make = functools.partial(_other_digits, file, number)
                name = f"submission, {file} {line.strip()[:40]}: other digits"
                yield Case(name, Submission, make, re.escape(file))


def _edit_submission(edit: Change, victim: Victim) -> None:
    path = victim.folder / SUBMISSION_FILE
    path.write_text(_edited(edit, path.read_text()))


def _other_digits(file: str, number: int, victim: Submission) -> None:
    path = victim.folder / file
    lines = path.read_text().splitlines()
    lines[number] = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), lines[number])
    path.write_text("\n".join(lines) + "\n")
    victim.state(json.loads((victim.folder / SUBMISSION_FILE).read_text()))


# Judging.

REFUSED = "refused"
WRONG = "wrong reason"
LISTED = "listed"
UNNOTICED = "not noticed"
WITHOUT_EFFECT = "without effect"


@functools.cache
def _sealed_alone(victim: type[Victim]) -> str:
    """Returns the content of a victim in which nothing but the hashes was made anew."""
    with tempfile.TemporaryDirectory() as folder:
        honest = victim(Path(folder))
        honest.write()
        return honest.content()


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {_LONGEST_S} s")


def signal_limits() -> Any:
    """Makes `judged` end what takes too long; returns the signal's handler before."""
    return signal.signal(signal.SIGALRM, _too_long)


def judged(case: Case) -> tuple[str, str]:
    """Returns what came of a forgery, and why."""
    with tempfile.TemporaryDirectory() as folder:
        victim = case.victim(Path(folder))
        try:
            case.make(victim)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return WITHOUT_EFFECT, f"the forger can't make the hashes anew: {error!r}"

        if not case.name.startswith(f"submission, {SUBMISSION_FILE}"):
            # These could be a terabyte; each has an effect.
            strange = " is " in case.name
            if not strange and victim.content() == _sealed_alone(case.victim):
                return WITHOUT_EFFECT, "the new hashes undo it"

        began = time.monotonic()
        signal.alarm(_LONGEST_S)
        try:
            failed = [check.line for check in victim.checks() if check.passed is False]
        except UsageError as error:
            failed = [str(error)]
        except BaseException as error:  # noqa: BLE001 - also what is no Exception
            seconds = time.monotonic() - began
            return UNNOTICED, f"verify raised {error!r} after {seconds:.0f} s"
        finally:
            signal.alarm(0)

    return _outcome(case, failed)


def _outcome(case: Case, failed: Sequence[str]) -> tuple[str, str]:
    right = [line for line in failed if re.search(case.reason, line)]
    clear = [line for line in right if not _EXCEPTION.search(line)]
    if clear:
        return REFUSED, clear[0]
    if failed:
        return WRONG, failed[0]
    for words, pattern in NOT_CHECKED.items():
        if re.search(pattern, case.name):
            return LISTED, words

    return UNNOTICED, "it is accepted and not listed"


def chosen_cases(only: str = "", every: int = 5) -> list[Case]:
    """Returns each N-th forgery of the study, and each 4 N-th of the submission; all for 1."""
    found = [case for case in cases() if only in case.name]
    of_study = [case for case in found if case.victim is Study]
    of_submission = [case for case in found if case.victim is Submission]
    return of_study[::every] + of_submission[:: 4 * every if every > 1 else 1]


def main() -> int:
    signal_limits()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="take the cases whose names contain this"
    )
    parser.add_argument(
        "--every", type=int, default=5, help="take each N-th case, 1 for all"
    )
    parser.add_argument("--show", action="store_true", help="print every case")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    chosen = chosen_cases(arguments.only, arguments.every)
    for case in chosen:
        outcome, why = judged(case)
        counts[outcome] += 1
        if outcome in (WRONG, UNNOTICED) or arguments.show:
            print(f"{outcome:<16}{case.name}: {why[:300]}", flush=True)

    print(
        f"{len(chosen)} forgeries: "
        + ", ".join(f"{n} {what}" for what, n in counts.items())
    )
    return int(counts[WRONG] + counts[UNNOTICED] > 0)


if __name__ == "__main__":
    sys.exit(main())
