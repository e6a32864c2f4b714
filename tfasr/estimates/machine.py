"""A machine's speed in a file, so that an estimate can be for a machine elsewhere.

``tfasr doctor --measure --out FILE`` writes it in about a minute: training steps of
three small models, large matrix products, memory bandwidth, the decoder and FLAC.
``tfasr estimate --machine FILE`` measures the same probes here, and scales its trial by
the ratios (`scaled`).
"""

import dataclasses
import io
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tfasr.alphabet import Alphabet
from tfasr.bench.modules import fastest_s, matmul_ceiling
from tfasr.bench.roofline.measure import cpu_bandwidth, gpu_bandwidth
from tfasr.decoding.choice import DecoderConfig, make_decoder
from tfasr.errors import UsageError, received_path
from tfasr.estimates.trial import Trial
from tfasr.kit.files import MOST_JSON_BYTES, read_bytes
from tfasr.kit.process import usable_cores
from tfasr.ledger.intervals import EVALUATION
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.from_gin import fastest_precision
from tfasr.training.memory import on_gpu, synthetic_batch

# The version of the measured values, and their key in the machine's description.
FORMAT = 1
KEY = "measured"

# Seconds of each probe's steps, and of each other measurement.
PROBE_S = 2.0
_PIECE_S = 1.0

# Rows of the square matrices whose products are timed.
_SIZES = (512, 2048)

# Larger than most caches, so that the memory is measured.
_ARRAY_BYTES = 2**28

_REMEDY = "Write it on that machine with tfasr doctor --measure --out FILE."

# Steps of 10 ms to some 0.3 s on two cores: a recipe's step lies between two of them,
# or near one.
PROBES: dict[str, tuple[AcousticModelConfig, int, int]] = {
    "narrow": (
        AcousticModelConfig(
            conv_filters=128,
            conv_stride=4,
            num_lstm_layers=2,
            lstm_units=96,
            bidirectional=True,
        ),
        8,
        300,
    ),
    "middle": (
        AcousticModelConfig(conv_filters=256, num_lstm_layers=3, lstm_units=256),
        16,
        300,
    ),
    "wide": (
        AcousticModelConfig(conv_filters=600, num_lstm_layers=2, lstm_units=800),
        8,
        300,
    ),
}
"""Model, utterances and frames of each probe."""


@dataclass(frozen=True)
class Machine:
    """What was measured on a machine; times in seconds.

    Attributes:
        name: for readers.
        step_s: by precision ("float32" and the fastest) and probe.
        fastest: the precision that recipes take where they take the fastest.
        start_s: building a probe and tracing its first step, the mean.
        decoder_s: of one thread's word beam search through a fixed input.
        flops_per_s: of matrix products, by precision and size.
        bytes_per_s: of the memory, by kind of access.
        flac_audio_s_per_s: seconds of audio that a second decodes; None if not measured.
    """

    name: str
    step_s: dict[str, dict[str, float]]
    fastest: str
    start_s: float
    decoder_s: float
    flops_per_s: dict[str, float] = dataclasses.field(default_factory=dict)
    bytes_per_s: dict[str, float] = dataclasses.field(default_factory=dict)
    flac_audio_s_per_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, with the version of the file."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def rows(self) -> list[tuple[str, str]]:
        """Returns the measurements as names and values for readers."""
        rows = []
        for precision, steps in self.step_s.items():
            spoken = [
                f"{probe} {1000 * seconds:.3g} ms" for probe, seconds in steps.items()
            ]
            rows.append((f"steps, {precision}", ", ".join(spoken)))

        products = [
            f"{name} {rate / 1e9:.3g}" for name, rate in self.flops_per_s.items()
        ]
        rows.append(("products, GFLOP/s", ", ".join(products)))
        moved = [f"{name} {rate / 1e9:.3g}" for name, rate in self.bytes_per_s.items()]
        rows.append(("memory, GB/s", ", ".join(moved)))
        rows.append(
            ("word beam search", f"{1000 * self.decoder_s:.3g} ms for 400 frames")
        )
        rows.append(("FLAC", f"{self.flac_audio_s_per_s or 0:.0f} s of audio per s"))

        return rows

    def step_ratio(self, here: "Machine", step_s: float, precision: str) -> float:
        """Returns how many times as long a step takes on this machine as on ``here``.

        Between probes, the ratio's logarithm is a straight line over that of the time
        here; beyond them it is that of the nearest probe.

        Args:
            here: the machine on which the step was timed.
            step_s: what it takes there.
            precision: of the step. A machine may have another fastest one.
        """
        ours = here.step_s[precision if precision in here.step_s else here.fastest]
        theirs = self.step_s["float32" if precision == "float32" else self.fastest]
        rows = sorted(
            (math.log(ours[name]), math.log(theirs[name] / ours[name])) for name in ours
        )
        x, y = zip(*rows, strict=True)

        return math.exp(float(np.interp(math.log(step_s), x, y)))


def measure(*, name: str = "this machine", only: str | None = None) -> Machine:
    """Measures this machine in about a minute.

    Args:
        name: the machine's name for readers.
        only: leaves out all that an estimate in this precision doesn't need.
    """
    fastest = fastest_precision()
    precisions = dict.fromkeys(("float32", fastest) if only is None else (only,))
    began = time.perf_counter()
    calls = {
        (precision, probe): _step(probe, precision)
        for precision in precisions
        for probe in PROBES
    }
    start_s = (time.perf_counter() - began) / len(calls)

    step_s: dict[str, dict[str, float]] = {}
    for (precision, probe), call in calls.items():
        step_s.setdefault(precision, {})[probe] = fastest_s(call, PROBE_S)

    machine = Machine(name, step_s, fastest, start_s, _decoder_s())
    if only is not None:
        return machine

    bandwidth = gpu_bandwidth if on_gpu() else _processor_bandwidth

    return dataclasses.replace(
        machine,
        flops_per_s={
            f"{precision} {size}": matmul_ceiling(
                precision, seconds=_PIECE_S, size=size
            )
            for precision in ("float32", "mixed_bfloat16")
            for size in _SIZES
        },
        bytes_per_s=bandwidth(_ARRAY_BYTES, seconds=_PIECE_S),
        flac_audio_s_per_s=_flac_audio_s_per_s(),
    )


def measured_here() -> dict[str, Any]:
    """Returns `measure`'s fields, for a caller in another process."""
    return dataclasses.asdict(measure())


def _processor_bandwidth(array_bytes: int, seconds: float) -> dict[str, float]:
    """Returns the bandwidth of the memory with all cores that this process may use."""
    return cpu_bandwidth(array_bytes, usable_cores(), seconds)


def _step(probe: str, precision: str):
    """Returns a call that trains a probe's model by one step, traced already."""
    model_config, utterances, frames = PROBES[probe]
    training = TrainingConfig(precision=precision, num_replicas=1)
    experiment = Experiment(model=model_config, training=training)
    batch = synthetic_batch(experiment, utterances, frames)
    model = build_model(experiment, Alphabet(), compiled=True)
    spec = {name: _open_spec(value) for name, value in batch.items()}
    step = model.global_step(spec)

    def call() -> None:
        # `numpy` waits until a value is computed.
        for value in step(batch).values():
            value.numpy()

    call()

    return call


def _open_spec(value):
    """Returns a tensor's spec with all sizes open, as training traces its steps."""
    import tensorflow as tf

    return tf.TensorSpec([None] * value.shape.rank, value.dtype)


def _decoder_s() -> float:
    """Returns the seconds of one thread's word beam search through 400 frames."""
    alphabet = Alphabet()
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((4, 100, alphabet.num_classes)).astype(np.float32)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    lengths = np.full(4, 100, np.int32)
    words = ["one", "two", "three", "four", "five"]
    words += ["six", "seven", "eight", "nine", "ten"]
    config = DecoderConfig(name="word_beam", beam_width=64)
    decoder = make_decoder(config, alphabet, words, 1)

    return fastest_s(lambda: decoder.decode(log_probs, lengths), _PIECE_S)


def _flac_audio_s_per_s() -> float:
    """Returns how many seconds of audio one thread decodes in a second.

    Half a minute of noise is decoded: it compresses worse than speech, so this is the
    least.
    """
    audio_s = 30
    rate = 16_000
    noise = 0.1 * np.random.default_rng(0).standard_normal(audio_s * rate)
    stored = io.BytesIO()
    soundfile.write(stored, noise, rate, format="FLAC")

    def decode() -> None:
        stored.seek(0)
        soundfile.read(stored)

    return audio_s / fastest_s(decode, _PIECE_S)


def read_machine(path: str | Path) -> Machine:
    """Reads a machine's file.

    Raises:
        UsageError: if it is missing, of another version or broken.
    """
    if not Path(path).is_file():
        raise UsageError(f"--machine must be a file. {received_path(path)} {_REMEDY}")
    try:
        content = json.loads(read_bytes(Path(path), MOST_JSON_BYTES))
        measured = content.get(KEY)
        if measured is None:
            raise UsageError(f"{path} holds no measurements of the machine. {_REMEDY}")

        version = measured.pop("format", None)
        if version != FORMAT:
            raise UsageError(
                f"{path} was written by another version of tfasr: its format is {version!r}, "
                f"and this one reads {FORMAT}. {_REMEDY}"
            )

        name = str(content.get("system_name") or Path(path).stem)
        machine = Machine(**{**measured, "name": name})
        _check(machine)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise

        raise UsageError(
            f"{path} isn't a machine's file: {error}. {_REMEDY}"
        ) from error

    return machine


def _check(machine: Machine) -> None:
    """Raises ValueError unless each probe has its times in both precisions."""
    of_probes: Mapping[str, Any] = machine.step_s
    if not {"float32", machine.fastest} <= of_probes.keys():
        raise ValueError(f"it lacks the steps in {machine.fastest} or float32")

    numbers = [machine.start_s, machine.decoder_s]

    for precision, steps in of_probes.items():
        if steps.keys() != PROBES.keys():
            raise ValueError(f"its probes in {precision} must be {', '.join(PROBES)}")

        numbers += steps.values()

    if not all(isinstance(n, int | float) and 0 < n < math.inf for n in numbers):
        raise ValueError("its times must be finite and above 0")


def scaled(trial: Trial, here: Machine, there: Machine, precision: str) -> Trial:
    """Returns the costs that a trial on this machine would have had on another one.

    Steps and forward passes are scaled by the probes, the start by theirs, and the
    rest, which is one thread's work, by the decoder.

    Args:
        trial: was made on this machine.
        here: this machine, measured in the trial's precision.
        there: the other one.
        precision: the trial's.
    """
    step = there.step_ratio(here, trial.step_s, precision)
    thread = there.decoder_s / here.decoder_s
    start = there.start_s / here.start_s
    ratios = dict.fromkeys(EVALUATION, step) | {"train": step, "decode": thread}

    def times(seconds: Mapping[str, float]) -> dict[str, float]:
        return {
            name: value * ratios.get(name, thread) for name, value in seconds.items()
        }

    return dataclasses.replace(
        trial,
        start_s={name: value * start for name, value in trial.start_s.items()},
        later_s=trial.later_s * start,
        per_utterance=times(trial.per_utterance),
        per_evaluation=times(trial.per_evaluation),
        per_checkpoint=times(trial.per_checkpoint),
        step_s=trial.step_s * step,
        step_fixed_s=trial.step_fixed_s * step,
        joules_per_s=None,
    )
