"""The catalogue: how many utterances finished runs needed until they met their targets.

A file holds the runs of one recipe on one corpus. ``tfasr report RUNS --catalogue
FOLDER`` writes such files; those in ``tfasr/estimates/catalogue`` come with tfasr.
`recipes` finds the entry of a recipe, and `estimate` multiplies its utterances by what
each takes on this machine. Nothing here needs TensorFlow.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import (
    EXPERIMENT_FILE,
    MOST_JSON_BYTES,
    make_folder,
    read_bytes,
    read_object,
    write_whole,
)
from tfasr.tta.metrics import METRICS, Target, metric_named
from tfasr.tta.policies import UTTERANCES, AccuracyPoint, first_sustained
from tfasr.tta.run import Run

SHIPPED = Path(__file__).parent / "catalogue"

# The version of the files, and its key in them.
FORMAT = 1
_FORMAT_KEY = "tfasr_catalogue"
_REMEDY = "Write it again with tfasr report RUNS --catalogue FOLDER."


@dataclass(frozen=True)
class Trained:
    """One run: its validation curve over utterances, or only where it met some targets.

    Runs that were read from ledgers have curves, those of published tables targets.

    Attributes:
        seed: None if unknown.
        machine: its processor; the number of utterances hardly depends on it.
        commit: of tfasr, 8 digits.
        curve: rows of utterances seen, then `CatalogueEntry.metrics`; [] if none was kept.
        reached: without a curve, utterances by target, such as {"cer=0.15": 5915}; None
            means never.
    """

    seed: int | None
    machine: str
    commit: str
    curve: list[list[float]] = dataclasses.field(default_factory=list)
    reached: dict[str, float | None] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class CatalogueEntry:
    """The runs of one recipe on one corpus."""

    recipe: str  # the preset's name, or the name that its user gave
    corpus: str
    train_utterances: int  # of an epoch
    batch: int  # utterances of a step on all devices
    window: int  # evaluations whose median met the target, for runs without a curve
    per_epoch: int  # evaluations
    metrics: list[str]  # of the curves' columns
    runs: list[Trained]
    source: str  # where the figures come from, and what they assume
    # `Experiment.to_json` of the recipe; settings that don't change the result may
    # differ
    experiment: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Hash of the recordings, as in a run's comparability; "" if unknown.
    training_audio: str = ""
    shards: dict[str, str] = dataclasses.field(default_factory=dict)  # hash by split

    def utterances_to(self, target: Target, window: int) -> list[float | None]:
        """Returns each run's utterances until it met a target; None means never.

        Runs without a curve are left out unless they recorded this target under this
        rule.

        Args:
            target: a metric and a value.
            window: how many evaluations' median must meet it.
        """
        name = target_name(*target)
        utterances = []
        for run in self.runs:
            if run.curve:
                utterances.append(self._on_curve(run, target, window))
            elif window == self.window and name in run.reached:
                utterances.append(run.reached[name])

        return utterances

    def _on_curve(self, run: Trained, target: Target, window: int) -> float | None:
        """Returns the utterances until a run's curve met a target, or None.

        `first_sustained` counts seconds; here utterances take their place.
        """
        metric, value = target
        if metric not in self.metrics:
            return None

        column = 1 + self.metrics.index(metric)
        points = [
            AccuracyPoint(
                row[0] / self.train_utterances, row[0], row[column], self.per_epoch
            )
            for row in run.curve
        ]

        return first_sustained(points, value, metric=metric, window=window).seconds

    def targets(self) -> list[str]:
        """Returns the targets that runs without a curve recorded."""
        return list(dict.fromkeys(name for run in self.runs for name in run.reached))

    def best(self, metric: str) -> float | None:
        """Returns the lowest value that any run with a curve reached, or None."""
        if metric not in self.metrics:
            return None

        column = 1 + self.metrics.index(metric)

        rows = itertools.chain.from_iterable(run.curve for run in self.runs)
        return min((row[column] for row in rows), default=None)


def target_name(metric: str, value: float) -> str:
    """Returns a target as files and flags write it, such as "cer=0.15"."""
    return f"{metric}={value:g}"


def read_catalogue(folders: Sequence[str | Path] = ()) -> list[CatalogueEntry]:
    """Reads the user's folders, then the shipped one.

    Raises:
        UsageError: for a folder that is missing, or a file that is broken or of another
            version.
    """
    entries = []
    for folder in (*map(Path, folders), SHIPPED):
        if not folder.is_dir():
            raise UsageError(
                "--catalogue must be a folder that tfasr report --catalogue wrote. Received: "
                f"{folder}, which is no folder."
            )

        for path in sorted(folder.glob("*.json")):
            entries.append(_read(path))

    return entries


def _read(path: Path) -> CatalogueEntry:
    """Reads one file; whatever is wrong with it is one kind of error, with a remedy."""
    try:
        content = json.loads(read_bytes(path, MOST_JSON_BYTES))
        if content.pop(_FORMAT_KEY) != FORMAT:
            raise ValueError(f"its {_FORMAT_KEY} isn't {FORMAT}")

        content["runs"] = [Trained(**run) for run in content["runs"]]
        entry = CatalogueEntry(**content)
        sizes = (entry.train_utterances, entry.batch, entry.window, entry.per_epoch)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ValueError("its sizes must be whole numbers above 0")

        _check_runs(entry)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path} isn't a catalogue file: {error}. {_REMEDY}"
        ) from error

    return entry


def _check_runs(entry: CatalogueEntry) -> None:
    """Raises ValueError unless curves and targets are finite numbers of at least 0."""
    width = 1 + len(entry.metrics)
    for run in entry.runs:
        numbers = [value for value in run.reached.values() if value is not None]
        for row in run.curve:
            numbers += row

        if any(len(row) != width for row in run.curve):
            raise ValueError(f"each row of a curve must have {width} numbers")
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise ValueError("a run's numbers must be numbers")
        if any(not math.isfinite(n) or n < 0 for n in numbers):
            raise ValueError("a run's numbers must be finite and not negative")


def write_entries(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Writes one file for the finished runs of each recipe and corpus.

    Args:
        runs: of ``tfasr train``; others are left out.
        folder: is created if missing.

    Returns:
        The files.

    Raises:
        UsageError: if there are no finished runs.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.status == "success" and (run.path / EXPERIMENT_FILE).is_file():
            groups.setdefault(_recipe_key(run), []).append(run)

    if not groups:
        raise UsageError(
            "A catalogue needs finished runs of tfasr train. None of the "
            f"{len(runs)} runs has finished and kept its {EXPERIMENT_FILE}."
        )

    make_folder(Path(folder))

    paths = []
    for members in groups.values():
        entry = _entry(members)
        name = re.sub(r"[^\w.-]+", "_", f"{entry.recipe}-{entry.corpus}")
        path = Path(folder) / f"{name.replace('.gin', '')}.json"
        write_whole(path, written(entry))
        paths.append(path)

    return paths


def written(entry: CatalogueEntry) -> str:
    """Returns an entry as its file's text; one line a run, so changes can be read."""
    content = {_FORMAT_KEY: FORMAT, **dataclasses.asdict(entry)}

    lines = []
    for name, value in content.items():
        if name == "runs":
            runs = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in value)
            lines.append(f' "runs": [\n  {runs}\n ]')
        else:
            lines.append(
                f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
            )

    return "{\n" + ",\n".join(lines) + "\n}\n"


def _recipe_key(run: Run) -> str:
    """Returns a text that runs of the same recipe on the same corpus share.

    The seed isn't part of it; the batch size is, since it decides how many utterances
    are needed.
    """
    experiment = _experiment(run)
    experiment["training"] = {**experiment["training"], "seed": None}
    shared = [
        (run.comparability or {}).get("training_audio"),
        run.fact("global_batch_size"),
    ]

    return json.dumps([experiment, shared], sort_keys=True)


def _experiment(run: Run) -> dict[str, Any]:
    """Returns the run's experiment.json; UsageError if it is damaged."""
    return read_object(run.path / EXPERIMENT_FILE, _REMEDY, ("training", "pipeline"))


def _entry(runs: Sequence[Run]) -> CatalogueEntry:
    """Returns the entry of a group of runs, with curves of all metrics that are rates.

    Several runs of a recipe are usually in a folder named after it.
    """
    first = runs[0]
    experiment = _experiment(first)
    facts = first.comparability or {}
    metrics = [
        name
        for name in METRICS
        if metric_named(name).rate and first.accuracy_curve(name)
    ]

    return CatalogueEntry(
        recipe=first.path.resolve().parent.name if len(runs) > 1 else first.name,
        corpus=str(facts.get("training_audio", "unknown"))[:8],
        train_utterances=first.fact("train_samples"),
        batch=first.fact("global_batch_size"),
        window=first.target_window or UTTERANCES.window,
        per_epoch=first.timeline.evaluations_per_epoch,
        metrics=metrics,
        runs=[_trained(run, metrics) for run in runs],
        source=f"{len(runs)} runs by tfasr train, from their ledgers",
        experiment=experiment,
        training_audio=str(facts.get("training_audio", "")),
        shards=first.fact("shards") or {},
    )


def _trained(run: Run, metrics: Sequence[str]) -> Trained:
    """Returns a run's curve by the clock `UTTERANCES`, whose seconds are utterances."""
    curves = [run.accuracy_curve(name, UTTERANCES) for name in metrics]
    curve = []
    for points in zip(*curves, strict=False):
        values = [round(point.value, 6) for point in points]
        curve.append([points[0].elapsed_s, *values])

    machine = (run.system.get("system") or {}).get("processor") or ""

    return Trained(
        seed=run.fact("seed"),
        machine=str(machine),
        commit=str(run.system.get("revision") or "")[:8],
        curve=curve,
    )
