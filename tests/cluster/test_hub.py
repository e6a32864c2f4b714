"""What the chief does about workers that come, stall, return, fall behind or send nonsense."""

import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from tests.cluster.peer import result_of
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import free_ports
from tfasr.cluster.stream import ChiefStream
from tfasr.errors import RunError
from tfasr.ledger import schema
from tfasr.training.workers.hub import Delivery, Hub

SECRET_BYTES = b"a secret of these workers"
UTTERANCES = 100  # in the split
FEW = 10.0  # seconds; nothing here takes so long


def cluster_of(count: int, host: str = "127.0.0.1") -> Cluster:
    return Cluster(tuple(f"{host}:{port}" for port in free_ports(count)), 0)


def of_rank(cluster: Cluster, rank: int) -> Cluster:
    return Cluster(cluster.addresses, rank)


class Worker(threading.Thread):
    """Joins a hub and adds 1 to every weight in each block, once it may."""

    def __init__(
        self, cluster: Cluster, rank: int, *, held: bool = False, altered=None
    ):
        super().__init__(daemon=True)
        self.altered = altered or (lambda result, arrays: (result, arrays))
        self.link = ChiefStream(of_rank(cluster, rank), SECRET_BYTES, FEW)
        self.link.send({"kind": "join", "offer": {"tfasr": rank}})
        self.welcome: dict = {}
        self.may_answer = threading.Event()
        self.got_block = threading.Event()
        self.blocks: list[dict] = []
        self.end: dict = {}
        if not held:
            self.may_answer.set()
        self.start()

    def run(self):
        try:
            self.welcome, _ = self.link.receive()
            while True:
                message, arrays = self.link.receive()
                if message["kind"] == "end":
                    self.end = message
                    return

                self.blocks.append(message)
                self.got_block.set()
                self.may_answer.wait(FEW)
                self.link.send(*self.altered(*result_of(message, arrays)))
        except OSError:
            return
        finally:
            self.link.close()


@contextmanager
def hub_of(cluster: Cluster, secret: bytes = SECRET_BYTES, **attributes):
    hub = Hub(cluster, secret)
    notes: list[tuple[str, dict]] = []
    hub.note = lambda event: notes.append(
        (schema.KEYS[type(event)], schema.to_json(event))
    )
    hub.weights = [np.zeros(3, np.float32)]
    hub.timeout_s = FEW
    hub.utterances = UTTERANCES
    for name, value in attributes.items():
        setattr(hub, name, value)
    try:
        yield hub, notes
    finally:
        hub.close()


def fits(offer: dict, name: str) -> str:
    return ""


def of_chief(block, change: float = 1.0) -> Delivery:
    sizes = {"rank": 0, "steps": block.steps, "utterances": block.steps}
    made = [np.full(3, change, np.float32)]
    nothing = np.zeros(0, np.float32), np.zeros(0, np.int64)
    numbers = {"train_s": 0.01}
    return Delivery(**sizes, of_utterances=2 * block.steps, numbers=numbers, ends=False,
                    changes=made, losses=nothing[0], positions=nothing[1])  # fmt: skip


def round_of(hub: Hub, first: int, last: int) -> tuple[int | None, list[Delivery]]:
    """Has the chief train a segment to its end; returns who was waited for, and what came."""
    hub.open(1, first, last, hub.weights, lambda: [np.arange(2.0)])
    while True:
        block, _ = hub.take()
        hub.deliver(block, of_chief(block))
        waited_for = hub.settle()
        if waited_for != -1:
            return waited_for, hub.collect()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_workers_join_train_a_round_and_are_ended(host):
    cluster = cluster_of(3, host)  # the second host counts as no loopback: TLS
    with hub_of(cluster, steps=4) as (hub, notes):
        workers = [Worker(cluster, rank) for rank in (1, 2)]
        assert hub.await_all(fits, 7, FEW) == []
        _, delivered = round_of(hub, 0, 4)

    assert sorted(one.rank for one in delivered) == [0, 1, 2]
    assert all((one.changes[0] == 1).all() for one in delivered)
    assert not notes
    for worker in workers:
        worker.join(FEW)
        assert worker.welcome == {"kind": "welcome", "session": 7, "fresh": True}
        assert worker.end == {"kind": "end", "reason": "", "exit_code": 0}

    shares = sorted(
        tuple(worker.blocks[0]["block"]["share"].values()) for worker in workers
    )
    assert shares == [(1, 3), (2, 3)]


def test_a_dead_worker_is_left_out_at_once_and_another_takes_its_rank():
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, notes):
        first = Worker(cluster, 1, held=True)
        hub.await_all(fits, 0, FEW)
        hub.open(1, 0, 1, hub.weights, lambda: [])
        assert first.got_block.wait(FEW)
        block, _ = hub.take()
        hub.deliver(block, of_chief(block))
        first.link.close()
        began = time.monotonic()
        assert hub.settle() in (0, None)  # its own, as nobody else delivered
        assert time.monotonic() - began < FEW / 2
        assert [one.rank for one in hub.collect()] == [0]
        assert [key for key, _ in notes] == ["worker_left"]
        again = Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        _, delivered = round_of(hub, 1, 2)
        assert sorted(one.rank for one in delivered) == [0, 1]
        assert not again.welcome["fresh"]

    assert notes[-1] == ("worker_joined", {"rank": 1})


def test_a_stalled_worker_is_left_out_after_the_stated_time_and_its_late_work_is_refused():
    cluster = cluster_of(2)
    with hub_of(cluster, timeout_s=0.4) as (hub, notes):
        worker = Worker(cluster, 1, held=True)
        hub.await_all(fits, 0, FEW)
        began = time.monotonic()
        waited_for, delivered = round_of(hub, 0, 1)
        took_s = time.monotonic() - began
        assert (waited_for, [one.rank for one in delivered]) == (1, [0])
        assert 0.4 <= took_s < FEW / 2
        assert notes[0][0] == "worker_left"
        assert notes[0][1]["rank"] == 1
        _, delivered = round_of(hub, 1, 2)  # nobody waits for it again
        assert [one.rank for one in delivered] == [0]
        worker.may_answer.set()
        deadline_s = time.monotonic() + FEW
        while len(notes) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert notes[1] == ("worker_late", {"rank": 1, "lost_utterances": 1})
        _, delivered = round_of(hub, 2, 3)
        assert sorted(one.rank for one in delivered) == [0, 1]


WRONG_RESULTS = {
    "a thousand million utterances": lambda m, a: ({**m, "utterances": 10**9}, a),
    "fewer than none": lambda m, a: ({**m, "utterances": -5}, a),
    "half an utterance": lambda m, a: ({**m, "utterances": 1.5}, a),
    "more than there are": lambda m, a: ({**m, "of_utterances": 0}, a),
    "more steps than asked for": lambda m, a: ({**m, "steps": 99}, a),
    "nothing counted": lambda m, a: ({"kind": "result"}, a),
    "a sum that is NaN": lambda m, a: ({**m, "train_s": np.nan}, a),
    "sums left out": lambda m, a: ({n: v for n, v in m.items() if n != "frames"}, a),
    "a shape that would be broadcast": lambda m, a: (
        m,
        [np.ones(1, np.float32), *a[1:]],
    ),
    "other numbers": lambda m, a: (m, [a[0].astype(np.float64), *a[1:]]),
    "weights that are NaN": lambda m, a: (m, [a[0] * np.float32(np.nan), *a[1:]]),
    "a place too few": lambda m, a: (m, [*a[:-1], a[-1][:-1]]),
    "places that are no numbers": lambda m, a: (m, [*a[:-1], a[-1].astype("U1")]),
    "no arrays": lambda m, a: (m, []),
    "a count without end": lambda m, a: ({**m, "of_utterances": 10**400}, a),
    "more than the split has": lambda m, a: ({**m, "of_utterances": UTTERANCES + 1}, a),
    "a sum without end": lambda m, a: ({**m, "frames": 10**400}, a),
    "a century of audio": lambda m, a: ({**m, "audio_s": 3e9}, a),
    "an hour in a second": lambda m, a: ({**m, "train_s": 3600.0}, a),
    "no time that it was busy": lambda m, a: ({**m, "busy_s": "long"}, a),
    "losses that are infinite": lambda m, a: (
        m,
        [*a[:-2], a[-2] + np.float32(np.inf), a[-1]],
    ),
    "places beyond the split": lambda m, a: (m, [*a[:-1], a[-1] + UTTERANCES]),
    "places before the split": lambda m, a: (m, [*a[:-1], a[-1] - 1]),
    "an array too many": lambda m, a: (m, [*a, a[0]]),
}


@pytest.mark.parametrize("wrong", WRONG_RESULTS)
def test_a_worker_whose_result_is_impossible_is_named_and_left_out(wrong, caplog):
    cluster = cluster_of(2)
    with hub_of(cluster, steps=2) as (hub, notes):
        Worker(cluster, 1, altered=WRONG_RESULTS[wrong])
        assert hub.await_all(fits, 0, FEW) == []
        _, delivered = round_of(hub, 0, 2)

    assert [one.rank for one in delivered] == [0]
    ((key, why),) = [note for note in notes if note[0] == "worker_left"]
    assert why["rank"] == 1
    assert why["why"].startswith(("its result is wrong: ", "it sent "))


@pytest.mark.parametrize("most_ahead", [1, 3])
def test_nobody_is_further_ahead_than_stated_and_staleness_is_bounded(most_ahead):
    cluster = cluster_of(2)
    with hub_of(cluster, asynchronous=True, most_ahead=most_ahead) as (hub, _):
        worker = Worker(cluster, 1)
        hub.await_all(fits, 0, FEW)
        hub.open(1, 0, 10, hub.weights, lambda: [])
        block, _ = hub.take()
        deadline_s = time.monotonic() + FEW
        while len(worker.blocks) <= most_ahead and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(0.2)  # it would go on if it could
        assert [b["block"]["step"] for b in worker.blocks] == list(
            range(most_ahead + 1)
        )
        hub.deliver(block, of_chief(block))
        while hub.settle() == -1:
            block, _ = hub.take()
            hub.deliver(block, of_chief(block))

        delivered = hub.collect()
        assert len(delivered) == 20
        # added, and not kept until the end
        assert not any(one.changes for one in delivered)
        assert 0 < max(one.staleness for one in delivered) <= 2 * most_ahead + 1
        # Each change is added once, with the part of the batches that it was trained
        # on.
        np.testing.assert_allclose(hub.weights[0], 20 * 0.5)


def test_a_lost_worker_ends_an_asynchronous_segment_after_the_blocks_that_have_begun():
    cluster = cluster_of(2)
    with hub_of(cluster, asynchronous=True) as (hub, notes):
        worker = Worker(cluster, 1, held=True)
        hub.await_all(fits, 0, FEW)
        hub.open(1, 0, 100, hub.weights, lambda: [])
        assert worker.got_block.wait(FEW)
        block, _ = hub.take()
        worker.link.close()
        deadline_s = time.monotonic() + FEW
        while not notes and time.monotonic() < deadline_s:
            time.sleep(0.01)
        hub.deliver(block, of_chief(block))
        assert hub.settle() != -1
        assert [one.rank for one in hub.collect()] == [0]


def test_a_newcomer_gets_the_optimizers_state_once():
    cluster = cluster_of(2)
    with (
        hub_of(cluster) as (hub, _),
        closing(ChiefStream(of_rank(cluster, 1), SECRET_BYTES, FEW)) as link,
    ):
        link.send({"kind": "join", "offer": {}})
        hub.await_all(fits, 0, FEW)
        link.receive()
        hub.open(1, 0, 1, hub.weights, lambda: [np.arange(4.0)])
        message, arrays = link.receive()
        assert message["weights"] == 1
        np.testing.assert_array_equal(arrays[1], np.arange(4.0))


def test_a_worker_whose_configuration_differs_is_refused_and_named():
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, _):
        link = ChiefStream(of_rank(cluster, 1), SECRET_BYTES, FEW)
        link.send({"kind": "join", "offer": {"seed": 2}})
        with pytest.raises(RunError, match="worker 1 .* has seed 2"):
            hub.await_all(
                lambda offer, name: f"{name} has seed {offer['seed']}", 0, FEW
            )
        message, _ = link.receive()
        assert (message["kind"], message["exit_code"]) == ("end", 2)
        link.close()


def test_a_worker_that_cannot_begin_ends_the_chief_with_its_reason():
    cluster = cluster_of(2)
    with (
        hub_of(cluster) as (hub, _),
        closing(ChiefStream(of_rank(cluster, 1), SECRET_BYTES, FEW)) as link,
    ):
        link.send({"kind": "failed", "reason": "no shards"})
        with pytest.raises(RunError, match="worker 1 .* could not begin: no shards"):
            hub.await_all(fits, 0, FEW)
