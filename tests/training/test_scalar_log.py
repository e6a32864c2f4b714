"""Scalars for TensorBoard, MLflow and W&B, of real training and of hand-made sessions."""

import argparse
import sys
import time
import types
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from tests.training.test_train import experiment
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.train import add_arguments
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.training import logs as tensorboard_log
from tfasr.training.logs import LOGS, TensorBoardLog
from tfasr.training.train import train
from tfasr.tta.run import load_run

SLEEP_S = 0.02


class FakeTracker(types.ModuleType):
    """Stands for mlflow and for wandb, writes down what is asked of it, and takes its time."""

    def __init__(self, name, fail_at=None):
        super().__init__(name)
        self.calls, self.fail_at = [], fail_at
        self.info = types.SimpleNamespace(run_id="run 1")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            if name in ("log", "log_metrics"):
                time.sleep(SLEEP_S)
                if self.fail_at is not None and len(self.of(name)) >= self.fail_at:
                    raise KeyboardInterrupt
            return self

        return call

    def of(self, name):
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def scalars(folder):
    """Returns each tag's ``(step, value)`` of a folder's event files, in file order."""
    found = {}
    for path in sorted(Path(folder).glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def useful_of(run_dir, key):
    run = load_run(run_dir)
    pairs = zip(run.events, run.timeline.useful, strict=True)
    return [event for event, useful in pairs if useful and event["key"] == key]


def check_against_ledger(run_dir):
    """Every step that counts, and every evaluation, stands there once with the ledger's values."""
    found = scalars(run_dir / "tensorboard" / "steps")
    steps = useful_of(run_dir, "train_step")
    numbers = [event["metadata"]["step"] for event in steps]
    assert [step for step, _ in found["train/loss"]] == numbers
    losses = [event["value"]["loss"] for event in steps]
    assert [value for _, value in found["train/loss"]] == pytest.approx(losses, rel=1e-4)
    last = {event["metadata"]["epoch_num"]: event["metadata"]["step"] for event in steps}
    stats = useful_of(run_dir, "tracked_stats")
    for metric in ("cer", "wer", "loss"):
        expected = [(last[e["metadata"]["epoch_num"]], e["value"][metric]) for e in stats]
        shown = found[f"validation/{metric}"]
        assert [step for step, _ in shown] == [step for step, _ in expected]
        assert [value for _, value in shown] == pytest.approx([v for _, v in expected], rel=1e-5)
    return found


@pytest.fixture
def trackers(monkeypatch):
    made = {name: FakeTracker(name) for name in ("mlflow", "wandb")}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_training_writes_to_all_of_them(trackers, shard_dir, tmp_path):
    run_dir = tmp_path / "run"
    train(
        experiment(epochs=2, overlap_evaluation=True),
        shard_dir=shard_dir,
        run_dir=run_dir,
        log_to=["tensorboard", "mlflow", "wandb"],
        own_process=True,
    )
    found = check_against_ledger(run_dir)
    rates = [value for _, value in found["train/learning_rate"]]
    assert rates == pytest.approx([0.003] * len(rates))
    steps = useful_of(run_dir, "train_step")
    expected = [
        e["value"]["utterances"]
        / (e["value"]["train_s"] + e["value"]["compile_s"] + e["value"]["input_wait_s"])
        for e in steps
    ]
    shown = [value for _, value in found["train/utterances_per_s"]]
    assert shown == pytest.approx(expected, rel=1e-3)
    check_seconds(run_dir)
    check_trackers(trackers, len(steps), 2)
    # Two trackers took their time at every step and every evaluation: between steps, in no step,
    # and booked as what it is.
    seconds = load_run(run_dir).intervals
    assert seconds["logging"] >= 2 * SLEEP_S * (len(steps) + 1)
    start = load_run(run_dir).events[0]
    assert start["key"] == "session_start"
    assert start["metadata"]["process_age_s"] > 0


def check_seconds(run_dir):
    """There is one value a second at most, in order, within the run's time."""
    over_time = scalars(run_dir / "tensorboard" / "useful_seconds")
    for pairs in over_time.values():
        seconds = [second for second, _ in pairs]
        assert seconds == sorted(set(seconds))
        assert 0 <= seconds[0] <= seconds[-1] <= load_run(run_dir).elapsed_s[-1]
    assert over_time.keys() == scalars(run_dir / "tensorboard" / "steps").keys()


def check_trackers(trackers, steps, epochs):
    mlflow, wandb = trackers["mlflow"], trackers["wandb"]
    logged = mlflow.of("log_metrics")
    assert len(logged) == len(wandb.of("log")) == steps + epochs
    for (values,), where in logged:
        assert {"useful_seconds"} < values.keys()
        assert 1 <= where["step"] <= steps
    times = [values["useful_seconds"] for (values,), _ in logged]
    assert times == sorted(times)
    assert {"step", "useful_seconds"} < wandb.of("log")[-1][0][0].keys()
    assert len(mlflow.of("end_run")) == len(wandb.of("finish")) == 1
    ((_, wandb_run),) = wandb.of("init")
    assert wandb_run["name"] == "run"
    assert (("*",), {"step_metric": "step"}) in wandb.of("define_metric")


def test_an_interrupted_run_goes_on_without_what_was_lost(
    trackers, monkeypatch, shard_dir, tmp_path
):
    run_dir = tmp_path / "run"
    options = {"shard_dir": shard_dir, "run_dir": run_dir, "log_to": ["tensorboard", "mlflow"]}
    # Keras numbers the optimizers of a process; a resumed run must name its own alike.
    wanted = experiment(
        epochs=2,
        checkpoint_every_steps=4,
        optimizer=lambda: keras.optimizers.Adam(0.003, name="adam"),
    )
    trackers["mlflow"].fail_at = 12  # six steps an epoch, and its evaluation: in step 11
    with pytest.raises(KeyboardInterrupt):
        train(wanted, **options)
    trackers["mlflow"].fail_at = None
    train(wanted, resume=True, **options)
    assert any(not useful for useful in load_run(run_dir).timeline.useful)
    check_against_ledger(run_dir)
    check_seconds(run_dir)
    (_, first), (_, second) = trackers["mlflow"].of("start_run")
    assert (first, second) == ({"run_name": "run"}, {"run_id": "run 1"})


def killed_and_resumed(tmp_path):
    """A ledger: three steps, a checkpoint after the second, killed, resumed from there."""
    ledger = LedgerBuilder().begin(init_s=1)
    ledger.step(1.0).step(1.0).checkpoint(0.5).step(1.0)
    first = len(ledger.events)
    ledger.resume(down_s=100, from_step=2, init_s=1)
    events = read_events(ledger.write(tmp_path / "run"))
    return events[:first], events


def test_a_cut_file_is_used_up_to_the_cut(tmp_path, monkeypatch):
    before, after = killed_and_resumed(tmp_path)
    now = [0.0]
    monkeypatch.setattr(
        tensorboard_log, "time", types.SimpleNamespace(time=lambda: now[0], monotonic=None)
    )
    log = TensorBoardLog(tmp_path / "run", before)
    times = [e["time_ms"] / 1000 for e in before if e["key"] == "train_step"]
    for step, wall_s in enumerate(times, start=1):
        now[0] = wall_s
        log.write({"train/loss": 10.0 * step}, step, float(step))
    log.flush()
    log.close()
    folder = tmp_path / "run" / "tensorboard" / "steps"
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    now[0] = after[-1]["time_ms"] / 1000
    resumed = TensorBoardLog(tmp_path / "run", after)
    resumed.write({"train/loss": 31.0}, 3, 6.0)
    resumed.close()
    assert scalars(folder) == {"train/loss": [(1, 10.0), (2, 20.0), (3, 31.0)]}
    seconds = scalars(tmp_path / "run" / "tensorboard" / "useful_seconds")
    assert seconds["train/loss"][-1] == (6, 31.0)
    assert len(list(folder.iterdir())) == 1


def test_tensorboard_itself_reads_it(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    log = TensorBoardLog(tmp_path, killed_and_resumed(tmp_path)[0])
    log.write({"train/loss": 2.0, "train/learning_rate": 0.5}, 1, 0.25)
    log.write({"train/loss": 4.0}, 2, 0.75)
    log.close()
    read = {}
    for name in ("steps", "useful_seconds"):
        read[name] = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / name)).Reload()
    shown = {
        name: [(e.step, e.value) for e in one.Scalars("train/loss")] for name, one in read.items()
    }
    assert shown == {"steps": [(1, 2.0), (2, 4.0)], "useful_seconds": [(0, 3.0)]}


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_said_before_any_work(name, monkeypatch, shard_dir, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"pip install {name}"):
        train(experiment(), shard_dir=shard_dir, run_dir=tmp_path / "run", log_to=[name])
    assert not (tmp_path / "run").exists()


def test_an_unknown_log_is_refused(shard_dir, tmp_path):
    with pytest.raises(UsageError, match="must be one of.*'paper'"):
        train(experiment(), shard_dir=shard_dir, run_dir=tmp_path / "run", log_to=["paper"])


def test_the_flag_offers_every_log():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    required = ["--shard_dir", "shards", "--run_dir", "run"]
    asked = [word for name in LOGS for word in ("--log_to", name)]
    assert parser.parse_args([*required, *asked]).log_to == list(LOGS)
    assert parser.parse_args(required).log_to == []
