"""What an evaluation measures, by name: which way is better, and how it is written.

Error rates and losses are built in. A run of any other task declares its own in its ledger (the
event ``metrics``); reading the run makes them known here, and a name means one thing in a process.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.registry import Registry

LOWER, HIGHER = "lower", "higher"
Target = tuple[str, float]


@dataclass(frozen=True)
class Metric:
    """A number that an evaluation reports; raises UsageError for another direction."""

    better: str = LOWER  # "lower" or "higher"
    rate: bool = False  # whether it is a fraction between 0 and 1, which tables show in percent
    label: str = ""  # its name in headings; by default the name it is registered under

    def __post_init__(self):
        if self.better not in (LOWER, HIGHER):
            directions = f'"{LOWER}" or "{HIGHER}"'
            raise UsageError(f"A metric must be better {directions}. Received: {self.better!r}.")
        if not isinstance(self.rate, bool) or not isinstance(self.label, str):
            raise UsageError(
                "A metric must have true or false as its rate, and a text as its label. Received: "
                f"{self.rate!r}, {self.label!r}."
            )

    @property
    def worst(self) -> float:
        """A value that is worse than any, for diverged evaluations."""
        return math.inf if self.better == LOWER else -math.inf

    def met(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as a target."""
        return value <= target if self.better == LOWER else value >= target

    def best(self, values: list[float]) -> float | None:
        known = [value for value in values if not math.isnan(value)]
        choose = min if self.better == LOWER else max
        return choose(known, default=None)

    def hardness(self, target: float) -> float:
        return -target if self.better == LOWER else target


def _check(metric: object) -> None:
    if not isinstance(metric, Metric):
        raise TypeError(f"it must be a tfasr.tta.metrics.Metric. Received: {metric!r}.")


METRICS: Registry[Metric] = Registry("metric", check=_check)
"""All metrics by name, in the order of reports; declared ones come last."""

for _name, _metric in {
    "cer": Metric(rate=True, label="CER"),
    "wer": Metric(rate=True, label="WER"),
    "cer_reference": Metric(rate=True, label="CER over the reference"),
    # What DAWNBench's accuracies leave.
    "top1_error": Metric(rate=True),
    "top5_error": Metric(rate=True),
    "f1_error": Metric(rate=True),
    "loss": Metric(),
    "perplexity": Metric(),
    "accuracy": Metric(HIGHER, rate=True),
}.items():
    METRICS.register(_name, _metric)

BUILT_IN = frozenset(METRICS)
"""The names that no run has to declare."""

_declared: dict[str, str] = {}


def metric_named(name: str) -> Metric:
    """Returns a metric; by default, for an unknown name, a number that is better lower."""
    return METRICS.get(name, Metric())


def declared() -> dict[str, dict[str, Any]]:
    """Returns the metrics that runs have declared so far, for another process to declare."""
    return {name: asdict(METRICS[name]) for name in _declared}


def declare(metrics: Mapping[str, Mapping[str, Any]] | None, where: object) -> None:
    """Makes a ledger's metrics known: for each name an object with the fields of `Metric`.

    Raises UsageError, naming ``where``, if that isn't so or the name already means something else.
    """
    for name, fields in (metrics or {}).items():
        try:
            metric = Metric(**fields)
        except (TypeError, UsageError) as error:
            raise UsageError(f"{where} must describe the metric {name!r}. {error}") from None
        if name not in METRICS:
            METRICS.register(name, metric)
            _declared[name] = str(where)
        elif METRICS[name] != metric:
            raise UsageError(
                f"A metric's name must mean one thing. {where} has {name!r} as {_shown(metric)}, "
                f"{_declared.get(name, 'tfasr')} as {_shown(METRICS[name])}. Rename one of them, "
                "or report on the runs separately."
            )


def _shown(metric: Metric) -> str:
    kind = "a fraction" if metric.rate else "a number"
    label = f", labelled {metric.label!r}" if metric.label else ""
    return f"{kind} that is better {metric.better}{label}"


def parse_target(text: str) -> Target:
    """Returns metric and value of a target written as ``cer=0.10``, checked by `check_target`."""
    return check_target(*written_target(text))


def written_target(text: str) -> Target:
    """Returns metric and value as written, without checking that the metric is known."""
    metric, _, value = text.partition("=")
    try:
        return metric.strip(), float(value)
    except ValueError:
        raise UsageError(f"A target must be written like cer=0.10. Received: {text!r}.") from None


def check_target(metric: str, value: float) -> Target:
    """Returns a target; raises UsageError for an unknown metric or an impossible value."""
    if metric not in METRICS:
        raise UsageError(
            f"A target's metric must be one of {METRICS.listed()}, or one that a run declares. "
            f"Received: {metric!r}."
        )
    number = isinstance(value, int | float) and not isinstance(value, bool)
    rate = METRICS[metric].rate
    if not number or not math.isfinite(value) or (rate and not 0 <= value <= 1):
        fraction = f"a fraction between 0 and 1, such as {metric}=0.10 for 10 %"
        must_be = fraction if rate else "a finite number"
        raise UsageError(f"A target must be {must_be}. Received: {metric}={value!r}.")
    return metric, value
