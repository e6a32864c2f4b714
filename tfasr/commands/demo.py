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


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gin_file", required=True, help="the experiments, such as study/paper_small.gin")
    add("--gin_binding", action="append", default=[], help="repeatable")
    add("--run_dir", help="gets runs, logs and report; default: ./studies/ and the file's name")
    add("--shard_dir", help="the prepared splits, unless the study makes its own speech")
    add("--resume", action="store_true", help="continue a study that was interrupted")
    add(
        "--until",
        choices=("decided",),
        default="",
        help="train two experiments with only as many seeds as it takes to tell which reaches its "
        "hardest target sooner: 3, 5, 8 or 12",
    )
    add("--dry_run", action="store_true", help="list the steps, do none")


def run_study(arguments: argparse.Namespace) -> None:
    """``tfasr study``: trains experiments with their seeds and writes the report on them."""
    folder = Path(arguments.run_dir or Path("studies", Path(arguments.gin_file).stem))
    if arguments.dry_run:
        from tfasr.studies.perform import SEEDS, check_until
        from tfasr.studies.plan import load_plan
        from tfasr.studies.steps import study_steps

        shard_dir = arguments.shard_dir and Path(arguments.shard_dir)
        # At most so many: a decision leaves the rest out.
        bindings = [*arguments.gin_binding, *([SEEDS] if arguments.until else [])]
        plan = load_plan(arguments.gin_file, bindings)
        if arguments.until:
            check_until(arguments.until, plan)
        steps = study_steps(plan, folder, shard_dir)
        for number, step in enumerate(steps, 1):
            print(f"{number}/{len(steps)} {step.name}{' (done)' if step.done() else ''}")
        return
    from tfasr.studies.perform import DECISION_FILE, study

    page = study(
        arguments.gin_file,
        run_dir=folder,
        shard_dir=arguments.shard_dir,
        bindings=arguments.gin_binding,
        resume=arguments.resume,
        until=arguments.until,
    )
    print((page.parent / "report.txt").read_text(encoding="utf-8"), end="")
    if arguments.until:
        print(f"\n{(folder / DECISION_FILE).read_text(encoding='utf-8')}", end="")
    print(f"\nThe report with its figures: {page.resolve()}")
