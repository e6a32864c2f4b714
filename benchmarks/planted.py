"""Plants disturbances of known size beside a run, and compares what the report says of them.

    python benchmarks/planted.py --repeats 5                  # five runs a row, about 24 minutes
    python benchmarks/planted.py --repeats 5 --only memory    # and the undisturbed runs: 4 minutes

A run takes a fixed number of steps on two threads and reads a file that is mapped into memory,
first undisturbed, then under each of: a competing process, two of them, a quota of half a processor
and of one and a half, a stop of five seconds, and control groups with too little memory for the
file. A row compares the steps' seconds of the undisturbed runs with what the report estimates from
the disturbed ones, and names the cause it gives. Control groups need root; without it those rows
say n/a. Run it on a quiet machine.
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
FILE_BYTES = 96 << 20  # of the file that every run reads, a part at each step
BUSY = "while True: pass"
RUN = """
import mmap, os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import tfasr

matrix = np.random.default_rng(1).random((400, 400))
# Its pages belong to this process's control group, unless they are in memory already.
file = os.open(sys.argv[3], os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
pages = np.frombuffer(mapped, np.uint8).reshape(-1, 4096)[:, 0]
parts = np.array_split(np.random.default_rng(2).permutation(len(pages)), 512)
pages.sum()

def multiply(_):
    for _ in range(8):
        matrix @ matrix

with ThreadPoolExecutor(2) as threads, tfasr.Recorder(sys.argv[1], targets=["cer=0.1"]) as run:
    with run.epoch():
        print("training", flush=True)
        for step in range(int(sys.argv[2])):
            with run.step(utterances=8):
                pages[parts[step % len(parts)]].sum()
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
def control_group(controller: str, limits: dict[str, str]) -> Iterator[Path]:
    """Makes a control group with these limits, by file; yields its folder."""
    top = GROUPS if (GROUPS / "cgroup.controllers").exists() else GROUPS / controller
    group = top / f"tfasr-planted-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        yield group
    finally:
        time.sleep(0.2)
        group.rmdir()


def quota(processors: float) -> contextlib.AbstractContextManager[Path]:
    """Makes a control group that may use so many processors."""
    quota_us = str(int(processors * PERIOD_US))
    if (GROUPS / "cgroup.controllers").exists():
        return control_group("cpu", {"cpu.max": f"{quota_us} {PERIOD_US}"})
    limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota_us}
    return control_group("cpu", limits)


def little_memory(mib: int) -> contextlib.AbstractContextManager[Path]:
    """Makes a control group that may use so many MiB of memory."""
    limit = str(mib << 20)
    if (GROUPS / "cgroup.controllers").exists():
        return control_group("memory", {"memory.max": limit})
    return control_group("memory", {"memory.limit_in_bytes": limit})


def train(
    folder: Path, steps: int, file: Path, group: Path | None = None, stop_s: float = 0.0
) -> None:
    """Trains once, in a control group and with a stop in the middle if asked to."""
    command = [sys.executable, "-c", RUN, str(folder), str(steps), str(file)]
    if group is not None:
        # The program joins the group before it begins, so that all of its memory
        # counts.
        joins = 'echo $$ > "$0" && exec "$@"'
        command = ["sh", "-c", joins, str(group / "cgroup.procs"), *command]

    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    """Returns the steps' seconds, the estimate for an undisturbed machine, and the
    first cause.
    """
    from tfasr.tta.host import host_use, read_host_file
    from tfasr.tta.run import load_run

    use = host_use(read_host_file(folder), load_run(folder).timeline)
    cause = use.causes()[0][0] if use.disturbed else ""
    parts = {name: round(part, 3) for name, part in use.causes() if part}
    steps_s = use.wall_s + use.unknown_s
    return {"steps_s": steps_s, "share": use.share, "cause": cause, "causes": parts}


CONDITIONS = {
    "quiet": {},
    "one program": {"programs": 1},
    "two programs": {"programs": 2},
    "quota 0.5": {"processors": 0.5},
    "quota 1.5": {"processors": 1.5},
    f"stopped {STOP_S:g} s": {"stop_s": STOP_S},
    # Enough for the program and for most or half of the file
    "memory": {"memory_mib": 110},
    "half the memory": {"memory_mib": 80},
}


def measure(
    folder: Path, steps: int, file: Path, condition: dict[str, float]
) -> dict[str, object] | None:
    """Trains under one condition; None without the right to make control groups."""
    with contextlib.ExitStack() as planted:
        planted.enter_context(competing(int(condition.get("programs", 0))))
        group = None
        try:
            if "processors" in condition:
                group = planted.enter_context(quota(condition["processors"]))
            if "memory_mib" in condition:
                group = planted.enter_context(little_memory(condition["memory_mib"]))
        except OSError:
            return None

        train(folder, steps, file, group, condition.get("stop_s", 0.0))

    return reported(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    names = f"only these and the undisturbed runs: {', '.join(CONDITIONS)}"
    parser.add_argument(
        "--only", nargs="+", choices=CONDITIONS, metavar="NAME", help=names
    )
    parser.add_argument("--out", type=Path, help="also write JSON here")
    arguments = parser.parse_args()

    chosen = CONDITIONS
    if arguments.only is not None:
        chosen = {name: CONDITIONS[name] for name in ("quiet", *arguments.only)}
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pages"
        file.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        os.sync()  # only pages that are on the disk can be taken from memory
        for repeat in range(arguments.repeats):
            for name, condition in chosen.items():
                with tempfile.TemporaryDirectory() as run:
                    row = measure(Path(run) / "run", arguments.steps, file, condition)
                if row is not None:
                    rows[name].append(row)
                    print(f"{repeat + 1} {name}: {row}", file=sys.stderr)

    quiet_s = statistics.median(row["steps_s"] for row in rows["quiet"])
    print(
        "| condition | steps, s | share % | estimate, s | of the quiet time | causes |"
    )
    print("|---|---|---|---|---|---|")
    for name, measured in rows.items():
        if not measured:
            print(
                f"| {name} | n/a | n/a | n/a | n/a | no right to make control groups |"
            )
            continue

        steps_s = statistics.median(row["steps_s"] for row in measured)
        share = statistics.median(row["share"] for row in measured)
        estimates_s = [row["steps_s"] * row["share"] for row in measured]
        ratios = sorted(estimate_s / quiet_s for estimate_s in estimates_s)
        causes = (
            ", ".join(sorted({row["cause"] for row in measured if row["cause"]}))
            or "none"
        )
        print(
            f"| {name} | {steps_s:.1f} | {100 * share:.0f} | {statistics.median(estimates_s):.1f} "
            f"| {ratios[0]:.2f} to {ratios[-1]:.2f} | {causes} |"
        )

    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
