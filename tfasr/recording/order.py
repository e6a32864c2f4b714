"""In which order a recorder may be told things, and what to say of any other."""

from tfasr.errors import UsageError

_BLOCKS = {
    "step": "with run.step(...):",
    "evaluation": "with run.evaluation() as e:",
    "decoding": "with e.decoding():",
    "saving": "with run.saving():",
}


class Order:
    """What a recorder is in the midst of.

    Attributes:
        open: whether the recorder's own ``with`` block runs.
        epoch: the number of the epoch, 0 before the first.
        in_epoch: whether it has begun and not ended.
        evaluated: whether it has been evaluated.
    """

    def __init__(self):
        self.open = False
        self.epoch = 0
        self.in_epoch = False
        self.evaluated = False
        self._doing: list[str] = []
        self._promised: str | None = None

    def check(self, what: str, within: str | None = None) -> None:
        """Raises UsageError unless a call may come now.

        Args:
            what: the call, for messages.
            within: the block that it belongs into; None for none.
        """
        if not self.open:
            raise UsageError(
                f"{what} must be called within the recorder's block: with tfasr.Recorder(...) as "
                "run: ... Received: a recorder that is not open."
            )
        if self._promised is not None:
            raise UsageError(
                f"A block must be entered: write {_BLOCKS[self._promised]} with its work "
                f"indented below. Received: {what} after a {self._promised} that was not."
            )
        doing = self._doing[-1] if self._doing else None
        if doing != within:
            if doing is None:
                raise UsageError(f"{what} must be called within {_BLOCKS[within]}.")
            raise UsageError(
                f"{what} must not be called within {_BLOCKS[doing]} End that block before."
            )

    def check_epoch(self, what: str) -> None:
        """Raises UsageError unless an epoch is under way."""
        if self.in_epoch:
            return
        if self.evaluated:
            raise UsageError(
                f"{what} must be called within an epoch. Epoch {self.epoch} ended with its "
                "evaluation: call run.epoch() to begin the next."
            )
        raise UsageError(f"{what} must be called within an epoch: call run.epoch() before.")

    def promise(self, block: str) -> None:
        """Notes that a block was made, which has to be entered before anything else is called."""
        self._promised = block

    def enter(self, block: str, within: str | None = None) -> None:
        """Notes that a block begins."""
        if self._promised != block:
            raise UsageError(f"{_BLOCKS[block]} must be written anew each time.")
        self._promised = None
        self.check(_BLOCKS[block], within)
        self._doing.append(block)

    def leave(self) -> None:
        """Notes that the innermost block ends."""
        self._promised = None
        self._doing.pop()
