"""What several workers cannot do together is refused before they begin."""

import socket
import threading

import keras
import pytest

from tests.tones import tones_experiment
from tfasr import cli
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import PeerWatch, await_peers, free_ports, unreachable
from tfasr.errors import RunError, UsageError
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.training.build import synchronise
from tfasr.training.workers.team import accused, check_clustered


@pytest.mark.parametrize(
    "training",
    [
        {"num_replicas": 2},
        {"evaluation_placement": "beside"},
        {"overlap_evaluation": True},
        {"gradient_accumulation_steps": 2, "batch_norm_synchronised": True},
    ],
)
def test_what_needs_one_process_is_refused(training):
    with pytest.raises(UsageError, match=f"In a cluster TrainingConfig.{next(iter(training))}"):
        check_clustered(tones_experiment(**training), [])
    check_clustered(tones_experiment(gradient_accumulation_steps=2), [])
    with pytest.raises(UsageError, match="In a cluster callbacks must be 0"):
        check_clustered(tones_experiment(), [keras.callbacks.Callback()])


def test_the_command_refuses_a_wrong_cluster_in_one_line(capsys, tmp_path):
    words = ["--shard_dir", str(tmp_path), "--run_dir", str(tmp_path / "run"), "--cluster", "here"]
    assert cli.run(cli.parse(["tfasr", "train", *words])) == 2
    said = capsys.readouterr().err
    assert said.startswith("tfasr train: --cluster must be tf_config, slurm or addresses")
    assert said.count("\n") == 1


def test_only_tfasrs_own_batch_normalisation_can_be_synchronised():
    model = keras.Sequential([BatchNormalization(), keras.layers.BatchNormalization(name="theirs")])
    with pytest.raises(UsageError, match=r"Received: 'theirs' of keras.*BatchNormalization"):
        synchronise(model)
    own = keras.Sequential([BatchNormalization()])
    synchronise(own)
    assert own.layers[0].synchronized


def test_a_worker_that_does_not_come_is_named():
    here, there = free_ports(2)
    cluster = Cluster((f"127.0.0.1:{here}", f"127.0.0.1:{there}"), 0)
    with pytest.raises(RunError, match=rf"Missing: worker 1 \(127.0.0.1:{there}\)\."):
        await_peers(cluster, timeout_s=0)
    with socket.create_server(("127.0.0.1", there)):
        await_peers(cluster, timeout_s=0)
        assert unreachable(cluster) == []


def test_a_port_that_is_taken_is_refused():
    here, there = free_ports(2)
    cluster = Cluster((f"127.0.0.1:{here}", f"127.0.0.1:{there}"), 0)
    with (
        socket.create_server(("0.0.0.0", here)),
        pytest.raises(UsageError, match=rf"port must be free .* 127.0.0.1:{here} of worker 0"),
    ):
        await_peers(cluster, timeout_s=0)


def test_who_was_gone_first_is_remembered():
    ports = free_ports(3)
    cluster = Cluster(tuple(f"127.0.0.1:{port}" for port in ports), 0)
    told = threading.Event()
    seen = []
    with socket.create_server(("127.0.0.1", ports[1])) as first:
        with socket.create_server(("127.0.0.1", ports[2])):
            watch = PeerWatch(cluster, lambda lost: (seen.append(lost), told.set()), every_s=0.05)
            assert not told.wait(0.3)
        assert told.wait(60)
        first.close()
    assert seen == [[2]]
    assert watch.look() == [2]
    watch.stop()


def test_heartbeats_name_who_is_silent():
    cluster = Cluster(("a:1", "b:1", "c:1"), 0)
    message = "Error reported from /job:worker/task:1: unhealthy:\n/job:worker/replica:0/task:1\n"
    assert accused(message, cluster) == [1]
    assert accused("remote target /job:worker/replica:0/task:0", cluster) == []
    assert accused("task:7 of /job:worker/replica:0/task:7", cluster) == []


def test_workers_may_leave_once_the_watch_has_ended():
    here, there = free_ports(2)
    seen = []
    with socket.create_server(("127.0.0.1", there)):
        cluster = Cluster((f"127.0.0.1:{here}", f"127.0.0.1:{there}"), 0)
        watch = PeerWatch(cluster, seen.append, every_s=0.05)
        watch.stop()
    assert seen == []
