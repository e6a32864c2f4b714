"""Runs commands and functions in processes that have already imported TensorFlow.

Importing TensorFlow takes several seconds of processor time, more than most tests need
for all else. Here one process per session imports it, multiprocessing's fork server, and
each command runs in a fork of that process. The forks are processes like others: they
have their own working folder and output, they can be killed, and they exit with a code.
They lack what only a new interpreter does: they do not read PYTHON* and KERAS_BACKEND
anew, and TensorFlow's messages during its import are not seen.
"""

import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.warm_imports"])

# A process whose test has failed does not stay for longer than this.
STAYS_S = 600


class WarmProcess:
    """Calls a function in a fork of the process that has imported TensorFlow.

    Args:
        function: must be importable; what it raises is written to standard error.
        arguments: must be picklable.
        folder: the working folder; None for this process's.
        environment: all environment variables; None for this process's.
        terminal: is written to, instead of two files.
        one_stream: whether standard error goes to where standard output goes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        terminal: Path | None = None,
        one_stream: bool = False,
    ):
        self._outputs = tempfile.TemporaryDirectory()
        self._texts: tuple[str, str] | None = None
        self._stdout = Path(self._outputs.name) / "stdout"
        self._stderr = Path(self._outputs.name) / "stderr"

        output = terminal or self._stdout
        errors = self._stderr
        if terminal or one_stream:
            errors = output

        variables = dict(os.environ if environment is None else environment)
        place = (folder or Path.cwd(), variables, output, errors)
        self._process = FORKS.Process(target=_call, args=(function, arguments, *place))
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float = STAYS_S) -> tuple[str, str]:
        """Waits for the end of the process and returns its output and its errors.

        Raises:
            subprocess.TimeoutExpired: if it has not ended; it is killed then.
        """
        if self._texts is None:
            self._process.join(timeout)
            timed_out = self._process.exitcode is None
            if timed_out:
                self._process.kill()
                self._process.join()

            self._texts = (_text(self._stdout), _text(self._stderr))
            self._outputs.cleanup()
            if timed_out:
                raise subprocess.TimeoutExpired("a fork", timeout, *self._texts)

        return self._texts


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def start_tfasr(*words: Any, **options: Any) -> WarmProcess:
    """Starts a command of the command line, with options of `WarmProcess`."""
    return WarmProcess(_command_line, [str(word) for word in words], **options)


def run_tfasr(
    *words: Any, folder: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess:
    """Runs a command of the command line; see `subprocess.run` for ``check``."""
    return _finished(start_tfasr(*words, folder=folder), check)


def run_module(
    module: str, *words: Any, folder: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess:
    """Runs a module like ``python -m MODULE WORDS``."""
    process = WarmProcess(_module, module, [str(word) for word in words], folder=folder)
    return _finished(process, check)


def run_script(
    script: str, *words: Any, folder: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess:
    """Runs a program like ``python -c SCRIPT WORDS``."""
    process = WarmProcess(_script, script, [str(word) for word in words], folder=folder)
    return _finished(process, check)


def _finished(process: WarmProcess, check: bool) -> subprocess.CompletedProcess:
    stdout, stderr = process.communicate()
    done = subprocess.CompletedProcess("a fork", process.returncode, stdout, stderr)
    if check:
        done.check_returncode()

    return done


def _call(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: Path,
    environment: dict[str, str],
    stdout: Path,
    stderr: Path,
) -> None:
    """Is the main function of a fork."""
    signal.alarm(STAYS_S)
    for number, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY)
        os.dup2(file, number)
        os.close(file)

    # As a new interpreter would have them: standard error is not buffered.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), errors="backslashreplace", write_through=True
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, str(folder))

    code = 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        traceback.print_exc()

    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _exit_code(end: SystemExit) -> int:
    """Returns the exit code; a message goes to standard error as at a program's end."""
    if end.code is None:
        return 0

    if isinstance(end.code, int):
        return end.code

    print(end.code, file=sys.stderr)
    return 1


def _command_line(words: list[str]) -> None:
    from tfasr import cli

    sys.argv = ["tfasr", *words]
    cli.main()


def _module(module: str, words: list[str]) -> None:
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _script(script: str, words: list[str]) -> None:
    sys.argv = ["-c", *words]
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
