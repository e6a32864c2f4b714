"""Where the words of a hypothesis are: its CTC alignment."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.recognising.results import Word


@dataclass(frozen=True)
class LabelSpan:
    """A label and the frames that it is written in."""

    label: int  # a class, not the blank
    start: int  # its first frame
    end: int  # the frame behind its last


def aligned_words(
    text: str, log_probs: np.ndarray, alphabet: Alphabet, first_s: float, step_s: float
) -> list[Word]:
    """Returns the words of a hypothesis with their times and confidences.

    A word reaches from the first frame of its first character to the last of its last one. CTC
    models write a character in a few frames anywhere in its sound, so that times are some frames
    off, and the time between words belongs to none.

    Args:
        text: of the hypothesis, in plain spelling.
        log_probs: float32 ``(frames, classes)``, natural logarithms, blank last.
        alphabet: of the classes.
        first_s: where the first frame's share of the time begins.
        step_s: seconds from one frame to the next.
    """
    spans = _best_path(text, log_probs, alphabet)
    if spans is None:
        spans = align(alphabet.encode(" ".join(text.split())), log_probs, alphabet)
    return [
        Word(
            "".join(alphabet.characters[span.label] for span in word),
            first_s + word[0].start * step_s,
            first_s + word[-1].end * step_s,
            _confidence(word, log_probs),
        )
        for word in _words(spans, alphabet)
    ]


def path_spans(path: np.ndarray, blank_id: int) -> list[LabelSpan]:
    """Returns the labels of a path ``(frames,)`` of classes, repeats and blanks removed."""
    if not len(path):
        return []
    starts = np.flatnonzero(np.append(True, path[1:] != path[:-1]))
    ends = np.append(starts[1:], len(path))
    return [
        LabelSpan(int(path[start]), int(start), int(end))
        for start, end in zip(starts, ends, strict=True)
        if path[start] != blank_id
    ]


def _best_path(text: str, log_probs: np.ndarray, alphabet: Alphabet) -> list[LabelSpan] | None:
    """Returns the most probable path of all where it spells the text: then none is better."""
    spans = path_spans(log_probs.argmax(axis=1), alphabet.blank_id)
    spelled = alphabet.decode([span.label for span in spans])
    return spans if spelled.split() == text.split() else None


def align(labels: list[int], log_probs: np.ndarray, alphabet: Alphabet) -> list[LabelSpan]:
    """Returns the most probable way to write labels into frames, each label's frames.

    A separator may be left out where a blank stands between its equal neighbours, as a decoder may
    have done, too.

    Args:
        labels: classes, no blanks; a text as `Alphabet.encode` spells it.
        log_probs: float32 ``(frames, classes)``.
        alphabet: names the blank and the separator.

    Raises:
        ValueError: if there are too few frames for the labels.
    """
    if not labels:
        return []
    states = np.full(2 * len(labels) + 1, alphabet.blank_id)
    states[1::2] = labels
    separator = -1 if alphabet.separator is None else alphabet.characters.index(alphabet.separator)
    number = np.arange(len(states))
    is_label = number % 2 == 1
    # From two before: no blank between different labels. From three before, a blank: no separator.
    two = is_label & (number >= 2) & (states != np.roll(states, 2))
    three = is_label & (number >= 3) & (np.roll(states, 2) == separator)
    path = _viterbi(log_probs[:, states], two, three)
    return _spans_of_states(path, states)


def _viterbi(scores: np.ndarray, two: np.ndarray, three: np.ndarray) -> np.ndarray:
    """Returns the state of each frame on the best path ``(frames,)`` of scores (frames, states).

    ``two`` and ``three`` say which states can follow the one two or three before them.
    """
    count = scores.shape[1]
    best = np.full(count, -np.inf)
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
            f"There must be enough frames for the labels. Received: {len(scores)} frames, "
            f"{count // 2} labels."
        )
    state = count - 1 - int(best[-2] > best[-1])
    path = np.empty(len(scores), np.int64)
    for frame in range(len(scores) - 1, -1, -1):
        path[frame] = state
        state -= before[frame, state]
    return path


def _spans_of_states(path: np.ndarray, states: np.ndarray) -> list[LabelSpan]:
    changes = np.flatnonzero(np.append(True, path[1:] != path[:-1]))
    ends = np.append(changes[1:], len(path))
    return [
        LabelSpan(int(states[path[start]]), int(start), int(end))
        for start, end in zip(changes, ends, strict=True)
        if path[start] % 2 == 1
    ]


def _words(spans: list[LabelSpan], alphabet: Alphabet) -> Iterator[list[LabelSpan]]:
    """Yields the spans of each word's characters, separators left out."""
    word: list[LabelSpan] = []
    for span in spans:
        character = alphabet.characters[span.label]
        if character.isspace():
            if word:
                yield word
            word = []
        elif character != alphabet.separator:
            word.append(span)
    if word:
        yield word


def _confidence(word: list[LabelSpan], log_probs: np.ndarray) -> float:
    best = [float(log_probs[span.start : span.end, span.label].max()) for span in word]
    return min(math.exp(sum(best) / len(best)), 1.0)
