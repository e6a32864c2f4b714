"""Joins the workers of a cluster under TensorFlow's MultiWorkerMirroredStrategy."""

import contextlib
import faulthandler
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfasr._version import __version__
from tfasr.cluster import launcher
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import PeerWatch
from tfasr.cluster.meeting import await_peers
from tfasr.cluster.stream import START_S, ChiefStream
from tfasr.cluster.trust import check_trusted, shared_secret
from tfasr.data.batches import Share
from tfasr.decoding.choice import words_hash
from tfasr.errors import RunError, UsageError
from tfasr.training.averaging import check_averaging
from tfasr.training.experiment import Experiment
from tfasr.training.run_folder import Claim
from tfasr.training.workers.exchange import (
    LinkSpeed,
    StartBarrier,
    Together,
    Workers,
    exchanged_bytes,
    measure_link,
)
from tfasr.training.workers.hub import Hub

log = logging.getLogger("tfasr")

_SAME = ("tfasr", "shards", "dictionary", "configuration")
# What collectives raise when one of their workers is gone.
_GONE = (
    *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
    *(
        tf.errors.DeadlineExceededError,
        tf.errors.FailedPreconditionError,
        tf.errors.InternalError,
    ),
)
# A worker that noticed a loss stays this long, so that others do not take it for the
# lost one.
_LINGER_S = 4.0


def offered(
    experiment: Experiment,
    shards: dict[str, str],
    claim: Claim | None,
    dictionary: list[str] | None = None,
) -> dict[str, Any]:
    """What a worker sends to the others before training; the chief adds its claim of
    the run.
    """
    content = json.loads(json.dumps(experiment.to_json()))
    # Keras adds a number that depends on what else the process has created.
    content["training"]["optimizer"].pop("name", None)
    return {
        "tfasr": __version__,
        "shards": shards,
        "dictionary": {"words": dictionary and words_hash(dictionary)},
        "configuration": {
            f"{g}.{n}": value for g in content for n, value in content[g].items()
        },
        "host": socket.gethostname(),
        "session": None if claim is None else claim.session,
        "history": None if claim is None else claim.history,
    }


def check_offers(workers: Workers, offers: list[dict[str, Any]]) -> None:
    """Raises UsageError, on all workers, if their versions, data or configurations differ."""
    for rank, offer in enumerate(offers):
        differing = unlike(offer, offers[0], workers.name(rank))
        if differing:
            raise UsageError(differing)


def unlike(offer: dict[str, Any], chief: dict[str, Any], name: str) -> str:
    """Returns how a worker's version, data or configuration differ from the chief's, or ""."""
    for what in _SAME:
        differing = _difference(offer.get(what), chief[what])
        if differing:
            return f"All workers must be started with the same {what}. {name} has {differing}."

    return ""


def _difference(offered: Any, chief: Any) -> str:
    if offered == chief:
        return ""
    if not isinstance(chief, dict) or not isinstance(offered, dict):
        return f"{offered!r}, the chief {chief!r}"
    return "; ".join(
        f"{name} {offered.get(name)!r}, the chief {chief.get(name)!r}"
        for name in sorted(chief | offered)
        if offered.get(name) != chief.get(name)
    )


@dataclass(frozen=True)
class Team:
    """The workers of a run and what places its model; by default this process alone."""

    workers: Workers = field(default_factory=Workers)
    # Over all workers; None for the process's own.
    strategy: tf.distribute.Strategy | None = None
    barrier: StartBarrier = field(default_factory=lambda: StartBarrier(Workers()))
    unwatched: Callable[[], None] = lambda: None  # called before workers may leave
    # Only if they train in rounds: the cluster, the chief's hub and another worker's
    # stream to it
    cluster: Cluster | None = None
    hub: Hub | None = None
    chief: ChiefStream | None = None

    @property
    def rank(self) -> int:
        return self.workers.rank if self.cluster is None else self.cluster.rank

    @property
    def size(self) -> int:
        return self.workers.count if self.cluster is None else self.cluster.size

    @property
    def share(self) -> Share | None:
        """Which part of each batch is this worker's; None for a single process."""
        workers = self.workers
        return Share(workers.rank, workers.count) if workers.count > 1 else None

    def part(self) -> None:
        """Waits until all workers are at the end; nobody leaves while others need its
        answers.
        """
        self.unwatched()
        self.workers.gather("done")

    def link(self, model: keras.Model, exchange: str) -> LinkSpeed:
        """Measures how fast all workers sum a buffer of the size of a model's gradients."""
        size = exchanged_bytes(model.trainable_variables, exchange)
        return measure_link(self.workers, self.strategy, size, exchange)

    def facts(
        self,
        model: keras.Model,
        exchange: str = "float32",
        link: LinkSpeed | None = None,
    ) -> dict[str, Any]:
        """The ledger's description of a cluster that trains a model; empty for a single
        process.
        """
        if self.size == 1:
            return {}
        count = self.size
        cluster = {
            "workers": count,
            "gradient_bytes": exchanged_bytes(model.trainable_variables, exchange),
            "gradient_exchange": exchange,
            "link": None if link is None else link.to_json(),
        }
        return {"num_replicas": count, "cluster": cluster}


def check_clustered(experiment: Experiment, callbacks: Sequence[Any]) -> None:
    """Raises UsageError for settings that a cluster doesn't support."""
    training = experiment.training
    wanted = {
        "TrainingConfig.num_replicas": (
            training.replicas,
            1,
            "Start a worker for each device",
        ),
        "TrainingConfig.evaluation_placement": (
            training.evaluation_placement,
            "shared",
            "",
        ),
        "TrainingConfig.overlap_evaluation": (training.overlap_evaluation, False, ""),
        "callbacks": (len(callbacks), 0, "Write a hook, or train in one process"),
    }
    if training.in_rounds:
        remedy = "Or bind TrainingConfig.exchange = 'synchronous'"
        synchronised = training.batch_norm_synchronised
        wanted["TrainingConfig.batch_norm_synchronised"] = synchronised, False, remedy
        alone = {"evaluations_per_epoch": 1, "start_from": ""}
        for name, must in alone.items():
            wanted[f"TrainingConfig.{name}"] = getattr(training, name), must, remedy
    elif training.batch_norm_synchronised:
        remedy = "Or bind TrainingConfig.batch_norm_synchronised = False"
        parts = training.gradient_accumulation_steps
        wanted["TrainingConfig.gradient_accumulation_steps"] = (parts, 1, remedy)

    for name, (value, must, remedy) in wanted.items():
        if value != must:
            raise UsageError(
                f"In a cluster {name} must be {must!r}. Received: {value!r}."
                + (f" {remedy}." if remedy else "")
            )

    check_averaging(training, workers=2)


@contextlib.contextmanager
def joined(cluster: Cluster | None, *, in_rounds: bool = False) -> Iterator[Team]:
    """Waits for all workers and yields their team; a worker that fails or is lost ends
    the block.

    With ``in_rounds``, workers are connected only with the chief, which goes on without
    lost ones.

    Call it before anything else: even making an optimizer begins TensorFlow's work.
    Raises UsageError if TensorFlow has already begun to work in this process; RunError,
    with its name, if a worker does not come or is lost.
    """
    if cluster is None or cluster.size == 1:
        yield Team()
        return

    if in_rounds:
        with _joined_for_rounds(cluster) as team:
            yield team
        return

    check_trusted(cluster, os.environ)
    await_peers(cluster, secret=shared_secret(cluster, os.environ, needed=False))
    me = cluster.name(cluster.rank)
    log.info(
        "%s of %d is ready; all must connect in %.0f s",
        me,
        cluster.size,
        launcher.BEGIN_S,
    )
    tf.get_logger().setLevel(logging.WARNING)  # otherwise it logs every exchange
    try:
        strategy = _strategy(cluster)
    except _GONE as error:
        raise RunError(
            f"All workers must begin to train within {launcher.BEGIN_S:.0f} s after they have met. "
            f"{cluster.name(0)} no longer answers: look at all workers' last messages, and start "
            "them again."
        ) from error
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise UsageError(
            "A cluster must be joined before TensorFlow does anything else in a process, and once "
            f"in it. Received: {error} Train in a process of its own, as tfasr train does."
        ) from error

    workers = Together(cluster, strategy)
    barrier = StartBarrier(workers)
    watch = PeerWatch(cluster, lambda lost: _abort(", ".join(map(cluster.name, lost))))
    try:
        with barrier.telling():
            yield Team(workers, strategy, barrier, watch.stop)
    except _GONE as error:
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
    secret = shared_secret(cluster, os.environ, needed=True)
    _take_gpu(cluster)
    if cluster.rank == 0:
        hub = Hub(cluster, secret)
        try:
            yield Team(cluster=cluster, hub=hub)
        except BaseException as error:
            code = getattr(error, "exit_code", 1)
            hub.close(f"{cluster.name(0)} ended: {error or type(error).__name__}", code)
            raise

        hub.close()
        return

    with contextlib.closing(ChiefStream(cluster, secret, START_S)) as chief:
        try:
            yield Team(cluster=cluster, chief=chief)
        except BaseException as error:
            chief.send({"kind": "failed", "reason": str(error) or type(error).__name__})
            raise


def accused(message: str, cluster: Cluster) -> list[int]:
    """The ranks of silent hosts that an error message of TensorFlow's heartbeats names."""
    named = {
        int(rank)
        for rank in re.findall(r"/job:worker/(?:replica:0/)?task:(\d+)", message)
    }
    return sorted(rank for rank in named - {cluster.rank} if rank < cluster.size)


def _abort(names: str) -> None:
    eager_context.context().abort_collective_ops(tf.errors.UNAVAILABLE, f"lost {names}")


def _take_gpu(cluster: Cluster) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:
        tf.config.set_visible_devices(gpus[cluster.local_rank % len(gpus)], "GPU")


def _strategy(cluster: Cluster) -> tf.distribute.MultiWorkerMirroredStrategy:
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
        # end it.
        faulthandler.dump_traceback_later(launcher.BEGIN_S + 5, file=nowhere, exit=True)
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        finally:
            faulthandler.cancel_dump_traceback_later()
