"""Recognises uploaded files: keeps each on disk meanwhile, and answers part by part.

`transcribe` has tfasr's own format, in which words arrive while the rest is being
recognised; `transcriptions` has that of OpenAI's API, for clients that know it. Both
let `kept` receive the file and an `UploadedFile` recognise it.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import math
import statistics
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError

from tfasr.alphabet import join_words
from tfasr.corpora.audio_header import decoded_by_ffmpeg, opened_audio
from tfasr.data.audio import audio_blocks
from tfasr.errors import explained
from tfasr.recognising.files import FORMATS, to_json, words_json
from tfasr.recognising.spec import Transcript, Word
from tfasr.serving.service import RefusedError, Result, Service, client_may_leave

# Limits that keep memory small, whatever a file's header says: seconds decoded at once;
# channels.
_BLOCK_S = 1.0
_MOST_CHANNELS = 32
# Segments that go through the model together; the words of a few batches are sent
# together.
_BATCH_SIZE = 2
# Of a body, to read at once.
_PIECE_BYTES = 1 << 18
# Characters of a file's name or of a reason in an answer.
_LONGEST_NAME = 200
# What `next` returns after the last part.
_END = object()

log = logging.getLogger("tfasr")


async def transcribe(request: web.Request, service: Service) -> web.StreamResponse:
    """Answers a request whose body is an audio file, in lines of JSON.

    The first line has ``duration_s``. Then come the words, in Vosk's format, as soon as
    they are recognised. The last line is what `tfasr transcribe --format json` writes
    for the file, or an ``error``. The query may have a ``name`` for the file, which the
    answers use.
    """
    name = file_name(request.query.get("name"))
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})

    try:
        with client_may_leave(request):
            await _answer(request, name, response, service)
            await asyncio.wait_for(response.write_eof(), service.limits.idle_s)
    except RefusedError as refusal:
        # It came before the first line, which `_answer` would have sent.
        return web.json_response({"error": str(refusal)}, status=refusal.status)

    return response


def file_name(name: str | None) -> str:
    """Returns a client's file name as answers show it: without folders, and not too long."""
    # Only the last part: a name may contain a path of the client's computer.
    name = Path(name or "").name[:_LONGEST_NAME] or "recording"
    # What isn't valid text can't be sent.
    return name.encode(errors="replace").decode()


async def _answer(
    request: web.Request,
    name: str,
    response: web.StreamResponse,
    service: Service,
) -> None:
    """Writes all lines of an answer.

    An error becomes the last line, or is raised if no line was written yet.

    Args:
        request: whose body is the file.
        name: the client's name for the file.
        response: not begun yet.
        service: has the recogniser and the limits.
    """

    async def write(line: str) -> None:
        """Sends a line within the time that a client has to read it."""
        await asyncio.wait_for(response.write(line.encode()), service.limits.idle_s)

    async def receive(file: BinaryIO) -> str:
        arriving = Arriving(request, service)

        # Before the first byte, if the client states the size.
        arriving.check_size(name)
        await arriving.keep(file, lambda: request.content.read(_PIECE_BYTES), name)
        return name

    try:
        async with (
            kept(receive, service) as upload,
            contextlib.aclosing(_lines(upload, service)) as lines,
        ):
            async for line in lines:
                if not response.prepared:
                    await response.prepare(request)

                await write(line)
    except RefusedError as refusal:
        if not response.prepared:
            raise

        await write(json.dumps({"error": str(refusal)}) + "\n")


@contextlib.asynccontextmanager
async def kept(
    receive: Callable[[BinaryIO], Awaitable[str]], service: Service
) -> AsyncIterator["UploadedFile"]:
    """Yields a client's file on disk during the block.

    Args:
        receive: writes the file and returns its name.
        service: has the limits, and places for files.

    Raises:
        RefusedError: if there are too many files already, the disk is full, or the file
            can't be decoded.
    """
    with contextlib.ExitStack() as stack:
        # Taken before anything is received, or waiting clients could fill the disk.
        stack.enter_context(service.uploads.place())
        # After the file has been closed and forgotten.
        stack.callback(_give_memory_back)

        with _disk_errors_explained():
            # It has no name, so that nothing is left of it even if the server is
            # killed.
            file = stack.enter_context(tempfile.TemporaryFile())
            name = await receive(file)
            await service.soon(file.flush)

            # By which decoders can open the nameless file.
            path = Path(f"/proc/self/fd/{file.fileno()}")

            # libsndfile knows some MP3s only by suffix.
            if name.lower().endswith(".mp3"):
                folder = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="tfasr-")
                )
                link = Path(folder) / "audio.mp3"
                link.symlink_to(path)
                path = link

            upload = UploadedFile(path, name, service)
            # Decoded once here, as `UploadedFile` reads it twice.
            decoding = decoded_by_ffmpeg(path, service.limits.max_upload_s + 1)

            try:
                decoded = await service.in_turn(stack.enter_context, decoding)
            except ValueError as error:
                raise upload.refused(error) from error

            if decoded is not None:
                path = Path(f"/proc/self/fd/{decoded.fileno()}")
                upload = UploadedFile(path, name, service)

        yield upload


def _give_memory_back() -> None:
    """Returns freed memory to the system.

    glibc would keep some for each of the many threads.
    """
    # Without glibc, the C library may lack the function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _disk_errors_explained() -> Iterator[None]:
    """Turns errors of the disk into a RefusedError; the log gets the cause."""
    try:
        yield
    except ConnectionError:
        # The client is gone, and nothing is wrong with the disk.
        raise
    except OSError as error:
        log.error("A file could not be stored: %s", explained(error)[0])
        raise RefusedError(
            "The server can't store the file: its disk is full or broken.", status=507
        ) from error


class Arriving:
    """Receives the body of a request, within the limits on time and on a file's size.

    Args:
        request: the client's.
        service: has the limits.
    """

    def __init__(self, request: web.Request, service: Service):
        self._request = request
        self._service = service
        self._limits = service.limits
        # An upload may take as long as a stream.
        self._last = asyncio.get_running_loop().time() + service.limits.max_stream_s

    def check_size(self, name: str, more: int = 0) -> None:
        """Raises RefusedError if the size that the client states is too large.

        Args:
            name: of the file, for the message.
            more: bytes that a form may have in addition to its file.
        """
        if (self._request.content_length or 0) > self._limits.max_upload_bytes + more:
            raise self._too_large(name)

    def _too_large(self, name: str) -> RefusedError:
        """Returns the error for a file over the limit."""
        return RefusedError(
            f"A file may have at most {self._limits.max_upload_mb:g} MB (--max_upload_mb). "
            f"Received: {name}, which is larger. tfasr transcribe takes files of any size.",
            status=413,
        )

    async def piece(self, reading: Awaitable[Result]) -> Result:
        """Returns the next part of the body.

        Args:
            reading: waits for the part.

        Raises:
            RefusedError: if it is late or malformed.
        """
        left_s = self._last - asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(
                reading, max(min(self._limits.idle_s, left_s), 0)
            )
        except asyncio.TimeoutError as error:
            raise RefusedError(
                f"A file must come within {self._limits.max_stream_s:g} s, without pauses of "
                f"{self._limits.idle_s:g} s (--max_stream_s, --idle_s).",
                status=408,
            ) from error
        # The last three are what aiohttp raises for a malformed form.
        except (
            HttpProcessingError,
            web.RequestPayloadError,
            ValueError,
            AssertionError,
            RuntimeError,
        ) as error:
            reason = " ".join(str(error).split())[:_LONGEST_NAME]
            raise RefusedError(
                f"The request's body is malformed or cut off: {reason}"
            ) from error

    async def keep(
        self,
        file: BinaryIO,
        read: Callable[[], Awaitable[bytes]],
        name: str,
    ) -> None:
        """Writes pieces into a file as they come, until an empty one ends the body.

        Args:
            file: to write into.
            read: returns the next piece.
            name: the client's name for the file.

        Raises:
            RefusedError: if the file is larger than the limit, or `piece` fails.
        """
        count = 0
        while piece := await self.piece(read()):
            count += len(piece)
            # The stated size may be wrong or missing.
            if count > self._limits.max_upload_bytes:
                raise self._too_large(name)

            await self._service.soon(file.write, piece)


async def _lines(upload: "UploadedFile", service: Service) -> AsyncIterator[str]:
    """Yields the lines of an answer, see `transcribe`."""
    duration_s = await service.soon(upload.check)
    yield json.dumps({"duration_s": round(duration_s, 3)}) + "\n"
    async with contextlib.aclosing(upload.recognised()) as parts:
        async for words in parts:
            if not words:
                continue

            text = join_words(word.text for word in words)
            content = {"result": words_json(words), "text": text}
            yield json.dumps(content, ensure_ascii=False) + "\n"

    yield to_json(upload.name, upload.transcript)


class UploadedFile:
    """Recognises a client's file.

    Answers use the client's name for it, not its path.

    Args:
        path: of the file on this machine.
        name: the client's name for it.
        service: has the recogniser and the limits.
    """

    def __init__(self, path: Path, name: str, service: Service):
        self._path = path
        self.name = name
        self._service = service
        self._limits = service.limits
        # What was recognised so far, and the seconds read so far.
        self._words: list[Word] = []
        self._seconds = 0.0

    def check(self) -> float:
        """Returns the header's seconds of audio.

        Raises:
            RefusedError: if they are too many, or the file isn't audio.
        """
        try:
            with opened_audio(self._path) as file:
                seconds = file.frames / file.samplerate
                channels = file.channels
        except ValueError as error:
            raise self.refused(error) from error

        if channels > _MOST_CHANNELS:
            received = f"Received: {self.name} with {channels}."
            message = f"A file may have at most {_MOST_CHANNELS} channels. {received}"
            raise RefusedError(message, status=422)

        self._check_seconds(seconds)
        return seconds

    async def recognised(self) -> AsyncIterator[list[Word]]:
        """Yields the words of the next part, until the file's end.

        Raises:
            RefusedError: if the file can't be read to its end, or the server is shut
            down.
        """
        service = self._service
        # Recognised only as the parts are asked for, so that files take turns.
        parts = service.recogniser.parts(self._blocks(), _BATCH_SIZE)

        try:
            while (words := await service.in_turn(next, parts, _END)) is not _END:
                if service.ending.is_set():
                    raise RefusedError("The server is being shut down.", status=503)

                self._words += words
                yield words
        except ValueError as error:
            raise self.refused(error) from error
        finally:
            # Still running, if its caller was cancelled.
            with contextlib.suppress(ValueError):
                await service.in_turn(parts.close)

    def _blocks(self) -> Iterator[np.ndarray]:
        """Yields samples up to the limit on time, whatever the file's header says."""
        rate_hz = self._service.recogniser.sample_rate_hz
        for block in audio_blocks(self._path, rate_hz, _BLOCK_S):
            self._seconds += len(block) / rate_hz
            # Checked again, as a header may state less than there is.
            self._check_seconds(self._seconds)
            yield block

    def _check_seconds(self, seconds: float) -> None:
        """Raises RefusedError if a file is too long."""
        if seconds > self._limits.max_upload_s:
            raise RefusedError(
                f"A file may last at most {self._limits.max_upload_s:g} s (--max_upload_s). "
                f"Received: {self.name}, which is longer. tfasr transcribe takes files of any "
                "length.",
                status=413,
            )

    def refused(self, error: ValueError) -> RefusedError:
        """Returns an error about the file for its client.

        Args:
            error: whose message may contain the path of the file on this machine.
        """
        return RefusedError(str(error).replace(str(self._path), self.name), status=422)

    @property
    def transcript(self) -> Transcript:
        """What has been recognised so far."""
        return Transcript(self._words, self._seconds)


# The least confidence of a word whose logarithm is taken, as 0 has no logarithm.
_LEAST_CONFIDENCE = 1e-10
# Whisper counts a segment's place in frames of 10 ms.
_SEEK_S = 0.01

# ``/v1/audio/transcriptions`` accepts requests in OpenAI's format and answers in that
# format. Source: the reference of OpenAI's API, "Create transcription" and "Errors".
OPENAI_PREFIX = "/v1/"
# Of all fields without the file, together.
_FIELDS_BYTES = 1 << 16
# What messages about a form advise.
_FORM = "Send multipart/form-data with the field file, as curl -F file=@talk.wav does."
# Fields of OpenAI's API that are ignored, with the reason that the answer's header
# states.
_IGNORED = {
    "model": "the server has one model",
    "language": "the model was trained on one language",
    "prompt": "the model takes no prompt",
    "temperature": "the decoder does not sample",
    "timestamp_granularities[]": "verbose_json has words and segments",
}


def _verbose(
    transcript: Transcript,
    parts: list[list[Word]],
    language: str,
) -> dict[str, Any]:
    """Returns all fields that OpenAI's clients require in verbose_json.

    Those of Whisper are there, too, though this model has other insides.

    Args:
        transcript: of the whole file.
        parts: its words by segments, none of them empty.
        language: of the model.
    """
    duration_s = round(transcript.duration_s, 3)
    words = [
        {
            "word": word.text,
            "start": round(word.start_s, 3),
            "end": round(word.end_s, 3),
        }
        for word in transcript.words
    ]

    return {
        "task": "transcribe",
        "language": language,
        "duration": duration_s,
        "text": transcript.text,
        "words": words,
        "segments": [_verbose_segment(n, part) for n, part in enumerate(parts)],
        "usage": {"type": "duration", "seconds": math.ceil(duration_s)},
    }


def _verbose_segment(number: int, words: list[Word]) -> dict[str, Any]:
    """Returns a part of a recording as one of Whisper's segments.

    Args:
        number: of the part, from 0.
        words: of the part, at least one.
    """
    text = join_words(word.text for word in words)
    encoded = text.encode()
    log_confidences = [
        math.log(max(word.confidence, _LEAST_CONFIDENCE)) for word in words
    ]

    return {
        "id": number,
        "seek": round(words[0].start_s / _SEEK_S),
        "start": round(words[0].start_s, 3),
        "end": round(words[-1].end_s, 3),
        "text": text,
        "tokens": [],  # of Whisper's vocabulary, which this model hasn't
        "temperature": 0.0,  # nothing is sampled
        "avg_logprob": round(statistics.fmean(log_confidences), 4),
        "compression_ratio": round(len(encoded) / len(zlib.compress(encoded)), 4),
        "no_speech_prob": 0.0,  # segments without words are left out
    }


# The formats of an answer: those that aren't JSON, and all.
_TEXTS = ("text", "srt", "vtt")
_FORMATS = ("json", *_TEXTS, "verbose_json")


def openai_error(message: str, status: int) -> web.Response:
    """Returns an error in the format that OpenAI's clients understand.

    Args:
        message: for the client.
        status: of HTTP; from 500 on, the fault is the server's.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"

    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": None}},
        status=status,
    )


def models(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Returns a handler that lists the server's one model.

    Clients of OpenAI's API ask for it first.

    Args:
        name: of the recogniser, as clients see it.
    """
    model = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "tfasr",
    }

    async def answer(request: web.Request) -> web.Response:
        wanted = request.match_info.get("model")
        if wanted is None:
            return web.json_response({"object": "list", "data": [model]})

        if wanted != name:
            return openai_error(f"This server has the model {name!r} alone.", 404)

        return web.json_response(model)

    return answer


async def transcriptions(request: web.Request, service: Service) -> web.Response:
    """Answers a form with a ``file`` and an optional ``response_format``.

    Errors become answers in OpenAI's format.

    Args:
        request: the client's form, see `_received`.
        service: has the recogniser and the limits.
    """
    # OpenAI's default.
    fields = {"response_format": "json"}

    async def receive(file: BinaryIO) -> str:
        """Writes the form's file into a file."""
        return await _received(request, file, fields, service)

    try:
        with client_may_leave(request):
            async with kept(receive, service) as upload:
                await service.soon(upload.check)
                parts = []
                async for words in upload.recognised():
                    # The client has left, so nobody would get the rest.
                    if request.transport is None:
                        raise ConnectionResetError

                    if words:
                        parts.append(words)

            written_as = fields["response_format"]
            transcript = upload.transcript
            ignored = "; ".join(f"{n}: {_IGNORED[n]}" for n in _IGNORED if n in fields)
            headers = {"X-Ignored": ignored} if ignored else {}

            if written_as in _TEXTS:
                return web.Response(
                    text=FORMATS[written_as].write("", transcript), headers=headers
                )

            content: dict[str, Any] = {"text": transcript.text}
            if written_as == "verbose_json":
                language = service.recogniser.spec.alphabet.language
                content = _verbose(transcript, parts, language)

            return web.json_response(content, headers=headers)
    except RefusedError as refusal:
        return openai_error(str(refusal), refusal.status)

    # The client has gone, so nobody receives this.
    return openai_error("The client has gone.", 400)


async def _received(
    request: web.Request,
    file: BinaryIO,
    fields: dict[str, str],
    service: Service,
) -> str:
    """Writes the form's file into ``file`` and its other fields into ``fields``.

    Args:
        request: the form.
        file: to write into.
        fields: with their defaults, which the form replaces.
        service: has the limits.

    Returns:
        The file's name.

    Raises:
        RefusedError: if the form is wrong or too large.
    """
    if request.content_type != "multipart/form-data":
        raise RefusedError(
            f"A request must be a form. Received: {request.content_type}. {_FORM}"
        )

    arriving = Arriving(request, service)
    arriving.check_size("a form", _FIELDS_BYTES)
    name = None
    # Bytes that the fields without the file may still have.
    bytes_left = _FIELDS_BYTES
    form = await arriving.piece(request.multipart())
    while (part := await arriving.piece(form.next())) is not None:
        # A form in a form isn't a field.
        if not isinstance(part, BodyPartReader) or (
            part.name == "file" and name is not None
        ):
            raise RefusedError(f"A form must have one file. {_FORM}")

        if part.name == "file":
            name = file_name(part.filename)
            await arriving.keep(file, part.read_chunk, name)
            continue

        value = b""
        while not part.at_eof():
            value += await arriving.piece(part.read_chunk())
            if len(value) > bytes_left:
                raise RefusedError(
                    "A form's fields may have at most 64 KiB.", status=413
                )

        # Each field takes 1 KiB in addition to its value, to limit their number.
        bytes_left -= len(value) + _FIELDS_BYTES // 64
        field = part.name or ""
        text = value.decode(errors="replace")
        fields[field] = text

        if field == "response_format" and text not in _FORMATS:
            raise RefusedError(
                f"{field} must be {', '.join(_FORMATS)}. Received: {text!r}."
            )

        if field == "stream" and text.lower() not in ("false", "0", ""):
            raise RefusedError(
                "stream must be false here. For early results use POST /transcribe, which answers "
                "part by part, or the WebSocket /stream, which answers while somebody speaks."
            )

    if name is None:
        raise RefusedError(
            f"A form must have a file. Received: {', '.join(fields)}. {_FORM}"
        )

    return name
