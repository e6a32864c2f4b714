"""Encrypted messages between a run's chief and its workers, which prove to share a secret."""

import contextlib
import datetime
import errno
import hashlib
import hmac
import io
import json
import logging
import secrets
import select
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfasr._version import __version__
from tfasr.cluster.description import Cluster, host_of, port_of
from tfasr.errors import RunError, UsageError

log = logging.getLogger("tfasr")

SECRET = "TFASR_CLUSTER_SECRET"
TRUSTED = "TFASR_CLUSTER_TRUSTED"
START_S = 480.0  # how long workers wait for each other at the start
_FEWEST_CHARACTERS = 16
_CONNECT_S = 5.0
_TELL_S = 20.0
_PAUSE_S = 0.25
_SHORT = 4096  # most bytes of a message from a peer that hasn't yet proved to know the secret
_SIZE = struct.Struct(">Q")
# Errors of `accept` that say nothing about the port: no descriptors or memory, a peer that left.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)


def shared_secret(cluster: Cluster, environment: Mapping[str, str], *, needed: bool) -> bytes:
    """Returns the secret that all workers of a cluster know; b"" if there is none.

    Raises:
        UsageError: if it is too short, or ``needed`` between several hosts and missing.
    """
    secret = environment.get(SECRET, "")
    if len(secret) >= _FEWEST_CHARACTERS or not (secret or (needed and not _on_loopback(cluster))):
        return secret.encode()
    raise UsageError(
        f"{SECRET} must hold a secret of at least {_FEWEST_CHARACTERS} characters, the same for "
        f"workers on all hosts. Received: {len(secret)} characters. Make one with: export "
        f"{SECRET}=$(openssl rand -hex 32)"
    )


def check_trusted(cluster: Cluster, environment: Mapping[str, str]) -> None:
    """Raises UsageError before synchronous training on several hosts, unless the user accepts it.

    TensorFlow's servers ask for no password and encrypt nothing.
    """
    one_host = len({host_of(address) for address in cluster.addresses}) == 1
    if environment.get(TRUSTED) != "1" and not one_host and not _on_loopback(cluster):
        raise UsageError(
            "Synchronous training between hosts must be allowed, as it opens ports without a "
            f"password. Received: {len(cluster.addresses)} workers without {TRUSTED}=1. Set it for "
            "all workers if only machines that you trust reach these ports; otherwise train in "
            f"rounds, encrypted: bind TrainingConfig.exchange = 'local' and set {SECRET}."
        )


def _on_loopback(cluster: Cluster) -> bool:
    hosts = {host_of(address) for address in cluster.addresses}
    return all(host == "localhost" or host.startswith("127.") for host in hosts)


class Connection:
    """One end of a connection that carries JSON objects with arrays."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._trusts = False

    def send(self, message: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        buffer = io.BytesIO()
        if arrays:
            np.savez(buffer, *arrays)
        text = json.dumps(message).encode()
        sizes = _SIZE.pack(len(text)) + _SIZE.pack(buffer.tell())
        self._connection.sendall(sizes + text)
        self._connection.sendall(buffer.getbuffer())

    def receive(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Returns the next message and its arrays; raises OSError if the connection has ended."""
        text, buffer = (_SIZE.unpack(self._bytes(_SIZE.size))[0] for _ in range(2))
        if not self._trusts and (text > _SHORT or buffer):
            raise ConnectionError("its first message is too long for a worker's")
        try:
            message = json.loads(self._bytes(text))
        except (ValueError, RecursionError) as error:
            raise ConnectionError(f"not a worker's message: {error!r}") from None
        if not isinstance(message, dict):
            raise ConnectionError(f"not a worker's message: {message!r}")
        if not buffer:
            return message, []
        with np.load(io.BytesIO(self._bytes(buffer)), allow_pickle=False) as arrays:
            return message, [arrays[f"arr_{number}"] for number in range(len(arrays.files))]

    def waiting(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` for a message; returns whether one has begun to arrive."""
        pending = getattr(self._connection, "pending", lambda: 0)
        return bool(pending() or select.select([self._connection], [], [], max(timeout_s, 0))[0])

    def trust(self) -> None:
        """Allows long messages and silences, as the other end has proved to know the secret."""
        self._trusts = True
        self._connection.settimeout(None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a message
        self._connection.close()

    def _bytes(self, count: int) -> bytearray:
        read, content = 0, bytearray(count)
        while read < count:
            size = self._connection.recv_into(memoryview(content)[read:])
            if not size:
                raise ConnectionError("the connection has ended")
            read += size
        return content


def _proof(secret: bytes, role: str, facts: Sequence[Any]) -> str:
    return hmac.new(secret, json.dumps([role, *facts]).encode(), hashlib.sha256).hexdigest()


class Listener:
    """The chief's port, where workers connect; encrypted between hosts if they share a secret."""

    def __init__(self, cluster: Cluster, secret: bytes):
        self._cluster, self._secret = cluster, secret
        self._context, self._fingerprint = None, ""
        address, local = cluster.addresses[0], _on_loopback(cluster)
        if secret and not local:
            self._context, self._fingerprint = _new_certificate()
        self._listening = listen(address, 0, host_of(address) if local else "")

    def accept(self, timeout_s: float | None = None) -> socket.socket | None:
        """Waits for the next connection; None after the timeout, or once the listener is closed."""
        while True:
            try:
                self._listening.settimeout(timeout_s)
                return self._listening.accept()[0]
            except TimeoutError:
                return None
            except OSError as error:
                if error.errno not in _PASSING:
                    return None
                time.sleep(_PAUSE_S)  # until connections of others have ended

    def admit(self, connection: socket.socket) -> tuple[int, Connection]:
        """Returns a connecting worker's rank and link; raises ConnectionError for anything else.

        Raises UsageError for a worker of this cluster with another version of tfasr.
        """
        connection.settimeout(_CONNECT_S)
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            return self._identified(Connection(connection))
        except BaseException:
            connection.close()
            raise

    def _identified(self, link: Connection) -> tuple[int, Connection]:
        nonce = secrets.token_hex(16)
        hello, _ = link.receive()
        rank, version = hello.get("rank"), hello.get("tfasr")
        facts = [self._cluster.plan, rank, hello.get("nonce"), nonce, self._fingerprint]
        proof = _proof(self._secret, "chief", facts)
        link.send({"tfasr": __version__, "nonce": nonce, "proof": proof})
        if type(rank) is not int or not 0 < rank < self._cluster.size:
            raise ConnectionError(f"it has the rank {rank}")
        if version != __version__ and hello.get("plan") == self._cluster.plan:
            raise UsageError(_OTHER_VERSION % (self._cluster.name(rank), version, __version__))
        answer, _ = link.receive()
        if not hmac.compare_digest(str(answer.get("proof")), _proof(self._secret, "worker", facts)):
            raise ConnectionError("it doesn't know the secret, or has other addresses")
        link.trust()
        return rank, link

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


_OTHER_VERSION = "All workers must be started with the same tfasr. %s has %r, this one %r."


def listen(address: str, rank: int, host: str = "") -> socket.socket:
    try:
        return socket.create_server((host, port_of(address)), backlog=1024)
    except OSError as error:
        raise UsageError(
            f"A worker's port must be free on its host. Received: {address} of worker {rank}: "
            f"{error.strerror}. Choose another in --cluster, or end the program that uses it."
        ) from None


def connect_to_chief(
    cluster: Cluster, secret: bytes, within_s: float, stopped: Callable[[], bool] = lambda: False
) -> Connection:
    """Connects a worker to its chief; each proves to the other that it knows the secret.

    Raises UsageError if the chief has another secret, list of addresses or version of tfasr;
    RunError if no chief answers within ``within_s`` seconds, or ``stopped()`` becomes true.
    """
    address, deadline_s = cluster.addresses[0], time.monotonic() + within_s
    reason = "nothing answers there"
    while True:
        try:
            place = host_of(address), port_of(address)
            connection = socket.create_connection(place, timeout=_CONNECT_S)
            reason = "another program is listening there"
            return _introduced(connection, cluster, secret)
        except OSError as error:
            log.debug("%s: %s", address, error)
        if time.monotonic() >= deadline_s or stopped():
            raise RunError(
                f"All {cluster.size} workers must be up within {within_s:.0f} s. Missing: "
                f"{cluster.name(0)}: {reason}. Check its messages, and whether this host can reach "
                "it on this port."
            )
        time.sleep(_PAUSE_S)


def _introduced(connection: socket.socket, cluster: Cluster, secret: bytes) -> Connection:
    try:
        fingerprint = ""
        if secret and not _on_loopback(cluster):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # No authority signs the certificate: the proofs below cover its fingerprint.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            connection = context.wrap_socket(connection)
            fingerprint = hashlib.sha256(connection.getpeercert(binary_form=True)).hexdigest()
        link, nonce = Connection(connection), secrets.token_hex(16)
        about = {"tfasr": __version__, "plan": cluster.plan, "rank": cluster.rank}
        link.send({**about, "nonce": nonce})
        answer, _ = link.receive()
        version, proof = answer.get("tfasr"), str(answer.get("proof"))
        facts = [cluster.plan, cluster.rank, nonce, answer.get("nonce"), fingerprint]
        if version is None:
            raise ConnectionError("no worker answers")
        if version != __version__:
            raise UsageError(_OTHER_VERSION % (cluster.name(0), version, __version__))
        if not hmac.compare_digest(proof, _proof(secret, "chief", facts)):
            raise UsageError(
                f"All workers must have the same secret and the same addresses. {cluster.name(0)} "
                f"has others: set {SECRET} and --cluster alike everywhere."
            )
        link.send({"proof": _proof(secret, "worker", facts)})
        link.trust()
        return link
    except BaseException:
        connection.close()
        raise


def _new_certificate() -> tuple[ssl.SSLContext, str]:
    """Makes a certificate for this process; returns a TLS context with it, and its fingerprint."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise UsageError(
            "Workers on several hosts encrypt what they exchange, which needs the package "
            f"cryptography on the chief: pip install 'tfasr[workers]'. ({error})"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tfasr")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + 3650 * day)
    certificate = builder.sign(key, hashes.SHA256())
    pem, der = serialization.Encoding.PEM, serialization.Encoding.DER
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # which only this user can read
        file = Path(folder) / "chief.pem"
        file.write_bytes(key.private_bytes(pem, *private) + certificate.public_bytes(pem))
        context.load_cert_chain(file)
    return context, hashlib.sha256(certificate.public_bytes(der)).hexdigest()


def await_peers(cluster: Cluster, timeout_s: float = START_S, secret: bytes = b"") -> None:
    """Waits until all workers have met at the chief's port, before TensorFlow takes their ports.

    Raises UsageError if this worker's port is taken, or another worker has another version of
    tfasr; RunError if workers are missing after ``timeout_s``.
    """
    if cluster.rank:
        listen(cluster.addresses[cluster.rank], cluster.rank).close()
        _await_chief(cluster, timeout_s, secret)
        return
    deadline_s, here = time.monotonic() + timeout_s, {}
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(contextlib.closing(Listener(cluster, secret)))
        while missing := [rank for rank in range(1, cluster.size) if rank not in here]:
            left_s, names = deadline_s - time.monotonic(), ", ".join(map(cluster.name, missing))
            if left_s <= 0:
                raise RunError(
                    f"All {cluster.size} workers must be up within {timeout_s:.0f} s. Missing: "
                    f"{names}. Check their messages, and whether they can reach this host."
                )
            connection = listener.accept(min(left_s, _TELL_S))
            if connection is None:
                log.info("waiting for %s", names)
                continue
            opened.enter_context(connection)
            with contextlib.suppress(OSError):
                rank, link = listener.admit(connection)
                here[rank] = opened.enter_context(contextlib.closing(link))
        for link in here.values():
            with contextlib.suppress(OSError):  # TensorFlow notices who has ended since
                link.send({"kind": "all are here"})


def _await_chief(cluster: Cluster, timeout_s: float, secret: bytes) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        link = connect_to_chief(cluster, secret, max(deadline_s - time.monotonic(), 0))
        with contextlib.closing(link), contextlib.suppress(OSError):  # the chief was restarted
            if link.waiting(deadline_s - time.monotonic()):
                link.receive()
                return
            raise RunError(
                f"All {cluster.size} workers must be up within {timeout_s:.0f} s. "
                f"{cluster.name(0)} still waits for others: its messages name them."
            )
