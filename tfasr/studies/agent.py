"""Runs a study's steps on one host: starts a process, watches it, ends it.

A study on one machine calls an `Agent` itself. On a cluster, each host has one as a
Dask actor. No method but `Agent.taken` waits, and each returns plain values or
dataclasses of this module, since Dask pickles them.

An agent without a message from its study for `LEASE_S` ends its step, which saves its
work: the study may be dead, and may train the same run elsewhere
(docs/studies.md).
"""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import (
    EVENTS_FILE,
    PROGRESS_FILE,
    acquire_lock,
    forget_lock,
    make_folder,
    object_or_empty,
    sync,
)
from tfasr.kit.process import start_module
from tfasr.ledger.events import ledger_mark
from tfasr.telemetry.host import taken_now

# A study that hasn't called for so long is gone. It calls every 0.5 s while a step runs.
LEASE_S = 15.0

# A training is only started so soon after its start was noted: `verify` compares the
# noted start with the first event of the run's ledger, and allows 5 s.
_STALE_S = 3.0

# How often the lease is checked.
_LOOKS_EVERY_S = 0.5


class StepError(RunError):
    """A step's process can't be started.

    The message says why, and becomes the reason for which the step failed.
    """


@dataclass(frozen=True)
class Clock:
    """What the clocks of a host showed at one moment.

    Attributes:
        time_ms: the wall clock, in milliseconds since 1970.
        mono_s: the monotonic clock, in seconds, which only processes of this host share.
    """

    time_ms: int
    mono_s: float


@dataclass(frozen=True)
class Command:
    """A step's process, as an agent starts it.

    Attributes:
        words: the arguments of ``tfasr``.
        environment: further variables of the process.
        log: the file that gets its output.
        run_dir: of a training; "" for another step.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    log: str
    run_dir: str = ""


@dataclass(frozen=True)
class Look:
    """What a host knows about its step, or about a run that it could start.

    Attributes:
        clock: the host's clocks at that moment.
        mark: `ledger_mark`, at the first trained step and at the end; None otherwise.
        exit_code: of the step's process; None while it runs.
        left: whether the agent ended the step because the study's messages stopped.
        progress: the content of the run's progress.json.
        quiet_s: seconds since the run's ledger last grew.
        pid: of the step's process; 0 before one was started.
        busy: why the run can't be started yet; "" if it can.
    """

    clock: Clock
    mark: dict[str, Any] | None = None
    exit_code: int | None = None
    left: bool = False
    progress: Mapping[str, Any] | None = None
    quiet_s: float = 0.0
    pid: int = 0
    busy: str = ""


class Agent:
    """Does one step at a time on this host.

    Its methods may be called from several threads. Each of them renews the lease.

    Args:
        host: the host's name, which its lock has; "" on the study's own machine, which
            has no lock.
        held: file descriptors that each step's process inherits.
        lease_s: a step saves its work and ends if no method was called for so long.
            None: never.
    """

    def __init__(
        self, host: str = "", held: Sequence[int] = (), lease_s: float | None = None
    ):
        self._host = host
        self._held = tuple(held)
        self._lease_s = lease_s
        self._mutex = threading.RLock()
        self._heard_s = time.monotonic()
        self._process: subprocess.Popen | None = None
        self._left = False
        self._run_dir = ""
        # Whether the run's first trained step was seen.
        self._begun = False
        # The ledger's size in bytes, and since when it has had that.
        self._grew = (0, time.monotonic())
        # Steps inherit these locks. So a run stays locked until its process has ended,
        # even if this one is killed, and nobody else starts that run, or another one on
        # this host.
        self._host_lock: int | None = None
        self._run_lock: int | None = None
        self._locked_run = ""  # the file of that lock

        if lease_s is not None:
            threading.Thread(
                target=self._keep_lease, name="study's lease", daemon=True
            ).start()

    def reserve(self) -> str:
        """Reserves the host for this study; returns "", or why that can't be done yet.

        The lock is a file in the host's temporary folder, which all studies of a user
        share. So two studies on the same hosts take turns.
        """
        with self._heard():
            if self._host_lock is not None:
                return ""

            name = f"tfasr-host-{self._host}-{os.getuid()}.lock".replace(os.sep, "_")
            path = Path(tempfile.gettempdir(), name)
            busy = "a training of this or another study still runs there"
            self._host_lock, reason = _locked(path, busy)
            return reason

    def taken(self) -> float:
        """Watches the host for a second; returns the part of it that others take.

        The lease is renewed first, and the mutex is free while the agent watches:
        otherwise a look at the step would wait too.
        """
        with self._heard():
            pass

        return taken_now().together

    def release(self) -> None:
        """Lets other studies use the host."""
        with self._heard():
            self._unlock()

    def ready(self, run_dir: str, lock: str) -> Look:
        """Locks a run; returns its ledger's mark, or why the run is still busy.

        Args:
            run_dir: the run's folder.
            lock: the file of its lock, on a file system that all hosts share; "" takes
                none.
        """
        with self._heard():
            busy = ""
            if lock != self._locked_run or self._run_lock is None:
                self._run_lock = _unlocked(self._run_lock)
                self._locked_run = lock
                if lock:
                    busy = "its earlier training still runs or saves its work"
                    self._run_lock, busy = _locked(Path(lock), busy)

            return Look(_clock(), mark=_mark(run_dir), busy=busy)

    def start(self, command: Command, noted: Clock | None = None) -> bool:
        """Starts a step; returns False if its start was noted too long ago to be true.

        Args:
            command: the step's process.
            noted: this host's clocks when the study noted the start; None if the study
                runs on this host and notes it at once.

        Raises:
            StepError: if its log can't be written or its process can't be started.
        """
        with self._heard():
            if noted is not None and time.monotonic() - noted.mono_s > _STALE_S:
                return False
            if self._is_running():
                raise StepError("Another step still runs there.")

            self._left = False
            self._run_dir = command.run_dir
            self._begun = False
            self._grew = (0, time.monotonic())

            try:
                self._process = self._started(command)
            except OSError as error:
                raise StepError(f"Its process could not be started: {error}.") from None

            return True

    def _started(self, command: Command) -> subprocess.Popen:
        """Starts the process, which inherits the locks and appends to its log."""
        log = Path(command.log)
        make_folder(log.parent)
        locks = [lock for lock in (self._host_lock, self._run_lock) if lock is not None]

        with log.open("ab") as output:
            # In its own session, the step doesn't get a terminal's Ctrl-C. The study
            # ends it with one signal: a second one would end a training before it has
            # saved a checkpoint.
            return start_module(
                "tfasr.cli",
                *command.words,
                environment={"TF_CPP_MIN_LOG_LEVEL": "2", **command.environment},
                without=() if self._lease_s is None else _set_by_dask(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(*self._held, *locks),
            )

    def look(self) -> Look:
        """Returns how far the step is.

        The run's mark is read at its first trained step and at its end alone, because
        that reads the whole ledger.
        """
        with self._heard():
            exit_code = None
            pid = 0
            if self._process is not None:
                exit_code = self._process.poll()
                pid = self._process.pid

            mark = None
            if self._run_dir and (exit_code is not None or not self._begun):
                mark = _mark(self._run_dir)
                self._begun = mark is not None

            if exit_code is not None:
                self._run_lock = _unlocked(self._run_lock)

            return Look(
                _clock(),
                mark=mark,
                exit_code=exit_code,
                left=self._left,
                progress=self._progress(),
                quiet_s=self._quiet_s(),
                pid=pid,
            )

    def stop(self) -> None:
        """Asks the step to save its work and to end; `look` has its exit code later."""
        with self._heard():
            if self._is_running():
                self._process.terminate()

    def kill(self) -> None:
        """Ends the step at once, if it still runs, and unlocks everything."""
        with self._heard():
            if self._is_running():
                self._process.kill()
                self._process.wait()

            self._unlock()

    def _is_running(self) -> bool:
        """Whether a step's process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Renews the lease, and lets only one thread into the agent at a time."""
        with self._mutex:
            self._heard_s = time.monotonic()
            yield

    def _keep_lease(self) -> None:
        """Ends the step once the study is silent for too long, then unlocks everything.

        The locks stay until the process has ended, since it still writes its
        checkpoint.
        """
        while True:
            time.sleep(_LOOKS_EVERY_S)
            with self._mutex:
                if time.monotonic() - self._heard_s <= self._lease_s:
                    continue

                if not self._is_running():
                    self._unlock()
                elif not self._left:
                    self._left = True
                    self._process.terminate()

    def _unlock(self) -> None:
        """Gives up the locks of the run and of the host, if it has them."""
        self._run_lock = _unlocked(self._run_lock)
        self._host_lock = _unlocked(self._host_lock)

    def _progress(self) -> dict[str, Any]:
        """Returns the content of the run's progress.json, {} before there is one."""
        if self._run_dir:
            return object_or_empty(Path(self._run_dir, PROGRESS_FILE))

        return {}

    def _quiet_s(self) -> float:
        """Returns the seconds since the run's ledger last grew.

        Sizes are compared, since a file server's clock may differ from this host's, so
        that the time of the file's last change says nothing.
        """
        if not self._run_dir:
            return 0.0

        size = 0
        with contextlib.suppress(OSError):
            size = Path(self._run_dir, EVENTS_FILE).stat().st_size

        if size != self._grew[0]:
            self._grew = (size, time.monotonic())

        return time.monotonic() - self._grew[1]


def _clock() -> Clock:
    """Returns what this host's clocks show now."""
    return Clock(int(time.time() * 1000), round(time.monotonic(), 6))


def _locked(path: Path, busy: str) -> tuple[int | None, str]:
    """Locks a file, whose folder is created if it is missing.

    Args:
        path: the file.
        busy: the reason if another process has the lock.

    Returns:
        The file's descriptor and ""; or None and why it can't be locked.
    """
    try:
        make_folder(path.parent)
        return acquire_lock(path, busy), ""
    except UsageError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{path} can't be locked ({error.strerror or error})"


def _unlocked(descriptor: int | None) -> None:
    """Unlocks a file, if it was locked, and returns None, its next descriptor."""
    if descriptor is not None:
        forget_lock(descriptor)
        os.close(descriptor)


def _mark(run_dir: str) -> dict[str, Any] | None:
    """Returns the mark of a run's ledger, or None before the first one.

    All lines up to the mark are on the disk then: a mark in the list of starts must not
    name a line that a crash of the host could still lose.
    """
    # The error of a damaged ledger is left to the run itself, which will report it.
    with contextlib.suppress(UsageError, OSError):
        mark = ledger_mark(run_dir)
        if mark is not None:
            sync(Path(run_dir, EVENTS_FILE))

        return mark

    return None


def _set_by_dask() -> list[str]:
    """Returns the environment variables that Dask's nanny set for its worker, not the user.

    They would limit TensorFlow's libraries to one thread.
    """
    import dask

    chosen = {"PYTHONHASHSEED": "6640"}
    chosen |= dask.config.get("distributed.nanny.pre-spawn-environ", {})

    return [
        name for name, value in chosen.items() if os.environ.get(name) == str(value)
    ]
