"""Times batches of every length through Deep Speech 2, forward and backward."""

import contextlib
import logging
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfasr.bench.ds2.config import DeepMarkConfig
from tfasr.bench.ds2.data import LENGTHS_S, RandomBlock, batch_sizes
from tfasr.bench.ds2.search import BatchTried, Search
from tfasr.bench.ds2.times import DeepMarkMeasurement, LengthMeasurement
from tfasr.bench.probes.ctc import ctc_losses
from tfasr.bench.probes.make_stepper import make_stepper
from tfasr.bench.probes.memory_limit import MemoryLimit
from tfasr.bench.probes.out_of_memory import out_of_memory
from tfasr.bench.probes.step import Batch, seconds_of
from tfasr.errors import RunError
from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config, output_frames

# Utterances that are drawn; what a larger batch holds makes no difference to its time.
_DRAWN = 64

_log = logging.getLogger(__name__)


class DeepMarkTimer:
    """Deep Speech 2 on one device or several, whose passes are timed.

    Args:
        network: sizes.
        bench: how it is run.
        longest_s: seconds of the longest utterance.
        strategy: a ``tf.distribute.Strategy`` of several devices, or None for one.

    Attributes:
        num_devices: that share each batch.
        parameters: trainable ones.
        warmups: passes that were left out.
    """

    def __init__(
        self,
        network: DeepSpeech2Config,
        bench: DeepMarkConfig,
        longest_s: int,
        strategy: Any = None,
    ):
        self.num_devices = strategy.num_replicas_in_sync if strategy else 1
        self.warmups = 0
        self._bench = bench
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = DeepSpeech2(network, seed=bench.seed)
            model.build()
        self.parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
        self._stepper = make_stepper(model, ctc_losses, strategy=strategy)
        sizes = (_DRAWN, model.num_bins, model.num_classes - 1, longest_s)
        self._block = RandomBlock(*sizes, bench.seed)

    def epoch(self, counts: Sequence[int], batch_size: int) -> DeepMarkMeasurement:
        """Measures an epoch or a share of one.

        Args:
            counts: utterances of 1, 2, ... 15 s.
            batch_size: utterances of a batch on each device.
        """
        lengths, apart = [], True
        for length_s, count in zip(LENGTHS_S, counts, strict=True):
            sizes = batch_sizes(count, self.num_devices * batch_size)
            length, timed_apart = self._length(length_s, sizes)
            lengths.append(length)
            apart = apart and timed_apart
        return DeepMarkMeasurement(self.num_devices * batch_size, self.num_devices, lengths, apart)

    def search(self, lengths_s: Sequence[int]) -> Search:
        """Compares the sizes that the config names on one device, as far as the memory allows.

        Args:
            lengths_s: of the utterances.

        Raises:
            RunError: if not even the smallest size fits.
        """
        tried, limit = [], MemoryLimit(self._bench.memory_share)
        for size in self._bench.search_batches:
            reason = limit.refusal(size)
            if not reason:
                try:
                    # The longest first: it takes the most memory.
                    by_length = {s: self._utterance_s(s, size) for s in sorted(lengths_s)[::-1]}
                except Exception as error:
                    if not out_of_memory(error):
                        raise
                    reason = "out of memory"
            if reason:
                tried.append(BatchTried(size, {}, reason))
                break
            limit.ran(size)
            tried.append(BatchTried(size, by_length))
            _log.info("batch %d: %.1f ms an utterance", size, 1000 * tried[-1].mean_s)
        search = Search(tried, sorted(lengths_s), self._bench.cliff_tolerance)
        if search.fastest is None:
            raise RunError(
                "At least one batch must fit into the memory. Received: "
                f"DeepMarkConfig.search_batches = {self._bench.search_batches}: {tried[0].reason}. "
                "Begin with a smaller one."
            )
        return search

    def _utterance_s(self, length_s: int, size: int) -> float:
        batch = self._placed(length_s, size)
        for _ in range(self._bench.warmup_steps):
            self._stepper.gradients(batch)
        self.warmups += self._bench.warmup_steps
        rounds = range(self._bench.search_rounds)
        return statistics.median(seconds_of(self._stepper.gradients, batch) for _ in rounds) / size

    def _length(self, length_s: int, sizes: Sequence[int]) -> tuple[LengthMeasurement, bool]:
        """Returns the times of each batch, and whether the backward pass was timed by itself."""
        batches = {size: self._placed(length_s, size) for size in dict.fromkeys(sizes)}
        apart = True
        for batch in batches.values():
            for _ in range(self._bench.warmup_steps):
                apart = self._stepper.apart(batch) is not None
                if not apart:
                    self._stepper.forward(batch)
                self._stepper.gradients(batch)
        self.warmups += len(batches) * self._bench.warmup_steps
        forward_s, backward_s, total_s = [], [], []
        for size in sizes:
            passes = self._stepper.apart(batches[size])
            forward = passes[0] if passes else seconds_of(self._stepper.forward, batches[size])
            total = seconds_of(self._stepper.gradients, batches[size])
            forward_s.append(forward)
            backward_s.append(passes[1] if passes else total - forward)
            total_s.append(total)
        if sizes:
            mean_ms = 1000 * sum(total_s) / len(total_s)
            _log.info("%2d s: %d batches, %.0f ms each", length_s, len(sizes), mean_ms)
        return LengthMeasurement(length_s, sizes, forward_s, backward_s, total_s), apart

    def _placed(self, length_s: int, size: int) -> Batch:
        features, labels = self._block.cut(length_s, size)
        frames = np.full(size, output_frames(features.shape[1]), np.int32)
        label_lengths = np.full(size, labels.shape[1], np.int32)
        targets = (frames, labels, label_lengths)
        return self._stepper.place(Batch((features,), targets))
