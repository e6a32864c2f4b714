"""Joins the workers of a cluster, and what each kind of them agrees on.

`joined` is the entry: it waits for all workers and yields their team, with which
`tfasr.training.train.train` trains. `SynchronousTeam` takes every step together, under
TensorFlow's MultiWorkerMirroredStrategy. `RoundsTeam` exchanges weights after some
steps each, through a hub in the chief's process.
"""

import contextlib
import faulthandler
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfasr.cluster import launcher
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import PeerWatch
from tfasr.cluster.meeting import await_peers
from tfasr.cluster.stream import START_S, ChiefStream
from tfasr.cluster.trust import check_trusted, shared_secret
from tfasr.data.batches import Share
from tfasr.errors import RunError, UsageError
from tfasr.ledger.events import Ledger
from tfasr.training.averaging import check_averaging
from tfasr.training.build import on_devices
from tfasr.training.checkpoint import History, TrainingState
from tfasr.training.ctc import CtcModel
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.loop import Hook
from tfasr.training.run import NoBatches, RunData, TrainingRun
from tfasr.training.run_folder import Claim, Interruption
from tfasr.training.team import Team, averaged_over_replicas
from tfasr.training.workers.exchange import (
    LinkSpeed,
    StartBarrier,
    Together,
    Workers,
    exchanged_bytes,
    measure_link,
    reason_of,
)
from tfasr.training.workers.follow import WorkerSteps, follow_rounds, follow_steps
from tfasr.training.workers.hub import Hub
from tfasr.training.workers.offers import check_offers, offered, unlike
from tfasr.training.workers.rounds import RoundStep
from tfasr.training.workers.step import AgreedInterruption, SharedStep, from_chief

log = logging.getLogger("tfasr")

# What collectives raise when one of their workers is gone.
_GONE = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)

# A worker that noticed a loss stays this long, so that others do not take it for the
# lost one.
_LINGER_S = 4.0


class ClusterTeam(Team):
    """The workers of a cluster; rank 0 is the chief, which writes the run."""

    # The speed at which they exchange gradients, once it is measured.
    _link: LinkSpeed | None = None

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.rank = cluster.rank
        self.size = cluster.size

    def checked(self, experiment: Experiment, callbacks: Sequence[Any]) -> Experiment:
        # Each device of a cluster has a separate process.
        experiment = on_devices(experiment, 1)
        check_clustered(experiment, callbacks)
        return experiment

    def hooks(self, run: TrainingRun) -> list[Hook]:
        return [WorkerSteps(run.run_dir, run.ledger.session, self)]

    def facts(self, run: TrainingRun) -> dict[str, Any]:
        exchange = run.training.gradient_exchange
        cluster = {
            "workers": self.size,
            "gradient_bytes": exchanged_bytes(run.model.trainable_variables, exchange),
            "gradient_exchange": exchange,
            "link": self._link and self._link.to_json(),
        }

        return {"num_replicas": self.size, "cluster": cluster}


class SynchronousTeam(ClusterTeam):
    """Workers that take each step together, under TensorFlow's collectives.

    Args:
        cluster: where the workers are.
        workers: exchange values between them.
        strategy: places the model, over all workers.
        barrier: which all pass, or none, before anything is built.
        unwatched: called before workers may leave.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Workers,
        strategy: tf.distribute.Strategy,
        barrier: StartBarrier,
        unwatched: Callable[[], None],
    ):
        super().__init__(cluster)
        self.workers = workers
        self.strategy = strategy
        self.share = Share(workers.rank, workers.count)
        self._barrier = barrier
        self._unwatched = unwatched

    def follow(
        self,
        experiment: Experiment,
        shard_dir: Path,
        run_dir: Path,
        lexicon: str | Path | None,
    ) -> History | None:
        if not self.rank:
            return None

        return follow_steps(
            experiment, shard_dir, run_dir, self, self._barrier, lexicon
        )

    def meet(self, run: RunData, hashes: dict[str, str], claim: Claim) -> None:
        check_offers(
            self.workers,
            self._barrier.passed(
                offered(run.experiment, hashes, claim, run.dictionary)
            ),
        )

    def agreed(self, value: Any) -> Any:
        return self.workers.gather(value)[0]

    def interruption(self, own: Interruption) -> AgreedInterruption:
        return AgreedInterruption(own)

    def share_signals(self, interruption: AgreedInterruption) -> None:
        interruption.agree_between(self.workers)

    def same_start(self, model: CtcModel, state: TrainingState) -> TrainingState:
        return from_chief(self.workers, model, state)

    def average_statistics(self, model: CtcModel) -> None:
        averaged_over_replicas(model, self._averaged)

    def _averaged(self, means: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the means over all workers of arrays that each of them has."""
        return [total / self.size for total in self.workers.sums(means)]

    def step(
        self,
        model: CtcModel,
        interruption: AgreedInterruption,
        training: TrainingConfig,
    ) -> SharedStep:
        return SharedStep(model, interruption, training.gradient_exchange)

    def connect(
        self, model: CtcModel, training: TrainingConfig, ledger: Ledger
    ) -> None:
        exchange = training.gradient_exchange
        size = exchanged_bytes(model.trainable_variables, exchange)

        with ledger.interval("link"):
            self._link = measure_link(self.workers, self.strategy, size, exchange)

    def comparability(self, training: TrainingConfig) -> dict[str, Any]:
        if training.gradient_exchange == "float32":
            return {}

        return {"gradient_exchange": training.gradient_exchange}

    def leave(self) -> None:
        self._unwatched()
        self.workers.gather("done")


class RoundsTeam(ClusterTeam):
    """Workers that take some steps by themselves, then exchange their weights.

    The chief has a hub, which the others reach by a stream each.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        hub: Hub | None = None,
        chief: ChiefStream | None = None,
    ):
        super().__init__(cluster)
        self.hub = hub
        self.chief = chief

    def follow(
        self,
        experiment: Experiment,
        shard_dir: Path,
        run_dir: Path,
        lexicon: str | Path | None,
    ) -> History | None:
        if self.chief is None:
            return None

        follow_rounds(experiment, shard_dir, run_dir, self, self.chief, lexicon)
        return []

    def meet(self, run: RunData, hashes: dict[str, str], claim: Claim) -> None:
        offer = offered(run.experiment, hashes, claim, run.dictionary)
        names = self.cluster.name
        log.info("%s waits for %d others", names(0), self.size - 1)
        missing = self.hub.await_all(
            functools.partial(unlike, chief=offer), claim.session, START_S
        )
        if missing:
            log.warning(
                "training begins without %s; they may join later",
                ", ".join(map(names, missing)),
            )

    def begin(self, run: TrainingRun) -> None:
        if self.hub is None:
            # Only the chief's run reads its batches in blocks.
            return

        run.batches = NoBatches(run.sources["train"], run.training, None)
        run.take_step = RoundStep(run, self.hub)

    def comparability(self, training: TrainingConfig) -> dict[str, Any]:
        exchange = {
            "exchange": training.exchange,
            "exchange_every_steps": training.exchange_every_steps,
        }
        return {"exchange": exchange}


def check_clustered(experiment: Experiment, callbacks: Sequence[Any]) -> None:
    """Raises UsageError for settings that a cluster doesn't support."""
    training = experiment.training
    _require(
        "TrainingConfig.num_replicas",
        training.replicas,
        1,
        "Start a worker for each device.",
    )
    _require(
        "TrainingConfig.evaluation_placement", training.evaluation_placement, "shared"
    )
    _require("TrainingConfig.overlap_evaluation", training.overlap_evaluation, False)
    _require("callbacks", len(callbacks), 0, "Write a hook, or train in one process.")
    synchronised = training.batch_norm_synchronised

    if training.in_rounds:
        remedy = "Or bind TrainingConfig.exchange = 'synchronous'."
        unsupported = {
            "batch_norm_synchronised": False,
            "evaluations_per_epoch": 1,
            "start_from": "",
        }
        for name, must in unsupported.items():
            _require(f"TrainingConfig.{name}", getattr(training, name), must, remedy)
    elif synchronised:
        _require(
            "TrainingConfig.gradient_accumulation_steps",
            training.gradient_accumulation_steps,
            1,
            "Or bind TrainingConfig.batch_norm_synchronised = False.",
        )

    check_averaging(training, workers=2)


def _require(name: str, value: Any, must: Any, remedy: str = "") -> None:
    """Raises UsageError unless a setting has the value that it must have in a cluster."""
    if value == must:
        return

    message = f"In a cluster {name} must be {must!r}. Received: {value!r}."
    if remedy:
        message += f" {remedy}"

    raise UsageError(message)


@contextlib.contextmanager
def joined(cluster: Cluster | None, *, in_rounds: bool = False) -> Iterator[Team]:
    """Waits for all workers and yields their team.

    Call it before anything else: even making an optimizer begins TensorFlow's work. A
    worker that fails or is lost ends the block.

    Args:
        cluster: where the workers are; None for a single process.
        in_rounds: whether workers are connected only with the chief, which goes on
            without lost ones.

    Raises:
        UsageError: if TensorFlow has already begun to work in this process.
        RunError: with its name, if a worker does not come or is lost.
    """
    if cluster is None or cluster.size == 1:
        yield Team()
    elif in_rounds:
        with _joined_for_rounds(cluster) as team:
            yield team
    else:
        with _joined_for_steps(cluster) as team:
            yield team


@contextlib.contextmanager
def _joined_for_steps(cluster: Cluster) -> Iterator[Team]:
    """Does what `joined` does for workers that take each step together."""
    check_trusted(cluster, os.environ)
    await_peers(cluster, secret=shared_secret(cluster, os.environ, needed=False))
    log.info(
        "%s of %d is ready; all must connect in %.0f s",
        cluster.name(cluster.rank),
        cluster.size,
        launcher.BEGIN_S,
    )
    # Otherwise TensorFlow logs every exchange.
    tf.get_logger().setLevel(logging.WARNING)

    try:
        strategy = _strategy(cluster)
    except _GONE as error:
        raise RunError(
            f"All workers must begin to train within {launcher.BEGIN_S:.0f} s after they have met. "
            f"{cluster.name(0)} no longer answers: look at all workers' last messages, and start "
            "them again."
        ) from error
    except RuntimeError as error:
        # TensorFlow's words for the mistake that the message below describes.
        if "program startup" not in str(error):
            raise

        raise UsageError(
            "A cluster must be joined before TensorFlow does anything else in a process, and once "
            f"in it. Received: {error} Train in a separate process, as tfasr train does."
        ) from error

    workers = Together(cluster, strategy)
    barrier = StartBarrier(workers)

    def abort(lost: list[int]) -> None:
        # Collectives would wait for the lost workers. Their error ends the run.
        names = ", ".join(map(cluster.name, lost))
        eager_context.context().abort_collective_ops(
            tf.errors.UNAVAILABLE, f"lost {names}"
        )

    watch = PeerWatch(cluster, abort)
    try:
        with barrier.sending_errors():
            yield SynchronousTeam(cluster, workers, strategy, barrier, watch.stop)
    except _GONE as error:
        # The watch may not have noticed yet who is gone.
        lost = watch.look() or accused(str(error), cluster)
        if not lost:
            raise

        time.sleep(_LINGER_S)
        names = ", ".join(map(cluster.name, lost))
        raise RunError(
            f"All workers must live until the run ends. Lost: {names}. Look at its last messages; "
            "then start all workers again with --resume, to continue from the last checkpoint."
        ) from error
    finally:
        watch.stop()


@contextlib.contextmanager
def _joined_for_rounds(cluster: Cluster) -> Iterator[Team]:
    """Does what `joined` does for workers that train in rounds."""
    secret = shared_secret(cluster, os.environ, needed=True)
    _take_gpu(cluster)
    if cluster.rank == 0:
        hub = Hub(cluster, secret)
        try:
            yield RoundsTeam(cluster, hub=hub)
        except BaseException as error:
            code = getattr(error, "exit_code", 1)
            hub.close(f"{cluster.name(0)} ended: {reason_of(error)}", code)
            raise

        hub.close()
        return

    with contextlib.closing(ChiefStream(cluster, secret, START_S)) as chief:
        try:
            yield RoundsTeam(cluster, chief=chief)
        except BaseException as error:
            chief.send({"kind": "failed", "reason": reason_of(error)})
            raise


def accused(message: str, cluster: Cluster) -> list[int]:
    """Returns the ranks of silent hosts that an error of TensorFlow's heartbeats names.

    Args:
        message: of the error.
        cluster: the workers; this process's own rank doesn't count.
    """
    found = re.findall(r"/job:worker/(?:replica:0/)?task:(\d+)", message)
    ranks = {int(rank) for rank in found}
    return sorted(rank for rank in ranks - {cluster.rank} if rank < cluster.size)


def _take_gpu(cluster: Cluster) -> None:
    """Hides all GPUs but one from this process, if its machine has several workers."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:
        tf.config.set_visible_devices(gpus[cluster.local_rank % len(gpus)], "GPU")


def _strategy(cluster: Cluster) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Connects this process with the other workers, and returns their strategy."""
    _take_gpu(cluster)
    # Otherwise TensorFlow waits an hour for a worker that has ended since all had met.
    job = eager_context.coordination_config_pb2.CoordinatedJob
    eager_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * launcher.BEGIN_S),
        coordinated_jobs=[job(name="worker", num_tasks=cluster.size)],
    )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )

    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        # The chief may wait forever, without letting any Python thread run that could
        # end it. This ends the process from a thread of C.
        faulthandler.dump_traceback_later(launcher.BEGIN_S + 5, file=nowhere, exit=True)
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        finally:
            faulthandler.cancel_dump_traceback_later()
