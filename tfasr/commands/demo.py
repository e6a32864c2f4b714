"""``tfasr demo``: two recipes race to an error rate on synthetic speech, without a download."""

import argparse
import logging
import shlex
from pathlib import Path

from tfasr.errors import RunError, UsageError
from tfasr.kit.process import run_module

log = logging.getLogger("tfasr")
RECIPES = {"paper": "demo.gin", "fast": "fast/demo.gin"}


def demo(*, demo_dir: str | Path = "demo", seed: int = 1, seeds: int = 3) -> Path:
    """Makes a corpus, trains on it by two recipes, evaluates the runs and reports them.

    Each step is a command that you could type, in a separate process, so clocks and memory are
    those of real runs. Returns the path of ``report.html``; raises `UsageError` if ``seeds`` is
    less than 1, `RunError` if a step fails.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1. Received: {seeds}.")
    folder = Path(demo_dir)
    corpus, shards, report = folder / "corpus", folder / "shards", folder / "report"
    groups = [_next_free(folder / "runs", recipe) for recipe in RECIPES]
    from tfasr.corpora.synthetic import make_synthetic_corpus

    make_synthetic_corpus(corpus)
    _tfasr("prepare", "--corpus", "synthetic", "--corpus_dir", corpus, "--shard_dir", shards)
    runs = []
    # The recipes take turns, so other work on the machine slows both.
    for number in range(seed, seed + seeds):
        for gin_file, group in zip(RECIPES.values(), groups, strict=True):
            runs.append(group / f"seed_{number}" if seeds > 1 else group)
            _tfasr(
                *("train", "--gin_file", gin_file, "--shard_dir", shards, "--run_dir", runs[-1]),
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
    add("--seed", type=int, default=1, help="seed of the first run of each recipe; default: 1")
    seeds = "runs of each recipe; default: %(default)s, some 4 minutes on two cores"
    add("--seeds", type=int, default=3, help=seeds)


def run(arguments: argparse.Namespace) -> None:
    path = demo(demo_dir=arguments.demo_dir, seed=arguments.seed, seeds=arguments.seeds)
    best = path.parents[1] / "runs" / "fast"
    (sound, *_) = sorted((path.parents[1] / "corpus" / "test").rglob("*.wav"))
    run_dir = best if (best / "events.jsonl").exists() else sorted(best.glob("seed_*"))[0]
    print(f"\nThe curves and the verdict: {path.resolve()}")
    print(f"Next: tfasr transcribe {sound} --run_dir {run_dir}")
