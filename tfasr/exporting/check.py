"""Checks an exported recogniser against the run's model, and writes its model card."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr._version import __version__
from tfasr.alphabet import Alphabet
from tfasr.data.batches import BatchSource
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.errors import RunError, UsageError
from tfasr.recognising.spec import Acoustics, RecogniserSpec, padded
from tfasr.reports.charges import measured_energy
from tfasr.scoring.errors import Scored, Transcript, score
from tfasr.scoring.summary import CONFIDENCE, RateSummary
from tfasr.tta.run import Run, load_run

MOST_DIFFERENCE = 1e-3  # allowed for float32 log-probabilities, because of rounding
_SMALLEST = -20.0  # smaller log-probabilities make no difference to any decoder
_PADDED_FRAMES = (47, 21, 32)  # output frames of each utterance in a batch of noise
UNKNOWN = "not recorded"
WORD_LIMITS = (
    "Its confidences are posteriors of the model, not calibrated probabilities; word times are "
    "those of its CTC alignment, one or two tenths of a second off."
)
"""For the model card. Measured on synthetic speech with ``benchmarks/word_times.py``."""


@dataclass(frozen=True)
class SplitOutputs:
    scored: list[Scored]
    log_probs: list[np.ndarray]  # (frames, classes) for each utterance
    audio_s: float
    thread_s: float  # processor time of this thread, in which ONNX Runtime and LiteRT compute

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
    """Runs a model on a split; calls ``advance`` with each batch's number of utterances."""
    decoder = GreedyDecoder(alphabet)
    texts: dict[int, str] = {}
    scores_of: dict[int, np.ndarray] = {}
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
            texts[position], scores_of[position] = " ".join(hypothesis.text.split()), scores[:count]
        advance(len(hypotheses))
    utterances = source.split.utterances
    transcripts = [Transcript(u.id, u.text, texts[u.position], u.speaker) for u in utterances]
    log_probs = [scores_of[utterance.position] for utterance in utterances]
    return SplitOutputs(score(transcripts), log_probs, source.split.duration_s, thread_s)


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Returns the largest difference of log-probabilities; those below -20 count as -20."""
    return max(
        float(np.abs(np.maximum(a, _SMALLEST) - np.maximum(b, _SMALLEST)).max(initial=0.0))
        for a, b in zip(first, second, strict=True)
    )


def differing_texts(first: SplitOutputs, second: SplitOutputs) -> int:
    return sum(
        a.transcript.hypothesis != b.transcript.hypothesis
        for a, b in zip(first.scored, second.scored, strict=True)
    )


def check_agrees(of_run: list[np.ndarray], of_export: list[np.ndarray], speech: str) -> None:
    difference = largest_difference(of_run, of_export)
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            f"The exported model must agree with the run's model. Their log-probabilities of "
            f"{speech} differ by up to {difference:.3g}, more than {MOST_DIFFERENCE:g}. Nothing "
            "was written; please report it."
        )


def check_padded(spec: RecogniserSpec, of_run: Acoustics, of_export: Acoustics) -> None:
    """Raises RunError if two models' outputs differ for padded noise of odd numbers of frames."""
    kernel, stride = spec.geometry
    sizes = [(kernel + stride * (n - 1) | 1, spec.features.num_features) for n in _PADDED_FRAMES]
    features, lengths = padded([np.random.default_rng(1).normal(size=size) for size in sizes])
    frames = [spec.output_frames(int(length)) for length in lengths]
    log_probs = [
        [row[:count] for row, count in zip(model.log_probs(features, lengths), frames, strict=True)]
        for model in (of_run, of_export)
    ]
    check_agrees(*log_probs, "a padded batch of noise")


@dataclass(frozen=True)
class CardForm:
    """The parts of a model card that depend on the kind of export, in Markdown."""

    files: str  # names of the files that contain the model
    commands: tuple[str, ...]  # how to use it, one command per line
    streams: bool
    limits: str  # what not to expect of the model's output
    contents: str  # what the files contain


def model_card(
    run_dir: Path,
    spec: RecogniserSpec,
    form: CardForm,
    *,
    split: str,
    rates: RateSummary,
    int8: bool,
    data_licence: str | None,
) -> str:
    """Returns the card; ``rates``: the exported model's error rates on ``split``, greedy."""
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
    lines = [
        "# A speech recogniser",
        "",
        f"A CTC model of the kind `{spec.model}`, exported by tfasr {__version__} to "
        f"{form.files}{' with int8 weights' if int8 else ''}. "
        f"It {'can' if form.streams else 'cannot'} stream.",
        "",
        "```sh",
        *form.commands,
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
        f"and subjects. {form.limits} Do not use it where an error would harm someone.",
        "",
        "## Files",
        "",
        f"{form.contents} `SHA256SUMS` holds the hashes of all files: "
        "`sha256sum --check SHA256SUMS`.",
    ]
    return "\n".join(lines) + "\n"


def _rate(rates: RateSummary, metric: str) -> str:
    by_speaker = getattr(rates, f"{metric}_interval_by_speaker")
    interval = by_speaker or getattr(rates, f"{metric}_interval")
    ends = "too few utterances for an interval"
    if interval is not None:
        ends = f"{CONFIDENCE:.0%}: {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
    return f"{100 * getattr(rates.counts, metric):.2f} % ({ends})"


def _times(run: Run | None) -> list[tuple[str, str]]:
    if run is None or not run.targets:
        return [("time to accuracy", UNKNOWN)]
    return [
        (f"time to {name.upper()} {100 * rate:g} %", run.time_to_accuracy(**{name: rate}).summary)
        for name, rate in run.targets
    ]


def _hardware(run: Run | None) -> str:
    system = (run.system if run is not None else {}).get("system") or {}
    gpus = ", ".join(str(gpu) for gpu in system.get("gpus") or [])
    cores, processor = system.get("cores"), str(system.get("processor") or "")
    processor = f"{cores} cores of {processor}" if cores and processor else processor
    return "; ".join(filter(None, [gpus, processor])) or UNKNOWN


def _energy(run: Run | None) -> str:
    use = None if run is None else measured_energy(run).use(run, math.inf)
    if use is None:
        return UNKNOWN
    return f"{use.total_joules / 3.6e6:.4g} kWh of {', '.join(use.counters)} only"
