"""All GPU measurements, in pieces of at most ten minutes.

    benchmarks/gpu/run --out results --data packed --load BENCH --pieces machine steps
    benchmarks/gpu/run --out toys --toy                 # all of it at sizes for a processor

Pieces whose names begin with tensorflow need TensorFlow, installed or carried there with
``carry.py``.

Each piece writes ``NAME.json``: expectation, machine, driver, versions, date, and for
each task its arguments, results, GPU utilisation and energy by NVML. ``table.md`` has a
row for each task, as in docs/measured.md. A task is a process. If one fails or runs out
of time, its results so far and the other tasks are kept. Started again with the same
``--out``, only unfinished tasks run. Pieces take 73 minutes in total.
"""

import argparse
import contextlib
import csv
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from twin.worker import environment, precision_environment

from tfasr.kit.files import ENERGY_FILE, GPU_FILE, write_whole
from tfasr.telemetry.energy import EnergySampler
from tfasr.telemetry.samplers import UtilisationSampler
from tfasr.telemetry.system import describe_system
from tfasr.tta.energy import read_samples, used_joules

# Tasks in order of importance, with the result expected before measuring.
PIECES = json.loads(Path(__file__).with_name("pieces.json").read_text(encoding="utf-8"))
PACKAGES = ("tensorflow", "torch", "jax", "jaxlib", "keras", "numpy")
LEAST_S = 5.0
COMPILED = Path(tempfile.gettempdir()) / "gpu-benchmark-xla"
_POINTS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="for results; kept ones count"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("packed"), help="of python -m gpu.data"
    )
    parser.add_argument(
        "--load", type=Path, default=Path("load"), help="has a decoder's load.npz"
    )
    parser.add_argument("--pieces", nargs="+", choices=PIECES, default=list(PIECES))
    parser.add_argument(
        "--budget_s", type=float, default=4500, help="seconds of all pieces"
    )
    parser.add_argument("--toy", action="store_true", help="sizes for a processor")
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + flags.budget_s
    places = {"{data}": str(flags.data.resolve()), "{load}": str(flags.load.resolve())}
    # If ended from outside, it ends its tasks, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in flags.pieces:
        tasks = PIECES[name]["toy" if flags.toy else "tasks"]
        run_piece(name, PIECES[name], tasks, flags.out, end, places)

    write_whole(flags.out / "table.md", table(flags.out))
    print(table(flags.out))


def run_piece(
    name: str,
    piece: dict,
    tasks: list[dict],
    out: Path,
    end: float,
    places: dict[str, str],
) -> None:
    """Runs the unfinished tasks of a piece, as far as time allows, and writes each result.

    Args:
        end: of all pieces, on the monotonic clock.
        places: this machine's folders, by their names in tasks.
    """
    path = out / f"{name}.json"
    if path.is_file():
        earlier = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    else:
        earlier = {}

    result = {
        "piece": name,
        **surroundings(),
        "expects": piece["expects"],
        "tasks": earlier,
    }
    end = min(end, time.monotonic() + piece["budget_s"])
    for task in tasks:
        key = task["key"]
        previous = earlier.get(key, {})
        if (
            previous.get("status") == "done"
            and previous["arguments"] == task["arguments"]
        ):
            continue

        say(f"{name}: {key}")
        fresh = run_task(task, min(task["limit_s"], end - time.monotonic()), places)
        # Results of an earlier start are better than none at all.
        if previous.get("answer") is None or fresh["answer"] is not None:
            result["tasks"][key] = {**fresh, "date": result["date"]}
        write_whole(path, json.dumps(result, indent=1) + "\n")
        write_whole(out / "table.md", table(out))


def surroundings() -> dict[str, Any]:
    machine = describe_system()
    del machine["host"]  # a name says nothing about speed
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)

    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    command = shlex.join(
        ["benchmarks/gpu/run", *(Path(w).name or w for w in sys.argv[1:])]
    )
    machine["packages"] |= versions
    return {"date": date, "command": command, "machine": machine}


def run_task(
    task: dict[str, Any], limit_s: float, places: dict[str, str]
) -> dict[str, Any]:
    """Returns a task's last output, and how it ended: done, failed, cut, skipped."""
    result: dict[str, Any] = {**task, "answer": None}
    if limit_s < LEAST_S:
        return {**result, "status": "skipped"}
    options = task["arguments"]
    options = {n: places.get(v, v) if n == "folder" else v for n, v in options.items()}
    content = json.dumps({"kind": task["kind"], **options})
    variables = environment(on_gpu=True) | {"KERAS_BACKEND": task["backend"]}
    # Which set each precision on their own.
    if task["kind"] not in ("steps", "ceilings", "agreement", "demo"):
        variables |= precision_environment(options.get("precision"), task["backend"])
    if task["kind"] == "trained":  # seed 1 compiles, the others find its programs
        variables["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
        # Small ones, too: creating a model and its optimizer compiles hundreds.
        variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with contextlib.ExitStack() as held:
            held.enter_context(UtilisationSampler(folder))
            held.enter_context(EnergySampler(folder, 0))
            answers, errors = (
                held.enter_context((folder / stream).open("wb"))
                for stream in ("out", "err")
            )
            began = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu.tasks", content],
                stdout=answers,
                stderr=errors,
                env=variables,
                start_new_session=True,  # so that its own processes end with it
            )
            try:
                status = "done" if process.wait(limit_s) == 0 else "failed"
            except subprocess.TimeoutExpired:
                status = "cut"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

            result["wall_s"] = time.monotonic() - began

        lines = (
            (folder / "out")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines(True)
        )
        complete = [line for line in lines if line.endswith("\n")]
        result["answer"] = json.loads(complete[-1]) if complete else None
        if status != "done":
            result["error"] = (folder / "err").read_text(errors="replace")[-1500:]
        result["use"] = use(folder)

    return {**result, "status": status}


def use(folder: Path) -> dict[str, Any]:
    """Returns the first GPU's utilisation over time, and the joules of each counter."""
    result: dict[str, Any] = {"gpu_percent": None, "joules": {}}
    with contextlib.suppress(OSError, ValueError):
        samples: dict[str, list] = {}
        for sample in read_samples(folder / ENERGY_FILE):
            samples.setdefault(sample.counter, []).append(sample)
        result["joules"] = {
            counter: used_joules(own) for counter, own in samples.items()
        }

    if (folder / GPU_FILE).is_file():
        with (folder / GPU_FILE).open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["gpu"] == "0"]
        numbers = [
            [float(cell or "nan") for cell in list(row.values())] for row in rows
        ]
        if numbers:
            began_ms = numbers[0][0]
            every = -(-len(numbers) // _POINTS)
            groups = [numbers[i : i + every] for i in range(0, len(numbers), every)]
            result["gpu_percent"] = sum(row[2] for row in numbers) / len(numbers)
            result["most_memory_bytes"] = max(row[3] for row in numbers)
            result["over_time"] = [  # seconds, percent, watts: means
                [
                    round(sum(column) / len(group), 1)
                    for column in zip(*picked, strict=True)
                ]
                for group in groups
                for picked in [
                    [((row[0] - began_ms) / 1000, row[2], row[4]) for row in group]
                ]
            ]

    return result


def table(out: Path) -> str:
    """Returns a Markdown table of all pieces in a folder, a row a task."""
    lines = ["| what | figure | machine | command |", "|---|---|---|---|"]
    for name in PIECES:
        path = out / f"{name}.json"
        if not path.is_file():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        machine = result["machine"]
        packages = result["machine"]["packages"]
        chips = ", ".join(machine["gpus"]) or machine["processor"]
        named = ", ".join(f"{n} {packages[n]}" for n in PACKAGES if n in packages)
        driver = next((gpu["driver"] for gpu in machine["gpu_details"]), "n/a")
        on = f"{chips}, driver {driver}, {named}"
        for key, task in result["tasks"].items():
            ending = "" if task["status"] == "done" else f" ({task['status']})"
            figure = _figure(task).replace("|", "\\|").replace("\n", " ")
            when = f"{on}, {task['date'][:10]}"
            lines.append(
                f"| {name}: {key}{ending} | {figure} | {when} | `{result['command']}` |"
            )

    return "\n".join(lines) + "\n"


def _figure(task: dict[str, Any]) -> str:
    answer = task["answer"]
    if answer is None:
        return (task.get("error") or "nothing").strip().splitlines()[-1][:160]
    percent = (task.get("use") or {}).get("gpu_percent")
    busy = "" if percent is None else f"; GPU {percent:.0f} % busy"
    joules = [
        j for name, j in task["use"]["joules"].items() if name.startswith("gpu") and j
    ]
    busy += f", {sum(joules) / 1000:.2f} kJ" if joules else ""
    return _FIGURES[task["kind"]](answer) + busy


def _of_steps(answer: dict[str, Any]) -> str:
    def text(row: dict[str, Any]) -> str:
        named = f"{row['system']} {row['precision']}"
        if "failed" in row:
            return f"{named} failed"
        low = row["fastest_ms"]
        high = row["slowest_ms"]
        rate = row["flops_per_s"] / 1e12
        memory = row["peak_device_bytes"]
        taken = "" if memory is None else f", {memory / 2**30:.1f} GiB"
        return f"{named} {row['step_ms']:.1f} ms ({low:.1f} to {high:.1f}), {rate:.3g} T/s{taken}"

    return "; ".join(map(text, answer["rows"]))


def _of_training(answer: dict[str, Any]) -> str:
    reached = [
        f"{target} {'never' if s is None else f'after {s:.1f} s'}"
        for target, s in answer["reached_s"].items()
    ]
    wait = answer["step_input_wait_share"]
    waits = "" if wait is None else f", input wait {100 * wait:.1f} % of a step"
    last = 100 * answer["curve"][-1][0]
    compile_s = answer["intervals_s"]["compile"]
    waits += f", {compile_s:.1f} s compiling" if compile_s else ""
    return (
        f"{', '.join(reached)}; {answer['epochs']} epochs, last CER {last:.1f} %{waits}"
    )


def _of_networks(answer: dict[str, Any]) -> str:
    rows = [row for row in answer["rows"] if row["training_ms"] is not None]
    return ", ".join(
        f"{r['network']} x {r['frames']}: {r['training_ms']:.1f} ms" for r in rows
    )


def _of_bench(answer: dict[str, Any]) -> str:
    """Returns the main results of a workload; the JSON has all of them."""
    results = answer.get("results", answer)
    if results.get("runs") and "epoch_s" in results["runs"][-1]:
        run = results["runs"][-1]
        return f"batch {run['batch_size']}: {run['audio_s_per_s']:.0f} audio s/s"

    numbers = {k: v for k, v in results.items() if isinstance(v, int | float)}
    return (
        ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        or "see the JSON"
    )


def _of_decoder(answer: dict[str, Any]) -> str:
    return ", ".join(
        f"{r['threads']} threads: steps {r['step_slowdown']:.3f} times as long, search "
        f"{r['decode_beside_s'] / r['decode_alone_s']:.2f}"
        for r in answer["rows"]
    )


def _of_ceilings(answer: dict[str, Any]) -> str:
    rates = {k.split("_")[0]: v for k, v in answer.items() if k.endswith("_per_s")}
    return ", ".join(f"{name} {rate / 1e12:.3g} T/s" for name, rate in rates.items())


def _of_agreement(answer: dict[str, Any]) -> str:
    if "largest_difference" not in answer:
        return "no run on the CPU yet"
    kernels = ", ".join(answer["default_kernels"] or ["no recurrent layer"])
    return (
        f"{kernels}; losses of {answer['steps']} steps differ from the CPU's by at most "
        f"{answer['largest_difference']:.1e}"
    )


def _of_command(answer: dict[str, Any]) -> str:
    return f"{_of_training(answer)}; {answer['process_s']:.1f} s in all"


def _of_demo(answer: dict[str, Any]) -> str:
    return f"{len(answer['runs'])} trainings, {answer['process_s']:.1f} s in all"


_FIGURES = {
    "agreement": _of_agreement,
    "demo": _of_demo,
    "trained_by_command": _of_command,
    "ceilings": _of_ceilings,
    "steps": _of_steps,
    "trained": _of_training,
    "networks": _of_networks,
    "bench": _of_bench,
    "decoder": _of_decoder,
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
