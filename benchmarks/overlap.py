"""Savings and costs of overlapping decoding with training, from pairs of runs.

    python benchmarks/overlap.py --shard_dir demo/shards [--beam_width 4096] [--format json]

Both runs train the demo's model for the same epochs with word beam search, in separate
processes in alternation. The ledgers record how long training waited for the decoder,
how long the decoder worked, and how much it slowed down the training steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tfasr
from tfasr.telemetry.compiled import require_extensions


def train(shard_dir: Path, run_dir: Path, overlap: bool, arguments) -> dict[str, float]:
    bindings = [
        "FeatureConfig.spectrum = 'magnitude'",  # what the demo's shards hold
        f"TrainingConfig.epochs = {arguments.epochs}",
        "TrainingConfig.stop_at_targets = False",
        f"TrainingConfig.overlap_evaluation = {overlap}",
        "DecoderConfig.name = 'word_beam'",
        f"DecoderConfig.beam_width = {arguments.beam_width}",
    ]
    command = [sys.executable, "-m", "tfasr.cli", "train", "--gin_file", "demo.gin"]
    command += ["--shard_dir", str(shard_dir), "--run_dir", str(run_dir)]

    for binding in bindings:
        command += ["--gin_binding", binding]

    subprocess.run(command, check=True, capture_output=True)
    run = tfasr.load_run(run_dir)
    work_s = sum(e["value"] for e in run.events if e["key"] == "decode_work")
    seconds = run.intervals

    return {
        "wall_s": run.wall_s,
        "train_s": seconds["train"],
        "eval_forward_s": seconds["eval_forward"],
        "waited_for_decoder_s": seconds["decode"],
        "decoder_worked_s": work_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument("--beam_width", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    require_extensions()
    measured: dict[bool, list[dict[str, float]]] = {False: [], True: []}

    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.rounds):
            for overlap in (False, True):
                run_dir = Path(temporary) / f"{number}-{overlap}"
                measured[overlap].append(
                    train(arguments.shard_dir, run_dir, overlap, arguments)
                )

    median = {
        name: {
            key: round(statistics.median(run[key] for run in runs), 2)
            for key in runs[0]
        }
        for name, runs in (("apart", measured[False]), ("overlapped", measured[True]))
    }
    ratios = {
        key: round(median["overlapped"][key] / median["apart"][key], 3)
        for key in ("wall_s", "train_s")
    }
    result = {
        **median,
        "ratio_overlapped_to_apart": ratios,
        "load_average": os.getloadavg()[0],
    }

    if arguments.format == "json":
        print(json.dumps(result))
        return

    for name in median["apart"]:
        print(f"{name:24}{median['apart'][name]:10}{median['overlapped'][name]:10}")

    print(f"ratios: {ratios}")


if __name__ == "__main__":
    main()
