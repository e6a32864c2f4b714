"""``tfasr demo``: a fast recipe races the paper's on synthetic speech, without a download.

Each step is a command that you could type, in a separate process, so clocks and memory
are those of real runs. A step is one line of output; its messages are in ``logs/``.
"""

import argparse
import shlex
import subprocess
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.errors import RunError, UsageError, stderr_console
from tfasr.kit.files import PROGRESS_FILE, make_folder, object_or_empty, read_text
from tfasr.kit.process import own_command, start_module

if TYPE_CHECKING:
    from tfasr.studies.quiet import Patience
    from tfasr.tta.policies import Bracket

EXAMPLE = "demo"

# How long all trainings may take, in seconds. On a quiet machine with two cores, four
# runs of each recipe take half of it; the rest is for more seeds or repeated runs.
TRAININGS_S = 300.0

# All waits for a quiet machine together, in seconds.
WAITS_S = 20.0

# Runs of each recipe after which the demo tests whether one is faster. With fewer than
# four, no test can tell.
LOOKS = (4, 6, 8)

# By name, the presets of each recipe, later ones overriding earlier ones.
RECIPES = {
    "papers_recipe": ("paper_demo.gin",),
    "fast_recipe": ("fast/demo.gin", "train/demo_race.gin"),
}

# How many lines of a failed step's messages are shown, the last ones.
_LINES = 20

# How often a running step's progress is shown, in seconds.
_POLL_S = 0.2


@dataclass
class Race:
    """The runs of a demo, which its steps train one after the other.

    Attributes:
        groups: the folders of each recipe's runs, in the order of `RECIPES`.
        shards: the prepared splits.
        logs: the folder for the steps' messages.
        verbose: whether steps show all their messages instead of one line.
        runs: the folders of the runs trained so far, in the order of training.
    """

    groups: Sequence[Path]
    shards: Path
    logs: Path
    verbose: bool = False
    runs: tuple[Path, ...] = ()


def demo(
    *,
    demo_dir: str | Path = "demo",
    seed: int = 1,
    seeds: int = LOOKS[-1],
    verbose: bool = False,
) -> Path:
    """Makes a corpus, trains on it by both recipes, and reports which is faster.

    Args:
        demo_dir: the folder for everything; runs of an earlier demo in it are kept.
        seed: of the first run of each recipe.
        seeds: the most runs of each recipe. It ends earlier once it is decided which
            recipe is faster, after 4 runs each at the earliest.
        verbose: show all messages of all steps.

    Returns:
        The path of ``report.html``.

    Raises:
        UsageError: if ``seeds`` is less than 1.
        RunError: if a step fails.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1. Received: {seeds}.")

    from tfasr.corpora.synthetic import make_synthetic_corpus

    folder = Path(demo_dir)
    report = folder / "report"
    race = Race(
        groups=[_next_free(folder / "runs", recipe) for recipe in RECIPES],
        shards=folder / "shards",
        logs=folder / "logs",
        verbose=verbose,
    )
    _look_at_host()

    corpus = folder / "corpus"
    make_synthetic_corpus(corpus)
    # Both recipes use the same features.
    of_shards = RECIPES["papers_recipe"][0]
    prepare = ["prepare", "--gin_file", of_shards, "--corpus", "synthetic"]
    prepare += ["--corpus_dir", str(corpus), "--shard_dir", str(race.shards)]
    _step(race, "speech prepared", prepare)

    train_until_decided(race, range(seed, seed + seeds))

    for group in race.groups:
        # With a single seed, the run has no folder of its own within the group's.
        run_dir = next(run for run in race.runs if group in (run, run.parent))
        score = ["evaluate", "--run_dir", str(run_dir), "--shard_dir"]
        score += [str(race.shards), "--split", "test"]
        _step(race, f"{group.name} scored on the test split", score)

    words = ["report", *map(str, race.groups), "--out", str(report)]
    _step(race, "report written", words)
    return report / "report.html"


def _look_at_host() -> None:
    """Says whether others use the machine, before anything is measured on it.

    It is only a warning: whether a run was disturbed is known after it, from what the
    machine really gave its steps.
    """
    from tfasr.studies.quiet import LOOK_S, taken_now

    taken = taken_now(LOOK_S).together
    if taken <= _most_taken():
        print(f"This machine is quiet: others take {100 * taken:.0f} % of it.")
        return

    print(
        f"This machine is busy: others take {100 * taken:.0f} % of it, so times will "
        "vary. Runs that are disturbed too much are trained again while there is time."
    )


def train_until_decided(race: Race, seeds: Sequence[int]) -> None:
    """Trains each recipe with one seed after the other until one is surely faster.

    The recipes take turns in going first, so a machine that slows down affects both. A
    run from which the machine took more than studies allow is trained again, and its
    first try is moved to ``disturbed/``, as long as all trainings fit into
    `TRAININGS_S`. After the first look, seeds are added only within that time.
    """
    from tfasr.studies.quiet import Patience

    patience = Patience(_most_taken(), WAITS_S)
    began_s = time.monotonic()
    first_look = min(LOOKS[0], len(seeds))
    disturbed = 0

    def ends_s(more: int) -> float:
        """Returns when trainings will end, in seconds since the first one's start.

        It is known only if ``more`` runs take as long as those so far.
        """
        passed_s = time.monotonic() - began_s
        return passed_s * (1 + more / max(len(race.runs), 1))

    for done, seed in enumerate(seeds):
        if done in LOOKS:
            if _decided(race):
                return

            # Further seeds only help if there is time until the next look.
            next_look = next((look for look in LOOKS if look > done), len(seeds))
            if ends_s(len(race.groups) * (next_look - done)) > TRAININGS_S:
                print(f"No time for more than {done} runs of each recipe.")
                return

        # A quiet machine gets to the first look, however slow it is.
        if disturbed and done < first_look and ends_s(len(race.groups)) > TRAININGS_S:
            print(
                f"The machine was disturbed during {disturbed} of {len(race.runs)} "
                f"runs, so the demo ends after {done} of {first_look} seeds. "
                f"{own_command()} doctor shows what takes its processors now."
            )
            return

        turn = list(zip(RECIPES.values(), race.groups, strict=True))
        if done % 2:
            turn.reverse()

        for gin_files, group in turn:
            run_dir = group
            if len(seeds) > 1:
                run_dir = group / f"seed_{seed}"

            train = partial(_train, race, gin_files, seed, run_dir, patience)
            train()
            race.runs = (*race.runs, run_dir)

            taken = _taken(run_dir)
            if taken <= _most_taken():
                continue

            disturbed += 1
            # Time for this run, and for all until the first look.
            runs_left = len(race.groups) * first_look - len(race.runs)
            if ends_s(max(runs_left, 0) + 1) <= TRAININGS_S:
                share = f"{100 * taken:.0f} %"
                print(f"  The machine took {share} of the run: it is trained again.")
                aside = group.parents[1] / "disturbed" / f"{group.name}-seed_{seed}"
                make_folder(aside.parent)
                run_dir.rename(aside)
                train()


def _most_taken() -> float:
    """Returns the share of a run's steps that the machine may take, as in studies.

    It is imported late, since the settings of studies are slow to load.
    """
    from tfasr.studies.plan import StudyConfig

    return StudyConfig.most_taken


def _taken(run_dir: Path) -> float:
    """Returns the share of a run's steps that the machine took; 0 if unknown.

    Without the kernel's counters, as in some containers, no run counts as disturbed.
    """
    from tfasr.studies.quiet import taken_of

    return taken_of(run_dir) or 0.0


def _decided(race: Race) -> bool:
    """Returns whether a look at the runs so far decides which recipe is faster.

    Looking again and again would find differences by chance, so each look needs a
    smaller p-value (`tfasr.tta.comparison.decide`). What the machine took from the runs
    is taken into account, as in a study.
    """
    from tfasr.tta.comparison import decide

    papers, fast = (
        [_bracket(run_dir) for run_dir in race.runs if run_dir.parent == group]
        for group in race.groups
    )
    return decide(papers, fast, looks=LOOKS).sooner is not None


def _bracket(run_dir: Path) -> "Bracket":
    """Returns between which times a run met its hardest target."""
    from tfasr.tta.host import read_host_file, undisturbed_part
    from tfasr.tta.metrics import hardest
    from tfasr.tta.policies import PAPER, bracket
    from tfasr.tta.run import load_run

    run = load_run(run_dir)
    metric, value = hardest(run.targets, run.metrics)
    points = run.accuracy_curve(metric, PAPER.name)
    measured = bracket(points, value, window=PAPER.window, metric=metric)
    part = undisturbed_part(read_host_file(run.path), run.timeline)

    return replace(measured, undisturbed=part)


def _train(
    race: Race,
    gin_files: Sequence[str],
    seed: int,
    run_dir: Path,
    patience: "Patience",
) -> None:
    """Waits for a quiet machine and trains a run.

    Args:
        race: the demo.
        gin_files: the recipe's presets.
        seed: of the training.
        run_dir: the run's folder, which must not exist.
        patience: waits, at most `WAITS_S` before all runs together.
    """
    patience.wait()
    words = ["train", "--shard_dir", str(race.shards), "--run_dir", str(run_dir)]
    for gin_file in gin_files:
        words += ["--gin_file", gin_file]

    recipe = next(group for group in race.groups if group in (run_dir, run_dir.parent))
    title = f"{recipe.name}, seed {seed}"
    _step(race, title, [*words, "--seed", str(seed)], run_dir)


def _step(
    race: Race, title: str, words: Sequence[str], run_dir: Path | None = None
) -> None:
    """Runs a command in another process and prints one line on it.

    With -v, all of the command's messages are printed instead.

    Args:
        race: the demo, which knows where messages go.
        title: the step's name, in its line and for its log.
        words: the command without ``tfasr``.
        run_dir: the run that it trains, whose progress is shown; None for other steps.

    Raises:
        RunError: if the command fails. The end of its messages is printed before.
    """
    log = race.logs / f"{title.replace(', ', '-').replace(' ', '_')}.log"
    began_s = time.monotonic()
    if race.verbose:
        print(f"$ {own_command()} {shlex.join(words)}", flush=True)
        exit_code = start_module("tfasr.cli", *words).wait()
    else:
        make_folder(log.parent)
        exit_code = _run(words, log, title, run_dir)

    if exit_code:
        if not race.verbose:
            messages = read_text(log, "Run the demo again with -v.").splitlines()
            print("\n".join(messages[-_LINES:]))

        raise RunError(
            f"Every step of the demo must succeed. tfasr {words[0]} ended with exit "
            f"code {exit_code}; its message is above."
        )

    if not race.verbose:
        took_s = time.monotonic() - began_s
        print(f"{title}: {_result(run_dir)}{took_s:.0f} s in all", flush=True)


def _result(run_dir: Path | None) -> str:
    """Returns when a run met its targets, such as "CER 10 % after 12.3 s, ".

    It is "" for a run that met none, and for a step that is no training. The time is
    the one in the run's progress file, so nothing has to be read again.
    """
    from tfasr.reports.numbers import target_label

    if run_dir is None:
        return ""

    met = object_or_empty(run_dir / PROGRESS_FILE).get("targets_met") or []
    return "".join(
        f"{target_label(of['metric'], of['value'])} after {of['elapsed_s']:.3g} s, "
        for of in met
    )


def _run(words: Sequence[str], log: Path, title: str, run_dir: Path | None) -> int:
    """Runs a command of tfasr, with its output in a file, and returns its exit code.

    Args:
        words: the command without ``tfasr``.
        log: the file, in a folder that exists.
        title: shown on a terminal while it runs, with how far a training is.
        run_dir: the run that it trains; None for other steps.
    """
    from tfasr.studies.progress import how_far

    status = stderr_console(highlight=False, markup=False).status(title)
    with log.open("wb") as file, status:
        process = start_module(
            "tfasr.cli", *words, stdout=file, stderr=subprocess.STDOUT
        )

        while process.poll() is None:
            time.sleep(_POLL_S)
            if run_dir is not None:
                _, text = how_far(object_or_empty(run_dir / PROGRESS_FILE))
                status.update(f"{title}: {text}")

    return process.returncode


def _next_free(folder: Path, name: str) -> Path:
    """Returns the path of a new group of runs: ``name``, or ``name``-2, -3 and so on.

    Runs of an earlier demo in the same folder are kept, and not mixed with new ones.
    """
    candidate = folder / name
    number = 2
    while candidate.exists():
        candidate = folder / f"{name}-{number}"
        number += 1

    return candidate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folder, and which seeds to train with."""
    add = parser.add_argument
    add("--demo_dir", default="demo", help="default: ./%(default)s")
    add(
        "--seed",
        type=int,
        default=1,
        help="seed of the first run of each recipe; default: 1",
    )
    add(
        "--seeds",
        type=int,
        default=LOOKS[-1],
        help=(
            "most runs of each recipe; it ends once it is decided which is faster, "
            "after 4 runs each at the earliest: 4 minutes on two cores, 6 at most; "
            "default: %(default)s"
        ),
    )


def run(arguments: argparse.Namespace) -> None:
    """Runs the demo and prints its answer, with the commands that come next."""
    page = demo(
        demo_dir=arguments.demo_dir,
        seed=arguments.seed,
        seeds=arguments.seeds,
        verbose=getattr(arguments, "verbose", False),
    )
    folder = page.parents[1]
    groups = []
    for recipe in RECIPES:
        # The newest group: "-10" comes after "-9".
        group_folders = (folder / "runs").glob(f"{recipe}*")
        newest = max(group_folders, key=lambda group: (len(group.name), group.name))
        groups.append(newest)

    print()
    print("\n".join(last_lines(folder, page, groups)))


def last_lines(folder: Path, page: Path, groups: Sequence[Path]) -> list[str]:
    """Returns the end of a demo: the answer, where to read more, the next commands.

    Args:
        folder: of the demo, with its corpus.
        page: the report's page.
        groups: the folders of each recipe's runs; the last one is the fast recipe's.

    Returns:
        Three lines; a fourth and a fifth say why it is undecided and what would decide
        it. Commands can be typed as they are, in the folder where the demo was started.
    """
    from tfasr.reports.groups import group_results, load_report
    from tfasr.reports.numbers import ask
    from tfasr.reports.summary import verdict

    report = load_report(groups, ask())
    answer = verdict(report, group_results(report))
    lines = [textwrap.fill(answer.text, 100, break_on_hyphens=False)]
    if answer.why:
        lines.append(textwrap.fill(answer.why, 100, break_on_hyphens=False))

    sound = min((folder / "corpus" / "test").rglob("*.wav"))
    fast = report.runs[-1].path
    command = shlex.join(["transcribe", str(sound), "--run_dir", str(fast)])
    lines.append(f"Why, with curves: open {page} in a browser.")
    lines.append(f"Use the trained model: {own_command()} {command}")
    if answer.command:
        lines.append(f"More runs, to decide it: {answer.command}")

    return lines
