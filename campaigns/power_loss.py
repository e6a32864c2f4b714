"""Power losses: the states that a disk could be left in, each opened again by tfasr.

``python -m campaigns.power_loss --states 10000 --seed 1`` records every change that a
training, its resumption, two preparations and an evaluation make to their files, builds
the states that a power loss could leave (`campaigns.disk_states`), and asks of each:
does every published checkpoint load, does the ledger parse, hold what was promised and
know the step that is resumed from, is a folder absent, whole, or taken up again. Of
some states the command is really run again and its result compared with the
uninterrupted one.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.children import load, run_forked, told
from campaigns.disk_states import MODELS, Disk, State, read_state, relative, write_state
from campaigns.operations import KillAt, Operation, Recorder, observed
from campaigns.promises import Checker, Promised
from campaigns.small_work import CONFIGURATIONS, Configuration, SmallWork

_SHOWN = 20


@dataclass(frozen=True)
class Scenario:
    """A command whose changes to the files were recorded.

    Attributes:
        name: what it was.
        before: what lay in its folder.
        operations: what it did, paths relative to that folder.
        words: returns the command's words for a folder, to run it again.
        check: says what is wrong with a folder, given what was promised.
        finished: what the folder must hold after it was run again.
    """

    name: str
    before: State
    operations: list[Operation]
    words: Callable[[Path], list[object]]
    check: Callable[[Checker, Path, Promised], list[str]]
    finished: Callable[[Path], list[str]]


def record(words: list[object], folder: Path, messages: Path) -> list[Operation]:
    """Runs a command and returns what it did in a folder; it is checked by playing it back."""
    recorder = Recorder()
    tell, read = told(messages.parent)
    before = read_state(folder)
    ended = run_forked(
        words,
        messages,
        prepare=lambda: observed(recorder),
        finish=lambda: tell(list(recorder.operations)),
    )
    if ended.status:
        sys.exit(f"Without a fault this must succeed: {words}\n{ended.output}")
    operations = list(relative(read(), folder))
    disk = Disk(before)
    for operation in operations:
        disk.do(operation)
    left = disk.now()
    seen = read_state(folder)
    if left != seen:
        names = [
            n
            for n in sorted(left.keys() | seen.keys())
            if left.get(n, 0) != seen.get(n, 0)
        ]
        sys.exit(f"Changes went past the recording of {words[0]}: {names}")

    return operations


class PowerLoss:
    """One campaign.

    Args:
        folder: gets the work.
        seed: decides the states.
    """

    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.seed = seed
        folder.mkdir(parents=True, exist_ok=True)
        self.work = SmallWork(folder)
        self._messages = folder / "messages.txt"
        shared_memory = Path("/dev/shm")
        self._fast = shared_memory if shared_memory.is_dir() else None

    def scenarios(self) -> Iterator[Scenario]:
        """Records each command in turn."""
        self.work.write()
        places = {
            n: self.folder / n for n in ("fresh", "resumed", "preparing", "evaluating")
        }
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()

        shards = places["preparing"] / "shards"
        before = read_state(places["preparing"])
        operations = record(
            self.work.prepare(shards), places["preparing"], self._messages
        )
        if not self.work.shards.exists():
            shutil.copytree(shards, self.work.shards)
        yield self._preparing("prepare", before, operations, shards)
        more = ["--gin_binding", "ShardConfig.utterances_per_shard = 3"]
        before = read_state(places["preparing"])
        again = self.work.prepare(shards) + more
        operations = record(again, places["preparing"], self._messages)
        yield self._preparing("prepare another way", before, operations, shards, more)
        for place, configuration in (("resumed", 0), ("resumed", 2), ("fresh", 1)):
            yield self.training(
                places[place], CONFIGURATIONS[configuration], place == "resumed"
            )
        run_dir = places["fresh"] / "run"
        place = places["evaluating"]
        words = self.work.evaluate(run_dir, place / "hypotheses.jsonl")
        operations = record(words, place, self._messages)
        wanted = (place / "hypotheses.jsonl").read_bytes()
        yield Scenario(
            "evaluate",
            {},
            operations,
            lambda folder: self.work.evaluate(run_dir, folder / "hypotheses.jsonl"),
            lambda checker, *state: checker.evaluating(wanted, *state),
            lambda folder: _same(read_state(folder), {"hypotheses.jsonl": wanted}),
        )

    def _preparing(
        self,
        name: str,
        before: State,
        operations: list[Operation],
        shards: Path,
        more: Any = (),
    ) -> Scenario:
        wanted = read_state(shards)
        return Scenario(
            name,
            before,
            operations,
            lambda folder: [*self.work.prepare(folder / "shards"), *more],
            Checker.preparing,
            lambda folder: _same(read_state(folder / "shards"), wanted),
        )

    def training(
        self, place: Path, configuration: Configuration, resumed: bool
    ) -> Scenario:
        """Records a training in an empty folder, or how it goes on after a kill."""
        from campaigns.compare import faults_of_run

        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        run_dir = place / "run"
        words = self.work.train
        if resumed:
            whole = record(words(configuration, run_dir), place, self._messages)
            shutil.rmtree(run_dir)
            kill = KillAt(len(whole) * 2 // 3, "before")
            run_forked(
                words(configuration, run_dir),
                self._messages,
                prepare=lambda: observed(kill),
            )

        before = read_state(place)
        resume = ["--resume"] * resumed
        operations = record(
            words(configuration, run_dir, *resume), place, self._messages
        )
        every = configuration.checkpoint_every_steps
        kept = self.folder / f"kept-{configuration.name}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(run_dir, kept)
        return Scenario(
            f"train {configuration.name}{', resumed' * resumed}",
            before,
            operations,
            lambda folder: words(configuration, folder / "run", "--resume"),
            lambda checker, *state: checker.training(configuration.name, *state),
            # A power loss may take any step since the last checkpoint, and a kill
            # before it more.
            lambda folder: faults_of_run(folder / "run", kept, None, 2 * every),
        )

    def states(
        self, scenario: Scenario, count: int
    ) -> Iterator[tuple[str, State, Promised]]:
        """Yields so many states of a scenario, with where the power was lost."""
        chance = random.Random(f"{self.seed} {scenario.name}")
        moments = len(scenario.operations) + 1
        disk = Disk(scenario.before)
        promised = Promised()
        before = Disk(scenario.before).now()
        made = 0
        if any(name.endswith("events.jsonl") for name in before):
            steps = [
                int(n[-12:-4]) for n in before if "/step-" in n and n.endswith(".npz")
            ]
            promised = Promised(step=max(steps, default=0))

        for moment in range(moments):
            while made < count * (moment + 1) // moments:
                model = MODELS[made % len(MODELS)]
                where = str(scenario.operations[moment - 1]) if moment else "the start"
                yield f"after {where} ({model})", disk.crash(chance, model), promised
                made += 1

            if moment < len(scenario.operations):
                disk.do(scenario.operations[moment])
                promised = promised.after(scenario.operations[moment], disk)

    def examine(self, scenario: Scenario, count: int, samples: int) -> dict[str, Any]:
        """Opens so many states of a scenario, goes on from some, and returns what was
        found.
        """
        result = self.check(scenario, count, min(count, samples))
        for where, state in result["kept"]:
            result["faults"] += self.go_on(scenario, where, state)
        return {
            "scenario": scenario.name,
            "operations": len(scenario.operations),
            "states": count,
            "different": result["different"],
            "gone_on": len(result["kept"]),
            "faults": result["faults"],
        }

    def check(self, scenario: Scenario, count: int, samples: int) -> dict[str, Any]:
        """Opens states of a scenario; returns what was found, and states to really go
        on from.
        """
        tell, read = told(self.folder)
        child = os.fork()
        if not child:
            try:
                tell(self._checked(scenario, count, samples))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)

        os.waitpid(child, 0)
        return read()

    def _checked(self, scenario: Scenario, count: int, samples: int) -> dict[str, Any]:
        import logging

        logging.disable(logging.CRITICAL)
        checker = Checker(self.work)
        chosen = set(
            random.Random(f"{self.seed} {count}").sample(range(count), samples)
        )
        faults = []
        different = set()
        kept = []
        for number, (where, state, promised) in enumerate(self.states(scenario, count)):
            different.add(_hash(state))
            with tempfile.TemporaryDirectory(dir=self._fast) as temporary:
                folder = Path(temporary) / "disk"
                write_state(state, folder)
                try:
                    found = scenario.check(checker, folder, promised)
                except Exception as error:
                    found = [f"{type(error).__name__}: {error}"]

            if found:
                faults.append(f"{scenario.name}, {where}: {found[0]}")
            if number in chosen:
                kept.append((where, state))

        return {"faults": faults, "different": len(different), "kept": kept}

    def go_on(self, scenario: Scenario, where: str, state: State) -> list[str]:
        """Really runs a command again on a state; returns what is wrong afterwards."""
        folder = self.folder / "again"
        shutil.rmtree(folder, ignore_errors=True)
        write_state(state, folder)
        ended = run_forked(scenario.words(folder), self._messages)
        if ended.status or "Traceback" in ended.output:
            return [
                f"{scenario.name}, {where}: ended with {ended.status}: {ended.output[-500:]}"
            ]
        found = scenario.finished(folder)
        return [f"{scenario.name}, {where}, gone on: {fault}" for fault in found]


def _hash(state: State) -> str:
    digest = hashlib.sha256()
    for path, content in state.items():
        digest.update(f"{path}\0{content is None}\0{len(content or b'')}\0".encode())
        digest.update(content or b"")

    return digest.hexdigest()


def _same(found: State, wanted: State) -> list[str]:
    names = sorted(found.keys() | wanted.keys())
    return [f"{n} differs" for n in names if found.get(n, 0) != wanted.get(n, 0)]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.power_loss", description=__doc__
    )
    parser.add_argument(
        "--states", type=int, default=10000, help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--go_on", type=int, default=24, help="really go on from so many"
    )
    parser.add_argument(
        "--out", type=Path, help="gets the work; default: a temporary folder"
    )
    arguments = parser.parse_args()
    load()
    with contextlib.ExitStack() as resources:
        temporary = resources.enter_context(tempfile.TemporaryDirectory())
        campaign = PowerLoss(
            (arguments.out or Path(temporary)).resolve(), arguments.seed
        )
        shares = {"prepare": 2, "prepare another way": 2, "evaluate": 0.5}
        scenarios = list(campaign.scenarios())
        whole = sum(shares.get(scenario.name, 2) for scenario in scenarios)
        faults: list[str] = []
        for scenario in scenarios:
            share = shares.get(scenario.name, 2) / whole
            samples = round(arguments.go_on * share)
            found = campaign.examine(scenario, round(arguments.states * share), samples)
            faults += found["faults"]
            print(json.dumps({**found, "faults": len(found["faults"])}), flush=True)

        for fault in faults[:_SHOWN]:
            print(f"VIOLATION {fault}")
        print(f"violations: {len(faults)}")

    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
