"""Exports a run's recogniser for other programs, and compares its outputs with the run's model."""

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfasr.data.batches import BatchSource
from tfasr.decoding.choice import load_lexicon
from tfasr.errors import UsageError
from tfasr.exporting.check import (
    WORD_LIMITS,
    CardForm,
    SplitOutputs,
    check_agrees,
    check_padded,
    differing_texts,
    largest_difference,
    model_card,
    outputs_on,
)
from tfasr.kit.files import LEXICON_FILE, check_owned, make_folder, write_whole
from tfasr.kit.process import without_noise
from tfasr.models.build import SavedRecogniser, build_recogniser
from tfasr.models.model import portable
from tfasr.recognising.runtimes import open_exported, open_model
from tfasr.recognising.spec import (
    CARD_FILE,
    FEATURES,
    KERAS,
    LENGTHS,
    LITERT,
    LOG_PROBS,
    MODEL_FILES,
    ONNX,
    OUTPUT_LENGTHS,
    SAVED_MODEL,
    SUMS_FILE,
    RecogniserSpec,
    check_int8,
    model_bytes,
    write_spec,
    write_sums,
)
from tfasr.recognising.tensorflow_runtimes import (
    CONTINUED_SIGNATURE,
    NEXT_STATE,
    STATE,
    WHOLE_SIGNATURE,
    KerasAcoustics,
    open_run,
)
from tfasr.scoring.summary import PairedComparison, compare_pairs, summarise_scored
from tfasr.training.trained import Progress, TrainedRun, no_progress, open_trained

FEATURES_FILE = "features.onnx"
SHERPA = "sherpa"
# Models whose ONNX graphs are written node by node; all others are converted.
WRITTEN_BY_HAND = ("acoustic_model", "gru", "separable_conv", "conformer", "deep_speech_2")


@dataclass(frozen=True)
class Exported:
    folder: Path
    bytes: int  # size of the model
    float32_bytes: int  # size of the model with float32 weights
    utterances: int  # number of utterances on which exported and run's model were compared
    difference: float  # the largest difference of their log-probabilities
    differing_texts: int  # utterances for which their greedy transcripts differ
    wer: float  # of the exported model on these utterances
    int8: PairedComparison | None  # WER compared with the float32 model's; None without int8
    audio_s_per_s: float  # seconds of audio per second, the model alone on one core, measured once
    float32_audio_s_per_s: float  # the same for the model with float32 weights


@dataclass(frozen=True)
class _Run:
    trained: TrainedRun
    spec: RecogniserSpec
    acoustics: KerasAcoustics


def export(
    *,
    to: str,
    run_dir: str | Path,
    out: str | Path,
    int8: bool = False,
    checkpoint: str = "best",
    split: str = "validation",
    shard_dir: str | Path | None = None,
    data_licence: str | None = None,
    progress: Progress = no_progress,
) -> Exported:
    """Exports a run's recogniser into a new folder, after comparing it with the run's model.

    Arguments are the flags of ``tfasr export``. ``out`` is a new or empty folder, which stays
    unchanged if anything fails; ``checkpoint`` is "best" (by validation CER), "last" or a file. The
    models are compared on ``split`` of ``shard_dir``, by default the run's.

    Raises:
        UsageError: if run, checkpoint or split don't fit, a package is missing, or the target
            doesn't support the model.
        RunError: if the model can't be converted or its outputs differ.
    """
    out = Path(out)
    kind, run = _opened(to, Path(run_dir), out, int8, checkpoint)
    source = run.trained.source(split, shard_dir)
    with tempfile.TemporaryDirectory() as temporary:
        paths = _written(kind, run, Path(temporary), int8=int8)
        of_run, *of_models = _outputs(kind, run, source, paths, progress)
        of_float32, of_written = of_models[0], of_models[-1]
        saved_bytes = model_bytes(paths[0]) - model_bytes(paths[-1])
        folder = Path(temporary, "export")
        folder.mkdir()
        written_bytes = kind.fill(folder, run, paths[-1], source, of_written)
        rates = summarise_scored(of_written.scored)
        card = model_card(
            run.trained.path,
            run.spec,
            kind.form(run.spec),
            split=split,
            rates=rates,
            int8=int8,
            data_licence=data_licence,
        )
        write_whole(folder / CARD_FILE, card)
        write_sums(folder)
        if to != SHERPA:
            open_exported(folder, {})
        _published(folder, out)
    return Exported(
        folder=out,
        bytes=written_bytes,
        float32_bytes=written_bytes + saved_bytes,
        utterances=len(of_written.scored),
        difference=largest_difference(of_run.log_probs, of_written.log_probs),
        differing_texts=differing_texts(of_run, of_written),
        wer=rates.counts.wer,
        int8=compare_pairs(of_float32.scored, of_written.scored) if int8 else None,
        audio_s_per_s=of_written.audio_s_per_s,
        float32_audio_s_per_s=of_float32.audio_s_per_s,
    )


def write_unchecked(run_dir: Path, out: Path, *, to: str = ONNX, int8: bool, checkpoint: str):
    """Writes an export for measurements, without comparing models and without a model card."""
    kind, run = _opened(to, run_dir, out, int8, checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        model = _written(kind, run, Path(temporary), int8=int8)[-1]
        folder = Path(temporary, "export")
        folder.mkdir()
        model.rename(folder / model.name)
        _describe(folder, run, kind.runtime)
        write_sums(folder)
        _published(folder, out)


def _opened(to: str, run_dir: Path, out: Path, int8: bool, checkpoint: str) -> "tuple[Kind, _Run]":
    check_owned(out, "--out", "part of this export", owned=False)
    check_int8(to, int8)
    kind = KINDS[to]()
    _check_installed(*kind.packages)
    trained = open_trained(run_dir)
    spec, acoustics = open_run(trained, checkpoint, {})
    kind.check(spec)
    streams = spec.streams and kind.streams(acoustics, spec)
    return kind, _Run(trained, dataclasses.replace(spec, streams=streams), acoustics)


def _check_installed(*packages: str) -> None:
    lacking = [name for name in packages if find_spec(name) is None]
    if lacking:
        raise UsageError(
            f"The export needs {' and '.join(lacking)}, which is not installed: pip install "
            "'tfasr[export]'."
        )


def _written(kind: "Kind", run: _Run, temporary: Path, *, int8: bool) -> list[Path]:
    paths = [temporary / name / MODEL_FILES[kind.runtime] for name in ("float32", "int8")]
    for path in paths:
        path.parent.mkdir()
    with without_noise():
        kind.write(run, paths[0])
        if not int8:
            return paths[:1]
        kind.write(run, paths[1], float32=paths[0])
    return paths


def _outputs(
    kind: "Kind", run: _Run, source: BatchSource, paths: list[Path], progress: Progress
) -> list[SplitOutputs]:
    """Returns the outputs of the run's model and of its files, the first of which must agree."""
    with without_noise():
        models = [open_model(kind.runtime, path, run.spec) for path in paths]
        check_padded(run.spec, run.acoustics, models[0])
    compared = [run.acoustics, *models]
    with progress(len(compared) * len(source.split.utterances)) as advance:
        outputs = [
            outputs_on(source, model, run.spec.alphabet, run.acoustics.output_lengths, advance)
            for model in compared
        ]
    speech = f"the utterances of {source.split.folder}"
    check_agrees(outputs[0].log_probs, outputs[1].log_probs, speech)
    return outputs


def _describe(folder: Path, run: _Run, runtime: str) -> None:
    run_dir = run.trained.path
    lexicon = load_lexicon(run_dir) if (run_dir / LEXICON_FILE).exists() else []
    write_spec(folder, run.spec, lexicon, runtime)


def _published(folder: Path, out: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    for file in sorted(files, key=lambda path: path.name == SUMS_FILE):
        copy = out / file.relative_to(folder)
        make_folder(copy.parent)
        write_whole(copy, file.read_bytes())


def _portable_model(run: _Run) -> tuple[Any, Callable]:
    """Returns the model with exportable operations only, and a function that recognises batches."""
    config, num_classes = portable(run.acoustics.config), run.spec.alphabet.num_classes
    model = build_recogniser(config, run.acoustics.num_features, num_classes, dtype="float32")
    model.set_weights(run.acoustics.recogniser.get_weights())

    def recognise(features: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        log_probs = tf.nn.log_softmax(model(features, lengths, training=False))
        return {LOG_PROBS: log_probs, OUTPUT_LENGTHS: config.output_lengths(lengths)}

    return model, recognise


class Kind:
    """An export target, with defaults for its methods."""

    runtime: str  # what runs the model, a key of `MODEL_FILES`
    packages: tuple[str, ...] = ()  # needed to write the model
    extra = ""  # tfasr's optional dependencies needed to run it, as in pip install 'tfasr[extra]'

    def check(self, spec: RecogniserSpec) -> None:
        """Raises UsageError if the target doesn't support this recogniser."""

    def streams(self, acoustics: KerasAcoustics, spec: RecogniserSpec) -> bool:
        """Whether a recogniser that can stream can still do so after export."""
        return True

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        """Writes the model; with int8 weights if the path of its ``float32`` file is passed."""
        raise NotImplementedError

    def fill(
        self, folder: Path, run: _Run, model: Path, source: BatchSource, outputs: SplitOutputs
    ) -> int:
        """Writes all files except model card and hashes; returns the model's size in bytes."""
        num_bytes = model_bytes(model)
        model.rename(folder / model.name)
        _describe(folder, run, self.runtime)
        return num_bytes

    def contents(self, spec: RecogniserSpec) -> str:
        raise NotImplementedError

    def form(self, spec: RecogniserSpec) -> CardForm:
        extra = f"[{self.extra}]" if self.extra else ""
        install = f"pip install '/path/to/tfasr{extra}'  # a clone of tfasr, or its wheel"
        return CardForm(
            files=f"`{MODEL_FILES[self.runtime]}`",
            commands=(install, "tfasr transcribe recording.wav --run_dir ."),
            streams=spec.can_stream,
            limits=WORD_LIMITS,
            contents="`recogniser.json` describes how features are computed and normalised, "
            "`alphabet.json` the classes (the CTC blank is last). " + self.contents(spec),
        )


class _Onnx(Kind):
    runtime, extra = ONNX, "export"
    packages = ("onnx", "onnxruntime")

    def check(self, spec: RecogniserSpec) -> None:
        if spec.model not in WRITTEN_BY_HAND:
            _check_installed("tf2onnx")

    def streams(self, acoustics: KerasAcoustics, spec: RecogniserSpec) -> bool:
        return spec.model in WRITTEN_BY_HAND  # a converted graph can't take states

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        from tfasr.exporting.onnx import WRITERS, converted_graph, metadata, quantised

        name, num_features, carried = run.spec.model, run.acoustics.num_features, metadata(run.spec)
        if float32 is not None:
            graph = quantised(float32.read_bytes())
        elif name in WRITTEN_BY_HAND:
            graph = WRITERS[name](run.acoustics.recogniser, num_features, carried)
        else:
            graph = converted_graph(_portable_model(run)[1], num_features, name, carried)
        path.write_bytes(graph)

    def fill(self, folder: Path, run: _Run, *model: Any) -> int:
        from tfasr.exporting.onnx import checked_feature_graph

        write_whole(folder / FEATURES_FILE, checked_feature_graph(run.spec))
        return super().fill(folder, run, *model)

    def contents(self, spec: RecogniserSpec) -> str:
        states = "; it also takes the recurrence's states and returns the next ones"
        return (
            f"`{MODEL_FILES[ONNX]}` takes `features` (float32: "
            f"batch, frames, {spec.features.num_features}) and `lengths` (int32: batch), and "
            f"returns `log_probs` and `output_lengths`{states if spec.streams else ''}. "
            f"`{FEATURES_FILE}` takes `samples` (float32 in -1..1 at "
            f"{spec.features.sample_rate_hz} Hz: batch, samples) and returns these `features`, for "
            "programs that don't compute them."
        )


class _Sherpa(_Onnx):
    def check(self, spec: RecogniserSpec) -> None:
        from tfasr.exporting.sherpa import check_rate

        super().check(spec)
        check_rate(spec)

    def fill(self, folder: Path, run: _Run, *model: Any) -> int:
        from tfasr.exporting.sherpa import write_sherpa

        return write_sherpa(folder, run.spec, *model)

    def form(self, spec: RecogniserSpec) -> CardForm:
        from tfasr.exporting.sherpa import card_form

        return card_form()


class _Litert(Kind):
    runtime, extra = LITERT, "litert"

    def streams(self, acoustics: KerasAcoustics, spec: RecogniserSpec) -> bool:
        from tfasr.exporting.litert import is_stepped

        return is_stepped(acoustics.config)

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        from tfasr.exporting.litert import converted_litert_graph, is_stepped, litert_graph

        num_features, int8 = run.acoustics.num_features, float32 is not None
        if is_stepped(run.acoustics.config):
            graph = litert_graph(run.acoustics.recogniser, num_features, int8=int8)
        else:
            graph = converted_litert_graph(_portable_model(run)[1], num_features, int8=int8)
        path.write_bytes(graph)

    def contents(self, spec: RecogniserSpec) -> str:
        frames = f"1, frames, {spec.features.num_features}"
        signature = (
            f"`whole`: it takes the `features` (float32: {frames}) of one utterance of any length "
            "and its `lengths` (int32: 1), and returns `log_probs` and `output_lengths`."
        )
        if spec.streams:
            signature = (
                f"`step`: it takes the `features` (float32: {frames}) that a few output frames "
                "see, and the states `h_0`, `c_0` and so on; it returns the frames' `log_probs` "
                "and, as `states_h_0` and so on, the states after each of these frames. The next "
                "call takes the states after the last frame."
            )
        file = MODEL_FILES[LITERT]
        return f"`{file}`, which needs no TensorFlow operators, has the signature {signature}"


class _Keras(Kind):
    runtime = KERAS

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        config, num_features = run.acoustics.config, run.acoustics.num_features
        num_classes = run.spec.alphabet.num_classes
        saved = SavedRecogniser(config, num_features, num_classes, name="recogniser")
        saved.recogniser.set_weights(run.acoustics.recogniser.get_weights())
        saved.save(path)

    def contents(self, spec: RecogniserSpec) -> str:
        return (
            "Once `tfasr.models.build` is imported, "
            f"`keras.saving.load_model('{MODEL_FILES[KERAS]}')` "
            "returns a Keras model of normalised features (batch, frames, "
            f"{spec.features.num_features}) and lengths (batch) that returns the classes' "
            f"log-probabilities (batch, output frames, {spec.alphabet.num_classes})."
        )


class _SavedModel(Kind):
    runtime = SAVED_MODEL

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        model, recognise = _portable_model(run)
        shape = [None, None, run.acoustics.num_features]
        inputs = {
            FEATURES: tf.TensorSpec(shape, tf.float32),
            LENGTHS: tf.TensorSpec([None], tf.int32),
        }
        signatures = {WHOLE_SIGNATURE: tf.function(recognise).get_concrete_function(**inputs)}
        if run.spec.streams:
            states = model.initial_state(1)
            names = [f"{STATE}{number}" for number in range(len(states))]

            def continued(features: tf.Tensor, **states: tf.Tensor) -> dict[str, tf.Tensor]:
                logits, reached = model.continued(features, [states[name] for name in names])
                after = {f"{NEXT_STATE}{number}": state for number, state in enumerate(reached)}
                return {LOG_PROBS: tf.nn.log_softmax(logits), **after}

            shapes = {FEATURES: [1, *shape[1:]]}
            shapes |= {name: state.shape for name, state in zip(names, states, strict=True)}
            inputs = {name: tf.TensorSpec(shape, tf.float32) for name, shape in shapes.items()}
            signatures[CONTINUED_SIGNATURE] = tf.function(continued).get_concrete_function(**inputs)
        module = tf.Module()
        module.weights = [variable.value for variable in model.variables]
        tf.saved_model.save(module, str(path), signatures)

    def contents(self, spec: RecogniserSpec) -> str:
        file = MODEL_FILES[SAVED_MODEL]
        return (
            f"`{file}` needs only TensorFlow: `tf.saved_model.load('{file}')."
            "signatures['serving_default']` takes `features` (float32: batch, frames, "
            f"{spec.features.num_features}) and `lengths` (int32: batch), and returns `log_probs` "
            "and `output_lengths`. If the model can stream, the signature `continued` takes the "
            "next `features` and the states, and returns `log_probs` and the next states."
        )


# By the value of ``--to``.
KINDS: dict[str, type[Kind]] = {
    ONNX: _Onnx,
    SHERPA: _Sherpa,
    LITERT: _Litert,
    KERAS: _Keras,
    SAVED_MODEL: _SavedModel,
}
