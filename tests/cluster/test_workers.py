"""Several processes train one run: as one process would, and all end when one does."""

import contextlib
import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tones import TRAIN_UTTERANCES, tones_experiment
from tests.training.bare_run import bare_run
from tfasr import cli
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import PeerWatch, free_ports
from tfasr.cluster.meeting import await_peers
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import worker_events_file
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.ledger.events import read_events
from tfasr.reports.charges import read_worker_files, times_of_workers
from tfasr.training.build import synchronise
from tfasr.training.experiment import TrainingConfig
from tfasr.training.loop import Hook, Loop
from tfasr.training.run_folder import Interruption, RunInterruptedError
from tfasr.training.workers.exchange import StartBarrier, Workers
from tfasr.training.workers.step import AgreedInterruption
from tfasr.training.workers.team import SynchronousTeam, accused, check_clustered
from tfasr.tta.run import load_run

# What several workers cannot do together is refused before they begin.


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
    with pytest.raises(
        UsageError, match=f"In a cluster TrainingConfig.{next(iter(training))}"
    ):
        check_clustered(tones_experiment(**training), [])
    check_clustered(tones_experiment(gradient_accumulation_steps=2), [])
    with pytest.raises(UsageError, match="In a cluster callbacks must be 0"):
        check_clustered(tones_experiment(), [keras.callbacks.Callback()])


def test_the_command_refuses_a_wrong_cluster_in_one_line(capsys, tmp_path, shard_dir):
    words = ["--shard_dir", str(shard_dir), "--run_dir", str(tmp_path / "run")]
    words += ["--cluster", "here"]
    assert cli.run(cli.parse(["tfasr", "train", *words])) == 2
    said = capsys.readouterr().err
    assert "--cluster" in said
    assert "here" in said.split("Received")[1]
    assert said.count("\n") == 1


def test_only_tfasrs_own_batch_normalisation_can_be_synchronised():
    model = keras.Sequential(
        [BatchNormalization(), keras.layers.BatchNormalization(name="theirs")]
    )
    with pytest.raises(
        UsageError, match=r"Received: 'theirs' of keras.*BatchNormalization"
    ):
        synchronise(model)
    own = keras.Sequential([BatchNormalization()])
    synchronise(own)
    assert own.layers[0].synchronized


def answering(answer):
    """Returns a handler that sends what ``answer`` makes of each question, and waits."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(answer(self.rfile.readline()))
            self.rfile.read()

    return Handler


@pytest.mark.parametrize(
    "answer",
    [None, lambda line: b"", lambda line: line, lambda line: b"\0" * 9999 + b"\n"],
)
def test_a_worker_that_does_not_come_is_named_whoever_listens_at_its_port(answer):
    here, there = free_ports(2)
    cluster = Cluster((f"127.0.0.1:{here}", f"127.0.0.1:{there}"), 0)
    with contextlib.ExitStack() as stack:
        if answer is not None:
            place = ("127.0.0.1", there)
            server = stack.enter_context(
                socketserver.ThreadingTCPServer(
                    place, answering(answer), bind_and_activate=True
                )
            )
            server.daemon_threads = True
            server.block_on_close = False
            threading.Thread(target=server.serve_forever, args=(0.05,)).start()
            stack.callback(server.shutdown)

        with pytest.raises(RunError, match=rf"Missing: worker 1 \(127.0.0.1:{there}\)"):
            await_peers(cluster, timeout_s=0)


def meet(ports, ranks, timeout_s=60, version=None):
    """Lets workers of a cluster meet in processes of their own, and returns what each
    printed.
    """
    addresses = [f"127.0.0.1:{port}" for port in ports]
    script = """
import sys
from tfasr.cluster import meeting, stream
from tfasr.cluster.description import Cluster
_, addresses, rank, timeout_s, version = sys.argv
stream.__version__ = version or stream.__version__
try:
    meeting.await_peers(Cluster(tuple(addresses.split(",")), int(rank)), float(timeout_s))
    print("all are here")
except Exception as error:
    print(type(error).__name__, error)
"""
    words = [[",".join(addresses), str(rank), str(timeout_s)] for rank in ranks]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *own, version or "" if rank else ""],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, own in zip(ranks, words, strict=True)
    ]
    return [process.communicate(timeout=120)[0].strip() for process in processes]


def test_workers_meet_and_leave_together():
    assert meet(free_ports(4), range(4)) == ["all are here"] * 4


def test_workers_of_another_version_are_named_by_both():
    for message in meet(free_ports(2), (0, 1), version="0.0.1"):
        assert message.startswith("UsageError")
        assert "'0.0.1'" in message


def test_workers_of_another_plan_do_not_meet():
    here, there, other = free_ports(3)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(meet, (here, there), (0,), 3)
        two = threads.submit(meet, (other, there), (1,), 3)
        (first,), (second,) = one.result(), two.result()

    assert first.startswith("RunError")
    assert f"worker 1 (127.0.0.1:{there})" in first
    assert second.startswith("RunError")


def test_a_port_that_is_taken_is_refused():
    here, there = free_ports(2)
    cluster = Cluster((f"127.0.0.1:{here}", f"127.0.0.1:{there}"), 0)
    with (
        socket.create_server(("0.0.0.0", here)),
        pytest.raises(
            UsageError, match=rf"port must be free .* 127.0.0.1:{here} of worker 0"
        ),
    ):
        await_peers(cluster, timeout_s=0)


def test_who_was_gone_first_is_remembered():
    ports = free_ports(3)
    cluster = Cluster(tuple(f"127.0.0.1:{port}" for port in ports), 0)
    told = threading.Event()
    seen = []
    with socket.create_server(("127.0.0.1", ports[1])) as first:
        with socket.create_server(("127.0.0.1", ports[2])):
            watch = PeerWatch(
                cluster, lambda lost: (seen.append(lost), told.set()), every_s=0.05
            )
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


# What workers average, and what they tell each other before a run begins.


class WithOneMore(Workers):
    """Two workers, of which the other has statistics of its own and offers what it is told."""

    count = 2

    def __init__(self, other: float = 0.0, offer: dict | None = None):
        self.other = other
        self.offer = offer
        self.told: list = []

    def sums(self, arrays):
        return [array + np.float32(self.other) for array in arrays]

    def gather(self, value):
        self.told.append(value)
        return [value, self.offer]

    def name(self, rank):
        return f"worker {rank}"


class Silent:
    """Stands for a ledger that nobody reads."""

    def start(self, name, **metadata):
        pass

    stop = start


class BareStep:
    """Stands for a training step that changes nothing, as often as the test wants it."""

    settled = True

    def __init__(self, steps):
        self._left = steps

    def __call__(self, batches):
        self._left -= 1
        return None if self._left < 0 else SimpleNamespace()


def averages(workers, *, synchronised=False, asked=0, every=4):
    """Returns the moving mean after each of six steps, and at the end of the epoch."""
    model = keras.Sequential([BatchNormalization()])
    model.build((None, None, 1))
    layer = model.layers[0]
    layer.synchronized = synchronised
    run = bare_run(TrainingConfig(epochs=1, checkpoint_every_steps=every))
    cluster = Cluster(("here:1", "there:1"), workers.rank)
    strategy = tf.distribute.get_strategy()
    barrier = StartBarrier(workers)
    run.team = SynchronousTeam(cluster, workers, strategy, barrier, lambda: None)
    run.ledger = Silent()
    run.model = SimpleNamespace(
        recogniser=model,
        distribute_strategy=tf.distribute.get_strategy(),
    )
    run.interruption, run.take_step = AgreedInterruption(Interruption()), BareStep(6)
    run.batches = SimpleNamespace(
        iterator=lambda state: [], prefetch=lambda epoch: None
    )
    seen = []

    class Look(Hook):
        def on_step(self, run, step):
            run.interruption.agree(asked if run.state.step == 2 else 0)

        def on_step_end(self, run, step):
            seen.append(float(layer.moving_mean.numpy()[0]))

        def on_epoch_end(self, run, epoch):
            seen.append(float(layer.moving_mean.numpy()[0]))

    with contextlib.suppress(RunInterruptedError):
        Loop(run, [Look()]).train()
    return seen


def test_statistics_are_averaged_before_each_checkpoint_unless_they_are_the_same():
    assert averages(WithOneMore(4.0, 0)) == [0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 3.0]
    assert averages(WithOneMore(4.0, 0), synchronised=True) == [0.0] * 7


def test_a_signal_brings_its_checkpoint_the_averages_too():
    assert averages(WithOneMore(4.0, 0), asked=15, every=100) == [0.0, 2.0]


def test_who_fails_before_the_gate_tells_the_others():
    workers = WithOneMore(offer={"shards": 1})
    with pytest.raises(ValueError, match="no shards"), StartBarrier(workers).sending_errors():
        raise ValueError("no shards")
    assert workers.told == [{"failed": "no shards"}]


def test_at_the_gate_all_hear_who_failed():
    barrier = StartBarrier(WithOneMore(offer={"failed": "no shards"}))
    with (
        pytest.raises(RunError, match="worker 1 could not begin: no shards"),
        barrier.sending_errors(),
    ):
        barrier.passed({"shards": 1})
    assert StartBarrier(Workers()).passed({"shards": 1}) == [{"shards": 1}]


# 24 utterances in buckets of 8 and 16: batches of 6, 2 and 6, 6, 4. Two workers can
# share each of them equally, as replicas must; three cannot, and of two utterances one
# worker gets none.
SIZES = [2, 4, 6, 6, 6]
STEPS = len(SIZES)
EPOCHS = 12
SETTINGS = {
    "training": {
        "epochs": EPOCHS,
        "checkpoint_every_steps": 3,
        "batch_norm_synchronised": True,
    },
    "pipeline": {"global_batch_size": 6, "num_buckets": 2},
    "model": {"dropout": 0.0},
}
STOPPED = 43
KILLED = 53
CHIEF_KILLED = 54


@dataclass(frozen=True)
class Ended:
    """How the workers of a scenario ended."""

    run_dir: Path
    codes: list[int]
    logs: list[str]


def together(count: int, folder: Path, *, run: str = "run", **more) -> list[dict]:
    """The requests of a cluster's workers; ``own`` changes those of single ones."""
    own = more.pop("own", {})
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    requests = []
    for rank in range(count):
        request = {
            "addresses": addresses,
            "rank": rank,
            "run_dir": str(folder / run),
            **more,
        }
        requests.append({**request, **own.get(rank, {})})

    return requests


def scenarios(tmp: Path) -> dict[str, list[dict]]:
    mirrored = {**SETTINGS["training"], "num_replicas": 2}
    rounded = {**SETTINGS["training"], "epochs": 1, "gradient_exchange": "bfloat16"}
    finer = {**SETTINGS["training"], "epochs": 1, "evaluations_per_epoch": 3}
    finer |= {"targets": [["cer", 1.0]], "target_window": 1}
    # One run in three sessions, each of other workers.
    run = {"run": "together", **SETTINGS}
    stopped = {1: {"die": [STOPPED, signal.SIGTERM]}}
    killed = {2: {"die": [KILLED, signal.SIGKILL]}}
    chief_killed = {0: {"die": [CHIEF_KILLED, signal.SIGKILL]}}
    start = {"start_from": str(tmp / "one"), "epochs": 2}
    warm = {**SETTINGS, "training": {**SETTINGS["training"], **start}}
    warm_mirrored = {**warm, "training": {**mirrored, **start}, "devices": 2}
    return {
        "one": [{"run_dir": str(tmp / "one"), **SETTINGS}],
        "warm": [{"run_dir": str(tmp / "warm"), **warm}],
        "warm_mirrored": [{"run_dir": str(tmp / "warm_mirrored"), **warm_mirrored}],
        "warm_two": together(2, tmp, run="warm_two", **warm),
        "mirrored": [
            {
                "run_dir": str(tmp / "mirrored"),
                "devices": 2,
                **SETTINGS,
                "training": mirrored,
            }
        ],
        "two": together(2, tmp, **run, own=stopped),
        "three": together(3, tmp, **run, resume=True, own=killed),
        "two_again": together(2, tmp, **run, resume=True, own=chief_killed),
        "rounded": together(2, tmp, run="rounded", **{**SETTINGS, "training": rounded}),
        "finer": together(2, tmp, run="finer", **{**SETTINGS, "training": finer}),
        "unlike": together(2, tmp, run="unlike", own={1: {"training": {"seed": 2}}}),
    }


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, Ended]:
    """Every scenario, run once in a process that imports TensorFlow once."""
    if not hasattr(os, "fork"):
        pytest.skip("workers are forked here")
    tmp = tmp_path_factory.mktemp("cluster")
    requests = scenarios(tmp)
    for name, workers in requests.items():
        for rank, request in enumerate(workers):
            request["log"] = str(tmp / f"{name}-{rank}.log")

    (tmp / "scenarios.json").write_text(json.dumps(requests))
    command = [
        sys.executable,
        "-m",
        "tests.cluster.forked",
        str(tmp / "scenarios.json"),
    ]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False
    )
    assert finished.returncode == 0, finished.stderr
    codes = json.loads(finished.stdout.splitlines()[-1])
    return {
        name: Ended(
            Path(workers[0]["run_dir"]),
            codes[name],
            [Path(request["log"]).read_text(errors="replace") for request in workers],
        )
        for name, workers in requests.items()
    }


def values(run_dir: Path, key: str, file: str = "events.jsonl") -> list:
    return [e["value"] for e in read_events(run_dir / file) if e["key"] == key]


def of_session(
    run_dir: Path, key: str, session: int, file: str = "events.jsonl"
) -> dict:
    """The values of a session's events of that key, by their step."""
    return {
        event["metadata"]["step"]: event["value"]
        for event in read_events(run_dir / file)
        if event["key"] == key and event["metadata"]["session"] == session
    }


def well(one: Ended) -> Path:
    assert set(one.codes) == {0}, "\n".join(one.logs)
    return one.run_dir


@pytest.mark.parametrize("reference", ["one", "mirrored"])
def test_two_workers_train_as_one_process_does(ended, reference):
    other = of_session(well(ended[reference]), "train_step", 0)
    two = of_session(ended["two"].run_dir, "train_step", 0)
    assert list(two) == list(range(1, STOPPED + 2))
    for step, value in two.items():
        assert value["loss"] == pytest.approx(other[step]["loss"], rel=1e-5), step
        for fact in ("utterances", "audio_s", "frames", "padded_frames"):
            assert value[fact] == other[step][fact]

    assert sum(v["loss"] for v in two.values()) < 0.5 * len(two) * two[1]["loss"]


@pytest.mark.parametrize("together", ["warm_mirrored", "warm_two"])
def test_replicas_start_from_trained_weights_as_one_process_does(ended, together):
    one = of_session(well(ended["warm"]), "train_step", 0)
    several = of_session(well(ended[together]), "train_step", 0)
    assert one.keys() == several.keys()
    for step, value in several.items():
        assert value["loss"] == pytest.approx(one[step]["loss"], rel=1e-5), step
    (fact,) = values(ended[together].run_dir, "start_from")
    assert fact["new_layers"] == []


def test_gradients_in_bfloat16_are_half_the_bytes_and_nearly_the_same_losses(ended):
    whole = of_session(well(ended["one"]), "train_step", 0)
    rounded = of_session(well(ended["rounded"]), "train_step", 0)
    off = [
        abs(rounded[step]["loss"] / whole[step]["loss"] - 1)
        for step in range(1, STEPS + 1)
    ]
    assert off[0] < 1e-5  # before the first update
    assert 1e-6 < max(off) < 0.02
    (fact,), (exact, *_) = (
        values(ended["rounded"].run_dir, "cluster"),
        values(ended["two"].run_dir, "cluster"),
    )
    assert fact["gradient_exchange"] == "bfloat16"
    assert (
        2 * fact["gradient_bytes"]
        == exact["gradient_bytes"]
        == fact["link"]["large_bytes"] * 2
    )
    (rules,) = values(ended["rounded"].run_dir, "comparability")
    assert rules["gradient_exchange"] == "bfloat16"


def test_error_rates_are_those_of_one_process(ended):
    theirs = values(well(ended["one"]), "tracked_stats")
    mine = values(ended["two"].run_dir, "tracked_stats")
    assert len(mine) == (CHIEF_KILLED - 1) // STEPS
    for own, other in zip(mine, theirs, strict=False):
        assert own["cer"] == other["cer"]
        assert own["loss"] == pytest.approx(other["loss"], rel=1e-4)

    assert (ended["two"].run_dir / "hypotheses/validation-epoch-0008.jsonl").is_file()


def test_all_workers_evaluate_within_an_epoch(ended):
    run_dir = well(ended["finer"])
    points = load_run(run_dir).accuracy_curve("loss")
    assert [point.epoch for point in points] == [0.3333, 0.6667, 1]
    whole = load_run(well(ended["one"])).accuracy_curve("loss")
    assert points[-1].value == pytest.approx(whole[0].value, rel=1e-3)
    shares = [
        event["metadata"]["at_epoch"]
        for event in read_events(run_dir / worker_events_file(1))
        if event["key"] == "eval_forward_start"
    ]
    assert shares == [0.3333, 0.6667, 1.0]


def test_the_ledger_says_who_trained(ended):
    run_dir = ended["two"].run_dir
    assert values(run_dir, "num_replicas") == [2, 3, 2]
    weights = values(run_dir, "parameters")[0]
    for workers, fact in zip((2, 3, 2), values(run_dir, "cluster"), strict=True):
        assert fact["workers"] == workers
        assert 0.8 * 4 * weights < fact["gradient_bytes"] <= 4 * weights
        assert fact["gradient_exchange"] == "float32"
        assert 0 < fact["link"]["small_s"] < fact["link"]["took_s"]
        assert fact["link"]["bytes_per_s"] > 0

    assert len(values(run_dir, "link_start")) == len(values(run_dir, "link_stop")) == 3
    facts = values(run_dir, "comparability") + values(
        ended["one"].run_dir, "comparability"
    )
    assert all(one == facts[0] for one in facts)
    assert "synchronised over replicas" in facts[0]["batch_statistics"]


def test_every_worker_notes_its_own_part(ended):
    for rank in (0, 1):
        file = worker_events_file(rank)
        noted = of_session(ended["two"].run_dir, "worker_step", 0, file)
        assert set(noted) >= set(range(1, STOPPED + 1))
        assert all(0 <= one["ready_s"] <= one["step_s"] for one in noted.values())
        assert (
            sum(noted[step]["utterances"] for step in range(1, STEPS + 1))
            == TRAIN_UTTERANCES / 2
        )

    assert [
        part.rank for part in times_of_workers(read_worker_files(ended["two"].run_dir))
    ] == [
        0,
        1,
        2,
    ]


def test_a_signal_to_any_worker_saves_a_checkpoint_at_the_same_step(ended):
    # The signal came after one step and travelled with the next.
    said = f"SIGTERM ended the run after step {STOPPED + 1}, whose checkpoint is saved"
    assert ended["two"].codes == [143, 143], "\n".join(ended["two"].logs)
    assert all(said in log for log in ended["two"].logs)


def test_a_killed_worker_ends_all_and_is_named(ended):
    killed = ended["three"]
    assert killed.codes == [1, 1, -signal.SIGKILL], "\n".join(killed.logs)
    for log in killed.logs[:2]:
        assert re.search(r"Lost: worker 2 \(127.0.0.1:\d+\)\.", log), log
        assert "--resume" in log


def test_a_killed_chief_ends_all_and_is_named(ended):
    killed = ended["two_again"]
    assert killed.codes == [-signal.SIGKILL, 1], "\n".join(killed.logs)
    assert "Lost: worker 0, the chief" in killed.logs[1], killed.logs[1]


def test_other_numbers_of_workers_go_on_with_the_losses_of_one_process(ended):
    run_dir = ended["two"].run_dir
    whole = of_session(well(ended["one"]), "train_step", 0)
    sessions = values(run_dir, "session_start")
    # Checkpoints: at the signal, every third step, and at the end of an epoch.
    assert [s["resumed_from_step"] for s in sessions] == [None, STOPPED + 1, 51]
    for session, first, last in ((1, STOPPED + 2, KILLED), (2, 52, CHIEF_KILLED)):
        found = of_session(run_dir, "train_step", session)
        # The step after which a worker was killed may not have been booked.
        assert list(found)[: last - first] == list(range(first, last))
        for step, value in found.items():
            assert value["loss"] == pytest.approx(whole[step]["loss"], rel=1e-5), step

    assert load_run(run_dir).intervals["lost_work"] > 0


def test_uneven_batches_are_shared_and_no_utterance_is_left_out(ended):
    shares = [
        of_session(ended["three"].run_dir, "worker_step", 1, worker_events_file(rank))
        for rank in range(3)
    ]
    epoch = range(46, 46 + STEPS)
    sizes = [[share[step]["utterances"] for share in shares] for step in epoch]
    assert sorted(map(sum, sizes)) == SIZES
    assert all(max(parts) - min(parts) <= 1 for parts in sizes)
    assert any(0 in parts for parts in sizes)


def test_workers_of_another_configuration_are_refused_by_all(ended):
    unlike = ended["unlike"]
    assert unlike.codes == [2, 2]
    for log in unlike.logs:
        assert re.search(
            r"same configuration. worker 1 .* has training.seed 2, the chief 1", log
        )
    assert not unlike.run_dir.exists()
