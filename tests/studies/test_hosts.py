"""Studies on hosts of a Dask cluster: who trains what, who is refused, and what a loss costs.

Steps here are short commands that pass for trainings; `tests.studies.test_killed_hosts`
trains.
"""

import contextlib
import dataclasses
import logging
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reports.conftest import ledger_of
from tests.tones import SHARDS, TONES_GIN
from tfasr import cli
from tfasr.errors import UsageError
from tfasr.kit.files import LOCK_FILE, acquire_lock, forget_lock, locked
from tfasr.ledger.declared import LOST, STARTS_FILE, Starts
from tfasr.ledger.events import read_events
from tfasr.studies import blocks, hosts
from tfasr.studies.agent import Agent, Clock, Command, Look
from tfasr.studies.blocks import finish_moves, perform
from tfasr.studies.hosts import Cluster, ThisMachine, inspect_host, request, unlike
from tfasr.studies.perform import study
from tfasr.studies.plan import Step, load_plan
from tfasr.studies.progress import Lap, Running, time_left_s
from tfasr.telemetry.system import describe_system

pytest.importorskip("distributed", reason="needs Dask: pip install 'tfasr[cluster]'")
pytest.importorskip("cryptography", reason="makes the certificates of this test")

from tests.studies.dask_hosts import certificates, dask_hosts  # noqa: E402
from tfasr.kit.scheduler import Tls, scheduler_client  # noqa: E402

FIRST = "127.0.0.2"
SECOND = "127.0.0.3"
STUDY = f"""\
StudyConfig.experiments = ('one', 'other')
StudyConfig.seeds = (1, 2, 3, 4)
StudyConfig.test = 'pairs'
ExperimentConfig.gin_files = ({str(TONES_GIN)!r},)
one/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 2',)
other/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 4',)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_hosts(tmp_path_factory.mktemp("dask"), FIRST, SECOND) as running:
        yield running


@pytest.fixture
def client(cluster):
    with scheduler_client(cluster.address, cluster.tls) as connected:
        yield connected


@pytest.fixture
def folder(tmp_path):
    """A study's folder, whose lock this process holds, as a study does."""
    folder = tmp_path / "study"
    folder.mkdir()
    (tmp_path / "mine.gin").write_text(STUDY)
    ledger_of([0.5, 0.1, 0.1]).write(folder / "report_on")
    with locked(folder / LOCK_FILE, "held"):
        yield folder


def of_study(folder, client, **options):
    plan = load_plan(str(folder.parent / "mine.gin"))
    known = blocks.history(folder).described
    wanted = lambda: dataclasses.replace(request(plan, folder, SHARDS), **options)  # noqa: E731
    return Cluster(client, ThisMachine(), wanted, alike=False, known=known)


def trainings(folder, seeds=(1, 2, 3, 4), words=None):
    """Steps that report on a run, and pass for trainings of two experiments."""

    def step(experiment, seed):
        log = folder / "logs" / f"{experiment}-seed_{seed}.log"
        return Step(
            "train",
            f"train {experiment}-seed_{seed}",
            lambda: words or ["report", folder / "report_on"],
            lambda: log.exists() and "CER 10 %" in log.read_text(),
            log,
            run_dir=folder / "runs" / experiment / f"seed_{seed}",
            alike=experiment,
            seed=seed,
        )

    return [step(experiment, seed) for seed in seeds for experiment in ("one", "other")]


def listed(folder, *keys):
    events = read_events(folder / STARTS_FILE)
    return [event["value"] for event in events if event["key"] in keys]


@pytest.mark.slow
def test_a_host_does_all_trainings_of_a_seed_one_after_the_other(folder, client):
    with contextlib.closing(Starts(folder, lambda: {"runs": []})) as starts:
        assert (
            perform(trainings(folder), of_study(folder, client), starts, folder=folder)
            == []
        )
    described = listed(folder, "host")
    assert {value["host"] for value in described} == {FIRST, SECOND}
    assert (
        described[0]["description"]["memory_bytes"] == describe_system()["memory_bytes"]
    )
    running = {FIRST: None, SECOND: None}
    order = {FIRST: [], SECOND: []}
    for event in read_events(folder / STARTS_FILE):
        value = event["value"]
        if event["key"] == "start":
            assert running[value["host"]] is None
            running[value["host"]] = (value["experiment"], value["seed"])
            order[value["host"]].append((value["seed"], value["experiment"]))

        if event["key"] == "end":
            assert running[value["host"]] == (value["experiment"], value["seed"])
            assert value["exit_code"] == 0
            running[value["host"]] = None

    assert sum(map(len, order.values())) == 8
    for turns in order.values():
        pairs = list(zip(turns[::2], turns[1::2], strict=True))
        assert all(first[0] == second[0] for first, second in pairs)
        # On each host, the order alternates.
        firsts = [first[1] for first, _ in pairs]
        assert all(one != other for one, other in zip(firsts, firsts[1:], strict=False))


@pytest.mark.slow
def test_a_lost_hosts_seed_begins_again_elsewhere_and_its_runs_are_kept(
    folder, cluster, client
):
    third = "127.0.0.4"
    cluster.start_worker(third)
    cluster.wait_for(third)
    (folder / "unfinished").mkdir()
    steps = trainings(folder, seeds=(1,))
    # The host that is lost trains a run that never ends; later ones end at once.
    words = [["watch", folder / "unfinished"]]
    begun = threading.Event()

    def never_ends_at_first():
        if words:
            steps[0].run_dir.mkdir(parents=True)
            (steps[0].run_dir / "notes").write_text("of the lost host")
            begun.set()
            return words.pop()

        return ["report", folder / "report_on"]

    steps[0] = dataclasses.replace(steps[0], words=never_ends_at_first)
    only_third = of_study(folder, client)
    only_third._listed = lambda: {
        third: next(a for a in client.nthreads() if third in a)
    }
    said = []
    with contextlib.closing(Starts(folder, lambda: {"runs": []})) as starts:
        options = {"folder": folder, "patience_s": 0.5}
        work = threading.Thread(
            target=lambda: said.append(perform(steps, only_third, starts, **options))
        )
        work.start()
        assert begun.wait(60)
        while not listed(folder, "start"):
            time.sleep(0.1)
        del only_third._listed
        cluster.kill(third)
        work.join(90)

    assert said == [[]]
    (lost,) = listed(folder, "lost")
    (abandoned,) = listed(folder, "abandoned")
    assert (lost["host"], abandoned["host"], abandoned["experiment"]) == (
        third,
        third,
        "one",
    )
    kept = folder / abandoned["folder"]
    assert (kept / "notes").read_text() == "of the lost host"
    starts_after = [value["host"] for value in listed(folder, "start")]
    assert starts_after[0] == third
    assert len(set(starts_after[1:])) == 1
    assert third not in starts_after[1:]


def test_a_killed_move_of_abandoned_runs_goes_on(folder):
    steps = trainings(folder, seeds=(1,))
    steps[0].run_dir.mkdir(parents=True)
    with contextlib.closing(Starts(folder, lambda: {"runs": []})) as starts:
        starts.abandoned("one", 1, FIRST, "abandoned/one-seed_1-1", None, LOST)
    finish_moves(folder, steps)
    assert (folder / "abandoned" / "one-seed_1-1").is_dir()
    assert not steps[0].run_dir.exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"software": {"tfasr": "9.9"}}, r"it has tfasr \S+ instead of 9\.9"),
        (
            {"shards": {"/nowhere/train": "abc"}},
            r"doesn't have the shards in /nowhere/train",
        ),
        ({"folder": "/nowhere"}, r"doesn't see the study's folder /nowhere"),
        (
            {"experiments": {"one": (["/nowhere.gin"], [], "")}},
            r"can't read the settings of one",
        ),
        (
            {"experiments": {"one": ([str(TONES_GIN)], [], "other")}},
            r"reads other settings of one in .*tones\.gin",
        ),
    ],
)
def test_a_host_that_lacks_something_is_refused_by_name(folder, options, reason):
    plan = load_plan(str(folder.parent / "mine.gin"))
    report = inspect_host(request(plan, folder, SHARDS))
    assert report.problems == []
    wanted = dataclasses.replace(request(plan, folder, SHARDS), **options)
    (problem,) = inspect_host(wanted).problems
    assert re.search(reason, problem)


def test_a_file_system_without_shared_locks_is_refused(tmp_path, monkeypatch):
    (tmp_path / LOCK_FILE).touch()
    assert "doesn't see the lock" in hosts.lock_problems(tmp_path)[0]
    (tmp_path / LOCK_FILE).unlink()
    assert "without the study's files" in hosts.lock_problems(tmp_path)[0]

    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    (tmp_path / LOCK_FILE).touch()
    monkeypatch.setattr(hosts.fcntl, "flock", no_locks)
    assert "has no locks (Function not implemented)" in hosts.lock_problems(tmp_path)[0]


def test_a_refused_host_gets_nothing_and_is_named_once(
    folder, client, caplog, monkeypatch
):
    monkeypatch.setattr(hosts, "_ASKED_AGAIN_S", 0.5)
    pool = of_study(folder, client, software={"tfasr": "9.9"})
    with (
        caplog.at_level(logging.WARNING, logger="tfasr"),
        ThreadPoolExecutor() as executor,
    ):
        ends_s = time.monotonic() + 60
        while (
            sum("can't train" in line for line in caplog.messages) < 2
            and time.monotonic() < ends_s
        ):
            assert pool.usable(executor) == []
            time.sleep(0.1)

        for _ in range(20):  # it is asked again, and refused again
            assert pool.usable(executor) == []
            time.sleep(0.1)

    refused = [line for line in caplog.messages if "can't train for this study" in line]
    assert len(refused) == 2
    assert all("instead of 9.9: install the same software" in line for line in refused)


def test_unlike_hosts_are_told_apart():
    mine = describe_system()
    assert unlike(mine, mine) == []
    slightly = {**mine, "memory_bytes": mine["memory_bytes"] * 1.01}
    assert unlike(slightly, mine) == []
    other = {**mine, "processor": "Another", "gpus": ["A GPU"], "memory_bytes": 2**30}
    limited = {**mine, "surroundings": {**mine["surroundings"], "cpu_limit": 0.5}}
    assert [line.split()[0] for line in unlike(other, mine)] == [
        "processor",
        "gpus",
        "memory",
    ]
    assert "limit of 0.5 processors" in unlike(limited, mine)[0]


def test_a_busy_hosts_clock_is_not_taken_for_a_wrong_one():
    class Answers:
        """An agent whose clock is right, and whose first answers arrive late."""

        def __init__(self):
            self.delays_s = [1.5, 0.0, 1.2]

        def look(self):
            look = Look(Clock(int(time.time() * 1000), time.monotonic()))
            time.sleep(self.delays_s.pop(0))
            return look

    assert abs(hosts.clock_ahead_s(hosts.Host(Answers()))) < 0.5


def test_groups_are_trained_on_the_most_frequent_kind_of_host(folder, client, caplog):
    pool = Cluster(client, ThisMachine(), lambda: None, alike=True, known={})
    mine = describe_system()
    other = {**mine, "processor": "Another"}
    for name, description in (("a", other), ("b", mine), ("c", mine)):
        report = hosts.Report([], description, "")
        pool._hosts[name] = hosts.Host(None, name, report)

    pool._wanted = lambda: "nothing"
    pool._listed = dict
    with caplog.at_level(logging.WARNING, logger="tfasr"):
        assert [host.name for host in pool.usable(None)] == ["b", "c"]
    (line,) = caplog.messages
    assert "The host a can't train" in line
    assert "'groups' needs hosts like b, but it has processor Another" in line


def test_two_studies_take_turns_on_a_host(tmp_path):
    one = Agent("a-host")
    other = Agent("a-host")
    assert one.reserve() == ""
    assert one.reserve() == ""
    assert "another study still runs there" in other.reserve()
    one.release()
    assert other.reserve() == ""
    other.release()


def wait_until(holds, patience_s=30.0):
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_step_ends_with_a_study_that_is_no_longer_heard(tmp_path):
    (tmp_path / "run").mkdir()
    agent = Agent("b-host", lease_s=0.5)
    lock = str(tmp_path / "logs" / "run.lock")
    assert agent.reserve() == ""
    ready = agent.ready(str(tmp_path / "run"), lock)
    command = Command(
        ["watch", str(tmp_path / "run")], {}, str(tmp_path / "logs" / "run.log")
    )
    assert agent.start(command, ready.clock)
    pid = agent.look().pid
    other = Agent("b-host")
    # Its process and its locks are gone, without a call of the agent.
    wait_until(lambda: not other.ready("", lock).busy)
    wait_until(lambda: other.reserve() == "")
    look = agent.look()
    assert look.left
    assert look.exit_code not in (0, None)
    assert not Path(f"/proc/{pid}").exists()
    other.release()


def test_a_start_that_was_noted_long_ago_is_refused(tmp_path):
    agent = Agent()
    command = Command(["--version"], {}, str(tmp_path / "log"))
    assert not agent.start(command, Clock(0, time.monotonic() - 60))
    assert agent.start(command, Clock(0, time.monotonic()))
    wait_until(lambda: agent.look().exit_code == 0)


KEEPS = """
import sys, time
from tfasr.studies.agent import Agent, Command
agent = Agent("c-host", lease_s=60.0)
agent.ready("", sys.argv[1])
agent.start(Command(["watch", sys.argv[2]], {}, sys.argv[3]))
print(agent.look().pid, flush=True)
time.sleep(600)
"""


def test_a_run_stays_locked_while_the_training_of_a_killed_worker_lives(tmp_path):
    """The study may only begin the run elsewhere once nothing writes it any more."""
    (tmp_path / "run").mkdir()
    lock = tmp_path / "run.lock"
    words = [str(lock), str(tmp_path / "run"), str(tmp_path / "log")]
    command = [sys.executable, "-c", KEEPS, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        training = int(worker.stdout.readline())
        os.kill(training, 19)  # SIGSTOP: it can't end with its worker
        worker.kill()
        worker.wait()
        with pytest.raises(UsageError, match="held"):
            acquire_lock(lock, "held")
        os.kill(training, 18)
        wait_until(lambda: not Path(f"/proc/{training}").exists())
        descriptor = acquire_lock(lock, "held")
        forget_lock(descriptor)
        os.close(descriptor)


def test_what_dask_sets_for_its_workers_does_not_slow_trainings(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setenv("MKL_NUM_THREADS", "4")
    started = []

    def start(*words, without, **_):
        started.append(set(without))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr("tfasr.studies.agent.start_module", start)
    for agent in (Agent("d-host", lease_s=60.0), Agent()):
        agent.start(Command(["x"], {}, str(tmp_path / "log")))
        wait_until(lambda: agent.look().exit_code == 0)  # noqa: B023 - it is called at once

    remote, local = started
    assert {"OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"} <= remote
    assert "MKL_NUM_THREADS" not in remote  # it is the user's
    assert local == set()


def test_a_study_goes_on_where_its_seeds_were_begun(
    folder, client, tmp_path, monkeypatch
):
    """Half of a pair on another host would compare two hosts, not two recipes."""
    monkeypatch.setattr(
        "tfasr.studies.perform._declared", lambda plan, folder: {"one": {}}
    )
    gin_file = str(tmp_path / "mine.gin")
    for name, host in (("here", ""), ("there", FIRST)):
        begun = tmp_path / name
        begun.mkdir()
        seen = blocks.Seen(None, host, 1, 1.0)
        with contextlib.closing(Starts(begun, lambda: {"runs": []})) as starts:
            starts.start("one", 2, seen)
        with pytest.raises(
            UsageError, match="Seed 2 was begun on .*continue the study with"
        ):
            used = client if host == "" else None
            study(gin_file, run_dir=begun, shard_dir=SHARDS, client=used, resume=True)


def test_time_left_is_that_of_the_host_that_ends_last():
    done = [Lap("train", "a", 100.0)]
    waiting = [Lap("train", "a")] * 5
    assert time_left_s(done, waiting) == (500.0, True)
    assert time_left_s(done, waiting, hosts=2) == (300.0, True)
    running = [Running(Lap("train", "a"), began_s=time.monotonic() - 50)]
    left_s, known = time_left_s(done, waiting[:1], running, hosts=2)
    assert known
    assert left_s == pytest.approx(100, abs=1)
    assert time_left_s([], waiting[:1]) == (0.0, False)


@pytest.mark.parametrize("command", ["study", "prepare"])
def test_certificates_that_do_not_fit_are_named_in_one_line(
    command, cluster, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    other = certificates(tmp_path / "other", "other")
    mine = cluster.tls
    if command == "study":
        (tmp_path / "mine.gin").write_text(STUDY)
        words = ["study", "--gin_file", str(tmp_path / "mine.gin"), "--run_dir"]
        words += [str(tmp_path / "study"), "--shard_dir", str(SHARDS)]
    else:
        words = ["prepare", "--corpus", "tsv", "--corpus_dir", str(tmp_path)]
        words += ["--shard_dir", str(tmp_path / "study")]

    for address, tls, reason in (
        (cluster.address, other, "not signed by --tls_ca_file"),
        (
            cluster.address,
            Tls(mine.ca_file, other.cert, other.key),
            "refused this certificate",
        ),
        (cluster.address, Tls(mine.ca_file), "certificates are missing"),
        (cluster.address, Tls(mine.ca_file, mine.cert, other.key), "can't be used"),
        (
            cluster.address,
            Tls("/nowhere.pem"),
            "Received: /nowhere.pem, which does not exist",
        ),
        (cluster.address.replace("tls", "tcp"), mine, "need an encrypted address"),
        (None, mine, "need --scheduler"),
    ):
        flags = [] if address is None else ["--scheduler", address]
        for name in ("ca_file", "cert", "key"):
            value = getattr(tls, name)
            flags += [] if value is None else [f"--tls_{name}", value]

        assert cli.run(cli.parse(["tfasr", *words, *flags])) == 2
        out, errors = capsys.readouterr()
        assert not out
        (line,) = errors.strip().splitlines()
        assert reason in line

    assert not (tmp_path / "study").exists()
