"""Trains in forked processes that kill themselves between or in evaluations within an epoch.

``python -m tests.training.killed_grid CASES.json``: each case has a ``run_dir``,
changes of the ``training`` config, and the ``moment`` of the kill, see `MOMENTS`.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.tones import SHARDS, tones_experiment
from tfasr.training.evaluation import Evaluator
from tfasr.training.hooks.evaluate import Evaluate
from tfasr.training.hooks.record import RecordSteps
from tfasr.training.train import train


def at_call(kind: type, method: str, number: int, *, after: bool) -> None:
    """Makes a method kill this process with its ``number``-th call, before or after its
    work.
    """
    original = getattr(kind, method)
    calls = []

    def counted(*args, **kwargs):
        calls.append(method)
        if len(calls) == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, method, counted)


MOMENTS: dict[str, Callable[[], None]] = {
    "in the second evaluation": lambda: at_call(Evaluator, "start", 2, after=True),
    "the second evaluation booked": lambda: at_call(Evaluate, "_book", 2, after=True),
    # A step after the evaluation of step 8, in the second epoch, and before the next
    # checkpoint.
    "after step 9": lambda: at_call(RecordSteps, "on_step", 9, after=True),
}


def main() -> None:
    """Runs the cases one after the other."""
    for case in json.loads(Path(sys.argv[1]).read_text()):
        child = os.fork()
        if child == 0:
            MOMENTS[case["moment"]]()
            run_dir = Path(case["run_dir"])
            train(
                tones_experiment(**case["training"]), shard_dir=SHARDS, run_dir=run_dir
            )
            os._exit(1)

        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"{case} ended with {status} instead of being killed")


if __name__ == "__main__":
    main()
