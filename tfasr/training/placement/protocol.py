"""Where an epoch is evaluated: what the loop needs to know of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scores:
    """What is booked of an evaluation.

    Attributes:
        values: of the ledger's ``tracked_stats``: "wer", "cer", "cer_reference", "loss" and the
            counts of errors.
        work: further events, such as ``{"decode_work": 0.5}``.
    """

    values: dict[str, float]
    work: Mapping[str, object]


class PendingScores:
    """An evaluation under way, or at its end.

    Attributes:
        epoch: the one that is evaluated.
        checkpoint: which it is of; None where another session had it.
        waiting: the ledger's interval for what training waits for it.
    """

    epoch: int
    checkpoint: Path | None = None
    waiting: str

    def done(self) -> bool:
        """Whether `scores` would return at once."""
        raise NotImplementedError

    def scores(self) -> Scores:
        """Waits for the scores.

        Raises:
            RunError: if there will be none.
        """
        raise NotImplementedError

    def write_hypotheses(self, path: Path) -> None:
        """Writes the hypotheses behind the scores, unless they are there already."""

    def booked(self) -> None:
        """Is called once the scores are on the disk: nothing of it has to be kept any longer."""


class Placement:
    """Where epochs are evaluated.

    Attributes:
        most_pending: how many evaluations may be under way while training goes on; at 0 the scores
            are waited for at the end of the epoch.
        outlives_checkpoints: whether a checkpoint may be saved while evaluations are under way.
        traces: how often the forward pass was traced; None where that is not known.
    """

    most_pending: int = 0
    outlives_checkpoints: bool = False
    traces: int | None = None

    def start(self, epoch: int, checkpoint: Path) -> PendingScores:
        """Begins to evaluate the weights that training has reached, and a checkpoint holds.

        What training waits for it is booked here; the event ``eval_start`` is written already.
        """
        raise NotImplementedError

    def begin(self, unscored: range) -> list[PendingScores]:
        """Is called before the first step; returns evaluations that earlier sessions left.

        Args:
            unscored: the epochs before the run's current one that have no scores.
        """
        return []

    def close(self) -> None:
        """Ends whatever it holds; evaluations under way are given up."""
