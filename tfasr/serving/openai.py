"""``/v1/audio/transcriptions``: files as clients of OpenAI's service send and read them.

Source: the reference of OpenAI's API, "Create transcription" and "Errors".
"""

from collections.abc import Callable
from typing import Any, BinaryIO

from aiohttp import BodyPartReader, web

from tfasr.recognising.files import to_srt, to_vtt
from tfasr.recognising.spec import Transcript, Word
from tfasr.serving.service import RefusedError, Service, client_may_leave
from tfasr.serving.uploads import Arriving, file_name, kept

PREFIX = "/v1/"
_FIELDS_BYTES = 1 << 16  # of all that is not the file
_FORMATS: dict[str, Callable[["_Heard"], str | dict[str, Any]]] = {
    "json": lambda heard: {"text": heard.transcript.text},
    "text": lambda heard: heard.transcript.text + "\n",
    "srt": lambda heard: to_srt("", heard.transcript),
    "vtt": lambda heard: to_vtt("", heard.transcript),
    "verbose_json": lambda heard: heard.verbose(),
}
# Of OpenAI's, with the reason that a header of the answer has.
_IGNORED = {
    "model": "the server has one model",
    "language": "the model was trained on one language",
    "prompt": "the model takes none",
    "temperature": "the decoder does not sample",
    "timestamp_granularities[]": "verbose_json has words and segments",
}


class _Heard:
    def __init__(self, transcript: Transcript, parts: list[list[Word]], language: str):
        self.transcript = transcript
        self._parts = parts
        self._language = language

    def verbose(self) -> dict[str, Any]:
        def timed(name: str, text: str, first: Word, last: Word) -> dict[str, Any]:
            return {name: text, "start": round(first.start_s, 3), "end": round(last.end_s, 3)}

        segments = [(" ".join(word.text for word in part), part) for part in self._parts]
        return {
            "task": "transcribe",
            "language": self._language,
            "duration": round(self.transcript.duration_s, 3),
            "text": self.transcript.text,
            "words": [timed("word", word.text, word, word) for word in self.transcript.words],
            "segments": [
                {"id": number, **timed("text", text, part[0], part[-1])}
                for number, (text, part) in enumerate(segments)
            ],
        }


def error_answer(message: str, status: int) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    content = {"message": message, "type": kind, "param": None, "code": None}
    return web.json_response({"error": content}, status=status)


async def transcriptions(request: web.Request, service: Service) -> web.Response:
    """Answers a form with a ``file`` and, as it likes, a ``response_format``."""
    fields: dict[str, str] = {}

    async def receive(file: BinaryIO) -> str:
        return await _received(request, file, fields, service)

    try:
        with client_may_leave(request):
            async with kept(receive, service) as upload:
                write = _format(fields)
                await service.soon(upload.check)
                parts = []
                async for words in upload.recognised():
                    if request.transport is None:
                        raise ConnectionResetError
                    parts += [words] if words else []
            heard = _Heard(upload.transcript, parts, fields.get("language", ""))
            return _answer(write(heard), fields)
    except RefusedError as refusal:
        return error_answer(str(refusal), refusal.status)
    return error_answer("The client has gone.", 400)  # which nobody reads


def _answer(content: str | dict[str, Any], fields: dict[str, str]) -> web.Response:
    ignored = [f"{name}: {reason}" for name, reason in _IGNORED.items() if name in fields]
    headers = {"X-Ignored": "; ".join(ignored)} if ignored else {}
    if isinstance(content, str):
        return web.Response(text=content, headers=headers)
    return web.json_response(content, headers=headers)


def _format(fields: dict[str, str]) -> Callable[[_Heard], str | dict[str, Any]]:
    chosen = fields.get("response_format", "json")
    if chosen not in _FORMATS:
        raise RefusedError(f"response_format must be {', '.join(_FORMATS)}. Received: {chosen!r}.")
    if fields.get("stream", "false").lower() not in ("false", "0", ""):
        raise RefusedError(
            "stream must be false: POST /transcribe answers part by part, and the WebSocket "
            "/stream while somebody speaks."
        )
    return _FORMATS[chosen]


async def _received(
    request: web.Request, file: BinaryIO, fields: dict[str, str], service: Service
) -> str:
    """Writes the form's file, and its other fields into ``fields``; returns the file's name."""
    remedy = "Send multipart/form-data with the field file, as curl -F file=@talk.wav does."
    if request.content_type != "multipart/form-data":
        raise RefusedError(f"A request must be a form. Received: {request.content_type}. {remedy}")
    arriving = Arriving(request, service)
    arriving.check_size("a form", _FIELDS_BYTES)
    name, left = None, _FIELDS_BYTES

    async def begun() -> Any:
        return await request.multipart()

    form = await arriving.piece(begun())
    while (part := await arriving.piece(form.next())) is not None:
        if not isinstance(part, BodyPartReader) or (part.name == "file" and name is not None):
            raise RefusedError(f"A form must have one file. {remedy}")
        if part.name == "file":
            name = file_name(part.filename)
            await arriving.keep(file, part.read_chunk, name)
            continue
        value = b""
        while not part.at_eof():
            value += await arriving.piece(part.read_chunk())
            if len(value) > left:
                raise RefusedError("The fields of a form may have 64 KiB.", status=413)
        left -= len(value) + len(part.name or "")
        fields[part.name or ""] = value.decode(errors="replace")
        _format(fields)
    if name is None:
        raise RefusedError(f"A form must have a file. Received: {', '.join(fields)}. {remedy}")
    return name
