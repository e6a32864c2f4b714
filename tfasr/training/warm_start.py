"""Starts a run from a trained run or an export: the weights it begins with, and their cost.

`open_start` opens what `TrainingConfig.start_from` names, and `Start.copied_into`
copies the layers that match into the new model (`tfasr.training.run.FirstWeights`).
What the weights have cost so far, in time and energy, goes into the new run's ledger.
"""

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

# The setting that messages name, and what they advise.
_FIELD = "TrainingConfig.start_from"
_OTHER = f"Name another run, or leave {_FIELD} out."
# File names from `tfasr.recognising.spec`, a higher layer that this module can't
# import.
_SPEC = "recogniser.json"
_KERAS = "model.keras"
_SUMS = "SHA256SUMS"
# How many layers a message lists.
_NAMED = 4


def named_layers(model: Any) -> dict[str, Any]:
    """Returns a model's layers that have weights, by name.

    Keras numbers the layers of a class throughout the process, so that names depend on
    what else was built: the second model's first LSTM may be "lstm_4". Such default
    names are numbered anew here, within the model.
    """
    layers = {}
    counts = Counter()

    for layer in getattr(model, "layers", ()):
        if not layer.weights:
            continue

        # The default name of the class: Keras writes "LSTM" and "DenseLayer" like this.
        kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
        kind = re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()

        name = layer.name
        if re.fullmatch(rf"{re.escape(kind)}(_\d+)?", name):
            name = f"{kind}_{counts[kind]}"
            counts[kind] += 1

        if name in layers:
            name = f"{name}_{len(layers)}"

        layers[name] = layer

    return layers


@dataclass(frozen=True)
class Start:
    """The run or export that a run starts from, opened and checked.

    Attributes:
        file: has the weights, which `layers` reads.
        alphabet: the classes of its output layer.
        features: what its frames contain.
        experiment: that of a run; None for an export.
        fact: what the ledger records about this start.
    """

    file: Path
    alphabet: Alphabet
    features: FeatureConfig
    experiment: Experiment | None
    fact: dict[str, Any]

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
        values = [value for arrays in weights.values() for value in arrays]
        if not all(np.isfinite(value).all() for value in values):
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
        """Copies the layers that match into a model; returns what the ledger records.

        Layers match if name and shapes are equal; the output layer only if the alphabet
        is, too.

        Args:
            recogniser: the new model, which is changed.
            alphabet: the new model's.
            layers: from `layers`.

        Raises:
            UsageError: if no layer matches, or it isn't known which is the output layer
                although that matters.
        """
        ours = named_layers(recogniser)
        output = None
        make_output = getattr(recogniser, "output_layer", None)
        if callable(make_output):
            output = make_output()

        same_alphabet = alphabet == self.alphabet
        same_size = alphabet.num_classes == self.alphabet.num_classes
        if output is None and same_size and not same_alphabet:
            raise UsageError(
                f"{_FIELD} names a run with another alphabet of the same size. The output layer "
                "can't be copied from it, and tfasr can't tell which layer of "
                f"{type(recogniser).__name__} that is. Give it a method output_layer() that "
                "returns its last layer."
            )

        copied = []
        for name, layer in ours.items():
            if layer is output and not same_alphabet:
                continue

            values = layers.get(name, [])
            shapes = [tuple(weight.shape) for weight in layer.weights]
            if [value.shape for value in values] != shapes:
                continue

            for weight, value in zip(layer.weights, values, strict=True):
                weight.assign(value)

            copied.append(name)

        if not copied:
            weights = {name: layer.weights for name, layer in ours.items()}
            raise UsageError(
                f"{_FIELD} must name a run whose model shares layers with this one, by name and "
                f"shapes. {self.fact['run']} has {_shapes(layers)}; this model has "
                f"{_shapes(weights)}. Take its model's settings, or name another run."
            )

        return {
            **self.fact,
            "layers": copied,
            "new_layers": [name for name in ours if name not in copied],
        }


def _shapes(layers: Mapping[str, Sequence[Any]]) -> str:
    """Lists the first layers with the shape of their first weight, for a message."""
    first = list(layers.items())[:_NAMED]
    listed = ", ".join(f"{name} {tuple(weights[0].shape)}" for name, weights in first)
    return f"{listed}, ..." if len(layers) > _NAMED else listed


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
        problem = "holds neither" if folder.is_dir() else "is no folder"

        raise UsageError(
            f"{_FIELD} must be the folder of a run, or of tfasr export --to keras. Received: "
            f"{folder}, which {problem}."
        )

    theirs = to_json(start.features)
    ours = to_json(experiment.features)
    differing = [
        f"{name} {theirs[name]}, here {ours[name]}"
        for name in ours
        if theirs[name] != ours[name]
    ]
    if differing:
        raise UsageError(
            f"{_FIELD} must name a run with the same features. {folder} has {'; '.join(differing)}."
            " Prepare and train with its FeatureConfig, or name another run."
        )

    return start


def _of_run(folder: Path) -> Start:
    """Opens the best checkpoint of a run, or its newest if no epoch is finished."""
    trained = open_trained(folder)
    run = load_run(folder)
    file = folder / CHECKPOINTS_FOLDER / BEST_CHECKPOINT
    if not file.is_file():
        file = newest_checkpoint(folder)

    cause = "it has no checkpoint that can be read"
    if file is not None:
        cause = damage(file)

    if cause is not None:
        raise UsageError(
            f"{_FIELD} must name a run whose weights can be read. {folder}: {cause}. {_OTHER}"
        )

    costs = {"seconds": run.wall_s, "joules": None}
    energy = measured_energy(run).use(run, math.inf)
    if energy is not None:
        costs["joules"] = energy.total_joules

    # The cost includes that of the run from which this one began. It stays unknown if
    # one of them is.
    before = run.fact("start_from") or {"seconds": 0.0, "joules": 0.0}
    fact = _fact(folder, file, run.ledger_hash)

    for name, cost in costs.items():
        earlier = before.get(name)
        if cost is not None and earlier is not None:
            fact[name] = round(cost + earlier, 3)

    return Start(
        file=file,
        alphabet=trained.alphabet,
        features=trained.experiment.features,
        experiment=trained.experiment,
        fact=fact,
    )


def _of_export(folder: Path) -> Start:
    """Opens the model of a run's export to Keras."""
    file = folder / _KERAS
    again = "Export the run again, or name the run itself."
    if not file.is_file():
        raise UsageError(
            f"{_FIELD} must name a run, or its export with --to keras. {folder} is an export "
            f"without {_KERAS}. {again}"
        )

    fact = _fact(folder, file, None)
    known_files = read_text(folder / _SUMS, again).splitlines()
    if f"{fact['sha256']}  {_KERAS}" not in known_files:
        raise UsageError(
            f"{file} must be as it was exported: its SHA-256 is not the one in {_SUMS}. {again}"
        )

    content = read_object(folder / _SPEC, again, ("features",))
    with wrong_values_are_wrong_use():
        features = FeatureConfig(**content["features"])

    return Start(file, Alphabet.load(folder / ALPHABET_FILE), features, None, fact)


def _fact(folder: Path, file: Path, ledger_hash: str | None) -> dict[str, Any]:
    """Returns what the ledger records about a start; costs are unknown at first."""
    return {
        "run": str(folder),
        "file": file.name,
        "sha256": file_sha256(file),
        "ledger_hash": ledger_hash,
        "seconds": None,
        "joules": None,
    }
