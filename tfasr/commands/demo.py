"""``tfasr demo``: the whole chain on synthetic speech, in minutes, without a download."""

import argparse
import logging
import shlex
from pathlib import Path

from tfasr.errors import RunError, UsageError
from tfasr.kit.process import run_module

log = logging.getLogger("tfasr")
BATCH_SIZES = (8, 64)


def demo(*, demo_dir: str | Path = "demo", seed: int = 1, seeds: int = 1) -> Path:
    """Makes a corpus, trains on it with two batch sizes, evaluates and reports the runs.

    Each step is the command that a user would type, in a process of its own: clocks and memory are
    those of a real run. Returns the path of ``report.html``; raises `UsageError` if ``seeds`` is
    less than 1, `RunError` if a step fails.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1. Received: {seeds}.")
    folder = Path(demo_dir)
    corpus, shards, report = folder / "corpus", folder / "shards", folder / "report"
    groups = [_next_free(folder / "runs", f"batch_{size}") for size in BATCH_SIZES]
    from tfasr.corpora.synthetic import make_synthetic_corpus

    make_synthetic_corpus(corpus)
    _tfasr("prepare", "--corpus", "synthetic", "--corpus_dir", corpus, "--shard_dir", shards)
    runs = []
    # The batch sizes take turns: what disturbs the machine for a while disturbs both.
    for number in range(seed, seed + seeds):
        for size, group in zip(BATCH_SIZES, groups, strict=True):
            runs.append(group / f"seed_{number}" if seeds > 1 else group)
            _tfasr(
                *("train", "--gin_file", "demo.gin", "--shard_dir", shards, "--run_dir", runs[-1]),
                *("--gin_binding", f"PipelineConfig.global_batch_size = {size}"),
                *("--gin_binding", f"TrainingConfig.seed = {number}"),
            )
    for run_dir in runs:
        _tfasr("evaluate", "--run_dir", run_dir, "--shard_dir", shards, "--split", "test")
    _tfasr("report", *groups, "--out", report)
    return report / "report.html"


def _next_free(folder: Path, name: str) -> Path:
    candidate, number = folder / name, 2
    while candidate.exists():
        candidate, number = folder / f"{name}-{number}", number + 1
    return candidate


def _tfasr(*arguments: str | Path) -> None:
    words = [str(argument) for argument in arguments]
    print(f"$ tfasr {shlex.join(words)}", flush=True)
    finished = run_module("tfasr.cli", *words)
    if finished.returncode:
        raise RunError(
            f"Every step of the demo must succeed. tfasr {words[0]} ended with exit code "
            f"{finished.returncode}; its message is above."
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--demo_dir", default="demo", help="default: ./%(default)s")
    add("--seed", type=int, default=1, help="of the (first) runs")
    add("--seeds", type=int, default=1, help="runs of each batch size; three take some 10 minutes")


def run(arguments: argparse.Namespace) -> None:
    path = demo(demo_dir=arguments.demo_dir, seed=arguments.seed, seeds=arguments.seeds)
    print(f"\nThe report with its curves: {path.resolve()}")
