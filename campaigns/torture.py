"""Kills and resumes training, preparing and evaluating; compares with uninterrupted work.

``python -m campaigns.torture --minutes 10 --seed 1 --out /tmp/torture`` starts where an
earlier call with the same folder ended, and prints what was found so far. Commands run
in forked children, most of which SIGKILL themselves before, within or after one write,
rename, sync and so on; others are killed from outside at a random moment. One start in
twenty is ``python -m tfasr.cli`` instead, killed from outside or, where strace is
installed, at a system call.
"""

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaigns.children import Ended, load, run_forked, run_process, told
from campaigns.kill_log import KillLog
from campaigns.operations import Counter, KillAt, observed
from campaigns.small_work import CONFIGURATIONS, Configuration, SmallWork

_MOMENTS = ("before", "within", "after")
_CALLS = ("write", "fsync", "rename")


@dataclass(frozen=True)
class Plan:
    """How a campaign kills.

    Attributes:
        turns: the kind of work of each round, repeated; by default no "studying" (takes
            minutes).
        most_kills: how many kills a piece of work gets before it may finish, by kind of
            work.
        configurations: what is trained.
        processes: the share of starts that are real command lines.
        timers: the share of the others that are killed from outside, at a random
            moment.
    """

    turns: tuple[str, ...] = (
        *("training", "preparing", "training", "preparing"),
        *("training", "preparing", "evaluating"),
    )
    most_kills: Mapping[str, int] = field(
        default_factory=lambda: {
            **{"training": 25, "preparing": 12},
            **{"evaluating": 3, "studying": 4},
        }
    )
    configurations: tuple[Configuration, ...] = CONFIGURATIONS
    processes: float = 0.05
    timers: float = 0.15


class Torture:
    """One campaign.

    Args:
        folder: holds everything, the log too; an earlier campaign in it is continued.
        seed: decides the kills of each round.
        minutes: how long to go on killing.
        plan: how it kills.
    """

    def __init__(
        self, folder: Path, seed: int, minutes: float, plan: Plan | None = None
    ):
        self.folder = folder
        self.seed = seed
        self.plan = plan or Plan()
        self._deadline = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)
        self.log = KillLog(folder / "kills.jsonl")
        self.work = SmallWork(folder)
        self._messages = folder / "messages.txt"
        self._reference = folder / "reference"

    def run(self, rounds: int = 1 << 30) -> None:
        """Does each kind of work once without kills, then rounds of kills until time is up."""
        self._make_references()
        for _ in range(rounds):
            if time.monotonic() >= self._deadline:
                break
            number = self.log.next_round
            self._round(number, self.plan.turns[number % len(self.plan.turns)])

    def _round(self, number: int, work: str) -> None:
        chance = random.Random(f"{self.seed} {number}")
        place = self.folder / "now"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        configuration = chance.choice(self.plan.configurations)
        finish = {
            "training": self._training,
            "preparing": self._preparing,
            "evaluating": self._evaluating,
            "studying": self._studying,
        }[work]
        name = configuration.name if work == "training" else work
        faults = finish(number, chance, place, configuration)
        self.log.add(round=number, work=work, finished=True, name=name, faults=faults)
        for fault in faults:
            print(f"VIOLATION in round {number}, {work} ({name}): {fault}", flush=True)
        if faults:
            shutil.copytree(
                place, self.folder / f"violation-{number}", dirs_exist_ok=True
            )

    def _make_references(self) -> None:
        """Does each kind of work once without kills, noting its operations and seconds."""
        notes = self.folder / "measured.json"
        self.work.write()
        if not notes.exists():
            for made in (self._reference, self.work.shards):
                shutil.rmtree(made, ignore_errors=True)
            self._reference.mkdir()
            measured = {
                "preparing": self._measured(self.work.prepare(self.work.shards))
            }
            for configuration in self.plan.configurations:
                run_dir = self._reference / configuration.name
                measured["training"] = self._measured(
                    self.work.train(configuration, run_dir)
                )

            words = self.work.evaluate(
                self._trained, self._reference / "hypotheses.jsonl"
            )
            measured["evaluating"] = self._measured(words)
            if "studying" in self.plan.turns:
                words = self.work.study(self._reference / "study")
                measured["studying"] = self._measured(words)

            notes.write_text(json.dumps(measured))

        self._whole: dict[str, tuple[int, float]] = json.loads(notes.read_text())

    @property
    def _trained(self) -> Path:
        return self._reference / self.plan.configurations[0].name

    def _measured(self, words: list[object]) -> tuple[int, float]:
        """Does a piece of work without kills; returns its number of operations and seconds."""
        counter = Counter()
        tell, read = told(self.folder)
        ended = run_forked(
            words,
            self._messages,
            prepare=lambda: observed(counter),
            finish=lambda: tell(counter.count),
        )
        if ended.status:
            sys.exit(f"Without a fault this must succeed: {words}\n{ended.output}")
        return read(), ended.seconds

    def _killed_until_done(
        self,
        number: int,
        work: str,
        chance: random.Random,
        words: Callable[[bool], list[object]],
        seen: Callable[[Ended], list[str]],
    ) -> list[str]:
        """Starts and kills a command until it finishes; returns what was wrong.

        Args:
            number: of the round.
            work: its kind.
            chance: decides the kills.
            words: returns the command's words; its argument is False for the first
                start only.
            seen: called after each start has ended; returns what is wrong then.
        """
        faults: list[str] = []
        first = True
        for kills in range(1000):
            late = time.monotonic() >= self._deadline
            spare = late or kills >= self.plan.most_kills[work]
            ended, about = self._start(work, words(not first), chance, spare=spare)
            first = False
            found = seen(ended)
            if not ended.killed and ended.status:
                found.append(
                    f"a start ended with status {ended.status}: {ended.output[-600:]}"
                )
            elif "Traceback" in ended.output:
                found.append(f"a traceback: {ended.output[-600:]}")

            self.log.add(
                round=number, work=work, killed=ended.killed, faults=found, **about
            )
            faults += found
            if not ended.killed:
                break

        return faults

    def _start(
        self, work: str, words: list[object], chance: random.Random, *, spare: bool
    ) -> tuple[Ended, dict[str, Any]]:
        """Starts a command once, to be killed somewhere unless it is spared."""
        if spare:
            return run_forked(words, self._messages), {"how": "spared"}
        operations, seconds = self._whole[work]
        if work == "studying":  # its child processes' operations aren't seen
            after_s = chance.random() * seconds
            ended = run_forked(words, self._messages, kill_after_s=after_s)
            return ended, {"how": "timer", "after_s": round(after_s, 3)}

        if chance.random() < self.plan.processes:
            if shutil.which("strace") and chance.random() < 0.5:
                call = chance.choice(_CALLS)
                inject = f"{call}:signal=SIGKILL:when={chance.randint(1, 40)}"
                ended = run_process(words, self._messages, inject=inject)
                return ended, {"how": "process", "inject": inject}

            after_s = 5 + chance.random() * (seconds + 4)
            ended = run_process(words, self._messages, kill_after_s=after_s)
            return ended, {"how": "process", "after_s": round(after_s, 3)}

        if chance.random() < self.plan.timers:
            after_s = chance.random() * seconds
            ended = run_forked(words, self._messages, kill_after_s=after_s)
            return ended, {"how": "timer", "after_s": round(after_s, 3)}

        # Not late: a resumed command makes fewer operations, and should be killed too.
        most = operations // {"training": 4, "preparing": 2}.get(work, 1)
        at, moment = chance.randint(1, most), chance.choice(_MOMENTS)
        tell, read = told(self.folder)
        ended = run_forked(
            words, self._messages, prepare=lambda: observed(KillAt(at, moment, tell))
        )
        hit = read() if ended.killed else ""
        return ended, {"how": "operation", "number": at, "moment": moment, "at": hit}

    def _training(
        self,
        number: int,
        chance: random.Random,
        place: Path,
        configuration: Configuration,
    ) -> list[str]:
        from campaigns.compare import (
            Start,
            faults_after_a_kill,
            faults_of_run,
            sessions_of,
        )

        run_dir = place / "run"
        starts: list[Start] = []

        def seen(ended: Ended) -> list[str]:
            known = {start.session for start in starts}
            try:
                new = [one for one in sessions_of(run_dir) if one not in known]
            except ValueError:
                new = []  # `faults_after_a_kill` reports it

            starts.append(Start(ended.seconds, ended.killed, new[-1] if new else None))
            return faults_after_a_kill(run_dir)

        faults = self._killed_until_done(
            number,
            "training",
            chance,
            lambda again: self.work.train(
                configuration, run_dir, *(["--resume"] * again)
            ),
            seen,
        )
        if faults:
            return faults
        reference = self._reference / configuration.name
        return faults_of_run(
            run_dir, reference, starts, configuration.checkpoint_every_steps
        )

    def _preparing(
        self,
        number: int,
        chance: random.Random,
        place: Path,
        configuration: Configuration,
    ) -> list[str]:
        from campaigns.compare import differing, snapshot

        shards = place / "shards"
        words = self.work.prepare(shards)
        faults = self._killed_until_done(
            number, "preparing", chance, lambda again: words, lambda ended: []
        )
        return faults + differing(snapshot(shards), snapshot(self.work.shards))

    def _evaluating(
        self,
        number: int,
        chance: random.Random,
        place: Path,
        configuration: Configuration,
    ) -> list[str]:
        from campaigns.compare import differing, snapshot

        run_dir = self._trained
        before = snapshot(run_dir)
        words = self.work.evaluate(run_dir, place / "hypotheses.jsonl")
        faults = self._killed_until_done(
            number, "evaluating", chance, lambda again: words, lambda ended: []
        )
        faults += differing(snapshot(run_dir), before)
        wanted = {
            "hypotheses.jsonl": snapshot(self._reference)["hypotheses.jsonl"],
        }
        return faults + differing(snapshot(place), wanted)

    def _studying(
        self,
        number: int,
        chance: random.Random,
        place: Path,
        configuration: Configuration,
    ) -> list[str]:
        from campaigns.compare import differing, faults_of_run, snapshot

        study_dir = place / "study"
        faults = self._killed_until_done(
            number,
            "studying",
            chance,
            lambda again: self.work.study(study_dir, *(["--resume"] * again)),
            lambda ended: [],
        )
        reference = self._reference / "study"
        found, wanted = (set(snapshot(one)) for one in (study_dir, reference))
        faults += differing(dict.fromkeys(found, ""), dict.fromkeys(wanted, ""))
        for ledger in sorted(reference.rglob("events.jsonl")):
            run = ledger.parent.relative_to(reference)
            every = max(one.checkpoint_every_steps for one in CONFIGURATIONS)
            if (study_dir / run / ledger.name).exists():
                compared = faults_of_run(study_dir / run, ledger.parent, None, every)
                faults += [f"{run}: {fault}" for fault in compared]

        return faults


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.torture", description=__doc__
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for log and work"
    )
    parser.add_argument("--studies", action="store_true", help="kill only tfasr study")
    arguments = parser.parse_args()
    load()
    plan = Plan(turns=("studying",)) if arguments.studies else Plan()
    torture = Torture(arguments.out.resolve(), arguments.seed, arguments.minutes, plan)
    torture.run()
    log = torture.log
    for work, kills in sorted(log.kills().items()):
        print(f"{work}: {kills} kills in {log.rounds()[work]} finished pieces of work")
    print(
        "by:", ", ".join(f"{how} {count}" for how, count in sorted(log.ways().items()))
    )
    print(
        "at:",
        ", ".join(f"{place} {count}" for place, count in sorted(log.places().items())),
    )
    print(f"violations: {len(log.faults)}")
    sys.exit(1 if log.faults else 0)


if __name__ == "__main__":
    main()
