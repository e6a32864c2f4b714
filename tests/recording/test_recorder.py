"""What a recorder writes, and what reports make of it."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import tfasr
from tests.recording.plain_loop import STEPS, train
from tests.tta.ledger_builder import LedgerBuilder, step_numbers
from tfasr.kit.files import EVENTS_FILE
from tfasr.ledger.events import read_events

# A plain loop that is killed and started again, in real processes.

EPOCHS = 4
KILLED_AFTER = 2 * STEPS + 3


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """The folder of a run that was killed in its third epoch, then run to its end."""
    run_dir = tmp_path_factory.mktemp("runs") / "killed"
    arguments = [run_dir, str(EPOCHS), "0.02", str(KILLED_AFTER)]
    command = [sys.executable, "-m", "tests.recording.plain_loop", *arguments]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"step {KILLED_AFTER}\n"
        with pytest.raises(tfasr.UsageError, match="Only one process may write a run"):
            train(run_dir, EPOCHS, 0.0)

        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL

    train(run_dir, EPOCHS, 0.0)
    return run_dir


def test_it_goes_on_at_its_checkpoint_and_books_what_was_lost(continued):
    run = tfasr.load_run(continued)
    assert (run.status, run.sessions) == ("success", 2)

    starts = [e["value"] for e in read_events(continued) if e["key"] == "session_start"]

    assert [one["resumed_from_step"] for one in starts] == [None, 2 * STEPS]
    assert starts[1]["alive_until_ms"] is not None
    # The three steps after the checkpoint, each of 0.02 s at least, and they count
    # once.
    assert run.intervals["lost_work"] > 3 * 0.02
    assert step_numbers(run) == list(range(1, EPOCHS * STEPS + 1))
    assert sum(run.intervals.values()) == pytest.approx(run.wall_s)


def test_it_arrives_where_a_run_arrives_that_nobody_killed(continued, tmp_path):
    train(tmp_path / "whole", EPOCHS, 0.0)
    result, whole = (
        [point.value for point in tfasr.load_run(path).accuracy_curve("loss")]
        for path in (continued, tmp_path / "whole")
    )

    assert result == whole
    assert len(result) == EPOCHS


def test_the_report_tells_the_lost_work(continued):
    text = tfasr.report([continued])

    assert "loss 0.01" in text
    assert "2 sessions" in text
    assert "lost" in text


# A recorder told things in any order: it takes those that make sense and says no to
# others.


class AnyOrder(RuleBasedStateMachine):
    """Calls of a recorder beside a model of what it has to make of them."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.recorder = tfasr.Recorder(self.folder / "run", targets=["accuracy=0.5"])
        self.run = None
        self.blocks = []
        self.epoch = 0
        self.in_epoch = False
        self.evaluated = False
        self.steps = 0
        self.accuracies = {}

    def does(self, call, allowed):
        """Returns what a call returns that has to succeed, or None of one that must not."""
        if allowed:
            return call()

        with pytest.raises(tfasr.UsageError, match=r"must|Received"):
            call()

        return None

    @property
    def free(self):
        return self.run is not None and not self.blocks

    @precondition(lambda self: self.run is None and self.recorder is not None)
    @rule()
    def open(self):
        self.run = self.recorder.__enter__()
        self.recorder = None

    @rule(number=st.none() | st.integers(0, 4))
    def begin_epoch(self, number):
        run = self.run or self.recorder
        allowed = self.free and (number is None or number > self.epoch)
        if self.does(lambda: run.epoch(number), allowed):
            self.epoch = self.epoch + 1 if number is None else number
            self.in_epoch = True
            self.evaluated = False

    @rule()
    def begin_step(self):
        run = self.run or self.recorder
        block = self.does(lambda: run.step(utterances=2), self.free and self.in_epoch)
        if block:
            self.blocks.append(("step", block.__enter__()))

    @rule()
    def begin_evaluation(self):
        run = self.run or self.recorder
        allowed = self.free and self.epoch > 0 and not self.evaluated
        block = self.does(run.evaluation, allowed)

        if block:
            self.blocks.append(("evaluation", block.__enter__()))
            self.measured = None

    @rule()
    def begin_saving(self):
        run = self.run or self.recorder
        block = self.does(run.saving, self.free)
        if block:
            block.__enter__()
            self.blocks.append(("saving", block))

    @rule()
    def mark(self):
        run = self.run or self.recorder
        self.does(run.checkpoint, self.free)

    @precondition(lambda self: self.blocks and self.blocks[-1][0] == "evaluation")
    @rule(accuracy=st.sampled_from([0.25, 0.75]))
    def measure(self, accuracy):
        self.blocks[-1][1].measure(accuracy=accuracy)
        self.measured = accuracy

    @precondition(lambda self: self.blocks)
    @rule(fails=st.booleans())
    def end_block(self, fails):
        kind, block = self.blocks.pop()
        error = (ValueError, ValueError(), None) if fails else (None, None, None)
        complete = fails or kind != "evaluation" or self.measured is not None
        self.does(lambda: block.__exit__(*error), complete)

        if kind == "step" and not fails:
            self.steps += 1

        if kind == "evaluation" and not fails and complete:
            self.accuracies[self.epoch] = self.measured
            self.in_epoch = False
            self.evaluated = True

        if kind == "evaluation":
            with pytest.raises(
                tfasr.UsageError, match=r"in a block: with run.evaluation\(\)"
            ):
                block.measure(accuracy=1.0)

    @precondition(lambda self: self.free and self.in_epoch)
    @rule()
    def forget_with(self):
        block = self.run.step(utterances=2)
        with pytest.raises(tfasr.UsageError, match=r"write with run.step\(...\):"):
            self.run.checkpoint()

        with block:
            pass

        self.steps += 1

    @precondition(lambda self: self.free and not self.evaluated)
    @rule()
    def evaluate_whole_epoch(self):
        # A way into what comes after an evaluation, which single rules seldom find.
        if not self.in_epoch:
            self.begin_epoch(None)

        self.begin_evaluation()
        self.measure(0.75)
        self.end_block(fails=False)

    @invariant()
    def counts(self):
        if self.run is not None:
            assert self.run.steps_done == self.steps
            assert self.run.epochs_done == self.epoch - self.in_epoch
            assert len(self.run.history) == len(self.accuracies)

    def teardown(self):
        try:
            if self.run is not None:
                self.does(lambda: self.run.__exit__(None, None, None), not self.blocks)
                self.is_read_as_it_was_told()
        finally:
            shutil.rmtree(self.folder)

    def is_read_as_it_was_told(self):
        run = tfasr.load_run(self.folder / "run")
        assert run.status == ("aborted" if self.blocks else "success")
        assert len(run.timeline.steps) == self.steps
        assert sum(run.intervals.values()) == pytest.approx(run.wall_s)
        found = {point.epoch: point.value for point in run.accuracy_curve("accuracy")}
        assert found == self.accuracies
        assert tfasr.report([self.folder / "run"], targets=["accuracy=0.5"])


AnyOrder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestAnyOrder = AnyOrder.TestCase


def test_a_block_where_a_mark_was_meant_is_told_the_other_word(tmp_path):
    message = pytest.raises(tfasr.UsageError, match=r"with run.saving\(\):")
    with tfasr.Recorder(tmp_path / "run") as run, message, run.checkpoint():
        pass


def test_a_block_that_nobody_entered_ends_the_run_as_aborted(tmp_path):
    recorder = tfasr.Recorder(tmp_path / "run")

    with (
        pytest.raises(tfasr.UsageError, match="A block must be entered"),
        recorder as run,
    ):
        run.epoch()
        run.step(utterances=1)

    assert tfasr.load_run(tmp_path / "run").status == "aborted"


def test_a_step_that_fails_is_not_booked_and_another_may_follow(tmp_path):
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()

        with pytest.raises(MemoryError), run.step(utterances=8):
            raise MemoryError

        with run.step(utterances=4):
            pass

    assert run.steps_done == 1


@pytest.mark.parametrize(
    "amounts", [{"utterances": -1}, {"audio_s": "long"}, {"frames": 1e999}]
)
def test_an_amount_that_is_none_is_refused(tmp_path, amounts):
    recorder = tfasr.Recorder(tmp_path / "run")

    with (
        pytest.raises(tfasr.UsageError, match=f"{next(iter(amounts))} must be a"),
        recorder as run,
    ):
        run.epoch()
        with run.step(**amounts):
            pass


SENTENCES = ["one two three", "four five six"]


def train_recorded(run_dir, accuracies, *, seed=1, begin=1, **settings):
    """A run whose evaluations find these accuracies."""
    settings = {"targets": ["accuracy=0.8"], "target_window": 1, **settings}
    with tfasr.Recorder(run_dir, train_samples=8, seed=seed, **settings) as run:
        for accuracy in accuracies:
            with run.epoch():
                for _ in range(2):
                    with run.step(utterances=4, audio_s=2.0) as step:
                        step.loss = 1 - accuracy

                with run.evaluation() as e:
                    e.measure(accuracy=accuracy)

            with run.saving():
                pass

    return run


def value(run_dir, key):
    """The values of all events of a key."""
    return [event["value"] for event in read_events(run_dir) if event["key"] == key]


def test_time_to_an_accuracy_is_read_upwards(tmp_path):
    train_recorded(tmp_path / "run", [0.5, 0.7, 0.85, 0.9])
    run = tfasr.load_run(tmp_path / "run")

    result = run.time_to_accuracy(accuracy=0.8, window=1)

    assert (result.epoch, result.value) == (3, 0.85)
    assert run.time_to_accuracy(accuracy=0.95).reached is False


def test_a_report_reads_an_accuracy_upwards(tmp_path):
    train_recorded(tmp_path / "run", [0.5, 0.7, 0.85, 0.9])

    text = tfasr.report([tmp_path / "run"], policy="mlperf")
    assert "accuracy 80 %" in text

    (group,) = json.loads(
        tfasr.report([tmp_path / "run"], policy="mlperf", output_format="json")
    )
    low, high = group["bracket"][0]

    assert low < group["interpolated_s"][0] < high


def test_a_run_of_another_task_without_targets_shows_what_it_measured(tmp_path):
    train_recorded(tmp_path / "run", [0.5, 0.9], targets=[])
    assert "no finished evaluation" not in tfasr.report([tmp_path / "run"])

    tfasr.report([tmp_path / "run"], out=tmp_path / "out")
    assert "best_accuracy" in (tmp_path / "out" / "evaluation.csv").read_text()


def test_every_second_is_in_one_interval_and_steps_know_their_own(tmp_path):
    train_recorded(tmp_path / "run", [0.5, 0.9])
    run = tfasr.load_run(tmp_path / "run")

    assert sum(run.intervals.values()) == pytest.approx(run.wall_s)
    assert all(
        run.intervals[name] > 0
        for name in ("init", "train", "eval_forward", "checkpoint")
    )
    assert run.fact("train_samples") == 8
    assert [step["utterances"] for step in value(tmp_path / "run", "train_step")] == [
        4
    ] * 4
    assert run.timeline.steps.column("loss").tolist() == pytest.approx(
        [0.5, 0.5, 0.1, 0.1]
    )


def test_texts_are_scored_over_all_calls_and_booked_beside_other_numbers(tmp_path):
    with tfasr.Recorder(tmp_path / "run", targets=[("cer", 0.1)]) as run:
        run.epoch()
        with run.evaluation() as e:
            with e.decoding():
                e.score(SENTENCES[:1], SENTENCES[:1])
                e.score(SENTENCES[1:], ["four five"])

            e.measure(loss=math.nan, cer_reference=0.5)

    assert e.scores["wer"] == pytest.approx(1 / 6)

    (booked,) = value(tmp_path / "run", "tracked_stats")

    assert booked == e.scores
    assert booked["utterances"] == 2
    assert booked["loss"] is None
    assert booked["cer_reference"] == 0.5

    (stated,) = value(tmp_path / "run", "comparability")

    assert stated["validation_utterances"] == 2
    assert tfasr.load_run(tmp_path / "run").intervals["decode"] > 0


def test_runs_scored_on_other_references_are_refused_a_ranking(tmp_path):
    for name, references in (
        ("a", SENTENCES),
        ("b", SENTENCES[::-1]),
        ("c", ["other"]),
    ):
        with tfasr.Recorder(
            tmp_path / name, targets=["wer=0.5"], target_window=1
        ) as run:
            run.epoch()
            with run.evaluation() as e:
                e.score(references, references)

    text = tfasr.report([tmp_path / name for name in "abc"])

    assert "c is not compared with a: they differ in validation_references" in text
    assert "b is not compared" not in text


MINE = {
    "validation_references": "0123456789abcdef", "validation_utterances": 2,
    "text_normalisation": "NFC, lower case, single spaces", "decoder": {"name": "greedy"},
    "target_rule": {"window": 1, "evaluations_per_epoch": 1}, "hash": "fedcba9876543210",
}  # fmt: skip


@pytest.fixture
def mine(tmp_path):
    """A run as ``tfasr train`` writes it, with the hypotheses of its evaluation."""
    ledger = LedgerBuilder().begin(init_s=2, targets=[("wer", 0.5)], comparability=MINE)
    run_dir = ledger.epoch(1, 0.1, wer=0.2).end().write(tmp_path / "mine")
    (run_dir / "hypotheses").mkdir()
    rows = [
        {"id": str(n), "reference": t, "hypothesis": t} for n, t in enumerate(SENTENCES)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run_dir / "hypotheses" / "validation-epoch-0001.jsonl").write_text(text)

    return run_dir


def compared(mine, references=SENTENCES, **settings):
    """Records a run next to another one; returns what the report says of it."""
    run_dir = mine.parent / "torch"
    settings = {"target_window": 1, "comparable_with": mine, **settings}
    with tfasr.Recorder(run_dir, targets=["wer=0.5"], **settings) as run:
        run.epoch()
        with run.step(utterances=2) as step:
            step.loss = 1.0

        with run.evaluation() as e:
            e.score(references, references)

    _, result = json.loads(
        tfasr.report([mine, run_dir], window=1, output_format="json")
    )
    assert (result["relative"] is None) == bool(result["differs_from_first"])
    return result


def test_a_run_of_another_framework_is_ranked_next_to_one_of_tfasr(mine):
    result = compared(mine, SENTENCES[::-1])
    assert result["relative"] > 0

    # What the program alone knows is said to be its word.
    (note,) = [note for note in result["notes"] if str(mine) in note]

    assert "decoder" in note
    assert "validation_references" not in note


@pytest.mark.parametrize(
    ("settings", "differing"),
    [
        (
            {"references": ["one two three", "four five seven"]},
            {"validation_references"},
        ),
        (
            {"references": SENTENCES[:1]},
            {"validation_references", "validation_utterances"},
        ),
        (
            {"references": [text.upper() for text in SENTENCES]},
            {"validation_references"},
        ),
        ({"target_window": 3}, {"target_rule.window"}),
        ({"comparability": {"decoder": {"name": "beam"}}}, {"decoder.name"}),
    ],
)
def test_what_truly_differs_is_still_refused(mine, settings, differing, caplog):
    assert set(compared(mine, **settings)["differs_from_first"]) - {"hash"} == differing
    assert str(mine) in caplog.text


def test_references_that_are_unknown_are_not_called_equal(mine):
    shutil.rmtree(mine / "hypotheses")

    assert set(compared(mine)["differs_from_first"]) - {"hash"} == {
        "validation_references"
    }


def test_a_run_that_states_nothing_cannot_be_the_model_of_another(tmp_path):
    LedgerBuilder().begin().end().write(tmp_path / "mine")

    with pytest.raises(tfasr.UsageError, match="comparable_with"):
        tfasr.Recorder(tmp_path / "torch", comparable_with=tmp_path / "mine")
    assert not (tmp_path / "torch").exists()


def test_a_metric_of_ones_own_has_a_direction_and_its_figures(tmp_path):
    for seed in (1, 2):
        with tfasr.Recorder(
            tmp_path / "runs" / f"seed-{seed}",
            targets=["reward_of_game=-2", ("pit_error", 3)],
            metrics={
                "reward_of_game": "higher",
                "pit_error": tfasr.Metric("lower", label="PIT"),
            },
            target_window=1,
            seed=seed,
        ) as run:
            for reward in (-9, -5, -1.5, 1):
                run.epoch()
                with run.step(utterances=1):
                    pass

                with run.evaluation() as e:
                    e.measure(reward_of_game=reward, pit_error=4 - reward)

    text = tfasr.report(
        [tmp_path / "runs"], out=tmp_path / "out", output_format="json", window=1
    )
    rows = json.loads(text)

    assert [row["epoch"] for row in rows if row["metric"] == "reward_of_game"] == [3, 3]
    assert [row["epoch"] for row in rows if row["metric"] == "pit_error"] == [4, 4]
    assert {path.name for path in (tmp_path / "out").rglob("reward_of_game.*")}
    assert "PIT 3" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    comparison = tfasr.compare([tmp_path / "runs"], targets=["reward_of_game=-2"])
    assert list(comparison.groups) == ["runs"]


def test_the_group_of_a_configuration_is_known_without_a_folder(tmp_path):
    for seed in (1, 2):
        train_recorded(
            tmp_path / f"small-{seed}", [0.9], seed=seed, config={"units": 8}
        )
        train_recorded(tmp_path / f"silent-{seed}", [0.9], seed=seed)

    train_recorded(tmp_path / "large-1", [0.9], config={"units": 64})
    names = [tmp_path / name for name in ("small-1", "small-2", "large-1")]

    assert tfasr.compare(names).groups == {
        "small": ["small-1", "small-2"],
        "large-1": ["large-1"],
    }

    # Two that do not say what they are need not be the same.
    silent = [tmp_path / "silent-1", tmp_path / "silent-2"]
    assert len(tfasr.compare(silent).groups) == 2


def test_a_metric_has_one_direction_in_all_runs_of_a_report(tmp_path):
    train_recorded(tmp_path / "run", [0.9], metrics={"points_of_team": "higher"})
    lower = {"points_of_team": "lower"}

    train_recorded(tmp_path / "opposite", [0.9], metrics=lower)

    with pytest.raises(tfasr.UsageError, match="points_of_team"):
        tfasr.report([tmp_path / "run", tmp_path / "opposite"])


def test_a_metric_of_tfasrs_own_keeps_its_direction(tmp_path):
    message = r"'cer' as a number \(higher is better\).*tfasr as"
    with pytest.raises(tfasr.UsageError, match=message):
        tfasr.Recorder(tmp_path / "other", metrics={"cer": "higher"})


def test_a_metric_that_only_another_run_declared_is_unknown(tmp_path):
    train_recorded(tmp_path / "run", [0.9], metrics={"points_of_team": "higher"})
    recorder = tfasr.Recorder(tmp_path / "other")

    with (
        pytest.raises(tfasr.UsageError, match="declared with its direction"),
        recorder as run,
    ):
        run.epoch()
        with run.evaluation() as e:
            e.measure(points_of_team=3)


def test_a_metric_that_no_run_declared_is_no_target(tmp_path):
    train_recorded(tmp_path / "run", [0.9], metrics={"points_of_team": "higher"})

    with pytest.raises(
        tfasr.UsageError, match="that a run declares. Received: .bleu_of"
    ):
        tfasr.report([tmp_path / "run"], targets=["bleu_of_mine=1"])


def test_an_unfinished_run_goes_on_with_the_same_settings_alone(tmp_path):
    recorder = tfasr.Recorder(tmp_path / "run", train_samples=8, seed=1)

    with pytest.raises(RuntimeError, match="out of power"), recorder as run:
        run.epoch()
        raise RuntimeError("out of power")

    assert tfasr.load_run(tmp_path / "run").status == "aborted"
    with pytest.raises(tfasr.UsageError, match="train_samples: 8 then, 9 now"):
        tfasr.Recorder(tmp_path / "run", train_samples=9, seed=1).__enter__()
    with pytest.raises(tfasr.UsageError, match="0 to 0. Received: 7"):
        tfasr.Recorder(
            tmp_path / "run", train_samples=8, seed=1, resumed_from_step=7
        ).__enter__()

    with tfasr.Recorder(tmp_path / "run", train_samples=8, seed=1) as run:
        assert (run.resumed_from_step, run.epochs_done) == (0, 0)
    with pytest.raises(
        tfasr.UsageError, match="finished after epoch 0.*longer="
    ) as refused:
        tfasr.Recorder(tmp_path / "run", train_samples=8, seed=1).__enter__()

    assert str(tmp_path / "run") in str(refused.value)


def test_a_finished_run_is_trained_longer_where_the_script_says_how(tmp_path):
    train_recorded(tmp_path / "long", [0.5, 0.6, 0.7, 0.9])
    train_recorded(tmp_path / "run", [0.5, 0.6])
    before = tfasr.load_run(tmp_path / "run").accuracy_curve("accuracy")
    settings = {
        "train_samples": 8,
        "seed": 1,
        "targets": ["accuracy=0.8"],
        "target_window": 1,
    }

    killed = tfasr.Recorder(tmp_path / "run", **settings, longer="to 4 epochs")

    with pytest.raises(RuntimeError, match="out of power"), killed as run:
        assert (run.epochs_done, run.steps_done) == (2, 4)

        raise RuntimeError("out of power")

    train_recorded(tmp_path / "run", [0.7, 0.9], longer="to 4 epochs")
    longer = tfasr.load_run(tmp_path / "run")

    assert (longer.status, longer.sessions) == ("success", 3)
    assert longer.accuracy_curve("accuracy")[:2] == before
    assert [point.value for point in longer.accuracy_curve("accuracy")] == [
        0.5,
        0.6,
        0.7,
        0.9,
    ]
    assert longer.comparability["extended"] == [
        {"after_epoch": 2, "schedule": "to 4 epochs"}
    ]
    assert tfasr.compare([tmp_path / "long", longer]).report.refused(1)
    # The script that is started once more has nothing more to do.
    with pytest.raises(tfasr.UsageError, match="finished after epoch 4"):
        train_recorded(tmp_path / "run", [0.9], longer="to 4 epochs")


def test_a_run_without_a_checkpoint_is_not_trained_longer(tmp_path):
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()

    with pytest.raises(tfasr.UsageError, match=r"run.checkpoint\(\)"):
        tfasr.Recorder(tmp_path / "run", longer="to 4 epochs").__enter__()


def test_a_misspelt_attribute_of_a_step_is_named(tmp_path):
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()

        with (
            pytest.raises(tfasr.UsageError, match=r"'los'.*step\.loss"),
            run.step() as step,
        ):
            step.los = 1.0

        with run.step() as step:
            step.loss = 1.0

    assert len(value(tmp_path / "run", "train_step")) == 1


def test_a_loss_that_is_no_number_is_warned_of_once(tmp_path, caplog):
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()
        for loss in (1.0, math.nan, math.inf):
            with run.step() as step:
                step.loss = loss

    (warned,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "step 2 (epoch 1)" in warned.getMessage()

    losses = [step["loss"] for step in value(tmp_path / "run", "train_step")]
    assert losses == [1.0, None, None]


def test_the_caller_may_know_better_which_checkpoint_it_goes_on_from(tmp_path):
    def begin(**more):
        return tfasr.Recorder(tmp_path / "run", targets=["accuracy=0.9"], **more)

    with pytest.raises(KeyboardInterrupt), begin() as run:
        for accuracy in (0.1, 0.2, 0.3):
            run.epoch()
            for _ in range(2):
                with run.step(utterances=4):
                    pass

            with run.evaluation() as e:
                e.measure(accuracy=accuracy)

            run.checkpoint()

        raise KeyboardInterrupt

    with begin(resumed_from_step=4) as run:
        assert (run.resumed_from_step, run.steps_done, run.epochs_done) == (4, 4, 2)
        assert [scores["accuracy"] for scores in run.history] == [0.1, 0.2]

        run.epoch()

        with run.evaluation() as e:
            e.measure(accuracy=0.4)

    result = tfasr.load_run(tmp_path / "run").accuracy_curve("accuracy")
    assert [(point.epoch, point.value) for point in result] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.4),
    ]


def test_a_start_that_never_came_to_training_begins_anew(tmp_path):
    recorder = tfasr.Recorder(tmp_path / "run", train_samples=8)
    with pytest.raises(RuntimeError), recorder:
        raise RuntimeError

    train_recorded(tmp_path / "run", [0.9])
    assert tfasr.load_run(tmp_path / "run").sessions == 1


EVENT = '{"key": "run_begin", "time_ms": 1}\n'
LEDGER = '{"namespace": "", "time_ms": 1, "key": "session_start"}\n'
SETTINGS = '{"targets": [], "target_window": 3, "metrics": {}}'


@pytest.mark.parametrize(
    "files",
    [
        {"experiment.json": "{}"},
        {EVENTS_FILE: EVENT},
        {"run.json": "{}"},
        # A name is no claim: what the files hold is.
        {"recorder.json": "{}", "cpu.csv": "1,2\n", "heartbeat": "mine"},
        {"recorder.json": "[1]", EVENTS_FILE: ""},
        {"recorder.json": SETTINGS, EVENTS_FILE: '{"event": "click"}'},
        {"recorder.json": '{"microphone": 3}', EVENTS_FILE: LEDGER},
    ],
)
def test_folders_of_others_are_left_alone(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    with pytest.raises(tfasr.UsageError, match=f"{[*files][-1]}|tfasr train"):
        tfasr.Recorder(tmp_path).__enter__()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_files_that_no_recorder_writes_may_lie_in_a_run(tmp_path):
    others = {"config.yaml": "units: 8\n", "lock": "held by me\n"}
    for name, text in others.items():
        (tmp_path / name).write_text(text)

    train_recorded(tmp_path, [0.9])

    assert {name: (tmp_path / name).read_text() for name in others} == others


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_samples": 0}, "train_samples must be a whole number of at least 1"),
        ({"targets": ["accuracy=98"]}, "a fraction between 0 and 1"),
        ({"targets": ["bleu_unheard_of=3"]}, "or one that a run declares"),
        ({"metrics": {"x_y_z": "up"}}, 'better must be "lower" or "higher"'),
        ({"target_window": 0}, "target_window must be at least 1"),
        ({"config": {"path": object()}}, "must be JSON values"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    tmp_path, settings, message
):
    with pytest.raises(tfasr.UsageError, match=message):
        tfasr.Recorder(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_targets_met_asks_the_rule(tmp_path):
    with tfasr.Recorder(
        tmp_path / "run", targets=["accuracy=0.8"], target_window=3
    ) as run:
        met = []
        for accuracy in (0.9, math.nan, 0.9, 0.9):
            run.epoch()
            with run.evaluation() as e:
                e.measure(accuracy=accuracy)

            met.append(run.targets_met)

    assert met == [False, False, True, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), -math.inf])
def test_a_score_that_is_not_finite_is_missing_and_said(tmp_path, caplog, value):
    with tfasr.Recorder(
        tmp_path / "run", targets=["accuracy=0.8"], target_window=1
    ) as run:
        run.epoch()
        with run.evaluation() as e:
            e.measure(accuracy=value)

    assert run.history == [{"accuracy": None}]
    assert (
        "accuracy of epoch 1 is NaN or infinite. It is recorded as missing"
        in caplog.text
    )


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"cer": value}
            for value in (10**400, 10**5000, -0.5, 40, True, None, b"0.1", "0.1")
        ),
        *({"accuracy": value} for value in (1.5, -0.1)),
        {"loss": [1, 2]},
    ],
)
def test_what_is_no_value_of_a_metric_is_refused(tmp_path, values):
    recorder = tfasr.Recorder(
        tmp_path, targets=["cer=0.1", "accuracy=0.5"], target_window=1
    )

    with pytest.raises(tfasr.UsageError, match=next(iter(values))), recorder as run:
        run.epoch()
        with run.evaluation() as e:
            e.measure(**{"cer": 0.1, "accuracy": 0.5} | values)

    assert not run.targets_met
    assert value(tmp_path, "tracked_stats") == []


@pytest.mark.parametrize(
    ("references", "hypotheses"),
    [
        ([], []),
        ([""], [""]),
        ("one two", "one twx"),
        (b"one", b"one"),
        ([None], ["one"]),
        (["one"], [b"one"]),
        (["one \ud800"], ["one"]),
        (["one"], ["\udfff"]),
    ],
)
def test_what_are_no_texts_meets_no_target(tmp_path, references, hypotheses):
    recorder = tfasr.Recorder(tmp_path, targets=["cer=0.5"], target_window=1)

    with (
        pytest.raises(tfasr.UsageError, match=r"reference|hypotheses"),
        recorder as run,
    ):
        run.epoch()
        with run.evaluation() as e:
            e.score(references, hypotheses)

    assert not run.targets_met
    assert value(tmp_path, "tracked_stats") == []


def test_an_empty_part_of_a_split_and_generators_are_scored(tmp_path):
    with tfasr.Recorder(tmp_path, targets=["cer=0.5"]) as run:
        run.epoch()
        with run.evaluation() as e:
            e.score([], [])
            e.score((text for text in SENTENCES), iter(SENTENCES))

    (stated,) = value(tmp_path, "comparability")
    assert (e.scores["utterances"], stated["validation_utterances"]) == (2, 2)


def test_each_block_ends_once(tmp_path):
    with tfasr.Recorder(tmp_path / "run") as run:
        run.epoch()
        with run.step() as step:
            pass

        with pytest.raises(tfasr.UsageError, match="must end once"):
            step.__exit__(None, None, None)

    content = (tmp_path / "run" / EVENTS_FILE).read_bytes()

    with pytest.raises(tfasr.UsageError, match="not open"):
        run.__exit__(None, None, None)
    assert run.__exit__(KeyError, KeyError("x"), None) is None
    with pytest.raises(tfasr.UsageError, match="not open"):
        tfasr.Recorder(tmp_path / "other").__exit__(None, None, None)
    assert (tmp_path / "run" / EVENTS_FILE).read_bytes() == content


FORKS = """
import os, sys, tfasr

def forked(work):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        assert os.path.exists(sys.argv[1] + "/lock")
    else:
        work()

def refused():
    try:
        run.step()
    except tfasr.UsageError as error:
        sys.exit("fork" not in str(error))

with tfasr.Recorder(sys.argv[1], utilisation=True) as run:
    pid = os.getpid()
    run.epoch()
    forked(refused)
    forked(lambda: sys.exit(0))
    for _ in range(2):
        with run.step():
            forked(lambda: sys.exit(0))
    with run.evaluation() as e:
        forked(lambda: sys.exit(0))
        e.measure(cer=0.5)
    child = os.fork()
if os.getpid() != pid:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


OUTLIVED = """
import os, sys, tfasr

reads, writes = os.pipe()
try:
    with tfasr.Recorder(sys.argv[1]) as run:
        run.epoch()
        child = os.fork()
        if not child:
            os.close(writes)
            os.read(reads, 1)  # lives until the parent says so, or ends
            os._exit(0)
        raise KeyError("the run ends early")
except KeyError:
    pass
with tfasr.Recorder(sys.argv[1], resumed_from_step=0) as run:
    run.epoch()
os.write(writes, b"x")
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_run_can_be_continued_while_a_forked_child_still_lives(tmp_path):
    subprocess.run([sys.executable, "-c", OUTLIVED, tmp_path / "run"], check=True)


def test_a_ledger_that_a_rotation_of_logs_cuts_ends_the_run(tmp_path):
    with pytest.raises(tfasr.RunError, match="removed, replaced or cut"):  # noqa: SIM117
        with tfasr.Recorder(tmp_path / "run") as run:
            run.epoch()
            with run.step():
                pass

            os.truncate(tmp_path / "run" / EVENTS_FILE, 0)  # what copytruncate does

            with run.evaluation() as e:
                e.measure(cer=0.5)


def test_a_fork_records_nothing_however_it_ends(tmp_path):
    subprocess.run([sys.executable, "-c", FORKS, tmp_path / "run"], check=True)
    run = tfasr.load_run(tmp_path / "run")
    keys = [event["key"] for event in run.events]

    assert run.status == "success"
    assert [keys.count(key) for key in ("train_step", "tracked_stats", "run_stop")] == [
        2,
        1,
        1,
    ]

    lines = (tmp_path / "run" / "cpu.csv").read_text().splitlines()
    assert len(set(lines)) == len(lines)
