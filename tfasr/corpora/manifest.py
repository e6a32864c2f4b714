"""Which of a corpus's utterances are kept, and the reason for each that is not."""

import collections
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfasr.alphabet import Alphabet
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance
from tfasr.durable import write_whole

TOO_LONG = "longer than max_duration_s"


@dataclass(frozen=True)
class Selection:
    """The utterances kept, those left out on purpose, and those that are bad.

    Attributes:
        kept: sorted by id.
        too_long: left out because the experiment cuts at a duration; they are not faults.
        bad: faults of the corpus, each with its reason.
    """

    kept: list[Utterance]
    too_long: list[Rejection]
    bad: list[Rejection]


def ctc_frames_needed(labels: Sequence[int]) -> int:
    """Returns the fewest frames on which CTC has a path: a blank stands between equal labels."""
    return len(labels) + sum(a == b for a, b in zip(labels, labels[1:], strict=False))


def select(
    corpus: CorpusSplit,
    alphabet: Alphabet,
    *,
    output_frames: Callable[[float], int],
    max_duration_s: float = math.inf,
) -> Selection:
    """Sorts a corpus split into what is kept, too long, and bad.

    Args:
        corpus: what a corpus reader found.
        alphabet: transcripts must be written in it.
        output_frames: frames that the model's front end makes of so many seconds.
        max_duration_s: longer utterances are left out.
    """
    kept, too_long, bad = [], [], list(corpus.rejections)
    for utterance in corpus.utterances:
        fault = text_fault(utterance, alphabet)
        if utterance.duration_s > max_duration_s:
            detail = f"{utterance.duration_s:.2f} s > {max_duration_s:.2f} s"
            too_long.append(Rejection(utterance.id, TOO_LONG, detail))
        elif fault is not None:
            bad.append(fault)
        else:
            fault = length_fault(utterance, alphabet, output_frames(utterance.duration_s))
            if fault is None:
                kept.append(utterance)
            else:
                bad.append(fault)
    return Selection(kept, too_long, bad)


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
    where = f"{utterance.duration_s:.3f} s leave {max(frames, 0)} frames: {utterance.audio_path}"
    if frames < 1:
        return Rejection(utterance.id, "too short for the model's convolution", where)
    needed = ctc_frames_needed(alphabet.encode(utterance.text))
    if frames < needed:
        return Rejection(utterance.id, "no CTC path", f"{where}, {needed} needed")
    return None


def reasons(rejections: Iterable[Rejection]) -> dict[str, int]:
    """Returns how often each reason stands, the most frequent first."""
    return dict(collections.Counter(r.reason for r in rejections).most_common())


def write_dropped(path: Path, too_long: list[Rejection], bad: list[Rejection]) -> None:
    """Writes ``dropped.json``: the counts by reason, then every utterance left out."""
    content = {
        "too_long": len(too_long),
        "bad": len(bad),
        "reasons": reasons([*too_long, *bad]),
        "utterances": [vars(rejection) for rejection in [*too_long, *bad]],
    }
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
