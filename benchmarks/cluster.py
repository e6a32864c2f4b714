"""What several workers cost against one process on the same cores: time to accuracy, exchange.

    python benchmarks/cluster.py --shard_dir an4/shards [--gin_file an4.gin] [--target 0.15]

One process with as many threads as there are workers, and workers of one thread each, train the
same batches in alternation, each in processes of its own. Dropout is drawn by each worker, so that
the runs differ as two seeds would; with the same seed all else is the same.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tfasr
from tfasr.analysis.stragglers import worker_parts
from tfasr.telemetry.compiled import require_compiled_parts


def train(run_dir: Path, workers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains once and returns what its ledgers say.

    Args:
        run_dir: of the run.
        workers: how many processes; the cores are those of ``arguments.workers``.
        arguments: the benchmark's.
    """
    command = [sys.executable, "-m", "tfasr.cli"]
    command += ["launch", "-n", str(workers), "--"] if workers > 1 else []
    command += ["train", "--gin_file", arguments.gin_file, "--no_memory_probe"]
    command += ["--shard_dir", str(arguments.shard_dir), "--run_dir", str(run_dir)]
    bindings = [
        "TrainingConfig.sentences_every_steps = 0",
        f"TrainingConfig.targets = [('cer', {arguments.target})]",
        f"TrainingConfig.batch_norm_synchronised = {arguments.synchronised}",
        *([f"TrainingConfig.epochs = {arguments.epochs}"] if arguments.epochs else []),
    ]
    for binding in [*bindings, *arguments.gin_binding]:
        command += ["--gin_binding", binding]
    threads = str(arguments.workers // workers)
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": threads, "OMP_NUM_THREADS": threads}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    run = tfasr.load_run(run_dir)
    parts = worker_parts(run_dir)
    steps = sum(event["key"] == "train_step" for event in run.events)
    return {
        "time_to_accuracy_s": run.time_to_accuracy(cer=arguments.target, window=1).seconds,
        "wall_s": run.wall_s,
        "steps": steps,
        "step_s": run.intervals["train"] / steps,
        "utterances_per_s": run.throughput().utterances_per_s,
        "eval_forward_s": run.intervals["eval_forward"],
        "decode_s": run.intervals["decode"],
        "exchange_share": parts[0].exchange_s / parts[0].step_s if parts else 0.0,
        "waited_share": statistics.mean(part.waited_share for part in parts) if parts else 0.0,
    }


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of runs; None where one of them has no such number."""
    known = {key: [run[key] for run in runs] for key in runs[0]}
    return {
        key: None if None in values else round(statistics.median(values), 4)
        for key, values in known.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument("--gin_file", default="an4.gin")
    parser.add_argument("--gin_binding", action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.15, help="CER, a fraction")
    parser.add_argument("--epochs", type=int, help="default: those of the gin file")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--synchronised", action="store_true", help="batch normalisation over all")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    require_compiled_parts()
    measured: dict[int, list[dict[str, Any]]] = {1: [], arguments.workers: []}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.rounds):
            for workers, runs in measured.items():
                runs.append(train(Path(temporary) / f"{number}-{workers}", workers, arguments))
    one, several = (medians(runs) for runs in measured.values())
    result = {
        "one": one,
        "workers": several,
        "step_ratio": round(several["step_s"] / one["step_s"], 3),
        "load_average": os.getloadavg()[0],
    }
    if arguments.format == "json":
        print(json.dumps(result))
        return
    for key in one:
        print(f"{key:22}{one[key]!s:>12}{several[key]!s:>12}")
    print(f"a step of {arguments.workers} workers takes {result['step_ratio']} of one process's")


if __name__ == "__main__":
    main()
