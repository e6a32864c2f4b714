"""``tfasr study``: trains a list of experiments, each with several seeds, and reports
on them.
"""

import argparse
import contextlib
import logging
import shlex
import signal
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tfasr.commands.shared import add_scheduler_arguments, tls_of
from tfasr.errors import RunError, UsageError, printable
from tfasr.kit.files import EVENTS_FILE, make_folder, read_text
from tfasr.kit.process import run_module
from tfasr.kit.scheduler import scheduler_client

if TYPE_CHECKING:
    from tfasr.studies.quiet import Patience

log = logging.getLogger("tfasr")
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
    add(
        "--gin_file",
        required=True,
        help="the experiments, such as study/paper_small.gin",
    )
    add("--gin_binding", action="append", default=[], help="repeatable")
    add(
        "--run_dir",
        help="folder for runs, logs and report; default: studies/ + the file's name",
    )
    add("--shard_dir", help="the prepared splits, unless the study generates speech")
    add("--resume", action="store_true", help="continue a study that was interrupted")
    until = (
        "train two experiments with no more seeds than needed to see which reaches the "
        "hardest target sooner: 5, 8 or 12 (pairs: 8 or 12)"
    )
    add("--until", choices=("decided",), default="", help=until)
    add_scheduler_arguments(add, "train the runs, one seed a host; docs/studies.md")
    patience = (
        "after so long without an answer, a host's seeds begin again on another one; default: "
        "%(default)g"
    )
    add("--wait_for_host", type=float, metavar="SECONDS", default=600.0, help=patience)
    add("--dry_run", action="store_true", help="only list the steps")


def run(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.run_dir or Path("studies", Path(arguments.gin_file).stem))
    if arguments.dry_run:
        from tfasr.studies.perform import planned, undecidable

        # With --until, all seeds are listed, but training stops once it's decided.
        plan, steps = planned(
            arguments.gin_file,
            arguments.gin_binding,
            arguments.until,
            folder,
            _path(arguments.shard_dir),
        )
        for number, step in enumerate(steps, 1):
            print(
                f"{number}/{len(steps)} {step.name}{' (done)' if step.done() else ''}"
            )

        for sentence in [] if arguments.until else undecidable(plan):
            print(sentence)
        return

    from tfasr.studies.perform import DECISION_FILE, study

    tls = tls_of(arguments)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sigterm_like_ctrl_c())
        client = None
        if arguments.scheduler is not None:
            client = stack.enter_context(scheduler_client(arguments.scheduler, tls))
        page = study(
            arguments.gin_file,
            run_dir=folder,
            shard_dir=arguments.shard_dir,
            bindings=arguments.gin_binding,
            resume=arguments.resume,
            until=arguments.until,
            client=client,
            wait_for_host_s=arguments.wait_for_host,
        )

    again = "Make it again with --resume."
    print(read_text(page.parent / "report.txt", again), end="")
    if arguments.until:
        print(f"\n{read_text(folder / DECISION_FILE, again)}", end="")
    print(f"\nThe report with its figures: {page.resolve()}")


@contextlib.contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """Lets SIGTERM end a study as Ctrl-C does: trainings save their work first.

    SLURM, Kubernetes and systemd send SIGTERM. A job script can't send SIGINT, because
    shells let their background processes ignore it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _path(word: str | None) -> Path | None:
    return None if word is None else Path(word)


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "track",
        nargs="?",
        help="a track, such as synthetic_cer_10; tfasr presets lists them",
    )
    add(
        "--gin_file",
        action="append",
        default=[],
        help="the challenger's recipe; repeatable",
    )
    add("--gin_binding", action="append", default=[], help="repeatable")
    add("--run_dir", help="folder for the races' study and the submission")
    add(
        "--shard_dir", help="the prepared splits, unless the track makes its own speech"
    )
    add(
        "--records",
        default="records",
        help="accepted submissions; default: %(default)s",
    )
    add("--resume", action="store_true", help="continue a race that was interrupted")
    add(
        "--table",
        action="store_true",
        help="only write the table of records, RECORDS/README.md",
    )


def run_record(arguments: argparse.Namespace) -> None:
    """``tfasr record``: trains your recipe and a track's record in turns; writes a
    submission.
    """
    from tfasr.studies.records import record, write_table

    records = Path(arguments.records)
    if arguments.table:
        write_table(records)
        return

    needed = {
        "TRACK": arguments.track,
        "--gin_file": arguments.gin_file,
        "--run_dir": arguments.run_dir,
    }
    if missing := [name for name, value in needed.items() if not value]:
        raise UsageError(
            f"tfasr record needs {', '.join(missing)}; see tfasr help record."
        )

    submission = record(
        arguments.track,
        arguments.gin_file,
        run_dir=Path(arguments.run_dir),
        shard_dir=_path(arguments.shard_dir),
        bindings=arguments.gin_binding,
        records=records,
        resume=arguments.resume,
    )
    print(read_text(submission / "card.md", "Restore it from a copy."))
    print(f"The submission: {submission.resolve()}")


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="RUN|STUDY|SUBMISSION", help="folders")
    add(
        "--shard_dir",
        help="the prepared splits, to compare with the data of the training",
    )
    add(
        "--records",
        default="records",
        help="accepted submissions; default: %(default)s",
    )
    add(
        "--published",
        metavar="HASH",
        help="the folder's published hash; needs a single folder",
    )
    add(
        "--print_hash",
        action="store_true",
        help="only print the hash to publish, and the path",
    )


def run_verify(arguments: argparse.Namespace) -> int:
    """``tfasr verify``: checks runs, studies and submissions; exits with 1 if a check
    fails.
    """
    from tfasr.ledger.declared import STARTS_FILE
    from tfasr.ledger.events import chain_of
    from tfasr.studies.records import (
        SUBMISSION_FILE,
        UNCHECKED_OF_SUBMISSIONS,
        verify_submission,
    )
    from tfasr.studies.verify import (
        UNCHECKED_OF_RUNS,
        UNCHECKED_OF_STUDIES,
        file_sha256,
        published,
        unchecked,
        verify_run,
        verify_study,
    )

    if arguments.published and len(arguments.paths) > 1:
        raise UsageError(
            "--published needs a single folder, whose hash it is. Received: "
            f"{len(arguments.paths)} folders."
        )

    shards = arguments.shard_dir and Path(arguments.shard_dir)
    failed = False
    for path in map(Path, arguments.paths):
        names = (SUBMISSION_FILE, STARTS_FILE, EVENTS_FILE)
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is None:
            raise UsageError(
                f"tfasr verify needs a folder with one of {', '.join(names)}. Received: {path}."
            )

        hashes = [file_sha256(file)] if file.name == SUBMISSION_FILE else chain_of(file)
        if arguments.print_hash:
            print(
                printable(
                    f"{hashes[-1] if hashes else 'no hash'}  {path}", one_line=True
                )
            )
            continue

        if file.name == SUBMISSION_FILE:
            checks = verify_submission(path, shards, Path(arguments.records))
            left = (
                *UNCHECKED_OF_RUNS,
                *UNCHECKED_OF_STUDIES,
                *UNCHECKED_OF_SUBMISSIONS,
            )
        elif file.name == STARTS_FILE:
            checks = verify_study(path, shards)
            left = (*UNCHECKED_OF_RUNS, *UNCHECKED_OF_STUDIES)
        else:
            checks = verify_run(path, path.name, shards)
            left = UNCHECKED_OF_RUNS

        done = []
        for check in checks:
            print(check.line)
            done.append(check)

        if arguments.published:
            done.append(published(file, hashes, arguments.published))
            print(done[-1].line)

        print(unchecked(done, left))
        failed |= any(check.passed is False for check in done)

    return int(failed)


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


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_demo(arguments: argparse.Namespace) -> None:
    """``tfasr demo``: the paper's recipe and a fast one race to a CER on synthetic speech."""
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
