"""When the run will meet its targets, and the end of one that would miss its budget."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from tfasr.ledger import Ledger
from tfasr.training.experiment import TrainingConfig
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.run_clock import RunClock
from tfasr.training.step import StepResult
from tfasr.tta.forecast import Forecast, forecast
from tfasr.tta.load import load_run
from tfasr.tta.time_to_accuracy import AccuracyPoint

log = logging.getLogger("tfasr")


class ForecastTargets(Hook):
    """Forecasts each target after each evaluation, and gives a run up that would be too late.

    A run is given up at the end of an epoch if its budget is spent, or if two evaluations in a row
    say that some target will come after it with 95 %. The ledger then gets ``given_up``; the
    target was not met, and its time is censored: it is longer than what was seen.

    Args:
        training: names targets, their rule and the budget.
        progress: holds the accuracies.
        clock: the run's.
        ledger: gets ``given_up``.
        run_dir: the run's folder; its ledger tells when earlier sessions evaluated.

    Attributes:
        forecasts: one for each target, as of the last evaluation.
    """

    def __init__(
        self,
        training: TrainingConfig,
        progress: RunProgress,
        clock: RunClock,
        ledger: Ledger,
        run_dir: Path,
    ):
        self.forecasts: list[Forecast] = []
        self._training = training
        self._progress = progress
        self._clock = clock
        self._ledger = ledger
        self._run_dir = run_dir
        self._points: dict[str, list[AccuracyPoint]] = {
            metric: [] for metric, _ in training.targets
        }
        self._seen = 0
        self._late_before = False

    def on_train_begin(self) -> None:
        """Finds what earlier sessions evaluated."""
        self._seen = len(self._progress.state.history)
        if self._seen and self._points:
            run = load_run(self._run_dir)
            self._points = {metric: run.accuracy_curve(metric) for metric in self._points}
        self._forecast()

    def on_step(self, step: StepResult) -> None:
        """Takes up what an overlapped evaluation has found."""
        self._look()

    def on_epoch_end(self, epoch: int) -> None:
        """Takes up what the evaluation has found, and ends a run that will be too late."""
        news = self._look()
        budget_s = 3600 * self._training.give_up_after_hours
        if budget_s and not self._progress.stop_requested:
            self._give_up_if_late(epoch, budget_s, news=news)

    def on_train_end(self) -> None:
        """Takes up what the last evaluation has found."""
        self._look()

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the forecasts for ``progress.json``."""
        return [dataclasses.asdict(one) for one in self.forecasts]

    def _look(self) -> bool:
        history = self._progress.state.history
        if len(history) == self._seen:
            return False
        for epoch in range(self._seen + 1, len(history) + 1):
            for metric, points in self._points.items():
                value = history[epoch - 1][metric]
                points.append(AccuracyPoint(epoch, self._clock.elapsed_s(), value))
        self._seen = len(history)
        self._forecast()
        return True

    def _forecast(self) -> None:
        window = self._training.target_window
        self.forecasts = [
            forecast(self._points[metric], value, metric=metric, window=window)
            for metric, value in self._training.targets
        ]

    def _give_up_if_late(self, epoch: int, budget_s: float, *, news: bool) -> None:
        missing = [one for one in self.forecasts if one.met_s is None]
        late = [one for one in missing if one.known and one.not_before_s > budget_s]
        spent = bool(missing) and self._clock.elapsed_s() >= budget_s
        if spent or (late and news and self._late_before):
            self._give_up(epoch, budget_s, (late or missing)[0], spent=spent)
        if news:
            self._late_before = bool(late)

    def _give_up(self, epoch: int, budget_s: float, one: Forecast, *, spent: bool) -> None:
        value = {
            "budget_s": budget_s,
            "metric": one.metric,
            "target": one.target,
            "not_before_s": one.not_before_s,
        }
        self._ledger.event("given_up", value, epoch_num=epoch)
        log.info(
            "given up at the end of epoch %d: %s %g %% %s the budget of %g h",
            epoch,
            one.metric.upper().replace("_", " "),
            100 * one.target,
            "was not met within" if spent else "would come, with 95 %, only after",
            budget_s / 3600,
        )
        self._progress.stop_requested = True
