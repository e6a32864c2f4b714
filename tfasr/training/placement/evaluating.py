"""What runs in the process that evaluates checkpoints beside the training."""

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfasr.child import received


def evaluate_checkpoints(run_dir: Path, processors: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Evaluates a run's checkpoints one after the other, as they are named to it.

    It is sent dicts of ``epoch``, ``checkpoint`` and ``hypotheses``, the file that gets them, and
    ends with whoever sends them.

    Args:
        run_dir: the run's folder, with its configs, alphabet, lexicon and statistics.
        processors: logical processors to work on; none for all.

    Yields:
        For each dict ``epoch``, ``values`` (what `EvaluationResult.scores` returns), ``work``
        (seconds by ``load``, ``forward`` and ``decode``) and ``traces`` so far.
    """
    # Ctrl-C reaches all processes of a terminal; the training decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if processors:  # before TensorFlow counts them
        os.sched_setaffinity(0, set(processors))
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    from tfasr.quiet import load_tensorflow

    load_tensorflow()
    from tfasr.training.checkpoint import restore_for_use
    from tfasr.training.trained import open_trained

    model, evaluator = open_trained(run_dir).validation_evaluator()
    while True:
        job = jobs.get()
        began = time.perf_counter()
        restore_for_use(job["checkpoint"], model)
        loaded = time.perf_counter()
        pending = evaluator.start()
        passed = time.perf_counter()
        result, decode_s = pending.result()
        result.write_hypotheses(job["hypotheses"])
        yield {
            "epoch": job["epoch"],
            "values": result.scores(),
            "work": {
                "load_s": round(loaded - began, 6),
                "forward_s": round(passed - loaded, 6),
                "decode_s": round(decode_s + (result.second.worked_s if result.second else 0), 6),
            },
            "traces": evaluator.traces,
        }


def _listen(jobs: queue.SimpleQueue) -> None:
    for job in received():
        jobs.put(job)
    os._exit(0)  # the training is gone; nobody wants what is being computed
