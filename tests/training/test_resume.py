"""Runs that are killed and resumed, or trained longer, in real processes."""

import re
import shutil

import pytest

import tfasr
from tfasr.ledger.events import read_events
from tfasr.ledger.timeline import Timeline


def of(events, key):
    return [event for event in events if event["key"] == key]


def steps(events, session):
    return [
        event["metadata"]["step"]
        for event in of(events, "train_step")
        if event["metadata"]["session"] == session
    ]


def final_cer(run_dir):
    return of(read_events(run_dir), "tracked_stats")[-1]["value"]["cer"]


@pytest.fixture(scope="module")
def uninterrupted(shard_dir, tmp_path_factory):
    from tests.training.conftest import TrainingProcess

    run_dir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    code, output = TrainingProcess(shard_dir, run_dir).finish()
    assert code == 0, output
    return run_dir


def test_an_uninterrupted_run_books_all_states(uninterrupted):
    events = read_events(uninterrupted)
    assert of(events, "run_stop")[-1]["metadata"]["status"] == "success"
    assert len(of(events, "epoch_stop")) == len(of(events, "eval_accuracy")) == 3
    assert len(of(events, "sentences_stop")) == len(steps(events, 0)) // 10
    assert steps(events, 0) == list(range(1, len(steps(events, 0)) + 1))
    per_epoch = dict.fromkeys((1, 2, 3), 0)
    for event in of(events, "train_step"):
        per_epoch[event["metadata"]["epoch_num"]] += event["value"]["utterances"]

    assert per_epoch == {1: 96, 2: 96, 3: 96}
    assert of(events, "tracked_stats")[-1]["value"]["utterances"] == 24
    # The first step traces; no shape of a later batch is traced or compiled again.
    compiled = [e["value"]["compile_s"] > 0 for e in of(events, "train_step")]
    assert compiled == [True] + [False] * (len(compiled) - 1)
    seconds = Timeline(events).interval_seconds()
    assert min(seconds["train"], seconds["init"], seconds["eval_forward"]) > 0
    assert (
        (uninterrupted / "cpu.csv")
        .read_text()
        .startswith("time_ms,cpu_percent,process_percent\n")
    )


def in_the_middle_of_an_epoch(events):
    return any(step >= 20 for step in steps(events, 0))


def in_an_evaluation(events):
    return bool(of(events, "eval_forward_start"))


def before_the_first_checkpoint(events):
    return bool(steps(events, 0))


@pytest.fixture(scope="module")
def killed_within_an_epoch(shard_dir, tmp_path_factory):
    from tests.training.conftest import TrainingProcess

    run_dir = tmp_path_factory.mktemp("runs") / "killed"
    TrainingProcess(shard_dir, run_dir).kill_when(in_the_middle_of_an_epoch)
    return run_dir


@pytest.mark.parametrize(
    "moment",
    [
        in_the_middle_of_an_epoch,
        pytest.param(in_an_evaluation, marks=pytest.mark.long),
        before_the_first_checkpoint,
    ],
)
def test_a_killed_run_reaches_the_same_accuracy(
    start_training, uninterrupted, killed_within_an_epoch, tmp_path, moment
):
    run_dir = tmp_path / "killed"
    if moment is in_the_middle_of_an_epoch:
        shutil.copytree(killed_within_an_epoch, run_dir)
    else:
        start_training(run_dir).kill_when(moment)

    code, output = start_training(run_dir, "--resume").finish()
    assert code == 0, output
    events = read_events(run_dir)
    resumed_from = of(events, "session_start")[-1]["value"]["resumed_from_step"] or 0
    assert steps(events, 1)[0] == resumed_from + 1
    assert steps(events, 1)[-1] == steps(read_events(uninterrupted), 0)[-1]
    assert abs(final_cer(run_dir) - final_cer(uninterrupted)) <= 0.005
    # The same remaining batches: each epoch met every utterance once, lost steps aside.
    kept = [
        event
        for event in of(events, "train_step")
        if event["metadata"]["session"] == 1
        or event["metadata"]["step"] <= resumed_from
    ]
    assert sum(event["value"]["utterances"] for event in kept) == 3 * 96
    losses = {event["metadata"]["step"]: event["value"]["loss"] for event in kept}
    for event in of(read_events(uninterrupted), "train_step"):
        assert losses[event["metadata"]["step"]] == pytest.approx(
            event["value"]["loss"], rel=0.02
        )

    if moment is in_the_middle_of_an_epoch:
        assert resumed_from >= 15
        # Nothing is lost if the kill came right after a checkpoint.
        lost = steps(events, 0)[-1] > resumed_from
        assert (Timeline(events).interval_seconds()["lost_work"] > 0) == lost


@pytest.mark.long
def test_a_killed_run_goes_on_in_its_schedule_of_batch_sizes(start_training, tmp_path):
    run_dir = tmp_path / "killed"
    words = ["--gin_binding", "PipelineConfig.batch_size_schedule = [(2, 4)]"]
    words += ["--gin_binding", "TrainingConfig.epochs = 2"]
    start_training(run_dir, *words).kill_when(in_the_middle_of_an_epoch)
    code, output = start_training(run_dir, *words, "--resume").finish()
    assert code == 0, output
    events = read_events(run_dir)
    resumed_from = of(events, "session_start")[-1]["value"]["resumed_from_step"]
    sizes = {1: [], 2: []}
    for event in of(events, "train_step"):
        if (
            event["metadata"]["session"] == 1
            or event["metadata"]["step"] <= resumed_from
        ):
            sizes[event["metadata"]["epoch_num"]].append(event["value"]["utterances"])

    assert (sum(sizes[1]), sum(sizes[2])) == (96, 96)
    assert (max(sizes[1]), max(sizes[2])) == (8, 4)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    start_training, killed_within_an_epoch, tmp_path
):
    run_dir = tmp_path / "killed"
    shutil.copytree(killed_within_an_epoch, run_dir)
    newest = sorted((run_dir / "checkpoints").glob("step-*.npz"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    code, output = start_training(run_dir, "--resume").finish()
    assert code == 0, output
    assert f"{newest.name} cannot be read" in output
    last = of(read_events(run_dir), "epoch_stop")[-1]["metadata"]
    assert (last["epoch_num"], last["session"]) == (3, 1)


def test_a_folder_with_a_run_is_refused_and_left_as_it_is(
    start_training, uninterrupted
):
    before = (uninterrupted / "events.jsonl").read_bytes()
    code, output = start_training(uninterrupted).finish()
    assert code == 2
    assert "--resume" in output
    assert (uninterrupted / "events.jsonl").read_bytes() == before


def test_a_resumed_run_must_keep_its_configuration(start_training, uninterrupted):
    code, output = start_training(
        uninterrupted, "--resume", "--gin_binding", "Adam.learning_rate = 0.5"
    ).finish()
    assert code == 2
    assert "training.optimizer" in output


def test_resuming_a_finished_run_does_nothing_more(start_training, uninterrupted):
    before = of(read_events(uninterrupted), "train_step")
    code, output = start_training(uninterrupted, "--resume").finish()
    assert code == 0, output
    assert of(read_events(uninterrupted), "train_step") == before


def test_a_finished_run_is_trained_longer_and_reports_know_it(
    start_training, uninterrupted, tmp_path
):
    run_dir = tmp_path / "longer"
    shutil.copytree(uninterrupted, run_dir)
    more = [
        "--gin_binding",
        "TrainingConfig.epochs = 4",
        "--gin_binding",
        "Adam.learning_rate = 5e-4",
    ]
    code, output = start_training(run_dir, "--resume", *more).finish()
    assert code == 0, output
    short = tfasr.load_run(uninterrupted)
    longer = tfasr.load_run(run_dir)
    # What it had done before counts as it did, the last evaluation too.
    assert longer.accuracy_curve()[:3] == short.accuracy_curve()
    assert [point.epoch for point in longer.accuracy_curve()] == [1, 2, 3, 4]
    assert (longer.status, longer.sessions, longer.intervals["lost_work"]) == (
        "success",
        2,
        0.0,
    )
    assert longer.fact("opt_base_learning_rate") == pytest.approx(5e-4)
    (extended,) = longer.comparability["extended"]
    assert extended["after_epoch"] == 3
    assert {"epochs", "learning_rate"} <= set(re.split(r"\W", extended["schedule"]))
    comparison = tfasr.compare([short, longer])
    assert comparison.report.refused(1)
    assert len(comparison.groups) == 2
    # Its configuration is the new one from now on, and all but the schedule is fixed.
    code, output = start_training(
        run_dir, "--resume", "--gin_binding", more[1]
    ).finish()
    assert (code, "learning_rate" in output) == (2, True), output
