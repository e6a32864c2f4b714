"""How much this machine's times vary: one training step in consecutive processes.

    python benchmarks/repeated_step.py [--runs 16] [--gin_file an4.gin] --out FILE.json

Writes ``step_s``, the median step of each process, for ``benchmarks/history.py
--measured``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfasr.telemetry.system import describe_system

ROUNDS = 5


def timed(gin_file: str, batch: int, frames: int) -> float:
    """Returns the seconds of a training step, timed in its own process."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            "-m",
            "tfasr.cli",
            "bench",
            "step",
            "--gin_file",
            gin_file,
        ]
        command += [
            "--batch",
            str(batch),
            "--frames",
            str(frames),
            "--precision",
            "float32",
        ]
        command += ["--rounds", str(ROUNDS), "--format", "json", "--out", out]
        subprocess.run(command, check=True, capture_output=True)
        result = list(
            _values(
                json.loads((Path(out) / "results.json").read_text("utf-8")), "step_s"
            )
        )

    return result[0]


def _values(content: Any, name: str) -> Iterator[float]:
    """Yields all values of a name, anywhere in JSON."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key == name:
                yield value
            else:
                yield from _values(value, name)
    elif isinstance(content, list):
        for value in content:
            yield from _values(value, name)


def main() -> None:
    """Times and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--gin_file", default="an4.gin")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    result = {
        "date": time.strftime("%Y-%m-%d"),
        "gin_file": args.gin_file,
        "batch": args.batch,
        "frames": args.frames,
        "rounds": ROUNDS,
        "machine": describe_system(),
        "load_before": os.getloadavg()[0],
        "step_s": [
            timed(args.gin_file, args.batch, args.frames) for _ in range(args.runs)
        ],
        "load_after": os.getloadavg()[0],
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    times = result["step_s"]
    print(
        f"CV {100 * statistics.stdev(times) / statistics.fmean(times):.2f} %, {times}"
    )


if __name__ == "__main__":
    main()
