"""Training in rounds: workers take some steps by themselves, then exchange their weights.

`RoundStep` is the chief's training step, in place of `TimedStep`. It trains on the
chief's share of the batches as the other workers do on theirs (`ShareTrainer`), and
exchanges with them through the chief's `Hub`.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfasr.data.batches import Batch, Reading, Share
from tfasr.ledger.schema import Exchanged, Round
from tfasr.training.build import batch_normalisations
from tfasr.training.checkpoint import plain_array
from tfasr.training.ctc import CtcModel
from tfasr.training.run import TrainingRun
from tfasr.training.step import StepResult, TimedStep
from tfasr.training.workers.hub import (
    COUNTED,
    NOT_AT_END,
    SUMMED,
    Arrays,
    Block,
    Delivery,
    Hub,
)

# What describes a whole global batch; the model gets the rest, which is of a share.
_OF_OTHERS = ("first_row", "counted", "all_positions", "all_duration_s", "all_lengths")
# The result of a step for a worker whose share of the batch is empty.
_NOTHING = StepResult(
    loss=0.0,
    utterance_loss=np.zeros(0, np.float32),
    positions=np.zeros(0, np.int64),
    utterances=0,
    audio_s=0.0,
    frames=0,
    padded_frames=0,
    input_wait_s=0.0,
    compile_s=0.0,
    train_s=0.0,
)


def exchanged(model: CtcModel) -> list[keras.Variable]:
    """Returns what workers exchange.

    That is the weights, then batch normalisation's moving statistics.
    """
    variables = list(model.trainable_variables)
    for layer in batch_normalisations(model.recogniser):
        variables += layer.non_trainable_variables

    return variables


def values_of(variables: Sequence[keras.Variable]) -> Arrays:
    """Returns the variables' values, to send or to compare."""
    return [plain_array(variable) for variable in variables]


def assign(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    """Gives the variables values, in the same order."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class ShareTrainer:
    """Trains a run's model on a worker's share of consecutive batches, by itself.

    Call `go_to`, then `step` while there is `more`, and `delivery` at the end. To the
    `TimedStep` in it, this object is the iterator over the shares of batches.
    """

    def __init__(self, run: TrainingRun):
        self.variables = exchanged(run.model)
        self.take_step = TimedStep(run.model)
        self._source = run.sources["train"]
        self._seed = run.training.seed
        self._epochs = run.training.epochs
        # Epoch, step in it and share of the next batch.
        self._place: tuple[int, int, Share] | None = None
        # The next batch, if it is read already.
        self._next: Batch | None = None
        # Since the last step.
        self._waited_s = 0.0

    def go_to(self, epoch: int, step: int, share: Share) -> None:
        """Continues with a batch of an epoch.

        Nothing is read anew if that is the next batch anyway.

        Args:
            epoch: of the batch.
            step: its number in the epoch, from 0.
            share: of each batch that this worker trains on.
        """
        place = (epoch, step, share)
        if self._place == place:
            return

        began = time.perf_counter()
        self._batches = Reading(
            self._source.training(self._seed, epoch, step, share=share),
            self._source.split,
        )
        self._next = None
        self._place = place
        self._waited_s += time.perf_counter() - began

    def read_ahead(self) -> None:
        """Starts to read the next epoch's share, at an epoch's end.

        Nobody then has to wait for it once all have exchanged their weights.
        """
        epoch, _, share = self._place
        if self._next is None and epoch < self._epochs:
            self.go_to(epoch + 1, 0, share)

    def more(self) -> bool:
        """Reads the epoch's next batch; returns whether there is one."""
        if self._next is None:
            began = time.perf_counter()
            self._next = next(self._batches, None)
            self._waited_s += time.perf_counter() - began

        return self._next is not None

    def step(self) -> tuple[StepResult, int]:
        """Trains on this worker's share of the next batch.

        Returns the result, and the number of the whole batch's utterances.
        """
        self.more()
        of_all = len(self._next["all_positions"])
        result = self.take_step(self) if self._next["counted"] else _NOTHING

        result = dataclasses.replace(result, input_wait_s=self._waited_s)

        epoch, number, share = self._place
        self._next = None
        self._waited_s = 0.0
        self._place = (epoch, number + 1, share)

        return result, of_all

    @property
    def element_spec(self) -> dict[str, Any]:
        """The signature of a share of a batch, for `TimedStep`."""
        return {
            name: spec
            for name, spec in self._batches.element_spec.items()
            if name not in _OF_OTHERS
        }

    def __next__(self) -> Batch:
        """Returns the share of the next batch, for `TimedStep`."""
        return {name: self._next[name] for name in self.element_spec}

    def delivery(
        self, rank: int, start: Arrays, steps: list[tuple[StepResult, int]]
    ) -> Delivery:
        """Returns the result of the steps since the weights were ``start``.

        Args:
            rank: this worker's.
            start: the weights and moving statistics at the beginning of the block.
            steps: what `step` returned.
        """
        results = [result for result, _ in steps] or [_NOTHING]
        values = zip(values_of(self.variables), start, strict=True)
        return Delivery(
            rank=rank,
            steps=len(steps),
            utterances=sum(result.utterances for result in results),
            of_utterances=sum(of_all for _, of_all in steps),
            numbers={n: sum(getattr(result, n) for result in results) for n in SUMMED},
            ends=not self.more(),
            changes=[new - old for new, old in values],
            losses=np.concatenate([result.utterance_loss for result in results]),
            positions=np.concatenate([result.positions for result in results]),
        )


class RoundStep:
    """The chief's training step, in segments of an epoch: see `tfasr.training.workers.hub`.

    A segment's last step gives the model all workers' changes; its result counts their
    work too. Between the steps of a segment the chief's weights are its own, so that no
    checkpoint may be saved (``settled`` is False).

    Args:
        run: the chief's, built except for this step.
        hub: knows the other workers.
    """

    # A `WorkerStep` would time a step that all workers take together.
    times = None

    def __init__(self, run: TrainingRun, hub: Hub):
        self._run = run
        self._hub = hub
        self._trainer = ShareTrainer(run)
        self.traces = self._trainer.take_step.traces
        self.settled = True
        self._ended = 0  # the last epoch that has no further batch
        self._block: Block | None = None
        self._start: Arrays = []  # the weights with which the block began
        self._steps: list[tuple[StepResult, int]] = []  # of the block
        self._of_segment = 0  # utterances of the chief's batches, over all shares

        split = run.sources["train"].split
        hub.begin_training(
            asynchronous=run.training.exchange == "asynchronous",
            block_steps=run.training.exchange_every_steps,
            utterances=len(split.whole or split.utterances),
            note=self._note,
        )

    def __call__(self, batches: Any) -> StepResult | None:
        """Trains on the next batch, or returns None; ``batches`` are not used."""
        run = self._run
        hub = self._hub
        trainer = self._trainer

        if self.settled:
            if self._ended == run.state.epoch:
                return None

            share = self._block.share if self._block else Share(0, hub.size)
            trainer.go_to(run.state.epoch, run.state.step_in_epoch, share)
            if not trainer.more():
                return None

            self._open_segment()

        if not self._steps:
            self._take_block()

        result, of_all = trainer.step()
        self._steps.append((result, of_all))
        self._of_segment += of_all

        if len(self._steps) < self._block.steps and trainer.more():
            return result

        # The others shall not begin further blocks of a segment that the chief ends.
        if run.interruption.received is not None or run.stop_requested:
            hub.cut()

        hub.deliver(self._block, trainer.delivery(0, self._start, self._steps))
        self._steps = []
        began = time.perf_counter()

        with run.ledger.interval("wait"):
            waited_for = hub.settle()

        if waited_for == NOT_AT_END:
            return result

        return self._settled_result(result, waited_for, time.perf_counter() - began)

    def _open_segment(self) -> None:
        """Lets all workers train, up to the next exchange of their weights."""
        training = self._run.training
        state = self._run.state
        hub = self._hub
        # A checkpoint needs settled weights.
        since_checkpoint = state.step % training.checkpoint_every_steps
        steps = training.checkpoint_every_steps - since_checkpoint

        if not hub.asynchronous:
            steps = min(steps, hub.steps)

        optimizer = self._run.model.optimizer.variables
        first = state.step_in_epoch
        hub.open(
            state.epoch,
            first,
            first + steps,
            values_of(self._trainer.variables),
            lambda: values_of(optimizer),
        )
        self.settled = False

    def _take_block(self) -> None:
        """Begins the chief's next block, with the weights that all have reached."""
        run = self._run
        with run.ledger.interval("wait"):
            self._block, self._start = self._hub.take()

        with run.ledger.interval("exchange"):
            assign(self._trainer.variables, self._start)

        self._trainer.go_to(run.state.epoch, run.state.step_in_epoch, self._block.share)

    def _settled_result(
        self, result: StepResult, waited_for: int | None, waited_s: float
    ) -> StepResult:
        """Gives the model all workers' changes, and the last step their results.

        Args:
            result: of the chief's last step.
            waited_for: the rank of the last worker, or None; see `Hub.settle`.
            waited_s: how long the chief waited for it.
        """
        run = self._run
        delivered = self._hub.collect()

        with run.ledger.interval("exchange"):
            if self._hub.asynchronous:
                assign(self._trainer.variables, self._hub.weights)
            else:
                self._average(delivered)

        utterances = sum(delivery.utterances for delivery in delivered)
        lost = max(self._of_segment - utterances, 0)
        self.settled = True
        self._of_segment = 0
        self._note(
            Exchanged(
                utterances=utterances,
                lost_utterances=lost,
                waited_s=round(waited_s, 6),
                waited_for=waited_for,
                workers=[_round_of(delivery) for delivery in delivered],
            )
        )

        if any(delivery.ends for delivery in delivered):
            self._ended = run.state.epoch
            self._trainer.read_ahead()

        # The chief's own deliveries are in the results of its steps already.
        others = [delivery for delivery in delivered if delivery.rank]
        losses = [result.utterance_loss, *(other.losses for other in others)]
        positions = [result.positions, *(other.positions for other in others)]
        summed = {
            name: getattr(result, name) + sum(other.numbers[name] for other in others)
            for name in COUNTED
        }

        all_losses = np.concatenate(losses)
        # Other workers' shares may all have been empty, too.
        has_losses = len(all_losses) > 0
        loss = float(np.mean(all_losses, dtype=np.float64)) if has_losses else 0.0

        return dataclasses.replace(
            result,
            loss=loss,
            utterance_loss=all_losses,
            positions=np.concatenate(positions),
            utterances=result.utterances + sum(other.utterances for other in others),
            lost_utterances=lost,
            **summed,
        )

    def _note(self, value: Any) -> None:
        """Writes an event into the ledger, at the step that is being taken."""
        state = self._run.state
        self._run.ledger.write(value, epoch_num=state.epoch, step=state.step + 1)

    def _average(self, delivered: list[Delivery]) -> None:
        """Adds the mean of the workers' changes to the weights with which they began.

        Each counts by the utterances on which it trained.
        """
        utterances = [np.float32(delivery.utterances) for delivery in delivered]
        total = max(sum(utterances), np.float32(1))
        parts = [number / total for number in utterances]

        averaged = []
        changes = [delivery.changes for delivery in delivered]
        for weight, *of_workers in zip(self._hub.weights, *changes, strict=True):
            weighted = zip(parts, of_workers, strict=True)
            averaged.append(weight + sum(part * change for part, change in weighted))

        assign(self._trainer.variables, averaged)


def _round_of(delivery: Delivery) -> Round:
    """Returns what the ledger records of a worker's part in an exchange."""
    return Round(
        rank=delivery.rank,
        utterances=delivery.utterances,
        staleness=delivery.staleness,
        train_s=round(delivery.numbers["train_s"], 6),
        link_s=round(delivery.link_s, 6),
    )
