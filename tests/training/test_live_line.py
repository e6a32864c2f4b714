"""One live line on a terminal, log messages elsewhere; a real terminal, and a clock of its own."""

import logging
import os
import pty
import select
import sys

import numpy as np
import pytest

from tests.training.bare_run import bare_run
from tfasr.training.experiment import TrainingConfig
from tfasr.training.hooks import show
from tfasr.training.hooks.show import ShowProgress, duration
from tfasr.training.step import StepResult

UTTERANCES, BATCH, STEP_S = 40, 10, 0.25
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
    """Calls the hook as a training does: one epoch of five, its first step compiling for 3 s."""
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
    """A pseudo-terminal with a handler of logs; returns how to read it, its file, the handler."""
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

        The system passes on what a terminal is given some time after the write, and in parts:
        only a mark that comes last says that everything before it has come.
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
    assert [text in shown for text in ("step 101", "step 102", "step 103", "step 104")] == [
        *(True, False, True, False)
    ]
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


def test_the_cursor_is_there_whatever_becomes_of_the_process(terminal, clock, monkeypatch):
    read, file, _ = terminal
    monkeypatch.setattr(sys, "stderr", file)
    _, hook = run_epoch(clock, steps=1)
    shown = read()
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0
    hook.close()


@pytest.mark.parametrize("term", ["dumb", None])
def test_elsewhere_there_is_a_message_a_minute(clock, caplog, monkeypatch, term, request):
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
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (725, "12:05"), (12000, "3:20:00")]
)
def test_times_are_written_as_a_clock_shows_them(seconds, text):
    assert duration(seconds) == text
