"""One live line on a terminal, log messages elsewhere; a real terminal, and a clock of its own."""

import argparse
import json
import logging
import os
import pty
import select
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tones import SHARDS, tones_experiment
from tests.training.bare_run import bare_run
from tests.training.test_train import experiment
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.shared import progress
from tfasr.commands.train import add_arguments
from tfasr.errors import UsageError
from tfasr.ledger import schema
from tfasr.ledger.events import read_events
from tfasr.reports.watching import Watch
from tfasr.reports.write import report
from tfasr.training import logs as tensorboard_log
from tfasr.training.experiment import TrainingConfig
from tfasr.training.hooks import show
from tfasr.training.hooks.show import ShowProgress, duration
from tfasr.training.hooks.targets import WatchTargets
from tfasr.training.logs import LOGS, TensorBoardLog
from tfasr.training.step import StepResult
from tfasr.training.train import train
from tfasr.tta.run import load_run

# Forecasts while a run trains, and the end of one that would miss its budget.


class Clock:
    now_s = 0.0

    def elapsed_s(self):
        return self.now_s


class Events(list):
    def event(self, key, value=None, **metadata):
        self.append((key, value, metadata))

    def write(self, value, **metadata):
        self.event(schema.KEYS[type(value)], schema.to_json(value), **metadata)


def epochs(values, *, hours, pace_s=60.0, target=0.2):
    """Epochs as the loop has them, until the hook asks for the end; returns run and hook."""
    training = TrainingConfig(
        targets=(("wer", target),), target_window=1, give_up_after_hours=hours
    )
    run = bare_run(training)
    hook = WatchTargets()
    run.clock, run.ledger = Clock(), Events()
    hook.on_train_begin(run)
    for epoch, value in enumerate(values, start=1):
        run.clock.now_s = epoch * pace_s
        run.advance(history=[*run.state.history, {"wer": value}])
        hook.on_epoch_end(run, epoch)
        if run.stop_requested:
            break

    return run, hook


# It meets 20 % at its 43rd epoch, and 10 % long after its 60.
SLOW = [0.9 * epoch**-0.4 for epoch in range(1, 61)]
# A transducer: near 100 % for long, then it collapses, and meets 35 % at its 23rd
# epoch.
CLIFF = [*(1 - 0.01 * epoch for epoch in range(1, 21)), 0.6, 0.4, *[0.3] * 20]


def test_a_run_that_will_be_too_late_is_given_up_before_its_budget_is_spent():
    run, hook = epochs(SLOW, hours=0.25, target=0.1)
    assert run.stop_requested
    ((key, value, metadata),) = run.ledger
    assert key == "given_up"
    assert value["budget_s"] == 900
    assert value["not_before_s"] > 900
    assert 5 < metadata["epoch_num"] < 15
    assert hook.forecasts[0].not_before_s == value["not_before_s"]


@pytest.mark.parametrize("hours", [0.0, 2.0])
def test_a_run_without_a_budget_or_within_it_goes_on(hours):
    run, hook = epochs(SLOW, hours=hours)
    assert not run.stop_requested
    assert run.ledger == []
    assert hook.forecasts[0].met_s == 43 * 60


@pytest.mark.parametrize("times", [1.0, 1.2, 1.5])
def test_a_run_whose_curve_has_not_bent_is_not_given_up(times):
    run, hook = epochs(CLIFF, hours=times * 23 / 60, target=0.35)
    assert run.ledger == []
    assert hook.forecasts[0].met_s == 23 * 60


def test_a_spent_budget_ends_a_run_of_which_nothing_is_known():
    run, _ = epochs([0.9, 0.95, 0.97, 0.99, 1.0, 1.0], hours=0.05)
    assert run.stop_requested
    assert run.ledger[0][2] == {"epoch_num": 3}
    assert run.ledger[0][1]["not_before_s"] is None


@pytest.mark.parametrize(
    "wrong", [{"give_up_after_hours": -1.0}, {"give_up_after_hours": 1.0}]
)
def test_a_budget_is_of_targets_and_not_negative(wrong):
    with pytest.raises(ValueError, match="give_up_after_hours"):
        TrainingConfig(**wrong)


def test_a_given_up_training_is_booked_as_censored(tmp_path):
    # Within a budget of no time at all a single epoch is trained.
    experiment = tones_experiment(
        epochs=3, targets=(("cer", 0.0),), target_window=1, give_up_after_hours=1e-9
    )
    history = train(
        experiment, shard_dir=SHARDS, run_dir=tmp_path / "run", memory_probe=False
    )
    assert len(history) == 1
    keys = [event["key"] for event in read_events(tmp_path / "run")]
    assert keys.count("given_up") == 1
    progress = json.loads((tmp_path / "run" / "progress.json").read_text())
    (said,) = progress["forecasts"]
    assert said["low_s"] is None
    assert "1 of the 4 evaluations" in said["reason"]
    text = " ".join(report([tmp_path / "run"]).split())
    assert "it was given up because of its budget of 1e-09 h" in text
    (seen,) = Watch([tmp_path / "run"], window=1).look()
    assert seen.status == "finished"
    assert seen.forecasts[0].met_s is None
    # What is finished is not gone on with.
    again = train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run", resume=True)
    assert again == history


UTTERANCES = 40
BATCH = 10
STEP_S = 0.25
# What no line, message or escape sequence contains.
END_OF_SHOWN = b"\x00end of what was shown\x00"


def step(number, compile_s=0.0):
    nothing = np.zeros(BATCH)
    return StepResult(
        loss=1 / number,
        utterance_loss=nothing,
        positions=nothing,
        utterances=BATCH,
        audio_s=10.0,
        frames=1000,
        padded_frames=1000,
        input_wait_s=0.05,
        compile_s=compile_s,
        train_s=0.0 if compile_s else STEP_S - 0.05,
    )


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    return now


def run_epoch(clock, steps=4, **more):
    """Calls the hook as a training does: one epoch of five, its first step compiling
    for 3 s.
    """
    training = TrainingConfig(epochs=5, targets=(("cer", 0.1),), **more)
    run = bare_run(training, train_utterances=UTTERANCES, batch_size=BATCH, epoch=2)
    hook = ShowProgress()
    hook.on_train_begin(run)
    hook.on_epoch_begin(run, 2)
    for number in range(1, steps + 1):
        clock[0] += 3.0 if number == 1 else STEP_S
        run.advance(step=100 + number, step_in_epoch=number)
        hook.on_step(run, step(number, compile_s=3.0 if number == 1 else 0.0))

    return run, hook


@pytest.fixture
def terminal(monkeypatch):
    """A pseudo-terminal with a handler of logs; returns how to read it, its file, the
    handler.
    """
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    file = os.fdopen(theirs, "w", buffering=1)
    handler = logging.StreamHandler(file)
    # Handlers of files that other tests have closed must not complain on the terminal.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.getLogger("tfasr")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)

    def read():
        """Returns what was written since the last call.

        The system passes on what a terminal is given some time after the write, and in
        parts: only a mark that comes last says that everything before it has come.
        """
        file.flush()
        os.write(theirs, END_OF_SHOWN)
        shown = b""
        while not shown.endswith(END_OF_SHOWN):
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, f"no end within a minute, only {shown!r}"
            shown += os.read(ours, 1 << 16)

        return shown.removesuffix(END_OF_SHOWN).decode()

    yield read, file, handler
    logger.removeHandler(handler)
    logger.setLevel(level)
    file.close()
    os.close(ours)


def test_a_terminal_shows_one_line_and_messages_above_it(terminal, clock, monkeypatch):
    read, file, handler = terminal
    monkeypatch.setattr(sys, "stderr", file)
    run, hook = run_epoch(clock)
    shown = read()
    # Half a second apart at least: of four steps the first and the third.
    assert [
        text in shown for text in ("step 101", "step 102", "step 103", "step 104")
    ] == [*(True, False, True, False)]
    assert "epoch 2/5" in shown
    assert " 75%" in shown
    assert "loss 0.333" in shown
    assert "40 utterances/s" in shown
    # Two steps since the first made 20 utterances in 0.5 s; 130 of 160 are left.
    assert "0:03 left" in shown
    assert "at most" not in shown
    assert "\n" not in shown.replace("\r\n", "\n").strip("\n")
    logging.getLogger("tfasr").info("epoch 1: validation loss 2.5")
    assert "epoch 1: validation loss 2.5" in read()
    hook.on_epoch_trained(run, 2)
    assert "epoch 2/5  saving and evaluating" in read()
    hook.close()
    ended = read()
    assert ended.endswith("\x1b[2K") or "\x1b[2K" in ended  # the line is taken away
    assert sys.stderr is file
    assert handler.stream is file
    logging.getLogger("tfasr").info("afterwards")
    assert read().strip() == "afterwards"


def test_the_cursor_is_there_whatever_becomes_of_the_process(
    terminal, clock, monkeypatch
):
    read, file, _ = terminal
    monkeypatch.setattr(sys, "stderr", file)
    _, hook = run_epoch(clock, steps=1)
    shown = read()
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0
    hook.close()


def test_a_quiet_command_draws_no_line(terminal, clock, monkeypatch):
    read, file, _ = terminal
    monkeypatch.setattr(sys, "stderr", file)
    logging.getLogger("tfasr").setLevel(logging.WARNING)  # as by --quiet
    _, hook = run_epoch(clock)
    hook.close()
    with progress("compared", 100) as advance:
        advance(100)
    assert read() == ""


@pytest.mark.parametrize("term", ["dumb", None])
def test_elsewhere_there_is_a_message_a_minute(
    clock, caplog, monkeypatch, term, request
):
    if term:  # a terminal that cannot renew a line
        monkeypatch.setattr(sys, "stderr", request.getfixturevalue("terminal")[1])
        monkeypatch.setenv("TERM", term)

    before = sys.stderr
    with caplog.at_level(logging.INFO, "tfasr"):
        run, hook = run_epoch(clock, steps=4, stop_at_targets=True)
        assert not caplog.messages
        clock[0] += 60.0
        hook.on_step(run, step(5))

    hook.close()
    assert sys.stderr is before
    (message,) = caplog.messages
    assert message.startswith("epoch 2/5 100%  step 104  loss 0.200  40 utterances/s")
    assert message.endswith(" left at most")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (725, "12:05"), (12000, "3:20:00")],
)
def test_times_are_written_as_a_clock_shows_them(seconds, text):
    assert duration(seconds) == text


# Scalars for TensorBoard, MLflow and W&B, of real training and of hand-made sessions.

SLEEP_S = 0.02


class FakeTracker(types.ModuleType):
    """Stands for mlflow and for wandb, writes down what is asked of it, and takes its time."""

    def __init__(self, name, fail_at=None):
        super().__init__(name)
        self.calls = []
        self.fail_at = fail_at
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
    """Every step that counts, and every evaluation, stands there once with the ledger's
    values.
    """
    found = scalars(run_dir / "tensorboard" / "steps")
    steps = useful_of(run_dir, "train_step")
    numbers = [event["metadata"]["step"] for event in steps]
    assert [step for step, _ in found["train/loss"]] == numbers
    losses = [event["value"]["loss"] for event in steps]
    assert [value for _, value in found["train/loss"]] == pytest.approx(
        losses, rel=1e-4
    )
    last = {
        event["metadata"]["epoch_num"]: event["metadata"]["step"] for event in steps
    }
    stats = useful_of(run_dir, "tracked_stats")
    for metric in ("cer", "wer", "loss"):
        expected = [
            (last[e["metadata"]["epoch_num"]], e["value"][metric]) for e in stats
        ]
        shown = found[f"validation/{metric}"]
        assert [step for step, _ in shown] == [step for step, _ in expected]
        assert [value for _, value in shown] == pytest.approx(
            [v for _, v in expected], rel=1e-5
        )

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
    # Two trackers took their time at every step and every evaluation: between steps, in
    # no step, and booked as what it is.
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
    mlflow = trackers["mlflow"]
    wandb = trackers["wandb"]
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
    options = {
        "shard_dir": shard_dir,
        "run_dir": run_dir,
        "log_to": ["tensorboard", "mlflow"],
    }
    # Keras numbers the optimizers of a process; a resumed run must name its own alike.
    wanted = experiment(
        epochs=2,
        checkpoint_every_steps=4,
        optimizer=lambda: keras.optimizers.Adam(0.003, name="adam"),
    )
    # Six steps an epoch, and its evaluation: in step 11.
    trackers["mlflow"].fail_at = 12
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
        tensorboard_log,
        "time",
        types.SimpleNamespace(time=lambda: now[0], monotonic=None),
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
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard",
    )
    log = TensorBoardLog(tmp_path, killed_and_resumed(tmp_path)[0])
    log.write({"train/loss": 2.0, "train/learning_rate": 0.5}, 1, 0.25)
    log.write({"train/loss": 4.0}, 2, 0.75)
    log.close()
    read = {}
    for name in ("steps", "useful_seconds"):
        read[name] = accumulator.EventAccumulator(
            str(tmp_path / "tensorboard" / name)
        ).Reload()
    shown = {
        name: [(e.step, e.value) for e in one.Scalars("train/loss")]
        for name, one in read.items()
    }
    assert shown == {"steps": [(1, 2.0), (2, 4.0)], "useful_seconds": [(0, 3.0)]}


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_said_before_any_work(
    name, monkeypatch, shard_dir, tmp_path
):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"pip install {name}"):
        train(
            experiment(), shard_dir=shard_dir, run_dir=tmp_path / "run", log_to=[name]
        )
    assert not (tmp_path / "run").exists()


def test_an_unknown_log_is_refused(shard_dir, tmp_path):
    with pytest.raises(UsageError, match="must be one of.*'paper'"):
        train(
            experiment(),
            shard_dir=shard_dir,
            run_dir=tmp_path / "run",
            log_to=["paper"],
        )


def test_the_flag_offers_every_log():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    required = ["--shard_dir", "shards", "--run_dir", "run"]
    asked = [word for name in LOGS for word in ("--log_to", name)]
    assert parser.parse_args([*required, *asked]).log_to == list(LOGS)
    assert parser.parse_args(required).log_to == []


def test_a_run_ends_with_the_epoch_in_which_its_hours_are_over():
    training = TrainingConfig(stop_after_hours=0.05)  # 3 epochs of a minute
    run = bare_run(training)
    hook = WatchTargets()
    run.clock, run.ledger = Clock(), Events()
    hook.on_train_begin(run)
    stopped = []
    for epoch in (1, 2, 3):
        run.clock.now_s = 60.0 * epoch
        run.advance(history=[*run.state.history, {"wer": 0.5}])
        hook.on_epoch_end(run, epoch)
        stopped.append(run.stop_requested)

    assert stopped == [False, False, True]
    assert run.ledger == []
    with pytest.raises(ValueError, match="stop_after_hours"):
        TrainingConfig(stop_after_hours=-1.0)
