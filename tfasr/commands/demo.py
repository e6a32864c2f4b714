"""``tfasr demo``: the paper's recipe and a fast one race to a CER on synthetic speech."""

import argparse
import shlex
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import EVENTS_FILE, make_folder
from tfasr.kit.process import run_module

if TYPE_CHECKING:
    from tfasr.studies.quiet import Patience

EXAMPLE = "demo"
# On a busy machine the demo's trainings and its waits for a quiet one end within these
# seconds, so that `tfasr demo` takes 5 minutes at most.
TRAININGS_S = 210.0
WAITS_S = 20.0
RECIPES = {
    "papers_recipe": ("paper_demo.gin",),
    "fast_recipe": ("fast/demo.gin", "train/demo_race.gin"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--demo_dir", default="demo", help="default: ./%(default)s")
    add(
        "--seed",
        type=int,
        default=1,
        help="seed of the first run of each recipe; default: 1",
    )
    seeds = "runs of each recipe; default: %(default)s, about 5 minutes on two cores"
    add("--seeds", type=int, default=4, help=seeds)


def run(arguments: argparse.Namespace) -> None:
    from tfasr.reports.write import compare

    path = demo(demo_dir=arguments.demo_dir, seed=arguments.seed, seeds=arguments.seeds)
    folder = path.parents[1]
    of_recipes = [(folder / "runs").glob(f"{name}*") for name in RECIPES]
    groups = [
        max(found, key=lambda group: (len(group.name), group.name))
        for found in of_recipes
    ]
    print("\nThe answer:")
    for sentence in compare(groups).findings:
        print(textwrap.fill(sentence, 100, break_on_hyphens=False))
    if (groups[-1] / EVENTS_FILE).exists():
        run_dir = groups[-1]
    else:
        run_dir = min(groups[-1].glob("seed_*"))

    (sound, *_) = sorted((folder / "corpus" / "test").rglob("*.wav"))
    print(f"\nWith curves: {path.resolve()}")
    print(f"Next: tfasr transcribe {sound} --run_dir {run_dir}")


def demo(*, demo_dir: str | Path = "demo", seed: int = 1, seeds: int = 4) -> Path:
    """Makes a corpus, trains on it by the paper's recipe and a fast one, and reports the runs.

    Each step is a command that you could type, in a separate process, so clocks and
    memory are those of real runs. Trainings wait for a quiet machine and disturbed ones
    are repeated, as in a study, but only within the minutes that a demo may take
    (`_race`). Returns the path of ``report.html``; raises `UsageError` if ``seeds`` is
    less than 1, `RunError` if a step fails.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1. Received: {seeds}.")
    folder = Path(demo_dir)
    corpus = folder / "corpus"
    shards = folder / "shards"
    report = folder / "report"
    groups = [_next_free(folder / "runs", recipe) for recipe in RECIPES]
    from tfasr.corpora.synthetic import make_synthetic_corpus

    make_synthetic_corpus(corpus)
    of_shards = RECIPES["papers_recipe"][0]
    _tfasr(
        *("prepare", "--gin_file", of_shards, "--corpus", "synthetic"),
        *("--corpus_dir", corpus, "--shard_dir", shards),
    )
    runs = _race(range(seed, seed + seeds), groups, shards)
    for run_dir in runs:
        _tfasr(
            "evaluate", "--run_dir", run_dir, "--shard_dir", shards, "--split", "test"
        )

    _tfasr("report", *groups, "--out", report)
    return report / "report.html"


def _race(seeds: Sequence[int], groups: Sequence[Path], shards: Path) -> list[Path]:
    """Trains each recipe with each seed, in turns; returns the runs' folders.

    Trainings wait for a quiet machine, `WAITS_S` in all. A run from which the machine
    took more than studies allow is trained again, and its first try is moved to
    ``disturbed/``, as long as all trainings fit into `TRAININGS_S`. A disturbed demo
    that would last longer ends with fewer seeds.
    """
    from tfasr.studies.plan import StudyConfig
    from tfasr.studies.quiet import Patience, taken_of

    most_taken = StudyConfig.most_taken
    patience = Patience(most_taken, WAITS_S)
    began_s = time.monotonic()
    runs: list[Path] = []
    disturbed = 0

    def expected_s(more: int) -> float:
        """Returns when the trainings will end if so many more take as long as those so far."""
        passed_s = time.monotonic() - began_s
        return passed_s * (1 + more / max(len(runs), 1))

    for done, number in enumerate(seeds):
        if disturbed and expected_s(len(groups)) > TRAININGS_S:
            print(
                f"The machine was disturbed during {disturbed} of {len(runs)} runs, so the demo "
                f"ends after {done} of {len(seeds)} seeds. tfasr doctor shows what takes its "
                "processors now; on a quiet machine, run tfasr demo again."
            )
            break

        for gin_files, group in zip(RECIPES.values(), groups, strict=True):
            run_dir = group / f"seed_{number}" if len(seeds) > 1 else group
            _train(gin_files, number, shards, run_dir, patience)
            runs.append(run_dir)
            taken = taken_of(run_dir)
            if taken is None or taken <= most_taken:
                continue
            disturbed += 1
            to_do = len(groups) * len(seeds) - len(runs)
            if expected_s(to_do + 1) <= TRAININGS_S:
                print(
                    f"The machine took {100 * taken:.0f} % of the run: it is trained again."
                )
                aside = group.parents[1] / "disturbed" / f"{group.name}-seed_{number}"
                make_folder(aside.parent)
                run_dir.rename(aside)
                _train(gin_files, number, shards, run_dir, patience)

    return runs


def _train(
    gin_files: Sequence[str],
    seed: int,
    shards: Path,
    run_dir: Path,
    patience: "Patience",
) -> None:
    patience.wait()
    command = ["train", "--shard_dir", shards, "--run_dir", run_dir]
    for gin_file in gin_files:
        command += ["--gin_file", gin_file]
    _tfasr(*command, "--seed", str(seed))


def _next_free(folder: Path, name: str) -> Path:
    candidate = folder / name
    number = 2
    while candidate.exists():
        candidate = folder / f"{name}-{number}"
        number = number + 1

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
