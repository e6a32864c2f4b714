"""Finds the catalogue's entry for a recipe, or says what differs from the closest one.

How many utterances a recipe needs is only known for the recipes that were trained. So
an entry counts if every setting that decides the result is equal; only between two
batch sizes of a recipe is interpolated.
"""

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

# The kinds of settings that are compared.
_DECISIVE = (Decides.RECIPE, Decides.MEASUREMENT, Decides.FREE)

# They draw from the same distribution of results, or only change how a machine
# computes; how many utterances a target takes was no different in bfloat16
# (docs/estimate.md).
_FREE = ("seed", "num_replicas", "precision", "target_window")

# The batch size and what presets change with it.
_WITH_BATCH = ("pipeline.global_batch_size", "pipeline.shuffle_buffer")


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
    """Returns the entry of this recipe on this corpus, or why it is missing.

    A changed recipe's entry is never used; the reason names the nearest one and what
    differs.

    Args:
        entries: the catalogue.
        experiment: the recipe.
        recipe: its name for readers.
        train_utterances: of an epoch.
        training_audio: the hash of the recordings, "" before they exist.
        target: for interpolating between batch sizes.
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
            entry_settings = _decisive(entry.experiment)
        # A model of a plug-in that isn't loaded is another recipe.
        except UsageError:
            continue

        unlike = differences(entry_settings, asked)
        if not unlike:
            return Match(entry)

        changed.append((len(unlike), entry, unlike))

    if not changed:
        elsewhere = [
            f"{entry.corpus} ({entry.train_utterances:,} utterances)"
            for entry in entries
            if _names(entry, recipe)
        ]
        if elsewhere:
            known_corpora = ", ".join(elsewhere)
            return Match(
                None,
                f"{recipe} is known only on {known_corpora}; these {train_utterances:,} utterances "
                "are other recordings",
            )

        return Match(None, "nobody has trained this recipe on this corpus")

    # The fewest differences win; among equal numbers, an entry of the same name.
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
    """Whether an entry has a recipe's name, with or without ".gin"."""
    return PurePath(recipe).with_suffix("") == PurePath(entry.recipe).with_suffix("")


def _same_corpus(
    entry: CatalogueEntry, train_utterances: int, training_audio: str
) -> bool:
    """Whether an entry's recordings are the estimate's, as far as that is known."""
    if entry.training_audio and training_audio:
        return entry.training_audio == training_audio

    return math.isclose(entry.train_utterances, train_utterances, rel_tol=_SAME_SIZE)


def _decisive(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that change how many utterances a target takes.

    They are JSON values by name, such as "training.optimizer", so that those of a file
    and those of an `Experiment` can be compared.
    """
    try:
        experiment = Experiment.from_json(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"An entry's experiment can't be read: {error}.") from error

    settings = {}
    sections = ("features", "pipeline", "augmentation", "model", "decoder", "training")
    for name in sections:
        config = getattr(experiment, name)
        for what in _DECISIVE:
            for setting in settings_that_decide(config, what):
                if setting not in _FREE:
                    settings[f"{name}.{setting}"] = content[name].get(setting)

    # Keras counts the optimizers that a process makes, and puts the number in the name.
    optimizer = dict(settings["training.optimizer"])
    optimizer.pop("name", None)
    settings["training.optimizer"] = optimizer
    settings["model"] = content["recogniser"]["name"]
    return json.loads(json.dumps(settings))


def _batch_law(
    entries: Sequence[CatalogueEntry],
    nearest: CatalogueEntry,
    batch: int,
    target: Target,
) -> Match | None:
    """Interpolates the utterances between two batch sizes of this recipe.

    Between measured sizes their logarithm is taken as a straight line over that of the
    batch. Beyond them it isn't known, so there is no answer.

    Args:
        entries: of the same corpus.
        nearest: one that differs only in the batch.
        batch: the size that is asked for.
        target: the runs' utterances to it are interpolated.
    """
    nearest_settings = _decisive(nearest.experiment)

    points = []
    for entry in entries:
        unlike = differences(nearest_settings, _decisive(entry.experiment))
        if not set(unlike) <= set(_WITH_BATCH):
            continue

        reached = entry.utterances_to(target, entry.window)
        met = [utterances for utterances in reached if utterances]
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
