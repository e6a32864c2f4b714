"""Transcripts as text, JSON, subtitles and time-marked words."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfasr.recognising.results import StreamResult, Transcript, Word

# Of a subtitle: two lines on a television, and no longer than can be read; a pause ends it early.
_MOST_CHARACTERS = 84
_MOST_S = 6.0
_PAUSE_S = 0.8


@dataclass(frozen=True)
class Format:
    """A way to write transcripts."""

    write: Callable[[str, Transcript], str]  # from a recording's name and transcript to text
    suffix: str  # of a file that holds one
    header: str = ""  # what comes once before any transcripts
    joins: bool = True  # whether several recordings can stand in one stream


def to_text(_: str, transcript: Transcript) -> str:
    """Returns a line of text."""
    return transcript.text + "\n"


def to_json(name: str, transcript: Transcript) -> str:
    """Returns a line of JSON; words in Vosk's shape."""
    content = {
        "file": name,
        "duration_s": round(transcript.duration_s, 3),
        "text": transcript.text,
        "result": words_json(transcript.words),
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def words_json(words: list[Word]) -> list[dict[str, Any]]:
    """Returns words as Vosk shapes them: ``conf``, ``start``, ``end`` and ``word``."""
    return [
        {
            "conf": round(word.confidence, 4),
            "start": round(word.start_s, 3),
            "end": round(word.end_s, 3),
            "word": word.text,
        }
        for word in words
    ]


def stream_json(result: StreamResult) -> str:
    """Returns a line of JSON in Vosk's shape: ``partial``, or ``text`` and ``result``."""
    if not result.final:
        content: dict[str, Any] = {"partial": result.text}
    elif result.words:
        content = {"result": words_json(result.words), "text": result.text}
    else:
        content = {"text": ""}
    return json.dumps(content, ensure_ascii=False) + "\n"


def to_srt(_: str, transcript: Transcript) -> str:
    """Returns SubRip subtitles."""
    blocks = [
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_subtitles(transcript.words), start=1)
    ]
    return "\n".join(blocks)


def to_vtt(_: str, transcript: Transcript) -> str:
    """Returns WebVTT subtitles."""
    blocks = [
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{text}\n"
        for start, end, text in _subtitles(transcript.words)
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def to_ctm(name: str, transcript: Transcript) -> str:
    """Returns NIST's time-marked words: recording, channel, start, duration, word, confidence."""
    recording = "_".join(name.split()) or "-"  # the format has no way to write a space
    return "".join(
        f"{recording} 1 {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} "
        f"{word.confidence:.4f}\n"
        for word in transcript.words
    )


def to_tsv(name: str, transcript: Transcript) -> str:
    """Returns a line a word: file, start and end in seconds, confidence, word."""
    file = name.replace("\t", " ").replace("\n", " ")
    return "".join(
        f"{file}\t{word.start_s:.3f}\t{word.end_s:.3f}\t{word.confidence:.4f}\t{word.text}\n"
        for word in transcript.words
    )


FORMATS = {
    "text": Format(to_text, ".txt"),
    "json": Format(to_json, ".json"),
    "srt": Format(to_srt, ".srt", joins=False),
    "vtt": Format(to_vtt, ".vtt", joins=False),
    "ctm": Format(to_ctm, ".ctm"),
    "tsv": Format(to_tsv, ".tsv", header="file\tstart_s\tend_s\tconfidence\tword\n"),
}
"""How transcripts can be written, by the name of ``--format``."""


def _subtitles(words: list[Word]) -> list[tuple[float, float, str]]:
    """Returns start, end and text of subtitles."""
    groups: list[list[Word]] = []
    for word in words:
        group = groups[-1] if groups else []
        characters = sum(len(other.text) + 1 for other in group) + len(word.text)
        goes_on = (
            group
            and word.start_s - group[-1].end_s < _PAUSE_S
            and word.end_s - group[0].start_s <= _MOST_S
            and characters <= _MOST_CHARACTERS
        )
        if goes_on:
            group.append(word)
        else:
            groups.append([word])
    return [
        (group[0].start_s, group[-1].end_s, " ".join(word.text for word in group))
        for group in groups
    ]


def _clock(seconds: float, point: str) -> str:
    """Returns hours:minutes:seconds with milliseconds behind the given decimal point."""
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"
