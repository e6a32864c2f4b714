"""The cost of several workers compared with one process on the same cores.

    python benchmarks/cluster.py --shard_dir an4/shards [--gin_file an4.gin] [--target 0.15]
    python benchmarks/cluster.py --shard_dir an4/shards --gin_file fast/an4.gin --steps 60
    python benchmarks/cluster.py --shard_dir an4/shards --exchange --rounds 3

One process with as many threads as there are workers, and workers of one thread each,
train on the same batches in alternation, in separate processes. Each worker draws its
own dropout, so the runs differ like two seeds; with the same seed, all else is the
same.

``--steps`` trains no run to its end. In a minute or two it times steps of one process,
of the workers, of the workers with gradients in bfloat16, and of as many processes that
each train on their share of the batches without exchange ("apart"), a lower bound for
any exchange. ``--exchange`` trains with gradients in float32 and in bfloat16 for the
same seeds.
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

from cluster_steps import KINDS, take_steps

import tfasr
from tfasr.reports.charges import read_worker_files, times_of_workers
from tfasr.telemetry.compiled import require_extensions


def train(
    run_dir: Path, workers: int, bindings: list[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Trains once and returns the results in its ledgers.

    Args:
        run_dir: of the run.
        workers: number of processes; they use the cores of ``arguments.workers``.
        bindings: gin bindings in addition to the benchmark's.
        arguments: the benchmark's.
    """
    command = [sys.executable, "-m", "tfasr.cli"]
    if workers > 1:
        command += ["launch", "-n", str(workers), "--"]

    command += ["train", "--gin_file", arguments.gin_file, "--no_memory_probe"]
    command += ["--shard_dir", str(arguments.shard_dir), "--run_dir", str(run_dir)]
    chosen = [
        "TrainingConfig.sentences_every_steps = 0",
        f"TrainingConfig.targets = [('cer', {arguments.target})]",
        f"TrainingConfig.batch_norm_synchronised = {arguments.synchronised}",
    ]

    if arguments.epochs:
        chosen.append(f"TrainingConfig.epochs = {arguments.epochs}")

    chosen += bindings
    chosen += arguments.gin_binding
    for binding in chosen:
        command += ["--gin_binding", binding]

    threads = str(arguments.workers // workers)
    environment = {
        **os.environ,
        "TF_NUM_INTRAOP_THREADS": threads,
        "OMP_NUM_THREADS": threads,
    }
    subprocess.run(command, check=True, capture_output=True, env=environment)
    run = tfasr.load_run(run_dir)
    parts = times_of_workers(read_worker_files(run_dir))
    steps = sum(event["key"] == "train_step" for event in run.events)
    rates = [
        event["value"]["cer"] for event in run.events if event["key"] == "tracked_stats"
    ]

    exchange_share = 0.0
    waited_share = 0.0
    if parts:
        exchange_share = parts[0].exchange_s / parts[0].step_s
        waited_share = statistics.mean(part.waited_share for part in parts)

    met = run.time_to_accuracy(cer=arguments.target, window=1)
    return {
        "time_to_accuracy_s": met.seconds,
        "last_cer": rates[-1],
        "best_cer": min(rates),
        "wall_s": run.wall_s,
        "steps": steps,
        "step_s": run.intervals["train"] / steps,
        "utterances_per_s": run.throughput().utterances_per_s,
        "eval_forward_s": run.intervals["eval_forward"],
        "decode_s": run.intervals["decode"],
        "exchange_share": exchange_share,
        "waited_share": waited_share,
    }


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of runs; None if a run lacks the number."""
    result: dict[str, Any] = {}
    for key in runs[0]:
        values = [run[key] for run in runs]
        result[key] = None
        if None not in values:
            result[key] = round(statistics.median(values), 4)

    return result


def trained(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains each variant for some rounds with different seeds; returns the medians."""
    workers = arguments.workers
    variants = {"one": (1, []), "workers": (workers, [])}
    if arguments.exchange:
        binding = "TrainingConfig.gradient_exchange = '{}'"
        variants = {
            kind: (workers, [binding.format(kind)]) for kind in ("float32", "bfloat16")
        }

    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.rounds):
            seed = [f"TrainingConfig.seed = {number + 1}"]
            for name, (count, bindings) in variants.items():
                run_dir = Path(temporary) / f"{number}-{name}"
                measured[name].append(train(run_dir, count, bindings + seed, arguments))

    first, second = (medians(runs) for runs in measured.values())
    return {
        **dict(zip(variants, (first, second), strict=True)),
        "rounds": measured,
        "step_ratio": round(second["step_s"] / first["step_s"], 3),
    }


def stepped(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times single steps of each kind, see `cluster_steps`."""
    config = {
        "gin_file": arguments.gin_file,
        "bindings": arguments.gin_binding,
        "shard_dir": str(arguments.shard_dir),
    }
    taken = take_steps(config, arguments.workers, arguments.steps)
    result = {}

    for kind in KINDS:
        exchange_ms = None
        if kind != "one":
            exchange_ms = round(1e3 * taken.exchange_s(kind), 2)

        result[kind] = {
            "step_ms": round(1e3 * statistics.median(taken.steps_s(kind)), 2),
            "of_one": round(taken.ratio(kind, "one"), 3),
            "of_apart": round(taken.ratio(kind, "apart"), 3),
            "exchange_ms": exchange_ms,
            "processor_ms": round(1e3 * taken.processor_s(kind), 1),
        }

    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument("--gin_file", default="an4.gin")
    parser.add_argument("--gin_binding", action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--steps", type=int, help="time so many steps, and train nothing"
    )
    parser.add_argument(
        "--exchange", action="store_true", help="float32 against bfloat16"
    )
    parser.add_argument("--target", type=float, default=0.15, help="CER, a fraction")
    parser.add_argument("--epochs", type=int, help="default: those of the gin file")
    parser.add_argument("--rounds", type=int, default=1, help="each with another seed")
    parser.add_argument(
        "--synchronised", action="store_true", help="batch normalisation over all"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    require_extensions()

    if arguments.steps:
        result = stepped(arguments)
    else:
        result = trained(arguments)

    result["load_average"] = os.getloadavg()[0]
    if arguments.format == "json":
        print(json.dumps(result))
        return

    columns = {k: v for k, v in result.items() if isinstance(v, dict) and k != "rounds"}
    print(" " * 22 + "".join(f"{name:>12}" for name in columns))
    for key in next(iter(columns.values())):
        print(
            f"{key:22}" + "".join(f"{column[key]!s:>12}" for column in columns.values())
        )

    if not arguments.steps:
        first, second = columns
        print(f"a step of {second} takes {result['step_ratio']} of a step of {first}")


if __name__ == "__main__":
    main()
