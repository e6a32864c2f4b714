"""Predicted and measured steps of one and two workers, also over a slowed network.

    python benchmarks/scaling_prediction.py [--mbit_s 1000,200,50] [--format json]

Trains a small model on made-up utterances for some 25 steps at a time. Two single processes at
once, each pinned to a core, give the steps at three batch sizes; two workers on the loopback give
the cost of an exchange without a network. From these, `tfasr bench scaling` predicts one process at
the middle batch size, from the other two sizes; the workers on the loopback, from an exchange
measured separately; and workers in two network namespaces, joined by a veth pair whose rate `tc`
limits, from the rate alone. The namespaces need root (and `ip` and `tc`); they are skipped without
it, and with --mbit_s "". Takes about three minutes on two idle cores.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from large_training import make_split

from tfasr.bench.scaling.predict import read_runs
from tfasr.cluster.launcher import free_ports
from tfasr.telemetry.compiled import require_extensions

FRAMES = 120
STEPS = 25
BATCHES = (8, 16, 32)
PAIR_BATCH = 32
BINDINGS = (
    "AcousticModelConfig.conv_filters = 128",
    "AcousticModelConfig.num_lstm_layers = 2",
    "AcousticModelConfig.lstm_units = 256",
    "PipelineConfig.num_buckets = 1",
    "TrainingConfig.epochs = 1",
    "TrainingConfig.sentences_every_steps = 0",
)
NAMES = ("tfasr-predict-0", "tfasr-predict-1")
ADDRESSES = ("10.231.77.1", "10.231.77.2")
LONGEST_S = 300


class Trainer:
    """Runs `tfasr train` in pinned processes.

    Args:
        folder: gets shards and runs.
        cores: one for each of two processes.
    """

    def __init__(self, folder: Path, cores: Sequence[int]):
        self._folder = folder
        self._cores = cores
        for batch in BATCHES:
            make_split(folder / f"shards-{batch}", "train", STEPS * batch, FRAMES)
            make_split(folder / f"shards-{batch}", "validation", 16, FRAMES)

    def singles(self, batch: int) -> list[str]:
        """Trains two single processes at once, like two workers; returns their runs."""
        runs = [self._folder / f"single-{batch}-{rank}" for rank in range(2)]
        self._train(batch, [["--run_dir", str(run)] for run in runs])
        return [str(run) for run in runs]

    def pair(self, name: str, hosts: Sequence[str], namespaces: Sequence[str] = ()) -> str:
        """Trains two workers; returns their run."""
        run = self._folder / name
        ports = free_ports(2)
        cluster = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        flags = ["--run_dir", str(run), "--cluster", cluster, "--rank"]
        self._train(PAIR_BATCH, [[*flags, str(rank)] for rank in range(2)], namespaces)
        return str(run)

    def _train(
        self, batch: int, flags: Sequence[Sequence[str]], namespaces: Sequence[str] = ()
    ) -> None:
        environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
        children = []
        for number, own in enumerate(flags):
            command = ["ip", "netns", "exec", namespaces[number]] if namespaces else []
            command += ["taskset", "-c", str(self._cores[number]), sys.executable, "-m"]
            command += ["tfasr.cli", "train", "--no_memory_probe", *own]
            command += ["--shard_dir", str(self._folder / f"shards-{batch}")]
            for binding in (*BINDINGS, f"PipelineConfig.global_batch_size = {batch}"):
                command += ["--gin_binding", binding]
            log = (self._folder / f"log-{number}").open("w+b")
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            children.append((child, log))
        for child, log in children:
            with log:
                if child.wait(LONGEST_S):
                    log.seek(0)
                    raise SystemExit(f"tfasr train failed:\n{log.read().decode()[-3000:]}")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Makes two network namespaces joined by a veth pair; yields its two ends."""
    ends = ("tfasr-pred-0", "tfasr-pred-1")
    try:
        for name in NAMES:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(NAMES, ends, ADDRESSES, strict=True):
            call("ip", "link", "set", end, "netns", name)
            call("ip", "-n", name, "address", "add", f"{address}/24", "dev", end)
            for device in (end, "lo"):
                call("ip", "-n", name, "link", "set", device, "up")
        yield ends
    finally:
        for name in NAMES:  # the pair goes with them
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def limit(ends: Sequence[str], mbit_s: int) -> None:
    """Limits each end of the pair to so many megabits per second."""
    for name, end in zip(NAMES, ends, strict=True):
        rate = ["tbf", "rate", f"{mbit_s}mbit", "burst", "64kb", "latency", "400ms"]
        call("tc", "-n", name, "qdisc", "replace", "dev", end, "root", *rate)


def call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def predicted(runs: Sequence[str], batch: int, workers: int, *flags: str) -> dict[str, float]:
    """Returns the prediction of `tfasr bench scaling` for a number of workers."""
    command = [sys.executable, "-m", "tfasr.cli", "bench", "scaling", *runs, "--format", "json"]
    command += ["--workers", str(workers), "--global_batch_size", str(batch), *flags]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    (row,) = json.loads(output)["predicted"]
    return row


def measured_step_s(run_dir: str) -> tuple[float, float]:
    """Returns the seconds of a run's step and of its exchange."""
    result = read_runs([Path(run_dir)], None, "paper", None)
    exchange_s = result.exchanges[0].seconds if result.exchanges else 0.0
    return result.steps[0].seconds + exchange_s, exchange_s


def measure(trainer: Trainer, rates: Sequence[int]) -> list[dict[str, Any]]:
    """Trains, predicts, and returns prediction and measurement of each case."""
    singles = {batch: trainer.singles(batch) for batch in BATCHES}
    low, middle, high = BATCHES
    rows = []

    def compare(name: str, run_dirs: Sequence[str], row: dict[str, float]) -> None:
        steps = [measured_step_s(run_dir) for run_dir in run_dirs]
        step_s, exchange_s = (sum(values) / len(steps) for values in zip(*steps, strict=True))
        inside = row["step_s_low"] <= step_s <= row["step_s_high"]
        error = row["step_s"] / step_s - 1
        forecasts = {
            name: row[name] for name in ("step_s", "step_s_low", "step_s_high", "exchange_s")
        }
        result = {"measured_step_s": step_s, "measured_exchange_s": exchange_s}
        rows.append({"case": name, **forecasts, **result, "error": error, "inside": inside})

    outer = predicted([*singles[low], *singles[high]], middle, 1)
    compare(f"1 process, batch {middle}", singles[middle], outer)
    present = [run for runs in singles.values() for run in runs]
    loopback = trainer.pair("loopback", ("127.0.0.1",) * 2)
    row = predicted(present, PAIR_BATCH, 2, "--measure_exchange")
    compare("2 workers, loopback", [loopback], row)
    if not rates:
        return rows
    with two_hosts() as ends:
        for rate in rates:
            limit(ends, rate)
            run = trainer.pair(f"veth-{rate}", ADDRESSES, NAMES)
            link = ("--link_gbit_s", str(rate / 1000), "--over_loopback")
            compare(
                f"2 workers, {rate} Mbit/s",
                [run],
                predicted([*present, loopback], PAIR_BATCH, 2, *link),
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit_s", default="1000,200,50", help="rates; default: %(default)s")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    require_extensions()
    rates = [int(rate) for rate in arguments.mbit_s.split(",") if rate]
    if rates and (os.geteuid() or not shutil.which("ip") or not shutil.which("tc")):
        print("The limited links are left out: they need root, ip and tc.", file=sys.stderr)
        rates = []
    usable = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Trainer(Path(folder), (usable[0], usable[-1])), rates)
    if arguments.format == "json":
        print(json.dumps({"rows": rows, "load_average": os.getloadavg()[0]}))
        return
    print(f"{'':26}{'predicted ms':>14}{'interval':>18}{'measured ms':>13}{'error':>8}  inside")
    for row in rows:
        low, middle, high, result = (
            1000 * row[name] for name in ("step_s_low", "step_s", "step_s_high", "measured_step_s")
        )
        bounds = f"{low:.0f} to {high:.0f}"
        error = f"{100 * row['error']:+.0f} %"
        print(
            f"{row['case']:26}{middle:14.0f}{bounds:>18}{result:13.0f}{error:>8}  {row['inside']}"
        )


if __name__ == "__main__":
    main()
