"""Do the tests notice? Small wrong changes of the library, each beside the tests of its room.

    make mutants                                          # or:
    python campaigns/mutation.py [--count 400] [--seed 12] [--only tfasr/tta] [--again]

A copy of the project is made under ``build/mutation``. There the tests of each room run once, and
are watched for the lines that each executes. Then a seeded random sample of all mutants is taken
(`campaigns/mutants.py`: comparisons, arithmetic, constants, branches), and each is put to the tests
that execute its line, in a process forked with everything but tfasr imported. A mutant is killed
where a test fails, where the module cannot be imported, and where the tests take ten times as long.
What became of each is kept, so that a run that was stopped goes on; ``--again`` puts the survivors
to the tests anew. Hypothesis draws the same examples every time.

Survivors that no test could tell from the original stand with the reason in
``campaigns/equivalent_mutants.json``: ``{"file", "before", "after", "within", "why"}``, where
``within`` is part of the line.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mutants import Mutant, mutants_of, mutated

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")

ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tta": (("tfasr/tta/**/*.py",),
            ("tests/tta", "tests/reports/test_winners.py", "tests/reports/test_tables.py")),
    "ledger": (("tfasr/ledger/events.py",), ("tests/ledger/test_events.py", "tests/tta")),
    "scoring": (("tfasr/scoring/*.py", "tfasr/scoring/errors.py"),
                ("tests/scoring", "tests/scoring/test_errors.py")),
    "decoding": (("tfasr/decoding/*.py",), ("tests/decoding",)),
    "checkpoint": (("tfasr/training/checkpoint.py",),
                   ("tests/training/test_checkpoint.py",
                    "tests/reliability/test_durable.py")),
}  # fmt: skip
"""Rooms by name: whose mutants, and the tests that have to notice them."""

_PLAIN = ("numpy", "scipy.stats", "hypothesis", "pytest", "orjson", "rich.console", "jiwer")
_PRELOADED = {"decoding": ("tensorflow", "keras"), "checkpoint": ("tensorflow", "keras", "gin")}
# It imports a benchmark that is called like the library which watches the tests.
_LEFT_OUT = "tests/tta/test_comparison.py::test_the_simulation_errs_rarely_and_saves_seeds"
_SLACK, _SLACK_S = 10, 20.0
_MOST_BYTES = 12 * 2**30


def main() -> None:
    """Runs the campaign and prints what survived."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=400, help="default: %(default)s; 0: all")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--only", default="", help="what a module's path must contain")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--again", action="store_true", help="put survivors to the tests anew")
    parser.add_argument("--seconds", type=float, default=1e9, help="go on another time after them")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run found")
    arguments = parser.parse_args()
    if arguments.fresh and arguments.work.exists():
        shutil.rmtree(arguments.work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    tree = copy_of_project(arguments.work / "tree")
    prepare_process(tree)
    chosen = sample(arguments.count, arguments.seed, arguments.only)
    results = Results(arguments.work / "results.jsonl", again=arguments.again)
    ends = time.monotonic() + arguments.seconds
    for room in ROOMS:
        waiting = [one for one in chosen if one[0] == room and not results.known(one[1])]
        if not waiting:
            continue
        for name in (*_PLAIN, *_PRELOADED.get(room, ())):
            __import__(name)
        tests = watched(room, tree, arguments.work)
        for _, mutant in waiting:
            if time.monotonic() > ends:
                raise SystemExit("More are waiting: run the same again.")
            fate, seconds, ran = fate_of(mutant, tests, tree, arguments.work)
            results.add(mutant, fate, seconds, ran)
            say(f"{fate:9} {seconds:5.1f} s {ran:4} tests  {shown(mutant)}")
    print(summary([mutant for _, mutant in chosen], results))


def copy_of_project(tree: Path) -> Path:
    """Brings a copy of the project's files, its compiled parts among them, up to date."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    compiled = [str(path.relative_to(ROOT)) for path in ROOT.glob("tfasr/*/*.so")]
    wanted = {name for name in (*listed.splitlines(), *compiled) if (ROOT / name).is_file()}
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    for name in sorted(there - wanted):
        if "__pycache__" not in name:
            (tree / name).unlink()
    for name in sorted(wanted):
        old, new = ROOT / name, tree / name
        if not new.is_file() or new.read_bytes() != old.read_bytes():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
    return tree


def prepare_process(tree: Path) -> None:
    """Makes this process and those it forks import the copy, also in processes of their own."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ["KERAS_BACKEND"] = "tensorflow"


def sample(count: int, seed: int, only: str) -> list[tuple[str, Mutant]]:
    """Returns a random sample of all mutants with their rooms, in the order of the text."""
    found = [
        (room, mutant)
        for room, (patterns, _) in ROOMS.items()
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        for mutant in mutants_of(ROOT, str(path.relative_to(ROOT)))
    ]
    found = [one for one in found if only in one[1].file]
    if not count or count >= len(found):
        return found
    places = random.Random(seed).sample(range(len(found)), count)
    return [found[place] for place in sorted(places)]


class Results:
    """What became of each mutant, in a file to which a line is added for each."""

    def __init__(self, path: Path, again: bool):
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.is_file() else []:
            one = json.loads(line)
            self._found[one["id"]] = one
        self._again = {i for i, one in self._found.items() if again and one["fate"] == "survived"}

    def known(self, mutant: Mutant) -> bool:
        """Whether a mutant needs no more tests."""
        return _id(mutant) in self._found and _id(mutant) not in self._again

    def add(self, mutant: Mutant, fate: str, seconds: float, tests: int) -> None:
        """Books what became of a mutant."""
        one = {"id": _id(mutant), "fate": fate, "seconds": round(seconds, 2), "tests": tests}
        self._found[one["id"]] = one
        with self._path.open("a") as file:
            file.write(json.dumps(one) + "\n")

    def fate(self, mutant: Mutant) -> str:
        """Returns "killed", "timeout" or "survived"."""
        return self._found[_id(mutant)]["fate"]


def _id(mutant: Mutant) -> str:
    line = (ROOT / mutant.file).read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip()
    return f"{mutant.file}: {line} [{mutant.before} -> {mutant.after}] {mutant.number}"


def watched(room: str, tree: Path, work: Path) -> dict[str, Any]:
    """Returns a room's tests: how long each takes, and which execute each line of each file."""
    path = work / f"tests-{room}.json"
    stamp = _stamp(tree)
    if path.is_file() and (found := json.loads(path.read_text()))["stamp"] == stamp:
        return found
    say(f"watching the tests of {room}")
    status, output = forked(lambda: _watch(room, path, stamp), work, limit_s=1800)
    if status != 0:
        raise SystemExit(f"The tests of {room} must pass before they are put to a test:\n{output}")
    return json.loads(path.read_text())


def _stamp(tree: Path) -> float:
    """Returns when a file of the copy was last changed."""
    return max(p.stat().st_mtime for p in tree.rglob("*.py"))


def _watch(room: str, path: Path, stamp: float) -> int:
    import coverage
    import pytest

    seen = coverage.Coverage(data_file=None, include=[str(Path.cwd() / "tfasr" / "*")])
    took: dict[str, float] = {}

    class Watcher:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_setup(self, item):
            # What a shared fixture does, it does for all tests of the file.
            seen.switch_context(f"file {item.nodeid.split('::')[0]}")
            return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(self, item):
            seen.switch_context(f"test {item.nodeid}")
            began = time.perf_counter()
            try:
                return (yield)
            finally:
                took[item.nodeid] = time.perf_counter() - began
                seen.switch_context("")

    seen.start()
    status = _pytest(ROOMS[room][1], path.parent, Watcher())
    seen.stop()
    data = seen.get_data()
    lines: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        own = data.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(Path.cwd()))] = {
            line: sorted(context for context in contexts if context)
            for line, contexts in own.items()
        }
    path.write_text(json.dumps({"stamp": stamp, "took": took, "lines": lines}))
    return status


def _pytest(tests: Sequence[str], work: Path, *plugins: object) -> int:
    import pytest
    from hypothesis import settings

    settings.register_profile("mutation", derandomize=True, database=None)
    settings.load_profile("mutation")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is there already
    options += ["--deselect", _LEFT_OUT]
    options += ["--basetemp", str(work / "tmp"), "--rootdir", str(Path.cwd())]
    there = [test for test in tests if Path(test.split("::")[0]).exists()]
    return int(pytest.main([*options, *there], plugins=list(plugins)))


def fate_of(
    mutant: Mutant, tests: dict[str, Any], tree: Path, work: Path
) -> tuple[str, float, int]:
    """Returns what became of a mutant, after how many seconds, and how many tests were chosen."""
    chosen, took_s = tests_for(mutant, tests)
    if not chosen:
        return "survived", 0.0, 0
    file = tree / mutant.file
    original = file.read_bytes()
    for stale in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        stale.unlink()
    began = time.perf_counter()
    try:
        file.write_text(mutated(tree, mutant), encoding="utf-8")
        status, _ = forked(lambda: _put_to(chosen, work), work, _SLACK_S + _SLACK * took_s)
    finally:
        file.write_bytes(original)
        shutil.copystat(ROOT / mutant.file, file)
    fate = "timeout" if status is None else "survived" if status == 0 else "killed"
    return fate, time.perf_counter() - began, len(chosen)


def _put_to(chosen: Sequence[str], work: Path) -> int:
    sys.dont_write_bytecode = True  # a stale module would outlive its mutant
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return _pytest(chosen, work)


def tests_for(mutant: Mutant, tests: dict[str, Any]) -> tuple[list[str], float]:
    """Returns the tests that execute a mutant's statement, quick ones first, and their seconds.

    What is executed when the module is imported is put to all tests of the room.
    """
    lines = tests["lines"].get(mutant.file, {})
    first, last = mutant.lines
    own = [lines[str(line)] for line in range(first, last + 1) if str(line) in lines]
    contexts = {context for of_line in own for context in of_line}
    if own and not contexts:
        files = {test.split("::")[0] for test in tests["took"]}
        contexts = {f"file {file}" for file in files}
    files = {one.removeprefix("file ") for one in contexts if one.startswith("file ")}
    chosen = [
        test for test in tests["took"] if f"test {test}" in contexts or test.split("::")[0] in files
    ]
    chosen.sort(key=lambda test: (f"test {test}" not in contexts, tests["took"][test]))
    return chosen, sum(tests["took"][test] for test in chosen)


def forked(work_of: Callable[[], int], work: Path, limit_s: float) -> tuple[int | None, str]:
    """Returns the exit status and the output of a forked process; None where it took too long."""
    log = work / "output.txt"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setsid()
            # Not the address space: the renderer of figures reserves more than any machine has.
            resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            status = work_of()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    ends, ended = time.monotonic() + limit_s, None
    try:
        while ended is None and time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            ended = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.01)
    finally:
        _end_group(child)
        if ended is None:
            os.waitpid(child, 0)
    return ended, log.read_text(errors="replace")


def _end_group(leader: int) -> None:
    """Ends what a forked process has started."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def summary(chosen: Sequence[Mutant], results: Results) -> str:
    """Returns the campaign's figures: a line for each module, and the survivors."""
    known = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.is_file() else []
    survivors = [one for one in chosen if results.fate(one) == "survived"]
    excused = [one for one in survivors if any(_is(one, entry) for entry in known)]
    lines = [
        "",
        "| module | mutants | killed | equivalent | survived |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in [*sorted({one.file for one in chosen}), ""]:
        own = [one for one in chosen if not name or one.file == name]
        left = [one for one in survivors if not name or one.file == name]
        same = [one for one in excused if not name or one.file == name]
        counts = (len(own), len(own) - len(left), len(same), len(left) - len(same))
        lines.append(f"| {name or 'all'} | {' | '.join(map(str, counts))} |")
    slow = sum(results.fate(one) == "timeout" for one in chosen)
    killed = len(chosen) - len(survivors)
    lines.append(f"\n{100 * killed / len(chosen):.1f} % killed ({slow} of them by the clock)")
    lines += [f"survived: {shown(one)}" for one in survivors if one not in excused]
    return "\n".join(lines)


def _is(mutant: Mutant, entry: dict[str, str]) -> bool:
    return (
        (mutant.file, mutant.before, mutant.after)
        == (entry["file"], entry["before"], entry["after"])
    ) and entry.get("within", "") in _id(mutant)


def shown(mutant: Mutant) -> str:
    """Returns a mutant in a line."""
    return f"{mutant.file}:{mutant.line} {mutant.before} -> {mutant.after}"


def say(line: str) -> None:
    """Tells how far the campaign is."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
