"""Starts workers on this machine, shows their output, and ends or restarts them on failure."""

import contextlib
import json
import logging
import os
import secrets
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
from tfasr.cluster.trust import SECRET
from tfasr.errors import RunError
from tfasr.kit.process import start_module, usable_cores

log = logging.getLogger("tfasr")

# When a worker ends, the others notice, name it and stop; SIGTERM is sent if they
# haven't by then.
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


def launch(count: int, arguments: Sequence[str], restarts: int | None = None) -> int:
    """Runs a tfasr command in ``count`` processes and returns when all have ended.

    Each process's output is prefixed with its rank. When one fails, the others have
    `NOTICE_S` to end by themselves; then they get SIGTERM and, `END_S` later, SIGKILL.
    SIGTERM and SIGINT are passed on to all.

    With ``restarts``, for workers that train in rounds, a process that fails is started
    again, at most so many times, and the others go on. Only when rank 0 ends, all end.

    Returns:
        0, or the exit code of the first process that failed (128 plus the number of a
            signal).
    """
    pumps: list[threading.Thread] = []
    shared = {SECRET: os.environ.get(SECRET) or secrets.token_hex(32)}
    shared |= thread_variables(count, os.environ)

    def begin(rank: int) -> subprocess.Popen:
        process = start_module(
            *("tfasr.cli", *arguments),
            environment={**shared, **worker_variables(ports, rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # In another session, Ctrl-C reaches only the launcher, which passes it on
            # once.
            start_new_session=hasattr(os, "setsid"),
        )
        for source, target in (
            (process.stdout, sys.stdout),
            (process.stderr, sys.stderr),
        ):
            pump = threading.Thread(
                target=_prefixed, args=(source, target, rank), daemon=True
            )
            pump.start()
            pumps.append(pump)

        return process

    workers = _Workers(begin, restarts)
    before = {number: signal.signal(number, workers.pass_on) for number in _SIGNALS}
    try:
        ports = free_ports(count)
        for rank in range(count):
            workers.processes.append(begin(rank))
        return workers.wait()
    except (OSError, RuntimeError) as error:  # a limit on files, processes or threads
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
    def __init__(self, begin: Callable[[int], subprocess.Popen], restarts: int | None):
        self.processes: list[subprocess.Popen] = []
        self._begin = begin
        self._restarts = restarts
        self._left: dict[int, int] = {}  # restarts that are left, by rank
        self._passed_on = False

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._passed_on = True
        self._send(signal.Signals(number))

    def wait(self) -> int:
        failed: int | None = None
        due_s: list[tuple[float, signal.Signals]] = []
        while (codes := [process.poll() for process in self.processes]).count(None):
            bad = [rank for rank, code in enumerate(codes) if code]
            if self._restarts is not None:
                self._begin_again([rank for rank in bad if rank])
                bad = [0] if codes[0] is not None else []

            if bad and failed is None:
                failed = bad[0]
                now_s = time.monotonic()
                due_s = [(now_s + NOTICE_S + END_S, signal.SIGKILL)]
                # A second signal would end them before they have saved.
                if not self._passed_on:
                    code = codes[failed]
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    if code:
                        log.warning(
                            "worker %d ended with %s: ending the others", failed, how
                        )
                    due_s.insert(0, (now_s + NOTICE_S, signal.SIGTERM))

            while due_s and time.monotonic() >= due_s[0][0]:
                self._send(due_s.pop(0)[1])
            time.sleep(_LOOK_S)

        first = codes if self._restarts is None else codes[:1]
        code = next(filter(None, first), 0) if failed is None else codes[failed]
        return 128 - code if code < 0 else code

    def _begin_again(self, failed: Sequence[int]) -> None:
        for rank in failed:
            restarts_left = self._left.setdefault(rank, self._restarts)
            if (
                restarts_left
                and not self._passed_on
                and self.processes[0].poll() is None
            ):
                log.warning("worker %d has failed and is started again", rank)
                self.processes[rank] = self._begin(rank)
                self._left[rank] -= 1

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)


def _prefixed(source: IO[bytes], target: IO[str], rank: int) -> None:
    for line in source:
        text = line.decode(errors="replace").rstrip("\r\n")
        target.write(f"[{rank}] {text}\n")
        target.flush()


BEGIN_S = 120.0  # how long TensorFlow may take to connect workers once all are up
_CONNECT_S = 3.0


def unreachable(cluster: Cluster) -> list[int]:
    return [
        rank
        for rank, address in enumerate(cluster.addresses)
        if rank != cluster.rank and not _answers(address)
    ]


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(
            (host_of(address), port_of(address)), timeout=_CONNECT_S
        ).close()
        return True

    return False


EVERY_S = 2.0
_AGAIN_S = 0.5
_TIMES = 3


class PeerWatch:
    """Checks every ``every_s`` seconds that the other workers' ports answer.

    When some don't, its thread calls ``on_lost`` once with their ranks, and stops
    checking: other workers end soon after, and ``lost`` names only those that ended
    first.
    """

    def __init__(
        self,
        cluster: Cluster,
        on_lost: Callable[[list[int]], None],
        every_s: float = EVERY_S,
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
        """Checks at once and returns the ranks that ended first, if any."""
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
