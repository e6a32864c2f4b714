"""A recogniser's description (everything but its weights), and the files of an export.

What `tfasr.exporting` writes and `tfasr.recognising` reads. Nothing here needs
TensorFlow, so that exports run without it.
"""

import dataclasses
import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from tfasr._version import __version__
from tfasr.alphabet import Alphabet, join_words
from tfasr.corpora.formats import format_of
from tfasr.data.features import (
    FeatureConfig,
    check_statistics,
    normalise_frames,
    numpy_features,
)
from tfasr.decoding.choice import DecoderConfig, load_lexicon, needs_lexicon
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.config import to_json
from tfasr.kit.files import (
    ALPHABET_FILE,
    LEXICON_FILE,
    file_sha256,
    read_object,
    read_text,
    write_whole,
)

# A recurrence's state between two chunks, as the runtime has it.
State = list[Any]

# Names of models' inputs and outputs in exported files.
FEATURES = "features"
LENGTHS = "lengths"
LOG_PROBS = "log_probs"
OUTPUT_LENGTHS = "output_lengths"

# A preset whose models can stream, for messages.
STREAMING_PRESET = "an4_streaming.gin"

# Louder samples are rejected, since their squares would exceed float32.
_LOUDEST = 1e12

# How many bytes of a stream show whether it is an audio file.
_BEGINNING_BYTES = 4096

# Limits of what a description may say: an export comes from anyone, and arrays are made
# of these sizes.
_MOST = {
    "sample_rate_hz": 10**6,
    "window_samples": 2**16,
    "step_samples": 2**16,
    "num_features": 2**14,
}
_MOST_FRAMES = 2**16


class Acoustics(Protocol):
    """Maps normalised features to log-probabilities of all classes.

    ``batches_at_once`` is how many threads may usefully call `log_probs` at the same
    time.
    """

    batches_at_once: int

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns natural logarithms ``(batch, output frames, classes)``.

        ``features`` are right-padded, ``(batch, frames, num_features)``, with lengths
        ``(batch,)``. Every utterance must have at least one output frame.
        """

    def initial_state(self) -> State:
        """Returns the recurrence's state before the first frame."""

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns log-probabilities ``(output frames, classes)`` and the new state.

        ``features`` ``(frames, num_features)`` of a stream begin where the next output
        frame's input begins.
        """


@dataclass(frozen=True)
class Word:
    """A word of a transcript, with its times in seconds from the start of the audio.

    Its confidence, 0..1, is the geometric mean over its characters of each one's
    highest posterior.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float

    def moved(self, by_s: float) -> "Word":
        """Returns the word with later times, for a recording that begins later."""
        return Word(self.text, self.start_s + by_s, self.end_s + by_s, self.confidence)


@dataclass(frozen=True)
class Transcript:
    """The words recognised in a recording, in order, and the duration of its audio."""

    words: list[Word] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """The words, joined by spaces where their script has some."""
        return join_words(word.text for word in self.words)


@dataclass(frozen=True, eq=False)
class StreamResult:
    """The text of a stream's utterance, so far or whole.

    Attributes:
        text: what was recognised.
        final: whether the utterance has ended.
        align: returns the words with their times; called when you first read `words`.
    """

    text: str
    final: bool
    align: Callable[[], list[Word]] = field(repr=False)

    @cached_property
    def words(self) -> list[Word]:
        """The words with confidences, and times from the start of the stream."""
        return self.align()


def as_samples(samples: np.ndarray) -> np.ndarray:
    """Converts floats or int16 to float32 in -1..1.

    Raises:
        ValueError: for other types, NaN, infinity or values above 1e12.
    """
    if samples.dtype == np.int16:
        # As libsndfile scales integers.
        return samples.astype(np.float32) / 32768

    if samples.dtype.kind != "f":
        raise ValueError(
            f"samples must be floats or int16. Received: dtype={samples.dtype}."
        )

    samples = samples.astype(np.float32, copy=False)
    if not np.isfinite(samples).all():
        bad = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise ValueError(
            f"samples must be finite. Received: samples[{bad}]={samples[bad]}."
        )

    loudest = float(np.abs(samples).max(initial=0))
    if loudest > _LOUDEST:
        raise ValueError(
            f"samples must be at most {_LOUDEST:g} times full scale, or their features "
            f"aren't finite. Received: samples up to {loudest:g}, where full scale is "
            "1."
        )

    return samples


def pcm_chunks(
    stream: BinaryIO,
    sample_rate_hz: int,
    chunk_s: float = 0.1,
) -> Iterator[np.ndarray]:
    """Yields int16 samples ``(samples,)`` of a stream as they arrive.

    Args:
        stream: signed 16-bit little-endian mono, such as a microphone's.
        sample_rate_hz: of the samples.
        chunk_s: the longest chunk, in seconds.

    Raises:
        UsageError: if it begins like an audio file, whose header and compressed samples
            would be taken for speech.
    """
    # `read1` returns what has arrived, instead of waiting until a chunk is full.
    read = getattr(stream, "read1", stream.read)
    most_bytes = 2 * max(int(chunk_s * sample_rate_hz), 1)
    half = beginning = b""

    while data := read(most_bytes):
        if len(beginning) < _BEGINNING_BYTES:
            beginning += data[:_BEGINNING_BYTES]
            _require_raw(beginning, sample_rate_hz)

        data = half + data
        # A chunk may end in the middle of a sample.
        half = data[len(data) // 2 * 2 :]
        yield np.frombuffer(data[: len(data) // 2 * 2], "<i2")


def _require_raw(beginning: bytes, sample_rate_hz: int) -> None:
    """Raises UsageError, with ffmpeg's command, if a stream is a file's."""
    form = format_of(beginning)
    if form is not None:
        raise UsageError(
            "A stream must be raw PCM: signed 16 bit, little endian, one channel, "
            f"{sample_rate_hz} Hz. Received: a file ({form}). Give its name instead of "
            f"-, or convert it: ffmpeg -i FILE -f s16le -ac 1 -ar {sample_rate_hz} -"
        )


def padded(features: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Pads arrays ``(frames, width)`` on the right.

    Returns ``(batch, frames, width)`` and the lengths, int32 ``(batch,)``.
    """
    lengths = np.array([len(frames) for frames in features], np.int32)
    batch = np.zeros((len(features), lengths.max(), features[0].shape[1]), np.float32)
    for row, frames in zip(batch, features, strict=True):
        row[: len(frames)] = frames

    return batch, lengths


@dataclass(frozen=True)
class RecogniserSpec:
    """Everything about a recogniser but its weights.

    Attributes:
        model: its name in `tfasr.models.model.MODELS`.
        features: its input.
        statistics: the corpus's mean and deviation, if normalisation needs them.
        alphabet: the characters and units that it writes.
        decoder: how its outputs become text.
        lexicon: dictionary, for a decoder that needs one.
        geometry: feature frames that an output frame sees, and between output frames.
        streams: whether output frames depend on no feature frames later than those they
            see.
        identity: a hash of the weights, which identifies the recogniser.

    Raises:
        ValueError: for sizes or statistics that can't be a recogniser's.
    """

    model: str
    features: FeatureConfig
    statistics: tuple[np.ndarray, np.ndarray] | None
    alphabet: Alphabet
    decoder: DecoderConfig
    lexicon: tuple[str, ...]
    geometry: tuple[int, int]
    streams: bool
    identity: str

    def __post_init__(self):
        for name, most in _MOST.items():
            if getattr(self.features, name) > most:
                raise ValueError(f"The features' {name} must be at most {most}.")

        if not all(1 <= frames <= _MOST_FRAMES for frames in self.geometry):
            raise ValueError(
                f"The geometry must be two whole numbers, 1 to {_MOST_FRAMES}."
            )

        if (kind := self.features.normalisation) in ("corpus", "speaker"):
            if self.statistics is None:
                raise ValueError(
                    f"Normalisation {kind!r} needs statistics, which are missing."
                )

            check_statistics(*self.statistics, self.features.num_features)

    @property
    def frame_step_s(self) -> float:
        """Seconds from one output frame to the next."""
        return (
            self.geometry[1] * self.features.step_samples / self.features.sample_rate_hz
        )

    @property
    def first_frame_s(self) -> float:
        """Seconds at which the first output frame begins.

        Its time step is centred on the samples that it sees.
        """
        kernel, _ = self.geometry
        seen = (kernel - 1) * self.features.step_samples + self.features.window_samples

        return max(seen / self.features.sample_rate_hz / 2 - self.frame_step_s / 2, 0.0)

    def output_frames(self, feature_frames: int) -> int:
        """Returns how many output frames so many feature frames give, 0 or more."""
        kernel, stride = self.geometry
        return max((feature_frames - kernel) // stride + 1, 0)

    def normalised_features(self, samples: np.ndarray) -> np.ndarray:
        """Returns samples' normalised features, float32 ``(frames, num_features)``."""
        return self.normalised(numpy_features(samples, self.features))

    def normalised(self, features: np.ndarray) -> np.ndarray:
        """Returns normalised features ``(frames, num_features)``."""
        return normalise_frames(
            features, self.features, *(self.statistics or (None, None))
        )

    @property
    def can_stream(self) -> bool:
        """Whether neither layers nor normalisation need an utterance's end."""
        return self.streams and self.features.normalisation in ("corpus", "none")

    def check_streams(self) -> None:
        """Raises UsageError, with the reason and a preset, if it can't stream."""
        if self.can_stream:
            return

        reason = ", whose layers look at later frames or at whole utterances"
        if (kind := self.features.normalisation) in ("utterance", "speaker"):
            reason = (
                f" with FeatureConfig.normalisation {kind!r}, whose mean and deviation "
                "are known only then"
            )

        raise UsageError(
            "To stream, a model must not need an utterance's end. Received: "
            f"{self.model!r}{reason}. Train one that can: --gin_file "
            f"{STREAMING_PRESET}, or bind FeatureConfig.normalisation = 'corpus' and a "
            "recurrence in one direction. Until then, transcribe whole recordings, "
            "without --stream."
        )


# The files of an export follow.

# The model for ONNX Runtime.
GRAPH_FILE = "model.onnx"

# Runtimes that an export can be for, the values of ``--to``.
ONNX = "onnx"
LITERT = "litert"
KERAS = "keras"
SAVED_MODEL = "saved_model"

# Name of the model's file, or folder, for each runtime.
MODEL_FILES = {
    ONNX: GRAPH_FILE,
    LITERT: "model.tflite",
    KERAS: "model.keras",
    SAVED_MODEL: "saved_model",
}

# The recogniser's description, and the model's card, for people.
SPEC_FILE = "recogniser.json"
CARD_FILE = "README.md"

# Hashes of all other files, for ``sha256sum --check``; written last.
SUMS_FILE = "SHA256SUMS"

# The file whose hash identifies a recogniser.
_WEIGHTS = {
    **MODEL_FILES,
    SAVED_MODEL: "saved_model/variables/variables.data-00000-of-00001",
}

# The format of an export; raise it when other versions can't read it.
_FORMAT = 1

# What to do about a damaged export.
_AGAIN = "Export the run again."


def is_exported(folder: Path) -> bool:
    """Whether a folder is an export, complete or not."""
    return (folder / SPEC_FILE).is_file()


def write_spec(
    folder: Path,
    spec: RecogniserSpec,
    lexicon: list[str],
    runtime: str = ONNX,
) -> None:
    """Writes a recogniser's description next to its model.

    Args:
        folder: of the export.
        spec: the description.
        lexicon: words for a decoder that needs some; may be empty.
        runtime: for which the model was exported.
    """
    statistics = None
    if spec.statistics is not None:
        mean, deviation = spec.statistics
        statistics = {"mean": mean.tolist(), "deviation": deviation.tolist()}

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
    """Reads what `write_spec` wrote.

    Args:
        folder: of the export.
        decoder_changes: fields of the decoder's config that replace the export's.

    Raises:
        UsageError: if the description is damaged, or of another version of tfasr.
    """
    path = folder / SPEC_FILE
    names = (
        "format",
        "model",
        "features",
        "statistics",
        "decoder",
        "geometry",
        "streams",
    )
    content = read_object(path, _AGAIN, names)

    if content["format"] != _FORMAT:
        raise UsageError(
            f"{path} must be of format {_FORMAT}. Received: {content['format']!r}, "
            f"written by tfasr {content.get('tfasr')}. Use that tfasr, or export the "
            "run again."
        )

    # Checked alone first, so that the message blames the flags and not the file.
    with wrong_values_are_wrong_use():  # of flags
        dataclasses.replace(DecoderConfig(), **decoder_changes)

    try:
        decoder = dataclasses.replace(
            DecoderConfig(**content["decoder"]), **decoder_changes
        )
        kernel, stride = map(operator.index, content["geometry"])
        statistics = content["statistics"]
        if statistics is not None:
            statistics = tuple(_float32(statistics[n]) for n in ("mean", "deviation"))

        lexicon = ()
        if needs_lexicon(decoder):
            lexicon = tuple(load_lexicon(folder))

        return RecogniserSpec(
            model=str(content["model"]),
            features=FeatureConfig(**content["features"]),
            statistics=statistics,
            alphabet=Alphabet.load(folder / ALPHABET_FILE),
            decoder=decoder,
            lexicon=lexicon,
            geometry=(kernel, stride),
            streams=bool(content["streams"]),
            # The same weights are the same recogniser, wherever the folder is.
            identity=file_sha256(folder / _WEIGHTS[exported_runtime(folder)]),
        )
    except UsageError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        message = f"{path} must be as tfasr export wrote it. {reason} {_AGAIN}"
        raise UsageError(message) from error


def _float32(values: Any) -> np.ndarray:
    """Returns numbers as float32; too large ones become infinite."""
    with np.errstate(over="ignore"):  # infinity, which `check_statistics` rejects
        return np.asarray(values, np.float32)


def exported_runtime(folder: Path) -> str:
    """Returns the runtime of an export's model, one of `MODEL_FILES`.

    Raises:
        UsageError: if it is another one, as of a newer tfasr.
    """
    path = folder / SPEC_FILE
    content = read_object(path, _AGAIN, ("format",))
    runtime = content.get("runtime")

    if not isinstance(runtime, str) or runtime not in MODEL_FILES:
        raise UsageError(
            f"{path} must name a runtime of {', '.join(MODEL_FILES)}. Received: "
            f"{runtime!r}, written by tfasr {content.get('tfasr')}. Use that tfasr, or "
            "export the run again."
        )

    return runtime


def check_int8(to: str, int8: bool) -> None:
    """Raises UsageError if an export to ``to`` can't have int8 weights."""
    if int8 and to in (KERAS, SAVED_MODEL):
        raise UsageError(
            f"int8 weights are only for onnx and litert. Received: {to}, whose models "
            "compute in float32. Leave --int8 out, or choose another --to."
        )


def model_bytes(path: Path) -> int:
    """Returns the size of a model's file, or of all files in its folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    return path.stat().st_size


def write_sums(folder: Path) -> None:
    """Writes all files' hashes; an export without them is incomplete."""
    files = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    ]
    names = sorted(name for name in files if name != SUMS_FILE)
    lines = [f"{file_sha256(folder / name)}  {name}\n" for name in names]
    write_whole(folder / SUMS_FILE, "".join(lines))


def check_sums(folder: Path) -> None:
    """Raises UsageError unless all files of an export are there and unchanged."""
    text = read_text(
        folder / SUMS_FILE, f"Without it the export is not complete. {_AGAIN}"
    )
    listed = [line.split("  ", 1) for line in text.splitlines()]
    if not listed or any(len(line) != 2 for line in listed):
        raise UsageError(
            f"{folder / SUMS_FILE} must hold a hash and a name per line. {_AGAIN}"
        )

    for expected, name in listed:
        path = folder / name
        if not path.is_file():
            raise UsageError(
                f"An exported folder must hold {name}. {folder} lacks it. {_AGAIN}"
            )

        if file_sha256(path) != expected:
            raise UsageError(
                f"An exported folder's files must be as they were written. {path} has "
                f"changed: its SHA-256 is not the one in {SUMS_FILE}. {_AGAIN}"
            )

    model = folder / MODEL_FILES[exported_runtime(folder)]
    paths = [path for path in [model, *model.rglob("*")] if not path.is_dir()]
    paths += [folder / SPEC_FILE, folder / ALPHABET_FILE]
    if (folder / LEXICON_FILE).exists():
        paths.append(folder / LEXICON_FILE)

    # A list that leaves out the model would check nothing.
    needed = {path.relative_to(folder).as_posix() for path in paths}
    if missing := sorted(needed - {name for _, name in listed}):
        rule = f"{folder / SUMS_FILE} must hold the hashes of {', '.join(missing)}."
        raise UsageError(f"{rule} {_AGAIN}")
