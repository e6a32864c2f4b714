"""Messages between a run's chief and its other workers, encrypted and proved by a shared secret."""

import contextlib
import datetime
import hashlib
import hmac
import json
import logging
import math
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
_FEWEST_CHARACTERS = 16
_CONNECT_S = 5.0
_PAUSE_S = 0.25
_SHORT = 4096  # the longest message, in bytes, of somebody who has not proved the secret
_LONGEST = 2**26  # of JSON; arrays come after it
_LENGTH = struct.Struct(">I")


def shared_secret(cluster: Cluster, environment: Mapping[str, str]) -> bytes:
    """Returns the secret that all workers of a cluster know; b"" if they need none.

    Raises:
        UsageError: if it is missing although workers are on several hosts, or it is too short.
    """
    secret = environment.get(SECRET, "")
    if (not secret and on_loopback(cluster)) or len(secret) >= _FEWEST_CHARACTERS:
        return secret.encode()
    raise UsageError(
        f"{SECRET} must hold the same secret of at least {_FEWEST_CHARACTERS} characters for all "
        f"workers, as they are on several hosts or have set it. Received: {len(secret)} "
        f"characters. Make one with: export {SECRET}=$(openssl rand -hex 32)"
    )


def on_loopback(cluster: Cluster) -> bool:
    hosts = {host_of(address) for address in cluster.addresses}
    return all(host == "localhost" or host.startswith("127.") for host in hosts)


class Link:
    """One end of a connection that carries JSON objects with arrays."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._limit = _SHORT

    def send(self, message: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        kinds = [[array.dtype.name, array.shape] for array in arrays]
        header = json.dumps({**message, "arrays": kinds}).encode()
        self._connection.sendall(_LENGTH.pack(len(header)) + header)
        for array in arrays:
            self._connection.sendall(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def receive(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Returns the next message and its arrays; OSError if the connection has ended."""
        (length,) = _LENGTH.unpack(self._bytes(_LENGTH.size))
        if length > self._limit:
            raise ConnectionError(f"a message of {length} bytes is too long")
        try:
            message = json.loads(self._bytes(length))
            kinds = [(np.dtype(name), tuple(shape)) for name, shape in message.pop("arrays")]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConnectionError(f"no message of a worker: {error!r}") from None
        if self._limit == _SHORT and kinds:
            raise ConnectionError("arrays came before the secret was proved")
        return message, [
            np.frombuffer(self._bytes(math.prod(shape) * kind.itemsize), kind).reshape(shape)
            for kind, shape in kinds
        ]

    def waiting(self, timeout_s: float) -> bool:
        """Whether something has arrived after at most so many seconds."""
        pending = getattr(self._connection, "pending", lambda: 0)
        return bool(pending() or select.select([self._connection], [], [], timeout_s)[0])

    def trust(self) -> None:
        """Allows long messages and long silences, once the other end has proved the secret."""
        self._limit = _LONGEST
        self._connection.settimeout(None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a message
        self._connection.close()

    def _bytes(self, count: int) -> bytearray:
        read, content = 0, bytearray(count)
        view = memoryview(content)
        while read < count:
            size = self._connection.recv_into(view[read:])
            if not size:
                raise ConnectionError("the connection has ended")
            read += size
        return content


def _proof(secret: bytes, role: str, facts: Sequence[Any]) -> str:
    return hmac.new(secret, json.dumps([role, *facts]).encode(), hashlib.sha256).hexdigest()


class Door:
    """Where the chief lets its workers in. It encrypts unless all workers are on the loopback."""

    def __init__(self, cluster: Cluster, secret: bytes):
        self._cluster = cluster
        self._secret = secret
        self._context, self._fingerprint = None, ""
        address = cluster.addresses[0]
        local = on_loopback(cluster)
        if not local:
            self._context, self._fingerprint = _new_certificate()
        try:
            place = (host_of(address) if local else "", port_of(address))
            self._listening = socket.create_server(place, backlog=cluster.size + 8)
        except OSError as error:
            raise UsageError(
                f"The chief's port must be free on its host. Received: {address}: "
                f"{error.strerror}. Choose another in --cluster, or end the program that uses it."
            ) from None

    def accept(self) -> socket.socket | None:
        """Waits for the next connection; None once the door is closed."""
        try:
            return self._listening.accept()[0]
        except OSError:
            return None

    def admit(self, connection: socket.socket) -> tuple[int, Link]:
        """Returns the rank of the worker at a connection; ConnectionError unless it is one."""
        connection.settimeout(_CONNECT_S)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link, nonce = Link(connection), secrets.token_hex(16)
        hello, _ = link.receive()
        rank = hello.get("rank")
        facts = [self._cluster.plan, rank, hello.get("nonce"), nonce, self._fingerprint]
        proof = _proof(self._secret, "chief", facts)
        link.send({"tfasr": __version__, "nonce": nonce, "proof": proof})
        answer, _ = link.receive()
        expected = _proof(self._secret, "worker", facts)
        if not hmac.compare_digest(str(answer.get("proof")), expected):
            raise ConnectionError("it does not know the secret, or has other addresses")
        if type(rank) is not int or not 0 < rank < self._cluster.size:
            raise ConnectionError(f"it has the rank {rank}")
        link.trust()
        return rank, link

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def knock(
    cluster: Cluster, secret: bytes, within_s: float, stopped: Callable[[], bool] = lambda: False
) -> Link:
    """Connects a worker to its chief, and proves to each that the other knows the secret.

    Raises:
        UsageError: if the chief has another secret, list of addresses or version of tfasr.
        RunError: if there is no chief for so long, or ``stopped`` becomes true.
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
                f"{cluster.name(0)} must answer within {within_s:.0f} s: {reason}. Check its "
                "messages, and whether this host can reach it on this port."
            )
        time.sleep(_PAUSE_S)


def _introduced(connection: socket.socket, cluster: Cluster, secret: bytes) -> Link:
    try:
        fingerprint = ""
        if not on_loopback(cluster):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # No authority signs the certificate: the proof below covers its fingerprint.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            connection = context.wrap_socket(connection)
            fingerprint = hashlib.sha256(connection.getpeercert(binary_form=True)).hexdigest()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link, nonce = Link(connection), secrets.token_hex(16)
        link.send({"rank": cluster.rank, "nonce": nonce})
        answer, _ = link.receive()
        facts = [cluster.plan, cluster.rank, nonce, answer.get("nonce"), fingerprint]
        if answer.get("tfasr") != __version__:
            raise UsageError(
                "All workers must be started with the same tfasr. "
                f"{cluster.name(0)} has {answer.get('tfasr')!r}, this one {__version__!r}."
            )
        expected = _proof(secret, "chief", facts)
        if not hmac.compare_digest(str(answer.get("proof")), expected):
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
    """Makes a certificate for this process alone; returns it in use, and its fingerprint."""
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
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=2))
    certificate = builder.not_valid_after(now + datetime.timedelta(days=3650)).sign(
        key, hashes.SHA256()
    )
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # which only this user can read
        file = Path(folder) / "chief.pem"
        file.write_bytes(key.private_bytes(pem, *private) + certificate.public_bytes(pem))
        context.load_cert_chain(file)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return context, hashlib.sha256(der).hexdigest()
