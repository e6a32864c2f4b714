"""Messages between chief and workers, and the secret that both must know."""

import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.test_hub import FEW, SECRET_BYTES, cluster_of, fits, hub_of, of_rank
from tfasr.cluster.description import Cluster
from tfasr.cluster.stream import ChiefStream, assembled, pieces
from tfasr.cluster.trust import SECRET, TRUSTED, check_trusted, shared_secret
from tfasr.errors import RunError, UsageError

HEX = "0123456789abcdef" * 2  # 128 bits, if it had been drawn at random
BASE64 = "0aZ+1bY/2cX3dW4eV5fU6g"  # 22 characters: 132 bits

# Messages

ARRAYS = st.lists(
    st.tuples(
        st.sampled_from(["float32", "float16", "int64", "float64", "bool"]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    max_size=3,
)
JSON = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none()
)


@settings(deadline=None, max_examples=60)
@given(ARRAYS, JSON)
def test_messages_arrive_as_they_were_sent(kinds, message):
    arrays = [np.ones(shape, kind) for kind, shape in kinds]
    got, values = assembled(pieces(message, arrays))
    assert got == message
    assert len(values) == len(arrays)
    for value, array in zip(values, arrays, strict=True):
        np.testing.assert_array_equal(value, array)
        assert value.dtype == array.dtype
        assert value.shape == array.shape


def test_a_long_array_is_sent_in_pieces_and_arrives_whole():
    array = np.arange(3_000_000, dtype=np.float32)[::2].reshape(3, -1)  # not contiguous
    sent = list(pieces({}, [array]))
    assert len(sent) == 1 + -(-array.nbytes // 2**20)
    assert max(map(len, sent)) == 2**20
    _, (got,) = assembled(iter(sent))
    np.testing.assert_array_equal(got, array)


def test_messages_follow_each_other():
    stream = iter(
        [*pieces({"a": 1}, [np.ones(3)]), *pieces({"b": 2}), *pieces({}, [np.ones(0)])]
    )
    assert [assembled(stream)[0] for _ in range(3)] == [{"a": 1}, {"b": 2}, {}]
    with pytest.raises(ConnectionError, match="ended"):
        assembled(stream)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.binary(max_size=100) | JSON.map(lambda value: str(value).encode()),
        max_size=3,
    )
)
def test_bytes_that_are_no_message_are_refused(content):
    with pytest.raises(ConnectionError):
        assembled(iter(content))


NO_MESSAGES = {
    "a list": b"[1, 2]",
    "no arrays": b'{"message": {}}',
    "a shape below zero": b'{"message": {}, "arrays": [["<f4", [-1]]]}',
    "half a shape": b'{"message": {}, "arrays": [["<f4", [1.5]]]}',
    "no type": b'{"message": {}, "arrays": [["<f9", [1]]]}',
    "Python's objects": b'{"message": {}, "arrays": [["|O", [1]]]}',
    "a type without a shape": b'{"message": {}, "arrays": [["<f4"]]}',
    "a nested list": b"[" * 100_000,
    "a number without end": b'{"message": ' + b"9" * 10_000 + b', "arrays": []}',
    "no UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("name", NO_MESSAGES)
def test_headers_that_make_no_sense_are_refused(name):
    with pytest.raises(ConnectionError, match="no message of a worker"):
        assembled(iter([NO_MESSAGES[name], b"1234"]))


def test_too_many_bytes_for_an_array_and_too_few_are_refused():
    header, _ = pieces({}, [np.ones(2, np.float32)])
    with pytest.raises(ConnectionError, match="no message"):
        assembled(iter([header, b"123456789"]))
    with pytest.raises(ConnectionError, match="ended"):
        assembled(iter([header, b"1234567"]))


def test_no_memory_is_taken_for_arrays_that_are_not_expected():
    header = b'{"message": {}, "arrays": [["<f4", [9000000000000000]]]}'
    with pytest.raises(
        ConnectionError, match=r"sent the arrays .*9000000000000000.* instead of"
    ):
        assembled(iter([header]), expected=lambda message: [("<f4", (3,))])


# The secret


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("wrong", [b"quite another secret", b""])
def test_a_wrong_secret_is_refused_at_once(host, wrong):
    cluster = cluster_of(2, host)
    with hub_of(cluster) as (hub, _):
        with pytest.raises(UsageError, match=f"same secret .*{SECRET}"):
            ChiefStream(of_rank(cluster, 1), wrong, FEW)
        assert hub.await_all(fits, 0, 0.0) == [1]


def test_workers_of_other_addresses_are_refused_with_the_right_secret():
    cluster = cluster_of(2)
    others = Cluster((cluster.addresses[0], "127.0.0.1:9"), 1)
    with hub_of(cluster), pytest.raises(UsageError, match="same addresses"):
        ChiefStream(others, SECRET_BYTES, FEW)


def test_a_chief_that_does_not_come_is_named_with_the_reason():
    cluster = cluster_of(2)
    with pytest.raises(RunError, match=r"Missing: worker 0, the chief .*refused"):
        ChiefStream(of_rank(cluster, 1), SECRET_BYTES, 0.5)


def test_a_worker_with_a_rank_that_does_not_exist_is_refused():
    cluster = cluster_of(2)
    of_three = Cluster((*cluster.addresses, "127.0.0.1:9"), 2)
    object.__setattr__(of_three, "addresses", cluster.addresses)
    with (
        hub_of(cluster),
        pytest.raises(UsageError, match="rank must be 1 to 1. Received: '2'"),
    ):
        ChiefStream(of_three, SECRET_BYTES, FEW)


def test_workers_on_several_hosts_need_a_secret_and_those_on_one_do_not():
    apart = Cluster(("node1:1", "node2:1"), 0)
    with pytest.raises(
        UsageError, match=f"{SECRET} must hold a random secret .* 0 characters"
    ):
        shared_secret(apart, {}, needed=True)
    assert shared_secret(apart, {}, needed=False) == b""
    assert shared_secret(cluster_of(2), {}, needed=True) == b""
    for secret in (HEX, BASE64):
        assert shared_secret(apart, {SECRET: secret}, needed=True) == secret.encode()
        assert (
            shared_secret(apart, {SECRET: f" {secret}\n"}, needed=True)
            == secret.encode()
        )


@pytest.mark.parametrize(
    "weak", ["too few", HEX[:-1], BASE64[:-1], "x" * 64, "passwordpasswordpassword"]
)
def test_a_secret_that_can_be_found_by_trying_is_refused(weak):
    for cluster in (Cluster(("node1:1", "node2:1"), 0), cluster_of(2)):
        with pytest.raises(
            UsageError, match=f"at least 128 bits.* {len(weak)} .*openssl rand"
        ):
            shared_secret(cluster, {SECRET: weak}, needed=False)


def test_ports_without_a_password_between_hosts_must_be_allowed():
    apart = Cluster(("node1:1", "node2:1"), 0)
    for environment in ({}, {TRUSTED: "0"}, {SECRET: HEX}):
        with pytest.raises(
            UsageError, match=f"2 workers without {TRUSTED}=1.*'local' .*{SECRET}"
        ):
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

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert f"{TRUSTED}=1" in done.stderr.splitlines()[-1]


def test_a_message_of_many_megabytes_goes_both_ways():
    cluster = cluster_of(2)
    with hub_of(cluster) as (hub, _):
        hub.utterances = 10
        with closing(ChiefStream(of_rank(cluster, 1), SECRET_BYTES, FEW)) as chief:
            chief.send({"kind": "join", "offer": {}})
            hub.await_all(fits, 0, FEW)
            weights = [np.arange(2_000_000, dtype=np.float32)]
            hub.open(1, 0, 1, weights, lambda: [])
            chief.receive()
            _, (got,) = chief.receive()
            np.testing.assert_array_equal(got, weights[0])
