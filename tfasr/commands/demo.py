"""``tfasr demo``: the whole chain on synthetic speech, in minutes, without a download."""

import argparse
import logging
import shlex
import subprocess
import sys
from pathlib import Path

from tfasr.errors import RunError

log = logging.getLogger("tfasr")

BATCH_SIZES = (8, 64)


def demo(*, demo_dir: str | Path = "demo", seed: int = 1) -> Path:
    """Makes a corpus, trains on it with two batch sizes, evaluates and reports both runs.

    Each step is the command that a user would type, in a process of its own: clocks and memory
    are then those of a real run. What is there already is kept, runs excepted.

    Args:
        demo_dir: gets the corpus, the shards, the runs and the report.
        seed: of the runs.

    Returns:
        The path of ``report.html``.

    Raises:
        RunError: if a step fails.
    """
    folder = Path(demo_dir)
    corpus, shards, report = folder / "corpus", folder / "shards", folder / "report"
    runs = [next_free(folder / "runs", f"batch_{size}") for size in BATCH_SIZES]
    from tfasr.corpora.synthetic import make_synthetic_corpus

    make_synthetic_corpus(corpus)
    _tfasr("prepare", "--corpus", "synthetic", "--corpus_dir", corpus, "--shard_dir", shards)
    for size, run_dir in zip(BATCH_SIZES, runs, strict=True):
        _tfasr(
            *("train", "--gin_file", "demo.gin", "--shard_dir", shards, "--run_dir", run_dir),
            *("--gin_binding", f"PipelineConfig.global_batch_size = {size}"),
            *("--gin_binding", f"TrainingConfig.seed = {seed}"),
        )
    for run_dir in runs:
        _tfasr("evaluate", "--run_dir", run_dir, "--shard_dir", shards, "--split", "test")
    _tfasr("report", *runs, "--out", report)
    return report / "report.html"


def next_free(folder: Path, name: str) -> Path:
    """Returns ``folder/name``, or with the first number that makes it new."""
    candidate, number = folder / name, 2
    while candidate.exists():
        candidate, number = folder / f"{name}-{number}", number + 1
    return candidate


def _tfasr(*arguments: str | Path) -> None:
    words = [str(argument) for argument in arguments]
    print(f"$ tfasr {shlex.join(words)}", flush=True)
    finished = subprocess.run([sys.executable, "-m", "tfasr.cli", *words], check=False)
    if finished.returncode:
        raise RunError(
            f"Every step of the demo must succeed. tfasr {words[0]} ended with exit code "
            f"{finished.returncode}; its message is above."
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    parser.add_argument("--demo_dir", default="demo", help="default: ./%(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the runs")


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    path = demo(demo_dir=arguments.demo_dir, seed=arguments.seed)
    print(f"\nThe report with its curves: {path.resolve()}")
