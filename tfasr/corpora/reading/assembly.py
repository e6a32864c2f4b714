"""From what a corpus lists to a `CorpusSplit`: the checks that all corpora share."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfasr.alphabet import normalise
from tfasr.corpora.reading.audio_header import audio_duration_s
from tfasr.corpora.utterance import CorpusSplit, Rejection, Utterance
from tfasr.errors import UsageError

TRANSCRIPT_WITHOUT_AUDIO = "transcript without audio"
AUDIO_WITHOUT_TRANSCRIPT = "audio without transcript"
DUPLICATE_ID = "duplicate id"
EMPTY_TRANSCRIPT = "empty transcript"
UNREADABLE_AUDIO = "unreadable audio"
MALFORMED_LINE = "malformed line"

# Headers are read in threads because a read mostly waits: for the disk, or for a file server.
_MIN_HEADER_READERS = 8


@dataclass(frozen=True)
class Entry:
    """What a corpus lists as an utterance, before anything is checked.

    Attributes:
        id: the utterance's id.
        audio_path: where its audio should be.
        text: the transcript as it is written in the corpus.
        speaker: a speaker's name, or "" where unknown.
        origin: where a person finds the transcript ("dev.tsv, line 7").
    """

    id: str
    audio_path: Path
    text: str
    speaker: str
    origin: str


def assemble(
    source: str, entries: Iterable[Entry], rejections: Iterable[Rejection] = ()
) -> CorpusSplit:
    """Returns a split in which every entry is either an utterance or a rejection.

    Args:
        source: what was read, for the message that it is empty.
        entries: in the corpus's order; of several with one id, all but the first are rejected.
        rejections: what the corpus's reader itself had to leave out.

    Returns:
        Utterances sorted by id, with durations from the audio headers, and rejections sorted by
        id and reason.

    Raises:
        UsageError: if there are neither entries nor rejections.
    """
    rejected = list(rejections)
    listed: dict[str, Entry] = {}
    for entry in entries:
        first = listed.setdefault(entry.id, entry)
        if first is not entry:
            detail = f"{entry.origin} ({entry.audio_path}); first in {first.origin}"
            rejected.append(Rejection(entry.id, DUPLICATE_ID, detail))
    if not listed and not rejected:
        raise UsageError(f"A split must hold at least one utterance. Found none in {source}.")
    with ThreadPoolExecutor(max(_MIN_HEADER_READERS, os.cpu_count() or 1)) as threads:
        judged = list(threads.map(_judge, listed.values()))
    utterances = [found for found in judged if isinstance(found, Utterance)]
    rejected += [found for found in judged if isinstance(found, Rejection)]
    return CorpusSplit(
        sorted(utterances, key=lambda utterance: utterance.id),
        sorted(rejected, key=lambda rejection: (rejection.id, rejection.reason, rejection.detail)),
    )


def _judge(entry: Entry) -> Utterance | Rejection:
    text = normalise(entry.text)
    if not text:
        return Rejection(entry.id, EMPTY_TRANSCRIPT, f"{entry.origin} ({entry.audio_path})")
    if not os.path.isfile(entry.audio_path):  # noqa: PTH113 - Path.is_file raises on long names
        detail = f"{entry.origin}: {entry.audio_path} does not exist"
        return Rejection(entry.id, TRANSCRIPT_WITHOUT_AUDIO, detail)
    try:
        duration_s = audio_duration_s(entry.audio_path)
        if duration_s <= 0:
            raise ValueError(f"An audio file must hold audio. {entry.audio_path} is empty.")
    except ValueError as error:
        return Rejection(entry.id, UNREADABLE_AUDIO, f"{entry.origin}: {error}")
    return Utterance(entry.id, entry.audio_path, duration_s, text, entry.speaker)
