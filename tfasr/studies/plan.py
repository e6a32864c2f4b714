"""Plans a study: its gin file, its runs, the plan in its folder, its steps.

`load_plan` reads the gin file into a `Plan`, without TensorFlow. `begin` writes the
plan into the study's folder, or compares it with the one that is there.
`sealed_content` and `plan_of` write and read the sealed plan. `study_steps` turns the
plan into steps, each of them a command of ``tfasr``.
"""

import ast
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tfasr._version import __version__
from tfasr.corpora.utterance import SPLITS
from tfasr.data.manifest import INDEX_FILE, read_index
from tfasr.errors import UsageError, nearest
from tfasr.kit import gin
from tfasr.kit.config import config_class, require, to_json
from tfasr.kit.files import (
    EVENTS_FILE,
    check_owned,
    make_folder,
    object_or_empty,
    read_object,
    write_whole,
)
from tfasr.kit.registry import loaded_plugins, plugins
from tfasr.ledger.declared import DISTURBED_FOLDER, SEALED_FILE, STARTS_FILE, code_hash
from tfasr.recording.session import differences
from tfasr.tta.comparison import LEVEL, LOOKS, levels, looks_of
from tfasr.tta.policies import POLICIES, UTTERANCES
from tfasr.tta.ranks import least_p
from tfasr.tta.run import load_run


def check_runs(
    requests: Sequence[tuple[str, list[str], list[str]]],
) -> dict[str, dict[str, Any]]:
    """Reads each experiment as its training will.

    It loads Keras, so the study calls it in another process.

    Args:
        requests: name, gin files and bindings of each experiment.

    Returns:
        What a sealed plan declares about each: targets, their window, decoders, division.

    Raises:
        UsageError: if an experiment can't be trained.
    """
    from tfasr.training.build import check_batch_size
    from tfasr.training.experiment import in_closed_division
    from tfasr.training.from_gin import load_config

    declared = {}
    for name, gin_files, bindings in requests:
        try:
            loaded = load_config(gin_files, bindings)
            experiment = loaded.experiment
            check_batch_size(experiment)
        except UsageError as error:
            raise UsageError(
                f"The experiment {name} cannot be trained. {error}"
            ) from error

        training = experiment.training
        by_units = loaded.alphabet.units or loaded.alphabet.units_model
        changed = by_units or loaded.noise is not None
        closed = in_closed_division(experiment) and not changed
        declared[name] = {
            "targets": [list(target) for target in training.targets],
            "target_window": training.target_window,
            "decoder": to_json(experiment.decoder),
            "second_decoder": training.second_decoder,
            "division": "closed" if closed else "open",
        }

    return declared


# The value of `StudyConfig.corpus` that makes the demo's speech.
SYNTHETIC = "synthetic"


@config_class
class ExperimentConfig:
    """One configuration of a study, trained once for each seed.

    Its bindings have its name as scope: ``sys1/ExperimentConfig.gin_files =
    ('demo.gin',)``. Bindings without a scope are defaults for all experiments.
    """

    # presets or files; files may be next to the study's gin file
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()  # lines of gin that override them
    # environment variables of its trainings, such as "TF_NUM_INTRAOP_THREADS=1"
    environment: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()  # one run each; () means the study's seeds
    label: str = ""  # its name in reports; "" means the experiment's name
    # the table that shows it; a table compares all with its first experiment
    part: str = "runs"
    # a table of `StudyConfig.published`, shown with the part's times
    published_table: str = ""

    def check(self) -> None:
        """Raises ValueError for an experiment without files, and for repeated seeds."""
        require(bool(self.gin_files), self, "gin_files", "at least one preset or file")
        require(
            all("=" in line for line in self.environment),
            self,
            "environment",
            "NAME=VALUE",
        )
        require(
            len(set(self.seeds)) == len(self.seeds),
            self,
            "seeds",
            "different from each other",
        )


@config_class
class StudyConfig:
    """A list of experiments, how their runs are compared, and what else is measured.

    It has many fields because each is a separate setting of the same gin file, declared
    in the sealed plan.
    """

    # scopes of `ExperimentConfig`, in the tables' order
    experiments: tuple[str, ...] = ()
    title: str = "A study"  # the report's heading
    seeds: tuple[int, ...] = (1,)  # of every experiment that doesn't set its own
    # the test that decides: "groups" compares all runs of two experiments, "pairs" the
    # two runs of each seed, which took turns on one machine (docs/statistics.md)
    test: Literal["groups", "pairs"] = "groups"
    corpus: str = ""  # "synthetic" makes the demo's speech; "" needs ``--shard_dir``
    # where each run's best checkpoint is scored at the end
    final_splits: tuple[str, ...] = ()
    final_beam_width: int = 512  # beam width of the word beam search in that scoring
    # for timed evaluations of one run, ascending; () skips them
    beam_widths: tuple[int, ...] = ()
    beam_widths_of: str = ""  # the experiment of that run; "" means the first one
    published: str = ""  # whose published results to show next to yours; "" for none
    # the machine may take this part of the processors that steps could use: a training
    # waits until others take less, and a run that lost more is trained again
    # (docs/quiet_machine.md)
    most_taken: float = 0.1
    # clock of ``--until decided``; "utterances" counts utterances instead
    policy: str = "paper"
    # the largest probability of a false verdict of ``--until decided``
    level: float = 0.05

    def check(self) -> None:
        """Raises ValueError for names that can't be folders, and for wrong numbers."""
        require(bool(self.experiments), self, "experiments", "at least one name")
        named = all(name.isidentifier() for name in self.experiments)
        rule = (
            "names of letters, digits and _, since each is a scope of gin and a folder"
        )
        require(named, self, "experiments", rule)
        require(bool(self.seeds), self, "seeds", "at least one")

        for field in ("experiments", "seeds"):
            values = getattr(self, field)
            require(
                len(set(values)) == len(values),
                self,
                field,
                "different from each other",
            )

        require(self.corpus in ("", SYNTHETIC), self, "corpus", f"'' or '{SYNTHETIC}'")
        clocks = (*POLICIES, UTTERANCES.name)
        require(self.policy in clocks, self, "policy", f"one of {', '.join(clocks)}")

        # With a smaller level, no result of all seeds could be a verdict.
        least = least_p(self.test, LOOKS[-1], LOOKS[-1])
        rule = (
            f"greater than {least:.2g}, which {LOOKS[-1]} seeds can show, and at most "
            f"{LEVEL}"
        )
        require(least < self.level <= LEVEL, self, "level", rule)

        require(
            0 < self.most_taken <= 1, self, "most_taken", "greater than 0 and at most 1"
        )
        widths = [*self.beam_widths, self.final_beam_width]
        require(
            min(widths) > 0, self, "beam_widths", "at least 1, and final_beam_width too"
        )


# In a study's folder: the plan that it was begun with.
PLAN_FILE = "study.json"

# Runs whose hosts were lost, and which began again elsewhere.
ABANDONED_FOLDER = "abandoned"

# Everything that a study writes. A folder that has one of these, but no plan, belongs to
# someone else and is left alone.
_WRITTEN = (
    PLAN_FILE,
    "runs",
    "logs",
    "report",
    "scores",
    "beam_widths",
    "decision.txt",
    SEALED_FILE,
    STARTS_FILE,
    DISTURBED_FOLDER,
    ABANDONED_FOLDER,
)

# Counts incompatible changes of the sealed plan.
SEALED_FORMAT = 1

# How long a study that is run once waits for a quiet machine, in seconds, all waits
# together.
LONGEST_WAIT_S = 600.0


def allowed_levels(config: StudyConfig) -> dict[str, float]:
    """Returns the p that decides a comparison at each look.

    The keys are the numbers of runs per group, as texts, since JSON has no other keys.
    """
    looks = looks_of(config.test, config.level)
    allowed = levels(looks, config.level)

    return {str(number): p for number, p in zip(looks, allowed, strict=True)}


def sealed_content(
    plan: "Plan", until: str, declared: dict[str, Any], shard_dir: Path
) -> dict[str, Any]:
    """Returns a study's declaration, made before its first run.

    Args:
        plan: the study's.
        until: "decided" or "".
        declared: what `check_runs` returned.
        shard_dir: prepared splits, whose content hashes are declared too.
    """
    splits = sorted(path.parent for path in shard_dir.glob(f"*/{INDEX_FILE}"))
    return {
        "format": SEALED_FORMAT,
        "study": to_json(plan.config),
        "experiments": {
            name: to_json(config) for name, config in plan.experiments.items()
        },
        "runs": [
            {
                "experiment": run.experiment,
                "seed": run.seed,
                "folder": run.folder.as_posix(),
                "statements": plan.identity["runs"][str(run.folder)],
            }
            for run in plan.runs
        ],
        "trained": declared,
        "until": until,
        "looks": allowed_levels(plan.config),
        "longest_wait_s": LONGEST_WAIT_S,
        "data": {split.name: read_index(split)["content_hash"] for split in splits},
        "code": {"tfasr": __version__, "files": code_hash()},
        "plugins": {plugin.name: plugin.sha256 for plugin in plugins()},
    }


def plan_of(sealed: dict[str, Any]) -> "Plan":
    """Returns the plan that was sealed, as far as reports and decisions need it.

    Its runs have no gin files and bindings: they can't be trained, only read.
    """

    def made(cls: type, values: dict[str, Any]) -> Any:
        """Makes a config of its sealed fields."""
        # A newer tfasr may have sealed fields that this one lacks.
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})

    config = made(StudyConfig, sealed["study"])
    named = {
        name: made(ExperimentConfig, sealed["experiments"][name])
        for name in config.experiments
    }
    runs = [
        PlannedRun(run["experiment"], run["seed"], Path(run["folder"]), (), ())
        for run in sealed["runs"]
    ]
    statements = {run["folder"]: run["statements"] for run in sealed["runs"]}

    return Plan(config, named, runs, {"corpus": config.corpus, "runs": statements})


@dataclass(frozen=True)
class PlannedRun:
    """A training of one experiment with one seed.

    Attributes:
        experiment: the name of its experiment.
        seed: of everything random in the training.
        folder: relative to the study's folder.
        gin_files: absolute paths.
        bindings: lines of gin; the last one sets the seed.
        environment: variables of its process, as "NAME=VALUE".
    """

    experiment: str
    seed: int
    folder: Path
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...]
    environment: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in progress lines and of the run's log: "sys1" or "sys1-seed_2"."""
        return "-".join(self.folder.parts[1:])


@dataclass(frozen=True)
class Plan:
    """A study as its gin file describes it.

    Attributes:
        config: of the whole study.
        experiments: by name, in the study's order.
        runs: in the order in which one machine trains them. Experiments take turns, so
            that a disturbance affects all of them.
        identity: JSON values that a run's result depends on: the statements of each run,
            by its folder, and the study's corpus. A resumed study must have the same.
    """

    config: StudyConfig
    experiments: dict[str, ExperimentConfig]
    runs: list[PlannedRun]
    identity: dict[str, Any]

    def label(self, experiment: str) -> str:
        """Returns an experiment's name in reports."""
        return self.experiments[experiment].label or experiment

    def number_of_targets(self, experiment: str) -> int:
        """Returns how many targets an experiment's runs have; 0 if that can't be read.

        The last binding counts, as it does for gin. A value that isn't a plain list,
        such as a macro, is not evaluated.
        """
        run = next(run for run in self.runs if run.experiment == experiment)

        number = 0
        for text in self.identity["runs"][str(run.folder)]:
            if re.match(r"TrainingConfig\.targets\s*=", text):
                with suppress(ValueError, SyntaxError, TypeError):
                    number = len(ast.literal_eval(text.split("=", 1)[1].strip()))

        return number

    def parts(self) -> dict[str, list[str]]:
        """Returns the experiments' names by the part of the report that shows them."""
        names: dict[str, list[str]] = {}
        for name, experiment in self.experiments.items():
            names.setdefault(experiment.part, []).append(name)

        return names


def load_plan(gin_file: str, bindings: Sequence[str] = ()) -> Plan:
    """Reads a study's gin file without TensorFlow.

    Args:
        gin_file: a path or a preset such as "study/paper_small.gin".
        bindings: lines of gin that override the file's.

    Raises:
        UsageError: names the file and the line that is wrong.
    """
    path = gin.find_preset(gin_file)

    def build(lines: gin.GinText) -> tuple[StudyConfig, dict[str, ExperimentConfig]]:
        config = gin.make(StudyConfig, lines)
        _check_described(config, lines)

        return config, {
            name: gin.make(ExperimentConfig, lines, scope=name)
            for name in config.experiments
        }

    text = gin.read_gin([str(path)], bindings)

    # A setting of the training that is bound in the study's own file would reach no
    # training, and gin would not complain, since the study doesn't load its classes.
    for line in text.bindings:
        if line.parameter and not nearest(
            line.selector.rpartition(".")[2], gin.registered()
        ):
            raise UsageError(
                f"{line.place}: in a study, settings of the training must be in an "
                f"experiment's bindings. Received: {line.name}. Write "
                f"NAME/ExperimentConfig.bindings = ('{line.name} = ...',) for each "
                "experiment that needs it."
            )

    config, experiments = gin.fill(text, build).configs
    labels = [experiment.label or name for name, experiment in experiments.items()]
    twice = sorted({label for label in labels if labels.count(label) > 1})

    if twice:
        raise UsageError(
            f"{path}: every experiment must have a label of its own. Received twice: "
            f"{twice[0]!r}."
        )

    runs = _runs(config, experiments, path.parent)
    statements = {}

    for run in runs:
        of_run = gin.statements(run.gin_files, run.bindings)
        statements[str(run.folder)] = [*of_run, *run.environment]

    identity = {"corpus": config.corpus, "runs": statements}
    # The default is left out, as in plans of older versions.
    if config.test != StudyConfig.test:
        identity["test"] = config.test
    if config.most_taken != StudyConfig.most_taken:
        identity["most_taken"] = config.most_taken

    return Plan(config, experiments, runs, identity)


def begin(
    folder: Path, plan: Plan, shard_dir: Path | None, *, resume: bool
) -> list[PlannedRun]:
    """Writes a study's plan into its folder, or compares it with the one there.

    Args:
        folder: the study's.
        plan: what the gin file says now.
        shard_dir: prepared splits; None if the study makes its own speech.
        resume: whether the folder may have a study.

    Returns:
        The runs that the earlier plan lacks because its experiments had fewer seeds:
        `grow` adds them.

    Raises:
        UsageError: if the folder contains something other than a study, or a study that
            differs in more than its seeds.
    """
    path = folder / PLAN_FILE
    owned = isinstance(object_or_empty(path).get("runs"), dict)
    check_owned(
        folder, "--run_dir", f"{PLAN_FILE} of tfasr study", _WRITTEN, owned=owned
    )
    shards = None if shard_dir is None else str(shard_dir.resolve())
    wanted = {**plan.identity, "shard_dir": shards}

    if not path.exists():
        write_whole(path, json.dumps(wanted, indent=1) + "\n")
        return []

    if not resume:
        raise UsageError(
            f"--run_dir must not hold a study yet. Received: {folder}, which holds "
            "one. Continue it with --resume, or choose another folder."
        )

    then = read_object(
        path, "It says what the study was begun with; choose another --run_dir."
    )
    old = dict(then["runs"]) if isinstance(then.get("runs"), dict) else {}

    # An experiment's only run is in runs/NAME. With more seeds, `grow` moves it to
    # runs/NAME/seed_N: it is the same run.
    for folder_now, statements in wanted["runs"].items():
        alone = str(Path(*Path(folder_now).parts[:2]))
        if folder_now not in old and old.get(alone) == statements:
            old[folder_now] = old.pop(alone)

    begun = {Path(name).parts[1] for name in old if len(Path(name).parts) > 1}
    more = [r for r in plan.runs if str(r.folder) not in old and r.experiment in begun]
    planned = {str(run.folder) for run in plan.runs if run not in more}
    runs = {name: wanted["runs"][name] for name in wanted["runs"] if name in planned}
    differing = _differing({**then, "runs": old}, {**wanted, "runs": runs})

    if differing:
        raise UsageError(
            f"A resumed study must be the one that {folder} was begun with, except for "
            f"more seeds. It differs in: {'; '.join(differing)}. Use the same "
            "--gin_file and bindings, or another --run_dir."
        )

    return more


def grow(folder: Path, plan: Plan, more: Sequence[PlannedRun]) -> None:
    """Adds seeds to the plan.

    Results of experiments that had one seed move to that seed's folder. No other
    process may use the folder. If this one is killed, another call finishes the job.

    Args:
        folder: the study's.
        plan: with the new seeds.
        more: the runs that the plan in the folder lacks, from `begin`.
    """
    then = read_object(folder / PLAN_FILE, "Choose another --run_dir.")
    for run in plan.runs:
        if str(run.folder) not in then["runs"] and run not in more:
            _move(folder, run)

    # Noted for the report: who adds seeds because of the results so far gets p values
    # that are too small.
    grown = {
        "runs_before": len(then["runs"]),
        "added": [str(run.folder) for run in more],
    }
    wanted = {**then, **plan.identity, "grown": [*then.get("grown", []), grown]}
    write_whole(folder / PLAN_FILE, json.dumps(wanted, indent=1) + "\n")


def grown_from(folder: Path) -> str:
    """Returns a caveat for the report on a study that got more seeds later, or ""."""
    grown = object_or_empty(folder / PLAN_FILE).get("grown")
    if not grown:
        return ""

    added = sum(len(each["added"]) for each in grown)

    return (
        f"{added} runs were added to the {grown[0]['runs_before']} that this study "
        "began with. If its results were the reason, p values and intervals are too "
        "favourable."
    )


def _move(folder: Path, run: PlannedRun) -> None:
    """Moves an only run with its scores and logs to the folder of its seed.

    The run moves in two steps, since its new folder is inside the old one. A process
    that is killed between them leaves ``NAME.moving``, which the next call goes on
    with.

    Args:
        folder: the study's.
        run: with its new folder.
    """
    new_folder = folder / run.folder
    alone = folder / "runs" / run.experiment
    aside = alone.with_name(f"{run.experiment}.moving")
    if not new_folder.exists() and alone.exists() and not aside.exists():
        alone.rename(aside)
    if aside.exists():
        make_folder(alone)
        aside.rename(new_folder)

    for kind, tail in (("scores", ""), ("logs", ".log"), ("logs", "-scores.log")):
        old = folder / kind / f"{run.experiment}{tail}"
        if old.exists():
            old.rename(folder / kind / f"{run.name}{tail}")


def _check_described(config: StudyConfig, lines: gin.GinText) -> None:
    """Checks that the file describes every experiment that the study lists.

    Args:
        config: the study's.
        lines: of the gin file.

    Raises:
        UsageError: names the line of the list, and an experiment without bindings.
    """
    described = gin.bound_scopes(ExperimentConfig, lines)
    unknown = [name for name in config.experiments if name not in described]
    # One experiment may use the defaults alone. Two would be equal, and if the file
    # also describes an experiment that isn't listed, a name is misspelt.
    default = ExperimentConfig.__name__ in gin.bound_names(lines) and len(unknown) == 1
    if unknown and not (default and set(described) <= set(config.experiments)):
        names = ", ".join(described) or "none"
        raise UsageError(
            f"{gin.binding_place(lines, 'StudyConfig', 'experiments')}StudyConfig.experiments "
            "must name experiments that the file describes, with lines such as "
            f"{unknown[0]}/ExperimentConfig.gin_files = ('demo.gin',). Received: "
            f"{unknown[0]!r}, for which nothing is bound. Described: {names}."
        )

    if config.beam_widths_of not in ("", *config.experiments):
        place = gin.binding_place(lines, "StudyConfig", "beam_widths_of")
        raise UsageError(
            f"{place}StudyConfig.beam_widths_of must be one of the experiments "
            f"{', '.join(config.experiments)}. Received: {config.beam_widths_of!r}."
        )


def _runs(
    config: StudyConfig, experiments: dict[str, ExperimentConfig], beside: Path
) -> list[PlannedRun]:
    """Returns all runs of a study, in the order in which one machine trains them.

    Each turn trains one seed of every experiment.

    Args:
        config: the study's.
        experiments: by name.
        beside: the folder of the study's gin file, in which presets are looked for first.
    """
    # The studies that come with tfasr mean presets, never files next to them of the
    # same name.
    users = not beside.is_relative_to(gin.presets_folder().resolve())

    def preset(file: str) -> str:
        """Returns the path of a file next to the study's gin file, or of a preset."""
        if users and (beside / file).is_file():
            file = str(beside / file)

        return str(gin.find_preset(file))

    seeds = {
        name: experiment.seeds or config.seeds
        for name, experiment in experiments.items()
    }
    files = {
        name: tuple(map(preset, experiment.gin_files))
        for name, experiment in experiments.items()
    }

    runs = []
    for turn in range(max(map(len, seeds.values()))):
        for name, experiment in experiments.items():
            if turn >= len(seeds[name]):
                continue

            seed = seeds[name][turn]
            folder = Path("runs", name)
            if len(seeds[name]) > 1:
                folder /= f"seed_{seed}"

            bindings = (*experiment.bindings, f"TrainingConfig.seed = {seed}")
            more = (files[name], bindings, experiment.environment)
            runs.append(PlannedRun(name, seed, folder, *more))

    return runs


def _differing(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns how a study differs from the one that its folder was begun with.

    Args:
        then: the plan in the folder.
        now: the plan that the gin file describes.
    """
    # A plan lacks the settings that have their default.
    defaults = {
        "corpus": None,
        "shard_dir": None,
        "test": StudyConfig.test,
        "most_taken": StudyConfig.most_taken,
    }
    before, after = (
        {name: plan.get(name, default) for name, default in defaults.items()}
        for plan in (then, now)
    )
    lines = []
    changes = differences(before, after)
    if changes:
        lines.append(changes)

    # The file may be anyone's.
    old = then.get("runs")
    if not isinstance(old, dict):
        old = {}

    for folder in dict.fromkeys([*old, *now["runs"]]):
        before = old.get(folder)
        after = now["runs"].get(folder)
        if before is None:
            lines.append(f"{folder}: not planned before")
        elif after is None:
            lines.append(f"{folder}: not planned any more")
        elif before != after:
            changed = [line for line in after if line not in before]
            changed.append("a statement is gone")
            lines.append(f"{folder}: {changed[0].strip()}")

    return lines


# A row's numbers must be smaller: Python reads whole numbers of any length from JSON,
# which can't be formatted as floats.
_LARGEST = 1e100

# What ``tfasr evaluate`` and ``tfasr bench decoder`` write.
SCORES_FILE = "scores.json"
WIDTHS_FOLDER = "beam_widths"
WIDTHS_FILE = "results.json"


@dataclass(frozen=True)
class Step:
    """One command of a study, with what must exist before and after it.

    Attributes:
        kind: "corpus", "train", "score" or "widths"; all steps of a kind are done
            before those of the next one.
        name: shown in progress lines, such as "train sys1".
        words: returns the arguments of ``tfasr``.
        done: returns whether its result exists.
        log: gets what the command prints.
        needs: the run that must be finished before.
        run_dir: a training's run folder, in which its progress is watched.
        alike: the experiment, whose steps of one kind take similar times.
        environment: variables of its process, as "NAME=VALUE".
        seed: a training's.
    """

    kind: str
    name: str
    words: Callable[[], Sequence[str | Path]]
    done: Callable[[], bool]
    log: Path
    needs: Path | None = None
    run_dir: Path | None = None
    alike: str = ""
    environment: tuple[str, ...] = ()
    seed: int | None = None


def study_steps(plan: Plan, folder: Path, shard_dir: Path | None) -> list[Step]:
    """Returns all steps of a study, in their order.

    Args:
        plan: the study's.
        folder: the study's.
        shard_dir: prepared splits; None if the study makes its own speech.

    Raises:
        UsageError: if the study neither has splits nor makes speech.
    """
    shards = shard_dir or folder / "shards"
    if shard_dir is None and plan.config.corpus != SYNTHETIC:
        raise UsageError(
            "A study of recordings must be given their prepared splits with "
            "--shard_dir, as tfasr train is. Received: none, and StudyConfig.corpus "
            "makes none."
        )

    steps = [] if shard_dir else [_prepare(plan.runs[0], folder, shards)]
    steps += [_train(run, folder, shards) for run in plan.runs]
    if plan.config.final_splits:
        steps += [_score(plan, run, folder, shards) for run in plan.runs]
    if plan.config.beam_widths:
        steps.append(_widths(plan, folder, shards))

    return steps


def finished(run_dir: Path) -> bool:
    """Returns whether a run ended with success, by its ledger.

    A damaged ledger is not finished: the training that continues it reports the damage.
    """
    if not (run_dir / EVENTS_FILE).is_file():
        return False

    try:
        return load_run(run_dir).status == "success"
    except UsageError:
        return False


def scores_path(folder: Path, run: PlannedRun) -> Path:
    """Returns the file in which the final scores of a run are, once it is scored.

    Args:
        folder: the study's.
        run: the scored one.
    """
    return folder / "scores" / run.name / SCORES_FILE


def widths_path(folder: Path) -> Path:
    """Returns the file in which the timed evaluations of a study are."""
    return folder / WIDTHS_FOLDER / WIDTHS_FILE


def widths_run(plan: Plan) -> PlannedRun:
    """Returns the run that is evaluated with several beam widths."""
    name = plan.config.beam_widths_of or plan.config.experiments[0]
    return next(run for run in plan.runs if run.experiment == name)


def _prepare(run: PlannedRun, folder: Path, shards: Path) -> Step:
    """Returns the step that makes speech and prepares it with a run's features.

    All runs of a study train on the same shards: a run with other features fails, and
    says so.

    Args:
        run: any of the study's.
        folder: the study's.
        shards: where the splits go.
    """
    corpus = folder / "corpus"

    def words() -> list[str | Path]:
        """Makes the speech, and returns the command that prepares it."""
        # Imported here: making speech needs a pip extra that other studies do without.
        from tfasr.corpora.synthetic import make_synthetic_corpus

        make_synthetic_corpus(corpus)
        folders = ["--corpus_dir", corpus, "--shard_dir", shards]

        return ["prepare", "--corpus", SYNTHETIC, *_recipe(run), *folders]

    def done() -> bool:
        """Returns whether all splits are prepared; their indexes are written last."""
        return all((shards / split / INDEX_FILE).is_file() for split in SPLITS)

    return Step("corpus", "corpus", words, done, folder / "logs" / "corpus.log")


def _recipe(run: PlannedRun) -> list[str]:
    """Returns the arguments that give a command the run's plug-ins and settings."""
    files = [word for file in run.gin_files for word in ("--gin_file", file)]
    bindings = [word for line in run.bindings for word in ("--gin_binding", line)]

    return [*_imports(), *files, *bindings]


def _train(run: PlannedRun, folder: Path, shards: Path) -> Step:
    """Returns the step that trains a run, or continues an interrupted training.

    Args:
        run: what to train.
        folder: the study's.
        shards: the prepared splits.
    """
    run_dir = folder / run.folder

    def words() -> list[str | Path]:
        """Returns the command, which depends on whether the training has begun."""
        command = ["train", *_recipe(run), "--shard_dir", shards, "--run_dir", run_dir]
        if (run_dir / EVENTS_FILE).is_file():
            command.append("--resume")

        return command

    return Step(
        "train",
        f"train {run.name}",
        words,
        partial(finished, run_dir),
        folder / "logs" / f"{run.name}.log",
        run_dir=run_dir,
        alike=run.experiment,
        environment=run.environment,
        seed=run.seed,
    )


def _score(plan: Plan, run: PlannedRun, folder: Path, shards: Path) -> Step:
    """Returns the step that scores a run's best checkpoint on the final splits.

    It is done if its file has a row of every split with the study's beam width.

    Args:
        plan: the study's.
        run: what to score.
        folder: the study's.
        shards: the prepared splits.
    """
    config = plan.config
    path = scores_path(folder, run)
    splits = [word for split in config.final_splits for word in ("--split", split)]
    decoder = ["--decoder", "word_beam", "--beam_width", str(config.final_beam_width)]
    folders = ["--run_dir", folder / run.folder, "--shard_dir", shards]
    words = ["evaluate", *_imports(), *folders, *splits, *decoder]
    words += ["--out", path.parent]
    wanted = {(split, config.final_beam_width) for split in config.final_splits}

    def done() -> bool:
        """Returns whether the file has all wanted rows."""
        rows = rows_of(path, "split", "decoder", "beam_width")
        return wanted <= {(row["split"], row["beam_width"]) for row in rows}

    return Step(
        "score",
        f"score {run.name}",
        lambda: words,
        done,
        folder / "logs" / f"{run.name}-scores.log",
        needs=folder / run.folder,
        alike=run.experiment,
    )


def _widths(plan: Plan, folder: Path, shards: Path) -> Step:
    """Returns the step that times evaluations of a run over several beam widths.

    It is the run of `widths_run`, once it is trained.
    """
    config = plan.config
    path = widths_path(folder)
    run = widths_run(plan)
    folders = ["--run_dir", folder / run.folder, "--shard_dir", shards]
    words = ["bench", "decoder", *_imports(), *folders]
    words += ["--split", "validation", "--decoders", "word_beam"]
    words += ["--beam_widths", ",".join(map(str, config.beam_widths))]
    words += ["--out", path.parent]

    def done() -> bool:
        """Returns whether just the study's beam widths were timed."""
        rows = rows_of(path, "beam_width", "evaluation_s")
        return {row["beam_width"] for row in rows} == set(config.beam_widths)

    return Step(
        "widths",
        f"beam widths of {run.name}",
        lambda: words,
        done,
        folder / "logs" / "beam_widths.log",
        needs=folder / run.folder,
    )


def rows_of(path: Path, *names: str) -> list[dict[str, Any]]:
    """Returns the rows of a command's JSON; [] if the file is missing.

    Args:
        path: what ``tfasr evaluate`` or ``tfasr bench decoder`` wrote.
        names: values that every row must have, in addition to its error rates.

    Raises:
        UsageError: if another program wrote the file: it has no rows, or one lacks a value.
    """
    if not path.exists():
        return []

    remedy = "Another program wrote it: move it away, and --resume computes it again."
    rows = read_object(path, remedy, ("rows",))["rows"]
    needed = {"wer", "cer", *names}

    if not isinstance(rows, list) or not all(_is_row(row, needed) for row in rows):
        names_needed = ", ".join(sorted(needed))
        raise UsageError(f"Every row of {path} must have {names_needed}. {remedy}")

    return rows


def _is_row(row: Any, names: set[str]) -> bool:
    """Whether a row has all values, each of its type; only a beam width may be null.

    Args:
        row: of a JSON file that anyone may have written.
        names: of the values.
    """
    if not isinstance(row, dict) or not names <= {*row}:
        return False

    for name in names:
        value = row[name]
        if name in ("split", "decoder"):
            right = isinstance(value, str)
        elif name == "beam_width" and value is None:
            right = True
        else:
            right = isinstance(value, int | float) and abs(value) < _LARGEST

        if not right:
            return False

    return True


def _imports() -> list[str]:
    """Returns the arguments that load the plug-ins of this process in another one."""
    return [word for plugin in loaded_plugins() for word in ("--import", plugin)]
