"""Starts a run from a trained run or an export: the weights it begins with, and their cost."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.features import FeatureConfig
from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.config import to_json
from tfasr.kit.files import (
    ALPHABET_FILE,
    BEST_CHECKPOINT,
    CHECKPOINTS_FOLDER,
    EXPERIMENT_FILE,
    read_object,
    read_text,
)
from tfasr.models.keras_file import load_keras_file
from tfasr.reports.charges import measured_energy
from tfasr.training.build import build_model
from tfasr.training.checkpoint import (
    damage,
    newest_checkpoint,
    plain_array,
    restore_for_use,
)
from tfasr.training.experiment import Experiment
from tfasr.training.trained import open_trained
from tfasr.tta.run import load_run

_FIELD = "TrainingConfig.start_from"
_OTHER = f"Name another run, or leave {_FIELD} out."
# File names from `tfasr.recognising.spec`, a higher layer that this module can't
# import.
_SPEC = "recogniser.json"
_KERAS = "model.keras"
_SUMS = "SHA256SUMS"


def named_layers(model: Any) -> dict[str, Any]:
    """Returns a model's layers that have weights, by name.

    Keras numbers a class's layers throughout the process; default names here number the
    model's.
    """
    layers: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for layer in getattr(model, "layers", ()):
        if not layer.weights:
            continue

        kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
        kind = re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()
        name = layer.name
        if re.fullmatch(rf"{re.escape(kind)}(_\d+)?", name):
            name = f"{kind}_{counts[kind]}"
            counts[kind] += 1

        layers[name if name not in layers else f"{name}_{len(layers)}"] = layer

    return layers


@dataclass(frozen=True)
class Start:
    """The run or export that a run starts from, opened and checked; `layers` reads its
    weights.
    """

    file: Path  # which holds the weights
    alphabet: Alphabet
    features: FeatureConfig
    experiment: Experiment | None  # of a run; None for an export
    fact: dict[str, Any]  # what the ledger records about this start

    def layers(self) -> dict[str, list[np.ndarray]]:
        """Returns each layer's weights, by name; UsageError if they can't be used."""
        if self.experiment is None:
            recogniser = load_keras_file(self.file).recogniser
        else:
            model = build_model(self.experiment, self.alphabet, compiled=False)
            restore_for_use(self.file, model)
            recogniser = model.recogniser

        weights = {
            name: [plain_array(weight) for weight in layer.weights]
            for name, layer in named_layers(recogniser).items()
        }
        if not all(
            np.isfinite(value).all() for values in weights.values() for value in values
        ):
            raise UsageError(
                f"{_FIELD} must name a run whose weights are finite. {self.file} contains NaN or "
                f"infinite weights. {_OTHER}"
            )

        return weights

    def copied_into(
        self,
        recogniser: keras.Model,
        alphabet: Alphabet,
        layers: dict[str, list[np.ndarray]],
    ) -> dict[str, Any]:
        """Copies those of `layers` that match into a model; returns what the ledger records.

        Layers match if name and shapes are equal; the output layer only if the alphabet
        is, too.
        """
        ours = named_layers(recogniser)
        named = getattr(recogniser, "output_layer", None)
        output = named() if callable(named) else None
        same = alphabet == self.alphabet
        if (
            not same
            and output is None
            and alphabet.num_classes == self.alphabet.num_classes
        ):
            raise UsageError(
                f"{_FIELD} names a run with another alphabet of the same size. The output layer "
                "can't be copied from it, and tfasr can't tell which layer of "
                f"{type(recogniser).__name__} that is. Give it a method output_layer() that "
                "returns its last layer."
            )

        copied = []
        for name, layer in ours.items():
            values = layers.get(name)
            fits = values and [v.shape for v in values] == [
                tuple(w.shape) for w in layer.weights
            ]
            if fits and (same or layer is not output):
                for weight, value in zip(layer.weights, values, strict=True):
                    weight.assign(value)

                copied.append(name)

        if not copied:
            raise UsageError(
                f"{_FIELD} must name a run whose model shares layers with this one, by name and "
                f"shapes. {self.fact['run']} has {_shapes(layers)}; this model has "
                f"{_shapes({name: layer.weights for name, layer in ours.items()})}. Take its "
                "model's settings, or name another run."
            )

        new = [name for name in ours if name not in copied]
        return {**self.fact, "layers": copied, "new_layers": new}


def _shapes(layers: Mapping[str, Sequence[Any]]) -> str:
    first = [
        f"{name} {tuple(weights[0].shape)}"
        for name, weights in list(layers.items())[:4]
    ]
    return ", ".join(first) + (", ..." if len(layers) > 4 else "")


def open_start(experiment: Experiment) -> Start | None:
    """Opens what ``TrainingConfig.start_from`` names; None if it names nothing.

    Raises UsageError for a missing or damaged run or export, or other features than the
    experiment's.
    """
    if not experiment.training.start_from:
        return None

    folder = Path(experiment.training.start_from)
    if (folder / EXPERIMENT_FILE).is_file():
        start = _of_run(folder)
    elif (folder / _SPEC).is_file():
        start = _of_export(folder)
    else:
        raise UsageError(
            f"{_FIELD} must be the folder of a run, or of tfasr export --to keras. Received: "
            f"{folder}, which {'holds neither' if folder.is_dir() else 'is no folder'}."
        )

    theirs = to_json(start.features)
    ours = to_json(experiment.features)
    differing = [
        f"{n} {theirs[n]}, here {ours[n]}" for n in ours if theirs[n] != ours[n]
    ]
    if differing:
        raise UsageError(
            f"{_FIELD} must name a run with the same features. {folder} has {'; '.join(differing)}."
            " Prepare and train with its FeatureConfig, or name another run."
        )

    return start


def _of_run(folder: Path) -> Start:
    trained = open_trained(folder)
    run = load_run(folder)
    best = folder / CHECKPOINTS_FOLDER / BEST_CHECKPOINT
    file = best if best.is_file() else newest_checkpoint(folder)
    cause = "it has no checkpoint that can be read" if file is None else damage(file)
    if file is None or cause is not None:
        raise UsageError(
            f"{_FIELD} must name a run whose weights can be read. {folder}: {cause}. {_OTHER}"
        )

    energy = measured_energy(run).use(run, math.inf)
    costs = {
        "seconds": run.wall_s,
        "joules": None if energy is None else energy.total_joules,
    }
    # The cost includes that of the run from which this one began.
    before = run.fact("start_from")
    for name, cost in costs.items():
        earlier = before.get(name) if before else 0.0
        costs[name] = (
            None if cost is None or earlier is None else round(cost + earlier, 3)
        )

    fact = _fact(folder, file, run.ledger_hash) | costs
    return Start(
        file, trained.alphabet, trained.experiment.features, trained.experiment, fact
    )


def _of_export(folder: Path) -> Start:
    file = folder / _KERAS
    again = "Export the run again, or name the run itself."
    if not file.is_file():
        raise UsageError(
            f"{_FIELD} must name a run, or its export with --to keras. {folder} is an export "
            f"without {_KERAS}. {again}"
        )

    fact = _fact(folder, file, None)
    if (
        f"{fact['sha256']}  {_KERAS}"
        not in read_text(folder / _SUMS, again).splitlines()
    ):
        raise UsageError(
            f"{file} must be as it was exported: its SHA-256 is not the one in {_SUMS}. {again}"
        )

    content = read_object(folder / _SPEC, again, ("features",))
    with wrong_values_are_wrong_use():
        features = FeatureConfig(**content["features"])

    return Start(file, Alphabet.load(folder / ALPHABET_FILE), features, None, fact)


def _fact(folder: Path, file: Path, ledger_hash: str | None) -> dict[str, Any]:
    about = {"run": str(folder), "file": file.name, "sha256": file_sha256(file)}
    return {**about, "ledger_hash": ledger_hash, "seconds": None, "joules": None}
