"""A recorder told things in any order: it takes those that make sense and says no to others."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import tfasr


class AnyOrder(RuleBasedStateMachine):
    """Calls of a recorder beside a model of what it has to make of them."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.recorder = tfasr.Recorder(self.folder / "run", targets=["accuracy=0.5"])
        self.run = None
        self.blocks = []
        self.epoch, self.in_epoch, self.evaluated = 0, False, False
        self.steps, self.accuracies = 0, {}

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
            self.in_epoch, self.evaluated = True, False

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
            self.in_epoch, self.evaluated = False, True
        if kind == "evaluation":
            with pytest.raises(tfasr.UsageError, match="within its own"):
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


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_block_where_a_mark_was_meant_is_told_the_other_word(tmp_path):
    message = pytest.raises(tfasr.UsageError, match=r"with run.saving\(\):")
    with tfasr.Recorder(tmp_path / "run") as run, message, run.checkpoint():
        pass


def test_a_block_that_nobody_entered_ends_the_run_as_aborted(tmp_path):
    recorder = tfasr.Recorder(tmp_path / "run")
    with pytest.raises(tfasr.UsageError, match="A block must be entered"), recorder as run:
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


@pytest.mark.parametrize("amounts", [{"utterances": -1}, {"audio_s": "long"}, {"frames": 1e999}])
def test_an_amount_that_is_none_is_refused(tmp_path, amounts):
    recorder = tfasr.Recorder(tmp_path / "run")
    with pytest.raises(tfasr.UsageError, match=f"{next(iter(amounts))} must be a"), recorder as run:
        run.epoch()
        with run.step(**amounts):
            pass
