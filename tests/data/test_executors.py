"""Shards that executors make: the same as this process's, whatever happens to the workers."""

import concurrent.futures
import logging
import os
import signal
import socket

import pytest

from tests.data.made_corpus import (
    contents,
    make_utterances,
    packing,
    prepare_split,
    write_tsv,
)
from tfasr import cli
from tfasr.data import packing as elsewhere
from tfasr.data.packing import cluster_executor, completed
from tfasr.errors import RunError, UsageError
from tfasr.kit import scheduler
from tfasr.kit.files import PARTIAL_SUFFIX
from tfasr.kit.scheduler import Tls


class Inline(concurrent.futures.Executor):
    """Does each task where it is submitted, as another process would be asked to."""

    def submit(self, function, *arguments):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

        return future


class Failing(concurrent.futures.Executor):
    """Fails every task with an error, or cancels it."""

    def __init__(self, error):
        self.error = error

    def submit(self, function, *arguments):
        future = concurrent.futures.Future()
        if self.error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)

        return future


def test_tasks_are_read_only_as_there_is_room_for_them():
    read = []

    def tasks():
        for number in range(9):
            read.append(number)
            yield (number,)

    results = completed(Inline(), abs, tasks(), at_once=2)
    seen = {next(results)}

    assert read == [0, 1]
    assert seen | set(results) == set(range(9))


def test_an_executor_gives_the_bytes_of_this_process_and_nothing_else_stays(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 9)
    prepare_split(utterances, tmp_path / "here", num_workers=2)
    folder = tmp_path / "there" / "train"
    prepare_split(utterances[:5], tmp_path / "there", executor=Inline())

    # What a killed worker leaves, and a file whose name is only alike.
    for name in (
        f"train-00001{PARTIAL_SUFFIX}-0123456789abcdef",
        f"train-00000.json{PARTIAL_SUFFIX}-0123456789abcdef",
        f"train-00001{PARTIAL_SUFFIX}-mine",
    ):
        (folder / name).write_bytes(b"half")

    prepare_split(utterances, tmp_path / "there", executor=Inline())
    (folder / f"train-00001{PARTIAL_SUFFIX}-mine").unlink()

    assert contents(folder) == contents(tmp_path / "here" / "train")


@pytest.mark.parametrize(
    "error", [None, concurrent.futures.BrokenExecutor("a worker died")]
)
def test_an_executor_that_gives_up_is_a_failed_run(tmp_path, error):
    utterances = make_utterances(tmp_path / "audio", 2)

    with pytest.raises(RunError, match="run tfasr prepare again; it resumes"):
        prepare_split(utterances, tmp_path / "shards", executor=Failing(error))


def work(folder, key, utterances):
    """Packs the first shard as a worker elsewhere does."""
    plan = elsewhere.ShardPlan(folder, "train", packing(), key)
    elsewhere.finish_shard_elsewhere(elsewhere.exported(plan), 0, utterances)


@pytest.fixture
def utterances(tmp_path, monkeypatch):
    """Two utterances, whose split is packed; workers wait for no plan."""
    monkeypatch.setattr(elsewhere, "_PLAN_SEEN_WITHIN_S", 0.0)
    made = make_utterances(tmp_path / "audio", 2)
    prepare_split(made, tmp_path / "shards")
    return made


def test_a_worker_that_does_not_see_the_plan_is_refused(utterances, tmp_path):
    key = elsewhere.plan_key(tmp_path / "shards" / "train")

    with pytest.raises(RunError, match="does not see it"):
        work(tmp_path / "elsewhere", key, utterances)


def test_a_worker_that_finds_another_plan_is_refused(utterances, tmp_path):
    with pytest.raises(RunError, match="finds another plan"):
        work(tmp_path / "shards" / "train", "of an older call", utterances)


def test_a_worker_that_does_not_see_the_audio_is_refused(utterances, tmp_path):
    folder = tmp_path / "shards" / "train"
    key = elsewhere.plan_key(folder)
    utterances[1].audio_path.unlink()

    with pytest.raises(RunError, match=rf"has no {utterances[1].audio_path}"):
        work(folder, key, utterances)


def test_a_worker_of_other_software_is_refused(utterances, tmp_path, monkeypatch):
    folder = tmp_path / "shards" / "train"
    key = elsewhere.plan_key(folder)
    plan = elsewhere.exported(elsewhere.ShardPlan(folder, "train", packing(), key))
    other = {**elsewhere.software(), "tensorflow": "1.15"}
    monkeypatch.setattr(elsewhere, "software", lambda: other)

    with pytest.raises(RunError, match=r"tensorflow 1\.15 for 2"):
        elsewhere.finish_shard_elsewhere(plan, 0, utterances)


def test_a_scheduler_that_cannot_be_reached_is_refused_in_one_line(
    tmp_path, capsys, monkeypatch
):
    pytest.importorskip(
        "distributed", reason="needs Dask: pip install 'tfasr[cluster]'"
    )
    monkeypatch.setattr(scheduler, "_CONNECT_WITHIN_S", 0.3)
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    write_tsv(tmp_path / "audio", make_utterances(tmp_path / "audio", 1))
    command = [
        "tfasr",
        "prepare",
        "--corpus",
        "tsv",
        "--corpus_dir",
        str(tmp_path / "audio"),
    ]
    command += ["--shard_dir", str(tmp_path / "shards")]
    silent = socket.create_server(("127.0.0.1", 0))
    silence = f"tcp://127.0.0.1:{silent.getsockname()[1]}"

    for address in ("tcp://127.0.0.1:1", "here:there", "smtp://127.0.0.1:1", silence):
        assert cli.run(cli.parse([*command, "--scheduler", address])) == 2

        out, errors = capsys.readouterr()
        assert not out

        (line,) = errors.strip().splitlines()

        assert "--scheduler must be the address" in line
        assert f"Received: {address}" in line

    silent.close()
    several = [*command, "--scheduler", "tcp://127.0.0.1:1", "--num_workers", "2"]

    assert cli.run(cli.parse(several)) == 2
    assert "Leave one of the two out" in capsys.readouterr()[1]
    assert not (tmp_path / "shards").exists()


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)

    with (
        pytest.raises(UsageError, match=r"pip install 'tfasr\[cluster\]'"),
        cluster_executor("a", Tls()),
    ):
        pass


@pytest.mark.slow
def test_dask_with_a_worker_killed_half_way_makes_the_same_shards(tmp_path):
    distributed = pytest.importorskip(
        "distributed", reason="needs Dask: pip install 'tfasr[cluster]'"
    )
    utterances = make_utterances(tmp_path / "audio", 60)
    how = packing(per_shard=2)
    prepare_split(utterances, tmp_path / "here", how, num_workers=2)
    killed = []

    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as cluster:
        workers = {name: worker.pid for name, worker in cluster.workers.items()}

        def kill_one(done, total):
            if not killed and done < total:
                killed.append(workers[0])
                os.kill(workers[0], signal.SIGKILL)

        with cluster_executor(cluster.scheduler_address, Tls()) as executor:
            prepare_split(
                utterances,
                tmp_path / "there",
                how,
                executor=executor,
                on_progress=kill_one,
            )

    assert killed == [workers[0]]
    assert contents(tmp_path / "there" / "train") == contents(
        tmp_path / "here" / "train"
    )
