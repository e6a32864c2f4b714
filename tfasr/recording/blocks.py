"""The blocks of a recorded run: a step, a checkpoint being saved, an evaluation."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfasr.errors import UsageError
from tfasr.metrics import ErrorCounts, count_errors
from tfasr.recording.session import RecordedSession
from tfasr.tta.metrics import BUILT_IN

AMOUNTS = ("utterances", "audio_s", "frames", "padded_frames")


class Step:
    """One update of the weights, as a ``with`` block; what raises within it books no step.

    All but ``input_wait_s`` may be set until the block ends; None says nothing.

    Attributes:
        loss: the mean training loss. Taking it waits for a framework that works asynchronously;
            without it, what is still computed is booked with whatever waits for it.
        compiled: whether the framework compiled something in it: the step is then no steady one.
        utterances: of the batch, or samples of any kind.
        audio_s: their seconds.
        frames: their feature frames.
        padded_frames: with the padding.
    """

    def __init__(
        self, session: RecordedSession, input_wait_s, utterances, audio_s, frames, padded_frames
    ):
        self.loss: Any = None
        self.compiled = False
        self.utterances = utterances
        self.audio_s = audio_s
        self.frames = frames
        self.padded_frames = padded_frames
        self._session = session
        self._order = session.order
        self._input_wait_s = input_wait_s
        self._order.promise("step")

    def __enter__(self) -> "Step":
        self._order.enter("step")
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._order.leave()
        if kind is not None:
            return
        loss = number(self.loss)  # which waits for it
        took = time.perf_counter() - self._began
        waited = self._input_wait_s
        if waited is None:
            waited = max(0.0, self._began - self._session.last_at)
        values: dict[str, Any] = {"loss": loss}
        for name in AMOUNTS:
            value = getattr(self, name)
            if value is not None:
                # A count, the usual case, costs nothing: this stands in every step.
                values[name] = value if type(value) is int and value >= 0 else amount(name, value)
        values["input_wait_s"] = round(waited, 6)
        values["compile_s"] = round(took, 6) if self.compiled else 0.0
        values["train_s"] = 0.0 if self.compiled else round(took, 6)
        self._session.book_step(values)


class Evaluation:
    """What one evaluation finds, as a ``with`` block; its time counts as evaluation.

    Attributes:
        scores: all that was found, by metric; complete when the block has ended.
    """

    def __init__(self, session: RecordedSession):
        self.scores: dict[str, Any] = {}
        self._session = session
        self._order = session.order
        self._ledger = session.ledger
        self._running = False
        self._counts: ErrorCounts | None = None
        self._references: list[str] = []
        self._order.promise("evaluation")

    def __enter__(self) -> "Evaluation":
        self._order.enter("evaluation")
        self._running = True
        self._where = {"epoch_num": self._order.epoch}
        self._ledger.start("eval", **self._where)
        self._ledger.start("eval_forward", **self._where)
        return self

    @contextlib.contextmanager
    def decoding(self) -> Iterator[None]:
        """Books a part of the block as decoding: writing texts from a model's outputs."""
        self._order.check("e.decoding()", "evaluation")
        self._order.promise("decoding")
        self._order.enter("decoding", "evaluation")
        self._ledger.start("decode", **self._where)
        try:
            yield
        finally:
            self._ledger.stop("decode", **self._where)
            self._order.leave()

    def score(self, references: Sequence[str], hypotheses: Sequence[str]) -> None:
        """Counts word and character errors; calls of one evaluation add up.

        Args:
            references: plain texts, one an utterance.
            hypotheses: what was recognised, in the same order.

        Raises:
            UsageError: if the two differ in number, or the block does not run.
        """
        self._check_running("e.score(...)")
        try:
            counted = count_errors(list(references), list(hypotheses))
        except ValueError as error:
            raise UsageError(str(error)) from error
        self._counts = counted if self._counts is None else self._counts + counted
        self._references += references

    def measure(self, **values: Any) -> None:
        """Notes other numbers: ``e.measure(accuracy=0.93, loss=0.2)``.

        Args:
            **values: numbers by metric, rates as fractions; a later one replaces an earlier.

        Raises:
            UsageError: for a metric that is neither built in nor declared, or no number.
        """
        self._check_running("e.measure(...)")
        for name, value in values.items():
            if not self.takes(name):
                raise UsageError(
                    f"A metric must be one of {', '.join(sorted(BUILT_IN))}, or declared with its "
                    "direction: "
                    f'tfasr.Recorder(..., metrics={{"{name}": "higher"}}). Received: {name}.'
                )
            self.scores[name] = number(value, name)

    def takes(self, metric: str) -> bool:
        """Whether a metric is built in, or declared by the run."""
        return self._session.knows(metric)

    def _check_running(self, what: str) -> None:
        if not self._running:
            raise UsageError(f"{what} must be called within its own with run.evaluation() as e:.")

    def __exit__(self, kind, error, trace) -> None:
        self._ledger.stop("eval_forward", **self._where)
        self._running = False
        self._order.leave()
        counts = {} if self._counts is None else self._counts.to_json()
        self.scores = counts | self.scores
        missing = [name for name in self._session.wanted if name not in self.scores]
        usable = kind is None and self.scores and not missing
        if usable:
            if "wer" in self.scores:
                self._ledger.event("eval_accuracy", self.scores["wer"], **self._where)
            self._ledger.event("tracked_stats", self.scores, **self._where)
        self._ledger.stop("eval", **self._where)
        if usable:
            self._session.end_evaluation(self.scores, self._references)
        elif kind is None:
            raise UsageError(
                f"An evaluation must find {', '.join(missing) or 'something'}: call "
                "e.score(references, hypotheses) for cer and wer, e.measure(accuracy=...) for "
                "others."
            )


class Saving:
    """A checkpoint being saved, as a ``with`` block; it is booked when the block has ended."""

    def __init__(self, session: RecordedSession):
        self._session = session
        session.order.promise("saving")

    def __enter__(self) -> None:
        session = self._session
        session.order.enter("saving")
        session.ledger.start("checkpoint", **session.where)

    def __exit__(self, kind, error, trace) -> None:
        session = self._session
        session.order.leave()
        # Without a step it is no checkpoint to go on from, and the interval ends all the same.
        where = session.where if kind is None else {}
        session.ledger.stop("checkpoint", **where)
        session.ledger.sync()
        session.touch()


class Mark:
    """What `Recorder.checkpoint` returns, to say what to write where it is used as a block."""

    def __enter__(self) -> None:
        raise UsageError(
            "run.checkpoint() says that a checkpoint has been saved. To book the time of saving, "
            "write with run.saving(): instead."
        )

    def __exit__(self, *_) -> None:
        """Is never reached."""


class Epoch:
    """What `Recorder.epoch` returns: a block may end it; otherwise the next call to it does.

    Attributes:
        number: counted from 1.
    """

    def __init__(self, session: RecordedSession, number: int):
        self.number = number
        self._session = session

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, kind, error, trace) -> None:
        order = self._session.order
        if kind is None and order.in_epoch and order.epoch == self.number:
            order.check("The end of an epoch's block")
            self._session.end_epoch()


def amount(name: str, value: Any) -> float:
    """Returns an amount for the ledger.

    Raises:
        UsageError: if it is no number of at least 0.
    """
    result = number(value, name)
    if result is None or result < 0:
        raise UsageError(f"{name} must be a number of at least 0. Received: {value!r}.")
    return int(result) if result == int(result) else result


def number(value: Any, name: str = "loss") -> float | None:
    """Returns a number for the ledger; None of none, and of infinity and no number.

    Raises:
        UsageError: if it cannot be turned into a float.
    """
    if value is None:
        return None
    try:
        # A tensor of PyTorch says so where float() would warn of its gradient.
        result = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be a number. Received: {value!r}.") from error
    return round(result, 9) if math.isfinite(result) else None
