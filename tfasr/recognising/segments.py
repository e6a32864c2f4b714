"""Recognises recordings in batches of segments, and streams of speech.

This is the way from samples to words. Recordings are cut in pauses (`PauseCutter`),
segments go through features, model and decoder in separate threads
(`recognised_in_batches`), and the decoded text is aligned with the model's outputs for
word times (`aligned_words`). A `Stream` does the same frame by frame.
"""

import dataclasses
import itertools
import math
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.alphabet import WORD_START, Alphabet, is_unspaced
from tfasr.data.features import expect_many_frames, numpy_features
from tfasr.decoding.choice import make_decoder
from tfasr.decoding.decoder import Decoder, GreedyDecoder
from tfasr.recognising.spec import (
    Acoustics,
    RecogniserSpec,
    StreamResult,
    Word,
    as_samples,
    padded,
)

if TYPE_CHECKING:
    from tfasr.decoding.hot_words import HotWords
    from tfasr.decoding.language_models import KenlmModel

# The longest segment, in seconds: about the longest training utterance
# (ShardConfig.max_duration_s), beyond which models recognise less well.
LONGEST_S = 16.0

# Both segments contain so many seconds of each side of a cut, to keep words whole.
CONTEXT_S = 0.5

# Recordings are cut in a quiet stretch of this length, longer than a stop consonant.
_PAUSE_S = 0.3

# For stretches of this length, loudness is measured.
_BLOCK_S = 0.01

# From so many feature frames on, importing a faster Fourier transform saves time.
_MANY_FRAMES = 10_000

# How many batches of segments are read and sorted by length together: fewer at first,
# so that the model can start early.
_BATCHES_SORTED = (1, 2, 4)

# How many segments are read ahead of the model.
_READ_AHEAD = 32

# Comes after the last segment, between threads.
_END = object()

# The samples of a segment whose features are computed.
_NOTHING = np.zeros(0, np.float32)

# A segment's batch and row in the batch; None if the segment is too short for an output
# frame.
_Place = tuple[Future, int] | None


@dataclass(frozen=True)
class Segment:
    """A part of a recording that goes through the model in one piece.

    Attributes:
        samples: float32 (samples,).
        start_s: time of the first sample in the recording.
        from_s: words before this time belong to the previous segment.
        to_s: words from this time on belong to the next segment.
    """

    samples: np.ndarray
    start_s: float
    from_s: float
    to_s: float


class PauseCutter:
    """Cuts a recording that arrives in blocks into segments of at most ``longest_s``.

    A longer recording is cut in a pause: in the middle of the quietest 0.3 s in the
    second half of ``longest_s``. Each segment extends half a second beyond its cuts, so
    that both neighbours contain the whole of a word at a cut. The word belongs to the
    segment in which its middle is.

    Args:
        sample_rate_hz: of the blocks.
        longest_s: of a segment, with its context.
    """

    def __init__(self, sample_rate_hz: int, longest_s: float = LONGEST_S):
        self._rate_hz = sample_rate_hz
        self._longest = int(longest_s * sample_rate_hz)
        # Less for very short segments, which tests use.
        self._context = int(min(CONTEXT_S, longest_s / 8) * sample_rate_hz)
        self._blocks: list[np.ndarray] = []
        self._held = 0
        self._start = 0  # position of the first held sample in the recording
        # Position of the last cut, from which words belong to the next segment.
        self._from = 0

    def push(self, samples: np.ndarray) -> list[Segment]:
        """Adds samples; returns the segments that are complete now."""
        self._blocks.append(samples)
        self._held += len(samples)
        segments = []

        while self._held > self._longest:
            segments.append(self._cut())

        return segments

    def finish(self) -> list[Segment]:
        """Returns the last segment, unless there are no samples."""
        held = self._all()
        if not len(held):
            return []

        return [self._segment(held, self._from, None)]

    def _cut(self) -> Segment:
        """Cuts off the first segment of what is held; its context is held on."""
        held = self._all()
        begun = self._from - self._start
        # So that a segment is at most `longest_s` long with its context.
        fits = self._longest - self._context
        cut = _quietest(held[:fits], (begun + fits) // 2, self._rate_hz)
        segment = self._segment(
            held[: cut + self._context], self._from, self._start + cut
        )
        self._from = self._start + cut
        dropped = max(cut - self._context, 0)
        # A copy, so that the samples before it can be freed.
        self._blocks = [held[dropped:].copy()]
        self._held -= dropped
        self._start += dropped

        return segment

    def _segment(self, samples: np.ndarray, start: int, end: int | None) -> Segment:
        """Returns held samples as a segment, with its words between two positions.

        Args:
            samples: from the first held one on.
            start: the position in the recording from which words count; 0 for its
                beginning.
            end: the position from which they don't; None for the recording's end.
        """
        from_s = -np.inf
        if start:
            from_s = start / self._rate_hz

        to_s = np.inf
        if end is not None:
            to_s = end / self._rate_hz

        return Segment(samples, self._start / self._rate_hz, from_s, to_s)

    def _all(self) -> np.ndarray:
        """Returns all held samples as one array."""
        if len(self._blocks) != 1:
            self._blocks = [np.concatenate([np.zeros(0, np.float32), *self._blocks])]

        return self._blocks[0]


def cut_segments(
    blocks: Iterable[np.ndarray],
    sample_rate_hz: int,
    count: Callable[[float], None],
) -> Iterator[Segment]:
    """Cuts a recording into segments as it is read.

    Args:
        blocks: its samples, float32 ``(samples,)``.
        sample_rate_hz: of the samples.
        count: is called with each block's seconds.
    """
    cutter = PauseCutter(sample_rate_hz)
    for block in blocks:
        count(len(block) / sample_rate_hz)
        yield from cutter.push(block)

    yield from cutter.finish()


def _quietest(samples: np.ndarray, earliest: int, rate_hz: int) -> int:
    """Returns the middle of the quietest stretch of `_PAUSE_S`, as a position.

    Args:
        samples: float32 ``(samples,)``.
        earliest: the first position that the middle may be at.
        rate_hz: of the samples.
    """
    block = max(int(_BLOCK_S * rate_hz), 1)
    count = len(samples) // block
    power = np.square(
        samples[: count * block].reshape(count, block), dtype=np.float64
    ).mean(axis=1)
    # The logarithm, so that one loud block doesn't outweigh many quiet ones.
    level = np.log(power + 1e-9)
    width = min(int(_PAUSE_S / _BLOCK_S), count)
    # Sums of stretches are differences of these.
    sums = np.cumsum(np.append(0.0, level))
    stretches = sums[width:] - sums[:-width]  # stretch i: blocks i .. i + width
    first = min(max(earliest // block - width // 2, 0), len(stretches) - 1)
    # Of several equally quiet ones (digital silence), the last, so that segments are
    # long.
    from_last = np.round(stretches[first:][::-1], 6)
    last_quietest = len(stretches) - 1 - int(np.argmin(from_last))

    return (last_quietest + width // 2) * block


@dataclass(frozen=True)
class LabelSpan:
    """The frames in which a path stays in one label.

    Attributes:
        label: a class, not the blank.
        start: its first frame.
        end: the frame after its last.
    """

    label: int
    start: int
    end: int


def aligned_words(
    text: str,
    log_probs: np.ndarray,
    alphabet: Alphabet,
    first_s: float,
    step_s: float,
) -> list[Word]:
    """Returns the words of a hypothesis with times and confidences.

    A word extends from the first frame of its first character to the last frame of its
    last one. CTC models emit a character for a few frames somewhere in its sound, so
    times are a few frames off, and the time between words belongs to no word.

    Args:
        text: of the hypothesis.
        log_probs: the model's, ``(frames, classes)``.
        alphabet: of the classes.
        first_s: when the first frame begins.
        step_s: a frame's length.
    """
    spans = path_spans(log_probs.argmax(axis=1), alphabet.blank_id)
    # The most probable path is the best alignment if it spells the text.
    if alphabet.decode([span.label for span in spans]).split() != text.split():
        labels = alphabet.encode(" ".join(text.split()))
        try:
            spans = align(labels, log_probs, alphabet)
        except ValueError:
            # A dictionary completes a last word that only one word can become, even if
            # the frames don't suffice for it. Its words get the times of the whole
            # segment.
            spans = [LabelSpan(label, 0, len(log_probs)) for label in labels]

    return [
        Word(
            alphabet.decode([span.label for span in word]),
            first_s + word[0].start * step_s,
            first_s + word[-1].end * step_s,
            _confidence(word, log_probs),
        )
        for word in _words(spans, alphabet)
    ]


def path_spans(path: np.ndarray, blank_id: int) -> list[LabelSpan]:
    """Returns a path's labels, without repeats and blanks.

    >>> [span.label for span in path_spans(np.array([3, 0, 0, 3, 1, 1]), blank_id=3)]
    [0, 1]

    Args:
        path: a class per frame, int ``(frames,)``.
        blank_id: the class of the blank.
    """
    return [
        LabelSpan(number, *span) for number, *span in _runs(path) if number != blank_id
    ]


def _runs(path: np.ndarray) -> list[tuple[int, int, int]]:
    """Returns each run of equal numbers: the number, its first frame, and its end."""
    if not len(path):
        return []

    starts = np.flatnonzero(np.append(True, path[1:] != path[:-1]))
    ends = np.append(starts[1:], len(path))

    return list(zip(path[starts].tolist(), starts.tolist(), ends.tolist(), strict=True))


def align(
    labels: list[int],
    log_probs: np.ndarray,
    alphabet: Alphabet,
) -> list[LabelSpan]:
    """Returns the most probable alignment of labels with one utterance's frames.

    Like decoders, it may skip a separator if a blank separates the equal labels around
    it.

    Args:
        labels: of the text, without blanks.
        log_probs: the model's, ``(frames, classes)``.
        alphabet: of the classes.

    Raises:
        ValueError: if there are too few frames.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section
    4.1 (the states).
    """
    if not labels:
        return []

    # CTC's states: a blank before, between and after the labels.
    states = np.full(2 * len(labels) + 1, alphabet.blank_id)
    states[1::2] = labels
    separator = alphabet.separator_id
    number = np.arange(len(states))
    is_label = number % 2 == 1
    # A path may come from two states before, skipping the blank between different
    # labels, or from three before (a blank), skipping a separator.
    two = is_label & (number >= 2) & (states != np.roll(states, 2))
    three = is_label & (number >= 3) & (np.roll(states, 2) == separator)
    runs = _runs(_viterbi(log_probs[:, states], two, three))

    return [
        LabelSpan(labels[state // 2], *span) for state, *span in runs if state % 2 == 1
    ]


def _viterbi(scores: np.ndarray, two: np.ndarray, three: np.ndarray) -> np.ndarray:
    """Returns the path with the largest sum of scores, a state per frame.

    Args:
        scores: ``(frames, states)``.
        two: marks states that can follow the one two before them.
        three: marks states that can follow the one three before them.

    Raises:
        ValueError: if there are too few frames for any path.
    """
    count = scores.shape[1]
    best = np.full(count, -np.inf)
    # A path begins with a blank or the first label.
    best[:2] = scores[0, :2]
    before = np.zeros(scores.shape, np.int8)
    candidates = np.full((4, count), -np.inf)

    for frame in range(1, len(scores)):
        candidates[0] = best
        candidates[1, 1:] = best[:-1]
        candidates[2, 2:] = np.where(two[2:], best[:-2], -np.inf)
        candidates[3, 3:] = np.where(three[3:], best[:-3], -np.inf)
        before[frame] = candidates.argmax(axis=0)
        best = candidates.max(axis=0) + scores[frame]

    if not np.isfinite(best[-2:]).any():
        raise ValueError(
            f"There must be enough frames for the labels. Received: {len(scores)} "
            f"frames, {count // 2} labels."
        )

    # And ends with the last label or the blank after it.
    state = count - 1 - int(best[-2] > best[-1])
    path = np.empty(len(scores), np.int64)

    for frame in range(len(scores) - 1, -1, -1):
        path[frame] = state
        # int8 holds the step, but not the number of a state in a long text.
        state -= int(before[frame, state])

    return path


def _words(spans: list[LabelSpan], alphabet: Alphabet) -> Iterator[list[LabelSpan]]:
    """Yields each word's spans.

    In scripts without spaces, each character or unit is a word; combining marks belong
    to the character before them.
    """
    word: list[LabelSpan] = []
    alone = False

    for span in spans:
        if span.label == alphabet.separator_id:
            continue

        symbol = alphabet.symbols[span.label]
        is_mark = unicodedata.category(symbol[0])[0] == "M"
        starts = symbol[0] in (" ", WORD_START) or is_unspaced(symbol[0]) or alone

        if word and starts and not is_mark:
            yield word
            word = []

        alone = is_unspaced(symbol[-1]) or (is_mark and alone)
        if symbol not in (" ", WORD_START):
            word.append(span)

    if word:
        yield word


def _confidence(word: list[LabelSpan], log_probs: np.ndarray) -> float:
    """Returns a word's confidence, from 0 to 1.

    It is the geometric mean over the word's labels of each one's highest probability.
    """
    best = [float(log_probs[span.start : span.end, span.label].max()) for span in word]
    return min(math.exp(sum(best) / len(best)), 1.0)


class SegmentModel:
    """The stages of recognising a segment, one method each: features, model, words.

    Each stage is called from its own thread, see `recognised_in_batches`.

    Args:
        spec: describes the recogniser.
        acoustics: its model.
        model: a language model for word beam search; None for none.
        hot_words: expected words with their weights; None for none.

    Attributes:
        spec: see above.
        batches_at_once: how many threads may compute `log_probs`.
        decoder: turns log-probabilities into text.
    """

    def __init__(
        self,
        spec: RecogniserSpec,
        acoustics: Acoustics,
        model: "KenlmModel | None" = None,
        hot_words: "HotWords | None" = None,
    ):
        self.spec = spec
        self._acoustics = acoustics
        self.batches_at_once = acoustics.batches_at_once
        self.decoder = make_decoder(
            spec.decoder,
            spec.alphabet,
            spec.lexicon,
            language_model=model,
            hot_words=hot_words,
        )
        self._frames = 0

    def features(self, segment: Segment) -> np.ndarray:
        """Returns a segment's normalised features, float32 ``(frames, num_features)``."""
        features = self.spec.normalised_features(segment.samples)
        self._frames += len(features)
        if self._frames > _MANY_FRAMES > self._frames - len(features):
            # Once, when the number is first exceeded.
            expect_many_frames()

        return features

    def log_probs(self, features: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns segments' log-probabilities, and numbers of valid output frames.

        Each segment must have at least one output frame.
        """
        batch, lengths = padded(features)
        frames = np.array([self.spec.output_frames(int(length)) for length in lengths])

        return self._acoustics.log_probs(batch, lengths), frames

    def words(
        self,
        segments: list[Segment],
        log_probs: np.ndarray,
        lengths: np.ndarray,
    ) -> list[list[Word]]:
        """Returns the words of each segment, without those that are its neighbours'.

        Args:
            segments: those of a batch.
            log_probs: ``(segments, output frames, classes)``, right-padded.
            lengths: each segment's output frames.
        """
        words_of_segments = []
        hypotheses = self.decoder.decode(log_probs, lengths)
        alphabet = self.spec.alphabet
        step_s = self.spec.frame_step_s
        items = zip(segments, hypotheses, log_probs, lengths, strict=True)

        for segment, hypothesis, scores, length in items:
            first_s = segment.start_s + self.spec.first_frame_s
            words = aligned_words(
                hypothesis.text,
                scores[:length],
                alphabet,
                first_s,
                step_s,
            )
            inside = []

            for word in words:
                middle_s = (word.start_s + word.end_s) / 2
                if segment.from_s <= middle_s < segment.to_s:
                    inside.append(word)

            words_of_segments.append(inside)

        return words_of_segments


def recognised_in_batches(
    model: SegmentModel,
    segments: Iterable[tuple[Any, Segment]],
    batch_size: int,
) -> Iterator[tuple[Any, list[Word]]]:
    """Yields each segment's key and words, in the order of the segments.

    One thread reads and computes features, another decodes, and as many as the model
    can use compute its outputs. At most a few hundred segments are in memory. An error
    while iterating over ``segments`` is raised after everything before it has been
    yielded.

    Args:
        model: the stages.
        segments: pairs of a key, such as the recording's number, and a segment.
        batch_size: segments that the model gets together.
    """
    hearing = ThreadPoolExecutor(model.batches_at_once, thread_name_prefix="model")
    decoding = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    def hear(batch: list[tuple]) -> Future:
        """Computes a batch's log-probabilities; returns its future words."""
        log_probs, frames = model.log_probs([features for _, _, features in batch])
        return decoding.submit(
            model.words,
            [item[1] for item in batch],
            log_probs,
            frames,
        )

    def begin(group: list[tuple]) -> tuple[list[Any], list[_Place]]:
        """Submits a group's batches; returns keys and the places of future results."""
        long_enough = [
            n for n, item in enumerate(group) if model.spec.output_frames(len(item[2]))
        ]
        # Starts with the longest, so that all threads end at about the same time.
        long_enough.sort(key=lambda n: len(group[n][2]), reverse=True)
        places: list[_Place] = [None] * len(group)
        each = math.ceil(len(long_enough) / model.batches_at_once)
        size = max(min(batch_size, each), 1)

        for start in range(0, len(long_enough), size):
            numbers = long_enough[start : start + size]
            future = hearing.submit(hear, [group[n] for n in numbers])
            for row, n in enumerate(numbers):
                places[n] = (future, row)

        return [item[0] for item in group], places

    try:
        waiting: list[tuple[list[Any], list[_Place]]] = []
        for group in _groups(_read_ahead(model, segments), batch_size):
            waiting.append(begin(group))
            # The model computes this group while the next is being read.
            if len(waiting) > 1:
                yield from _finished(*waiting.pop(0))

        for keys, places in waiting:
            yield from _finished(keys, places)
    finally:
        for executor in (hearing, decoding):
            # Waits for running work; drops the rest.
            executor.shutdown(cancel_futures=True)


def _read_ahead(model: SegmentModel, segments: Iterable) -> Iterator[tuple]:
    """Yields key, segment and features, which a thread computes ahead.

    If reading fails, the error is raised after all that was read before.
    """
    # Bounded, so that reading doesn't run far ahead of the model.
    queue: Queue = Queue(_READ_AHEAD)
    stopped = threading.Event()

    def put(item: Any) -> bool:
        """Waits for a place in the queue; returns False if nobody reads it any more."""
        while not stopped.is_set():
            try:
                queue.put(item, timeout=0.1)
            # Checks again whether to stop.
            except Full:
                continue

            return True

        return False

    def read() -> None:
        """Reads all segments into the queue, and ends it with `_END` or an error."""
        try:
            for key, segment in segments:
                # Drops the samples, which are no longer needed and take more memory
                # than features.
                without_samples = dataclasses.replace(segment, samples=_NOTHING)
                if not put((key, without_samples, model.features(segment))):
                    return

            put(_END)
        # Raised below, in the caller's thread.
        except BaseException as error:  # noqa: BLE001
            put(error)

    thread = threading.Thread(target=read, name="reader", daemon=True)
    thread.start()

    try:
        while (item := queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item

            yield item
    finally:
        stopped.set()
        thread.join(timeout=1.0)  # the reader may be waiting for a pipe


def _groups(items: Iterator[tuple], batch_size: int) -> Iterator[list[tuple]]:
    """Yields lists of items, each for a few batches.

    Before an error of ``items`` is raised, the items before it are yielded.
    """
    failure = None
    for batches in itertools.chain(
        _BATCHES_SORTED, itertools.repeat(_BATCHES_SORTED[-1])
    ):
        group: list[tuple] = []
        try:
            for item in itertools.islice(items, batches * batch_size):
                group.append(item)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error

        if group:
            yield group
        if failure is not None:
            raise failure
        if len(group) < batches * batch_size:
            return


def _finished(
    keys: list[Any], places: list[_Place]
) -> Iterator[tuple[Any, list[Word]]]:
    """Yields the keys and words of a group, waiting for the model and the decoder.

    Args:
        keys: of the group's segments.
        places: where each one's words will be.
    """
    for key, place in zip(keys, places, strict=True):
        words = []
        if place is not None:
            future, row = place
            words = future.result().result()[row]

        yield key, words


# How many seconds a stream processes at a time, so that even a chunk of an hour needs
# little memory.
_MOST_S = 5.0


@dataclass(frozen=True)
class EndpointRules:
    """Three rules, any of which ends an utterance; ``math.inf`` switches one off.

    Silence is time in which the most probable class is a blank, a space or a separator.

    Attributes:
        silence_s: so much silence ends it, whether or not there was speech before.
        silence_after_speech_s: so much ends it if there was speech.
        longest_s: length after which it ends in any case.

    Source: sherpa-onnx's rules 1 to 3 with its defaults, which come from Kaldi's.
    """

    silence_s: float = 2.4
    silence_after_speech_s: float = 1.2
    longest_s: float = 20.0


class EndpointDetector:
    """Finds where utterances end, by a model's outputs.

    Args:
        rules: what ends an utterance.
        alphabet: of the model's classes.
        frame_step_s: seconds from one output frame to the next.
    """

    def __init__(self, rules: EndpointRules, alphabet: Alphabet, frame_step_s: float):
        self._rules = rules
        self._step_s = frame_step_s
        # Classes that are no sound.
        marks = (" ", WORD_START, alphabet.separator)
        quiet = [i for i, symbol in enumerate(alphabet.symbols) if symbol in marks]
        self._silent = np.array([*quiet, alphabet.blank_id])
        self.restart()

    def restart(self) -> None:
        """Begins another utterance."""
        self._frames = 0
        self._silence = 0
        self._spoken = False

    def end(self, log_probs: np.ndarray) -> int | None:
        """Returns after how many of these frames the utterance ends; None if it goes on.

        Args:
            log_probs: those that follow the frames of the last call, ``(frames,
                classes)``.
        """
        for frame, silent in enumerate(np.isin(log_probs.argmax(axis=1), self._silent)):
            self._frames += 1
            if silent:
                self._silence += 1
            else:
                self._silence = 0
                self._spoken = True

            silence_s = self._silence * self._step_s
            rules = self._rules

            if (
                silence_s >= rules.silence_s
                or (self._spoken and silence_s >= rules.silence_after_speech_s)
                or self._frames * self._step_s >= rules.longest_s
            ):
                return frame + 1

        return None


class Stream:
    """One stream of speech.

    It keeps what the next frame needs: samples that don't fill a feature frame yet,
    features that the convolution still needs, and the recurrence's state. So
    log-probabilities and texts are the same as for the whole recording, whatever chunks
    it arrives in. After an utterance's end the recurrence starts anew, as for a new
    recording.

    During an utterance the text is what the decoder would return if the utterance ended
    now. A decoder that needs all frames runs only at the end; until then, decoding is
    greedy. Without endpoints only `finish` ends an utterance.

    Args:
        spec: describes the recogniser.
        acoustics: its model.
        decoder: turns log-probabilities into text.
        endpoints: what ends an utterance; None for the stream's end alone.

    Raises:
        UsageError: if the model can't stream.
    """

    def __init__(
        self,
        spec: RecogniserSpec,
        acoustics: Acoustics,
        decoder: Decoder,
        endpoints: EndpointRules | None = None,
    ):
        spec.check_streams()
        self._spec = spec
        self._acoustics = acoustics
        self._decoder = decoder
        self._begin_decoding = getattr(
            decoder, "begin", GreedyDecoder(spec.alphabet).begin
        )
        self._detector = endpoints and EndpointDetector(
            endpoints, spec.alphabet, spec.frame_step_s
        )
        self._samples = np.zeros(0, np.float32)
        self._features = np.zeros((0, spec.features.num_features), np.float32)
        self._begun = 0  # number of the utterance's first feature frame in the stream
        self._begin()

    def _begin(self) -> None:
        """Begins an utterance with the state of a new recording."""
        self._state = self._acoustics.initial_state()
        self._log_probs: list[np.ndarray] = []
        self._frames = 0
        self._decoded = self._begin_decoding()
        self._shown = ""
        if self._detector is not None:
            self._detector.restart()

    def push(self, samples: np.ndarray) -> list[StreamResult]:
        """Adds samples at the model's sample rate.

        Args:
            samples: any number of them, floats in -1..1 or int16.

        Returns:
            The utterances that ended, and the current utterance if its text has
            changed.

        Raises:
            ValueError: if samples are NaN or infinite.
        """
        samples = as_samples(np.asarray(samples))
        results = []
        most = int(_MOST_S * self._spec.features.sample_rate_hz)

        for start in range(0, len(samples), most):
            self._see(samples[start : start + most])
            # Each part's features are freed before the next.
            results += self._hear()

        if self._frames:
            result = self._result(self._decoded.best().text, final=False)
            if result.text != self._shown:
                self._shown = result.text
                results.append(result)

        return results

    @property
    def partial(self) -> str:
        """The text of the current utterance that was returned last."""
        return self._shown

    def finish(self) -> list[StreamResult]:
        """Ends the stream; returns its last utterance, which may be empty."""
        return [self._final()]

    def _see(self, samples: np.ndarray) -> None:
        """Adds samples, and computes the features that they complete."""
        config = self._spec.features
        held = np.concatenate([self._samples, samples])
        frames = numpy_features(held, config)
        # Windows overlap, so more is kept than one step.
        self._samples = held[len(frames) * config.step_samples :]
        self._features = np.concatenate([self._features, self._spec.normalised(frames)])

    def _hear(self) -> list[StreamResult]:
        """Computes the output frames that are possible now; returns ended utterances."""
        kernel, stride = self._spec.geometry
        results = []

        while count := self._spec.output_frames(len(self._features)):
            used = self._features[: kernel + (count - 1) * stride]
            log_probs, state = self._acoustics.continued(used, self._state)
            end = None
            if self._detector is not None:
                end = self._detector.end(log_probs)

            # Frames after the utterance's end belong to the next one.
            taken = count
            if end is not None:
                taken = end

            self._log_probs.append(log_probs[:taken])
            self._decoded.hear(log_probs[:taken])
            self._frames += taken
            self._features = self._features[taken * stride :]

            if end is None:
                self._state = state
                continue

            result = self._final()
            if result.text:
                results.append(result)

            # The next utterance begins with the first frame that this one hasn't used.
            self._begun += self._frames * stride
            self._begin()

        return results

    def _final(self) -> StreamResult:
        """Returns the current utterance as its decoder would decode it as a recording."""
        if hasattr(self._decoder, "begin") or not self._frames:
            return self._result(self._decoded.best().text, final=True)

        frames = np.array([self._frames])
        (hypothesis,) = self._decoder.decode(self.log_probs[None], frames)

        return self._result(hypothesis.text, final=True)

    def _result(self, text: str, final: bool) -> StreamResult:
        """Returns a text as a result, whose words are aligned only on demand.

        Args:
            text: what the decoder returned.
            final: whether the utterance has ended.
        """
        features = self._spec.features
        begun_s = self._begun * features.step_samples / features.sample_rate_hz
        alphabet = self._spec.alphabet
        step_s = self._spec.frame_step_s
        first_s = begun_s + self._spec.first_frame_s
        log_probs = list(self._log_probs)

        def align() -> list[Word]:
            if not log_probs:
                return []

            return aligned_words(
                text,
                np.concatenate(log_probs),
                alphabet,
                first_s,
                step_s,
            )

        return StreamResult(" ".join(text.split()), final, align)

    @property
    def log_probs(self) -> np.ndarray:
        """Log-probabilities of the current utterance, float32 ``(frames, classes)``."""
        classes = self._spec.alphabet.num_classes
        return np.concatenate([np.zeros((0, classes), np.float32), *self._log_probs])
