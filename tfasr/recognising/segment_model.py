"""From a recording's segments to words: features, log-probabilities, decoder, alignment."""

import numpy as np

from tfasr.data.numpy_features import expect_many_frames
from tfasr.decoding.choice import make_decoder
from tfasr.recognising.acoustics import Acoustics
from tfasr.recognising.pauses import Segment
from tfasr.recognising.results import Word
from tfasr.recognising.spec import RecogniserSpec
from tfasr.recognising.word_times import aligned_words

# After so much, a faster transform is worth the time that it takes to load.
_MANY_FRAMES = 10_000


class SegmentModel:
    """The stages that each segment passes, one method each."""

    def __init__(self, spec: RecogniserSpec, acoustics: Acoustics):
        self.spec = spec
        self._acoustics = acoustics
        self.decoder = make_decoder(spec.decoder, spec.alphabet, spec.lexicon)
        self._frames = 0

    @property
    def batches_at_once(self) -> int:
        """How many batches may go through the model at the same time."""
        return self._acoustics.batches_at_once

    def features(self, segment: Segment) -> np.ndarray:
        """Returns a segment's normalised features, float32 ``(frames, num_features)``."""
        features = self.spec.heard(segment.samples)
        self._frames += len(features)
        if self._frames > _MANY_FRAMES > self._frames - len(features):
            expect_many_frames()
        return features

    def log_probs(self, features: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the log-probabilities of segments, and their valid output frames.

        The features of each ``(frames, num_features)`` must be enough for an output frame.
        """
        batch, lengths = padded(features)
        frames = np.array([self.spec.output_frames(int(length)) for length in lengths])
        return self._acoustics.log_probs(batch, lengths), frames

    def words(
        self, segments: list[Segment], log_probs: np.ndarray, lengths: np.ndarray
    ) -> list[list[Word]]:
        """Returns, for each of a batch's segments, the words that are its own.

        Log-probabilities are ``(batch, output frames, classes)``, lengths valid output frames.
        """
        words_of_segments = []
        hypotheses = self.decoder.decode(log_probs, lengths)
        for segment, hypothesis, scores, length in zip(
            segments, hypotheses, log_probs, lengths, strict=True
        ):
            words = aligned_words(
                hypothesis.text,
                scores[:length],
                self.spec.alphabet,
                segment.start_s + self.spec.first_frame_s,
                self.spec.frame_step_s,
            )
            words_of_segments.append([word for word in words if _belongs(word, segment)])
        return words_of_segments


def _belongs(word: Word, segment: Segment) -> bool:
    return segment.from_s <= (word.start_s + word.end_s) / 2 < segment.to_s


def padded(features: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns features right-padded with 0 ``(batch, frames, num_features)``, and their frames."""
    lengths = np.array([len(one) for one in features], np.int32)
    batch = np.zeros((len(features), lengths.max(), features[0].shape[1]), np.float32)
    for row, one in zip(batch, features, strict=True):
        row[: len(one)] = one
    return batch, lengths
