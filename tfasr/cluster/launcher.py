"""Starts workers on this machine, shows what they say, and ends all when one fails."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO

from tfasr.cluster.description import TF_CONFIG, Cluster, host_of, port_of
from tfasr.errors import RunError, UsageError
from tfasr.kit.process import start_module, usable_cores

log = logging.getLogger("tfasr")

# A worker notices by itself that another is gone, and says which; only then it is asked to end.
NOTICE_S = 20.0
END_S = 15.0
_LOOK_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def free_ports(count: int) -> list[int]:
    """Finds ports of the loopback address that nothing listened on a moment ago."""
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
    """Splits this machine's cores between workers; threads that the user has set stay."""
    threads = str(max(usable_cores() // count, 1))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    return {name: threads for name in names if name not in environment}


def launch(count: int, arguments: Sequence[str]) -> int:
    """Runs a command of tfasr in ``count`` processes and returns when all have ended.

    The output of each process is prefixed with its rank. When one fails, the others have `NOTICE_S`
    to notice, then get SIGTERM, and SIGKILL `END_S` later. SIGTERM and SIGINT are passed on to all.
    Returns 0, or the exit code of the first process that failed (128 and the number of the signal
    that ended it).
    """
    ports = free_ports(count)
    threads = thread_variables(count, os.environ)
    workers = _Workers(
        [_start(arguments, {**threads, **worker_variables(ports, k)}) for k in range(count)]
    )
    before = {number: signal.signal(number, workers.pass_on) for number in _SIGNALS}
    pumps = [
        threading.Thread(target=_prefixed, args=(source, target, rank), daemon=True)
        for rank, process in enumerate(workers.processes)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    ]
    try:
        for pump in pumps:
            pump.start()
        return workers.wait()
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
        # Of its own, so that a terminal's Ctrl-C comes once: to this process, which passes it on.
        start_new_session=hasattr(os, "setsid"),
    )


def _prefixed(source: IO[bytes], target: IO[str], rank: int) -> None:
    for line in source:
        text = line.decode(errors="replace").rstrip("\r\n")
        target.write(f"[{rank}] {text}\n")
        target.flush()


START_S = 600.0  # how long workers wait for each other at the start
_TELL_S = 10.0
_CONNECT_S = 3.0
_PAUSE_S = 0.25


def await_peers(cluster: Cluster, timeout_s: float = START_S) -> None:
    """Waits until all workers listen on their ports, as this one does meanwhile.

    Raises:
        UsageError: if this worker's port is taken.
        RunError: if workers are missing after the timeout.
    """
    address = cluster.addresses[cluster.rank]
    deadline_s = time.monotonic() + timeout_s
    tell_s = time.monotonic() + _TELL_S
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port_of(address)))
            listener.listen(cluster.size + 8)
        except OSError as error:
            raise UsageError(
                f"A worker's port must be free on its host. Received: {address} of worker "
                f"{cluster.rank}: {error.strerror}. Choose another in --cluster, or end what "
                "listens there."
            ) from None
        while missing := unreachable(cluster):
            if time.monotonic() >= deadline_s:
                raise RunError(
                    f"All {cluster.size} workers must be up within {timeout_s:.0f} s. Missing: "
                    f"{', '.join(map(cluster.name, missing))}. Look at their messages, and whether "
                    "this host reaches theirs on these ports."
                )
            if time.monotonic() >= tell_s:
                log.info("waiting for %s", ", ".join(map(cluster.name, missing)))
                tell_s += 6 * _TELL_S
            time.sleep(_PAUSE_S)


def unreachable(cluster: Cluster) -> list[int]:
    """The ranks of the other workers on whose ports nothing answers."""
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

    It calls ``on_lost`` once, in its thread, with the ranks that are gone. A worker that notices
    the loss of another one ends too, so only those that were gone first are kept, in ``lost``.
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
        """Checks at once and returns the ranks that were gone first."""
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
