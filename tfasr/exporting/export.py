"""Exports a run's recogniser for other programs, and compares its outputs with the run's.

`export` is the function behind ``tfasr export``. A `Kind` for each target writes the
model's file; the model then recognises a split, next to the run's own model, and only
if both agree does anything appear in the user's folder. The model card states what was
measured.
"""

import abc
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr._version import __version__
from tfasr.alphabet import Alphabet
from tfasr.data.batches import BatchSource
from tfasr.decoding.choice import load_lexicon
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import LEXICON_FILE, check_owned, make_folder, write_whole
from tfasr.kit.process import without_noise
from tfasr.models.build import SavedRecogniser, build_recogniser
from tfasr.models.model import portable
from tfasr.recognising import spec as exported
from tfasr.recognising.runtimes import open_exported, open_model
from tfasr.recognising.spec import (
    FEATURES,
    LENGTHS,
    LOG_PROBS,
    ONNX,
    Acoustics,
    RecogniserSpec,
)
from tfasr.recognising.tensorflow_runtimes import (
    CONTINUED_SIGNATURE,
    NEXT_STATE,
    STATE,
    WHOLE_SIGNATURE,
    KerasAcoustics,
    open_run,
)
from tfasr.reports.charges import measured_energy
from tfasr.scoring.errors import Scored, Transcript, score
from tfasr.scoring.summary import (
    CONFIDENCE,
    PairedComparison,
    RateSummary,
    compare_pairs,
    summarise_scored,
)
from tfasr.training.trained import Progress, TrainedRun, no_progress, open_trained
from tfasr.tta.run import Run, load_run

FEATURES_FILE = "features.onnx"  # next to an ONNX model
# Models whose ONNX graphs are written node by node; all others are converted.
WRITTEN_BY_HAND = ("acoustic_model", "gru")
MOST_DIFFERENCE = 1e-3  # allowed for float32 log-probabilities, because of rounding
_SMALLEST = -20.0  # smaller log-probabilities make no difference to any decoder
_PADDED_FRAMES = (47, 21, 32)  # output frames of each utterance in a batch of noise
UNKNOWN = "not recorded"  # in a model card
WORD_LIMITS = (
    "Its confidences are posteriors of the model, not calibrated probabilities; word times are "
    "those of its CTC alignment, one or two tenths of a second off."
)
"""For the model card. Measured on synthetic speech with ``benchmarks/word_times.py``."""


@dataclass(frozen=True)
class SplitOutputs:
    """What a model computed for a split's utterances, in their order.

    Attributes:
        scored: greedy transcripts and their errors.
        log_probs: ``(frames, classes)`` for each utterance.
        audio_s: of all utterances.
        thread_s: processor time of this thread, in which ONNX Runtime and LiteRT
            compute.
    """

    scored: list[Scored]
    log_probs: list[np.ndarray]
    audio_s: float
    thread_s: float

    @property
    def audio_s_per_s(self) -> float:
        """Seconds of audio per second of processor time, for the model alone."""
        return self.audio_s / max(self.thread_s, 1e-9)


def outputs_on(
    source: BatchSource,
    acoustics: Acoustics,
    alphabet: Alphabet,
    output_lengths: Callable,
    advance: Callable[[int], None],
) -> SplitOutputs:
    """Runs a model on a split.

    Args:
        source: of the split's batches.
        acoustics: the model.
        alphabet: of its outputs.
        output_lengths: maps numbers of feature frames to those of output frames.
        advance: called with each batch's number of utterances.
    """
    decoder = GreedyDecoder(alphabet)
    texts: dict[int, str] = {}
    scores_of: dict[int, np.ndarray] = {}
    thread_s = 0.0

    for batch in source.evaluation():
        features = batch["features"].numpy()
        lengths = batch["feature_lengths"].numpy()
        # Processor time, because other programs would count in wall-clock time.
        began = time.thread_time()
        log_probs = acoustics.log_probs(features, lengths)
        thread_s += time.thread_time() - began
        frames = np.asarray(output_lengths(lengths))
        hypotheses = decoder.decode(log_probs, frames)
        for position, hypothesis, scores, count in zip(
            batch["positions"].numpy().tolist(),
            hypotheses,
            log_probs,
            frames,
            strict=True,
        ):
            texts[position] = " ".join(hypothesis.text.split())
            scores_of[position] = scores[:count]

        advance(len(hypotheses))

    utterances = source.split.utterances
    transcripts = [
        Transcript(u.id, u.text, texts[u.position], u.speaker) for u in utterances
    ]
    log_probs = [scores_of[utterance.position] for utterance in utterances]

    return SplitOutputs(
        score(transcripts),
        log_probs,
        source.split.duration_s,
        thread_s,
    )


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Returns the largest difference of log-probabilities; those below -20 count as -20."""
    differences = []
    for a, b in zip(first, second, strict=True):
        apart = np.maximum(a, _SMALLEST) - np.maximum(b, _SMALLEST)
        differences.append(float(np.abs(apart).max(initial=0.0)))

    return max(differences)


def check_agrees(
    of_run: list[np.ndarray],
    of_export: list[np.ndarray],
    speech: str,
) -> None:
    """Raises RunError if two models' log-probabilities differ by more than rounding.

    ``speech`` says of what they are, for the message.
    """
    difference = largest_difference(of_run, of_export)
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            f"The exported model must agree with the run's model. Their log-probabilities of "
            f"{speech} differ by up to {difference:.3g}, more than {MOST_DIFFERENCE:g}. Nothing "
            "was written; please report it."
        )


def check_padded(spec: RecogniserSpec, of_run: Acoustics, of_export: Acoustics) -> None:
    """Raises RunError if two models' outputs differ for padded noise.

    Odd numbers of frames show mistakes of rounding that even ones hide.
    """
    kernel, stride = spec.geometry
    noise = []

    for outputs in _PADDED_FRAMES:
        frames = kernel + stride * (outputs - 1)
        if frames % 2 == 0:
            frames += 1

        size = (frames, spec.features.num_features)
        noise.append(np.random.default_rng(1).normal(size=size))

    features, lengths = exported.padded(noise)

    def valid(model: Acoustics) -> list[np.ndarray]:
        rows = zip(model.log_probs(features, lengths), lengths, strict=True)
        return [row[: spec.output_frames(int(length))] for row, length in rows]

    check_agrees(valid(of_run), valid(of_export), "a padded batch of noise")


def model_card(
    run_dir: Path,
    spec: RecogniserSpec,
    form: dict[str, Any],
    *,
    split: str,
    rates: RateSummary,
    int8: bool,
    data_licence: str | None,
) -> str:
    """Returns an export's README in Markdown.

    Args:
        run_dir: of the run, whose ledger has times and energy.
        spec: the recogniser's description.
        form: from `Kind.form`.
        split: on which the exported model was measured.
        rates: its error rates there, with greedy decoding.
        int8: whether its weights are int8.
        data_licence: of the training data; None if unknown.
    """
    try:
        run = load_run(run_dir)
    except UsageError:  # a run whose ledger of times is missing can still be exported
        run = None

    samples = None if run is None else run.fact("train_samples")
    rows = [
        ("trained on", UNKNOWN if samples is None else f"{samples} utterances"),
        ("licence of the data", data_licence or UNKNOWN),
        (f"WER on {split}, greedy", _rate(rates, "wer")),
        (f"CER on {split}, greedy", _rate(rates, "cer")),
        *_times(run),
        ("hardware", _hardware(run)),
        ("energy of the training", _energy(run)),
        ("samples", f"{spec.features.sample_rate_hz} Hz, one channel"),
        ("normalisation of features", spec.features.normalisation),
    ]
    characters = spec.alphabet.characters.replace(spec.alphabet.separator or "", "")
    weights = " with int8 weights" if int8 else ""
    ability = "can" if form["streams"] else "cannot"
    lines = [
        "# A speech recogniser",
        "",
        f"A CTC model of the kind `{spec.model}`, exported by tfasr {__version__} to "
        f"{form['files']}{weights}. It {ability} stream.",
        "",
        "```sh",
        *form["commands"],
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "## Limits",
        "",
        f"It writes only these {len(characters)} characters: `{characters}`. It has been measured "
        "only on the split named above: expect more errors with other microphones, rooms, accents "
        f"and subjects. {form['limits']} Do not use it where an error would harm someone.",
        "",
        "## Files",
        "",
        f"{form['contents']} `SHA256SUMS` holds the hashes of all files: "
        "`sha256sum --check SHA256SUMS`.",
    ]

    return "\n".join(lines) + "\n"


def _rate(rates: RateSummary, metric: str) -> str:
    """Returns a rate in percent with its interval, by speaker if there are enough."""
    by_speaker = getattr(rates, f"{metric}_interval_by_speaker")
    interval = by_speaker or getattr(rates, f"{metric}_interval")
    ends = "too few utterances for an interval"
    if interval is not None:
        ends = f"{CONFIDENCE:.0%}: {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"

    return f"{100 * getattr(rates.counts, metric):.2f} % ({ends})"


def _times(run: Run | None) -> list[tuple[str, str]]:
    """Returns rows of the card: how long training took to each target."""
    if run is None or not run.targets:
        return [("time to accuracy", UNKNOWN)]

    rows = []
    for name, rate in run.targets:
        reached = run.time_to_accuracy(**{name: rate})
        rows.append((f"time to {name.upper()} {100 * rate:g} %", reached.summary))

    return rows


def _hardware(run: Run | None) -> str:
    """Returns the GPUs and processor on which a run was trained."""
    system = (run.system if run is not None else {}).get("system") or {}
    gpus = ", ".join(str(gpu) for gpu in system.get("gpus") or [])
    cores = system.get("cores")
    processor = str(system.get("processor") or "")
    if cores and processor:
        processor = f"{cores} cores of {processor}"

    return "; ".join(filter(None, [gpus, processor])) or UNKNOWN


def _energy(run: Run | None) -> str:
    """Returns the energy that counters of the hardware measured."""
    use = None if run is None else measured_energy(run).use(run, math.inf)
    if use is None:
        return UNKNOWN

    return f"{use.total_joules / 3.6e6:.4g} kWh of {', '.join(use.counters)} only"


@dataclass(frozen=True)
class Exported:
    """What `export` wrote, and how it compares with the run's model.

    Attributes:
        folder: of the export.
        bytes: size of the model.
        float32_bytes: size of the model with float32 weights.
        utterances: number of utterances on which both were compared.
        difference: the largest difference of their log-probabilities.
        differing_texts: utterances for which their greedy transcripts differ.
        wer: of the exported model on these utterances.
        int8: WER compared with the float32 model's; None without int8.
        audio_s_per_s: seconds of audio per second, the model alone on one core,
            measured once.
        float32_audio_s_per_s: the same for the model with float32 weights.
    """

    folder: Path
    bytes: int
    float32_bytes: int
    utterances: int
    difference: float
    differing_texts: int
    wer: float
    int8: PairedComparison | None
    audio_s_per_s: float
    float32_audio_s_per_s: float


@dataclass(frozen=True)
class _Run:
    """An opened run: its files, its description and its model."""

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

    Arguments are the flags of ``tfasr export``.

    Args:
        to: a key of `KINDS`.
        run_dir: of the run.
        out: a new or empty folder, which stays unchanged if anything fails.
        int8: whether weights are quantised.
        checkpoint: "best" (by validation CER), "last" or a file.
        split: on which the models are compared.
        shard_dir: with this split; by default the run's.
        data_licence: for the model card.
        progress: shows how many utterances have been recognised.

    Raises:
        UsageError: if run, checkpoint or split don't fit, a package is missing, or the
            target doesn't support the model.
        RunError: if the model can't be converted or its outputs differ.
    """
    out = Path(out)
    kind, run = _opened(to, Path(run_dir), out, int8, checkpoint)
    source = run.trained.source(split, shard_dir)

    with tempfile.TemporaryDirectory() as temporary:
        paths = _written(kind, run, Path(temporary), int8=int8)
        of_run, *of_models = _outputs(kind, run, source, paths, progress)
        of_float32 = of_models[0]
        of_written = of_models[-1]
        # What int8 weights save; 0 without them.
        saved_bytes = exported.model_bytes(paths[0]) - exported.model_bytes(paths[-1])
        folder = Path(temporary, "export")
        folder.mkdir()
        written_bytes = kind.fill(folder, run, paths[-1])
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
        write_whole(folder / exported.CARD_FILE, card)
        exported.write_sums(folder)
        open_exported(folder, {})  # as a user will
        _published(folder, out)

    pairs = zip(of_run.scored, of_written.scored, strict=True)

    return Exported(
        folder=out,
        bytes=written_bytes,
        float32_bytes=written_bytes + saved_bytes,
        utterances=len(of_written.scored),
        difference=largest_difference(of_run.log_probs, of_written.log_probs),
        differing_texts=sum(
            a.transcript.hypothesis != b.transcript.hypothesis for a, b in pairs
        ),
        wer=rates.counts.wer,
        int8=compare_pairs(of_float32.scored, of_written.scored) if int8 else None,
        audio_s_per_s=of_written.audio_s_per_s,
        float32_audio_s_per_s=of_float32.audio_s_per_s,
    )


def write_unchecked(
    run_dir: Path,
    out: Path,
    *,
    to: str = ONNX,
    int8: bool,
    checkpoint: str,
):
    """Writes an export for measurements: models aren't compared, and there is no card."""
    kind, run = _opened(to, run_dir, out, int8, checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        model = _written(kind, run, Path(temporary), int8=int8)[-1]
        folder = Path(temporary, "export")
        folder.mkdir()
        model.rename(folder / model.name)
        _describe(folder, run, kind.runtime)
        exported.write_sums(folder)
        _published(folder, out)


def _opened(
    to: str,
    run_dir: Path,
    out: Path,
    int8: bool,
    checkpoint: str,
) -> "tuple[Kind, _Run]":
    """Checks what can be checked before anything is computed, and opens the run."""
    check_owned(out, "--out", "part of this export", owned=False)
    exported.check_int8(to, int8)
    kind = KINDS[to]()
    _check_installed(*kind.packages)
    trained = open_trained(run_dir)
    spec, acoustics = open_run(trained, checkpoint, {})
    kind.check(spec)
    # The export may lose the ability.
    streams = spec.streams and kind.streams(acoustics, spec)

    return kind, _Run(trained, dataclasses.replace(spec, streams=streams), acoustics)


def _check_installed(*packages: str) -> None:
    """Raises UsageError, with the command to install them, if packages are missing."""
    lacking = [name for name in packages if find_spec(name) is None]
    if lacking:
        raise UsageError(
            f"The export needs {' and '.join(lacking)}, which is not installed: pip install "
            "'tfasr[export]'."
        )


def _written(kind: "Kind", run: _Run, temporary: Path, *, int8: bool) -> list[Path]:
    """Writes the model's files; returns their paths: float32, and then int8 if wanted."""
    paths = [
        temporary / name / exported.FORMATS[kind.runtime].file
        for name in ("float32", "int8")
    ]
    for path in paths:
        path.parent.mkdir()

    with without_noise():
        kind.write(run, paths[0])
        if not int8:
            return paths[:1]

        kind.write(run, paths[1], float32=paths[0])

    return paths


def _outputs(
    kind: "Kind",
    run: _Run,
    source: BatchSource,
    paths: list[Path],
    progress: Progress,
) -> list[SplitOutputs]:
    """Returns the outputs of the run's model and of its files on a split.

    The first file's must agree with the run's; int8 weights may differ, which is
    measured.
    """
    with without_noise():
        models = [open_model(kind.runtime, path, run.spec) for path in paths]
        check_padded(run.spec, run.acoustics, models[0])

    compared = [run.acoustics, *models]
    with progress(len(compared) * len(source.split.utterances)) as advance:
        outputs = [
            outputs_on(
                source,
                model,
                run.spec.alphabet,
                run.acoustics.output_lengths,
                advance,
            )
            for model in compared
        ]

    speech = f"the utterances of {source.split.folder}"
    check_agrees(outputs[0].log_probs, outputs[1].log_probs, speech)

    return outputs


def _describe(folder: Path, run: _Run, runtime: str) -> None:
    """Writes everything but the model that a recogniser needs."""
    run_dir = run.trained.path
    lexicon = load_lexicon(run_dir) if (run_dir / LEXICON_FILE).exists() else []
    exported.write_spec(folder, run.spec, lexicon, runtime)


def _published(folder: Path, out: Path) -> None:
    """Copies an export to the user's folder; the hashes come last and make it complete."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for file in sorted(files, key=lambda path: path.name == exported.SUMS_FILE):
        copy = out / file.relative_to(folder)
        make_folder(copy.parent)
        write_whole(copy, file.read_bytes())


def _portable_model(run: _Run) -> tuple[Any, Callable]:
    """Returns the model made of exportable operations, and a function for batches.

    The function returns a dictionary of log-probabilities and output lengths.
    """
    config = portable(run.acoustics.config)
    num_classes = run.spec.alphabet.num_classes
    model = build_recogniser(
        config,
        run.acoustics.num_features,
        num_classes,
        dtype="float32",
    )
    model.set_weights(run.acoustics.recogniser.get_weights())

    def recognise(features: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        log_probs = tf.nn.log_softmax(model(features, lengths, training=False))
        return {
            LOG_PROBS: log_probs,
            exported.OUTPUT_LENGTHS: config.output_lengths(lengths),
        }

    return model, recognise


class Kind(abc.ABC):
    """An export target, with defaults for some of its methods.

    Attributes:
        runtime: what runs the model, a key of `FORMATS`.
        packages: needed to write the model.
        extra: tfasr's optional dependencies needed to run it, as in pip install
            'tfasr[extra]'.
    """

    runtime: str
    packages: tuple[str, ...] = ()
    extra = ""

    def check(self, spec: RecogniserSpec) -> None:  # noqa: B027 - most support all
        """Raises UsageError if the target doesn't support this recogniser."""

    def streams(self, acoustics: KerasAcoustics, spec: RecogniserSpec) -> bool:
        """Whether a recogniser that can stream can still do so after export."""
        return True

    @abc.abstractmethod
    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        """Writes the model to ``path``.

        Its weights are int8 if the path of its ``float32`` file is passed.
        """

    def fill(self, folder: Path, run: _Run, model: Path) -> int:
        """Writes all files except model card and hashes; returns the model's bytes."""
        num_bytes = exported.model_bytes(model)
        model.rename(folder / model.name)
        _describe(folder, run, self.runtime)

        return num_bytes

    @abc.abstractmethod
    def contents(self, spec: RecogniserSpec) -> str:
        """Describes the model's inputs and outputs for the card, in Markdown."""

    def form(self, spec: RecogniserSpec) -> dict[str, Any]:
        """Returns the parts of a model card that depend on the kind of export.

        In Markdown: ``files`` contain the model, ``commands`` use it, ``limits`` are
        what not to expect of it, ``contents`` describe it.
        """
        extra = f"[{self.extra}]" if self.extra else ""
        install = (
            f"pip install '/path/to/tfasr{extra}'  # a clone of tfasr, or its wheel"
        )
        return {
            "files": f"`{exported.FORMATS[self.runtime].file}`",
            "commands": (install, "tfasr transcribe recording.wav --run_dir ."),
            "streams": spec.can_stream,
            "limits": WORD_LIMITS,
            "contents": "`recogniser.json` describes how features are computed and normalised, "
            "`alphabet.json` the classes (the CTC blank is last). "
            + self.contents(spec),
        }


class _Onnx(Kind):
    """ONNX, for ONNX Runtime and most other programs; with a graph of the features."""

    runtime = ONNX
    extra = "export"
    packages = ("onnx", "onnxruntime")

    def check(self, spec: RecogniserSpec) -> None:
        if spec.model not in WRITTEN_BY_HAND:
            _check_installed("tf2onnx")

    def streams(self, acoustics: KerasAcoustics, spec: RecogniserSpec) -> bool:
        return spec.model in WRITTEN_BY_HAND  # a converted graph can't take states

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        from tfasr.exporting.onnx import (
            converted_graph,
            metadata,
            quantised,
            recurrent_graph,
        )

        name = run.spec.model
        num_features = run.acoustics.num_features
        carried = metadata(run.spec)
        if float32 is not None:
            graph = quantised(float32.read_bytes())
        elif name in WRITTEN_BY_HAND:
            graph = recurrent_graph(run.acoustics.recogniser, num_features, carried)
        else:
            graph = converted_graph(
                _portable_model(run)[1],
                num_features,
                name,
                carried,
            )

        path.write_bytes(graph)

    def fill(self, folder: Path, run: _Run, model: Path) -> int:
        from tfasr.exporting.onnx import checked_feature_graph

        write_whole(folder / FEATURES_FILE, checked_feature_graph(run.spec))
        return super().fill(folder, run, model)

    def contents(self, spec: RecogniserSpec) -> str:
        states = "; it also takes the recurrence's states and returns the next ones"
        return (
            f"`{exported.FORMATS[ONNX].file}` takes `features` (float32: batch, frames, "
            f"{spec.features.num_features}) and `lengths` (int32: batch), and returns `log_probs` "
            f"and `output_lengths`{states if spec.streams else ''}. `{FEATURES_FILE}` takes "
            f"`samples` (float32 in -1..1 at {spec.features.sample_rate_hz} Hz: batch, samples) "
            "and returns these `features`, for programs that don't compute them."
        )


class _Litert(Kind):
    """LiteRT, for phones and small computers."""

    runtime = exported.LITERT
    extra = "litert"

    def streams(self, acoustics: KerasAcoustics, spec: RecogniserSpec) -> bool:
        from tfasr.exporting.litert import is_stepped

        return is_stepped(acoustics.config)

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        from tfasr.exporting.litert import (
            converted_litert_graph,
            is_stepped,
            litert_graph,
        )

        num_features = run.acoustics.num_features
        int8 = float32 is not None
        if is_stepped(run.acoustics.config):
            graph = litert_graph(run.acoustics.recogniser, num_features, int8=int8)
        else:
            graph = converted_litert_graph(
                _portable_model(run)[1],
                num_features,
                int8=int8,
            )

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

        file = exported.FORMATS[exported.LITERT].file

        return f"`{file}`, which needs no TensorFlow operators, has the signature {signature}"


class _Keras(Kind):
    """A ``.keras`` file, for Python with tfasr."""

    runtime = exported.KERAS

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        config = run.acoustics.config
        num_features = run.acoustics.num_features
        num_classes = run.spec.alphabet.num_classes
        saved = SavedRecogniser(config, num_features, num_classes, name="recogniser")
        # The run's model may compute in another precision.
        saved.recogniser.set_weights(run.acoustics.recogniser.get_weights())
        saved.save(path)

    def contents(self, spec: RecogniserSpec) -> str:
        return (
            "Once `tfasr.models.build` is imported, "
            f"`keras.saving.load_model('{exported.FORMATS[exported.KERAS].file}')` "
            "returns a Keras model of normalised features (batch, frames, "
            f"{spec.features.num_features}) and lengths (batch) that returns the classes' "
            f"log-probabilities (batch, output frames, {spec.alphabet.num_classes})."
        )


class _SavedModel(Kind):
    """A SavedModel, for TensorFlow without tfasr."""

    runtime = exported.SAVED_MODEL

    def write(self, run: _Run, path: Path, float32: Path | None = None) -> None:
        model, recognise = _portable_model(run)
        shape = [None, None, run.acoustics.num_features]
        inputs = {
            FEATURES: tf.TensorSpec(shape, tf.float32),
            LENGTHS: tf.TensorSpec([None], tf.int32),
        }
        signatures = {
            WHOLE_SIGNATURE: tf.function(recognise).get_concrete_function(**inputs)
        }
        if run.spec.streams:
            states = model.initial_state(1)
            names = [f"{STATE}{number}" for number in range(len(states))]

            def continued(
                features: tf.Tensor, **states: tf.Tensor
            ) -> dict[str, tf.Tensor]:
                logits, reached = model.continued(
                    features, [states[name] for name in names]
                )
                after = {
                    f"{NEXT_STATE}{number}": state
                    for number, state in enumerate(reached)
                }
                return {LOG_PROBS: tf.nn.log_softmax(logits), **after}

            shapes = {FEATURES: [1, *shape[1:]]}
            shapes |= {
                name: state.shape for name, state in zip(names, states, strict=True)
            }
            inputs = {
                name: tf.TensorSpec(shape, tf.float32) for name, shape in shapes.items()
            }
            signatures[CONTINUED_SIGNATURE] = tf.function(
                continued
            ).get_concrete_function(**inputs)

        module = tf.Module()
        # Kept by the module, or the functions would lose their variables.
        module.weights = [variable.value for variable in model.variables]
        tf.saved_model.save(module, str(path), signatures)

    def contents(self, spec: RecogniserSpec) -> str:
        file = exported.FORMATS[exported.SAVED_MODEL].file
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
    exported.LITERT: _Litert,
    exported.KERAS: _Keras,
    exported.SAVED_MODEL: _SavedModel,
}
