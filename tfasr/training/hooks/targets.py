"""Targets: announced when they are met, forecast before, and the end of a run that is
too late.
"""

import logging
import math
from dataclasses import dataclass

from tfasr.ledger.schema import GivenUp
from tfasr.training.loop import Hook
from tfasr.training.run import TrainingRun
from tfasr.training.step import StepResult
from tfasr.tta.forecast import Forecast, forecast
from tfasr.tta.metrics import metric_named
from tfasr.tta.policies import AccuracyPoint, rule_met
from tfasr.tta.run import load_run

log = logging.getLogger("tfasr")


@dataclass(frozen=True)
class MetTarget:
    metric: str
    value: float  # to reach; a fraction if the metric is a rate
    epoch: float  # at whose evaluation it was met
    elapsed_s: float  # from the model's creation until that was known


class WatchTargets(Hook):
    """Announces and forecasts targets, and ends the run when its settings say so.

    Each target is logged when its rule is first met, and forecast after each
    evaluation. A report reads the time at the end of the epoch, right after the
    announcement. A run is given up at the end of an epoch if its budget is spent, or if
    two evaluations in a row forecast with 95 % certainty that some target will be met
    only after it. The ledger then gets ``given_up``, and the time to the target is
    censored: it is longer than what was seen.
    """

    def __init__(self):
        self.met: list[MetTarget] = []
        self.forecasts: list[Forecast] = []
        self._points: dict[str, list[AccuracyPoint]] = {}
        self._seen = 0
        self._late_before = False

    def on_train_begin(self, run: TrainingRun) -> None:
        training = run.training
        self._seen = len(run.state.history)
        self._points = {metric: [] for metric, _ in training.targets}
        if self._seen and training.targets:
            before = load_run(run.run_dir)
            self._points = {
                metric: before.accuracy_curve(metric) for metric in self._points
            }
            for metric, value in training.targets:
                result = before.time_to_accuracy(
                    **{metric: value}, window=training.target_window
                )
                if result.reached:
                    self.met.append(
                        MetTarget(metric, value, result.epoch, result.seconds)
                    )

        self._forecast(run)
        self._stop_if_wanted(run)

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        self._look(run)

    def on_part_end(self, run: TrainingRun, epoch: float) -> None:
        self._look(run)
        self._stop_if_wanted(run)

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        news = self._look(run)
        self._stop_if_wanted(run)
        limit_h = run.training.stop_after_hours
        if (
            limit_h
            and not run.stop_requested
            and run.clock.elapsed_s() >= 3600 * limit_h
        ):
            log.info(
                "stopping at the end of epoch %d: %g hours are over", epoch, limit_h
            )
            run.request_stop()

        budget_s = 3600 * run.training.give_up_after_hours
        if budget_s and not run.stop_requested:
            self._give_up_if_late(run, epoch, budget_s, news=news)

    def on_train_end(self, run: TrainingRun) -> None:
        self._look(run)

    def _look(self, run: TrainingRun) -> bool:
        history = run.state.history
        window = run.training.target_window
        if len(history) == self._seen:
            return False

        per_epoch = run.training.evaluations_per_epoch
        for number in range(self._seen + 1, len(history) + 1):
            epoch = history[number - 1].get("epoch", number)
            elapsed_s = run.clock.elapsed_s()
            already_met = {(target.metric, target.value) for target in self.met}
            for target in run.training.targets:
                if tuple(target) not in already_met and rule_met(
                    history[:number], [target], window, per_epoch
                ):
                    self.met.append(MetTarget(*target, epoch, elapsed_s))
                    _announce(self.met[-1], window)

            for metric, points in self._points.items():
                value = history[number - 1].get(metric, math.nan)
                points.append(AccuracyPoint(epoch, elapsed_s, value, per_epoch))

        self._seen = len(history)
        self._forecast(run)
        return True

    def _forecast(self, run: TrainingRun) -> None:
        self.forecasts = [
            forecast(
                self._points[metric],
                value,
                metric=metric,
                window=run.training.target_window,
                learning_rate=run.model.optimizer.get_config().get("learning_rate"),
            )
            for metric, value in run.training.targets
        ]

    def _stop_if_wanted(self, run: TrainingRun) -> None:
        training = run.training
        history = run.state.history
        rule = training.targets, training.target_window, training.evaluations_per_epoch
        if training.stop_at_targets and rule_met(history, *rule):
            run.request_stop()

    def _give_up_if_late(
        self, run: TrainingRun, epoch: int, budget_s: float, *, news: bool
    ) -> None:
        missing = [target for target in self.forecasts if target.met_s is None]
        late = [target for target in missing if (target.not_before_s or 0.0) > budget_s]
        spent = bool(missing) and run.clock.elapsed_s() >= budget_s
        if spent or (late and news and self._late_before):
            target = (late or missing)[0]
            limit = f"the budget of {budget_s / 3600:g} h"
            given_up = GivenUp(
                budget_s=budget_s,
                metric=target.metric,
                target=target.target,
                not_before_s=target.not_before_s,
            )
            run.ledger.write(given_up, epoch_num=epoch)
            if spent:
                cause = f"did not meet {limit}"
            else:
                cause = f"will miss {limit} (95 % certain)"

            name = _named(target.metric, target.target)
            log.info("given up at the end of epoch %d: %s %s", epoch, name, cause)
            run.request_stop()

        if news:
            self._late_before = bool(late)


def _named(metric: str, value: float) -> str:
    kind = metric_named(metric)
    label = kind.label or metric.upper().replace("_", " ")
    return f"{label} {100 * value:g} %" if kind.rate else f"{label} {value:g}"


def _announce(target: MetTarget, window: int) -> None:
    rule = f"median of the last {window} epochs" if window > 1 else "first evaluation"
    message = "target met: %s, %.1f s after the creation of the model, at epoch %g (%s)"
    log.info(
        message,
        _named(target.metric, target.value),
        target.elapsed_s,
        target.epoch,
        rule,
    )
