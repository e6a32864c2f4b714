"""Workers on this machine: started, shown, and ended or restarted when one fails.

`launch` is what ``tfasr launch`` runs. `PeerWatch` is for the workers themselves,
wherever they run: each of them notices that another one has ended.
"""

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

# How long workers have to save their work after SIGTERM, before SIGKILL.
END_S = 15.0

_LOOK_S = 0.1  # between looks at whether a worker has ended
_PUMP_S = 5.0  # at most, to show what workers wrote before they ended
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

BEGIN_S = 120.0  # how long TensorFlow may take to connect workers once all are up

# A port that doesn't answer is asked so many times, so long apart, each time for at
# most `_CONNECT_S`, before its worker counts as gone.
_TIMES = 3
_AGAIN_S = 0.5
_CONNECT_S = 3.0
EVERY_S = 2.0  # between two such checks of all workers


def free_ports(count: int) -> list[int]:
    """Returns ports of this machine that no program uses at the moment.

    Another program may take one of them before a worker does; that worker then ends
    with a message that names the port.
    """
    # All are bound at the same time, so that they differ.
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))

        return [bound.getsockname()[1] for bound in sockets]


def worker_variables(ports: Sequence[int], rank: int) -> dict[str, str]:
    """Returns the environment variables by which a worker finds its cluster.

    Args:
        ports: the port of each worker on this machine, by rank.
        rank: the worker's rank.
    """
    config = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
        "task": {"type": "worker", "index": rank},
    }
    return {TF_CONFIG: json.dumps(config), "PYTHONUNBUFFERED": "1"}


def thread_variables(count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Splits this machine's cores between workers.

    Args:
        count: how many workers share the machine.
        environment: variables that the user has set, which are left as they are.

    Returns:
        The other variables for each worker.
    """
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

    Args:
        count: how many processes to start.
        arguments: of the command, such as ``["train", "--data", ...]``.
        restarts: how often each process but rank 0 may fail; None if none may.

    Returns:
        0, or the exit code of the first process that failed (128 plus the number of a
        signal).

    Raises:
        RunError: if this machine can't start so many.
    """
    pumps: list[threading.Thread] = []
    shared = {SECRET: os.environ.get(SECRET) or secrets.token_hex(32)}
    shared |= thread_variables(count, os.environ)

    def begin(rank: int) -> subprocess.Popen:
        """Starts a worker, and threads that show its output."""
        process = start_module(
            "tfasr.cli",
            *arguments,
            environment={**shared, **worker_variables(ports, rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # In another session, Ctrl-C reaches only the launcher, which passes it on
            # once.
            start_new_session=hasattr(os, "setsid"),
        )
        pipes = [(process.stdout, sys.stdout), (process.stderr, sys.stderr)]
        for source, target in pipes:
            pump = threading.Thread(
                target=_show, args=(source, target, rank), daemon=True
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
            f"Worker {len(workers.processes)} of {count} could not start ({error}), so "
            "the others were ended. Start fewer, or raise the limits (ulimit -n, "
            "ulimit -u)."
        ) from error
    finally:
        workers.kill()
        for pump in pumps:
            pump.join(timeout=_PUMP_S)

        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers:
    """The processes of a launch, from their start to their end.

    Args:
        begin: starts the worker of a rank.
        restarts: see `launch`.
    """

    def __init__(self, begin: Callable[[int], subprocess.Popen], restarts: int | None):
        self.processes: list[subprocess.Popen] = []  # by rank
        self._begin = begin
        self._restarts = restarts
        self._left: dict[int, int] = {}  # restarts that are left, by rank
        self._passed_on = False

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Passes on a signal that the launcher received."""
        self._passed_on = True
        self._send(signal.Signals(number))

    def wait(self) -> int:
        """Waits until all have ended, and ends them if one of them fails.

        Returns:
            The exit code of the launch, see `launch`.
        """
        failed: int | None = None
        # When which signal is due, soonest first.
        due_s: list[tuple[float, signal.Signals]] = []
        while None in (codes := [process.poll() for process in self.processes]):
            bad = [rank for rank, code in enumerate(codes) if code]
            if self._restarts is not None:
                self._begin_again([rank for rank in bad if rank])
                # Whether it failed or not, rank 0 ends all.
                bad = [0] if codes[0] is not None else []

            if bad and failed is None:
                failed = bad[0]
                due_s = self._plan_end(failed, codes[failed])

            while due_s and time.monotonic() >= due_s[0][0]:
                _, number = due_s.pop(0)
                self._send(number)

            time.sleep(_LOOK_S)

        # The first failure counts: later ones follow from it.
        if failed is not None:
            code = codes[failed]
        elif self._restarts is not None:
            code = codes[0]
        else:
            code = next(filter(None, codes), 0)

        if code < 0:  # the number of the signal that ended it
            return 128 - code

        return code

    def _plan_end(self, rank: int, code: int) -> list[tuple[float, signal.Signals]]:
        """Returns which signals end the other workers, and when, after one has ended.

        Args:
            rank: the worker that ended.
            code: its exit code, or minus the number of the signal that ended it.
        """
        now_s = time.monotonic()
        kill = (now_s + NOTICE_S + END_S, signal.SIGKILL)
        # A second signal would end them before they have saved.
        if self._passed_on:
            return [kill]

        if code:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            log.warning("worker %d ended with %s: ending the others", rank, how)

        return [(now_s + NOTICE_S, signal.SIGTERM), kill]

    def _begin_again(self, failed: Sequence[int]) -> None:
        """Starts failed workers again while rank 0 runs and they have restarts left.

        Args:
            failed: their ranks, without rank 0.
        """
        for rank in failed:
            restarts = self._left.setdefault(rank, self._restarts)
            if restarts and not self._passed_on and self.processes[0].poll() is None:
                log.warning("worker %d has failed and is started again", rank)
                self.processes[rank] = self._begin(rank)
                self._left[rank] -= 1

    def kill(self) -> None:
        """Ends all that are left, at once."""
        self._send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _send(self, number: signal.Signals) -> None:
        """Sends a signal to all that have not ended yet."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)


def _show(source: IO[bytes], target: IO[str], rank: int) -> None:
    """Copies a worker's output, line by line, with its rank in front.

    Args:
        source: the worker's stdout or stderr.
        target: the launcher's.
        rank: the worker's rank.
    """
    for line in source:
        text = line.decode(errors="replace").rstrip("\r\n")
        target.write(f"[{rank}] {text}\n")
        target.flush()


def unreachable(cluster: Cluster) -> list[int]:
    """Returns the ranks of the other workers whose ports don't answer.

    A worker that is busy still answers: its system accepts the connection.
    """
    return [
        rank
        for rank, address in enumerate(cluster.addresses)
        if rank != cluster.rank and not _answers(address)
    ]


def _answers(address: str) -> bool:
    """Whether something listens at an address."""
    place = (host_of(address), port_of(address))
    try:
        socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError:
        return False

    return True


class PeerWatch:
    """Checks every ``every_s`` seconds that the other workers' ports answer.

    When some don't, its thread calls ``on_lost`` once with their ranks, and stops
    checking: other workers end soon after, and ``lost`` names only those that ended
    first. The checks begin at once and go on until `stop`.

    Args:
        cluster: the workers, and which of them this process is.
        on_lost: what to do about lost ones, such as to end this process.
        every_s: seconds between two checks.
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
        """Checks at once and returns the ranks that ended first, if any.

        Another thread may be checking already: then this call waits for its result.
        """
        with self._round:
            if not self.lost:
                self.lost = self._gone()

            return self.lost

    def stop(self) -> None:
        """Ends the checks; may be called by ``on_lost`` too."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        """Runs in the thread until a worker is lost or `stop` is called."""
        while not self._stopped.wait(self._every_s):
            lost = self.look()
            if lost and not self._stopped.is_set():
                self._on_lost(lost)
                return

    def _gone(self) -> list[int]:
        """Returns the ranks that answer none of some attempts.

        A single attempt may fail on a busy network.
        """
        gone = unreachable(self._cluster)
        for _ in range(_TIMES - 1):
            if not gone:
                break

            time.sleep(_AGAIN_S)
            gone = sorted(set(gone) & set(unreachable(self._cluster)))

        return gone
