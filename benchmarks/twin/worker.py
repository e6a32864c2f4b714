"""Training steps in separate processes, on request.

Each system and precision has its own process, so that thread pools don't disturb each
other; between turns a process sleeps while reading its pipe. Threads keep their
frameworks' defaults, as for users: with OMP_WAIT_POLICY=passive none would spin after a
step, but PyTorch's LSTM of 256 units took 1.8 times as long (batch 16, 145 steps,
forward and backward, 2 cores). Instead, the parent pauses before each turn until
spinning ends, and measures that waiting processes use no processor time.
"""

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

BENCHMARKS = Path(__file__).resolve().parents[1]
_PACKAGES = {"tfasr": ["tensorflow", "keras"], "stock_keras": ["tensorflow", "keras"]}
# The twin's sizes are in a config next to Keras layers, which don't need TensorFlow.
_BACKENDS = {
    "torch": {"KERAS_BACKEND": "torch"},
    "torch_compiled": {"KERAS_BACKEND": "torch"},
}
_WARM_UP_STEPS = 2
_SHORT_S = 1.0
_PAUSE_S = 0.1


def environment(tree: Path | None = None, *, on_gpu: bool = False) -> dict[str, str]:
    """Returns the environment of a peer's process: this folder on the path, and usually
    no GPU.

    Args:
        tree: a source tree of tfasr whose package and benchmarks the process imports;
            None for the installed package and this file's benchmarks.
    """
    if tree is None:
        folders = [str(BENCHMARKS)]
    else:
        folders = [str(tree / "benchmarks"), str(tree)]

    path = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
    if not on_gpu:
        variables["CUDA_VISIBLE_DEVICES"] = "-1"

    return variables


def precision_environment(precision: str | None, backend: str | None) -> dict[str, str]:
    """Returns variables for "float32" or "tf32" products on a GPU and for sharing its memory.

    By default, PyTorch uses TF32 in cuDNN but not in cuBLAS; JAX and TensorFlow in
    both.
    """
    variables = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    if precision == "tf32":
        variables["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "1"
        variables["JAX_DEFAULT_MATMUL_PRECISION"] = "tensorfloat32"
    else:
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
        variables["JAX_DEFAULT_MATMUL_PRECISION"] = "float32"

    if backend is not None:
        variables["KERAS_BACKEND"] = backend

    return variables


class Worker:
    """The parent's end of a worker.

    Args:
        task: the argument of `main`; once the process is warm, `ready` has its answer.
        tree: the source tree it imports, see `environment`.

    Raises:
        RuntimeError: if the process ends without an answer; with the end of its
            messages.
    """

    def __init__(self, task: dict[str, Any], tree: Path | None = None):
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            [sys.executable, "-m", "twin.worker", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            cwd=tree,  # which Python puts before PYTHONPATH
            env=self._environment(task, tree),
        )
        self._task = task
        self.ready = self._answer()

    @staticmethod
    def _environment(task: dict[str, Any], tree: Path | None) -> dict[str, str]:
        backend = _BACKENDS.get(task.get("system"), {})
        if not task.get("on_gpu"):
            return environment(tree) | backend

        of_precision = precision_environment(task["precision"], task.get("backend"))

        return environment(tree, on_gpu=True) | backend | of_precision

    def turn(self, least_s: float) -> dict[str, Any]:
        """Makes it train for at least so many seconds; returns its answer, see
        `_take_turn`.
        """
        with contextlib.suppress(BrokenPipeError):  # it has died: the answer says so
            self._process.stdin.write(f"{least_s}\n".encode())
            self._process.stdin.flush()

        return self._answer()

    def cpu_s(self) -> float:
        """Returns its processor seconds."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def cores(self) -> list[int]:
        """Returns the cores that it may use."""
        return psutil.Process(self._process.pid).cpu_affinity()

    def move_to(self, cores: list[int]) -> None:
        """Moves all its threads to these cores."""
        for thread in psutil.Process(self._process.pid).threads():
            os.sched_setaffinity(thread.id, cores)

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

        self._process.wait()
        self._process.stdout.close()
        self._messages.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)

        self._process.wait()
        self._messages.seek(0)
        end = self._messages.read()[-2000:].decode(errors="replace")
        status = self._process.returncode
        self.close()

        if status == -9:
            remedy = " Name fewer --systems or one --precision: memory ran out."
        else:
            remedy = ""

        raise RuntimeError(
            f"{self._task} must give an answer. It ended with status {status}.{remedy}\n{end}"
        )


def take_turn(
    worker: Worker, others: list[Worker], turn_s: float
) -> tuple[dict, float]:
    """Returns a worker's answer, and the cores used by the others meanwhile."""
    time.sleep(_PAUSE_S)  # threads of the one before spin for some milliseconds
    used_s = sum(other.cpu_s() for other in others)
    start = time.perf_counter()
    answer = worker.turn(turn_s)
    wall_s = time.perf_counter() - start

    return answer, (sum(other.cpu_s() for other in others) - used_s) / wall_s


def _seconds(step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _warm_up(step) -> tuple[float, float]:
    """Returns the seconds of the first step, which compiles, and of the last."""
    first_s, *_, last_s = [_seconds(step) for _ in range(_WARM_UP_STEPS)]
    return first_s, last_s


def _take_turn(step, least_s: float, short: bool) -> dict[str, Any]:
    """Returns the median of a turn's steps in seconds, and their number."""
    if short:
        step()  # caches are cold and threads asleep

    taken: list[float] = []
    while sum(taken) < least_s or not taken:
        taken.append(_seconds(step))

    return {
        "step_s": statistics.median(taken),
        "steps": len(taken),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_device_bytes": _peak_device_bytes(),
        "loss": step.last_loss,
    }


def _peak_device_bytes() -> int | None:
    """Returns the peak GPU memory of TensorFlow, PyTorch or JAX, whichever is loaded."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.config.list_logical_devices("GPU"):
        return tensorflow.config.experimental.get_memory_info("GPU:0")["peak"]

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() or None

    jax = sys.modules.get("jax")
    if jax is None:
        return None

    # A device that counts nothing returns None.
    counted = jax.local_devices()[0].memory_stats() or {}
    return counted.get("peak_bytes_in_use")


class _Remembering:
    """A step that keeps its last loss."""

    def __init__(self, step):
        self._step = step
        self.last_loss: float | None = None

    def __call__(self) -> None:
        self.last_loss = self._step()


def _serve(task: dict[str, Any], answers) -> None:
    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    from twin.sizes import parse_size

    size = parse_size(task["size"])
    if task["task"] == "agreement":
        from twin.agreement import disagreements

        answer(disagreements(size.model_config(), task["peers"]))
        return

    from twin.systems import make_step

    backend = task.get("backend")
    step = _Remembering(make_step(task["system"], size, task["precision"], backend))
    first_s, last_s = _warm_up(step)

    if backend is None:
        packages = _PACKAGES.get(task["system"], ["torch"])
    else:
        packages = ["keras", backend]

    versions = {name: metadata.version(name) for name in packages}
    answer({"first_step_s": first_s, "versions": versions})
    for line in sys.stdin:
        answer(_take_turn(step, float(line), last_s < _SHORT_S))


def main() -> None:
    """Runs the task named by the first argument, in JSON."""
    # Output of libraries must not mix with the answers.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        _serve(json.loads(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
