"""Starts workers on this machine, shows their output, and ends all when one fails."""

import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO, Any

from tfasr._version import __version__
from tfasr.cluster.description import TF_CONFIG, Cluster, host_of, port_of
from tfasr.errors import RunError, UsageError
from tfasr.kit.process import start_module, usable_cores

log = logging.getLogger("tfasr")

# A worker notices by itself that another has ended and names it; after this time it is stopped.
NOTICE_S = 20.0
END_S = 15.0
_LOOK_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


def worker_variables(ports: Sequence[int], rank: int) -> dict[str, str]:
    workers = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    config = {"cluster": workers, "task": {"type": "worker", "index": rank}}
    return {TF_CONFIG: json.dumps(config), "PYTHONUNBUFFERED": "1"}


def thread_variables(count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Splits this machine's cores between workers, unless the user has set the variables."""
    threads = str(max(usable_cores() // count, 1))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    return {name: threads for name in names if name not in environment}


def launch(count: int, arguments: Sequence[str]) -> int:
    """Runs a tfasr command in ``count`` processes and returns when all have ended.

    Each process's output is prefixed with its rank. When one fails, the others have `NOTICE_S` to
    end by themselves; then they get SIGTERM and, `END_S` later, SIGKILL. SIGTERM and SIGINT are
    passed on to all.

    Returns:
        0, or the exit code of the first process that failed (128 plus the number of a signal).
    """
    workers, pumps = _Workers([]), []
    before = {number: signal.signal(number, workers.pass_on) for number in _SIGNALS}
    try:
        ports = free_ports(count)
        threads = thread_variables(count, os.environ)
        for rank in range(count):
            process = _start(arguments, {**threads, **worker_variables(ports, rank)})
            workers.processes.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                pump = threading.Thread(target=_prefixed, args=(source, target, rank), daemon=True)
                pump.start()
                pumps.append(pump)
        return workers.wait()
    except (OSError, RuntimeError) as error:  # limits on files, processes or threads
        raise RunError(
            f"Worker {len(workers.processes)} of {count} could not start ({error}), so the others "
            "were ended. Start fewer, or raise the limits (ulimit -n, ulimit -u)."
        ) from error
    finally:
        workers.kill()
        for pump in pumps:
            pump.join(timeout=5)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers:
    def __init__(self, processes: list[subprocess.Popen]):
        self.processes = processes
        self._passed_on = False

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._passed_on = True
        self._send(signal.Signals(number))

    def wait(self) -> int:
        failed: int | None = None
        due_s: list[tuple[float, signal.Signals]] = []
        while (codes := [process.poll() for process in self.processes]).count(None):
            bad = [rank for rank, code in enumerate(codes) if code]
            if bad and failed is None:
                failed = bad[0]
                now_s = time.monotonic()
                due_s = [(now_s + NOTICE_S + END_S, signal.SIGKILL)]
                if not self._passed_on:  # a second signal would end them before they have saved
                    code = codes[failed]
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    log.warning("worker %d ended with %s: ending the others", failed, how)
                    due_s.insert(0, (now_s + NOTICE_S, signal.SIGTERM))
            while due_s and time.monotonic() >= due_s[0][0]:
                self._send(due_s.pop(0)[1])
            time.sleep(_LOOK_S)
        code = next(filter(None, codes), 0) if failed is None else codes[failed]
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)


def _start(arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen:
    return start_module(
        *("tfasr.cli", *arguments),
        environment=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Its own session, so Ctrl-C reaches only this process, which passes it on once.
        start_new_session=hasattr(os, "setsid"),
    )


def _prefixed(source: IO[bytes], target: IO[str], rank: int) -> None:
    for line in source:
        text = line.decode(errors="replace").rstrip("\r\n")
        target.write(f"[{rank}] {text}\n")
        target.flush()


# How long workers wait at the start for each other, and then for TensorFlow: ten minutes in total.
START_S, BEGIN_S = 480.0, 120.0
_TELL_S = 10.0
_CONNECT_S = 3.0
_PAUSE_S = 0.25
_MOST_BYTES = 4096  # of a question or an answer


def await_peers(cluster: Cluster, timeout_s: float | None = None) -> None:
    """Waits up to `START_S` (by default) until all workers have met on their ports.

    Raises:
        UsageError: if this worker's port is taken, or another worker has another version of tfasr.
        RunError: if workers are missing after the timeout.
    """
    timeout_s = START_S if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + timeout_s
    tell_s = time.monotonic() + _TELL_S
    with _Meeting(cluster) as meeting:
        while missing := meeting.missing(deadline_s):
            why = ", ".join(f"{cluster.name(rank)}: {why}" for rank, why in missing.items())
            if time.monotonic() >= deadline_s:
                raise RunError(
                    f"All {cluster.size} workers must be up within {timeout_s:.0f} s. Missing: "
                    f"{why}. Check their messages, and whether this host can reach them on these "
                    "ports."
                )
            if time.monotonic() >= tell_s:
                log.info("waiting for %s", why)
                tell_s += 6 * _TELL_S
            time.sleep(_PAUSE_S)


class _Meeting:
    """Lets workers identify each other before TensorFlow's servers take their ports.

    Each worker asks every other one at its port. The answer repeats the question's nonce and has
    the version, all addresses and the rank, so no other program can pass for a worker. Questions
    and answers also contain the id of the process that the sender has met at the receiver's rank,
    which only that process can have given. A worker leaves once it has met all others and they have
    met it, so a worker that stops answering has left.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._id = secrets.token_hex(8)
        self._met: dict[int, str] = {}  # ids by rank
        self._met_by: set[int] = set()
        self._refusal = ""
        address, meeting = cluster.addresses[cluster.rank], self

        class Answer(socketserver.StreamRequestHandler):
            timeout = _CONNECT_S

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    meeting._answer(self.rfile.readline(_MOST_BYTES), self.wfile)

        try:
            self._server = _Server(("", port_of(address)), Answer)
        except OSError as error:
            raise UsageError(
                f"A worker's port must be free on its host. Received: {address} of worker "
                f"{cluster.rank}: {error.strerror}. Choose another in --cluster, or end the "
                "program that uses it."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_PAUSE_S / 5,))

    def __enter__(self) -> "_Meeting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def missing(self, deadline_s: float) -> dict[int, str]:
        """Asks the missing workers, and returns why some are still missing, by rank."""
        reasons = {}
        for rank in range(self._cluster.size):
            if rank == self._cluster.rank or (rank in self._met and rank in self._met_by):
                continue
            left_s = deadline_s - time.monotonic()
            reason = self._ask(rank, min(_CONNECT_S, max(left_s, _PAUSE_S)))
            if self._refusal:
                raise UsageError(self._refusal)
            if reason:
                reasons[rank] = reason
        return reasons

    def _ask(self, rank: int, within_s: float, *, again: bool = True) -> str:
        ends_s, nonce, line = time.monotonic() + within_s, secrets.token_hex(8), b""
        address = self._cluster.addresses[rank]
        place = host_of(address), port_of(address)
        reason = "nothing answers there"
        with (
            contextlib.suppress(OSError),
            socket.create_connection(place, timeout=within_s) as connection,
        ):
            reason = "another program is listening there"
            connection.sendall(self._proof(rank, nonce))
            while not line.endswith(b"\n") and len(line) < _MOST_BYTES:
                connection.settimeout(max(ends_s - time.monotonic(), 0.001))
                block = connection.recv(_MOST_BYTES)
                if not block:
                    break
                line += block
        met_before = rank in self._met or rank in self._met_by
        proof = self._checked(line)
        if proof.get("from") != rank or proof.get("nonce") != nonce:
            if not met_before:
                return reason
            self._met.setdefault(rank, "")
            self._met_by.add(rank)
        elif self._met.get(rank) != proof["id"]:
            self._met[rank] = proof["id"]
            if again:  # the other worker may be waiting only to learn that it was met
                return self._ask(rank, within_s, again=False)
        return "" if rank in self._met_by else "it has not yet met this worker"

    def _answer(self, line: bytes, target: IO[bytes]) -> None:
        question = self._checked(line, refuses=False)
        if question:
            target.write(self._proof(question["from"], question.get("nonce")))
            self._checked(line)  # only after the answer is sent, as this worker may then leave

    def _proof(self, to: int, nonce: str) -> bytes:
        proof = {"tfasr": __version__, "plan": self._cluster.plan, "from": self._cluster.rank, "to": to}
        proof |= {"id": self._id, "nonce": nonce, "met": self._met.get(to)}
        return json.dumps(proof).encode() + b"\n"

    def _checked(self, line: bytes, *, refuses: bool = True) -> dict[str, Any]:
        """Parses and records a question or answer of another worker; {} if it is invalid."""
        try:
            proof = json.loads(line)
            rank = proof["from"]
            ours = (proof["plan"], proof["to"]) == (self._cluster.plan, self._cluster.rank)
            ours = ours and type(rank) is int and 0 <= rank < self._cluster.size
            if not ours or not isinstance(proof["id"], str):
                return {}
        except (ValueError, TypeError, KeyError, RecursionError):
            return {}
        if proof["tfasr"] != __version__ and refuses:
            self._refusal = (
                "All workers must be started with the same tfasr. "
                f"{self._cluster.name(rank)} has {proof['tfasr']!r}, this one {__version__!r}."
            )
        if self._met.get(rank, proof["id"]) != proof["id"]:  # it was restarted
            self._met.pop(rank, None)
            self._met_by.discard(rank)
        if proof["met"] == self._id:
            self._met_by.add(rank)
        return proof


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def handle_error(self, *_: object) -> None:
        """Ignores errors caused by unknown clients."""


def unreachable(cluster: Cluster) -> list[int]:
    """Returns the ranks of the other workers whose ports don't answer."""
    return [
        rank
        for rank, address in enumerate(cluster.addresses)
        if rank != cluster.rank and not _answers(address)
    ]


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host_of(address), port_of(address)), timeout=_CONNECT_S).close()
        return True
    return False


EVERY_S = 2.0
_AGAIN_S = 0.5
_TIMES = 3


class PeerWatch:
    """Checks every ``every_s`` seconds that the other workers' ports answer.

    On a loss, it calls ``on_lost`` once, in its thread, with the ranks that have gone. Other
    workers end soon after, so ``lost`` contains only those that went first.
    """

    def __init__(
        self, cluster: Cluster, on_lost: Callable[[list[int]], None], every_s: float = EVERY_S
    ):
        self.lost: list[int] = []
        self._cluster = cluster
        self._on_lost = on_lost
        self._every_s = every_s
        self._stopped = threading.Event()
        self._round = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="workers", daemon=True)
        self._thread.start()

    def look(self) -> list[int]:
        """Checks at once and returns the ranks that went first."""
        with self._round:
            if not self.lost:
                self.lost = self._gone()
            return self.lost

    def stop(self) -> None:
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_s):
            lost = self.look()
            if lost and not self._stopped.is_set():
                self._on_lost(lost)
                return

    def _gone(self) -> list[int]:
        gone = unreachable(self._cluster)
        for _ in range(_TIMES - 1):
            if not gone:
                break
            time.sleep(_AGAIN_S)
            gone = sorted(set(gone) & set(unreachable(self._cluster)))
        return gone
