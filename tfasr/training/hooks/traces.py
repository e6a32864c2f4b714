"""Records at the end of a run how often its functions were traced."""

from tfasr.ledger import Ledger
from tfasr.training.loop import Hook
from tfasr.training.placement.protocol import Placement
from tfasr.training.step import TimedStep
from tfasr.training.traces import book_traces


class BookTraces(Hook):
    """Books how often the training step and the evaluation were traced.

    Args:
        ledger: gets the counts.
        step: counts its own.
        placement: counts those of the evaluation's forward pass.
    """

    def __init__(self, ledger: Ledger, step: TimedStep, placement: Placement):
        self._ledger = ledger
        self._step = step
        self._placement = placement

    def on_train_end(self) -> None:
        """Books them."""
        book_traces(self._ledger, self._step.traces, self._placement.traces)
