"""Steps of several workers: with the exchange, without it, and of one process.

`benchmarks/cluster.py --steps N` calls it. All processes exist at the same time and
take turns of a few steps, on the same batches in the same order; the others sleep.
"""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.cluster.launcher import free_ports

WARM_UP = 6
TURN = 10
KINDS = ("one", "apart", "workers", "bfloat16")
"""One process of all threads; as many processes as workers, each on its share without
exchanging anything; the workers; the workers with gradients in bfloat16."""
_TOGETHER = ("workers", "bfloat16")

Row = dict[str, float]


class Process:
    """A process that takes steps on request.

    Args:
        request: the arguments of `work`.
        threads: of the process.
    """

    def __init__(self, request: dict[str, Any], threads: int):
        count = str(threads)
        environment = {
            **os.environ,
            "TF_NUM_INTRAOP_THREADS": count,
            "OMP_NUM_THREADS": count,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        )

    def ask(self, steps: int) -> None:
        """Requests steps; 0 ends the process."""
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()

    def answer(self) -> list[Row]:
        """Waits for the times of the requested steps.

        Raises:
            RuntimeError: if the process ended instead.
        """
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with exit code {self._process.wait()}")

        return json.loads(line)

    def end(self) -> None:
        """Ends the process, by force if necessary."""
        with contextlib.suppress(OSError):
            self.ask(0)

        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)

        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Taken:
    """The times recorded by each kind's processes: ``times[kind][process][step]``."""

    times: dict[str, list[list[Row]]]

    def steps_s(self, kind: str) -> list[float]:
        """Returns each step's seconds, the longest of its processes'."""
        rows = zip(*self.times[kind], strict=True)
        return [max(row["step_s"] for row in step) for step in rows]

    def exchange_s(self, kind: str) -> float:
        """Returns the median time from the last worker's gradients to a step's end."""
        rows = zip(*self.times[kind], strict=True)
        return statistics.median(
            min(row["step_s"] - row["ready_s"] for row in step) for step in rows
        )

    def processor_s(self, kind: str) -> float:
        """Returns the processor time of a step, of all processes together, reading
        included.
        """
        return sum(
            statistics.fmean(row["processor_s"] for row in own)
            for own in self.times[kind]
        )

    def ratio(self, kind: str, other: str) -> float:
        """Returns the median ratio of two kinds' times of the same batch."""
        pairs = zip(self.steps_s(kind), self.steps_s(other), strict=True)
        return statistics.median(own / theirs for own, theirs in pairs)


def take_steps(
    config: dict[str, Any], workers: int, steps: int, kinds: Sequence[str] = KINDS
) -> Taken:
    """Times steps of each kind in turns.

    The processor's times are the means of whole turns, whose first step they include.

    Args:
        config: ``gin_file``, ``bindings`` and ``shard_dir``.
        workers: how many; the one process has as many threads.
        steps: of each kind; the first of each turn is not counted.
        kinds: of `KINDS`.
    """
    groups: dict[str, list[Process]] = {}
    with contextlib.ExitStack() as held:
        for kind in kinds:
            addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]

            count = workers
            threads = 1
            if kind == "one":
                count = 1
                threads = workers

            request = {**config, "kind": kind, "addresses": addresses}
            groups[kind] = [
                Process({**request, "rank": rank}, threads) for rank in range(count)
            ]
            for process in groups[kind]:
                held.callback(process.end)

        times = {kind: [[] for _ in groups[kind]] for kind in kinds}
        turns = math.ceil(steps / TURN)
        for turn, size in enumerate([WARM_UP, *[TURN + 1] * turns]):
            for kind in kinds:
                for process in groups[kind]:
                    process.ask(size)

                for process, noted in zip(groups[kind], times[kind], strict=True):
                    rows = process.answer()
                    if turn:
                        noted += rows[1:]

    return Taken(times)


def work(request: dict[str, Any]) -> None:
    """Takes steps as one of the processes, as many as each line of standard input says."""
    from tfasr.cluster.description import Cluster
    from tfasr.training.from_gin import load_config
    from tfasr.training.workers.team import joined

    together = request["kind"] in _TOGETHER
    if together:
        cluster = Cluster(tuple(request["addresses"]), request["rank"])
    else:
        cluster = None

    if request["kind"] == "bfloat16":
        request["bindings"].append("TrainingConfig.gradient_exchange = 'bfloat16'")

    with joined(cluster) as team, tempfile.TemporaryDirectory() as folder:
        experiment = load_config(request["gin_file"], request["bindings"]).experiment
        takes = _steps(experiment, request, team, Path(folder))
        for line in sys.stdin:
            if not int(line):
                break

            used_s = time.process_time()
            rows = [next(takes) for _ in range(int(line))]
            processor_s = (time.process_time() - used_s) / len(rows)
            print(
                json.dumps([{**row, "processor_s": processor_s} for row in rows]),
                flush=True,
            )


def _steps(
    experiment: Any, request: dict[str, Any], team: Any, folder: Path
) -> Iterator[Row]:
    import tensorflow as tf

    from tfasr.data.batches import Share
    from tfasr.ledger.events import Ledger
    from tfasr.training.checkpoint import TrainingState
    from tfasr.training.run import EpochBatches, build, open_run
    from tfasr.training.run_folder import Interruption
    from tfasr.training.workers.step import AgreedInterruption, SharedStep

    data = open_run(experiment, request["shard_dir"], folder, team)
    run = build(data, Ledger(folder, 0), Interruption())

    batches = run.batches
    step = run.take_step
    if request["kind"] == "apart":
        share = Share(request["rank"], len(request["addresses"]))
        source = run.sources["train"]
        batches = EpochBatches(
            source, experiment.training, tf.distribute.get_strategy(), share
        )
        step = SharedStep(run.model, AgreedInterruption(Interruption()))

    epoch = 0
    while True:
        epoch += 1
        iterator = batches.iterator(TrainingState(epoch=epoch))
        while (result := step(iterator)) is not None:
            step_s = result.train_s + result.compile_s
            ready_s = step_s
            times = getattr(step, "times", None)

            if times:
                ready_s = times.ready_s

            yield {"step_s": step_s, "ready_s": ready_s}


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
