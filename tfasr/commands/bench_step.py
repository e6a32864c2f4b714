"""``tfasr bench step``: seconds, FLOP/s and memory of a training step on a synthetic batch.

Every size and precision is measured in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.errors import RunError, UsageError

if TYPE_CHECKING:
    from tfasr.bench.step.timing import StepTiming

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
FORMATS = ("table", "markdown", "json")

_log = logging.getLogger(__name__)


def bench_step(
    *,
    gin_file: str | None = None,
    gin_bindings: Sequence[str] = (),
    batches: Sequence[int] = (16,),
    frames: Sequence[int] = (600,),
    labels: int | None = None,
    precisions: Sequence[str] = ("float32", "mixed_bfloat16"),
    rounds: int = 5,
    length_spread: float = 0.0,
    out: str | Path | None = None,
    output_format: str = "table",
) -> str:
    """Measures training steps and returns the table as text.

    Args:
        gin_file: a preset or file; by default the paper's model and optimizer.
        gin_bindings: lines of gin that override the file's.
        batches: utterances; each is measured with all frames and precisions.
        frames: feature frames to which a batch is padded.
        labels: of the longest transcript; by default as many as are said in the time.
        precisions: of "float32", "mixed_bfloat16" and "mixed_float16".
        rounds: how often each part of a step is measured.
        length_spread: by what share the shortest utterance is shorter than the longest.
        out: a folder for ``results.json`` and ``table.md``, written anew after each measurement.
        output_format: "table", "markdown" or "json".

    Raises:
        UsageError: if an argument or the preset is wrong.
        RunError: if a measurement fails; those before it are in ``out``.
    """
    sizes = list(product(batches, frames, precisions))
    _check(sizes, rounds, length_spread, output_format)
    source = {"gin_file": gin_file, "gin_bindings": list(gin_bindings)}
    timings: list[StepTiming] = []
    for batch, padded_frames, precision in sizes:
        settings = {
            **source,
            "batch": batch,
            "frames": padded_frames,
            "labels": labels,
            "precision": precision,
            "rounds": rounds,
            "length_spread": length_spread,
        }
        timings.append(_measure_apart(settings))
        _log_timing(timings[-1])
        if out is not None:
            _write(timings, source, Path(out))
    return _to_format(timings, source, output_format)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the workload's flags."""
    parser.add_argument("--gin_file", help="preset or file; default: the paper's model")
    parser.add_argument("--gin_binding", action="append", default=[], help="repeatable")
    parser.add_argument("--batch", default="16", help="with commas; default: %(default)s")
    parser.add_argument("--frames", default="600", help="with commas; default: %(default)s")
    parser.add_argument("--labels", type=int, help="default: a seventh of the frames")
    parser.add_argument(
        "--precision", default="float32,mixed_bfloat16", help="with commas; default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--length_spread", type=float, default=0.0, help="share by which lengths differ"
    )
    parser.add_argument("--out", metavar="DIR", help="gets results.json and table.md")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Runs the workload."""
    text = bench_step(
        gin_file=arguments.gin_file,
        gin_bindings=arguments.gin_binding,
        batches=_numbers("--batch", arguments.batch),
        frames=_numbers("--frames", arguments.frames),
        labels=arguments.labels,
        precisions=arguments.precision.split(","),
        rounds=arguments.rounds,
        length_spread=arguments.length_spread,
        out=arguments.out,
        output_format=arguments.format,
    )
    sys.stdout.write(text)


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"{flag} must be integers with commas, such as 8,16. Received: {text!r}."
        ) from error


def _check(
    sizes: Sequence[tuple[int, int, str]], rounds: int, length_spread: float, output_format: str
) -> None:
    for batch, frames, precision in sizes:
        if min(batch, frames) < 1:
            raise UsageError(
                f"--batch and --frames must be at least 1. Received: {batch} and {frames}."
            )
        if precision not in PRECISIONS:
            raise UsageError(f"--precision must be of {PRECISIONS}. Received: {precision!r}.")
    if rounds < 1:
        raise UsageError(f"--rounds must be at least 1. Received: {rounds}.")
    if not 0 <= length_spread < 1:
        raise UsageError(f"--length_spread must be in 0..1, below 1. Received: {length_spread}.")
    if output_format not in FORMATS:
        raise UsageError(f"The format must be one of {FORMATS}. Received: {output_format!r}.")


def _measure_apart(settings: dict[str, Any]) -> "StepTiming":
    """Measures in a new process: the one that asks has no memory of the device's in use."""
    from tfasr.bench.step.timing import StepTiming

    command = [sys.executable, "-m", "tfasr.commands.bench_step", json.dumps(settings)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        cause = f"signal {-done.returncode}" if done.returncode < 0 else f"{done.returncode}"
        raise RunError(
            f"Measuring {settings['batch']} x {settings['frames']} in {settings['precision']} must "
            f"end with exit code 0. Received: {cause} (signal 9 is what a full memory looks like). "
            f"{done.stderr.strip()[-1000:]}"
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    if "usage_error" in answer:
        raise UsageError(answer["usage_error"])
    return StepTiming.from_json(answer)


def _measure_here(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns this process's answer as JSON values."""
    from tfasr.bench.step.measure import measure_step
    from tfasr.training.from_gin import load_config

    sizes = {name: settings[name] for name in settings if not name.startswith("gin_")}
    try:
        config = load_config(settings["gin_file"], settings["gin_bindings"])
        return measure_step(config.experiment, **sizes).to_json()
    except ValueError as error:  # UsageError is one
        return {"usage_error": str(error)}


def _to_format(timings, source, output_format: str) -> str:
    from tfasr.bench.step.table import steps_to_format

    return steps_to_format(timings, source, output_format)


def _write(timings, source, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, output_format in (("results.json", "json"), ("table.md", "markdown")):
        text = _to_format(timings, source, output_format)
        (folder / name).write_text(text, encoding="utf-8")


def _log_timing(timing: "StepTiming") -> None:
    _log.info(
        "%d x %d, %s: %.0f ms a step, %.0f %% of the matmul ceiling",
        timing.batch,
        timing.frames,
        timing.precision,
        1000 * timing.step_s,
        100 * timing.model_flops_utilisation,
    )


if __name__ == "__main__":
    print(json.dumps(_measure_here(json.loads(sys.argv[1]))))
