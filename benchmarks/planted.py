"""Plants disturbances of known size beside a run, and compares what the report says of them.

    python benchmarks/planted.py --repeats 5

A run takes a fixed number of steps on two threads, first undisturbed, then under each of: a
competing process, two of them, a quota of half a processor and of one and a half, and a stop of
five seconds. A row compares the steps' seconds of the undisturbed runs with what the report
estimates from the disturbed ones, and names the cause it gives. Quotas need the right to make
control groups (as root); without it those rows say n/a. Run it on a quiet machine.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STOP_S = 5.0
PERIOD_US = 100_000
GROUPS = Path("/sys/fs/cgroup")
BUSY = "while True: pass"
RUN = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import tfasr

matrix = np.random.default_rng(1).random((400, 400))

def multiply(_):
    for _ in range(8):
        matrix @ matrix

with ThreadPoolExecutor(2) as threads, tfasr.Recorder(sys.argv[1], targets=["cer=0.1"]) as run:
    with run.epoch():
        print("training", flush=True)
        for _ in range(int(sys.argv[2])):
            with run.step(utterances=8):
                list(threads.map(multiply, range(2)))
        with run.evaluation() as evaluation:
            evaluation.measure(cer=0.05)
"""


@contextlib.contextmanager
def competing(count: int) -> Iterator[None]:
    """Runs busy programs, so many, meanwhile."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextlib.contextmanager
def quota(processors: float) -> Iterator[Path]:
    """Makes a control group that may use so many processors; yields its folder."""
    if (GROUPS / "cgroup.controllers").exists():
        group = GROUPS / f"tfasr-planted-{os.getpid()}"
        group.mkdir()
        (group / "cpu.max").write_text(f"{int(processors * PERIOD_US)} {PERIOD_US}")
    else:
        group = GROUPS / "cpu" / f"tfasr-planted-{os.getpid()}"
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(processors * PERIOD_US)))
    try:
        yield group
    finally:
        time.sleep(0.2)
        group.rmdir()


def train(folder: Path, steps: int, group: Path | None = None, stop_s: float = 0.0) -> None:
    """Trains once, in a control group and with a stop in the middle if asked to."""
    program = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(steps)], stdout=subprocess.PIPE, text=True
    )
    if group is not None:
        (group / "cgroup.procs").write_text(str(program.pid))
    program.stdout.readline()
    if stop_s:
        time.sleep(1.5)
        program.send_signal(signal.SIGSTOP)
        time.sleep(stop_s)
        program.send_signal(signal.SIGCONT)
    program.communicate()
    if program.returncode:
        raise SystemExit(f"A run failed with exit status {program.returncode}.")


def reported(folder: Path) -> dict[str, object]:
    """Returns the steps' seconds, the estimate for an undisturbed machine, and the first cause."""
    from tfasr.tta.host import host_use, read_host_file
    from tfasr.tta.run import load_run

    use = host_use(read_host_file(folder), load_run(folder).timeline)
    cause = use.causes()[0][0] if use.disturbed else ""
    return {"steps_s": use.wall_s + use.unknown_s, "share": use.share, "cause": cause}


CONDITIONS = {
    "quiet": {},
    "one program": {"programs": 1},
    "two programs": {"programs": 2},
    "quota 0.5": {"processors": 0.5},
    "quota 1.5": {"processors": 1.5},
    f"stopped {STOP_S:g} s": {"stop_s": STOP_S},
}


def measure(folder: Path, steps: int, condition: dict[str, float]) -> dict[str, object] | None:
    """Trains under one condition; None without the right to make control groups."""
    with contextlib.ExitStack() as planted:
        planted.enter_context(competing(int(condition.get("programs", 0))))
        group = None
        if "processors" in condition:
            try:
                group = planted.enter_context(quota(condition["processors"]))
            except OSError:
                return None
        train(folder, steps, group, condition.get("stop_s", 0.0))
    return reported(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, help="also write JSON here")
    arguments = parser.parse_args()

    rows: dict[str, list[dict[str, object]]] = {name: [] for name in CONDITIONS}
    for repeat in range(arguments.repeats):
        for name, condition in CONDITIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                row = measure(Path(folder) / "run", arguments.steps, condition)
            if row is not None:
                rows[name].append(row)
                print(f"{repeat + 1} {name}: {row}", file=sys.stderr)

    quiet_s = statistics.median(row["steps_s"] for row in rows["quiet"])
    print("| condition | steps, s | share % | estimate, s | of the quiet time | causes |")
    print("|---|---|---|---|---|---|")
    for name, measured in rows.items():
        if not measured:
            print(f"| {name} | n/a | n/a | n/a | n/a | no right to make control groups |")
            continue
        steps_s = statistics.median(row["steps_s"] for row in measured)
        share = statistics.median(row["share"] for row in measured)
        estimates_s = [row["steps_s"] * row["share"] for row in measured]
        ratios = sorted(estimate_s / quiet_s for estimate_s in estimates_s)
        causes = ", ".join(sorted({row["cause"] for row in measured if row["cause"]})) or "none"
        print(
            f"| {name} | {steps_s:.1f} | {100 * share:.0f} | {statistics.median(estimates_s):.1f} "
            f"| {ratios[0]:.2f} to {ratios[-1]:.2f} | {causes} |"
        )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
