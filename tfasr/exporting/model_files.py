"""A run's recogniser as a model of Keras, TensorFlow or LiteRT."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.durable import make_folder, write_whole
from tfasr.errors import UsageError
from tfasr.exporting.check import Heard, differing_texts, hear, largest_difference
from tfasr.exporting.export import Exported, check_agrees, check_new, complete
from tfasr.exporting.model_card import WORD_LIMITS, CardFacts, CardForm, model_card
from tfasr.recognising.exported import (
    CARD_FILE,
    KERAS,
    LITERT,
    MODEL_FILES,
    SAVED_MODEL,
    model_bytes,
)
from tfasr.recognising.keras_acoustics import KerasAcoustics, open_run
from tfasr.recognising.runtimes import open_exported, open_model
from tfasr.recognising.spec import RecogniserSpec
from tfasr.scoring.paired import compare_pairs
from tfasr.scoring.summary import summarise_scored
from tfasr.training.trained import open_trained


@dataclass(frozen=True)
class Kind:
    """What recognisers are exported to.

    Attributes:
        write: writes a model to a path, with int8 weights if the last argument says so.
        check: raises UsageError for the config of a model that it cannot carry.
        int8: whether it has int8 weights.
        commands: that use the export.
        contents: what the model takes and returns, in Markdown.
    """

    write: Callable[[KerasAcoustics, RecogniserSpec, Path, bool], None]
    check: Callable[[Any], None]
    int8: bool
    commands: tuple[str, ...]
    contents: str


def export_model(
    *,
    to: str,
    run_dir: str | Path,
    out: str | Path,
    int8: bool = False,
    checkpoint: str = "best",
    split: str = "validation",
    shard_dir: str | Path | None = None,
    data_licence: str | None = None,
) -> Exported:
    """Writes a run's recogniser into a new folder.

    Args:
        to: "keras", "saved_model" or "litert".
        run_dir: a folder that `tfasr train` wrote.
        out: a new or empty folder.
        int8: whether the weights of large matrices become eight bits wide, for "litert" alone.
        checkpoint: "best" (by validation CER), "last", or a file.
        split: a prepared split, on whose speech the export is compared with the run's model.
        shard_dir: where it is; the run's own by default.
        data_licence: of the training data, for the model card.

    Raises:
        UsageError: if the run, its checkpoint or the split does not fit, the model is of a kind
            that cannot be carried, or a package is missing.
        RunError: if the export does not say what the run's model says.
    """
    run_dir, out = Path(run_dir), Path(out)
    check_new(out)
    kind = _kind(to, int8)
    trained = open_trained(run_dir)
    spec, acoustics = open_run(trained, checkpoint, {})
    kind.check(acoustics.config)
    source = trained.source(split, shard_dir)

    def heard(model: Any) -> Heard:
        return hear(source, model, spec.alphabet, acoustics.output_lengths)

    of_run = heard(acoustics)
    with tempfile.TemporaryDirectory() as staging:
        float32 = Path(staging, "float32", MODEL_FILES[to])
        float32.parent.mkdir()
        kind.write(acoustics, spec, float32, False)
        of_float32 = heard(open_model(to, float32, spec))
        check_agrees(largest_difference(of_run, of_float32), source)
        written, found = float32, of_float32
        if int8:
            written = Path(staging, MODEL_FILES[to])
            kind.write(acoustics, spec, written, True)
            found = heard(open_model(to, written, spec))
        float32_bytes, written_bytes = model_bytes(float32), model_bytes(written)
        _copied(written, out / MODEL_FILES[to])
    rates = summarise_scored(found.scored)
    facts = CardFacts(split, rates, int8, data_licence)
    write_whole(out / CARD_FILE, model_card(run_dir, spec, facts, _card_form(to, kind, spec)))
    complete(out, run_dir, spec, to)
    open_exported(out, {})
    return Exported(
        folder=out,
        bytes=written_bytes,
        float32_bytes=float32_bytes,
        utterances=len(found.scored),
        difference=largest_difference(of_run, found),
        differing_texts=differing_texts(of_run, found),
        wer=rates.counts.wer,
        int8=compare_pairs(of_float32.scored, found.scored) if int8 else None,
        audio_s_per_s=found.audio_s_per_s,
        float32_audio_s_per_s=of_float32.audio_s_per_s,
    )


def write_unchecked_model(
    run_dir: Path, out: Path, *, to: str, int8: bool, checkpoint: str
) -> None:
    """Writes an export to be measured, not compared with the run's model, without a model card.

    Args: as of `export_model`.

    Raises:
        UsageError: as `export_model`.
    """
    check_new(out)
    kind = _kind(to, int8)
    trained = open_trained(run_dir)
    spec, acoustics = open_run(trained, checkpoint, {})
    kind.check(acoustics.config)
    make_folder(out)
    kind.write(acoustics, spec, out / MODEL_FILES[to], int8)
    complete(out, run_dir, spec, to)


def _kind(to: str, int8: bool) -> Kind:
    kind = _KINDS[to]
    if int8 and not kind.int8:
        raise UsageError(
            f"int8 weights must be for onnx or litert. Received: {to}, whose models compute in "
            "float32. Leave --int8 out, or choose another --to."
        )
    return kind


def _copied(model: Path, place: Path) -> None:
    """Writes a model's file, or the files of its folder, so that they survive a power loss."""
    files = [model] if model.is_file() else [one for one in model.rglob("*") if one.is_file()]
    for file in files:
        copy = place / file.relative_to(model)
        make_folder(copy.parent)
        write_whole(copy, file.read_bytes())


def _card_form(to: str, kind: Kind, spec: RecogniserSpec) -> CardForm:
    contents = kind.contents.format(
        file=MODEL_FILES[to],
        num_features=spec.features.num_features,
        classes=spec.alphabet.num_classes,
    )
    return CardForm(
        files=f"`{MODEL_FILES[to]}`",
        commands=kind.commands,
        streams=spec.can_stream,
        limits=WORD_LIMITS,
        contents="`recogniser.json` says how features are computed and normalised, `alphabet.json` "
        f"names the classes (the CTC blank comes last). {contents}",
    )


def _carries_all(config: Any) -> None:
    """Accepts the config of any model."""


def _write_keras(acoustics: KerasAcoustics, spec: RecogniserSpec, path: Path, _: bool) -> None:
    from tfasr.exporting.keras_files import write_keras

    write_keras(acoustics, spec.alphabet.num_classes, path)


def _write_saved_model(
    acoustics: KerasAcoustics, spec: RecogniserSpec, path: Path, _: bool
) -> None:
    from tfasr.exporting.keras_files import write_saved_model

    write_saved_model(acoustics, spec.alphabet.num_classes, path, continues=spec.streams)


def _write_litert(acoustics: KerasAcoustics, spec: RecogniserSpec, path: Path, int8: bool) -> None:
    from tfasr.exporting.litert_graph import litert_graph

    graph = litert_graph(acoustics.recogniser, spec.features.num_features, int8=int8)
    path.write_bytes(graph)


def _check_litert(config: Any) -> None:
    from tfasr.exporting.litert_graph import check_litert

    check_litert(config)


_TRANSCRIBE = "tfasr transcribe recording.wav --run_dir ."
_KINDS = {
    KERAS: Kind(
        _write_keras,
        _carries_all,
        int8=False,
        commands=("pip install tfasr", _TRANSCRIBE),
        contents="Once `tfasr.models.saved` is imported, `keras.saving.load_model('{file}')` "
        "returns a Keras model of normalised features (batch, frames, {num_features}) and lengths "
        "(batch) that returns the classes' log-probabilities (batch, output frames, {classes}).",
    ),
    SAVED_MODEL: Kind(
        _write_saved_model,
        _carries_all,
        int8=False,
        commands=("pip install tfasr", _TRANSCRIBE),
        contents="`{file}` needs TensorFlow alone: `tf.saved_model.load('{file}')."
        "signatures['serving_default']` takes `features` (float32: batch, frames, {num_features}) "
        "and `lengths` (int32: batch), and returns `log_probs` and `output_lengths`. Where the "
        "model can, the signature `continued` takes the next frames of one stream and its states.",
    ),
    LITERT: Kind(
        _write_litert,
        _check_litert,
        int8=True,
        commands=("pip install 'tfasr[litert]'", _TRANSCRIBE),
        contents="`{file}`, without operators of TensorFlow's, has the signature `step`: it takes "
        "the `features` (float32: 1, frames, {num_features}) that a few output frames see, and the "
        "states `h_0`, `c_0` and so on; it returns their `log_probs`, and as `states_h_0` and so "
        "on the states behind each of these frames. The next call gets those behind the last.",
    ),
}
