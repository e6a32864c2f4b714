"""Training in rounds: each worker takes some steps by itself, then all exchange their
weights.
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
from tfasr.training.workers.hub import COUNTED, SUMMED, Arrays, Block, Delivery, Hub

_OF_OTHERS = ("first_row", "counted", "all_positions", "all_duration_s", "all_lengths")
_EMPTY = np.zeros(0, np.float32), np.zeros(0, np.int64)
_NOTHING = StepResult(0.0, *_EMPTY, 0, 0.0, 0, 0, 0.0, 0.0, 0.0)


def exchanged(model: CtcModel) -> list[keras.Variable]:
    """The weights, then batch normalisation's moving statistics: what workers exchange."""
    layers = batch_normalisations(model.recogniser)
    statistics = [v for layer in layers for v in layer.non_trainable_variables]
    return [*model.trainable_variables, *statistics]


def values_of(variables: Sequence[keras.Variable]) -> Arrays:
    return [plain_array(variable) for variable in variables]


def assign(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class ShareTrainer:
    """Trains a run's model on a worker's share of consecutive batches, by itself."""

    def __init__(self, run: TrainingRun):
        self.variables = exchanged(run.model)
        self.take_step = TimedStep(run.model)
        self._source = run.sources["train"]
        self._seed = run.training.seed
        self._epochs = run.training.epochs
        self._place: tuple[int, int, Share] | None = None  # of the next batch
        self._next: Batch | None = None
        self._waited_s = 0.0

    def go_to(self, epoch: int, step: int, share: Share) -> None:
        if self._place != (epoch, step, share):
            began = time.perf_counter()
            batches = self._source.training(self._seed, epoch, step, share=share)
            self._batches = Reading(batches, self._source.split)
            self._next = None
            self._place = epoch, step, share
            self._waited_s += time.perf_counter() - began

    def read_ahead(self) -> None:
        """At an epoch's end, starts to read the next epoch's share, so that nobody
        waits for it.
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
        """Trains on its share of the next batch; also returns the whole batch's utterances."""
        self.more()
        of_all = len(self._next["all_positions"])
        counts = bool(self._next["counted"])
        result = self.take_step(self) if counts else _NOTHING
        result = dataclasses.replace(result, input_wait_s=self._waited_s)
        epoch, number, share = self._place
        self._next = None
        self._waited_s = 0.0
        self._place = (epoch, number + 1, share)
        return result, of_all

    # As an iterator, it yields its share of the next batch to `TimedStep`.

    @property
    def element_spec(self) -> dict[str, Any]:
        return {
            n: s for n, s in self._batches.element_spec.items() if n not in _OF_OTHERS
        }

    def __next__(self) -> Batch:
        return {name: self._next[name] for name in self.element_spec}

    def delivery(
        self, rank: int, start: Arrays, steps: list[tuple[StepResult, int]]
    ) -> Delivery:
        """Returns the result of the steps since the weights were ``start``."""
        results = [result for result, _ in steps] or [_NOTHING]
        return Delivery(
            rank,
            len(steps),
            sum(result.utterances for result in results),
            sum(of_all for _, of_all in steps),
            {name: sum(getattr(result, name) for result in results) for name in SUMMED},
            not self.more(),
            [
                new - old
                for new, old in zip(values_of(self.variables), start, strict=True)
            ],
            np.concatenate([result.utterance_loss for result in results]),
            np.concatenate([result.positions for result in results]),
        )


class RoundStep:
    """The chief's training step, in segments of an epoch: see `tfasr.training.workers.hub`.

    A segment's last step gives the model all workers' changes; its result counts their
    work too.
    """

    times = None  # no `WorkerStep`: they time a step that all workers take together

    def __init__(self, run: TrainingRun, hub: Hub):
        self._run = run
        self._hub = hub
        self._trainer = ShareTrainer(run)
        self.traces = self._trainer.take_step.traces
        # Whether all weights are exchanged, and a checkpoint may be saved.
        self.settled = True
        self._ended = 0  # the last epoch that has no further batch
        self._block: Block | None = None
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

            self._open()

        if not self._steps:
            self._take()

        result, of_all = trainer.step()
        self._steps.append((result, of_all))
        self._of_segment += of_all
        if len(self._steps) < self._block.steps and trainer.more():
            return result

        if run.interruption.received is not None or run.stop_requested:
            hub.cut()

        hub.deliver(self._block, trainer.delivery(0, self._start, self._steps))
        self._steps = []
        began = time.perf_counter()
        with run.ledger.interval("wait"):
            waited_for = hub.settle()

        if waited_for == -1:
            return result

        return self._settle(result, waited_for, time.perf_counter() - began)

    def _open(self) -> None:
        training = self._run.training
        state = self._run.state
        hub = self._hub
        # A checkpoint needs settled weights.
        steps = (
            training.checkpoint_every_steps
            - state.step % training.checkpoint_every_steps
        )
        steps = steps if hub.asynchronous else min(steps, hub.steps)
        optimizer = self._run.model.optimizer.variables
        first = state.step_in_epoch
        weights = values_of(self._trainer.variables)
        hub.open(
            state.epoch, first, first + steps, weights, lambda: values_of(optimizer)
        )
        self.settled = False

    def _take(self) -> None:
        run = self._run
        with run.ledger.interval("wait"):
            self._block, self._start = self._hub.take()

        with run.ledger.interval("exchange"):
            assign(self._trainer.variables, self._start)

        self._trainer.go_to(run.state.epoch, run.state.step_in_epoch, self._block.share)

    def _settle(
        self, result: StepResult, waited_for: int | None, waited_s: float
    ) -> StepResult:
        run = self._run
        delivered = self._hub.collect()
        with run.ledger.interval("exchange"):
            if self._hub.asynchronous:
                assign(self._trainer.variables, self._hub.weights)
            else:
                self._average(delivered)

        utterances = sum(one.utterances for one in delivered)
        lost = max(self._of_segment - utterances, 0)
        self.settled = True
        self._of_segment = 0
        rounds = [
            Round(
                rank=one.rank,
                utterances=one.utterances,
                staleness=one.staleness,
                train_s=round(one.numbers["train_s"], 6),
                link_s=round(one.link_s, 6),
            )
            for one in delivered
        ]
        exchanged = Exchanged(
            utterances=utterances,
            lost_utterances=lost,
            waited_s=round(waited_s, 6),
            waited_for=waited_for,
            workers=rounds,
        )
        self._note(exchanged)
        if any(one.ends for one in delivered):
            self._ended = run.state.epoch
            self._trainer.read_ahead()

        others = [one for one in delivered if one.rank]
        losses = np.concatenate(
            [result.utterance_loss, *(one.losses for one in others)]
        )
        summed = {
            n: getattr(result, n) + sum(o.numbers[n] for o in others) for n in COUNTED
        }
        return dataclasses.replace(
            result,
            loss=float(np.mean(losses, dtype=np.float64)) if len(losses) else 0.0,
            utterance_loss=losses,
            positions=np.concatenate(
                [result.positions, *(one.positions for one in others)]
            ),
            utterances=result.utterances + sum(one.utterances for one in others),
            lost_utterances=lost,
            **summed,
        )

    def _note(self, value: Any) -> None:
        state = self._run.state
        self._run.ledger.write(value, epoch_num=state.epoch, step=state.step + 1)

    def _average(self, delivered: list[Delivery]) -> None:
        parts = [np.float32(one.utterances) for one in delivered]
        parts = [part / max(sum(parts), np.float32(1)) for part in parts]
        columns = zip(
            self._hub.weights, *(one.changes for one in delivered), strict=True
        )
        averaged = [
            weight
            + sum(part * change for part, change in zip(parts, changes, strict=True))
            for weight, *changes in columns
        ]
        assign(self._trainer.variables, averaged)
