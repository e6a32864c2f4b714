"""Trains in forked processes, so that several workers pay for TensorFlow's import once.

``python -m tests.cluster.forked SCENARIOS.json`` runs them one after the other: each a
list of the arguments of `work`, one for each worker. What a worker prints goes to
``<log>``. Nothing of TensorFlow but its import happens before the fork.
"""

import dataclasses
import functools
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

from tests.tones import SHARDS, adam, tones_experiment
from tfasr.cluster.description import Cluster
from tfasr.errors import RunError, UsageError
from tfasr.training.experiment import TrainingConfig
from tfasr.training.hooks.record import RecordSteps
from tfasr.training.train import train
from tfasr.training.workers import follow
from tfasr.training.workers.follow import WorkerSteps
from tfasr.training.workers.rounds import ShareTrainer
from tfasr.training.workers.team import joined

EXIT_USAGE = 2
# Of some steps' gradients the norm is larger, of others smaller.
CLIPNORM = 5.0


def work(request: dict) -> int:
    """Trains as one worker, or alone, and returns its exit code.

    Args:
        request: ``run_dir``; ``addresses`` and ``rank``, or none of them for one
            process; changes of the ``training``, ``pipeline`` and ``model`` configs;
            ``resume``; ``devices``, logical processors to make; ``die``, a step and the
            signal that this process sends itself after it; ``die_in_round``, likewise,
            before that step of its own where it trains in rounds; ``again``, changes
            with which it is then started anew; ``await_all_at``, a step at which the
            chief waits until all workers are there; ``start_s``, how long they wait for
            a chief that is gone.
    """
    if request.get("devices", 1) > 1:
        import tensorflow as tf

        processor = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * request["devices"]
        tf.config.set_logical_device_configuration(processor, logical)

    cluster = None
    if "addresses" in request:
        cluster = Cluster(tuple(request["addresses"]), request["rank"])
    follow.START_S = request.get("start_s", follow.START_S)
    if "die_in_round" in request:
        _die_in_round(*request["die_in_round"])
    if "await_all_at" in request:
        _await_all_at(request["await_all_at"], cluster.size)
    if "die" in request:
        _die_after(
            RecordSteps if request["rank"] == 0 else WorkerSteps, *request["die"]
        )
    try:
        in_rounds = TrainingConfig(**request.get("training", {})).in_rounds
        with joined(cluster, in_rounds=in_rounds) as team:
            optimizer = functools.partial(adam, global_clipnorm=CLIPNORM)
            experiment = tones_experiment(
                optimizer=optimizer, **request.get("training", {})
            )
            changed = {
                name: dataclasses.replace(
                    getattr(experiment, name), **request.get(name, {})
                )
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


def _die_in_round(step: int, number: int) -> None:
    take = ShareTrainer.step
    left = [step]

    def taken(self):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), number)
        return take(self)

    ShareTrainer.step = taken


def _await_all_at(step: int, size: int) -> None:
    recording = RecordSteps.on_step

    def on_step(self, run, result):
        recording(self, run, result)
        ends_s = time.monotonic() + 60
        while (
            run.state.step == step
            and run.team.hub.size < size
            and time.monotonic() < ends_s
        ):
            time.sleep(0.05)

    RecordSteps.on_step = on_step


def fork(request: dict) -> int:
    """Starts a worker and returns its process's number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(400)  # whatever happens, it does not stay
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
    logging.basicConfig(
        level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True
    )
    scenarios = json.loads(Path(sys.argv[1]).read_text())
    codes = {}
    for name, requests in scenarios.items():
        running = {fork(request): rank for rank, request in enumerate(requests)}
        ended = {}
        while running:
            pid, status = os.wait()
            rank = running.pop(pid)
            ended.setdefault(rank, []).append(os.waitstatus_to_exitcode(status))
            if "again" in requests[rank]:
                requests[rank] |= requests[rank].pop("again")
                running[fork(requests[rank])] = rank

        codes[name] = [ended[rank][-1] for rank in sorted(ended)]

    print(json.dumps(codes))


if __name__ == "__main__":
    main()
