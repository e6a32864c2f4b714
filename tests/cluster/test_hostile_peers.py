"""Strangers at the chief's port, and workers that are stopped, killed or lie: training goes on."""

import contextlib
import logging
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from tests.cluster.test_hub import (
    FEW,
    SECRET_BYTES,
    Worker,
    cluster_of,
    fits,
    hub_of,
    of_rank,
    round_of,
)
from tfasr._version import __version__
from tfasr.cluster.description import Cluster, port_of
from tfasr.cluster.stream import ACCEPTED, ChiefStream
from tfasr.cluster.trust import identity

CLOSED_S = 7.0  # strangers are sent away after 5


def place(cluster: Cluster) -> tuple[str, int]:
    return "127.0.0.1", port_of(cluster.addresses[0])


def stranger(cluster: Cluster, content: bytes = b"") -> socket.socket:
    connection = socket.create_connection(place(cluster), timeout=CLOSED_S)
    connection.sendall(content)
    return connection


def call(
    cluster: Cluster,
    rank: int,
    sent,
    version: str = __version__,
    through: str | None = None,
):
    """Opens a stream of any messages as a worker that knows the secret."""
    key, certificate, authority = identity(SECRET_BYTES, of_rank(cluster, rank))
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    options = [
        ("grpc.ssl_target_name_override", "tfasr"),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    channel = grpc.secure_channel(through or cluster.addresses[0], credentials, options)
    hello = [("rank", str(rank)), ("tfasr", version)]
    return channel, channel.stream_stream("/tfasr.Chief/Train")(sent, metadata=hello)


def is_closed(connection: socket.socket) -> bool:
    """Waits for the chief to end a connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass

    return True


def trains(hub, first: int) -> bool:
    """Returns whether the chief and worker 1 both train on the next round."""
    _, delivered = round_of(hub, first, first + 1)
    return sorted(one.rank for one in delivered) == [0, 1]


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


GARBAGE = {
    "a browser": b"GET / HTTP/1.1\r\nHost: chief\r\n\r\n",
    "HTTP/2 in the open": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 100,
    "zeros": bytes(100_000),
    "a TLS record of nonsense": b"\x16\x03\x01\x02\x00" + b"x" * 600,
    "a TLS record without end": b"\x16\x03\x01\xff\xff" + b"x" * 100_000,
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_cut_off_at_once_and_training_goes_on(content):
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, notes):
        Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        with (
            contextlib.suppress(ConnectionError),
            closing(stranger(cluster, content)) as garbage,
        ):
            began = time.monotonic()
            assert is_closed(garbage)
            assert time.monotonic() - began < 1

        assert trains(hub, 0)

    assert not notes


def test_strangers_are_counted_and_the_log_names_only_the_first(caplog):
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, _):
        Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        for _ in range(60):
            with closing(stranger(cluster, b"GET / HTTP/1.1\r\n\r\n")) as garbage:
                is_closed(garbage)

        assert trains(hub, 0)

    named = [line for line in caplog.messages if "refused connection" in line]
    assert len(named) == 10
    assert "did not prove that it knows the secret" in named[0]


@pytest.mark.slow
def test_silent_and_slow_strangers_are_sent_away(caplog):
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, notes), contextlib.ExitStack() as opened:
        Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        silent = opened.enter_context(closing(stranger(cluster)))
        half = opened.enter_context(closing(stranger(cluster, client_hello())))
        slow = opened.enter_context(closing(stranger(cluster)))
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in client_hello():  # of more bytes than are sent in this time
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
                if time.monotonic() - began > CLOSED_S:
                    break

        assert is_closed(slow)
        assert is_closed(half)
        assert is_closed(silent)
        assert time.monotonic() - began < CLOSED_S + 1
        assert trains(hub, 0)

    assert not notes


def test_many_strangers_take_little_memory():
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, _), contextlib.ExitStack() as opened:
        Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        before = psutil.Process().memory_info().rss
        for _ in range(200):
            opened.enter_context(closing(stranger(cluster, client_hello())))
        time.sleep(0.5)
        assert psutil.Process().memory_info().rss - before < 50e6
        assert trains(hub, 0)


@pytest.mark.slow
def test_strangers_do_not_keep_a_worker_out():
    cluster = cluster_of(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with hub_of(cluster) as (hub, _), contextlib.ExitStack() as opened:
        # Descriptors run out while strangers hold connections open and say nothing.
        used = len([*Path("/proc/self/fd").iterdir()])
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    opened.enter_context(closing(stranger(cluster)))

            time.sleep(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        worker = ChiefStream(of_rank(cluster, 1), SECRET_BYTES, 3 * FEW)
        with closing(worker):
            worker.send({"kind": "join", "offer": {}})
            assert hub.await_all(fits, 0, FEW) == []


def test_a_recorded_worker_can_not_be_replayed():
    cluster = cluster_of(2)
    recorded = bytearray()
    with (
        hub_of(cluster) as (hub, notes),
        socket.create_server(("127.0.0.1", 0)) as between,
    ):

        def pass_on() -> None:
            worker, _ = between.accept()
            with (
                closing(worker),
                closing(socket.create_connection(place(cluster))) as chief,
            ):

                def back() -> None:
                    with contextlib.suppress(OSError):
                        while content := chief.recv(65536):
                            worker.sendall(content)

                threading.Thread(target=back, daemon=True).start()
                with contextlib.suppress(OSError):
                    while content := worker.recv(65536):
                        recorded.extend(content)
                        chief.sendall(content)

        threading.Thread(target=pass_on, daemon=True).start()
        through = f"127.0.0.1:{between.getsockname()[1]}"
        channel, stream = call(cluster, 1, iter([]), version="0.0.0", through=through)
        with channel:
            stream.initial_metadata()
            # So it knew the secret.
            assert stream.code() is grpc.StatusCode.FAILED_PRECONDITION

        assert len(recorded) > 500

        Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        with (
            contextlib.suppress(ConnectionError),
            closing(stranger(cluster, recorded)) as again,
        ):
            assert is_closed(again)
        assert trains(hub, 0)

    assert not notes


NO_WORKERS = {
    "nothing of ours": [b"hello"],
    "arrays before it may": [
        b'{"message": {"kind": "join"}, "arrays": [["<f4", [1000000000]]]}'
    ],
    "a header of many megabytes": [b'{"message": {}, "arrays": []}' + b" " * 5_000_000],
    "an offer that is none": [
        b'{"message": {"kind": "join", "offer": 7}, "arrays": []}'
    ],
    "nothing": [],
}


@pytest.mark.parametrize("sent", NO_WORKERS.values(), ids=NO_WORKERS)
def test_who_knows_the_secret_and_speaks_nonsense_is_sent_away(sent):
    cluster = cluster_of(3)
    with hub_of(cluster) as (hub, notes):
        Worker(cluster, 1)
        hub.await_all(lambda offer, name: "" if "tfasr" in offer else "unlike", 0, 0.5)
        hub.open(1, 0, 0, hub.weights, lambda: [])
        channel, stream = call(cluster, 2, iter(sent))
        with channel:
            with contextlib.suppress(grpc.RpcError):
                list(stream)
            assert not stream.is_active()

        assert trains(hub, 0)

    assert not notes


def test_no_more_streams_are_served_than_workers_need():
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, _), contextlib.ExitStack() as opened:
        waits = threading.Event()
        opened.callback(waits.set)
        calls = []
        for _ in range(30):
            channel, stream = call(
                cluster, 1, (b"" for _ in [0] if waits.wait() and False)
            )
            opened.enter_context(channel)
            calls.append(stream)

        served = [
            stream for stream in calls if ACCEPTED[0] in stream.initial_metadata()
        ]
        assert 2 <= len(served) <= 16
        refused = {stream.code() for stream in calls if stream not in served}
        assert refused == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        for stream in served:
            stream.cancel()
        Worker(cluster, 1)
        assert hub.await_all(fits, 0, FEW) == []


# Processes


@contextlib.contextmanager
def process(cluster: Cluster, rank: int = 1, secret: bytes = SECRET_BYTES):
    command = [
        sys.executable,
        "-m",
        "tests.cluster.peer",
        ",".join(cluster.addresses),
        str(rank),
    ]
    peer = subprocess.Popen(
        [*command, secret.decode()], stderr=subprocess.PIPE, text=True
    )
    try:
        yield peer
    finally:
        peer.kill()
        peer.communicate()


def noticed(notes: list, within_s: float) -> float:
    """Returns after how many seconds a worker was left out."""
    began = time.monotonic()
    while not notes and time.monotonic() - began < within_s:
        time.sleep(0.02)
    assert [key for key, _ in notes] == ["worker_left"]
    return time.monotonic() - began


def test_a_process_with_a_wrong_secret_says_so_and_ends():
    cluster = cluster_of(2)
    with hub_of(cluster), process(cluster, secret=b"quite another secret") as peer:
        assert peer.wait(FEW) == 1
        assert "All workers must have the same secret" in peer.stderr.read()


def test_a_killed_process_is_noticed_at_once():
    cluster = cluster_of(2)
    with hub_of(cluster, timeout_s=100.0) as (hub, notes), process(cluster) as peer:
        assert hub.await_all(fits, 0, 2 * FEW) == []
        assert trains(hub, 0)
        peer.kill()
        assert noticed(notes, FEW) < 2
        _, delivered = round_of(hub, 1, 2)

    assert [one.rank for one in delivered] == [0]


@pytest.mark.slow
def test_a_stopped_process_is_noticed_and_may_come_back():
    cluster = cluster_of(2)
    with hub_of(cluster, timeout_s=100.0) as (hub, notes), process(cluster) as peer:
        assert hub.await_all(fits, 0, 2 * FEW) == []
        assert trains(hub, 0)
        os.kill(peer.pid, signal.SIGSTOP)
        # A ping every 5 s, whose answer may take 10 s.
        assert noticed(notes, 40) < 25
        _, delivered = round_of(hub, 1, 2)
        assert [one.rank for one in delivered] == [0]
        os.kill(peer.pid, signal.SIGCONT)
        assert peer.wait(FEW) == 1  # it learns that its stream has ended
        Worker(cluster, 1)
        assert hub.await_all(fits, 0, FEW) == []
        assert trains(hub, 2)


def test_a_worker_that_lies_is_told_so_and_may_come_back(caplog):
    cluster = cluster_of(2)
    caplog.set_level(logging.WARNING)
    with hub_of(cluster) as (hub, notes):
        with closing(ChiefStream(of_rank(cluster, 1), SECRET_BYTES, FEW)) as chief:
            chief.send({"kind": "join", "offer": {}})
            hub.await_all(fits, 0, FEW)
            chief.receive()
            hub.open(1, 0, 1, hub.weights, lambda: [])
            block, _ = hub.take()
            message, arrays = chief.receive()
            assert message["block"]["steps"] == block.steps
            chief.send({"steps": 10**300}, [np.full_like(arrays[0], np.nan)])
            with pytest.raises(
                ConnectionError, match=r"result is wrong: steps is 1000.* 0 to 1$"
            ):
                chief.receive()

        noticed(notes, FEW)

    assert any("left out: its result is wrong" in line for line in caplog.messages)
