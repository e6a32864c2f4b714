"""What the chief does about workers that come, stall, return, fall behind or know no secret."""

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import free_ports
from tfasr.cluster.transport import (
    SECRET,
    TRUSTED,
    Connection,
    Listener,
    check_trusted,
    connect_to_chief,
    shared_secret,
)
from tfasr.errors import RunError, UsageError
from tfasr.ledger import schema
from tfasr.training.workers.hub import SUMMED, Delivery, Hub

SECRET_BYTES = b"a secret of these workers"
FEW = 10.0  # seconds; nothing here takes so long


def cluster_of(count: int, host: str = "127.0.0.1") -> Cluster:
    return Cluster(tuple(f"{host}:{port}" for port in free_ports(count)), 0)


def of_rank(cluster: Cluster, rank: int) -> Cluster:
    return Cluster(cluster.addresses, rank)


class Worker(threading.Thread):
    """Joins a hub and adds 1 to every weight in each block, once it may."""

    def __init__(self, cluster: Cluster, rank: int, *, held: bool = False, altered=None):
        super().__init__(daemon=True)
        self.altered = altered or (lambda result, arrays: (result, arrays))
        self.link = connect_to_chief(of_rank(cluster, rank), SECRET_BYTES, FEW)
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
                ones = [np.ones_like(array) for array in arrays[: message["weights"]]]
                steps = message["steps"]
                each = [np.zeros(steps, np.float32), np.arange(steps)]
                sizes = {"steps": steps, "utterances": steps, "of_utterances": 2 * steps}
                result = {"kind": "result", **sizes, "ends": False, "busy_s": 0.0}
                result["numbers"] = dict.fromkeys(SUMMED, 0.01)
                self.link.send(*self.altered(result, [*ones, *each]))
        except OSError:
            return
        finally:
            self.link.close()


@contextmanager
def hub_of(cluster: Cluster, secret: bytes = SECRET_BYTES, **attributes):
    hub = Hub(cluster, secret)
    notes: list[tuple[str, dict]] = []
    hub.note = lambda event: notes.append((schema.KEYS[type(event)], schema.to_json(event)))
    hub.weights, hub.timeout_s = [np.zeros(3, np.float32)], FEW
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
    shares = sorted(tuple(worker.blocks[0]["share"][:2]) for worker in workers)
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
    "a sum that is NaN": lambda m, a: (m | {"numbers": {**m["numbers"], "train_s": np.nan}}, a),
    "sums left out": lambda m, a: ({**m, "numbers": {"train_s": 1.0}}, a),
    "a shape that would be broadcast": lambda m, a: (m, [np.ones(1, np.float32), *a[1:]]),
    "other numbers": lambda m, a: (m, [a[0].astype(np.float64), *a[1:]]),
    "weights that are NaN": lambda m, a: (m, [a[0] * np.float32(np.nan), *a[1:]]),
    "a place too few": lambda m, a: (m, [*a[:-1], a[-1][:-1]]),
    "places that are no numbers": lambda m, a: (m, [*a[:-1], a[-1].astype("U1")]),
    "no arrays": lambda m, a: (m, []),
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
    assert "its result is wrong" in why["why"]


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
        assert [b["step"] for b in worker.blocks] == list(range(most_ahead + 1))
        hub.deliver(block, of_chief(block))
        while hub.settle() == -1:
            block, _ = hub.take()
            hub.deliver(block, of_chief(block))
        delivered = hub.collect()
        assert len(delivered) == 20
        assert 0 < max(one.staleness for one in delivered) <= 2 * most_ahead + 1
        # Each change is added once, with the part of the batches that it was trained on.
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
        closing(connect_to_chief(of_rank(cluster, 1), SECRET_BYTES, FEW)) as link,
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
        link = connect_to_chief(of_rank(cluster, 1), SECRET_BYTES, FEW)
        link.send({"kind": "join", "offer": {"seed": 2}})
        with pytest.raises(RunError, match="worker 1 .* has seed 2"):
            hub.await_all(lambda offer, name: f"{name} has seed {offer['seed']}", 0, FEW)
        message, _ = link.receive()
        assert (message["kind"], message["exit_code"]) == ("end", 2)
        link.close()


def test_a_worker_that_cannot_begin_ends_the_chief_with_its_reason():
    cluster = cluster_of(2)
    with (
        hub_of(cluster) as (hub, _),
        closing(connect_to_chief(of_rank(cluster, 1), SECRET_BYTES, FEW)) as link,
    ):
        link.send({"kind": "failed", "reason": "no shards"})
        with pytest.raises(RunError, match="worker 1 .* could not begin: no shards"):
            hub.await_all(fits, 0, FEW)


# The secret


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_wrong_secret_is_refused(host):
    cluster = cluster_of(2, host)
    with hub_of(cluster) as (hub, _):
        with pytest.raises(UsageError, match=f"same secret .*{SECRET}"):
            connect_to_chief(of_rank(cluster, 1), b"quite another secret", FEW)
        assert hub.await_all(fits, 0, 0.0) == [1]


def test_who_does_not_know_the_secret_cannot_pretend_to_have_checked_the_chief():
    cluster = cluster_of(2)
    with (
        closing(Listener(cluster, SECRET_BYTES)) as listener,
        closing(socket.socket()) as connection,
    ):
        connection.connect(("127.0.0.1", int(cluster.addresses[0].split(":")[1])))
        link = Connection(connection)
        link.send({"rank": 1, "nonce": "x", "tfasr": "0", "plan": "of others"})
        link.send({"proof": "0" * 64})
        with pytest.raises(ConnectionError, match="secret"):
            listener.admit(listener.accept(FEW))
        link.close()


def test_workers_on_several_hosts_need_a_secret_and_those_on_one_do_not():
    apart = Cluster(("node1:1", "node2:1"), 0)
    with pytest.raises(UsageError, match=f"{SECRET} must hold a secret .* 0 characters"):
        shared_secret(apart, {}, needed=True)
    with pytest.raises(UsageError, match="7 characters"):
        shared_secret(apart, {SECRET: "too few"}, needed=False)
    assert shared_secret(apart, {}, needed=False) == b""
    assert shared_secret(cluster_of(2), {}, needed=True) == b""
    assert shared_secret(apart, {SECRET: "x" * 16}, needed=True) == b"x" * 16


def test_ports_without_a_password_between_hosts_must_be_allowed():
    apart = Cluster(("node1:1", "node2:1"), 0)
    for environment in ({}, {TRUSTED: "0"}, {SECRET: "x" * 16}):
        with pytest.raises(UsageError, match=f"2 workers without {TRUSTED}=1.*'local' .*{SECRET}"):
            check_trusted(apart, environment)
    check_trusted(apart, {TRUSTED: "1"})
    check_trusted(Cluster(("node1:1", "node1:2"), 0), {})
    check_trusted(cluster_of(2), {})


def test_synchronous_training_on_several_hosts_is_refused_before_a_port_opens(tmp_path):
    command = [sys.executable, "-m", "tfasr.cli", "train", "--shard_dir", str(tmp_path)]
    command += ["--run_dir", str(tmp_path / "run"), "--rank", "0"]
    command += ["--cluster", "127.0.0.1:1,node2.invalid:1"]
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "index.json").write_text("{}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"{TRUSTED}=1" in done.stderr.splitlines()[-1]


ARRAYS = st.lists(
    st.tuples(
        st.sampled_from(["float32", "float16", "int64", "float64"]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=30)
@given(ARRAYS, st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)))
def test_messages_arrive_as_they_were_sent(kinds, message):
    arrays = [np.ones(shape, kind) for kind, shape in kinds]
    one, other = socket.socketpair()
    with closing(_Untimed(one)) as a, closing(_Untimed(other)) as b:
        b.trust()
        a.send(message, arrays)
        got, values = b.receive()
    assert got == message
    assert len(values) == len(arrays)
    for value, array in zip(values, arrays, strict=True):
        np.testing.assert_array_equal(value, array)
        assert value.dtype == array.dtype


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=100))
def test_strangers_bytes_are_refused(content):
    one, other = socket.socketpair()
    with closing(other), closing(_Untimed(other)) as link:
        one.sendall(content)
        one.close()
        with pytest.raises(ConnectionError):
            while True:
                link.receive()


class _Untimed(Connection):
    """A link over a pair of sockets, which know no TCP."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._trusts = False


def test_strangers_do_not_keep_a_worker_out(caplog):
    cluster = cluster_of(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with hub_of(cluster) as (hub, _), contextlib.ExitStack() as strangers:
        # Descriptors run out while strangers hold connections open and say nothing.
        used = len([*Path("/proc/self/fd").iterdir()])
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
        try:
            host, port = cluster.addresses[0].split(":")
            with contextlib.suppress(OSError):
                while True:
                    stranger = socket.create_connection((host, int(port)), timeout=FEW)
                    strangers.enter_context(closing(stranger))
            time.sleep(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        Worker(cluster, 1)
        assert hub.await_all(fits, 0, FEW) == []
