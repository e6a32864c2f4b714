"""Messages between a run's chief and its workers: one gRPC stream for each worker.

A message is a JSON object and arrays. On the stream it is a header, which also lists
the arrays' types and shapes, and then the arrays' bytes in chunks. Both sides prove by
TLS that they know the shared secret; workers on one machine may have an empty one.

`ChiefPort` is the chief's side, `ChiefStream` a worker's. What they say to each other
is up to `tfasr.training.workers` and `tfasr.cluster.meeting`.
"""

import itertools
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

# Otherwise gRPC writes lines about every stranger at the port. It reads this variable
# when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc

from tfasr._version import __version__
from tfasr.cluster.description import Cluster, host_of, port_of
from tfasr.cluster.trust import CERTIFIED_NAME, SECRET, identity, on_loopback
from tfasr.errors import RunError, UsageError

log = logging.getLogger("tfasr")

START_S = 480.0  # how long workers wait for each other at the start
_PAUSE_MS = 250  # between attempts to connect
_CONNECT_MS = 5000  # for TCP and TLS together, on both sides
_FLUSH_S = 1.0  # how long a worker that ends waits for its last message to be read
_CHUNK_BYTES = 1 << 20  # of arrays, in one piece

# How often the other side is pinged, and how long it may take to answer before it
# counts as lost. It answers without Python, but pings queue behind data on a slow link.
_PING_EVERY_MS = 5000
_PING_TIMEOUT_MS = 10000

# Of both sides.
_OPTIONS = [
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    # Without this one, the timeout above is not kept: github.com/grpc/grpc/issues/39239
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A header, the only other piece, has some kB.
    ("grpc.max_receive_message_length", 2 * _CHUNK_BYTES),
]

_MOST_NAMED = 10  # strangers that the log names; about further ones it is silent
_LONGEST_REASON = 1000  # characters: gRPC sends the reason in a header of at most 8 kB

# Initial metadata; gRPC sends an empty one with a refusal.
ACCEPTED = (("accepted", "yes"),)
_SERVICE = "tfasr.Chief"
_METHOD = "Train"

Message = dict[str, Any]  # a JSON object
Arrays = list[np.ndarray]
# A type as `numpy.dtype.str` writes it, and a shape.
Spec = tuple[str, tuple[int, ...]]


def spec_of(array: np.ndarray) -> Spec:
    """Returns how a header describes an array.

    Example:
        >>> spec_of(np.zeros((2, 3), np.float32))
        ('<f4', (2, 3))
    """
    return array.dtype.str, array.shape


def pieces(message: Message, arrays: Sequence[np.ndarray] = ()) -> Iterator[bytes]:
    """Cuts a message into the pieces that gRPC sends.

    Args:
        message: a JSON object.
        arrays: what comes with it; they must not change until all is sent.
    """
    header = {"message": message, "arrays": list(map(spec_of, arrays))}
    yield json.dumps(header).encode()
    for array in arrays:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, content.size, _CHUNK_BYTES):
            yield content[start : start + _CHUNK_BYTES].tobytes()


def assembled(
    incoming: Iterator[bytes], expected: Callable[[Message], list[Spec]] | None = None
) -> tuple[Message, Arrays]:
    """Reads the next message from its pieces.

    Args:
        incoming: what gRPC receives.
        expected: gets the message, and returns which arrays must come with it before
            memory is taken for them. None, for a sender that is trusted, accepts any.

    Raises:
        ConnectionError: if the stream has ended, or this isn't such a message.
    """
    try:
        header = json.loads(_next(incoming))
        message = header["message"]
        specs = [(kind, tuple(shape)) for kind, shape in header["arrays"]]
        if expected is not None:
            wanted = expected(message)
            if specs != wanted:
                raise ConnectionError(
                    f"it sent the arrays {specs!r:.200} instead of {wanted!r:.200}"
                )

        arrays = [np.empty(shape, kind) for kind, shape in specs]
        for array in arrays:
            _fill(array.reshape(-1).view(np.uint8), incoming)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise ConnectionError(
            f"it sent no message of a worker: {error!r:.200}"
        ) from None

    return message, arrays


def _fill(content: np.ndarray, incoming: Iterator[bytes]) -> None:
    """Reads an array's bytes; raises ValueError if they are more than fit."""
    filled = 0
    while filled < content.size:
        piece = np.frombuffer(_next(incoming), np.uint8)
        content[filled : filled + piece.size] = piece
        filled += piece.size


def _next(incoming: Iterator[bytes]) -> bytes:
    """Returns the next piece; raises ConnectionError if the stream has ended."""
    reason = ""
    try:
        return next(incoming)
    except (StopIteration, grpc.RpcError) as error:
        if isinstance(error, grpc.Call):  # at a worker: the chief's reason
            reason = error.details()

    raise ConnectionError(reason or "the connection has ended")


class ChiefPort:
    """The chief's port, where each worker opens a stream.

    Opening it takes the port at once, until `close`.

    Args:
        cluster: the workers.
        secret: the secret that they share, see `tfasr.cluster.trust.shared_secret`.
        attend: called for every stream in a new thread, with the worker's rank, its
            pieces and gRPC's context; yields the pieces that are sent to the worker.
            The worker waits until ``attend`` sends the initial metadata `ACCEPTED` or
            returns, which ends the stream. If it raises ConnectionError, the worker
            gets the reason.

    Raises:
        UsageError: if the port is taken.
    """

    def __init__(
        self,
        cluster: Cluster,
        secret: bytes,
        attend: Callable[[int, Iterator[bytes], grpc.ServicerContext], Iterator[bytes]],
    ):
        self.other_version = ""  # the refusal of a worker with another version of tfasr
        self._cluster = cluster
        self._attend = attend
        # Connections that have not shown yet that they know the secret.
        self._unproven = 0
        self._strangers = 0  # connections that were refused

        # A worker that comes again may be here twice until its first stream's end is
        # noticed.
        most_streams = 2 * cluster.size + 8
        train = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server = grpc.server(
            ThreadPoolExecutor(most_streams, thread_name_prefix="worker"),
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: train})],
            options=[
                *_OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", _CONNECT_MS),
                ("grpc.http2.max_ping_strikes", 0),
            ],
            maximum_concurrent_rpcs=most_streams,
        )

        address = cluster.addresses[0]
        check_free(address, 0)
        host = "0.0.0.0"
        if on_loopback(cluster):
            host = host_of(address)

        key, certificate, authority = identity(secret, cluster)
        credentials = grpc.dynamic_ssl_server_credentials(
            grpc.ssl_server_certificate_configuration([(key, certificate)], authority),
            self._begun,
            require_client_authentication=True,
        )
        self._server.add_secure_port(f"{host}:{port_of(address)}", credentials)
        self._server.start()

    def close(self, grace_s: float | None = None) -> None:
        """Frees the port, and ends all streams that don't end within ``grace_s``."""
        self._server.stop(grace_s).wait()

    def _begun(self) -> None:
        """Counts a connection; gRPC calls this before a connection is encrypted.

        Each other worker may have one that is just being encrypted. If there are more,
        some of them are strangers'.
        """
        if self._unproven < self._cluster.size - 1:
            self._unproven += 1
        else:
            self._warn("it did not prove that it knows the secret")

    def _warn(self, reason: str) -> None:
        """Logs a refused connection, but not an endless number of them."""
        self._strangers += 1
        if self._strangers <= _MOST_NAMED:
            log.warning(
                "refused connection %d to the chief: %s", self._strangers, reason
            )

    def _serve(
        self, incoming: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Handles a worker's stream: checks who it is, then leaves it to ``attend``.

        gRPC calls this once the connection is encrypted, so the worker has proved that
        it knows the secret.
        """
        self._unproven -= 1
        hello = dict(context.invocation_metadata())
        refusal = self._refusal(hello)
        if refusal:
            self._warn(refusal)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)

        try:
            yield from self._attend(int(hello["rank"]), incoming, context)
        except ConnectionError as error:
            reason = str(error)[:_LONGEST_REASON]
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    def _refusal(self, hello: Mapping[str, str]) -> str:
        """Returns why a worker can't join, or "".

        Args:
            hello: the stream's metadata: the worker's rank and its version of tfasr.
        """
        cluster = self._cluster
        rank = hello.get("rank", "")
        if rank not in map(str, range(1, cluster.size)):
            return (
                f"A worker's rank must be 1 to {cluster.size - 1}. Received: "
                f"{rank!r:.20}."
            )

        version = hello.get("tfasr")
        if version == __version__:
            return ""

        self.other_version = (
            "All workers must be started with the same tfasr. "
            f"{cluster.name(int(rank))} has {version!r:.40}, {cluster.name(0)} has "
            f"{__version__!r}."
        )
        return self.other_version


def check_free(address: str, rank: int) -> None:
    """Checks that a worker can take its port.

    Args:
        address: the worker's ``HOST:PORT``.
        rank: its rank, for the message.

    Raises:
        UsageError: if another program has the port.
    """
    try:
        socket.create_server(("", port_of(address))).close()
    except OSError as error:
        raise UsageError(
            f"A worker's port must be free on its host. Received: {address} of worker "
            f"{rank}: {error.strerror}. Choose another in --cluster, or end the program "
            "that uses it."
        ) from None


class ChiefStream:
    """A worker's stream to its chief.

    Example:
        ::

            stream = ChiefStream(cluster, secret, within_s=START_S)
            stream.send({"kind": "ready"}, [weights])
            message, arrays = stream.receive()
            stream.close()

    Args:
        cluster: where the chief is; it must be the same for all.
        secret: shows the chief that this worker belongs to the cluster.
        within_s: how long to wait for the chief, see `connect`.
    """

    def __init__(self, cluster: Cluster, secret: bytes, within_s: float):
        self._cluster = cluster
        self._secret = secret
        self.connect(within_s)

    @property
    def name(self) -> str:
        """What messages call the chief, such as "worker 0, the chief (node1:12345)"."""
        return self._cluster.name(0)

    def connect(
        self, within_s: float, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Opens the stream, perhaps once more.

        Args:
            within_s: how long to wait for the chief.
            stopped: whether to stop waiting sooner.

        Raises:
            UsageError: if the chief has another secret, list of addresses or version of
                tfasr.
            RunError: if no chief answers in time, or ``stopped()`` becomes true.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            self._open()
            # This waits until the chief accepts this worker or ends the stream.
            if ACCEPTED[0] in self._call.initial_metadata():
                return

            code = self._call.code()
            if code is grpc.StatusCode.OK:  # the end of a meeting
                return

            self.close()
            reason = self._call.details()
            if code is grpc.StatusCode.FAILED_PRECONDITION:
                raise UsageError(reason)

            if "CERTIFICATE_VERIFY_FAILED" in reason:
                raise UsageError(
                    "All workers must have the same secret and the same addresses. "
                    f"{self.name} has others: set {SECRET} and --cluster alike "
                    "everywhere."
                )

            if time.monotonic() >= deadline_s or stopped():
                raise RunError(
                    f"All {self._cluster.size} workers must be up within "
                    f"{within_s:.0f} s. Missing: {self.name}: {reason}. Check its "
                    "messages, and whether this host can reach it on this port."
                )

            time.sleep(_PAUSE_MS / 1000)

    def send(self, message: Message, arrays: Sequence[np.ndarray] = ()) -> None:
        """Sends a message in the background.

        If that fails, the next `receive` raises the error. The arrays must not change
        before all is sent.
        """
        self._outgoing.put(pieces(message, arrays))

    def receive(self, timeout_s: float | None = None) -> tuple[Message, Arrays] | None:
        """Returns the chief's next message and its arrays; None if it isn't there in time.

        Raises:
            ConnectionError: if the stream has ended.
        """
        try:
            received = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            return None

        if isinstance(received, ConnectionError):
            raise received

        return received

    def close(self) -> None:
        """Ends the stream, once the chief has read what was sent or a second is over."""
        self._outgoing.put(None)
        self._reader.join(_FLUSH_S)
        self._channel.close()

    def _open(self) -> None:
        """Begins to connect, and to send and receive in threads.

        gRPC connects in the background: `connect` waits for that.
        """
        # Messages as iterators of pieces; None at the end.
        self._outgoing: queue.SimpleQueue = queue.SimpleQueue()
        # Messages with their arrays; at the end, a ConnectionError.
        self._incoming: queue.SimpleQueue = queue.SimpleQueue()

        self._channel = _channel(self._cluster, self._secret)
        method = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")
        hello = [("rank", str(self._cluster.rank)), ("tfasr", __version__)]
        messages = iter(self._outgoing.get, None)
        self._call = method(itertools.chain.from_iterable(messages), metadata=hello)

        # In a thread, so that the worker can look for signals while it waits.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Runs in the thread: collects messages until the stream ends."""
        received = self._incoming
        try:
            while True:
                received.put(assembled(self._call))
        except ConnectionError as error:
            received.put(error)


def _channel(cluster: Cluster, secret: bytes) -> grpc.Channel:
    """Returns an encrypted connection to the chief, which gRPC opens by itself."""
    options = [
        *_OPTIONS,
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", _PAUSE_MS),
        ("grpc.max_reconnect_backoff_ms", _PAUSE_MS),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.ssl_target_name_override", CERTIFIED_NAME),
    ]
    key, certificate, authority = identity(secret, cluster)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(cluster.addresses[0], credentials, options)
