"""Whether an exported recogniser says what the run's model says, on the run's own speech."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import BatchSource
from tfasr.decoding.greedy import GreedyDecoder
from tfasr.recognising.acoustics import Acoustics
from tfasr.scoring.alignment import Scored, score
from tfasr.scoring.transcripts import Transcript

_SMALLEST = -20.0  # logarithms: below it a probability is 0 to every decoder


@dataclass(frozen=True)
class Heard:
    """What a model made of a split.

    Attributes:
        scored: its utterances, greedily decoded, with their errors.
        log_probs: of each utterance ``(frames, classes)``.
        audio_s: seconds of its audio.
        thread_s: seconds of the processor in which the calling thread computed them, which is all
            of ONNX Runtime's and LiteRT's work, and a part of Keras's.
    """

    scored: list[Scored]
    log_probs: list[np.ndarray]
    audio_s: float
    thread_s: float

    @property
    def audio_s_per_s(self) -> float:
        """Seconds of audio that the model alone hears in a second of the processor."""
        return self.audio_s / max(self.thread_s, 1e-9)


def hear(
    source: BatchSource, acoustics: Acoustics, alphabet: Alphabet, output_lengths: Callable
) -> Heard:
    """Returns what a model makes of a split.

    Args:
        source: of the split.
        acoustics: the model.
        alphabet: of the classes.
        output_lengths: from feature frames to output frames.
    """
    decoder = GreedyDecoder(alphabet)
    found: dict[int, tuple[str, np.ndarray]] = {}
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
            found[position] = (" ".join(hypothesis.text.split()), scores[:count])
    transcripts = [
        Transcript(u.id, u.text, found[u.position][0], u.speaker) for u in source.split.utterances
    ]
    log_probs = [found[utterance.position][1] for utterance in source.split.utterances]
    return Heard(score(transcripts), log_probs, source.split.duration_s, thread_s)


def largest_difference(one: Heard, other: Heard) -> float:
    """Returns how far apart two models' log-probabilities are at most, where they matter."""
    return max(
        float(np.abs(np.maximum(a, _SMALLEST) - np.maximum(b, _SMALLEST)).max(initial=0.0))
        for a, b in zip(one.log_probs, other.log_probs, strict=True)
    )


def differing_texts(one: Heard, other: Heard) -> int:
    """Returns how many utterances' texts differ."""
    return sum(
        a.transcript.hypothesis != b.transcript.hypothesis
        for a, b in zip(one.scored, other.scored, strict=True)
    )


def session(graph: bytes) -> Any:
    """Returns what runs a graph, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
