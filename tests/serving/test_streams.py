"""Speech over a WebSocket: what is heard, and what becomes of clients that do not behave."""

import asyncio
import contextlib
import dataclasses
import json
import signal
import socket
import time
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import psutil
import pytest
import soxr
from aiohttp.test_utils import TestServer

from tests.recognising.spoken_tones import RATE_HZ, pause, spoken
from tests.serving.conftest import LIMITS, started
from tfasr.recognising.recogniser import Recogniser, load_recogniser
from tfasr.serving.server import make_application
from tfasr.serving.service import Limits, Service

pytest.importorskip(
    "aiohttp", reason="needs the serve extra: pip install 'tfasr[serve]'"
)


TEXTS = ["abc da", "dad", "cab bcd", "ab cd ab", "dab", "bad cab", "da da", "bcd abc"]
MANY = 8000
EOF = json.dumps({"eof": 1})


def pcm(samples: np.ndarray) -> bytes:
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def pieces(data: bytes, size: int = 3200) -> list[bytes]:
    """The data in messages of so many bytes."""
    return [data[start : start + size] for start in range(0, len(data), size)]


@contextlib.asynccontextmanager
async def stream(url: str, **options):
    """Opens a stream."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}stream", **options) as it,
    ):
        yield it


async def said_to_the_end(socket) -> list[dict]:
    """Returns all answers until the server closes."""
    return [json.loads(message.data) async for message in socket]


async def speak(url: str, parts: list[bytes], config: dict | None = None) -> list[dict]:
    """Sends parts, each when the one before has been answered; returns all answers."""
    async with stream(url) as socket:
        if config is not None:
            await socket.send_str(json.dumps({"config": config}))

        answers = []
        for part in parts:
            await socket.send_bytes(part)
            answers.append(await socket.receive_json(timeout=60))

        await socket.send_str(EOF)
        answers += await said_to_the_end(socket)
        assert socket.close_code == 1000

        return answers


def texts(answers: list[dict]) -> list[str]:
    """The texts of finished utterances."""
    return [answer["text"] for answer in answers if answer.get("text")]


def test_any_messages_are_answered_and_give_the_text_of_a_recording(
    server, exported_tones
):
    speech = np.concatenate([spoken("abc da", 1), pause(2.5), spoken("bcd", 2)])
    data = pcm(speech)
    # Of odd lengths, too.
    cuts = np.random.default_rng(3).integers(0, 20000, 20).cumsum()
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    parts.insert(5, b"")

    answers = asyncio.run(speak(server.url, parts))

    assert len(answers) == len(parts) + 1
    assert all(
        set(one) in ({"partial"}, {"text"}, {"text", "result"}) for one in answers
    )
    assert texts(answers) == ["abc da", "bcd"]
    assert any(one.get("partial") == "abc" for one in answers)

    heard = [word for one in answers for word in one.get("result", [])]
    expected = load_recogniser(exported_tones).transcribe(speech).words

    for word, other in zip(heard, expected, strict=True):
        assert word["word"] == other.text
        assert word["start"] == pytest.approx(other.start_s, abs=0.05)
        assert 0.5 < word["conf"] <= 1


def test_another_rate_is_converted_and_nothing_said_is_an_empty_text(server):
    fast = pcm(soxr.resample(spoken("dad cab", 4), RATE_HZ, 48000))
    answers = asyncio.run(speak(server.url, pieces(fast, 9600), {"sample_rate": 48000}))

    assert texts(answers) == ["dad cab"]
    assert asyncio.run(speak(server.url, [])) == [{"text": ""}]


def test_eight_speak_at_once_and_the_ninth_is_told_to_come_later(server):
    async def all_of_them():
        parts = [pieces(pcm(spoken(text, seed))) for seed, text in enumerate(TEXTS)]
        async with contextlib.AsyncExitStack() as stack:
            open_ = [await stack.enter_async_context(stream(server.url)) for _ in TEXTS]
            for socket, (first, *_) in zip(open_, parts, strict=True):
                await socket.send_bytes(first)
                assert "partial" in await socket.receive_json()

            async with stream(server.url) as ninth:
                (refused,) = await said_to_the_end(ninth)
                assert "at most 8 streams" in refused["error"]
                assert ninth.close_code == 1013

            async def go_on(socket, rest):
                for part in rest:
                    await socket.send_bytes(part)

                await socket.send_str(EOF)
                return await said_to_the_end(socket)

            pairs = zip(open_, parts, strict=True)
            answers = await asyncio.gather(
                *(go_on(it, rest) for it, (_, *rest) in pairs)
            )

        assert [texts(one) for one in answers] == [[text] for text in TEXTS]
        # Their places are free again.
        assert texts(await speak(server.url, parts[1])) == ["dad"]

    asyncio.run(all_of_them())


GARBAGE = [
    ("hello", 1007, "must be"),
    ("[" * 50_000, 1007, "must be"),
    ('{"config": {"sample_rate": NaN}}', 1007, "sample_rate must be a whole number"),
    ('{"config": {"sample_rate": 1e999}}', 1007, "sample_rate must be a whole number"),
    ('{"config": {"sample_rate": 1}}', 1007, "8000 to 192000"),
    ('{"config": {"sample_rate": "\\ud800"}}', 1007, "Received: str"),
    ('{"config": {"phrase_list": ["abc"]}}', 1007, "must be"),
    ('{"config": 3, "eof": 1}', 1007, "must be"),
    (bytes(LIMITS["max_streams"] * 40_000), 1009, "at most 262144 bytes"),
]


def test_garbage_is_answered_and_ends_that_client_alone(server):
    async def all_of_it():
        speech = pieces(pcm(spoken("abc da", 1)))
        async with stream(server.url) as other:
            for part in speech[:4]:
                await other.send_bytes(part)

            for garbage, code, reason in GARBAGE:
                async with stream(server.url) as socket:
                    if isinstance(garbage, str):
                        send = socket.send_str
                    else:
                        send = socket.send_bytes

                    await send(garbage)
                    (answer,) = await said_to_the_end(socket)
                    assert reason in answer["error"]
                    assert socket.close_code == code

            async with stream(server.url) as socket:  # more than is worth an answer
                with contextlib.suppress(ConnectionError):
                    await socket.send_bytes(bytes(3_000_000))

                with contextlib.suppress(ConnectionError):
                    assert await said_to_the_end(socket) == []
                assert socket.close_code in (1009, 1006)

            for part in speech[4:]:
                await other.send_bytes(part)

            await other.send_str(EOF)
            assert texts(await said_to_the_end(other)) == ["abc da"]

    asyncio.run(all_of_it())


def test_what_was_said_is_told_before_a_silent_client_is_let_go(server):
    async def fall_silent():
        async with stream(server.url) as socket:
            await socket.send_bytes(pcm(np.concatenate([spoken("dad", 1), pause(0.3)])))
            answers = await said_to_the_end(socket)
            return answers, socket.close_code

    answers, code = asyncio.run(fall_silent())
    *_, final, error = answers

    assert final["text"] == "dad"
    assert "at least every 5 s (--idle_s)" in error["error"]
    assert code == 1008


def test_messages_of_nothing_keep_nobody_alive_and_no_stream_lasts_for_ever(server):
    async def empty_messages():
        began = time.monotonic()
        async with stream(server.url) as socket:
            while True:
                await socket.send_bytes(b"")
                answer = await socket.receive_json(timeout=30)
                if "error" in answer:
                    assert "No samples came" in answer["error"]
                    return time.monotonic() - began

                await asyncio.sleep(0.2)

    async def endless():
        quiet = pcm(pause(7.0))
        async with stream(server.url) as socket:
            for _ in range(9):
                await socket.send_bytes(quiet)

            return await said_to_the_end(socket)

    async def both():
        return await asyncio.gather(empty_messages(), endless())

    seconds, answers = asyncio.run(both())

    assert seconds >= LIMITS["idle_s"]
    assert "at most 60 s (--max_stream_s)" in answers[-1]["error"]


def test_who_does_not_read_is_not_heard_and_costs_little(server):
    memory = psutil.Process(server.process.pid).memory_info
    at = urlsplit(server.url)

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((at.hostname, at.port))

        client.sendall(
            f"GET /stream HTTP/1.1\r\nHost: {at.netloc}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )

        assert client.recv(12) == b"HTTP/1.1 101"

        before = memory().rss
        speech = pcm(spoken("abcd" * 35, 1))  # so that answers are long

        for part in pieces(speech, 60_000):
            client.sendall(b"\x82\xfe" + len(part).to_bytes(2, "big") + bytes(4) + part)

        # Messages of a sample, masked by zeros.
        client.sendall((b"\x82\x82" + bytes(6)) * MANY)

        # Another client is heard meanwhile.
        assert texts(asyncio.run(speak(server.url, pieces(pcm(spoken("dad", 1)))))) == [
            "dad"
        ]

        time.sleep(2 * LIMITS["idle_s"])
        client.settimeout(1.0)
        read = 0

        with contextlib.suppress(ConnectionError):
            while data := client.recv(1 << 16):
                read += len(data)

    assert 0 < read < MANY * 100  # of more than 140 bytes each
    assert memory().rss - before < 64e6


def test_a_signal_ends_the_server_and_loses_nothing(exported_tones, tmp_path):
    async def told(url, process):
        async with stream(url) as socket:
            await socket.send_bytes(pcm(np.concatenate([spoken("dad", 1), pause(0.3)])))
            assert "partial" in await socket.receive_json(timeout=60)
            process.send_signal(signal.SIGTERM)
            answers = await said_to_the_end(socket)

            return answers, socket.close_code

    with started(exported_tones, tmp_path) as server:
        (final, error), code = asyncio.run(told(server.url, server.process))

        assert server.process.wait(timeout=60) == 0

    assert final["text"] == "dad"
    assert error["error"] == "The server is being shut down."
    assert code == 1001


@contextlib.asynccontextmanager
async def serving(recogniser: Recogniser):
    service = Service(recogniser, Limits())
    async with TestServer(make_application("tones", service)) as it:
        yield str(it.make_url("/"))

    service.close()


def test_a_model_that_cannot_stream_says_so(exported_tones):
    whole = load_recogniser(exported_tones)
    features = dataclasses.replace(whole.spec.features, normalisation="utterance")
    other = Recogniser(
        dataclasses.replace(whole.spec, features=features), whole.acoustics
    )

    async def ask():
        async with serving(other) as url, stream(url) as socket:
            return await said_to_the_end(socket), socket.close_code

    (answer,), code = asyncio.run(ask())

    assert "an4_streaming.gin" in answer["error"]
    assert code == 1003


def test_a_stream_that_fails_fails_alone(exported_tones, caplog):
    recogniser = load_recogniser(exported_tones)
    continued = recogniser.acoustics.continued
    fails = [True]

    def fail_once(features, state):
        if fails and fails.pop():
            raise RuntimeError("the device is gone")

        return continued(features, state)

    recogniser.acoustics.continued = fail_once
    speech = pieces(pcm(spoken("dad", 1)))

    async def two():
        async with serving(recogniser) as url:
            async with stream(url) as socket:
                await socket.send_bytes(b"".join(speech))
                (failed,) = await said_to_the_end(socket)
                assert socket.close_code == 1011

            return failed, await speak(url, speech)

    failed, answers = asyncio.run(two())

    assert "see its log" in failed["error"]
    assert "the device is gone" in caplog.text
    assert texts(answers) == ["dad"]
