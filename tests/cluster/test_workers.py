"""Several processes train one run: as one process would, and all end when one does."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tones import TRAIN_UTTERANCES
from tfasr.cluster.launcher import free_ports
from tfasr.ledger import read_events
from tfasr.run_files import worker_events_file
from tfasr.tta.load import load_run

EPOCHS, BATCH = 8, 4
STEPS = TRAIN_UTTERANCES // BATCH
SYNCHRONISED = {
    "training": {"epochs": EPOCHS, "batch_norm_synchronised": True},
    "model": {"dropout": 0.0},
}
# 24 utterances in two buckets, by fives: every bucket ends with a rest, and three workers never
# have the same number of utterances.
UNEVEN = {
    "training": {"epochs": 3, "checkpoint_every_steps": 2, "batch_norm_synchronised": True},
    "pipeline": {"global_batch_size": 5, "num_buckets": 2},
    "model": {"dropout": 0.0},
}


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
        request = {"addresses": addresses, "rank": rank, "run_dir": str(folder / run), **more}
        requests.append({**request, **own.get(rank, {})})
    return requests


def scenarios(tmp: Path) -> dict[str, list[dict]]:
    mirrored = {**SYNCHRONISED["training"], "num_replicas": 2}
    # One run in three sessions, with other workers each: the second steps on the rests too.
    uneven = {"run": "uneven", **UNEVEN}
    stopped = {1: {"die": [3, signal.SIGTERM]}}
    killed = {2: {"die": [9, signal.SIGKILL]}}
    chief_killed = {0: {"die": [11, signal.SIGKILL]}}
    return {
        "one": [{"run_dir": str(tmp / "one"), **SYNCHRONISED}],
        "mirrored": [
            {"run_dir": str(tmp / "mirrored"), "devices": 2, **SYNCHRONISED, "training": mirrored}
        ],
        "two": together(2, tmp, run="two", **SYNCHRONISED),
        "uneven_one": [{"run_dir": str(tmp / "uneven_one"), **UNEVEN}],
        "stopped": together(2, tmp, **uneven, own=stopped),
        "killed": together(3, tmp, **uneven, resume=True, own=killed),
        "chief_killed": together(2, tmp, **uneven, resume=True, own=chief_killed),
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
    command = [sys.executable, "-m", "tests.cluster.forked", str(tmp / "scenarios.json")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
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


def losses(run_dir: Path) -> list[float]:
    return [step["loss"] for step in values(run_dir, "train_step")]


def well(one: Ended) -> Ended:
    assert set(one.codes) == {0}, "\n".join(one.logs)
    return one


@pytest.mark.parametrize("reference", ["one", "mirrored"])
def test_two_workers_train_as_one_process_does(ended, reference):
    two, other = well(ended["two"]).run_dir, well(ended[reference]).run_dir
    assert len(losses(two)) == EPOCHS * STEPS == 48
    assert losses(two) == pytest.approx(losses(other), rel=1e-5)
    assert losses(two)[-1] < 0.2 * losses(two)[0]
    mine, theirs = values(two, "tracked_stats"), values(other, "tracked_stats")
    assert [s["cer"] for s in mine] == [s["cer"] for s in theirs]
    assert [s["loss"] for s in mine] == pytest.approx([s["loss"] for s in theirs], rel=1e-4)
    assert (two / "hypotheses/validation-epoch-0008.jsonl").is_file()


def test_the_ledger_says_what_one_process_would_say_of_each_batch(ended):
    steps = [values(well(ended[name]).run_dir, "train_step") for name in ("one", "two")]
    for one, two in zip(*steps, strict=True):
        for fact in ("utterances", "audio_s", "frames", "padded_frames"):
            assert two[fact] == one[fact]
    run_dir = ended["two"].run_dir
    assert values(run_dir, "num_replicas") == [2]
    assert values(run_dir, "cluster") == [{"workers": 2}]
    facts = values(run_dir, "comparability") + values(ended["one"].run_dir, "comparability")
    assert facts[0] == facts[1]
    assert "synchronised over replicas" in facts[0]["batch_statistics"]


def test_every_worker_notes_its_own_part(ended):
    for rank in (0, 1):
        noted = values(ended["two"].run_dir, "worker_step", worker_events_file(rank))
        assert len(noted) == EPOCHS * STEPS
        assert all(one["utterances"] == BATCH // 2 for one in noted)
        assert all(0 <= one["ready_s"] <= one["step_s"] for one in noted)
    assert load_run(ended["two"].run_dir).status == "success"


def test_a_signal_to_any_worker_saves_a_checkpoint_at_the_same_step(ended):
    stopped = ended["stopped"]
    assert stopped.codes == [143, 143], "\n".join(stopped.logs)
    # The signal came after step 3 and travelled with the next.
    assert "SIGTERM ended the run after step 4" in stopped.logs[0]
    assert "SIGTERM ended the run after step 4" in stopped.logs[1]


def test_a_killed_worker_ends_all_and_is_named(ended):
    killed = ended["killed"]
    assert killed.codes == [1, 1, -signal.SIGKILL], "\n".join(killed.logs)
    for log in killed.logs[:2]:
        assert re.search(r"Lost: worker 2 \(127.0.0.1:\d+\)\.", log), log
        assert "--resume" in log


def test_a_killed_chief_ends_all_and_is_named(ended):
    killed = ended["chief_killed"]
    assert killed.codes == [-signal.SIGKILL, 1], "\n".join(killed.logs)
    assert "Lost: worker 0, the chief" in killed.logs[1], killed.logs[1]


def test_other_numbers_of_workers_go_on_with_the_losses_of_one_process(ended):
    run_dir, whole = ended["stopped"].run_dir, losses(well(ended["uneven_one"]).run_dir)
    events = read_events(run_dir)
    sessions = [e["value"] for e in events if e["key"] == "session_start"]
    # What came after the last checkpoint was lost with worker 2.
    assert [s["resumed_from_step"] for s in sessions] == [None, 4, 8]
    assert values(run_dir, "cluster") == [{"workers": n} for n in (2, 3, 2)]
    found = [
        (e["metadata"]["step"], e["value"]["loss"]) for e in events if e["key"] == "train_step"
    ]
    assert {step for step, _ in found} >= set(range(1, 11))
    for step, loss in found:
        assert loss == pytest.approx(whole[step - 1], rel=1e-5)
    # Worker 2 was killed after step 9, which the chief may have booked already.
    if [step for step, _ in found].count(9) == 2:
        assert load_run(run_dir).intervals["lost_work"] > 0


def test_uneven_batches_are_shared_and_no_utterance_is_left_out(ended):
    whole = [s["utterances"] for s in values(well(ended["uneven_one"]).run_dir, "train_step")]
    assert sum(whole) == 3 * TRAIN_UTTERANCES
    shares = [
        {
            event["metadata"]["step"]: event["value"]["utterances"]
            for event in read_events(ended["killed"].run_dir / worker_events_file(rank))
            if event["key"] == "worker_step" and event["metadata"]["session"] == 1
        }
        for rank in range(3)
    ]
    steps = set.intersection(*map(set, shares))
    assert steps >= set(range(5, 9))
    sizes = {step: sum(share[step] for share in shares) for step in steps}
    assert sizes == {step: whole[step - 1] for step in steps}
    assert min(sizes.values()) < 3, "a batch must have fewer utterances than there are workers"


def test_workers_of_another_configuration_are_refused_by_all(ended):
    unlike = ended["unlike"]
    assert unlike.codes == [2, 2]
    for log in unlike.logs:
        assert re.search(r"same configuration. worker 1 .* has training.seed 2, the chief 1", log)
    assert not unlike.run_dir.exists()
