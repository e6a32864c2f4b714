"""Calls functions in new processes, which have their own memory and Keras backend.

``call(measure, request, backend="jax")`` computes ``measure(request)`` in another
process. Arguments and results are pickled; UsageError and RunError are passed on.

Two things are kept from users here: TensorFlow's messages about devices, and processes
that outlive the one that started them. At the end are the limits that a container sets:
`usable_cores` and `quota`.
"""

import contextlib
import functools
import inspect
import io
import logging
import math
import numbers
import os
import pickle
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import FunctionType, ModuleType
from typing import IO, Any, TypeVar

from tfasr.errors import RunError, UsageError, imported
from tfasr.kit.registry import load_plugin, loaded_plugins

# A process has one standard error: while one thread redirects it, others wait.
_one_thread = threading.RLock()


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discards what is written to standard error in a block, such as C++ output.

    Exceptions still pass, and are shown after the block.
    """
    with _one_thread:
        before = os.dup(2)
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor, no path
            os.dup2(nowhere.fileno(), 2)

        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


# TensorFlow writes these lines before it reads TF_CPP_MIN_LOG_LEVEL, so that can't hide
# them.
_NOISE = r"""(?x)WARNING:\ All\ log\ messages\ before\ absl::InitializeLog
| To\ enable\ the\ following\ instructions:
| (\d{4}-\d\d-\d\d\ [\d:.]+:\ )? [IW](\d{4}\ [\d:.]+\ +\d+)?\ \S+\.(cc|h):\d+\]
| (\d{4}-\d\d-\d\d\ [\d:.]+:\ )? E(\d{4}\ [\d:.]+\ +\d+)?\ \S*cuda\w*\.cc:\d+\]\ .*
  (factory|cuInit|CUDA_ERROR_NO_DEVICE)
| E\d{4}\ .*oneDNN\ supports\ DT_BOOL
| INFO:\ Created\ TensorFlow\ Lite\ XNNPACK"""

# A program that drops lines of noise. It runs in a separate process, so that messages
# written just before a crash still appear.
_FILTER = """\
import re, sys
noise = re.compile(sys.argv[1].encode())
for line in sys.stdin.buffer:
    if not noise.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""

# Whether standard error goes through a filter already: one is enough.
_filtering = False


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Removes TensorFlow's messages about devices from standard error.

    Everything else is passed on, even what a process writes just before it dies.
    Nothing is removed if TF_CPP_MIN_LOG_LEVEL is set to 0.
    """
    global _filtering
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0" or _filtering:
        yield
        return

    command = [sys.executable or "python3", "-ISc", _FILTER, _NOISE]

    try:
        before = os.dup(2)
        reader = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True
        )
    # Standard error is closed, or no more processes are allowed.
    except OSError:
        yield
        return

    os.dup2(reader.stdin.fileno(), 2)

    _filtering = True
    try:
        yield
    finally:
        _filtering = False
        os.dup2(before, 2)
        os.close(before)
        reader.stdin.close()

        # Processes started meanwhile may keep the pipe open, and with it the filter.
        with contextlib.suppress(subprocess.TimeoutExpired):
            reader.wait(_READS_WITHIN_S)


def import_quietly(module: str, what: str) -> ModuleType:
    """Imports a module that may import TensorFlow, without its messages about devices.

    Args:
        module: its dotted name.
        what: what needs it, for the error if a package is missing; see `imported`.
    """
    with without_noise():
        loaded = imported(module, what)
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and not any(Path("/dev").glob("nvidia*")):
            # TensorFlow complains about a missing GPU when it looks for one.
            tensorflow.config.list_physical_devices()

    return loaded


def load_tensorflow() -> None:
    """Imports TensorFlow and lists its devices, without its messages about them.

    Raises:
        UsageError: if the variable KERAS_BACKEND has a value that Keras doesn't know,
            for which its own error comes late and with a traceback.
    """
    backend = os.environ.get("KERAS_BACKEND")
    if backend not in (None, "", "tensorflow", "jax", "torch", "numpy", "openvino"):
        raise UsageError(
            f"KERAS_BACKEND must be a backend of Keras. Received: {backend!r}."
        )

    with without_noise():
        import tensorflow as tf

        tf.config.list_physical_devices()


_Result = TypeVar("_Result")

# How many characters of a failed process's messages are shown, the last ones.
_SHOWN_MESSAGE = 1000

# Like `python -m MODULE`, but without importing from the working directory, where a
# file may shadow a standard module (Python 3.10 has no option for this). tfasr is
# imported from where it is in the parent.
_START = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.util
spec = importlib.util.spec_from_file_location("tfasr", sys.argv[1])
sys.modules["tfasr"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["tfasr"])
from tfasr.kit import process
_, _, parent, module, *sys.argv[1:] = sys.argv
process.run_child(int(parent), module)
"""

# How often a child looks whether its parent has ended.
_LOOKS_EVERY_S = 0.5

# How long the filter of messages may take to pass on what it has read.
_READS_WITHIN_S = 5.0

# How long a training may take to save a checkpoint once its parent has ended.
_SAVES_WITHIN_S = 120.0


class ChildError(RunError):
    """A process ended without a result.

    Attributes:
        exit_code: a negative one is the number of a signal.
        messages: the end of what the process wrote.
    """

    def __init__(self, task: str, exit_code: int, messages: str):
        cause = f"exit code {exit_code}"
        if exit_code < 0:
            cause = f"signal {-exit_code}"

        super().__init__(
            f"{task} failed: it ended with {cause} (signal 9 often means that memory "
            f"ran out). {messages}"
        )
        self.exit_code = exit_code
        self.messages = messages


def call(function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Calls a function in a new process and returns its result.

    The process's messages appear on standard error, unless ``show_messages=False``.

    Args:
        function: must be importable in the new process.
        arguments: must be picklable.
        options: those of `Correspondence`.

    Raises:
        UsageError, RunError: if the function raises them.
        ChildError: for any other failure.
    """
    (result,) = stream(function, *arguments, **options)
    return result


def stream(
    function: Callable[..., Any],
    *arguments: Any,
    show_messages: bool = True,
    **options: Any,
) -> Iterator[Any]:
    """Calls a function in a new process; yields its result, or a generator's values.

    Args:
        function: must be importable in the new process.
        arguments: must be picklable.
        show_messages: whether the process writes to this one's standard error.
        options: further ones of `Correspondence`.

    Raises:
        UsageError, RunError: if the function raises them.
        ChildError: for any other failure. If the process ends well after an answer, that
            was the last one.
    """
    answered = False
    child = Correspondence(function, *arguments, show_messages=show_messages, **options)

    with contextlib.closing(child):
        while True:
            try:
                answer = child.next_answer()
            except ChildError as error:
                if error.exit_code or not answered:
                    raise

                return

            yield answer
            answered = True


class Correspondence:
    """A function in a new process, which can be sent values while it works.

    What the function returns or yields are its answers (`next_answer`); what is sent to
    it are values of `received`.

    Args:
        function: must be importable in the new process.
        arguments: must be picklable.
        backend: the new process's Keras backend; None keeps this process's.
        environment: more environment variables.
        plugins: are loaded first; None for those of this process.
        task: names the work in messages.
        show_messages: whether the new process writes to this one's standard error.
            Otherwise its messages appear only in a ChildError.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        backend: str | None = None,
        environment: Mapping[str, str] | None = None,
        plugins: Sequence[str] | None = None,
        task: str = "",
        show_messages: bool = False,
    ):
        name = f"{function.__module__}:{function.__qualname__}"
        place = f" on {backend}" if backend else ""
        self._task = task or f"The process of {name}{place}"
        if plugins is None:
            plugins = loaded_plugins()

        request = {
            "call": pickled((function, arguments)),
            "folders": _folders(function),
            "plugins": plugins,
            "load_tensorflow": backend == "tensorflow",
        }

        # TensorFlow's level 2 shows errors, 3 only those that end the process.
        messages = None
        level = "2"
        if not show_messages:
            messages = tempfile.TemporaryFile()  # noqa: SIM115 - see `close`
            level = "3"

        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", level)
        variables = {"TF_CPP_MIN_LOG_LEVEL": level, **(environment or {})}
        if backend is not None:
            variables["KERAS_BACKEND"] = backend

        self._pipe, theirs = Pipe()

        with theirs:
            self._process = start_module(
                "tfasr.kit.process",
                str(theirs.fileno()),
                environment=variables,
                stdin=subprocess.DEVNULL,
                stdout=messages or 2,
                stderr=messages,
                pass_fds=[theirs.fileno()],
            )

        self._messages = messages
        self.send(request)

    @property
    def pid(self) -> int:
        """The new process's id."""
        return self._process.pid

    def send(self, value: Any) -> None:
        """Sends a value; does nothing if the process has ended.

        The next `next_answer` raises an error with the cause then.
        """
        message = pickled(value)
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(message)

    def next_answer(self, timeout_s: float | None = None) -> Any:
        """Returns the next answer or raises TimeoutError; None waits without limit."""
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"{self._task} has not yet answered.")

        try:
            answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise ChildError(
                self._task, self._process.wait(), _end_of(self._messages)
            ) from None

        if isinstance(answer, Exception):
            raise answer

        return answer

    def close(self) -> None:
        """Kills the process, if it still runs, and closes the pipe."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        if self._messages is not None:
            self._messages.close()


# The pipe to the parent, in a process that a `Correspondence` started.
_parent: Connection | None = None


def received() -> Iterator[Any]:
    """Yields what a `Correspondence` sends to this process, until it is closed.

    It is for the function that the process was started for.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield pickle.loads(_parent.recv_bytes())


class _Pickler(pickle.Pickler):
    """Pickles what another process can load, and says what it couldn't."""

    def reducer_override(self, value: Any) -> Any:
        """Returns how to pickle a value; NotImplemented for the usual way."""
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise TypeError("it must be at the top level of an importable module")

        # NumPy's numbers arrive as Python's, which can be written as JSON.
        for kind, plain in ((numbers.Integral, int), (numbers.Real, float)):
            if isinstance(value, kind):
                return plain, (plain(value),)

        return NotImplemented


def pickled(value: Any) -> bytes:
    """Returns a value as bytes for another process.

    NumPy's numbers become Python's. Functions and classes of the main script can't be
    sent, since the other process has another main module.

    Raises:
        TypeError: if the value can't be sent.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            "What another process needs must be importable there. Received: "
            f"{value!r:.500} ({error})."
        ) from error

    return buffer.getvalue()


def start_module(
    module: str,
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
    **options: Any,
) -> subprocess.Popen:
    """Starts a `module_command`.

    Args:
        module: is run as the main module.
        arguments: of its command line.
        environment: more environment variables.
        without: names of variables that the process doesn't get.
        options: of `subprocess.Popen`.
    """
    command = module_command(module, *arguments)
    return subprocess.Popen(
        command, env=child_environment(environment, without), **options
    )


def run_module(
    module: str, *arguments: str | Path, **options: Any
) -> subprocess.CompletedProcess:
    """Runs a `module_command` and waits for its end, with options of `subprocess.run`."""
    command = module_command(module, *arguments)
    return subprocess.run(command, check=False, env=child_environment(), **options)


def module_command(module: str, *arguments: str | Path) -> list[str]:
    """Returns a command like ``python -m MODULE`` that imports nothing from here.

    The new process ends when this one does; see `end_with`.
    """
    package = Path(__file__).parents[1] / "__init__.py"
    words = [sys.executable, "-c", _START, package, os.getpid(), module, *arguments]

    return list(map(str, words))


def run_child(parent: int, module: str) -> None:
    """Runs a module as the main module, in a process started by `module_command`.

    Args:
        parent: the id of the process that started it.
        module: "tfasr.kit.process" answers a `Correspondence`.
    """
    try:
        end_with(parent)
    except RuntimeError as error:
        sys.exit(f"{module} needs more threads ({error}). Raise the limit (ulimit -u).")

    if module == __name__:
        _serve()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def end_with(parent: int) -> None:
    """Sends this process SIGTERM once the process ``parent`` has ended for any reason.

    A training run then saves a checkpoint; `_SAVES_WITHIN_S` later, it is killed.
    The parent's id is polled because the alternatives fail: a pipe stays open in the
    parent's other forks, and Linux's death signal is sent as soon as the thread that
    started this process ends.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKS_EVERY_S)

        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SAVES_WITHIN_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent's end", daemon=True).start()


# The variable that tells children how a user started the first process, for commands
# that they print. A child's own command line is Python's, which nobody typed.
_STARTED_AS = "TFASR_STARTED_AS"


def own_command() -> str:
    """Returns the shell command that starts this tfasr.

    It is "tfasr" if that is on the path, or a path as it was typed, such as
    ".venv/bin/tfasr". Messages use it for commands that a reader can copy. A process that
    another one started returns the same as that one, since its own command line is not
    what a user typed.
    """
    script = Path(sys.argv[0])
    if script.name != "tfasr":
        return os.environ.get(_STARTED_AS, "tfasr")

    on_path = shutil.which("tfasr")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "tfasr"

    return shlex.quote(sys.argv[0])


def child_environment(
    more: Mapping[str, str] | None = None, without: Sequence[str] = ()
) -> dict[str, str]:
    """Returns this process's environment for a child.

    The working directory is no place to import from, whatever PYTHONPATH says.

    Args:
        more: further variables, which replace others of the same name.
        without: names of variables to leave out.
    """
    variables = {
        name: value for name, value in os.environ.items() if name not in without
    }
    variables["PYTHONSAFEPATH"] = "1"
    variables[_STARTED_AS] = own_command()
    variables.update(more or {})

    # An empty entry, as in ":/more", means the working directory.
    entries = filter(None, variables.pop("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(entries)
    if path:
        variables["PYTHONPATH"] = path

    return variables


def _folders(function: Callable) -> list[str]:
    """Returns the folders from which another process can import a function's package.

    tfasr itself is found by `module_command`.
    """
    package = sys.modules[function.__module__.partition(".")[0]]
    if package.__name__ == "tfasr":
        return []

    # A module without a package has one file, a built-in one has none.
    places = getattr(package, "__path__", [getattr(package, "__file__", None)])

    return [str(Path(place).resolve().parent) for place in places if place]


def _end_of(messages: IO[bytes] | None) -> str:
    """Returns the end of a process's messages, or where they are."""
    if messages is None:
        return "Its messages, if it wrote any, are above."

    messages.seek(0)
    text = messages.read().decode(errors="replace").strip()

    return text[-_SHOWN_MESSAGE:] or "It wrote no message."


def _serve() -> None:
    """Answers a `Correspondence`, whose first message has the function."""
    global _parent
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    _parent = Connection(descriptor)
    logging.basicConfig(
        level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("jax").setLevel(logging.WARNING)

    try:
        for value in _values(pickle.loads(_parent.recv_bytes())):
            _parent.send_bytes(pickled(value))
    except (UsageError, RunError) as error:
        # A subclass may need more than a message to be made again by the parent.
        kind = RunError
        if isinstance(error, UsageError):
            kind = UsageError

        _parent.send_bytes(pickled(kind(str(error))))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _values(request: dict[str, Any]) -> Iterator[Any]:
    """Loads what a request needs, calls its function and yields the results.

    Args:
        request: what `Correspondence.__init__` sent.
    """
    # Folders go to the end, so that files in them don't hide installed modules.
    sys.path += [folder for folder in request["folders"] if folder not in sys.path]
    if request["load_tensorflow"]:
        load_tensorflow()

    for plugin in request["plugins"]:
        load_plugin(plugin)

    function, arguments = pickle.loads(request["call"])
    if inspect.isgeneratorfunction(function):
        yield from function(*arguments)
    else:
        yield function(*arguments)


def usable_cores() -> int:
    """Returns how many cores this process may use, at least 1.

    Both its CPU affinity and the quota of its container count.
    """
    # Only Linux has affinities.
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1

    return max(1, int(min(allowed, quota())))


@functools.cache
def quota(root: Path = Path("/")) -> float:
    """Returns how many cores' time control groups grant; infinity if unlimited.

    It is read once, since a container's limits rarely change while it runs.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    return min(map(_granted, control_groups("cpu", root)))


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Returns the folders of this process's control groups and of all their parents.

    Each of them can set limits. The folders need not exist: which of them a container
    sees depends on how it was mounted. Both versions of control groups are read.

    Source: the manual pages cgroups(7) and proc(5).

    Args:
        controller: "cpu" or "memory", say.
        root: the folder with ``proc`` and ``sys``.
    """
    top = root / "sys/fs/cgroup"
    # Inside a container, the group's path may not be mounted.
    folders = [top, top / controller]

    try:
        groups = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    # There are no control groups but on Linux.
    except OSError:
        groups = []

    for line in groups:
        _, controllers, path = line.split(":", 2)
        # Version 2 has one line, without controllers.
        if controllers and controller not in controllers.split(","):
            continue

        mounts = [top / controllers]
        if controllers:
            mounts.append(top / controller)

        for mount in mounts:
            group = mount / path.strip("/")
            folders.append(group)
            folders += [
                parent
                for parent in group.parents
                if parent == mount or mount in parent.parents
            ]

    return folders


def _granted(folder: Path) -> float:
    """Returns the cores' time that one control group grants; inf without a limit.

    A group may grant 150 ms of time per 100 ms, which is that of 1.5 cores.
    """
    # Version 2 has both numbers in one file.
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            texts = [(folder / name).read_text("ascii") for name in names]
            time_us, period_us = map(float, " ".join(texts).split())
        # The file is missing, or has "max" for no limit.
        except (OSError, ValueError):
            continue

        if time_us > 0 and period_us > 0:
            return time_us / period_us

    return math.inf
