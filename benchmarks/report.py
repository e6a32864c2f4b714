"""The cost of `tfasr report` on many runs, compared with parsing alone.

    python benchmarks/report.py [--runs 1000] [--folder DIR] [--format json]

It first writes the runs: 36 epochs of 56 steps each, about 0.9 MB of ledger, ten seeds
per configuration. The lower bound for any report is json.loads of every line, in one
process, in the same call of this program.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

EPOCHS = 36
STEPS = 56


def events(seed: int) -> Iterator[dict[str, Any]]:
    """Yields a run's events, as training writes them."""
    rng = random.Random(seed)
    now = 1000.0

    def event(
        key: str, value: Any = None, kind: str = "POINT_IN_TIME", **about: Any
    ) -> dict:
        clock = {"session": 0, "mono_s": round(now, 6)}
        return {
            "namespace": "",
            "time_ms": int(1.7e12 + 1000 * now),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {**about, **clock},
        }

    def edge(name: str, end: str, **about: Any) -> dict:
        return event(f"{name}_{end}", None, f"INTERVAL_{end.upper()}", **about)

    yield event(
        "session_start",
        {"session": 0, "resumed_from_step": None, "alive_until_ms": None},
    )

    yield edge("init", "start")

    yield event("model_creation")

    now += 2.0

    yield edge("init", "stop")

    yield edge("run", "start")

    yield event("global_batch_size", 16)

    yield event("targets", [["cer", 0.15], ["wer", 0.25]])

    yield event("comparability", {"split": "validation", "decoder": "greedy"})

    pace = 0.12 + 0.02 * rng.random()

    for epoch in range(1, EPOCHS + 1):
        yield edge("epoch", "start", epoch_num=epoch)

        for step in range(1, STEPS + 1):
            wait_s = 0.002 * rng.random()
            train_s = pace * (1 + 0.1 * rng.random())
            now += wait_s + train_s
            value = {
                "loss": round(200 / epoch + rng.random(), 6),
                "utterances": 16,
                "audio_s": 41.3,
                "frames": 4100,
                "padded_frames": 4600,
                "input_wait_s": round(wait_s, 6),
                "compile_s": 0.0,
                "train_s": round(train_s, 6),
            }

            yield event(
                "train_step", value, epoch_num=epoch, step=(epoch - 1) * STEPS + step
            )

        for name in ("checkpoint", "eval", "eval_forward", "decode"):
            yield edge(name, "start", epoch_num=epoch, step=epoch * STEPS)

            now += 0.2
            if name != "eval":
                yield edge(name, "stop", epoch_num=epoch, step=epoch * STEPS)

        cer = 0.6 * 0.93**epoch + 0.02 * rng.random()

        yield event("eval_accuracy", 2 * cer, epoch_num=epoch)

        scores = {"wer": 2 * cer, "cer": cer, "loss": 30 * cer, "utterances": 103}

        yield event("tracked_stats", scores, epoch_num=epoch)

        yield edge("eval", "stop", epoch_num=epoch)

        yield edge("epoch", "stop", epoch_num=epoch)

    yield event("run_stop", None, "INTERVAL_END", status="success")


def chained(events: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """Yields a ledger's lines, each with its chained hash."""
    head = hashlib.blake2b(b"", digest_size=16).hexdigest()
    for event in events:
        text = json.dumps(event).encode()[:-1]
        head = hashlib.blake2b(head.encode() + text, digest_size=16).hexdigest()

        yield text + f',"chain":"{head}"}}\n'.encode()


def write_runs(folder: Path, count: int) -> list[Path]:
    run_dirs = []
    for number in range(count):
        run_dir = folder / f"config{number // 10:03}-seed{number % 10}"
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "events.jsonl").write_bytes(b"".join(chained(events(number))))
        (run_dir / "config.gin").write_text(f"train.batch = {number // 10}\n")
        run_dirs.append(run_dir)

    return run_dirs


def parse_alone(run_dirs: list[Path]) -> dict[str, float]:
    wall = time.perf_counter()
    cpu = time.process_time()
    for run_dir in run_dirs:
        for line in (run_dir / "events.jsonl").read_bytes().splitlines():
            json.loads(line)

    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def report(arguments: list[str]) -> dict[str, float]:
    """Runs the command; memory is that of all its processes together, sampled every 50 ms."""
    before = _children_s()
    began = time.perf_counter()
    command = [sys.executable, "-m", "tfasr.cli", "report", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    seen = psutil.Process(process.pid)
    most = 0

    while process.poll() is None:
        most = max(most, _memory(seen))
        time.sleep(0.05)

    if process.returncode:
        raise SystemExit(
            f"tfasr report ended with {process.returncode}: {command[:6]} ..."
        )

    wall_s = time.perf_counter() - began
    return {"wall_s": wall_s, "cpu_s": _children_s() - before, "memory_mb": most / 1e6}


def _memory(process: psutil.Process) -> int:
    total = 0
    try:
        for item in [process, *process.children(recursive=True)]:
            total += item.memory_info().rss
    except psutil.Error:
        pass  # it ended between being listed and being asked

    return total


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, count: int) -> dict[str, Any]:
    run_dirs = write_runs(folder, count)
    paths = [str(run_dir) for run_dir in run_dirs]
    result = {
        "parsing alone": parse_alone(run_dirs),
        "text": report(paths),
        "--format json": report([*paths, "--format", "json"]),
        "--out": report([*paths, "--out", str(folder / "out")]),
    }

    return {
        "runs": count,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "forms": result,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, help="where the runs go; default: a temporary one"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        result = measure(arguments.folder or Path(temporary), arguments.runs)

    if arguments.format == "json":
        print(json.dumps(result, indent=2))
        return

    floor = result["forms"]["parsing alone"]["cpu_s"]
    print(
        f"{result['runs']} runs, {result['cores']} cores, load {result['load']:.1f}\n"
    )
    print("| form | s | CPU s | x parsing | MB |\n|---|---:|---:|---:|---:|")

    for form, cost in result["forms"].items():
        cells = [form, f"{cost['wall_s']:.1f}", f"{cost['cpu_s']:.1f}"]
        cells.append(f"{cost['cpu_s'] / floor:.1f}")
        if "memory_mb" in cost:
            cells.append(f"{cost['memory_mb']:.0f}")
        else:
            cells.append("n/a")

        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
