"""Measures errors of word times on synthetic speech, whose true times are known.

    python benchmarks/word_times.py --run_dir demo/runs/batch_8 --corpus_dir demo/corpus \
        [--split test] [--format json]

The corpus is synthesised again, and every recording must have the same bytes; espeak-ng
reports the sample at which each word starts. Only correctly recognised words count. The
true end of a word is the next word's start, or the end of the speech. If espeak-ng
joins words ("in the"), it reports only the first one's start; unknown starts and ends
are left out.
"""

import argparse
import ctypes
import json
from dataclasses import dataclass
from pathlib import Path

import espeakng_loader
import numpy as np

import tfasr
from tfasr.corpora.espeak import SAMPLE_RATE_HZ, Library
from tfasr.corpora.synthetic import read_parameters, read_synthetic, spoken_corpus
from tfasr.recognising.spec import Word
from tfasr.scoring.errors import align

# of espeak_EVENT_TYPE
LIST_TERMINATED = 0
WORD = 1
END = 5
WITHIN_MS = (50, 100)


class Event(ctypes.Structure):
    """espeak_EVENT of espeak-ng's speak_lib.h, version 1.52."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # from 1
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_int64),  # a union
    )


class TellingLibrary(Library):
    """espeak-ng, with the starts of the words that it spoke last.

    Attributes:
        beginnings: the first sample of each word, by the index of its first character
            in the text.
        end: the sample after the speech.
    """

    def __init__(self) -> None:
        self.beginnings: dict[int, int] = {}
        self.end = 0
        super().__init__(
            espeakng_loader.get_library_path(), espeakng_loader.get_data_path()
        )

    def _note(self, events) -> None:
        event = ctypes.cast(events, ctypes.POINTER(Event))
        number = 0
        while event[number].type != LIST_TERMINATED:
            if event[number].type == WORD:
                self.beginnings[event[number].text_position - 1] = event[number].sample
            elif event[number].type == END:
                self.end = event[number].sample

            number += 1

    def speak(
        self, text: str, voice: str, rate_wpm: int = 175, pitch: int = 50
    ) -> np.ndarray:
        """Returns samples, see `tfasr.corpora.synthetic.Speaker`."""
        self.beginnings.clear()
        return np.frombuffer(super().speak(text, voice, rate_wpm, pitch), "<i2")


@dataclass(frozen=True)
class TrueWord:
    """A spoken word; a time is None if the synthesiser doesn't report it."""

    word: str
    start_s: float | None
    end_s: float | None


def true_words(
    text: str, library: TellingLibrary, pause_before_s: float
) -> list[TrueWord]:
    """Returns the words that the library has just spoken."""
    places = [
        place for place, _ in enumerate(text) if place == 0 or text[place - 1] == " "
    ]
    starts = [library.beginnings.get(place) for place in places]

    def seconds(sample: int | None) -> float | None:
        if sample is None:
            return None

        return pause_before_s + sample / SAMPLE_RATE_HZ

    return [
        TrueWord(word, seconds(start), seconds(end))
        for word, start, end in zip(
            text.split(), starts, [*starts[1:], library.end], strict=True
        )
    ]


def errors_ms(
    spoken_words: list[TrueWord], recognised: list[Word]
) -> tuple[list[float], list[float]]:
    """Returns by how much correctly recognised words start and end too late."""
    starts = []
    ends = []
    true = iter(spoken_words)
    hypotheses = iter(recognised)
    reference = " ".join(word.word for word in spoken_words)

    for expected, other in align(reference, " ".join(word.text for word in recognised)):
        at = None
        word = None
        if expected is not None:
            at = next(true)

        if other is not None:
            word = next(hypotheses)

        if expected != other or at is None or word is None:
            continue

        if at.start_s is not None:
            starts.append(1000 * (word.start_s - at.start_s))

        if at.end_s is not None:
            ends.append(1000 * (word.end_s - at.end_s))

    return starts, ends


def summary(errors: list[float]) -> dict[str, float]:
    """Returns a table's statistics of errors in milliseconds."""
    late = np.array(errors)
    size = np.abs(late)
    return {
        "words": len(late),
        "mean_ms": float(late.mean()),
        "median_off_ms": float(np.median(size)),
        "p90_off_ms": float(np.percentile(size, 90)),
        **{f"within_{ms}_ms": float((size <= ms).mean()) for ms in WITHIN_MS},
    }


def measured(recogniser, corpus_dir: Path, split: str) -> dict[str, dict[str, float]]:
    """Returns the errors of the starts and ends of a split's words."""
    library = TellingLibrary()
    recordings = iter(read_synthetic(corpus_dir, split).utterances)
    starts = []
    ends = []

    for spoken_split, spoken in spoken_corpus(read_parameters(corpus_dir), library):
        if spoken_split != split:
            continue

        path = next(recordings).audio_path
        if Path(path).read_bytes() != spoken.wav:
            raise SystemExit(
                f"{path} was made by another espeak-ng or NumPy: make it anew."
            )

        spoken_words = true_words(spoken.text, library, spoken.pause_before_s)
        of_starts, of_ends = errors_ms(spoken_words, recogniser.transcribe(path).words)
        starts += of_starts
        ends += of_ends

    return {"begins": summary(starts), "ends": summary(ends)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run_dir", type=Path, required=True, help="a run or an export"
    )
    parser.add_argument(
        "--corpus_dir", type=Path, required=True, help="of `tfasr demo`"
    )
    parser.add_argument("--split", default="test")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    recogniser = tfasr.load_recogniser(arguments.run_dir)
    result = measured(recogniser, arguments.corpus_dir, arguments.split)

    if arguments.format == "json":
        print(json.dumps(result, indent=1))
        return

    headings = ["a word", "words", "mean ms late", "median ms off", "90 % within, ms"]
    headings.append("within 50, 100 ms, %")
    print(f"| {' | '.join(headings)} |")
    print("|---|---:|---:|---:|---:|---:|")

    for name, row in result.items():
        shares = ", ".join(f"{100 * row[f'within_{ms}_ms']:.0f}" for ms in WITHIN_MS)
        cells = [name, str(row["words"]), f"{row['mean_ms']:+.0f}"]
        cells += [f"{row['median_off_ms']:.0f}", f"{row['p90_off_ms']:.0f}", shares]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
