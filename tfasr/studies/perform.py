"""Runs a study: every step in a separate process; steps that are done are skipped.

`study` is what ``tfasr study`` and `tfasr.study` call. It reads the plan (`plan`),
seals it, does the steps on one or several hosts (`blocks`) and writes the report
(`report`). With ``until="decided"`` it does them look by look, until a sequential test
says which of two experiments is faster (docs/statistics.md).
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import acquire_lock, read_object, write_whole
from tfasr.kit.process import call
from tfasr.ledger.declared import DECISION_FILE, SEALED_FILE, Starts
from tfasr.recording.session import claimed
from tfasr.studies.blocks import finish_moves, history, perform
from tfasr.studies.hosts import Cluster, ThisMachine, lock_problems, request
from tfasr.studies.plan import (
    Plan,
    PlannedRun,
    Step,
    begin,
    check_runs,
    finished,
    grow,
    load_plan,
    sealed_content,
    study_steps,
)
from tfasr.studies.quiet import QuietMachine
from tfasr.tta.comparison import LEVEL, LOOKS, Decision, decide, looks_of
from tfasr.tta.host import read_host_file, undisturbed_part
from tfasr.tta.metrics import hardest
from tfasr.tta.policies import PAPER, UTTERANCES, Bracket, bracket
from tfasr.tta.ranks import least_p
from tfasr.tta.run import load_run

if TYPE_CHECKING:
    from distributed import Client

# The only value of ``--until``.
DECIDED = "decided"

# How long a lost host is waited for, in seconds. A host that restarts is back within
# minutes. Waiting longer delays the study, waiting less throws away what the host has
# trained.
WAIT_FOR_HOST_S = 600.0

log = logging.getLogger("tfasr")


def load_until_plan(gin_file: str, bindings: Sequence[str]) -> Plan:
    """Reads a study's gin file, and gives it seeds for all looks unless it has them.

    The seeds are 1, 2 and so on. The gin file is read again with them, as if the user
    had bound them: then every check of the plan holds for them too.

    Args:
        gin_file: a path or a preset.
        bindings: lines of gin that override the file's.
    """
    plan = load_plan(gin_file, bindings)
    if len(plan.config.seeds) >= LOOKS[-1]:
        return plan

    seeds = tuple(range(1, LOOKS[-1] + 1))

    return load_plan(gin_file, [*bindings, f"StudyConfig.seeds = {seeds}"])


def planned(
    gin_file: str,
    bindings: Sequence[str],
    until: str,
    folder: Path,
    shard_dir: Path | None,
) -> tuple[Plan, list[Step]]:
    """Reads a study's gin file and lists its steps, without TensorFlow.

    Args:
        gin_file: a path or a preset.
        bindings: lines of gin that override the file's.
        until: "decided" or "", as in `study`.
        folder: the study's.
        shard_dir: prepared splits; None if the study makes its own speech.

    Raises:
        UsageError: if a step can't be done.
    """
    if not until:
        plan = load_plan(gin_file, bindings)
        return plan, study_steps(plan, folder, shard_dir)

    plan = load_until_plan(gin_file, bindings)
    check_until(until, plan)
    steps = study_steps(plan, folder, shard_dir)

    return plan, alternating(plan, folder, steps)


def check_until(until: str, plan: Plan) -> None:
    """Checks that ``--until`` can be done: two experiments, with seeds for all looks.

    Args:
        until: the flag's value.
        plan: the study's.

    Raises:
        UsageError: says what the study has instead.
    """
    if until != DECIDED:
        raise UsageError(f"--until must be {DECIDED!r}. Received: {until!r}.")

    names = list(plan.experiments)
    if len(names) != 2:
        raise UsageError(
            "--until decided compares two experiments. StudyConfig.experiments has "
            f"{len(names)}: {', '.join(names)}. Bind two of them."
        )

    of_each = [[run.seed for run in _runs(plan, name)] for name in names]
    if plan.config.test != "groups" and of_each[0] != of_each[1]:
        raise UsageError(
            f"StudyConfig.test = {plan.config.test!r} compares runs of equal seeds. "
            f"{names[0]} has the seeds {of_each[0]}, {names[1]} {of_each[1]}: leave "
            "ExperimentConfig.seeds out."
        )

    times = ", ".join(map(str, looks_of(plan.config.test, plan.config.level)))

    for name, seeds in zip(names, of_each, strict=True):
        if len(seeds) < LOOKS[-1]:
            raise UsageError(
                f"--until decided looks after {times} runs of each experiment. {name} "
                f"has {len(seeds)} seeds of its own: leave "
                f"{name}/ExperimentConfig.seeds out."
            )


def alternating(plan: Plan, folder: Path, steps: Sequence[Step]) -> list[Step]:
    """Orders the steps so that the second experiment trains first at every other seed.

    What changes slowly, such as a machine's temperature, then affects both alike. Kinds
    of steps stay in their order; steps without a run come last of their kind.

    Args:
        plan: of two experiments.
        folder: the study's.
        steps: all of its steps.
    """
    rounds = zip(*(_runs(plan, name) for name in plan.experiments), strict=False)
    turns = [pair[:: -1 if number % 2 else 1] for number, pair in enumerate(rounds)]
    order = [folder / run.folder for pair in turns for run in pair]
    kinds = list(dict.fromkeys(step.kind for step in steps))
    places = {path: number for number, path in enumerate(order)}

    def place(step: Step) -> tuple[int, int]:
        """Returns where a step belongs: by its kind, then by its run."""
        return kinds.index(step.kind), places.get(step.run_dir, len(order))

    return sorted(steps, key=place)


def undecidable(plan: Plan) -> list[str]:
    """Returns a warning for each part whose seeds are too few for any verdict.

    Even if all runs of one group were faster than all of the other, the smallest
    possible p, adjusted for the number of comparisons, would not be below the level.
    The adjustment is Bonferroni's, as for the smallest p of Holm's method.
    """
    sentences = []
    for part, names in plan.parts().items():
        runs = min(len(_runs(plan, name)) for name in names)
        comparisons = (len(names) - 1) * plan.number_of_targets(names[0])
        smallest = least_p(plan.config.test, runs, runs)

        if runs > 1 and comparisons * smallest >= LEVEL:
            sentences.append(
                f"{part}: {runs} seeds can't decide {comparisons} comparisons, as the "
                f"smallest possible p is {smallest:.2g}, adjusted "
                f"{min(1.0, comparisons * smallest):.2g}. Take more seeds or fewer "
                "targets."
            )

    return sentences


def decision(plan: Plan, folder: Path) -> Decision:
    """Compares two experiments' runs, up to the first unfinished seed.

    Seeds count in their order, so that a study on several hosts decides the same as on
    one, whichever host was first.

    Args:
        plan: of two experiments.
        folder: the study's.

    Raises:
        UsageError: if a run has no target.
    """
    groups = (_brackets(plan, folder, name) for name in plan.experiments)
    return decide(*groups, test=plan.config.test, level=plan.config.level)


def decision_text(plan: Plan, look: Decision) -> str:
    """Returns the verdict in one sentence, with the experiments' labels.

    Args:
        plan: of two experiments.
        look: the comparison of their runs, whose verdict knows no names.
    """
    first, second = (plan.label(name) for name in plan.experiments)
    verdict = look.verdict
    verdict = verdict.replace("the first group", first)
    verdict = verdict.replace("the second group", second)

    return f"{first} against {second}: {verdict}."


def perform_until_decided(
    plan: Plan,
    folder: Path,
    steps: Sequence[Step],
    perform: Callable[[Sequence[Step]], list[str]],
) -> list[str]:
    """Does a study's steps look by look until it is decided.

    Args:
        plan: of two experiments.
        folder: the study's.
        steps: all of its steps, in the order of `alternating`.
        perform: does steps and returns the names of those that failed.

    Returns:
        The names of the steps that failed. After a failed training no further look is
        taken, since its seed has no result.
    """
    first = [step for step in steps if step.kind not in ("train", "score", "widths")]
    failed = perform(first)
    wanted: set[Path] = set()

    # A study that goes on may be decided by the runs that it has.
    begun = any(finished(folder / run.folder) for run in plan.runs)
    if begun:
        look = decision(plan, folder)
    else:
        look = decide([], [], test=plan.config.test, level=plan.config.level)

    while not failed and not look.over:
        for name in plan.experiments:
            runs = _runs(plan, name)[: look.next_look]
            wanted |= {folder / run.folder for run in runs}

        failed += perform([step for step in steps if step.run_dir in wanted])
        if not failed:
            look = decision(plan, folder)
            log.info(decision_text(plan, look))

    text = decision_text(plan, decision(plan, folder))
    write_whole(folder / DECISION_FILE, f"{text}\n")

    # Only runs that the decision needed exist and can be scored.
    done = {f"score {run.name}" for run in plan.runs if finished(folder / run.folder)}
    ready = [step for step in steps if step.kind == "widths" or step.name in done]

    return failed + perform(ready)


def _runs(plan: Plan, experiment: str) -> list[PlannedRun]:
    """Returns an experiment's planned runs, in the order of its seeds."""
    return [run for run in plan.runs if run.experiment == experiment]


def _brackets(plan: Plan, folder: Path, experiment: str) -> list[Bracket]:
    """Returns when each run met its hardest target, up to the first unfinished run.

    If the study counts seconds, each bracket also has the share of the machine that the
    run got: the verdict must hold without what the machine took.

    Args:
        plan: the study's.
        folder: the study's.
        experiment: its name.

    Raises:
        UsageError: if a run has no target.
    """
    brackets = []
    for planned in _runs(plan, experiment):
        if not finished(folder / planned.folder):
            break

        run = load_run(folder / planned.folder)
        if not run.targets:
            raise UsageError(
                f"--until decided needs a target. {run.path} sets none: bind "
                "TrainingConfig.targets."
            )

        metric, value = hardest(run.targets, run.metrics)
        points = run.accuracy_curve(metric, plan.config.policy)
        window = run.target_window or PAPER.window
        measured = bracket(
            points, value, window=window, metric=metric, metrics=run.metrics
        )

        if plan.config.policy != UTTERANCES.name:
            part = undisturbed_part(read_host_file(run.path), run.timeline)
            measured = replace(measured, undisturbed=part)

        brackets.append(measured)

    return brackets


# How often a resumed study looks whether the killed one's last step has ended, in
# seconds.
_LOOKS_EVERY_S = 0.5

# Its lock is held by the study and inherited by each step, which may outlive the study.
_AT_WORK_FILE = "at_work"


def study(
    gin_file: str,
    *,
    run_dir: str | Path,
    shard_dir: str | Path | None = None,
    bindings: Sequence[str] = (),
    resume: bool = False,
    until: str = "",
    client: "Client | None" = None,
    wait_for_host_s: float = WAIT_FOR_HOST_S,
) -> Path:
    """Trains every run of a study, scores them and writes the report.

    Each training and each evaluation is the command that a user would type, in a
    separate process. A study that was killed at any moment goes on with ``resume``:
    finished steps are skipped, an interrupted training continues from its checkpoint,
    and failed steps are tried again.

    Args:
        gin_file: a path or a preset such as "study/paper_small.gin".
        run_dir: gets the runs, their logs and the report.
        shard_dir: prepared splits; None if the study makes its own speech.
        bindings: lines of gin that override the file's.
        resume: continues a study of the same gin file, finished or not; experiments may
            have more seeds than it began with, which the report states.
        until: "decided" gives a study of two experiments as many seeds as it takes to
            tell which reaches its hardest target sooner, 12 at most; the result is in
            ``decision.txt``.
        client: a Dask client, whose workers' hosts train the runs, one at a time each;
            all runs of a seed on one host. Hosts must see ``run_dir`` and ``shard_dir``
            under the same absolute paths, with locks that hold on all of them, and have
            the same software.
        wait_for_host_s: how long a host that no longer answers is waited for, before
            its unfinished seeds begin again on another one.

    Returns:
        The path of ``report.html``.

    Raises:
        UsageError: if the gin file, an experiment or the folder is wrong.
        RunError: if a step failed; the report on the others is written.
    """
    folder = Path(run_dir)
    shards = None
    if shard_dir is not None:
        shards = Path(shard_dir)

    # A cluster's workers have other working directories.
    if client is not None:
        folder = folder.resolve()
        shards = shards and shards.resolve()

    plan, steps = planned(gin_file, bindings, until, folder, shards)

    with claimed(folder, "--run_dir", "run a study"):
        declared = _declared(plan, folder)
        _check_hosts(plan, folder, client, sealed=bool(declared))
        more = begin(folder, plan, shards, resume=resume)

        # `check_until` has made sure that there are enough seeds.
        if not until:
            for sentence in undecidable(plan):
                log.warning(sentence)

        prepared = shards or folder / "shards"
        sealed = partial(sealed_content, plan, until, declared, prepared)

        with (
            _alone(folder) as held,
            contextlib.closing(Starts(folder, sealed)) as starts,
        ):
            if more:
                log.info("%d runs are added to the study.", len(more))
                grow(folder, plan, more)

            hosts: ThisMachine | Cluster = ThisMachine(held)
            if client is not None:
                finish_moves(folder, steps)
                hosts = Cluster(
                    client,
                    hosts,
                    partial(request, plan, folder, prepared),
                    alike=plan.config.test == "groups",
                    known=history(folder).described,
                )

            logged_starts = starts if declared else None
            do = partial(
                perform,
                hosts=hosts,
                starts=logged_starts,
                quiet=QuietMachine(plan.config, folder, logged_starts),
                folder=folder,
                patience_s=wait_for_host_s,
            )
            if until:
                failed = perform_until_decided(plan, folder, steps, do)
            else:
                failed = do(steps)

        # Imported here: drawing is slow to load, and a wrong gin file must be reported
        # at once.
        from tfasr.studies.report import write_report

        page = write_report(plan, folder)

    if failed:
        raise RunError(
            f"Every step of a study must succeed. {len(failed)} of {len(steps)} did "
            f"not: {'; '.join(failed)}. Their logs are in {folder / 'logs'}; --resume "
            f"tries them again. The report on the others: {page}"
        )

    return page


def _check_hosts(
    plan: Plan, folder: Path, client: "Client | None", *, sealed: bool
) -> None:
    """Checks that a study goes on where it was begun, and suits several hosts.

    Args:
        plan: the study's.
        folder: the study's.
        client: None if this machine alone trains.
        sealed: whether the study has, or gets, a sealed plan.

    Raises:
        UsageError: if the folder's locks don't hold, or if a seed was begun with hosts
            and would go on without them, or the other way round.
    """
    if client is not None:
        problems = lock_problems(folder)
        if problems:
            raise UsageError(
                f"--run_dir must suit several hosts. Here, {'; '.join(problems)}."
            )

        if not sealed:
            raise UsageError(
                f"Only a study with a sealed plan can use --scheduler. {folder} was "
                "begun without one: finish it without --scheduler, or begin a new one."
            )

    unfinished = {run.seed for run in plan.runs if not finished(folder / run.folder)}

    for seed, block in history(folder).blocks.items():
        if seed not in unfinished or bool(block.host) == (client is not None):
            continue

        begun_on = block.host or "the machine of the study, without --scheduler"
        again = "with" if block.host else "without"
        raise UsageError(
            f"All runs of a seed must be trained on one host. Seed {seed} was begun on "
            f"{begun_on}: continue the study {again} --scheduler until its seeds are "
            "finished."
        )


def _declared(plan: Plan, folder: Path) -> dict[str, Any]:
    """Returns the sealed plan's declaration of each experiment's training.

    It is {} if the study was begun without a sealed plan. A new study's experiments are
    read as their trainings will, in another process, since that loads TensorFlow.

    Args:
        plan: the study's.
        folder: the study's, new or begun.

    Raises:
        UsageError: if an experiment can't be trained.
    """
    sealed = folder / SEALED_FILE
    if sealed.exists():
        return read_object(sealed, "Restore it from a copy.", ("trained",))["trained"]

    if any((folder / run.folder).exists() for run in plan.runs):
        log.warning(
            "%s was begun without a sealed plan to check its runs against.", folder
        )
        return {}

    # The runs of an experiment differ in the seed alone: the first one stands for all.
    firsts = {run.experiment: run for run in reversed(plan.runs)}
    requests = [
        (name, list(run.gin_files), list(run.bindings)) for name, run in firsts.items()
    ]
    log.info("Reading the presets of %d experiments.", len(requests))

    return call(check_runs, requests, backend="tensorflow", show_messages=False)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[tuple[int, ...]]:
    """Locks a study's folder once no process works in it; yields its descriptor.

    Steps inherit it: if the study is killed, its training keeps the folder locked until
    it has saved its work.
    """
    descriptor = None
    waits = False

    while descriptor is None:
        try:
            descriptor = acquire_lock(folder / _AT_WORK_FILE, "held")
        except UsageError:
            if not waits:
                log.info(
                    "Waiting for a step of the killed study to save its work and end."
                )

            waits = True
            time.sleep(_LOOKS_EVERY_S)

    try:
        yield (descriptor,)
    finally:
        os.close(descriptor)
