"""Whether an exported recogniser writes what the run's model writes, and the card that says so."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfasr._version import __version__
from tfasr.alphabet import Alphabet
from tfasr.data.batches import BatchSource
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.errors import RunError, UsageError
from tfasr.recognising.spec import Acoustics, RecogniserSpec
from tfasr.reports.charges import measured_energy
from tfasr.scoring.bootstrap import CONFIDENCE
from tfasr.scoring.errors import Scored, Transcript, score
from tfasr.scoring.summary import RateSummary
from tfasr.tta.run import Run, load_run

MOST_DIFFERENCE = 1e-3
"""How far apart float32 log-probabilities may be: rounding, through hundreds of steps."""

_SMALLEST = -20.0  # logarithms: below it a probability is 0 to every decoder
_PADDED_FRAMES = (47, 21, 32)  # output frames of a batch of noise


@dataclass(frozen=True)
class Heard:
    """A model's greedy transcripts of a split."""

    scored: list[Scored]
    log_probs: list[np.ndarray]  # of each utterance (frames, classes)
    audio_s: float
    # Of the processor in which the calling thread computed: all of ONNX Runtime's and LiteRT's
    # work, and a part of Keras's.
    thread_s: float

    @property
    def audio_s_per_s(self) -> float:
        """Seconds of audio that the model alone transcribes per second of processor time."""
        return self.audio_s / max(self.thread_s, 1e-9)


def hear(
    source: BatchSource, acoustics: Acoustics, alphabet: Alphabet, output_lengths: Callable
) -> Heard:
    """Transcribes a split; `output_lengths` maps numbers of feature frames to output frames."""
    decoder = GreedyDecoder(alphabet)
    outputs: dict[int, tuple[str, np.ndarray]] = {}
    thread_s = 0.0
    for batch in source.evaluation():
        features, lengths = (batch[name].numpy() for name in ("features", "feature_lengths"))
        began = time.thread_time()
        log_probs = acoustics.log_probs(features, lengths)
        thread_s += time.thread_time() - began
        frames = np.asarray(output_lengths(lengths))
        hypotheses = decoder.decode(log_probs, frames)
        for position, hypothesis, scores, count in zip(
            batch["positions"].numpy().tolist(), hypotheses, log_probs, frames, strict=True
        ):
            outputs[position] = (" ".join(hypothesis.text.split()), scores[:count])
    transcripts = [
        Transcript(u.id, u.text, outputs[u.position][0], u.speaker) for u in source.split.utterances
    ]
    log_probs = [outputs[utterance.position][1] for utterance in source.split.utterances]
    return Heard(score(transcripts), log_probs, source.split.duration_s, thread_s)


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """The largest difference of two models' log-probabilities above e^-20."""
    return max(
        float(np.abs(np.maximum(a, _SMALLEST) - np.maximum(b, _SMALLEST)).max(initial=0.0))
        for a, b in zip(first, second, strict=True)
    )


def differing_texts(first: Heard, second: Heard) -> int:
    return sum(
        a.transcript.hypothesis != b.transcript.hypothesis
        for a, b in zip(first.scored, second.scored, strict=True)
    )


def check_agrees(of_run: list[np.ndarray], of_export: list[np.ndarray], speech: str) -> None:
    """Raises RunError if log-probabilities differ by more than rounding."""
    difference = largest_difference(of_run, of_export)
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            f"An exported model must write what the run's model writes. Of {speech} their "
            f"log-probabilities differ by up to {difference:.3g}, more "
            f"than {MOST_DIFFERENCE:g}. Nothing was written; please report it."
        )


def check_padded(spec: RecogniserSpec, of_run: Acoustics, of_export: Acoustics) -> None:
    """Raises RunError if two models differ on a padded batch of noise of odd lengths."""
    kernel, stride = spec.geometry
    lengths = np.array([kernel + stride * (n - 1) | 1 for n in _PADDED_FRAMES], np.int32)
    shape = (len(lengths), lengths.max(), spec.features.num_features)
    features = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    for row, length in zip(features, lengths, strict=True):
        row[length:] = 0
    frames = [spec.output_frames(int(length)) for length in lengths]
    heard = [
        [row[:count] for row, count in zip(model.log_probs(features, lengths), frames, strict=True)]
        for model in (of_run, of_export)
    ]
    check_agrees(*heard, "a padded batch of noise")


def session(graph: bytes) -> Any:
    """An ONNX Runtime session with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


UNKNOWN = "not recorded"
WORD_LIMITS = (
    "Its confidences are posteriors of the model, not calibrated probabilities; word times are "
    "those of its CTC alignment, a tenth of a second or two off."
)
"""Of what tfasr says of words, measured on synthetic speech: ``benchmarks/word_times.py``."""


@dataclass(frozen=True)
class CardFacts:
    """Facts of a model card that the run doesn't record."""

    split: str  # the utterances that the rates are of
    rates: RateSummary  # of the exported graph, greedily decoded
    int8: bool  # whether its weights are eight bits wide
    data_licence: str | None  # of the training data


@dataclass(frozen=True)
class CardForm:
    """A model card's text, in Markdown, about the files of one kind of export."""

    files: str  # what holds the model
    commands: tuple[str, ...]  # that use it, a line each
    streams: bool  # whether it can hear speech as it comes
    limits: str  # of what it writes
    contents: str  # of the files


def model_card(run_dir: Path, spec: RecogniserSpec, facts: CardFacts, form: CardForm) -> str:
    """The card as Markdown; what the run doesn't record is shown as "not recorded"."""
    run = _run(run_dir)
    lines = [
        "# A speech recogniser",
        "",
        f"A CTC model of the kind `{spec.model}`, exported by tfasr {__version__} to "
        f"{form.files}{' with int8 weights' if facts.int8 else ''}. "
        f"It {'can' if form.streams else 'cannot'} stream.",
        "",
        "```sh",
        *form.commands,
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _rows(run, spec, facts)),
        "",
        "## Limits",
        "",
        f"It writes nothing but {_characters(spec)}. It has been measured on the split named above "
        "and on nothing else: other microphones, rooms, accents and subjects will be heard worse. "
        f"{form.limits} Do not use it where an error would harm someone.",
        "",
        "## Files",
        "",
        f"{form.contents} `SHA256SUMS` holds the hashes of all files: "
        "`sha256sum --check SHA256SUMS`.",
    ]
    return "\n".join(lines) + "\n"


def _characters(spec: RecogniserSpec) -> str:
    shown = spec.alphabet.characters.replace(spec.alphabet.separator or "", "")
    return f"these {len(shown)} characters: `{shown}`"


def _rows(run: Run | None, spec: RecogniserSpec, facts: CardFacts) -> list[tuple[str, str]]:
    rates = facts.rates
    return [
        ("trained on", _trained_on(run)),
        ("licence of the data", facts.data_licence or UNKNOWN),
        (f"WER on {facts.split}, greedy", _rate(rates.counts.wer, _interval(rates, "wer"))),
        (f"CER on {facts.split}, greedy", _rate(rates.counts.cer, _interval(rates, "cer"))),
        *_times(run),
        ("hardware", _hardware(run)),
        ("energy of the training", _energy(run)),
        ("samples", f"{spec.features.sample_rate_hz} Hz, one channel"),
        ("normalisation of features", spec.features.normalisation),
    ]


def _run(run_dir: Path) -> Run | None:
    try:
        return load_run(run_dir)
    except UsageError:  # a run whose ledger is gone can still be exported
        return None


def _trained_on(run: Run | None) -> str:
    samples = run.fact("train_samples") if run is not None else None
    return UNKNOWN if samples is None else f"{samples} utterances"


def _interval(rates: RateSummary, metric: str) -> tuple[float, float] | None:
    by_speaker = getattr(rates, f"{metric}_interval_by_speaker")
    return by_speaker or getattr(rates, f"{metric}_interval")


def _rate(rate: float, interval: tuple[float, float] | None) -> str:
    ends = "too few utterances for an interval"
    if interval is not None:
        ends = f"{CONFIDENCE:.0%}: {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
    return f"{100 * rate:.2f} % ({ends})"


def _times(run: Run | None) -> list[tuple[str, str]]:
    targets = run.targets if run is not None else []
    if not targets:
        return [("time to accuracy", UNKNOWN)]
    return [
        (f"time to {metric.upper()} {100 * target:g} %", _time(run, metric, target))
        for metric, target in targets
    ]


def _time(run: Run, metric: str, target: float) -> str:
    return run.time_to_accuracy(**{metric: target}).summary


def _hardware(run: Run | None) -> str:
    facts: dict[str, Any] = run.system if run is not None else {}
    system = facts.get("system") or {}
    gpus = [str(gpu) for gpu in system.get("gpus") or []]
    cores = system.get("cores")
    processor = str(system.get("processor") or "")
    parts = [", ".join(gpus), f"{cores} cores of {processor}" if cores and processor else processor]
    return "; ".join(filter(None, parts)) or UNKNOWN


def _energy(run: Run | None) -> str:
    use = None if run is None else measured_energy(run).use(run, math.inf)
    if use is None:
        return UNKNOWN
    return f"{use.total_joules / 3.6e6:.4g} kWh of {', '.join(use.counters)}, and of nothing else"
