"""Announces targets when they are met, and ends a run that was to stop there."""

import logging
from dataclasses import dataclass
from pathlib import Path

from tfasr.training.experiment import TrainingConfig
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.run_clock import RunClock
from tfasr.training.step import StepResult
from tfasr.tta.load import load_run
from tfasr.tta.time_to_accuracy import rule_met

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class MetTarget:
    """A target that the run has met.

    Attributes:
        metric: "cer", "cer_reference" or "wer".
        value: to come down to, a fraction.
        epoch: at whose evaluation it was met.
        elapsed_s: from the model's creation until that was known.
    """

    metric: str
    value: float
    epoch: int
    elapsed_s: float


class AnnounceTargets(Hook):
    """Logs each target when its rule is first met, and stops the run where that is wanted.

    A report reads the time at the end of the epoch, which comes right after the announcement.

    Args:
        training: names targets, their rule, and whether the run ends with them.
        progress: holds the accuracies.
        clock: the run's.
        run_dir: the run's folder; its ledger tells when earlier sessions met a target.

    Attributes:
        met: the targets met so far, in the order of the announcements.
    """

    def __init__(
        self,
        training: TrainingConfig,
        progress: RunProgress,
        clock: RunClock,
        run_dir: Path,
    ):
        self.met: list[MetTarget] = []
        self._run_dir = run_dir
        self._training = training
        self._progress = progress
        self._clock = clock
        self._seen = 0

    def on_train_begin(self) -> None:
        """Finds what earlier sessions met."""
        self._seen = len(self._progress.state.history)
        if self._seen:
            self._look_back()
        self._stop_if_wanted()

    def on_step(self, step: StepResult) -> None:
        """Announces what an overlapped evaluation has met."""
        if len(self._progress.state.history) != self._seen:
            self._look()

    def on_epoch_end(self, epoch: int) -> None:
        """Announces what the evaluation has met."""
        self._look()
        self._stop_if_wanted()

    def on_train_end(self) -> None:
        """Announces what the last evaluation has met."""
        self._look()

    def _look_back(self) -> None:
        run = load_run(self._run_dir)
        for metric, value in self._training.targets:
            window = self._training.target_window
            found = run.time_to_accuracy(**{metric: value}, window=window)
            if found.reached:
                self.met.append(MetTarget(metric, value, found.epoch, found.seconds))

    def _look(self) -> None:
        history, window = self._progress.state.history, self._training.target_window
        for epoch in range(self._seen + 1, len(history) + 1):
            known = {(target.metric, target.value) for target in self.met}
            for target in self._training.targets:
                if tuple(target) not in known and rule_met(history[:epoch], [target], window):
                    self.met.append(MetTarget(*target, epoch, self._clock.elapsed_s()))
                    self._announce(self.met[-1])
        self._seen = len(history)

    def _announce(self, target: MetTarget) -> None:
        window = self._training.target_window
        log.info(
            "target met: %s %g %%, %.1f s after the creation of the model, at epoch %d (%s)",
            target.metric.upper().replace("_", " "),
            100 * target.value,
            target.elapsed_s,
            target.epoch,
            f"median of the last {window} epochs" if window > 1 else "first crossing",
        )

    def _stop_if_wanted(self) -> None:
        training, history = self._training, self._progress.state.history
        if training.stop_at_targets:
            met = rule_met(history, training.targets, training.target_window)
            self._progress.stop_requested |= met
