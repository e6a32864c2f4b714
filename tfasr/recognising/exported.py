"""The folder of an exported recogniser: its files, and whether they are unchanged."""

import dataclasses
import hashlib
import json
import operator
from pathlib import Path
from typing import Any

import numpy as np

from tfasr._version import __version__
from tfasr.alphabet import Alphabet
from tfasr.data.features import FeatureConfig
from tfasr.decoding.choice import DecoderConfig, load_lexicon, needs_lexicon
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.config import to_json
from tfasr.kit.files import ALPHABET_FILE, LEXICON_FILE, read_object, read_text, write_whole
from tfasr.recognising.spec import RecogniserSpec

GRAPH_FILE = "model.onnx"
ONNX, LITERT, KERAS, SAVED_MODEL = "onnx", "litert", "keras", "saved_model"
# The model's file, or folder, by runtime.
MODEL_FILES = {
    ONNX: GRAPH_FILE,
    LITERT: "model.tflite",
    KERAS: "model.keras",
    SAVED_MODEL: "saved_model",
}
SPEC_FILE = "recogniser.json"
CARD_FILE = "README.md"
SUMS_FILE = "SHA256SUMS"  # of all other files, for ``sha256sum --check``; written last
_WEIGHTS = {**MODEL_FILES, SAVED_MODEL: "saved_model/variables/variables.data-00000-of-00001"}
_FORMAT = 1
_AGAIN = "Export the run again."


def is_exported(folder: Path) -> bool:
    return (folder / SPEC_FILE).is_file()


def write_spec(folder: Path, spec: RecogniserSpec, lexicon: list[str], runtime: str = ONNX) -> None:
    """Writes a recogniser's description next to its model; the lexicon may be empty."""
    statistics = spec.statistics and dict(
        zip(("mean", "deviation"), (array.tolist() for array in spec.statistics), strict=True)
    )
    content = {
        "format": _FORMAT,
        "tfasr": __version__,
        "runtime": runtime,
        "model": spec.model,
        "features": to_json(spec.features),
        "statistics": statistics,
        "decoder": to_json(spec.decoder),
        "geometry": list(spec.geometry),
        "streams": spec.streams,
    }
    write_whole(folder / SPEC_FILE, json.dumps(content, indent=1) + "\n")
    spec.alphabet.save(folder / ALPHABET_FILE)
    if lexicon:
        write_whole(folder / LEXICON_FILE, "".join(f"{word}\n" for word in lexicon))


def read_spec(folder: Path, decoder_changes: dict[str, Any]) -> RecogniserSpec:
    """Reads what `write_spec` wrote, with some decoder fields replaced; UsageError if it can't."""
    path = folder / SPEC_FILE
    names = ("format", "model", "features", "statistics", "decoder", "geometry", "streams")
    content = read_object(path, _AGAIN, names)
    if content["format"] != _FORMAT:
        raise UsageError(
            f"{path} must be of format {_FORMAT}. Received: {content['format']!r}, written by "
            f"tfasr {content.get('tfasr')}. Use that tfasr, or export the run again."
        )
    with wrong_values_are_wrong_use():  # of flags
        dataclasses.replace(DecoderConfig(), **decoder_changes)
    try:
        decoder = dataclasses.replace(DecoderConfig(**content["decoder"]), **decoder_changes)
        kernel, stride = map(operator.index, content["geometry"])
        statistics = content["statistics"]
        return RecogniserSpec(
            model=str(content["model"]),
            features=FeatureConfig(**content["features"]),
            statistics=statistics
            and tuple(np.asarray(statistics[name], np.float32) for name in ("mean", "deviation")),
            alphabet=Alphabet.load(folder / ALPHABET_FILE),
            decoder=decoder,
            lexicon=tuple(load_lexicon(folder)) if needs_lexicon(decoder) else (),
            geometry=(kernel, stride),
            streams=bool(content["streams"]),
            identity=file_hash(folder / _WEIGHTS[exported_runtime(folder)]),
        )
    except UsageError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        message = f"{path} must be as tfasr export wrote it. {reason} {_AGAIN}"
        raise UsageError(message) from error


def exported_runtime(folder: Path) -> str:
    """The runtime of an export's model; UsageError if it is not in `MODEL_FILES`."""
    path = folder / SPEC_FILE
    content = read_object(path, _AGAIN, ("format",))
    runtime = content.get("runtime", ONNX)  # exports without it are ONNX's
    if not isinstance(runtime, str) or runtime not in MODEL_FILES:
        raise UsageError(
            f"{path} must name a runtime of {', '.join(MODEL_FILES)}. Received: {runtime!r}, "
            f"written by tfasr {content.get('tfasr')}. Use that tfasr, or export the run again."
        )
    return runtime


def model_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_sums(folder: Path) -> None:
    """Writes the hashes of all files, which completes an export."""
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    names = sorted(name for name in files if name != SUMS_FILE)
    lines = [f"{file_hash(folder / name)}  {name}\n" for name in names]
    write_whole(folder / SUMS_FILE, "".join(lines))


def _needed(folder: Path) -> set[str]:
    """The names of the files that an export is read from."""
    model = folder / MODEL_FILES[exported_runtime(folder)]
    paths = [path for path in [model, *model.rglob("*")] if not path.is_dir()]
    paths += [folder / name for name in (SPEC_FILE, ALPHABET_FILE)]
    paths += [path for path in [folder / LEXICON_FILE] if path.exists()]
    return {path.relative_to(folder).as_posix() for path in paths}


def check_sums(folder: Path) -> None:
    """Raises UsageError unless all files of an export are unchanged."""
    text = read_text(folder / SUMS_FILE, f"Without it the export is not complete. {_AGAIN}")
    listed = [line.split("  ", 1) for line in text.splitlines()]
    if not listed or any(len(line) != 2 for line in listed):
        raise UsageError(f"{folder / SUMS_FILE} must hold a hash and a name a line. {_AGAIN}")
    for expected, name in listed:
        path = folder / name
        if not path.is_file():
            raise UsageError(f"An exported folder must hold {name}. {folder} lacks it. {_AGAIN}")
        if file_hash(path) != expected:
            raise UsageError(
                f"An exported folder's files must be as they were written. {path} has changed: "
                f"its SHA-256 is not the one in {SUMS_FILE}. {_AGAIN}"
            )
    # One for sherpa has no description: sherpa reads it, tfasr does not.
    missing = _needed(folder) - {name for _, name in listed} if is_exported(folder) else ()
    if missing:
        names = ", ".join(sorted(missing))
        raise UsageError(f"{folder / SUMS_FILE} must hold the hashes of {names}. {_AGAIN}")
