"""Clients that mean harm: half requests, malformed ones, uploads that ask for memory or disk."""

import asyncio
import contextlib
import io
import json
import os
import resource
import socket
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile

from tests.recognising.spoken_tones import RATE_HZ, spoken, write_wav
from tests.serving.conftest import started
from tests.serving.test_requests import send
from tests.serving.test_streams import TEXTS, pcm, pieces, speak, texts

pytest.importorskip(
    "aiohttp", reason="needs the serve extra: pip install 'tfasr[serve]'"
)

FILES = 128  # that the server may have open
MB = 2**20


@pytest.fixture(scope="module")
def hostile_server(exported_tones, tmp_path_factory):
    """A server with few files to open; its run folder's name is no UTF-8."""
    folder = tmp_path_factory.mktemp("kept")
    name = tmp_path_factory.mktemp("names") / os.fsdecode(b"caf\xe9")
    name.symlink_to(exported_tones)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"max_streams": 8, "idle_s": 2, "max_upload_mb": 10, "max_stream_s": 30}

    with (folder / "log").open("w+") as log, contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
        try:
            server = stack.enter_context(started(name, folder, stderr=log, **limits))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        yield server


def connected(server):
    host, port = server.url[7:-1].split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def logged(server, since=0):
    """What the server has logged, from a position on."""
    return (server.folder / "log").read_text()[since:]


def settled(server):
    """Returns the log once nothing is added to it: a line may come after the client's
    answer.
    """
    text = None
    while text != logged(server):
        text = logged(server)
        time.sleep(0.1)

    return text


def test_half_requests_lock_nobody_out(hostile_server):
    """More of them than the server may open files, all the time, and eight who speak
    beside.
    """
    host, port = hostile_server.url[7:-1].split(":")

    async def half(number):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(
                        b"GET /stream HTTP/1.1\r\nHost: 127" if number % 3 else b""
                    )
                    await reader.read()
                finally:
                    writer.close()

    async def all_of_them():
        halves = [asyncio.ensure_future(half(number)) for number in range(2 * FILES)]
        await asyncio.sleep(0.5)
        spoken_parts = [
            pieces(pcm(spoken(text, seed))) for seed, text in enumerate(TEXTS)
        ]
        speakers = (speak(hostile_server.url, parts) for parts in spoken_parts)
        answers = await asyncio.wait_for(asyncio.gather(*speakers), 60)

        for task in halves:
            task.cancel()

        await asyncio.wait(halves)
        await asyncio.sleep(0.1)  # in which their connections are closed

        return answers

    assert [texts(one) for one in asyncio.run(all_of_them())] == [
        [text] for text in TEXTS
    ]
    assert psutil.Process(hostile_server.process.pid).num_fds() < FILES
    assert len(logged(hostile_server)) < 2000


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"GET / HTTP/1.1\r\n"]
)
def test_a_connection_without_a_whole_request_is_let_go(hostile_server, begun):
    with connected(hostile_server) as client:
        client.sendall(begun)

        with contextlib.suppress(ConnectionError):  # a reset is an end too
            assert client.recv(1) == b""


HOST = "Host: 127.0.0.1\r\n"
POST = f"POST /transcribe HTTP/1.1\r\n{HOST}"
SOCKET = f"GET /stream HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\n"
VERSION_13 = f"{SOCKET}Sec-WebSocket-Version: 13\r\n"
MALFORMED = {
    "method": f"G@T / HTTP/1.1\r\n{HOST}\r\n",
    "version": f"GET / HTTP/9.z\r\n{HOST}\r\n",
    "no request": "\x1b[31mhello\r\n\r\n",
    "header without a colon": "GET / HTTP/1.1\r\nHost\r\n\r\n",
    "header with a NUL": "GET / HTTP/1.1\r\nHo\0st: a\r\n\r\n",
    "header with an escape": f"GET / HTTP/1.1\r\n{HOST}\x1b]0;a\x07: b\r\n\r\n",
    "long line": f"GET /{'a' * 20_000} HTTP/1.1\r\n{HOST}\r\n",
    "long header": f"GET / HTTP/1.1\r\n{HOST}X: {'b' * 20_000}\r\n\r\n",
    "many headers": f"GET / HTTP/1.1\r\n{HOST}{'X: 1' * 5000}\r\n\r\n",
    "two lengths": f"{POST}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "length below 0": f"{POST}Content-Length: -3\r\n\r\n",
    "length of 400 digits": f"{POST}Content-Length: {'9' * 400}\r\n\r\n",
    "no chunk": f"{POST}Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "unknown encoding": f"{POST}Transfer-Encoding: foo\r\n\r\n",
    "gzip garbage": f"{POST}Content-Encoding: gzip\r\nContent-Length: 8\r\n\r\ngarbage!",
    "deflate garbage": f"{POST}Content-Encoding: deflate\r\nContent-Length: 8\r\n\r\ngarbage!",
    "upgrade that isn't UTF-8": f"GET /stream HTTP/1.1\r\n{HOST}Upgrade: \x8fwebsocket\r\n\r\n",
    "no key": f"{VERSION_13}\r\n",
    "key that isn't ASCII": f"{VERSION_13}Sec-WebSocket-Key: \xc3\xa9\r\n\r\n",
    "bad key": f"{VERSION_13}Sec-WebSocket-Key: x\r\n\r\n",
}


def test_a_malformed_request_is_a_line_of_the_log_at_most(exported_tones, tmp_path):
    with (
        (tmp_path / "log").open("w+") as log,
        started(exported_tones, tmp_path, stderr=log, idle_s=2) as server,
    ):
        for name, request in MALFORMED.items():
            before = len(settled(server))
            with connected(server) as client:
                client.sendall(request.encode("latin-1"))
                answer = client.recv(100)

            assert answer.split()[1] == b"400", name

            lines = settled(server)[before:]

            assert lines.count("\n") <= 1, name
            assert len(lines) < 400, name

        for _ in range(100):
            with connected(server) as client:
                client.sendall(MALFORMED["version"].encode())
                client.recv(100)

        assert logged(server).count("\n") < 30
        assert logged(server).isascii()
        assert "\x1b" not in logged(server)


def test_a_client_that_leaves_before_its_stream_begins_is_no_failure(hostile_server):
    before = len(logged(hostile_server))
    request = f"{VERSION_13}Sec-WebSocket-Key: {'A' * 22}==\r\n\r\n"
    for _ in range(300):
        with connected(hostile_server) as client:
            client.sendall(request.encode())
            client.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )

    with connected(hostile_server) as client:
        client.sendall(f"GET / HTTP/1.1\r\n{HOST}\r\n".encode())

        assert b"200" in client.recv(100)

    assert "Traceback" not in logged(hostile_server, before)


def wav(rate_hz=RATE_HZ, channels=1, frames=RATE_HZ):
    """A WAV file of silence, whose header may lie about rate and channels."""
    head = struct.pack("<HHIIHH", 1, channels, rate_hz, 2 * channels * rate_hz % 2**32,
                       2 * channels, 16)  # fmt: skip
    data = bytes(2 * channels * frames)
    size = struct.pack("<I", len(data))
    whole = struct.pack("<I", len(data) + 36)

    return (
        b"RIFF"
        + whole
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + head
        + b"data"
        + size
        + data
    )


def float_wav(loudest):
    """A WAV file in which every sample is as loud as this."""
    file = io.BytesIO()
    soundfile.write(
        file, np.full(RATE_HZ, loudest), RATE_HZ, format="WAV", subtype="FLOAT"
    )
    return file.getvalue()


def test_a_hundred_hostile_uploads_leave_memory_as_it_was(hostile_server):
    files = [wav(100_000_000, frames=1_000_000), wav(900_000, 32, 30_000), wav(2**31 - 1),
             wav(1, frames=20), wav(channels=40), float_wav(1e30), bytes(2_000_000),
             wav(768_000, frames=1_000_000)]  # fmt: skip
    process = psutil.Process(hostile_server.process.pid)

    def upload(times):
        for number in range(times):
            status, lines = send(hostile_server, io.BytesIO(files[number % len(files)]))
            assert status == 200 or "error" in lines[-1]

        return process.memory_info().rss

    # The first ones load resamplers and grow the heap.
    once_each = upload(2 * len(files))
    assert upload(100) - once_each < 50 * MB
    assert "Traceback" not in logged(hostile_server)


def test_samples_too_loud_are_named_without_a_traceback(hostile_server):
    _, (*_, last) = send(hostile_server, float_wav(1e30), "loud.wav")

    assert "loud.wav" in last["error"] or "1e+30" in last["error"]
    assert "Traceback" not in logged(hostile_server)


def test_a_bomb_is_as_large_as_what_it_becomes(hostile_server):
    bomb = zlib.compress(bytes(200_000_000))
    with connected(hostile_server) as client:
        head = f"{POST}Content-Encoding: deflate\r\nContent-Length: {len(bomb)}\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            client.sendall(head.encode() + bomb)

        assert client.recv(100).split()[1] == b"413"


def test_nothing_of_a_recording_is_left_after_a_kill(exported_tones, tmp_path):
    speech = write_wav(tmp_path / "said.wav", spoken("abc dad")).read_bytes()
    kept = tmp_path / "kept"
    kept.mkdir()
    received = False

    with (
        contextlib.suppress(AssertionError),  # it does not end well
        started(exported_tones, kept) as server,
        connected(server) as client,
    ):
        head = f"{POST}Content-Length: {len(speech) + 1}\r\n\r\n"
        client.sendall(head.encode() + speech)  # all but the last byte
        deadline = time.monotonic() + 20

        while not received and time.monotonic() < deadline:
            received = keeps_a_file_in(kept, server.process.pid)

        server.process.kill()

    assert received
    assert list(kept.iterdir()) == []


def keeps_a_file_in(folder, pid):
    """Whether the process has a file of the folder open."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if path.readlink().is_relative_to(folder):
                return True

    return False


def test_a_stream_in_a_folder_of_any_name_is_heard(hostile_server):
    answers = asyncio.run(speak(hostile_server.url, pieces(pcm(spoken("dad", 1)))))

    assert texts(answers) == ["dad"]
    assert json.dumps(answers)
