"""Trains in forked processes, so that several workers pay for TensorFlow's import once.

``python -m tests.cluster.forked SCENARIOS.json`` runs them one after the other: each a list of the
arguments of `work`, one for each worker. What a worker prints goes to ``<log>``. Nothing of
TensorFlow but its import happens before the fork.
"""

import dataclasses
import functools
import json
import logging
import os
import signal
import sys
from pathlib import Path

from tests.tones import SHARDS, adam, tones_experiment
from tfasr.cluster.description import Cluster
from tfasr.errors import RunError, UsageError
from tfasr.training.hooks.record import RecordSteps
from tfasr.training.train import train
from tfasr.training.workers.follow import WorkerSteps
from tfasr.training.workers.team import joined

EXIT_USAGE = 2
# Of some steps' gradients the norm is larger, of others smaller.
CLIPNORM = 5.0


def work(request: dict) -> int:
    """Trains as one worker, or alone, and returns its exit code.

    Args:
        request: ``run_dir``; ``addresses`` and ``rank``, or none of them for one process; changes
            of the ``training``, ``pipeline`` and ``model`` configs; ``resume``; ``devices``,
            logical processors to make; ``die``, a step and the signal that this process sends
            itself after it.
    """
    if request.get("devices", 1) > 1:
        import tensorflow as tf

        processor = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * request["devices"]
        tf.config.set_logical_device_configuration(processor, logical)
    cluster = None
    if "addresses" in request:
        cluster = Cluster(tuple(request["addresses"]), request["rank"])
    if "die" in request:
        _die_after(RecordSteps if request["rank"] == 0 else WorkerSteps, *request["die"])
    try:
        in_rounds = request.get("training", {}).get("exchange") in ("local", "asynchronous")
        with joined(cluster, in_rounds=in_rounds) as team:
            optimizer = functools.partial(adam, global_clipnorm=CLIPNORM)
            experiment = tones_experiment(optimizer=optimizer, **request.get("training", {}))
            changed = {
                name: dataclasses.replace(getattr(experiment, name), **request.get(name, {}))
                for name in ("pipeline", "model")
            }
            train(
                dataclasses.replace(experiment, **changed),
                shard_dir=SHARDS,
                run_dir=Path(request["run_dir"]),
                resume=request.get("resume", False),
                memory_probe=False,
                team=team,
            )
    except UsageError as error:
        logging.getLogger("tfasr").error("%s", error)
        return EXIT_USAGE
    except RunError as error:
        logging.getLogger("tfasr").error("%s", error)
        return error.exit_code
    return 0


def _die_after(hook: type, step: int, number: int) -> None:
    recording = hook.on_step

    def on_step(self, run, result):
        recording(self, run, result)
        if run.state.step == step:
            os.kill(os.getpid(), number)

    hook.on_step = on_step


def fork(request: dict) -> int:
    """Starts a worker and returns its process's number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(120)  # whatever happens, it does not stay
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 70
    try:
        code = work(request)
    except BaseException:
        logging.getLogger("tfasr").exception("worker")
    finally:
        logging.shutdown()
        os._exit(code)


def main() -> None:
    """Runs the scenarios and prints each worker's exit code, negative for a signal."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    scenarios = json.loads(Path(sys.argv[1]).read_text())
    codes = {}
    for name, requests in scenarios.items():
        pids = [fork(request) for request in requests]
        codes[name] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
