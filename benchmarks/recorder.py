"""The cost of `tfasr.Recorder` per step, around steps of 50 ms and empty ones.

    python benchmarks/recorder.py

Steps record utterances, seconds of audio and a loss, in blocks, compared with the same
loop without a recorder. Empty steps are many, and give the cost in warm caches to a
tenth of a microsecond. Steps of 50 ms sleep, after which caches are cold, as after a
real step. Wall-clock and processor time are reported, as only the former is affected by
other work. Runs take turns, and medians of the rounds are reported. Takes about a
minute. See `results.py` for --out. --out.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from twin import results

import tfasr

STEP_S = 0.05


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    parser.add_argument(
        "--steps", type=int, default=50, help="of 50 ms, a round; default: 50"
    )
    parser.add_argument(
        "--empty_steps", type=int, default=5000, help="default: %(default)s"
    )
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--out", type=Path, help="also write JSON and Markdown: a file or a folder"
    )
    flags = parser.parse_args()

    rows = [
        {
            "step_ms": 0.0,
            "steps": flags.empty_steps,
            **measured(0.0, flags.empty_steps, flags),
        },
        {
            "step_ms": 1000 * STEP_S,
            "steps": flags.steps,
            **measured(STEP_S, flags.steps, flags),
        },
    ]

    for row in rows:
        row["share_pct"] = 100 * row["recorder_us"] / (1e6 * STEP_S)
        row["cpu_share_pct"] = 100 * row["cpu_us"] / (1e6 * STEP_S)

    columns = [
        ("step_ms", "step, ms"),
        ("steps", "steps a round"),
        ("plain_us", "plain, us a step"),
        ("recorded_us", "recorded, us a step"),
        ("recorder_us", "difference, us"),
        ("spread_us", "over rounds, us"),
        ("cpu_us", "of the processor, us"),
        ("share_pct", "of a step of 50 ms, %"),
        ("cpu_share_pct", "by the processor, %"),
    ]
    tables = [{"title": "A recorded step", "columns": columns, "rows": rows}]
    notes = [
        f"Medians of {flags.rounds} rounds; over rounds: largest less least difference."
    ]
    outcome = results.result("recorder", tables, notes, {})
    results.publish(outcome, flags.out, flags.format)


def measured(step_s: float, steps: int, flags: argparse.Namespace) -> dict[str, float]:
    """Returns microseconds per step without and with a recorder, and their difference."""
    plain = []
    recorded = []
    for _ in range(flags.rounds):
        plain.append([1e6 * seconds / steps for seconds in plain_loop(step_s, steps)])
        recorded.append(
            [1e6 * seconds / steps for seconds in recorded_loop(step_s, steps)]
        )

    wall, cpu = (
        [b[clock] - a[clock] for a, b in zip(plain, recorded, strict=True)]
        for clock in (0, 1)
    )
    return {
        "plain_us": statistics.median(a for a, _ in plain),
        "recorded_us": statistics.median(a for a, _ in recorded),
        "recorder_us": statistics.median(wall),
        "spread_us": max(wall) - min(wall),
        "cpu_us": statistics.median(cpu),
    }


def plain_loop(step_s: float, steps: int) -> tuple[float, float]:
    """Returns the wall-clock and processor seconds of a loop of steps."""
    began = time.perf_counter(), time.process_time()
    for _ in range(steps):
        work(step_s)

    return time.perf_counter() - began[0], time.process_time() - began[1]


def recorded_loop(step_s: float, steps: int) -> tuple[float, float]:
    """Returns the seconds of the same loop with a recorder's blocks."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tfasr.Recorder(f"{folder}/run") as run,
    ):
        run.epoch()
        began = time.perf_counter(), time.process_time()
        for _ in range(steps):
            with run.step(utterances=16, audio_s=60.0) as step:
                step.loss = work(step_s)

        return time.perf_counter() - began[0], time.process_time() - began[1]


def work(step_s: float) -> float:
    """Takes the given time and returns a loss."""
    if step_s:
        time.sleep(step_s)

    return 1.25


if __name__ == "__main__":
    main()
