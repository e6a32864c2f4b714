"""Which of a corpus's utterances are kept, and the reason for each that is not."""

import math
import operator
from collections.abc import Callable, Sequence

from tfasr.alphabet import Alphabet
from tfasr.corpora.utterance import Rejection, Utterance

TOO_LONG = "longer than max_duration_s"


def ctc_frames_needed(labels: Sequence[int]) -> int:
    """Returns the fewest frames on which CTC has a path: a blank stands between equal labels."""
    return len(labels) + sum(map(operator.eq, labels, labels[1:]))


def fault(
    utterance: Utterance,
    alphabet: Alphabet,
    *,
    output_frames: Callable[[float], int],
    max_duration_s: float = math.inf,
) -> Rejection | None:
    """Returns why an utterance is left out, or None for one to be kept.

    Args:
        alphabet: transcripts must be written in it.
        output_frames: frames that the model's front end makes of so many seconds.
        max_duration_s: longer utterances are left out. That is no fault of theirs: their reason
            is `TOO_LONG`.
    """
    if utterance.duration_s > max_duration_s:
        detail = f"{utterance.duration_s:.2f} s > {max_duration_s:.2f} s"
        return Rejection(utterance.id, TOO_LONG, detail)
    return text_fault(utterance, alphabet) or length_fault(
        utterance, alphabet, output_frames(utterance.duration_s)
    )


def text_fault(utterance: Utterance, alphabet: Alphabet) -> Rejection | None:
    """Returns why a transcript cannot be learnt, or None."""
    if not utterance.text:
        return Rejection(utterance.id, "empty transcript", str(utterance.audio_path))
    foreign = alphabet.foreign_characters(utterance.text)
    if foreign:
        detail = f"{foreign} in {utterance.text!r}"
        return Rejection(utterance.id, "characters outside the alphabet", detail)
    return None


def length_fault(utterance: Utterance, alphabet: Alphabet, frames: int) -> Rejection | None:
    """Returns why so many output frames cannot hold the transcript, or None."""
    needed = ctc_frames_needed(alphabet.encode(utterance.text)) if frames > 0 else 1
    if frames >= needed:
        return None
    where = f"{utterance.duration_s:.3f} s leave {max(frames, 0)} frames: {utterance.audio_path}"
    if frames < 1:
        return Rejection(utterance.id, "too short for the model's convolution", where)
    return Rejection(utterance.id, "no CTC path", f"{where}, {needed} needed")
