"""Which training steps are measured."""

from tfasr.config import config_class, require
from tfasr.precision import require_precision, trained


@config_class
class StepConfig:
    """What is measured: every batch with all frames and precisions.

    Attributes:
        experiment: a preset or gin file of model and optimizer; empty for the paper's.
        bindings: lines of gin that override it.
        batches: utterances.
        frames: feature frames to which a batch is padded.
        labels: of the longest transcript; None for as many as are said in the time.
        precisions: Keras's dtype policies of the layers, of `tfasr.precision.trained`.
        rounds: how often each part of a step is measured.
        length_spread: by what share the shortest utterance is shorter than the longest.
    """

    experiment: str = ""
    bindings: tuple[str, ...] = ()
    batches: tuple[int, ...] = (16,)
    frames: tuple[int, ...] = (600,)
    labels: int | None = None
    precisions: tuple[str, ...] = ("float32", "mixed_bfloat16")
    rounds: int = 5
    length_spread: float = 0.0

    def check(self) -> None:
        """Raises ValueError for sizes that measure nothing."""
        for field, flag in (("batches", "--batch"), ("frames", "--frames")):
            sizes = getattr(self, field)
            require(bool(sizes) and min(sizes) > 0, self, field, f"at least 1 each ({flag})")
        require(bool(self.precisions), self, "precisions", "at least one (--precision)")
        require_precision(self, "precisions", trained())
        require(self.rounds > 0, self, "rounds", "at least 1 (--rounds)")
        spread = 0 <= self.length_spread < 1
        require(spread, self, "length_spread", "in 0..1, below 1 (--length_spread)")
