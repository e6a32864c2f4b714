"""Finds the catalogue's entry for a recipe, or says what differs from the closest one."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

from tfasr.errors import UsageError
from tfasr.estimates.entries import CatalogueEntry
from tfasr.reports.numbers import difference_text, differences
from tfasr.training.decisions import Decides, settings_that_decide
from tfasr.training.experiment import Experiment
from tfasr.tta.metrics import Target

# Without a hash of the recordings, corpora count as equal if their sizes differ by at
# most this: preparing leaves out utterances that are too long, by rules that bindings
# may change.
_SAME_SIZE = 0.02
_DECISIVE = (Decides.RECIPE, Decides.MEASUREMENT, Decides.FREE)
# They draw from the same distribution of results, or only change how a machine
# computes; how many utterances a target takes was no different in bfloat16
# (docs/estimate.md).
_FREE = ("seed", "num_replicas", "precision", "target_window")
_BATCH = "pipeline.global_batch_size"
# These follow the batch, and presets change them with it.
_WITH_BATCH = (_BATCH, "pipeline.shuffle_buffer")


@dataclass(frozen=True)
class Match:
    """The entry that an estimate rests on, or None and the reason."""

    entry: CatalogueEntry | None
    reason: str = ""
    factor: float = 1.0  # by which another batch size changes the utterances
    notes: list[str] = field(default_factory=list)


def find_entry(
    entries: Sequence[CatalogueEntry],
    experiment: Experiment,
    recipe: str,
    train_utterances: int,
    training_audio: str,
    target: Target,
) -> Match:
    """Returns the entry of this recipe on this corpus; a changed recipe's entry is never used.

    ``training_audio`` is the hash of the recordings, "" if there are none yet.
    """
    asked = _decisive(experiment.to_json())
    corpora = [
        entry
        for entry in entries
        if _same_corpus(entry, train_utterances, training_audio)
    ]
    changed: list[tuple[int, CatalogueEntry, dict[str, tuple[str, str]]]] = []
    for entry in corpora:
        try:
            known = _decisive(entry.experiment)
        except UsageError:  # a model of a plug-in that isn't loaded: another recipe
            continue

        unlike = differences(known, asked)
        if not unlike:
            return Match(entry)
        changed.append((len(unlike), entry, unlike))

    if not changed:
        elsewhere = [entry for entry in entries if _names(entry, recipe)]
        if elsewhere:
            known = ", ".join(
                f"{e.corpus} ({e.train_utterances:,} utterances)" for e in elsewhere
            )
            return Match(
                None,
                f"{recipe} is known only on {known}; these {train_utterances:,} utterances are "
                "other recordings",
            )

        return Match(None, "nobody has trained this recipe on this corpus")

    _, nearest, unlike = min(
        changed, key=lambda row: (row[0], not _names(row[1], recipe))
    )
    if set(unlike) <= set(_WITH_BATCH):
        batches = _batch_law(
            corpora, nearest, experiment.pipeline.global_batch_size, target
        )
        if batches is not None:
            return batches

    return Match(
        None,
        f"nobody has trained this recipe; the nearest is {nearest.recipe}, which differs in "
        f"{difference_text(dict(list(unlike.items())[:3]))}",
    )


def _names(entry: CatalogueEntry, recipe: str) -> bool:
    return PurePath(recipe).with_suffix("") == PurePath(entry.recipe).with_suffix("")


def _same_corpus(
    entry: CatalogueEntry, train_utterances: int, training_audio: str
) -> bool:
    if entry.training_audio and training_audio:
        return entry.training_audio == training_audio
    return math.isclose(entry.train_utterances, train_utterances, rel_tol=_SAME_SIZE)


def _decisive(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that change how many utterances a target takes, as JSON values."""
    try:
        experiment = Experiment.from_json(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"An entry's experiment can't be read: {error}.") from error

    found = {}
    for name in (
        "features",
        "pipeline",
        "augmentation",
        "model",
        "decoder",
        "training",
    ):
        config = getattr(experiment, name)
        for what in _DECISIVE:
            for setting in settings_that_decide(config, what):
                if setting not in _FREE:
                    found[f"{name}.{setting}"] = content[name].get(setting)

    optimizer = dict(found["training.optimizer"])
    optimizer.pop("name", None)  # Keras counts the optimizers that a process makes
    found["training.optimizer"] = optimizer
    found["model"] = content["recogniser"]["name"]
    return json.loads(json.dumps(found))


def _batch_law(
    entries: Sequence[CatalogueEntry],
    nearest: CatalogueEntry,
    batch: int,
    target: Target,
) -> Match | None:
    """Interpolates the utterances between two batch sizes that this recipe was trained with.

    Between measured sizes their logarithm is taken as a straight line over that of the
    batch. Beyond them it isn't known, so there is no answer.
    """
    known = _decisive(nearest.experiment)
    points = []
    for entry in entries:
        unlike = differences(known, _decisive(entry.experiment))
        if set(unlike) <= set(_WITH_BATCH):
            met = [
                value for value in entry.utterances_to(target, entry.window) if value
            ]
            if met:
                points.append((entry.batch, float(np.exp(np.log(met).mean()))))

    points.sort()
    sizes = [size for size, _ in points]
    if len(set(sizes)) < 2 or not sizes[0] < batch < sizes[-1]:
        return None
    logs = np.interp(
        [math.log(batch), math.log(nearest.batch)],
        np.log(sizes),
        np.log([value for _, value in points]),
    )
    note = (
        f"batch {batch}: utterances interpolated between the batches "
        f"{', '.join(map(str, dict.fromkeys(sizes)))} that were trained"
    )
    return Match(nearest, factor=float(math.exp(logs[0] - logs[1])), notes=[note])
