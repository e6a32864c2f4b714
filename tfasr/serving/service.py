"""What all clients share (recogniser, threads, limits), and a client's stream.

`Service` is made once per server. `converse` handles a WebSocket: its `Conversation`
recognises speech as it arrives, by the protocol of the toolkit Vosk, for which many
clients exist.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from aiohttp import WSMessage, WSMsgType, web

from tfasr.data.audio import resampler_to
from tfasr.errors import UsageError
from tfasr.kit.process import usable_cores
from tfasr.recognising.files import stream_json
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.segments import EndpointRules, Stream
from tfasr.recognising.spec import StreamResult, as_samples

# The highest value of any limit: 31 years, or a million gigabytes.
_LARGEST = 1e9


@dataclass(frozen=True)
class Limits:
    """Bounds that keep memory, disk and time finite whatever clients do.

    Attributes:
        max_streams: open at once; in addition, as many files may be uploaded at once.
        max_stream_s: length of a stream, and time that the upload of a file may take.
        max_upload_mb: size of a file in millions of bytes.
        max_upload_s: length of the audio in a file.
        max_message_bytes: size of a stream's message; 262144 are 8 s at 16 kHz.
        idle_s: a client that sends or reads nothing for so long is disconnected.

    Raises:
        UsageError: if a limit isn't positive.
    """

    max_streams: int = 16
    max_stream_s: float = 3600.0
    max_upload_mb: float = 500.0
    max_upload_s: float = 4 * 3600.0
    max_message_bytes: int = 1 << 18
    idle_s: float = 30.0

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= _LARGEST:
                message = f"--{field.name} must be more than 0, at most {_LARGEST:g}."
                raise UsageError(f"{message} Received: {value}.")

    @property
    def max_upload_bytes(self) -> int:
        """`max_upload_mb` in bytes."""
        return int(self.max_upload_mb * 1e6)


class RefusedError(Exception):
    """Rejects a request or ends a stream.

    Args:
        message: for the client.
        code: of a WebSocket (RFC 6455, section 7.4.1).
        status: of HTTP.
    """

    def __init__(self, message: str, *, code: int = 1008, status: int = 400):
        super().__init__(message)
        self.code = code
        self.status = status


@contextlib.contextmanager
def client_may_leave(request: Any) -> Iterator[None]:
    """Ignores a client that leaves in the block, and ends one that reads no answers.

    Args:
        request: the client's.
    """
    try:
        yield
    except ConnectionError:
        pass
    except asyncio.TimeoutError:
        if request.transport is not None:
            request.transport.abort()


class Places:
    """A number of things that may happen at once, such as streams.

    Args:
        count: how many.
        what: they are, in messages.
    """

    def __init__(self, count: int, what: str):
        self._count = count
        self._what = what
        self.taken = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Takes a place during the block; RefusedError if all are taken."""
        if self.taken >= self._count:
            raise RefusedError(
                f"The server takes at most {self._count} {self._what} at once (--max_streams), and "
                "there are that many already. Try again later.",
                code=1013,
                status=503,
            )

        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


# What a piece of work returns, in a thread or not.
Result = TypeVar("Result")


class Service:
    """A recogniser for many clients at once.

    Work runs in threads, so that the event loop isn't blocked. One pool does what takes
    milliseconds, the other recognises files part by part, so that long recordings take
    turns and delay live speech only while all processors are busy. No locks are needed:
    ONNX Runtime, Keras's traced functions and the decoders may be called from several
    threads, and state that changes belongs to a single `Stream`, which processes one
    chunk at a time.

    Args:
        recogniser: opened; called from several threads at once.
        limits: of all clients.

    Attributes:
        streams: places for streams.
        uploads: places for files.
        ending: set when the server is being shut down.
        busy: transports of requests that are being answered.
        why_no_streams: the reason for clients if the model can't stream, or None.
    """

    def __init__(self, recogniser: Recogniser, limits: Limits):
        self.recogniser = recogniser
        self.limits = limits
        self.streams = Places(limits.max_streams, "streams")
        self.uploads = Places(limits.max_streams, "files")
        self.ending: asyncio.Event = asyncio.Event()
        self.busy: set[Any] = set()
        # Each pool has so many: threads that wait leave the processor to the other's.
        threads = usable_cores()
        self._short = ThreadPoolExecutor(threads, thread_name_prefix="short")
        self._long = ThreadPoolExecutor(threads, thread_name_prefix="long")

        self.why_no_streams: str | None = None

        try:
            recogniser.spec.check_streams()
        except UsageError as error:
            self.why_no_streams = str(error)

    def warm_up(self) -> None:
        """Runs the model once, so that the first client doesn't wait for tracing."""
        # Silence takes as long as speech.
        second = np.zeros(self.recogniser.sample_rate_hz, np.float32)
        self.recogniser.transcribe(second)
        if self.why_no_streams is None:
            self.recogniser.open_stream(EndpointRules()).push(second)

    async def soon(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Does work that takes milliseconds, such as a chunk, in a thread.

        Args:
            work: a function.
            *arguments: its arguments.

        Returns:
            What it returned.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._short, work, *arguments
        )

    async def in_turn(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Does work that takes longer, such as a part of a file, in a thread.

        Args:
            work: a function.
            *arguments: its arguments.

        Returns:
            What it returned.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._long, work, *arguments
        )

    def close(self) -> None:
        """Ends the threads; work that hasn't begun is dropped."""
        for pool in (self._short, self._long):
            pool.shutdown(cancel_futures=True)


# Sample rates that a client's stream may have.
LOWEST_HZ = 8000
HIGHEST_HZ = 192000
# A message over the limit gets an answer. Over the limit times this, aiohttp just
# disconnects.
_ROOM = 4
# For a client to confirm that its stream is closed.
_CLOSING_S = 2.0
# The text messages of Vosk's protocol that are understood.
_COMMANDS = (
    '{"config": {"sample_rate": Hz}} before the samples, or {"eof": 1} after them'
)

log = logging.getLogger("tfasr")


class IncomingSpeech:
    """Signed 16-bit little-endian mono samples, in pieces of any number of bytes.

    They are resampled to the model's rate, with the same result for any pieces.

    Args:
        rate_hz: the client's sample rate, as it came in JSON.
        model_rate_hz: the model's sample rate.

    Raises:
        RefusedError: if the client's rate isn't a number in `LOWEST_HZ`..`HIGHEST_HZ`.
    """

    def __init__(self, rate_hz: object, model_rate_hz: int):
        # Some clients write 16000.0: JSON has one kind of number.
        if type(rate_hz) is float and rate_hz.is_integer():
            rate_hz = int(rate_hz)

        # In Python, true would pass for 1, so the type is compared.

        if type(rate_hz) is not int or not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
            if isinstance(rate_hz, int | float):
                received = rate_hz
            else:
                received = type(rate_hz).__name__

            limits = f"{LOWEST_HZ} to {HIGHEST_HZ}. Received: {received}."
            raise RefusedError(
                f"sample_rate must be a whole number of Hz, {limits}", code=1007
            )

        self._rate_hz = rate_hz
        self._half = b""  # the first byte of a sample, if a piece ended in it
        self._count = 0  # samples so far, at the client's rate
        self._resampler = None

        if rate_hz != model_rate_hz:
            self._resampler = resampler_to(model_rate_hz, rate_hz)

    @property
    def seconds(self) -> float:
        """Length of the speech so far."""
        return self._count / self._rate_hz

    def samples(self, data: bytes) -> np.ndarray:
        """Converts bytes to float32 ``(samples,)``.

        Half a sample waits for the next bytes.
        """
        data = self._half + data
        count = len(data) // 2
        # A message may end in the middle of a sample.
        self._half = data[2 * count :]
        self._count += count
        samples = as_samples(
            np.frombuffer(data, "<i2", count).astype(np.int16, copy=False)
        )
        if self._resampler is None or not len(samples):
            return samples

        return self._resampler.resample_chunk(samples)

    def rest(self) -> np.ndarray:
        """Returns the samples still in the resampling filter, float32 ``(samples,)``.

        Call it once, at the end.
        """
        nothing = np.zeros(0, np.float32)
        if self._resampler is None or not self._count:
            return nothing

        return self._resampler.resample_chunk(nothing, last=True)


async def converse(request: web.Request, service: Service) -> web.WebSocketResponse:
    """Handles a stream, from the WebSocket's opening to its end.

    Whatever goes wrong in it ends only this stream.

    Args:
        request: the client's, which opens a WebSocket.
        service: has the recogniser and the limits.
    """
    socket = web.WebSocketResponse(
        timeout=_CLOSING_S,
        compress=False,
        max_msg_size=_ROOM * service.limits.max_message_bytes,
    )
    try:
        await socket.prepare(request)
    except ValueError:
        # aiohttp can't answer such headers.
        raise web.HTTPBadRequest(
            text="A stream's request needs headers in ASCII."
        ) from None

    conversation = Conversation(socket, service)
    with client_may_leave(request):
        try:
            with service.streams.place():
                await conversation.run()
        except RefusedError as refusal:
            await conversation.end(refusal)
        except (ConnectionError, asyncio.TimeoutError):
            raise
        except Exception:
            log.exception("A stream failed.")
            conversation.forget()
            message = (
                "The server failed on this stream; see its log. Other streams continue."
            )
            await conversation.end(RefusedError(message, code=1011))

    return socket


class Conversation:
    """One stream, by Vosk's protocol.

    Every message with samples is answered with the utterances that ended in it, or, if
    none did, with the text so far of the current utterance. The next message is read
    only after the answers have been sent. Unread messages are held only in the system's
    buffer, so a client that doesn't read its answers is soon unable to send.

    Args:
        socket: the client's, open.
        service: has the recogniser and the limits.
    """

    def __init__(self, socket: web.WebSocketResponse, service: Service):
        self._socket = socket
        self._service = service
        self._limits = service.limits
        self._model_rate_hz = service.recogniser.sample_rate_hz
        self._incoming: IncomingSpeech | None = None
        self._stream: Stream | None = None
        # By the monotonic clock: when it was opened, and when samples came last.
        self._opened = time.monotonic()
        self._heard = self._opened

    async def run(self) -> None:
        """Processes messages until the client ends the stream, disconnects or is rejected."""
        if self._service.why_no_streams is not None:
            raise RefusedError(self._service.why_no_streams, code=1003)

        # Waited for together with each message, so that an idle client doesn't
        # delay the end.
        self._ending = asyncio.ensure_future(self._service.ending.wait())
        try:
            # None: the client has closed the stream, and needs no answer.
            while (message := await self._next()) is not None:
                if message.type is WSMsgType.BINARY:
                    await self._hear(message.data)
                elif self._is_end(message.data):
                    await self._finish()
                    await self._close(1000)
                    return
        finally:
            self._ending.cancel()

    def forget(self) -> None:
        """Drops the stream, whose state may be inconsistent after an error."""
        self._stream = None

    async def end(self, refusal: RefusedError) -> None:
        """Sends the text recognised so far, then the reason why the stream ends."""
        await self._finish(only_words=True)
        await self._say(json.dumps({"error": str(refusal)}))
        await self._close(refusal.code)

    async def _next(self) -> WSMessage | None:
        """Returns the next message with text or samples.

        None if the client closed the stream. Raises RefusedError if a limit on time is
        reached first, or the server ends.
        """
        # Whichever limit comes first: silence from the client, or the whole stream.
        last = (
            self._heard + self._limits.idle_s,
            self._opened + self._limits.max_stream_s,
        )
        left_s = min(last) - time.monotonic()
        # Even if messages are waiting.
        if left_s <= 0 or self._service.ending.is_set():
            raise self._why_not_waited()

        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            await asyncio.wait(
                {receiving, self._ending},
                timeout=left_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not receiving.done():
                raise self._why_not_waited()
        finally:
            receiving.cancel()
            # aiohttp allows one receive at a time.
            await asyncio.wait({receiving})

        message = receiving.result()
        return message if message.type in (WSMsgType.TEXT, WSMsgType.BINARY) else None

    def _why_not_waited(self) -> RefusedError:
        """Returns the reason why no message was waited for any longer."""
        if self._service.ending.is_set():
            return RefusedError("The server is being shut down.", code=1001)

        if time.monotonic() - self._opened >= self._limits.max_stream_s:
            return self._too_long()

        return RefusedError(
            f"A client must send samples at least every {self._limits.idle_s:g} s (--idle_s), or "
            'end its stream with {"eof": 1}. No samples came in that time.'
        )

    def _too_long(self) -> RefusedError:
        """Returns the reason why a stream that lasts too long ends."""
        most = f"{self._limits.max_stream_s:g} s (--max_stream_s)"
        return RefusedError(f"A stream may last at most {most}. Open another one.")

    def _is_end(self, text: str) -> bool:
        """Processes a text message; returns whether it ends the stream.

        Raises:
            RefusedError: if it isn't one of `_COMMANDS`, or comes too late.
        """
        try:
            command = json.loads(text)
        except (ValueError, RecursionError):
            command = None

        # Vosk's protocol has these two commands.
        if command == {"eof": 1}:
            return True

        config = None
        if isinstance(command, dict) and len(command) == 1:
            config = command.get("config")

        if not isinstance(config, dict) or set(config) != {"sample_rate"}:
            message = f"A text message must be {_COMMANDS}. Received: {text[:80]!r}."
            raise RefusedError(message, code=1007)

        if self._incoming is not None:
            raise RefusedError(
                "Send the sample_rate only once, before the samples.", code=1007
            )

        self._incoming = IncomingSpeech(config["sample_rate"], self._model_rate_hz)
        return False

    async def _hear(self, data: bytes) -> None:
        """Recognises a message's samples, and sends the answers.

        Raises:
            RefusedError: if the message, or the stream with it, is too long.
        """
        if len(data) > self._limits.max_message_bytes:
            raise RefusedError(
                f"A message must have at most {self._limits.max_message_bytes} bytes. Received: "
                f"{len(data)}. Send samples as they come, a tenth of a second at a time.",
                code=1009,
            )

        answers = await self._service.soon(self._push, data)

        await self._say(*answers)

        # An empty message keeps no stream alive.
        if data:
            self._heard = time.monotonic()

        incoming = self._incoming
        if incoming is not None and incoming.seconds > self._limits.max_stream_s:
            raise self._too_long()

    def _push(self, data: bytes) -> list[str]:
        """Recognises samples, in a thread; returns the answers to them."""
        if self._incoming is None:
            # A client that states no rate sends the model's.
            self._incoming = IncomingSpeech(self._model_rate_hz, self._model_rate_hz)

        if self._stream is None:
            # Opened only now, as a client may state its rate first.
            self._stream = self._service.recogniser.open_stream(EndpointRules())

        results = self._stream.push(self._incoming.samples(data))
        ended = [stream_json(result) for result in results if result.final]
        return ended or [
            json.dumps({"partial": self._stream.partial}, ensure_ascii=False)
        ]

    async def _finish(self, *, only_words: bool = False) -> None:
        """Sends the final text of the last utterance.

        With ``only_words``, only if it isn't empty.
        """
        answers = []
        if self._stream is not None:
            # Forgotten first, so that an error can't finish it a second time.
            stream = self._stream
            self._stream = None
            answers = await self._service.soon(self._last, stream, only_words)
        elif not only_words:
            # No samples came, but the protocol promises a final text.
            answers = ['{"text": ""}']

        await self._say(*answers)

    def _last(self, stream: Stream, only_words: bool) -> list[str]:
        """Recognises what is left at the end, in a thread.

        Args:
            stream: of the client; it can't be used afterwards.
            only_words: whether to leave out a last utterance without words.

        Returns:
            The answers.
        """
        results: list[StreamResult] = []
        if self._incoming is not None:
            pushed = stream.push(self._incoming.rest())
            results += [result for result in pushed if result.final]

        for result in stream.finish():
            if result.text or not only_words:
                results.append(result)

        return [stream_json(result) for result in results]

    async def _say(self, *answers: str) -> None:
        """Sends answers, each within the time that a client has to read one."""
        for answer in answers:
            await asyncio.wait_for(
                self._socket.send_str(answer.strip()), self._limits.idle_s
            )

    async def _close(self, code: int) -> None:
        """Closes the WebSocket, with a code of RFC 6455."""
        await asyncio.wait_for(
            self._socket.close(code=code), self._limits.idle_s + _CLOSING_S
        )
