"""A study that trains only as many seeds as its comparison needs."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tfasr.durable import write_whole
from tfasr.errors import UsageError
from tfasr.studies.plan import Plan, PlannedRun
from tfasr.studies.steps import Step, finished
from tfasr.tta.brackets import Bracket, bracket
from tfasr.tta.load import load_run
from tfasr.tta.metrics import metric_named
from tfasr.tta.policies import PAPER
from tfasr.tta.sequential import LOOKS, Decision, decide

DECISION_FILE = "decision.txt"
"""In a study's folder: what its looks came to."""

DECIDED = "decided"
"""What ``--until`` may be."""

SEEDS = f"StudyConfig.seeds = {tuple(range(1, LOOKS[-1] + 1))}"
"""The binding that gives a study as many seeds as the last look takes."""


log = logging.getLogger("tfasr")


def check_until(until: str, plan: Plan) -> None:
    """Refuses a study that is no comparison of two groups.

    Raises:
        UsageError: unless it has two experiments, each with the seeds of all looks.
    """
    if until != DECIDED:
        raise UsageError(f"--until must be {DECIDED!r}. Received: {until!r}.")
    names = list(plan.experiments)
    if len(names) != 2:
        raise UsageError(
            "--until decided compares two experiments. StudyConfig.experiments has "
            f"{len(names)}: {', '.join(names)}. Bind two of them."
        )
    for name in names:
        seeds = [run.seed for run in plan.runs if run.experiment == name]
        if len(seeds) < LOOKS[-1]:
            raise UsageError(
                f"--until decided looks after {', '.join(map(str, LOOKS))} runs of each "
                f"experiment. {name} has {len(seeds)} seeds of its own: leave "
                f"{name}/ExperimentConfig.seeds out."
            )


def decision(plan: Plan, folder: Path) -> Decision:
    """Returns what the finished runs of a study's two experiments decide of its hardest target.

    Runs count in the order of their seeds, up to the first that is not finished.

    Raises:
        UsageError: if the runs set no target.
    """
    return decide(*(_brackets(plan, folder, name) for name in plan.experiments))


def decision_text(plan: Plan, found: Decision) -> str:
    first, second = (plan.label(name) for name in plan.experiments)
    said = found.verdict.replace("the first group", first).replace("the second group", second)
    return f"{first} against {second}: {said}."


def perform_until_decided(
    plan: Plan,
    folder: Path,
    steps: Sequence[Step],
    perform: Callable[[Sequence[Step]], list[str]],
) -> list[str]:
    """Does a study's steps look by look, without the runs that a decision makes needless.

    Returns the names of the steps that failed; after a failed one there are no further looks.
    """
    failed = perform([step for step in steps if step.kind not in ("train", "score", "widths")])
    wanted: set[Path] = set()
    begun = any(finished(folder / run.folder) for run in plan.runs)
    found = decision(plan, folder) if begun else decide([], [])
    while not failed and not found.over:
        for name in plan.experiments:
            wanted |= {folder / run.folder for run in _runs(plan, name)[: found.next_look]}
        failed += perform([step for step in steps if step.run_dir in wanted])
        if not failed:
            found = decision(plan, folder)
            log.info(decision_text(plan, found))
    write_whole(folder / DECISION_FILE, decision_text(plan, decision(plan, folder)) + "\n")
    done = {run.name for run in plan.runs if finished(folder / run.folder)}
    later = [step for step in steps if step.kind in ("score", "widths")]
    ready = [step for step in later if step.kind == "widths" or step.name[6:] in done]
    return failed + perform(ready)


def _runs(plan: Plan, experiment: str) -> list[PlannedRun]:
    return [run for run in plan.runs if run.experiment == experiment]


def _brackets(plan: Plan, folder: Path, experiment: str) -> list[Bracket]:
    found = []
    for planned in _runs(plan, experiment):
        if not finished(folder / planned.folder):
            break
        run = load_run(folder / planned.folder)
        if not run.targets:
            raise UsageError(
                f"--until decided needs a target. {run.path} sets none: bind "
                "TrainingConfig.targets."
            )
        metric, value = max(run.targets, key=lambda one: metric_named(one[0]).hardness(one[1]))
        points = run.accuracy_curve(metric)
        found.append(bracket(points, value, window=PAPER.window, metric=metric))
    return found
