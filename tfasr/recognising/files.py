"""Many recordings to transcripts: found, named, resumed, and bad ones left out."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tfasr.checked_files import read_object
from tfasr.corpora.reading.audio_header import AUDIO_SUFFIXES
from tfasr.corpora.reading.folders import walk
from tfasr.durable import make_folder, write_whole
from tfasr.errors import UsageError
from tfasr.recognising.formats import FORMATS
from tfasr.recognising.pauses import Segment
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.results import Transcript, Word
from tfasr.recognising.segment_batches import recognised_in_batches

SETTINGS_FILE = "transcribe.json"


@dataclass(frozen=True)
class Source:
    """A recording's file."""

    path: Path
    name: str  # in results: the path as given, or within the folder that was given


@dataclass
class Outcome:
    """What became of recordings."""

    done: int = 0  # how many were transcribed
    audio_s: float = 0.0  # in these
    failed: dict[str, str] = field(default_factory=dict)  # names and reasons


def find_sources(given: list[str]) -> list[Source]:
    """Returns the recordings that are named, and those in the folders that are.

    A file that is named is always taken; of a folder those files whose name ends like audio.

    Raises:
        UsageError: if a folder holds no audio, or cannot be read.
    """
    sources = []
    for name in given:
        path = Path(name)
        if not path.is_dir():
            sources.append(Source(path, name))
            continue
        found = [
            Source(file, file.relative_to(path).as_posix())
            for _, files in walk(path)
            for file in files
            if file.suffix.lower() in AUDIO_SUFFIXES
        ]
        if not found:
            raise UsageError(
                f"A folder must hold audio ({', '.join(sorted(AUDIO_SUFFIXES))}). Received: "
                f"{path}, which holds none."
            )
        sources += found
    return sources


def transcribe_sources(
    recogniser: Recogniser,
    sources: list[Source],
    finished: Callable[[Source, Transcript], None],
    failed: Callable[[Source, str], None],
    batch_size: int = 16,
) -> Outcome:
    """Transcribes recordings one after the other, many in one batch, in their order.

    ``finished`` is called with each transcript as soon as it is whole, ``failed`` with what could
    not be read, and why; ``batch_size`` counts segments.
    """
    outcome = Outcome()
    durations: dict[int, float] = {}
    reasons: dict[int, str] = {}
    words: list[Word] = []
    # Where a recording ends, a segment without samples tells, in its turn.
    segments = _segments(recogniser, sources, durations, reasons)
    for (number, ends), found in recognised_in_batches(recogniser.segments, segments, batch_size):
        words += found
        if not ends:
            continue
        source, transcript = sources[number], Transcript(words, durations.pop(number))
        words = []
        if number in reasons:
            outcome.failed[source.name] = reasons.pop(number)
            failed(source, outcome.failed[source.name])
            continue
        outcome.done += 1
        outcome.audio_s += transcript.duration_s
        finished(source, transcript)
    return outcome


def _segments(
    recogniser: Recogniser,
    sources: list[Source],
    durations: dict[int, float],
    reasons: dict[int, str],
) -> Iterator[tuple[tuple[int, bool], Segment]]:
    nothing = Segment(np.zeros(0, np.float32), 0.0, 0.0, 0.0)
    for number, source in enumerate(sources):
        durations[number] = 0.0
        try:
            for segment in recogniser.cut(source.path, durations, number):
                yield (number, False), segment
        except ValueError as error:
            reasons[number] = str(error)
        yield (number, True), nothing


class ResultFolder:
    """A folder with a result for each recording, in one of `FORMATS`, each whole or absent.

    Raises:
        UsageError: if it holds results of other settings, or two recordings would have one name.
    """

    def __init__(
        self, folder: Path, output_format: str, recogniser: Recogniser, sources: list[Source]
    ):
        self._folder = folder
        self._format = FORMATS[output_format]
        self._paths = dict(zip(sources, self._named(sources), strict=True))
        make_folder(folder)
        self._claim(output_format, recogniser)

    def _named(self, sources: list[Source]) -> list[Path]:
        """Returns a file for each; one that ends ``.wav.txt`` where two differ only in that."""
        suffix = self._format.suffix
        names = [_inside(source.name) for source in sources]
        short = [name.with_suffix(suffix) for name in names]
        times = Counter(short)
        paths = [
            self._folder / (one if times[one] == 1 else name.with_name(name.name + suffix))
            for name, one in zip(names, short, strict=True)
        ]
        twice = sorted(str(path) for path, count in Counter(paths).items() if count > 1)
        if twice:
            raise UsageError(
                f"Each recording must have a result of its own in --out. Received: several for "
                f"{twice[0]}. Name the folder that holds them instead of the files."
            )
        return paths

    def _claim(self, output_format: str, recogniser: Recogniser) -> None:
        """Writes the settings of the results, or compares them with those that are there."""
        spec = recogniser.spec
        wanted = {
            "recogniser": spec.identity,
            "format": output_format,
            "decoder": spec.decoder.name,
            "beam_width": spec.decoder.beam_width,
            "recombine": spec.decoder.recombine,
        }
        path = self._folder / SETTINGS_FILE
        if path.exists():
            there = read_object(path, "Choose another --out.")
            differing = [name for name in wanted if there.get(name) != wanted[name]]
            if differing:
                raise UsageError(
                    f"The results in --out must be of one recogniser and format. {self._folder} "
                    f"has others: its {', '.join(differing)} differ. Choose another --out."
                )
            return
        write_whole(path, json.dumps(wanted, indent=1) + "\n")

    def has(self, source: Source) -> bool:
        """Returns whether a recording's result is there and not older than the recording."""
        try:
            return self._paths[source].stat().st_mtime >= source.path.stat().st_mtime
        except OSError:
            return False

    def write(self, source: Source, transcript: Transcript) -> None:
        """Writes a recording's result; raises OSError if it cannot."""
        path = self._paths[source]
        make_folder(path.parent)
        text = self._format.header + self._format.write(source.name, transcript)
        write_whole(path, text)


def _inside(name: str) -> Path:
    """Returns a name as a path within a folder: that of a file from elsewhere is its last part."""
    path = Path(name)
    return Path(path.name) if path.is_absolute() or ".." in path.parts else path
