"""tfasr's commands in child processes, with a fault in them, watched from outside.

Most children are forked from this process, which has imported TensorFlow and run
nothing of it, so that a start takes a second or two. Some go through ``python -m
tfasr.cli`` as a user's do.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
_POLL_S = 0.004
_LONGEST_S = 300.0


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        status: its exit status; None where a signal ended it.
        signal: the signal's number, or None.
        seconds: from its start to its end.
        output: what it wrote to standard output and standard error.
    """

    status: int | None
    signal: int | None
    seconds: float
    output: str

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.signal == signal.SIGKILL


def load() -> None:
    """Imports what the children need; nothing of TensorFlow may run in this process before."""
    os.environ.update(
        {name: os.environ.get(name, value) for name, value in THREADS.items()}
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow  # noqa: F401

    import tfasr.data.prepare  # noqa: F401
    import tfasr.training.from_gin  # noqa: F401
    import tfasr.training.train
    import tfasr.training.trained  # noqa: F401
    from tfasr import cli

    for name in cli.COMMANDS:
        cli.command_module(name)


def run_forked(
    words: Sequence[object],
    log: Path,
    *,
    prepare: Callable[[], None] = lambda: None,
    finish: Callable[[], None] = lambda: None,
    kill_after_s: float | None = None,
) -> Ended:
    """Runs a command of tfasr in a forked process.

    Args:
        words: the command and its flags.
        log: gets what it says.
        prepare: called in the child first, to put the fault in place.
        finish: called in the child last, to tell what was seen.
        kill_after_s: when SIGKILL ends it, if it has not ended by then.
    """
    log.write_bytes(b"")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    begun = time.monotonic()
    child = os.fork()
    if not child:
        _be_command([str(word) for word in words], log, prepare, finish)
    deadline = begun + (_LONGEST_S if kill_after_s is None else kill_after_s)
    while True:
        found, how = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        if found:
            break
        if now >= deadline:
            os.kill(child, signal.SIGKILL)
            deadline = now + _LONGEST_S

        time.sleep(_POLL_S)

    number = os.WTERMSIG(how) if os.WIFSIGNALED(how) else None
    status = None if number else os.WEXITSTATUS(how)
    return Ended(status, number, now - begun, log.read_text(errors="replace"))


def _be_command(
    words: list[str], log: Path, prepare: Callable[[], None], finish: Callable[[], None]
) -> None:
    """Is the child; never returns."""
    status = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        sys.argv = ["tfasr", *words]
        prepare()
        from tfasr import cli

        cli.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    finally:
        try:
            finish()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(status)


def told(folder: Path) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Returns a way for a child to tell a value, and for this process to read it afterwards.

    Args:
        folder: where the value passes through.
    """
    path = folder / "told.pickle"
    path.unlink(missing_ok=True)

    def tell(value: Any) -> None:
        path.write_bytes(pickle.dumps(value))

    def read() -> Any:
        return pickle.loads(path.read_bytes())

    return tell, read


def run_process(
    words: Sequence[object],
    log: Path,
    *,
    kill_after_s: float | None = None,
    inject: str = "",
) -> Ended:
    """Runs ``python -m tfasr.cli`` with a command.

    Args:
        words: the command and its flags.
        log: gets what it says.
        kill_after_s: when SIGKILL ends it, if it has not ended by then.
        inject: for ``strace -e inject``, such as "fsync:signal=SIGKILL:when=3"; "" for
            no strace.
    """
    command = [sys.executable, "-m", "tfasr.cli", *map(str, words)]
    if inject:
        calls = inject.split(":")[0]
        quiet = ["-qqq", "-o", os.devnull, "--seccomp-bpf", "-f"]
        command = [
            "strace",
            *quiet,
            "-e",
            f"trace={calls}",
            "-e",
            f"inject={inject}",
            *command,
        ]

    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(timeout=kill_after_s or _LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    seconds = time.monotonic() - begun
    code = process.returncode
    # strace ends as what it watched did.
    number = -code if code < 0 else None
    status = code if code >= 0 else None
    return Ended(status, number, seconds, log.read_text(errors="replace"))
