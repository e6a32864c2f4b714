"""The tasks of `gpu.run`: each is a process that prints its results so far, one per line."""

import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gpu.commands import agreement, demo, trained_by_command

Answer = dict[str, Any]

SYSTEMS = (
    ("tfasr", "jax"),
    ("stock_keras", "jax"),
    ("tfasr", "torch"),
    ("stock_keras", "torch"),
)
TWIN = ("torch", None)
DTYPES = {
    "float32": "float32",
    "tf32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}


def ceilings(size: int, copied_mib: int, seconds: float) -> Iterator[Answer]:
    """Yields FLOP/s of square products by precision, and bytes per second of a copy, by
    PyTorch.

    Args:
        size: rows and columns.
        copied_mib: moved by a copy, one way.
        seconds: of measuring each.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def fastest_s(once: Callable[[], Any], in_a_row: int = 8) -> float:
        best = float("inf")
        end = None
        while end is None or time.perf_counter() < end:
            began = time.perf_counter()
            for _ in range(in_a_row):
                once()
            if device == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            if end is None:
                end = now + seconds  # the first, which warms up, is left out
                continue

            best = min(best, (now - began) / in_a_row)

        return best

    result: Answer = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"
    }
    for precision, dtype in DTYPES.items():
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        # Random: products of zeros are faster.
        left, right = (
            torch.randn(size, size).to(device, getattr(torch, dtype)) for _ in "ab"
        )
        out = torch.empty_like(left)
        once = fastest_s(lambda a=left, b=right, out=out: torch.matmul(a, b, out=out))
        result[f"{precision}_flops_per_s"] = 2 * size**3 / once
        yield result

    source = torch.randn(copied_mib * 2**18).to(device)
    copy = torch.empty_like(source)
    result["copy_bytes_per_s"] = (
        2 * copied_mib * 2**20 / fastest_s(lambda: copy.copy_(source))
    )
    yield result


def steps(
    size: str,
    precisions: list[str],
    rounds: int,
    turn_s: float,
    systems: list | None = None,
) -> Iterator[Answer]:
    """Yields training steps of tfasr, stock Keras and the twin, in alternation.

    Processes that fail together with others, for lack of memory say, are tried again
    alone. ``systems`` are pairs of a system and its Keras backend; on "tensorflow" each
    runs its own step, as `twin.systems.make_step` says.
    """
    from twin.sizes import NUM_CLASSES, NUM_FEATURES, parse_size
    from twin.worker import Worker

    from tfasr.models.model import model_flops

    of = parse_size(size)
    sizes = (NUM_FEATURES, NUM_CLASSES, of.batch, of.frames)
    flops = model_flops(of.model_config(), *sizes, training=True)
    variants = [
        (*entry, p) for p in precisions for entry in systems or (*SYSTEMS, TWIN)
    ]
    turns: dict[tuple, list[Answer]] = {variant: [] for variant in variants}
    ready = {}
    failed = {}

    def worker(variant: tuple) -> Worker | None:
        system, backend, precision = variant
        task = {"task": "step", "size": size, "system": system, "precision": precision}
        try:
            made = Worker({**task, "backend": backend, "on_gpu": True})
        except RuntimeError as error:
            failed[variant] = str(error)[-400:]
            return None

        ready[variant], _ = made.ready, failed.pop(variant, None)
        return made

    def rows() -> Answer:
        return {"flops": flops, "rows": [row(variant) for variant in variants]}

    def row(variant: tuple) -> Answer:
        times = [turn["step_s"] for turn in turns[variant]]
        *system, precision = variant
        named = {
            "system": "/".join(filter(None, system)),
            "size": size,
            "precision": precision,
        }
        if not times:
            return {**named, "failed": failed.get(variant, "no turn yet")}
        step_s = statistics.median(times)
        return {
            **named,
            "step_ms": 1000 * step_s,
            "fastest_ms": 1000 * min(times),
            "slowest_ms": 1000 * max(times),
            "rounds_ms": [1000 * seconds for seconds in times],
            "flops_per_s": flops / step_s,
            "audio_s_per_s": of.audio_s / step_s,
            "first_step_s": ready[variant]["first_step_s"],
            "peak_device_bytes": turns[variant][-1]["peak_device_bytes"],
            "last_loss": turns[variant][-1]["loss"],
            "alone": variant in alone,
        }

    def take(variant: tuple, made: Worker) -> None:
        try:
            turns[variant].append(made.turn(turn_s))
        except RuntimeError as error:
            failed[variant] = str(error)[-400:]

    alone: list[tuple] = []
    # JAX compiles for a quarter of a minute
    with ThreadPoolExecutor(len(variants)) as pool:
        workers = dict(zip(variants, pool.map(worker, variants), strict=True))
    for _ in range(rounds):
        for variant, made in workers.items():
            if made is not None and variant not in failed:
                take(variant, made)

        yield rows()

    for made in filter(None, workers.values()):
        made.close()
    alone += failed
    for variant in list(failed):
        if (made := worker(variant)) is not None:
            turns[variant].clear()
            for _ in range(rounds):
                if variant not in failed:
                    take(variant, made)

            made.close()

        yield rows()


def trained(**settings: Any) -> Iterator[Answer]:
    """Yields the results of `gpu.train.train` after each epoch."""
    from gpu.train import train

    return train(**{**settings, "folder": Path(settings["folder"])})


def bench(preset: str, bindings: list[str], fraction: float) -> Iterator[Answer]:
    """Yields the results of a workload of ``tfasr bench`` on this process's backend."""
    # The command itself requires TensorFlow, even if the workload doesn't.
    from tfasr.bench.perform import load_bench, perform
    from tfasr.bench.workload import Context

    loaded = load_bench(preset, bindings)
    context = Context(backend=os.environ["KERAS_BACKEND"], fraction=fraction)
    for measured in perform(loaded.bench.workload, loaded.configs, context):
        yield {name: measured.values.get(name) for name in ("configs", "results")}


def networks(lengths: list[int], batch: int, count: int, units: int) -> Answer:
    """Returns the hardware sweep's kinds of network over lengths."""
    from tfasr.bench.backends import AxesTask, measure_axes
    from tfasr.models.model import MODELS

    names = ("separable_conv", "acoustic_model", "conformer")
    configs = {name: MODELS[name]() for name in names}
    if units:
        configs = {name: config.smaller(units) for name, config in configs.items()}
    rows = []
    for entry in measure_axes(AxesTask(configs, 93, tuple(lengths), batch, count, 2)):
        names = ("network", "frames", "parameters", "first_s", "reason")
        rows.append({name: getattr(entry, name) for name in names})
        for part in ("inference", "training"):
            seconds = getattr(entry, f"{part}_median_s")
            rows[-1][f"{part}_ms"] = None if seconds is None else 1000 * seconds

    return {"batch": batch, "rows": rows}


def decoder(
    folder: str,
    size: str,
    beam_width: int,
    turn_s: float,
    threads: list[int],
    utterances: int,
    system: str = "torch",
) -> Iterator[Answer]:
    """Yields times of a training step and of a word beam search on the host, alone and
    together.

    Args:
        folder: has ``load.npz`` of `decoder_load`.
        size: of the training step, see `twin.sizes`.
        turn_s: seconds of each measurement.
        threads: of the search.
        utterances: that are searched, the first of the folder's.
        system: whose step it is, see `twin.systems`; "torch" is the twin.
    """
    from decoder_load import Load
    from twin.sizes import parse_size
    from twin.systems import make_step

    from tfasr.alphabet import Alphabet
    from tfasr.decoding.word_beam_search import WordBeamSearch

    load = Load.read(Path(folder), utterances)
    step = make_step(system, parse_size(size), "float32")
    for _ in range(3):
        step()

    def median_step_ms(until: Callable[[], bool]) -> float:
        taken = []
        while not taken or not until():
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)

        return 1000 * statistics.median(taken)

    def after(seconds: float) -> Callable[[], bool]:
        end = time.perf_counter() + seconds
        return lambda: time.perf_counter() >= end

    result: Answer = {
        "utterances": len(load.lengths),
        "beam_width": beam_width,
        "rows": [],
    }
    for count in threads:
        search = WordBeamSearch(
            Alphabet(load.chars), load.lexicon, beam_width, num_threads=count
        )

        def decoded_s(done: threading.Event, search=search) -> Iterator[float]:
            while not done.is_set():
                began = time.perf_counter()
                search.decode(load.log_probs, load.lengths)
                yield time.perf_counter() - began

        search.decode(load.log_probs, load.lengths)  # starts threads, fills caches
        row = {"threads": count, "step_alone_ms": median_step_ms(after(turn_s))}
        row["decode_alone_s"] = next(decoded_s(threading.Event()))
        done = threading.Event()
        beside = []
        thread = threading.Thread(
            target=lambda d=done, b=beside: b.extend(decoded_s(d))
        )
        thread.start()
        # Until at least one search has ended during the steps.
        enough = after(max(turn_s, 1.2 * row["decode_alone_s"]))
        row["step_beside_ms"] = median_step_ms(enough)
        done.set()
        thread.join()
        row["decode_beside_s"] = statistics.median(beside)
        row["step_slowdown"] = row["step_beside_ms"] / row["step_alone_ms"]
        result["rows"].append(row)
        yield result


TASKS = {
    task.__name__: task
    for task in (
        agreement,
        bench,
        ceilings,
        decoder,
        demo,
        networks,
        steps,
        trained,
        trained_by_command,
    )
}


def main() -> None:
    """Runs the task named by the first argument, in JSON: ``{"kind", **arguments}``."""
    task = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as answers, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)  # what libraries print must not pass for an answer
        answer = TASKS[task.pop("kind")](**task)
        for content in [answer] if isinstance(answer, dict) else answer:
            answers.write(json.dumps(content, default=_plain) + "\n")
            answers.flush()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


if __name__ == "__main__":
    main()
