"""The cost of an evaluation by its placement and decoder: runs in alternation.

    python benchmarks/placement.py --shard_dir demo/shards --out DIR [--gin_file paper_demo.gin]
        [--epochs 8] [--target cer=0.1] [--placements shared swapped beside beside@cpu:1]
        [--decoders greedy greedy+word_beam:256] [--batches 8] [--rounds 1] [--format json]

Each run is a `tfasr train` process for the same epochs; runs that exist in DIR are only
read. "greedy+word_beam:256" also scores with word beam search of width 256. Use a
machine without other work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import tfasr
from tfasr.ledger.intervals import EVALUATION
from tfasr.reports.numbers import epoch_seconds
from tfasr.telemetry.compiled import require_extensions
from tfasr.tta.decomposition import decompose, parts_until
from tfasr.tta.metrics import parse_target
from tfasr.tta.run import Run

INTERVALS = (
    "train",
    "input_wait",
    "compile",
    *EVALUATION,
    "checkpoint",
    "overhead",
    "init",
)


def train(placement: str, decoder: str, batch: int, run_dir: Path, arguments) -> None:
    place, _, devices = placement.partition("@")
    names, _, width = decoder.partition(":")
    name, _, second = names.partition("+")

    evaluated_on: tuple[str, ...] = ()
    if devices:
        evaluated_on = tuple(devices.split(","))

    bindings = [
        f"TrainingConfig.epochs = {arguments.epochs}",
        "TrainingConfig.stop_at_targets = False",
        f"TrainingConfig.evaluation_placement = {place!r}",
        f"TrainingConfig.evaluation_devices = {evaluated_on!r}",
        f"TrainingConfig.second_decoder = {second!r}",
        f"DecoderConfig.name = {name!r}",
    ]
    if width:
        bindings.append(f"DecoderConfig.beam_width = {width}")

    if batch:
        bindings.append(f"PipelineConfig.global_batch_size = {batch}")

    command = [
        sys.executable,
        "-m",
        "tfasr.cli",
        "train",
        "--gin_file",
        arguments.gin_file,
    ]
    command += ["--shard_dir", str(arguments.shard_dir), "--run_dir", str(run_dir)]
    for binding in bindings:
        command += ["--gin_binding", binding]

    subprocess.run(command, check=True, capture_output=True)


def measured(run: Run, target: tuple[str, float] | None) -> dict[str, float | None]:
    def worked(key: str) -> float:
        return sum(event["value"] for event in run.events if event["key"] == key)

    beside = [
        event["value"] for event in run.events if event["key"] == "evaluation_work"
    ]
    epoch_s = statistics.median(epoch_seconds(run))
    known_s, reached = (
        run.accuracy_curve("cer", name) for name in ("paper", "algoperf")
    )
    parts = parts_until(run.timeline, known_s[-1].elapsed_s)
    result = {
        "epochs": len(known_s),
        "last_score_known_s": known_s[-1].elapsed_s,
        "last_weights_algoperf_s": reached[-1].elapsed_s,
        "utterances_per_s": parts.utterances_per_s,
        "epoch_s": epoch_s,
        "evaluation_share": parts.seconds["evaluation"] / known_s[-1].elapsed_s,
        **{f"{name}_s": run.intervals[name] for name in INTERVALS},
        "decoder_worked_s": worked("decode_work"),
        "second_decoder_worked_s": worked("second_decode_work"),
        "second_decoder_share": worked("second_decode_work") / known_s[-1].elapsed_s,
        "other_process_worked_s": sum(sum(item.values()) for item in beside),
        "wall_s": run.wall_s,
        "last_cer": known_s[-1].value,
    }

    if target:
        result["target_s"] = run.time_to_accuracy(**dict([target])).seconds
        result["target_algoperf_s"] = run.time_to_accuracy(
            policy="algoperf", window=3, **dict([target])
        ).seconds

    return result


def factors(first: Run, run: Run, target: tuple[str, float]) -> dict[str, float] | None:
    reached = [item.time_to_accuracy(**dict([target])).seconds for item in (first, run)]
    if None in reached:
        return None

    parts = [
        parts_until(item.timeline, s)
        for item, s in zip((first, run), reached, strict=True)
    ]
    answer = decompose(parts[:1], parts[1:])

    return {"ratio": answer.ratio, **answer.factors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gin_file", default="paper_demo.gin")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--target", type=parse_target)
    parser.add_argument(
        "--placements", nargs="+", default=["shared", "swapped", "beside"]
    )
    parser.add_argument("--decoders", nargs="+", default=["greedy"])
    parser.add_argument("--batches", nargs="+", type=int, default=[0])
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    require_extensions()
    kinds = [
        (place, how, batch)
        for how in arguments.decoders
        for batch in arguments.batches
        for place in arguments.placements
    ]
    runs: dict[str, list[Run]] = {}

    for number in range(arguments.rounds):
        for place, how, batch in kinds:
            name = f"{place} {how}"
            if batch:
                name += f" batch {batch}"

            folder = name.replace(" ", "_").replace(":", "")
            run_dir = arguments.out / f"{folder}-{number}"
            if not run_dir.exists():
                train(place, how, batch, run_dir, arguments)
                print(
                    f"{run_dir.name}: load {os.getloadavg()[0]:.2f} after it",
                    file=sys.stderr,
                )

            runs.setdefault(name, []).append(tfasr.load_run(run_dir))

    rows = {
        name: [measured(run, arguments.target) for run in of]
        for name, of in runs.items()
    }
    shown = {name: medians(of) for name, of in rows.items()}
    first = next(iter(runs.values()))[0]

    if arguments.target:
        for name, of in runs.items():
            against = factors(first, of[0], arguments.target) or {}
            for key, value in against.items():
                shown[name][f"factor_{key}"] = value

    if arguments.format == "json":
        print(json.dumps(shown))
        return

    width = max(map(len, shown))
    print(" " * 28, *(f"{name:>{width}}" for name in shown))
    for key in max(shown.values(), key=len):
        cells = [cell_text(item.get(key), width) for item in shown.values()]
        print(f"{key:28}", *cells)


def medians(rows: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Returns the medians of runs; None if a run lacks the number."""
    result: dict[str, float | None] = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        result[key] = None
        if None not in values:
            result[key] = statistics.median(values)

    return result


def cell_text(value: float | None, width: int) -> str:
    if value is None:
        return "n/a".rjust(width)

    return f"{value:>{width}.4g}"


if __name__ == "__main__":
    main()
