"""``tfasr transcribe``: recordings to text, subtitles or time-marked words."""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr import errors
from tfasr.commands.shared import add_recogniser_arguments, progress, recogniser_of
from tfasr.errors import RunError, UsageError

if TYPE_CHECKING:
    from tfasr.recognising.files import Outcome, Source
    from tfasr.recognising.recogniser import Recogniser
    from tfasr.recognising.spec import StreamResult, Transcript
    from tfasr.recognising.subtitles import SubtitleRules

EXAMPLE = "transcribe talk.wav --run_dir runs/a --format srt"
log = logging.getLogger("tfasr")

# Further imports are within functions: they load the model's packages, which wrong flags
# must not wait for.

# Standard input, among the names of recordings.
STDIN = "-"

# The formats of ``--stream``. Subtitles need the whole recording.
STREAMED = ("json", "text")

# The longest chunk of a stream, an hour: a chunk is whole in memory.
MOST_CHUNK_MS = 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: recordings, model and decoder, output, and those of a stream."""
    # Imported here: other commands don't need soundfile.
    from tfasr.recognising.files import FORMATS

    add = parser.add_argument
    add(
        "audio",
        nargs="+",
        metavar="FILE|DIR|-",
        help=(
            "recordings of any rate and format that libsndfile or ffmpeg reads, "
            "folders of them, or - for raw PCM from standard input: signed 16 bit, "
            "little endian, one channel, at the model's rate (16 kHz)"
        ),
    )

    add("--run_dir", required=True, help="a folder that tfasr train wrote")
    add(
        "--format",
        choices=tuple(FORMATS),
        help="default: text; with --stream: json, or text",
    )

    add(
        "--out",
        metavar="DIR",
        help="write a file per recording to this folder; finished recordings are skipped",
    )

    add_recogniser_arguments(add)
    _add_subtitle_arguments(parser)
    add("--batch_size", type=int, default=16, help="default: %(default)s")

    add(
        "--stream",
        action="store_true",
        help=(
            "transcribe one recording, or -, as it arrives: a line of JSON in Vosk's "
            "format whenever the text changes; needs a model that can stream"
        ),
    )

    add(
        "--chunk_ms",
        type=float,
        default=100.0,
        help="with --stream; default: %(default)g",
    )

    add(
        "--no_endpoints",
        action="store_true",
        help=(
            "with --stream: treat the whole recording as one utterance; otherwise an "
            "utterance ends after 1.2 s of silence, or after 20 s"
        ),
    )


def _add_subtitle_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `SubtitleRules`, with its defaults."""
    from tfasr.recognising.subtitles import SubtitleRules

    add = parser.add_argument_group("subtitles, with --format srt or vtt").add_argument
    usual = SubtitleRules()

    add(
        "--subtitle_characters",
        type=int,
        default=usual.characters,
        help="characters of a line; default: %(default)s",
    )

    add(
        "--subtitle_lines",
        type=int,
        default=usual.lines,
        help="lines of a subtitle; default: %(default)s",
    )

    add(
        "--subtitle_shortest_s",
        type=float,
        default=usual.shortest_s,
        help="seconds that a subtitle is shown at least; default: %(default)g",
    )

    add(
        "--subtitle_longest_s",
        type=float,
        default=usual.longest_s,
        help="seconds that a subtitle is shown at most; default: %(default)g",
    )


def _subtitle_rules(arguments: argparse.Namespace) -> "SubtitleRules":
    """Returns the rules of subtitles that the flags set."""
    from tfasr.recognising.subtitles import SubtitleRules

    return SubtitleRules(
        characters=arguments.subtitle_characters,
        lines=arguments.subtitle_lines,
        shortest_s=arguments.subtitle_shortest_s,
        longest_s=arguments.subtitle_longest_s,
    )


def run(arguments: argparse.Namespace) -> None:
    """Transcribes recordings, standard input or, with ``--stream``, a stream.

    Raises:
        RunError: if a recording could not be transcribed; the others are done then.
    """
    from tfasr.recognising.files import FORMATS, find_sources

    if arguments.batch_size < 1:
        raise UsageError(
            f"--batch_size must be at least 1. Received: {arguments.batch_size}."
        )

    if arguments.format is None:
        arguments.format = "json" if arguments.stream else "text"

    if arguments.stream:
        _run_stream(arguments)
        return

    written_as = FORMATS[arguments.format].by(_subtitle_rules(arguments))
    if STDIN in arguments.audio:
        _check_alone(
            arguments, "- must stand alone, without other recordings and without --out."
        )

        # Standard input has no files: all of it is one transcript, however long.
        recogniser = recogniser_of(arguments)
        transcript = recogniser.transcribe_blocks(_pcm(recogniser.sample_rate_hz))
        sys.stdout.write(written_as.header + written_as.write(STDIN, transcript))

        return

    sources = find_sources(arguments.audio)
    if arguments.out is None and len(sources) > 1 and not written_as.joins:
        raise UsageError(
            f"--format {arguments.format} needs a single recording. "
            f"Received: {len(sources)} without --out. Name a folder with --out to get "
            "a file for each."
        )

    _check_found([source.path for source in sources])
    recogniser = recogniser_of(arguments)
    outcome = _transcribe(arguments, recogniser, sources)
    if outcome.failed:
        raise RunError(
            f"Every recording must be readable. {len(outcome.failed)} of "
            f"{len(sources)} could not be transcribed; the messages are above, and the "
            "others are done."
        )


def _transcribe(
    arguments: argparse.Namespace, recogniser: "Recogniser", sources: "list[Source]"
) -> "Outcome":
    """Transcribes recordings into files or to standard output.

    Recordings whose files are in ``--out`` already are skipped. One that can't be read
    is logged, and the others go on.

    Returns:
        How many were transcribed, and which failed.
    """
    from tfasr.recognising.files import FORMATS, ResultFolder, transcribe_sources

    rules = _subtitle_rules(arguments)
    folder = None
    if arguments.out is not None:
        folder = ResultFolder(
            Path(arguments.out), arguments.format, recogniser, sources, rules
        )

    waiting = [source for source in sources if folder is None or not folder.has(source)]
    done = len(sources) - len(waiting)
    if done:
        log.info("%d of %d are in --out already", done, len(sources))

    written_as = FORMATS[arguments.format].by(rules)
    # Each file of a folder begins with the format's header, and so does the output.
    if folder is None:
        sys.stdout.write(written_as.header)

    with progress("transcribed", len(waiting)) as advance:

        def finished(source: "Source", transcript: "Transcript") -> None:
            if folder is not None:
                folder.write(source, transcript)
            else:
                text = written_as.write(source.name, transcript)
                # With several recordings, each text needs its recording's name.
                if arguments.format == "text" and len(sources) > 1:
                    text = f"{errors.printable(source.name, one_line=True)}\t{text}"

                sys.stdout.write(text)
                sys.stdout.flush()

            advance()

        def failed(source: "Source", reason: str) -> None:
            name = errors.printable(source.name, one_line=True)
            log.error("%s is skipped: %s", name, reason)
            advance()

        return transcribe_sources(
            recogniser, waiting, finished, failed, arguments.batch_size
        )


def _check_alone(arguments: argparse.Namespace, rule: str) -> None:
    """Raises UsageError, which begins with ``rule``, for several recordings or --out."""
    received = " ".join(arguments.audio)
    if arguments.out is not None:
        raise UsageError(f"{rule} Received: {received} with --out.")
    if len(arguments.audio) > 1:
        raise UsageError(f"{rule} Received: {received}.")


def _check_found(audio: Sequence[str | Path]) -> None:
    """Raises UsageError if no recording exists; missing ones are skipped later."""
    if not any(Path(path).exists() for path in audio):
        raise UsageError(
            f"Recordings must be files or folders. {errors.received_path(audio[0])}"
        )


def _run_stream(arguments: argparse.Namespace) -> None:
    """Writes a line whenever the text of a recording or of standard input changes.

    Raises:
        UsageError: for flags that don't go with ``--stream``.
        RunError: if the audio can't be read; what was recognised before is printed.
    """
    _check_alone(arguments, "--stream takes one recording, without --out.")
    if arguments.format not in STREAMED:
        raise UsageError(
            f"--stream must be written as {' or '.join(STREAMED)}. "
            f"Received: --format {arguments.format}."
        )

    if not 0 < arguments.chunk_ms <= MOST_CHUNK_MS:
        limits = f"positive, at most {MOST_CHUNK_MS}"
        raise UsageError(
            f"--chunk_ms must be {limits}. Received: {arguments.chunk_ms}."
        )

    # A missing recording is reported before the model is loaded.
    if arguments.audio != [STDIN]:
        _check_found(arguments.audio)

    from tfasr.recognising.segments import EndpointRules

    endpoints = None
    if not arguments.no_endpoints:
        endpoints = EndpointRules()

    recogniser = recogniser_of(arguments)
    stream = recogniser.open_stream(endpoints)
    (audio,) = arguments.audio
    rate_hz = recogniser.sample_rate_hz
    chunk_s = arguments.chunk_ms / 1000

    if audio == STDIN:
        chunks = _pcm(rate_hz, chunk_s)
    else:
        from tfasr.data.audio import audio_blocks, warn

        chunks = audio_blocks(audio, rate_hz, chunk_s, remark=warn)

    try:
        for chunk in chunks:
            _write_results(stream.push(chunk), arguments.format)
    # The audio can't be read.
    except ValueError as error:
        raise RunError(str(error)) from error

    _write_results(stream.finish(), arguments.format)


def _write_results(results: "list[StreamResult]", output_format: str) -> None:
    """Writes results as lines of JSON, or the texts of finished utterances."""
    from tfasr.recognising.files import stream_json

    for result in results:
        if output_format == "json":
            sys.stdout.write(stream_json(result))
        elif result.final:
            sys.stdout.write(result.text + "\n")

    sys.stdout.flush()


def _pcm(sample_rate_hz: int, chunk_s: float = 1.0) -> Iterator:
    """Returns an iterator over blocks of samples, ``chunk_s`` long, from standard input.

    Raises:
        UsageError: if standard input is closed.
    """
    from tfasr.recognising.spec import pcm_chunks

    if sys.stdin is None:
        raise UsageError("- needs samples from standard input. Received: it is closed.")

    return pcm_chunks(sys.stdin.buffer, sample_rate_hz, chunk_s)
