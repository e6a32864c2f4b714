"""``/v1/audio/transcriptions``: files as clients of OpenAI's service send and read them.

Source: the reference of OpenAI's API, "Create transcription" and "Errors".
"""

from collections.abc import Callable
from typing import Any, BinaryIO

from aiohttp import BodyPartReader, web

from tfasr.alphabet import join_words
from tfasr.recognising.files import to_srt, to_vtt
from tfasr.recognising.spec import Transcript, Word
from tfasr.serving.service import RefusedError, Service, client_may_leave
from tfasr.serving.uploads import Arriving, file_name, kept

PREFIX = "/v1/"
_FIELDS_BYTES = 1 << 16  # of all other fields
_FORM = "Send multipart/form-data with the field file, as curl -F file=@talk.wav does."
# Fields of OpenAI's that change nothing, with the reason in the answer's header.
_IGNORED = {
    "model": "the server has one model",
    "language": "the model was trained on one language",
    "prompt": "the model takes none",
    "temperature": "the decoder does not sample",
    "timestamp_granularities[]": "verbose_json has words and segments",
}


def _verbose(transcript: Transcript, parts: list[list[Word]]) -> dict[str, Any]:
    def timed(name: str, words: list[Word]) -> dict[str, Any]:
        start, end = round(words[0].start_s, 3), round(words[-1].end_s, 3)
        return {name: join_words(word.text for word in words), "start": start, "end": end}

    return {
        "task": "transcribe",
        "language": "",  # unknown to the model
        "duration": round(transcript.duration_s, 3),
        "text": transcript.text,
        "words": [timed("word", [word]) for word in transcript.words],
        "segments": [{"id": number, **timed("text", part)} for number, part in enumerate(parts)],
    }


# From a transcript and the words of its parts to the body of an answer.
_FORMATS: dict[str, Callable[[Transcript, list[list[Word]]], str | dict[str, Any]]] = {
    "json": lambda transcript, _: {"text": transcript.text},
    "text": lambda transcript, _: transcript.text + "\n",
    "srt": lambda transcript, _: to_srt("", transcript),
    "vtt": lambda transcript, _: to_vtt("", transcript),
    "verbose_json": _verbose,
}


def error_answer(message: str, status: int) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    content = {"message": message, "type": kind, "param": None, "code": None}
    return web.json_response({"error": content}, status=status)


async def transcriptions(request: web.Request, service: Service) -> web.Response:
    """Answers a form with a ``file`` and an optional ``response_format``."""
    fields = {"response_format": "json"}

    async def receive(file: BinaryIO) -> str:
        return await _received(request, file, fields, service)

    try:
        with client_may_leave(request):
            async with kept(receive, service) as upload:
                await service.soon(upload.check)
                parts = []
                async for words in upload.recognised():
                    if request.transport is None:
                        raise ConnectionResetError
                    parts += [words] if words else []
            content = _FORMATS[fields["response_format"]](upload.transcript, parts)
            ignored = "; ".join(f"{name}: {_IGNORED[name]}" for name in _IGNORED if name in fields)
            headers = {"X-Ignored": ignored} if ignored else {}
            if isinstance(content, str):
                return web.Response(text=content, headers=headers)
            return web.json_response(content, headers=headers)
    except RefusedError as refusal:
        return error_answer(str(refusal), refusal.status)
    return error_answer("The client has gone.", 400)  # and drops it


def _check_field(name: str, value: str) -> None:
    if name == "response_format" and value not in _FORMATS:
        raise RefusedError(f"response_format must be {', '.join(_FORMATS)}. Received: {value!r}.")
    if name == "stream" and value.lower() not in ("false", "0", ""):
        raise RefusedError(
            "stream must be false: POST /transcribe answers part by part, and the WebSocket "
            "/stream while somebody speaks."
        )


async def _received(
    request: web.Request, file: BinaryIO, fields: dict[str, str], service: Service
) -> str:
    """Writes the form's file, and its other fields into ``fields``; returns the file's name."""
    if request.content_type != "multipart/form-data":
        raise RefusedError(f"A request must be a form. Received: {request.content_type}. {_FORM}")
    arriving = Arriving(request, service)
    arriving.check_size("a form", _FIELDS_BYTES)
    name, left = None, _FIELDS_BYTES
    form = await arriving.piece(request.multipart())
    while (part := await arriving.piece(form.next())) is not None:
        if not isinstance(part, BodyPartReader) or (part.name == "file" and name is not None):
            raise RefusedError(f"A form must have one file. {_FORM}")
        if part.name == "file":
            name = file_name(part.filename)
            await arriving.keep(file, part.read_chunk, name)
            continue
        value = b""
        while not part.at_eof():
            value += await arriving.piece(part.read_chunk())
            if len(value) > left:
                raise RefusedError("The fields of a form may have 64 KiB.", status=413)
        left -= len(value) + _FIELDS_BYTES // 64  # which also limits their number
        fields[part.name or ""] = value.decode(errors="replace")
        _check_field(part.name or "", fields[part.name or ""])
    if name is None:
        raise RefusedError(f"A form must have a file. Received: {', '.join(fields)}. {_FORM}")
    return name
