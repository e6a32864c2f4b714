"""Ways in which workers exchange, on several links and with slow or dying workers.

    sudo python benchmarks/workers.py --shard_dir shards [--gin_file demo.gin] [--target 0.10]
    sudo python benchmarks/workers.py --shard_dir shards --arms synchronous local_16 --seeds 1

Each worker runs in its own network namespace with its own address, joined by veth pairs
and a bridge. `tc` holds what each sends to the condition's rate (token bucket filter).
Arms take turns for each seed. A slow worker is stopped and continued by signals, so
that it runs for one half or one fourth of the time, from the beginning of the first
epoch. A killed one gets SIGKILL when the epoch --kill_epoch begins, and is started
again; in the synchronous way all are, with --resume. It needs root, `ip`, `tc` and
`nsenter`.

Expected, written before the first run (two workers, the demo's model, 2 MB of gradients
a step):

1. On a fast link no arm beats the synchronous one by more than its noise. The exchange
   is 10-15 % of a step there; fewer updates of the common weights cost about as much.
2. At 50 Mbit/s a synchronous step sends 2 MB, 0.33 s, several times its computation.
   local_4 trains an epoch at least twice as fast, and from local_16 on the link hardly
   matters. At 1000 Mbit/s nothing is gained.
3. To the target, local_64 needs more epochs than local_4, since its rounds are longer
   than an epoch of a small corpus is useful for.
4. With a worker slowed 4 times the synchronous way takes nearly 4 times as long, and
   local rounds as well.
5. A killed worker costs the synchronous way a restart of all (start-up and
   compilation), and the others the work of a round.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tfasr
from tfasr.ledger.events import read_events
from tfasr.tta.comparison import GroupComparison, adjusted, compare, interval_text
from tfasr.tta.decomposition import Parts, decompose, parts_until
from tfasr.tta.policies import Bracket, bracket

ARMS = {
    "synchronous": ["exchange = 'synchronous'"],
    **{
        f"local_{h}": ["exchange = 'local'", f"exchange_every_steps = {h}"]
        for h in (4, 16, 64)
    },
    "asynchronous_16": ["exchange = 'asynchronous'", "exchange_every_steps = 16"],
}
CONDITIONS = {
    "loopback": {}, "1000": {"mbit_s": 1000}, "200": {"mbit_s": 200}, "50": {"mbit_s": 50},
    "slow_2": {"slow": 2}, "slow_4": {"slow": 4}, "killed": {"killed": True},
}  # fmt: skip
_TRAINING = ("train", "compile", "input_wait", "exchange", "wait")
"""The intervals whose sum from the second epoch on is ``later_s``: without start-up,
evaluation."""
_FACTORS = ("statistical_efficiency", "hardware_throughput", "workers")
_SPAN_S = 0.2  # of a slow worker's running and being stopped


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def hosts(count: int, mbit_s: float | None) -> Iterator[list[list[str]]]:
    """Yields, for each worker, the words that start a command in its network namespace."""
    # A new name each time: the kernel takes a while to forget deleted devices.
    name = f"t{secrets.token_hex(3)}"
    with contextlib.ExitStack() as made:
        command("ip", "link", "add", name, "type", "bridge")
        made.callback(command, "ip", "link", "del", name)
        command("ip", "link", "set", name, "up")
        prefixes = []

        for rank in range(count):
            space = f"{name}n{rank}"
            outer = f"{name}v{rank}"
            command("ip", "netns", "add", space)
            made.callback(command, "ip", "netns", "del", space)
            peer = ["peer", "name", "eth0", "netns", space]
            command("ip", "link", "add", outer, "type", "veth", *peer)
            command("ip", "link", "set", outer, "master", name, "up")
            command(
                "ip",
                "-n",
                space,
                "addr",
                "add",
                f"10.77.0.{rank + 1}/24",
                "dev",
                "eth0",
            )

            for device in ("eth0", "lo"):
                command("ip", "-n", space, "link", "set", device, "up")

            if mbit_s:
                rate = [
                    "rate",
                    f"{mbit_s}mbit",
                    "burst",
                    f"{max(mbit_s / 8, 32):.0f}kb",
                ]
                limit = ["latency", "400ms"]
                command(
                    "tc",
                    "-n",
                    space,
                    "qdisc",
                    "add",
                    "dev",
                    "eth0",
                    "root",
                    "tbf",
                    *rate,
                    *limit,
                )

            prefixes.append(["nsenter", f"--net=/run/netns/{space}"])

        yield prefixes


class Run:
    """Workers that train one run, each a process that can be slowed, killed and started
    again.
    """

    def __init__(
        self,
        run_dir: Path,
        bindings: list[str],
        arguments: argparse.Namespace,
        prefixes: list[list[str]],
    ):
        ranks = range(len(prefixes))
        if arguments.loopback:
            addresses = [f"127.0.0.1:{23456 + rank}" for rank in ranks]
            self._prefixes = [[] for _ in prefixes]
        else:
            addresses = [f"10.77.0.{rank + 1}:23456" for rank in ranks]
            self._prefixes = prefixes

        self._words = [sys.executable, "-m", "tfasr.cli", "train", "--no_memory_probe"]
        self._words += ["--gin_file", arguments.gin_file]
        self._words += ["--shard_dir", str(arguments.shard_dir)]

        for binding in bindings:
            self._words += ["--gin_binding", binding]

        self._words += ["--run_dir", str(run_dir), "--cluster", ",".join(addresses)]
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
        secret = {
            "TFASR_CLUSTER_SECRET": secrets.token_hex(32),
            "TFASR_CLUSTER_TRUSTED": "1",
        }
        self._environment = {
            **os.environ,
            **threads,
            **secret,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self._run_dir = run_dir
        self.processes = [self._start(rank) for rank in range(len(prefixes))]

    def _start(self, rank: int, *more: str) -> subprocess.Popen:
        log = self._run_dir.with_name(f"{self._run_dir.name}-{rank}.log").open("ab")
        words = [*self._prefixes[rank], *self._words, "--rank", str(rank), *more]
        return subprocess.Popen(words, env=self._environment, stdout=log, stderr=log)

    def slow(self, rank: int, times: float) -> None:
        process = self.processes[rank]
        while process.poll() is None and not self._reached(1):
            time.sleep(0.2)

        while process.poll() is None:
            time.sleep(_SPAN_S / times)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGSTOP)
                time.sleep(_SPAN_S * (1 - 1 / times))
                process.send_signal(signal.SIGCONT)

    def kill(self, rank: int, epoch: int, together: bool) -> None:
        """Kills a worker once an epoch has begun; starts it, or all ``together``, again."""
        while self.processes[0].poll() is None and not self._reached(epoch):
            time.sleep(0.2)

        self.processes[rank].kill()
        self.processes[rank].wait()

        if not together:
            self.processes[rank] = self._start(rank, "--resume")
            return

        for process in self.processes:
            process.wait()

        self.processes = [
            self._start(n, "--resume") for n in range(len(self.processes))
        ]

    def _reached(self, epoch: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            events = read_events(self._run_dir)
            return any(e["metadata"].get("epoch_num", 0) >= epoch for e in events)

        return False

    def wait(self) -> None:
        """Waits for the chief's end, then ends the others; an error if it failed."""
        status = self.processes[0].wait()
        for process in self.processes[1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)

            process.kill()

        if status:
            log = self._run_dir.with_name(f"{self._run_dir.name}-0.log")
            sys.exit(log.read_text(encoding="utf-8", errors="replace")[-2000:])


def train(
    run_dir: Path, arm: str, condition: str, seed: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Trains once; returns what its ledger says."""
    about = CONDITIONS[condition]
    stops = arguments.target is not None
    target = arguments.target or 0.0
    bindings = [f"TrainingConfig.{line}" for line in ARMS[arm]]
    bindings += [
        f"TrainingConfig.seed = {seed}",
        "TrainingConfig.sentences_every_steps = 0",
        "TrainingConfig.second_decoder = ''",
        "TrainingConfig.target_window = 1",
        f"TrainingConfig.targets = [('cer', {target})]",
        f"TrainingConfig.stop_at_targets = {stops}",
    ]

    if arguments.epochs:
        bindings.append(f"TrainingConfig.epochs = {arguments.epochs}")

    bindings += arguments.gin_binding
    with hosts(arguments.workers, about.get("mbit_s")) as prefixes:
        arguments.loopback = condition == "loopback"
        began = time.monotonic()
        run = Run(run_dir, bindings, arguments, prefixes)

        if "slow" in about:
            threading.Thread(
                target=run.slow, args=(1, about["slow"]), daemon=True
            ).start()

        if "killed" in about:
            run.kill(1, arguments.kill_epoch, arm == "synchronous")

        run.wait()
        elapsed_s = time.monotonic() - began

    loaded = tfasr.load_run(run_dir)
    spent = loaded.intervals
    wall_s = loaded.wall_s

    if stops:
        to_target = loaded.time_to_accuracy(cer=target, window=1).seconds
        until_s = to_target or loaded.timeline.elapsed_s[-1]
        crossing = bracket(loaded.accuracy_curve("cer"), target, window=1)
    else:
        # All epochs, at an exact time
        to_target = None
        until_s = loaded.timeline.elapsed_s[-1]
        crossing = Bracket(until_s, until_s, None)

    (first, *_) = (i for i in loaded.timeline.of("epoch_stop"))
    first_s = float(loaded.timeline.elapsed_s[first])
    before, until = (loaded.timeline.interval_seconds(s) for s in (first_s, until_s))
    later = {name: until[name] - before[name] for name in _TRAINING}
    rounds = [e["value"] for e in loaded.events if e["key"] == "exchanged"]
    rates = [e["value"]["cer"] for e in loaded.events if e["key"] == "tracked_stats"]
    parts = parts_until(loaded.timeline, until_s, warmup_steps=2)

    return {
        "time_s": until_s,
        "reached": to_target is not None,
        "elapsed_s": elapsed_s,
        "later_s": sum(later.values()),
        "wall_s": wall_s,
        "train_s": spent["train"],
        "exchange_s": spent["exchange"],
        "wait_s": spent["wait"],
        "compile_s": spent["compile"],
        "init_s": spent["init"],
        "lost_utterances": sum(one["lost_utterances"] for one in rounds),
        "best_cer": min(rates),
        "bracket": dataclasses.asdict(crossing),
        "parts": dataclasses.asdict(parts),
    }


def markdown(measured: dict[str, dict[str, list[dict]]]) -> str:
    """Returns a table: each arm against the condition's first one, by pairs of equal seeds."""
    lines = [
        "| condition | arm | reached | s to the target | ratio (95 %) | p (Holm) | utterances "
        "| throughput | other workers | exchange s | waiting s | lost |",
        "|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for condition, arms in measured.items():
        first = next(iter(arms.values()))
        brackets = [
            [Bracket(**run["bracket"]) for run in runs] for runs in arms.values()
        ]
        compared = [compare(brackets[0], times) for times in brackets[1:]]
        tested = [GroupComparison(None), *adjusted(compared)]

        for (arm, runs), comparison in zip(arms.items(), tested, strict=True):
            names = ("time_s", "exchange_s", "wait_s", "lost_utterances")
            middles = (statistics.median(run[name] for run in runs) for name in names)
            time_s, exchange_s, wait_s, lost = middles
            split = [
                [Parts(**run["parts"]) for run in group] for group in (first, runs)
            ]
            factors = decompose(*split).factors

            ratio = ""
            if comparison.ratio:
                ratio = f"{comparison.ratio:.2f}"

            if comparison.interval:
                ratio += f" ({interval_text(*comparison.interval)})"

            if comparison.sooner:
                ratio = f"**{ratio}**"

            p_value = ""
            if comparison.adjusted_p is not None:
                p_value = f"{comparison.adjusted_p:.2g}"

            reached = sum(run["reached"] for run in runs)
            cells = [condition, arm, f"{reached} of {len(runs)}"]
            cells += [f"{time_s:.1f}", ratio, p_value]
            cells += [f"{factors[name]:.2f}" for name in _FACTORS]
            cells += [f"{exchange_s:.1f}", f"{wait_s:.1f}", f"{lost:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument("--gin_file", default="demo.gin")
    parser.add_argument("--gin_binding", action="append", default=[])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument(
        "--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS)
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--kill_epoch", type=int, default=2, help="in which a worker is killed"
    )
    parser.add_argument("--epochs", type=int, help="default: those of the gin file")
    parser.add_argument(
        "--target", type=float, help="CER to stop at; default: train all epochs"
    )
    parser.add_argument(
        "--out", type=Path, help="JSON of all runs; goes on where it ended"
    )
    arguments = parser.parse_args()

    unlike = ("shard_dir", "arms", "conditions", "seeds", "out")
    setup = {
        name: value for name, value in vars(arguments).items() if name not in unlike
    }

    kept = {"setup": setup, "runs": {}}
    if arguments.out and arguments.out.exists():
        kept = json.loads(arguments.out.read_text())
        if kept["setup"] != setup:
            parser.error(
                f"--out has runs of {kept['setup']}. Received: {setup}. Name a new file."
            )

    measured: dict[str, dict[str, list[dict]]] = kept["runs"]
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(1, arguments.seeds + 1):
            for condition in arguments.conditions:
                for arm in arguments.arms:
                    runs = measured.setdefault(condition, {}).setdefault(arm, [])
                    if len(runs) >= seed:
                        continue

                    run_dir = Path(temporary) / f"{condition}-{arm}-{seed}"
                    runs.append(train(run_dir, arm, condition, seed, arguments))
                    shown = {
                        n: round(v, 2)
                        for n, v in runs[-1].items()
                        if type(v) in (int, float)
                    }
                    about = {"condition": condition, "arm": arm, "seed": seed}
                    load = round(os.getloadavg()[0], 1)
                    print(json.dumps({**about, "load": load, **shown}), flush=True)

                    if arguments.out:
                        arguments.out.write_text(json.dumps(kept) + "\n")

    print(markdown(measured))


if __name__ == "__main__":
    main()
