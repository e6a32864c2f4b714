"""Targets of a run: announced when they are met, forecast before, and its end if it's late.

A target is a pair of a metric and a value, such as ``("cer", 0.1)``, and the rule by
which it is met is `TrainingConfig.target_window`. `tfasr.tta.policies` states the rule
and `tfasr.tta.forecast` makes forecasts; this hook follows both while a run trains.
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
    """A target that a run has met."""

    metric: str
    value: float  # to reach; a fraction if the metric is a rate
    epoch: float  # at whose evaluation it was met
    elapsed_s: float  # from the model's creation until that was known


class WatchTargets(Hook):
    """Announces and forecasts targets, and ends the run when its settings say so.

    Each target is logged when its rule is first met, and forecast after each
    evaluation. A report reads the time at the end of the epoch, right after the
    announcement.

    A run is given up at the end of an epoch if its budget is spent, or if two
    evaluations in a row forecast with 95 % certainty that some target will be met only
    after it. The ledger then gets ``given_up``, and the time to the target is censored:
    it is longer than what was seen.

    Attributes:
        met: the targets that were met, in the order in which they were.
        forecasts: one for each target, after the last evaluation.
    """

    def __init__(self):
        self.met: list[MetTarget] = []
        self.forecasts: list[Forecast] = []
        # The curve of each target's metric so far.
        self._points: dict[str, list[AccuracyPoint]] = {}
        self._seen = 0  # how many evaluations of the run's history
        # Whether the forecasts after the evaluation before the last found it too late.
        self._late_before = False

    def on_train_begin(self, run: TrainingRun) -> None:
        """Takes over what earlier sessions of the run have reached."""
        training = run.training
        self._seen = len(run.state.history)

        self._points = {metric: [] for metric, _ in training.targets}
        if self._seen and training.targets:
            earlier = load_run(run.run_dir)
            for metric, value in training.targets:
                self._points[metric] = earlier.accuracy_curve(metric)
                result = earlier.time_to_accuracy(
                    **{metric: value}, window=training.target_window
                )
                if result.reached:
                    self.met.append(
                        MetTarget(metric, value, result.epoch, result.seconds)
                    )

        self._forecast(run)
        self._stop_if_wanted(run)

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        self._follow_history(run)

    def on_part_end(self, run: TrainingRun, epoch: float) -> None:
        self._follow_history(run)
        self._stop_if_wanted(run)

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        is_evaluated = self._follow_history(run)
        self._stop_if_wanted(run)

        limit_h = run.training.stop_after_hours
        is_over = limit_h and run.clock.elapsed_s() >= 3600 * limit_h
        if is_over and not run.stop_requested:
            log.info(
                "stopping at the end of epoch %d: %g hours are over", epoch, limit_h
            )
            run.request_stop()

        budget_s = 3600 * run.training.give_up_after_hours
        if budget_s and not run.stop_requested:
            self._give_up_if_late(run, epoch, budget_s, is_evaluated=is_evaluated)

    def on_train_end(self, run: TrainingRun) -> None:
        self._follow_history(run)

    def _follow_history(self, run: TrainingRun) -> bool:
        """Announces the targets that new evaluations meet, and forecasts the others.

        Returns whether there were new evaluations.
        """
        history = run.state.history
        window = run.training.target_window
        if len(history) == self._seen:
            return False

        per_epoch = run.training.evaluations_per_epoch
        for number in range(self._seen + 1, len(history) + 1):
            scores = history[number - 1]
            epoch = scores.get("epoch", number)
            elapsed_s = run.clock.elapsed_s()

            already_met = {(target.metric, target.value) for target in self.met}
            for metric, value in run.training.targets:
                target = (metric, value)
                if target in already_met:
                    continue

                if rule_met(history[:number], [target], window, per_epoch):
                    met = MetTarget(metric, value, epoch, elapsed_s)
                    self.met.append(met)
                    _announce(met, window)

            for metric, points in self._points.items():
                value = scores.get(metric, math.nan)
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
        if not training.stop_at_targets:
            return

        are_met = rule_met(
            run.state.history,
            training.targets,
            training.target_window,
            training.evaluations_per_epoch,
        )
        if are_met:
            run.request_stop()

    def _give_up_if_late(
        self, run: TrainingRun, epoch: int, budget_s: float, *, is_evaluated: bool
    ) -> None:
        """Ends the run if its budget is spent, or twice forecast to be missed.

        Args:
            run: whose targets are watched.
            epoch: that ends now.
            budget_s: seconds since the model's creation.
            is_evaluated: whether this epoch's scores are known, so that the forecasts
                are new.
        """
        missing = [target for target in self.forecasts if target.met_s is None]
        late = [target for target in missing if (target.not_before_s or 0.0) > budget_s]
        spent = missing and run.clock.elapsed_s() >= budget_s
        late_twice = late and is_evaluated and self._late_before
        if spent or late_twice:
            target = (late or missing)[0]
            given_up = GivenUp(
                budget_s=budget_s,
                metric=target.metric,
                target=target.target,
                not_before_s=target.not_before_s,
            )
            run.ledger.write(given_up, epoch_num=epoch)

            limit = f"the budget of {budget_s / 3600:g} h"
            cause = f"will miss {limit} (95 % certain)"
            if spent:
                cause = f"did not meet {limit}"

            log.info(
                "given up at the end of epoch %d: %s %s",
                epoch,
                _named(target.metric, target.target),
                cause,
            )
            run.request_stop()

        if is_evaluated:
            self._late_before = bool(late)


def _named(metric: str, value: float) -> str:
    """Formats a target, such as "CER 10 %"."""
    kind = metric_named(metric)
    label = kind.label or metric.upper().replace("_", " ")
    return f"{label} {100 * value:g} %" if kind.rate else f"{label} {value:g}"


def _announce(target: MetTarget, window: int) -> None:
    rule = f"median of the last {window} epochs" if window > 1 else "first evaluation"

    log.info(
        "target met: %s, %.1f s after the creation of the model, at epoch %g (%s)",
        _named(target.metric, target.value),
        target.elapsed_s,
        target.epoch,
        rule,
    )
