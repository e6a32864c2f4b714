"""Transcribes many recordings to files, with resuming; those it can't read are reported.

``tfasr transcribe`` is made of this: `find_sources` lists recordings,
`transcribe_sources` recognises them, and a `Format` or `ResultFolder` writes the
transcripts. The server uses the formats, too.
"""

import contextlib
import errno
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tfasr.corpora.audio_header import AUDIO_SUFFIXES
from tfasr.corpora.reading import walk
from tfasr.errors import UsageError, explained, printable
from tfasr.kit.files import (
    check_owned,
    make_folder,
    object_or_empty,
    read_object,
    write_whole,
)
from tfasr.ledger.declared import sha256
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.spec import StreamResult, Transcript, Word
from tfasr.recognising.subtitles import Cue, SubtitleRules, subtitles

# How many skipped files a message names.
_MOST_NAMED = 8

# The settings with which all results in a folder were written.
SETTINGS_FILE = "transcribe.json"

# The names and hashes of the results in a folder.
RESULTS_FILE = "transcribe-results.jsonl"

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class Format:
    """How transcripts are written.

    Attributes:
        write: maps a recording's name and transcript to text.
        suffix: of a file that has one transcript.
        header: written once, before all transcripts.
        joins: whether several recordings' transcripts can be written to one stream.
        has_cues: whether ``write`` takes `SubtitleRules` too.
    """

    write: Callable[[str, Transcript], str]
    suffix: str
    header: str = ""
    joins: bool = True
    has_cues: bool = False

    def by(self, rules: SubtitleRules) -> "Format":
        """Returns the format with rules for subtitles, if it has any."""
        if not self.has_cues:
            return self

        return replace(self, write=partial(self.write, rules=rules))


def to_json(name: str, transcript: Transcript) -> str:
    """Returns a line of JSON: the name, seconds, text, and words as in `words_json`."""
    content = {
        "file": name,
        "duration_s": round(transcript.duration_s, 3),
        "text": transcript.text,
        "result": words_json(transcript.words),
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def words_json(words: list[Word]) -> list[dict[str, Any]]:
    """Returns words with the keys of the toolkit Vosk, which clients may know.

    These are ``conf``, ``start``, ``end`` (in seconds) and ``word``.
    """
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
    """Returns a line of JSON with Vosk's keys: ``partial``, or ``text`` and ``result``.

    Like Vosk's, the result of an utterance without words has no ``result``.
    """
    if not result.final:
        content: dict[str, Any] = {"partial": result.text}
    elif result.words:
        content = {"result": words_json(result.words), "text": result.text}
    else:
        content = {"text": ""}

    return json.dumps(content, ensure_ascii=False) + "\n"


def to_srt(_: str, transcript: Transcript, rules: SubtitleRules | None = None) -> str:
    """Returns SubRip's format: a number, times and lines per subtitle.

    The name isn't part of the format, but `Format.write` passes it.
    """
    blocks = [
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n"
        + "".join(f"{line}\n" for line in cue.lines)
        for number, cue in enumerate(_cues(transcript, rules), start=1)
    ]
    return "\n".join(blocks)


def to_vtt(_: str, transcript: Transcript, rules: SubtitleRules | None = None) -> str:
    """Returns WebVTT, the subtitles of HTML's ``<track>``; &, < and > are escaped."""
    marks = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    blocks = [
        f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n"
        + "".join(f"{line.translate(marks)}\n" for line in cue.lines)
        for cue in _cues(transcript, rules)
    ]

    return "\n".join(["WEBVTT\n", *blocks])


def _cues(transcript: Transcript, rules: SubtitleRules | None) -> list[Cue]:
    """Groups a transcript's words into subtitles, by default with the usual rules."""
    return subtitles(transcript.words, rules or SubtitleRules())


def to_ctm(name: str, transcript: Transcript) -> str:
    """Returns NIST's CTM, a line per word.

    Its columns are recording, channel, start, duration, word and confidence.
    """
    # Names can't contain spaces in this format, and a name of spaces alone would leave
    # an empty column.
    recording = "_".join(name.split()) or "-"
    return "".join(
        f"{recording} 1 {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} "
        f"{word.confidence:.4f}\n"
        for word in transcript.words
    )


def to_tsv(name: str, transcript: Transcript) -> str:
    """Returns a line per word: file, begin, end, confidence and word, with tabs."""
    file = printable(name, one_line=True)
    return "".join(
        f"{file}\t{word.start_s:.3f}\t{word.end_s:.3f}\t{word.confidence:.4f}\t{word.text}\n"
        for word in transcript.words
    )


# By the value of ``--format``.
FORMATS = {
    "text": Format(lambda _, transcript: transcript.text + "\n", ".txt"),
    "json": Format(to_json, ".json"),
    "srt": Format(to_srt, ".srt", joins=False, has_cues=True),
    "vtt": Format(to_vtt, ".vtt", joins=False, has_cues=True),
    "ctm": Format(to_ctm, ".ctm"),
    "tsv": Format(to_tsv, ".tsv", header="file\tstart_s\tend_s\tconfidence\tword\n"),
}


def _clock(seconds: float, point: str) -> str:
    """Returns a time as in subtitles.

    >>> _clock(62.345, ","), _clock(59.9996, ".")
    ('00:01:02,345', '00:01:00.000')
    """
    # Rounded first, or 59.9996 s would become 00:00:60.000.
    seconds, milliseconds = divmod(round(1000 * seconds), 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)

    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{point}{milliseconds:03d}"


@dataclass(frozen=True)
class Source:
    """A recording to transcribe.

    Attributes:
        path: where it is.
        name: in results: the path that was passed, or the path within a folder that was
            passed.
    """

    path: Path
    name: str


@dataclass
class Outcome:
    """What became of many recordings.

    Attributes:
        done: how many were transcribed.
        audio_s: their total duration, in seconds.
        failed: the reasons why others can't be read, by the source's name.
    """

    done: int = 0
    audio_s: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)


def find_sources(names: list[str]) -> list[Source]:
    """Returns named recordings, and the audio files of named folders.

    In a folder, the suffix decides whether a file is audio; how many others are skipped
    is logged.

    Args:
        names: paths of files or folders. Files needn't exist: reading them reports it.

    Raises:
        UsageError: if a folder holds no audio.
    """
    sources = []
    for name in names:
        path = Path(name)
        if not path.is_dir():
            sources.append(Source(path, name))
            continue

        files = [file for _, files in walk(path) for file in files]
        audio = [file for file in files if file.suffix.lower() in AUDIO_SUFFIXES]
        if not audio:
            raise UsageError(
                f"A folder must hold audio ({', '.join(sorted(AUDIO_SUFFIXES))}). "
                f"Received: {path}, which contains none."
            )

        others = [
            file.relative_to(path).as_posix()
            for file in files
            if file not in set(audio)
        ]
        if others:
            names = printable(", ".join(others[:_MOST_NAMED]), one_line=True)
            if len(others) > _MOST_NAMED:
                names += ", ..."

            counts = f"{len(others)} of {len(files)} files are skipped"
            log.warning(
                "%s: %s, because their suffixes aren't of audio: %s",
                path,
                counts,
                names,
            )

        sources += [Source(file, file.relative_to(path).as_posix()) for file in audio]

    return sources


def transcribe_sources(
    recogniser: Recogniser,
    sources: list[Source],
    finished: Callable[[Source, Transcript], None],
    failed: Callable[[Source, str], None],
    batch_size: int = 16,
) -> Outcome:
    """Transcribes recordings in order, ``batch_size`` segments at a time.

    Args:
        recogniser: to use.
        sources: recordings.
        finished: called with each transcript, as soon as it is there.
        failed: called with each unreadable file and the reason.
        batch_size: segments that the model gets together.
    """
    outcome = Outcome()
    transcripts = recogniser.transcripts(
        (source.path for source in sources), batch_size
    )

    for source, transcript in zip(sources, transcripts, strict=True):
        reason = str(transcript)
        if isinstance(transcript, Transcript):
            try:
                finished(source, transcript)
                outcome.done += 1
                outcome.audio_s += transcript.duration_s
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise

                reason, _ = explained(error)

        outcome.failed[source.name] = reason
        failed(source, reason)

    return outcome


# The hash of the result of a recording without speech, in some formats.
_EMPTY = sha256(b"")


class ResultFolder:
    """A folder of results in one of `FORMATS`, one for each recording, complete or absent.

    A result's hash is stored in `RESULTS_FILE` before the result is written, to tell it
    from the user's files, which are never overwritten.

    Args:
        folder: where to write; created if missing.
        output_format: one of `FORMATS`.
        recogniser: whose results they are.
        sources: all recordings that will have a result.
        rules: of subtitles; None for the usual ones.

    Raises:
        UsageError: if the folder's results have other settings, if a user's file has a
            result's name, or two results would have the same name.
    """

    def __init__(
        self,
        folder: Path,
        output_format: str,
        recogniser: Recogniser,
        sources: list[Source],
        rules: SubtitleRules | None = None,
    ):
        rules = rules or SubtitleRules()
        self._folder = folder
        self._format = FORMATS[output_format].by(rules)
        # Each recording's result.
        self._paths = dict(zip(sources, self._named(sources), strict=True))
        settings = folder / SETTINGS_FILE
        spec = recogniser.spec
        wanted = {
            "recogniser": spec.identity,
            "format": output_format,
            "decoder": spec.decoder.name,
            "beam_width": spec.decoder.beam_width,
            "recombine": spec.decoder.recombine,
        }
        if self._format.has_cues:
            wanted["subtitles"] = asdict(rules)

        # A folder with complete settings is one that an earlier call made.
        owned = wanted.keys() <= object_or_empty(settings).keys()
        check_owned(
            folder,
            "--out",
            "results of tfasr transcribe",
            [SETTINGS_FILE],
            owned=owned,
        )
        written = wanted
        if owned:
            written = read_object(settings, "Choose another --out.")

        differing = [name for name in wanted if written.get(name) != wanted[name]]
        if differing:
            raise UsageError(
                "The results in --out must come from one recogniser and format. "
                f"{folder} has others: its {', '.join(differing)} differ. Choose "
                "another --out."
            )

        listed = folder / RESULTS_FILE
        self._results = _listed_results(listed)
        lost = [str(path.relative_to(folder)) for path in self._others()]
        check_owned(
            folder,
            "--out",
            f"note of them in {RESULTS_FILE}",
            lost,
            owned=False,
        )
        make_folder(folder)
        # So that an interrupted call leaves a folder that the next one recognises.
        listed.touch()
        if not owned:
            write_whole(settings, json.dumps(wanted, indent=1) + "\n")

    def _named(self, sources: list[Source]) -> list[Path]:
        """Returns each result's path.

        It is ``a.txt``, or ``a.wav.txt`` if ``a.txt`` isn't unique.
        """
        suffix = self._format.suffix
        names = [_inside(source.name) for source in sources]
        short = [name.with_suffix(suffix) for name in names]
        long = [name.with_name(name.name + suffix) for name in names]

        # A name that is also another recording's, or the settings', is not unique.
        times = Counter([*short, *long, Path(SETTINGS_FILE)])
        paths = [
            self._folder / (path if times[path] == 1 else longer)
            for path, longer in zip(short, long, strict=True)
        ]
        twice = sorted(str(path) for path, count in Counter(paths).items() if count > 1)

        if twice:
            raise UsageError(
                "Each recording needs a separate result in --out. Received: several "
                f"for {twice[0]}. Name the folder that holds them instead of the files."
            )

        return paths

    def _others(self) -> Iterator[Path]:
        """Yields files that a new result would overwrite and that are no results.

        They are the user's own, or results that somebody has changed since.
        """
        for source, path in self._paths.items():
            # Also a broken link, which writing would replace.
            if os.path.lexists(path) and not self.has(source):
                content_hash = _hash_of(path)
                listed = self._results.get(str(path))
                if content_hash != _EMPTY and (
                    listed is None or content_hash != listed.sha256
                ):
                    yield path

    def _note(self, source: Source, content_hash: str) -> None:
        """Stores a result's hash, durably, before the result is written."""
        path = self._paths[source]
        line = {
            "file": str(path.relative_to(self._folder)),
            "sha256": content_hash,
            "recording": _state(source.path),
        }

        with (self._folder / RESULTS_FILE).open("ab") as file:
            file.write(b"\n" + json.dumps(line).encode())  # the last line may be cut
            file.flush()
            os.fsync(file.fileno())

    def has(self, source: Source) -> bool:
        """Whether a recording, as it is now, has a result that nobody has emptied.

        A recording that was replaced is transcribed again, also if the new one is
        older.
        """
        path = self._paths[source]
        listed = self._results.get(str(path))
        if listed is None:
            return False

        try:
            size = path.stat().st_size
            same = _state(source.path) == listed.recording
        except OSError:
            return False

        return same and (size > 0 or listed.sha256 == _EMPTY)

    def write(self, source: Source, transcript: Transcript) -> None:
        """Writes a recording's result; a result of an older recording is replaced."""
        path = self._paths[source]
        text = self._format.header + self._format.write(source.name, transcript)
        # The recording's own folder within the one that was named.
        make_folder(path.parent)
        self._note(source, sha256(text.encode(errors="backslashreplace")))
        write_whole(path, text)


@dataclass(frozen=True)
class _Listed:
    """What `RESULTS_FILE` says about a result.

    Attributes:
        sha256: of the result's text.
        recording: the recording's size and time when it was transcribed, see `_state`.
    """

    sha256: str
    recording: list[int]


def _listed_results(path: Path) -> dict[str, _Listed]:
    """Reads `RESULTS_FILE`, if there is one, and returns its lines by the results' paths.

    Lines that a kill cut are skipped.
    """
    results: dict[str, _Listed] = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            result = json.loads(line)
            listed = _Listed(result["sha256"], result["recording"])
            results[str(path.parent / result["file"])] = listed

    return results


def _state(recording: Path) -> list[int]:
    """Returns a recording's size in bytes, and when it was last changed, in ns."""
    about = recording.stat()
    return [about.st_size, about.st_mtime_ns]


def _hash_of(path: Path) -> str:
    """Returns a file's hash; "" if it can't be read."""
    try:
        return sha256(path.read_bytes())
    except OSError:
        return ""


def _inside(name: str) -> Path:
    """Returns a path for use within a folder.

    Of an absolute path or one with .., only the last part is kept: a result must not
    end up elsewhere.

    >>> _inside("a/b.wav").as_posix(), _inside("/a/b.wav").as_posix()
    ('a/b.wav', 'b.wav')
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        return Path(path.name)

    return path
