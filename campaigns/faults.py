"""Full, read-only, broken and slow disks, clocks that jump, and little memory.

``python -m campaigns.faults --seed 1 --points 60`` lets the writes of a small training,
preparation and evaluation fail, for each kind of error once at every place in the code
that changes a file, and at so many of its other changes: each time, the command must
end with a line, no traceback and a documented status, what was finished must be kept,
and the next start must come to what an undisturbed one comes to. Then the same with
each change of a file delayed, with a wall clock that jumps by hours, and with less and
less address space.
"""

import argparse
import errno
import functools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from campaigns.children import Ended, load, run_forked, told
from campaigns.compare import differing, faults_after_a_kill, faults_of_run, snapshot
from campaigns.operations import Counter, FailAt, KillAt, Observer, Operation, observed
from campaigns.small_work import CONFIGURATIONS, SmallWork
from tfasr.kit.files import PARTIAL_SUFFIX

_WRITING = frozenset({"create", "write", "mkdir", "rename", "link"})
_ALL = _WRITING | {"truncate", "sync", "unlink", "rmdir"}
# Which changes each error comes from, and whether it lasts.
ERRORS = {
    "ENOSPC": (errno.ENOSPC, _WRITING, True),
    "EDQUOT": (errno.EDQUOT, _WRITING, True),
    "EROFS": (errno.EROFS, _ALL - {"sync"}, True),
    "EIO": (errno.EIO, frozenset({"write", "sync"}), False),
    "EIO, lasting": (errno.EIO, _ALL, True),
}
_PROGRESS = f"progress.json{PARTIAL_SUFFIX}"
_SAMPLES = ("cpu.csv", "gpu.csv", "energy.csv", "host.csv")
_STATUSES = {0, 1, 2}
_CONFIGURATION = CONFIGURATIONS[1]


class Slow(Observer):
    """A disk that takes its time over each change."""

    def __init__(self, seconds: float):
        self._seconds = seconds

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Waits, then makes the operation."""
        time.sleep(self._seconds)
        return perform()


class JumpAt(Counter):
    """A wall clock that jumps at an operation, for this process and the times of its files.

    Args:
        number: of the operation, from 1.
        hours: how far; negative for back.
        then: what meets all operations, such as a kill.
    """

    def __init__(self, number: int, hours: float, then: Observer):
        super().__init__()
        self._number = number
        self._jump_s = 3600 * hours
        self._then = then
        self.offset_s = 0.0
        real_time = time.time
        real_utime = os.utime
        time.time = lambda: real_time() + self.offset_s

        def utime(path: Any, times: Any = None, **options: Any) -> None:
            now = real_time() + self.offset_s
            real_utime(path, (now, now) if times is None else times, **options)

        os.utime = utime

    def meet(self, operation: Operation, perform: Callable[..., Any]) -> Any:
        """Jumps when it is time, and passes the operation on."""
        self.count += 1
        if self.count == self._number:
            self.offset_s = self._jump_s
        result = self._then.meet(operation, perform)
        if operation.kind == "create":
            os.utime(operation.path)
        return result


class Faults:
    """One campaign.

    Args:
        folder: gets the work.
        seed: decides the places.
        points: for each kind of error and command, how many changes fail besides the
            first of every place in the code.
    """

    def __init__(self, folder: Path, seed: int, points: int):
        self.folder = folder
        self.points = points
        self.chance = random.Random(seed)
        self.faults: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.work = SmallWork(folder)
        self._messages = folder / "messages.txt"
        self._place = folder / "now"
        self.reference = folder / "reference"

    def make_reference(self) -> None:
        """Does each work once without a fault."""
        self.work.write()
        self._must(self.work.prepare(self.work.shards))
        self._must(self.work.train(_CONFIGURATION, self.reference))
        self._must(self.work.evaluate(self.reference, self.folder / "hypotheses.jsonl"))

    def _must(self, words: list[object]) -> None:
        ended = run_forked(words, self._messages)
        if ended.status:
            sys.exit(f"Without a fault this must succeed: {words}\n{ended.output}")

    def words(self, command: str) -> list[object]:
        """Returns a command's words, for its own folder."""
        if command == "train":
            return self.work.train(_CONFIGURATION, self._place / "run", "--resume")
        if command == "prepare":
            return self.work.prepare(self._place / "shards")
        return self.work.evaluate(self.reference, self._place / "hypotheses.jsonl")

    def wrong_at_end(self, command: str) -> list[str]:
        """Returns what is wrong with what a command has come to."""
        place = self._place
        if command == "train":
            every = _CONFIGURATION.checkpoint_every_steps
            return faults_of_run(place / "run", self.reference, None, every)

        if command == "prepare":
            return differing(snapshot(place / "shards"), snapshot(self.work.shards))
        wanted = {"hypotheses.jsonl": snapshot(self.folder)["hypotheses.jsonl"]}
        return differing(snapshot(place), wanted)

    def clean(self) -> None:
        """Makes the place of the next case."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()

    def say(self, case: str, found: list[str]) -> None:
        """Notes what was wrong in a case."""
        for fault in found:
            self.faults.append(f"{case}: {fault}")
            print(f"VIOLATION {case}: {fault}", flush=True)

    def _failing(self, name: str) -> Callable[[int], FailAt]:
        code, kinds, lasting = ERRORS[name]
        return functools.partial(
            FailAt, code=code, kinds=kinds, lasting=lasting, below=str(self._place)
        )

    def errors(self, command: str, name: str) -> dict[str, Any]:
        """Lets a command's changes fail: the first of every place in the code, and some
        more.
        """
        self.clean()
        none = self._failing(name)(1 << 30)
        tell, read = told(self.folder)
        run_forked(
            self.words(command),
            self._messages,
            prepare=lambda: observed(none),
            finish=lambda: tell((none.count, list(none.firsts.values()))),
        )
        count, firsts = read()
        if not count:
            sys.exit(f"{command}: no change of a file was seen, so none can fail.")
        others = sorted(set(range(1, count + 1)) - set(firsts))
        more = self.chance.sample(others, min(len(others), self.points))
        return self.errors_at(command, name, sorted([*firsts, *more])) | {
            "changes": count
        }

    def errors_at(
        self, command: str, name: str, numbers: Sequence[int]
    ) -> dict[str, Any]:
        """Lets a command's changes fail, at the places with these numbers."""
        make = self._failing(name)
        statuses: dict[str, int] = {}
        for number in numbers:
            self.clean()
            observer = make(number)
            tell, read = told(self.folder)
            ended = run_forked(
                self.words(command),
                self._messages,
                prepare=lambda seen=observer: observed(seen),
                finish=lambda seen=observer, tell=tell: tell(seen.failed),
            )
            case = f"{command}, {name} at {number} ({read()})"
            statuses[str(ended.status)] = statuses.get(str(ended.status), 0) + 1
            self.say(case, self._wrong_end(command, ended))
            # Samples whose file fails are given up with a warning, and the run goes on.
            given_up = [
                name for name in _SAMPLES if not ended.status and name in ended.output
            ]
            allowed = {f"missing file {name}" for name in given_up}
            if _PROGRESS in case and "unlink" in ERRORS[name][1]:
                # Only for watching: half of the run's last write stays if it can't be
                # removed.
                allowed.add(f"stray file {_PROGRESS}")

            self.say(case, self._gone_on(command, allowed))

        return {
            "command": command,
            "fault": name,
            "places": len(numbers),
            "statuses": statuses,
        }

    def _wrong_end(self, command: str, ended: Ended) -> list[str]:
        found = []
        if ended.status not in _STATUSES:
            found.append(
                f"status {ended.status}, signal {ended.signal}: {ended.output[-500:]}"
            )

        if "Traceback" in ended.output:
            found.append(f"a traceback: {ended.output[-900:]}")
        if ended.status and f"\ntfasr {command}: " not in "\n" + ended.output:
            found.append(f"no line says why: {ended.output[-500:]}")
        if command == "train":
            found += faults_after_a_kill(self._place / "run")
        return found

    def _gone_on(self, command: str, allowed: Collection[str] = ()) -> list[str]:
        """Runs a command again, without a fault, and compares what it comes to."""
        ended = run_forked(self.words(command), self._messages)
        if ended.status != 0 or "Traceback" in ended.output:
            return [f"not taken up again, status {ended.status}: {ended.output[-500:]}"]
        faults = [fault for fault in self.wrong_at_end(command) if fault not in allowed]
        return [f"taken up again: {fault}" for fault in faults]

    def slow(self) -> dict[str, Any]:
        """Delays each change."""
        for command in ("prepare", "train", "evaluate"):
            self.clean()
            ended = run_forked(
                self.words(command),
                self._messages,
                prepare=lambda: observed(Slow(0.02)),
            )
            if ended.status:
                found = [f"status {ended.status}"]
            else:
                found = self.wrong_at_end(command)

            self.say(f"{command}, slow disk", found)

        return {"fault": "20 ms a change", "places": 3}

    def clocks(self) -> dict[str, Any]:
        """Lets the wall clock jump, with a kill after it or without."""
        cases = 0
        for hours in (-5.0, -1.0, 1.0, 5.0):
            for killed in (False, True):
                self.clean()
                jump = self.chance.randint(90, 150)
                kill = KillAt(
                    jump + self.chance.randint(5, 40) if killed else 1 << 30, "after"
                )
                ended = run_forked(
                    self.words("train"),
                    self._messages,
                    prepare=lambda at=jump, h=hours, then=kill: observed(
                        JumpAt(at, h, then)
                    ),
                )
                case = f"train, clock jumps {hours:+g} h{', killed' * killed}"
                found = []
                if ended.killed != killed or (not killed and ended.status):
                    found.append(
                        f"status {ended.status}, signal {ended.signal}: {ended.output}"
                    )

                found += self._gone_on("train") + self._long_intervals()
                self.say(case, found)
                cases += 1

        return {"fault": "clock jumps of 1 h and 5 h", "places": cases}

    def _long_intervals(self) -> list[str]:
        """Returns what is wrong with the times of a run that took a minute at most."""
        from tfasr.tta.run import load_run

        timeline = load_run(self._place / "run").timeline
        seconds = timeline.interval_seconds()
        wrong = {name: s for name, s in seconds.items() if not 0 <= s < 120}
        if abs(sum(seconds.values()) - timeline.wall_s) > 1e-5:
            wrong["sum"] = sum(seconds.values())
        return [f"intervals of {wrong} s"] if wrong else []

    def memory(self) -> dict[str, Any]:
        """Gives each command less and less address space."""
        statuses: dict[str, int] = {}
        page = resource.getpagesize()
        begins = int(Path("/proc/self/statm").read_text().split()[0]) * page
        for command in ("train", "prepare", "evaluate"):
            for more_mib in (0, 16, 64, 128, 256, 512, 768, 1024):
                self.clean()
                limit = begins + (more_mib << 20)

                def limited(limit: int = limit) -> None:
                    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

                ended = run_forked(self.words(command), self._messages, prepare=limited)
                how = str(
                    ended.status if ended.signal is None else f"signal {ended.signal}"
                )
                statuses[how] = statuses.get(how, 0) + 1
                case = f"{command} with {more_mib} MiB more than at its start"
                # Where C++ or the C library find no memory, they end the process, which
                # nothing can prevent: by a signal, or a new thread's loader by
                # exit(127).
                aborted = (
                    ended.signal in (signal.SIGABRT, signal.SIGSEGV)
                    or ended.status == 127
                )
                self.say(case, [] if aborted else self._wrong_end(command, ended))
                self.say(case, self._gone_on(command))

        return {"fault": "little memory", "places": 24, "statuses": statuses}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.faults", description=__doc__
    )
    parser.add_argument("--points", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, help="gets the work; default: a temporary folder"
    )
    parser.add_argument(
        "--only", choices=("errors", "slow", "clocks", "memory"), help="default: all"
    )
    parser.add_argument(
        "--errors", nargs="+", default=list(ERRORS), choices=ERRORS, help="default: all"
    )
    arguments = parser.parse_args()
    load()
    with tempfile.TemporaryDirectory() as temporary:
        campaign = Faults(
            arguments.out or Path(temporary), arguments.seed, arguments.points
        )
        campaign.make_reference()
        if arguments.only in (None, "errors"):
            for name in arguments.errors:
                for command in ("prepare", "evaluate", "train"):
                    print(json.dumps(campaign.errors(command, name)), flush=True)

        for name in ("slow", "clocks", "memory"):
            if arguments.only in (None, name):
                print(json.dumps(getattr(campaign, name)()), flush=True)

        print(f"violations: {len(campaign.faults)}")

    sys.exit(1 if campaign.faults else 0)


if __name__ == "__main__":
    main()
