"""The metrics that evaluations report: which direction is better, and how values are shown.

Error rates and losses are built in, and plug-ins register others. A run of another task
declares its own metrics in its ledger (the event ``metrics``), which `Metrics` adds to
the registered ones. Within one report a name can't have two meanings.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfasr.errors import RunError, UsageError
from tfasr.kit.registry import Registry, blamed

LOWER = "lower"
HIGHER = "higher"

Target = tuple[str, float]
"""A metric's name and the value that it must reach; error rates are fractions."""


@dataclass(frozen=True)
class Metric:
    """A number that an evaluation reports; raises UsageError for an invalid direction.

    With ``compute``, every evaluation of ``tfasr train`` and ``tfasr evaluate`` reports
    the metric, and ``tfasr verify`` computes it again. Example::

        ter = Metric(rate=True, label="TER", compute=token_error_rate)
        METRICS.register("ter", ter)
    """

    better: str = LOWER  # "lower" or "higher"
    rate: bool = False  # whether it is a fraction between 0 and 1, shown in percent
    label: str = ""  # its name in headings; by default the registered name

    # Computes it from references and hypotheses: plain texts, in the same order.
    # Ledgers store the other fields only, so two metrics that differ in nothing else
    # are equal.
    compute: Callable[[Sequence[str], Sequence[str]], float] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self):
        if self.better not in (LOWER, HIGHER):
            directions = f'"{LOWER}" or "{HIGHER}"'
            raise UsageError(
                f"A metric's better must be {directions}. Received: {self.better!r}."
            )

        if not isinstance(self.rate, bool) or not isinstance(self.label, str):
            raise UsageError(
                "A metric must have a boolean as its rate and text as its label. "
                f"Received: {self.rate!r}, {self.label!r}."
            )

        if self.compute is not None and not callable(self.compute):
            raise UsageError(
                "A metric's compute must be a function of references and hypotheses. "
                f"Received: {self.compute!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """Returns a metric's entry in a ledger, as `Metrics.declare` takes it."""
        return {"better": self.better, "rate": self.rate, "label": self.label}

    def shown(self, value: float) -> str:
        """Formats a value for log messages: rates in percent, other numbers as they are.

        Example:
            >>> METRICS["cer"].shown(0.105)
            '10.50 %'
        """
        if self.rate:
            return f"{100 * value:.2f} %"

        return f"{value:.4g}"

    @property
    def _sign(self) -> int:
        """1 if lower values are better, -1 if higher ones are."""
        return {LOWER: 1, HIGHER: -1}[self.better]

    @property
    def worst(self) -> float:
        """A value worse than any other, for diverged evaluations."""
        return self._sign * math.inf

    def met(self, value: float, target: float) -> bool:
        """Whether a value meets a target; False for NaN."""
        return self._sign * value <= self._sign * target

    def best(self, values: list[float]) -> float | None:
        """Returns the best value, leaving out NaN; None if there is no other."""
        numbers = [value for value in values if not math.isnan(value)]
        return min(numbers, key=lambda value: self._sign * value, default=None)

    def hardness(self, target: float) -> float:
        """Returns a number that is larger for a target that is harder to meet."""
        return -self._sign * target


def _check(metric: object) -> None:
    if not isinstance(metric, Metric):
        raise TypeError(f"it must be a tfasr.tta.metrics.Metric. Received: {metric!r}.")


METRICS: Registry[Metric] = Registry("metric", check=_check)
"""The registered metrics by name, in the order of reports."""

for _name, _metric in {
    "cer": Metric(rate=True, label="CER"),
    "wer": Metric(rate=True, label="WER"),
    "cer_reference": Metric(rate=True, label="CER over the reference"),
    # One minus DAWNBench's accuracies.
    "top1_error": Metric(rate=True),
    "top5_error": Metric(rate=True),
    "f1_error": Metric(rate=True),
    "loss": Metric(),
    "perplexity": Metric(),
    "accuracy": Metric(HIGHER, rate=True),
}.items():
    METRICS.register(_name, _metric)

BUILT_IN = frozenset(METRICS)
"""Names that runs need not declare."""

# What every evaluation of `tfasr train` computes, whatever is registered.
_OF_TRAINING = ("cer", "cer_reference", "wer", "loss")


def computed_metrics() -> list[str]:
    """Returns the users' metrics that evaluations compute.

    They are in the order of their registration.
    """
    return [name for name, metric in METRICS.items() if metric.compute is not None]


def evaluated_metrics() -> list[str]:
    """Returns the metrics of every evaluation of ``tfasr train``.

    These are the ones that its targets may name.
    """
    return [*_OF_TRAINING, *computed_metrics()]


def compute_metrics(
    references: Sequence[str],
    hypotheses: Sequence[str],
    names: Iterable[str] | None = None,
) -> dict[str, float]:
    """Computes the users' metrics from plain texts.

    Args:
        references: the correct transcripts.
        hypotheses: the recogniser's transcripts, in the same order.
        names: which metrics; by default all that can be computed.

    Raises:
        RunError: naming the user's file and line, if a function fails or returns no
            finite number.
    """
    if names is None:
        names = computed_metrics()

    values = {}
    for name in names:
        try:
            value = float(METRICS[name].compute(list(references), list(hypotheses)))
            if not math.isfinite(value):
                raise ValueError(f"it returned {value}, not a finite number")

        except (Exception, SystemExit) as error:
            place, cause = blamed(error)
            at = METRICS.entry(name).place
            raise RunError(
                f"The metric {name!r} ({at}) can't be computed: {cause}, at {place}."
            ) from error

        values[name] = value

    return values


class Metrics(Mapping[str, Metric]):
    """The metrics that a run or a report knows, by name.

    These are the registered ones, `METRICS`, and those that ledgers declare. Reading a
    ledger never changes the registry, so what one run declares means nothing to others.
    """

    def __init__(self) -> None:
        self._declared: dict[str, Metric] = {}
        self._places: dict[str, str] = {}  # which ledger declared them, for messages

    @classmethod
    def of(
        cls, declared: Mapping[str, Mapping[str, Any]] | None, where: object
    ) -> "Metrics":
        """Returns the registered metrics and those that one ledger declares."""
        metrics = cls()
        metrics.declare(declared, where)
        return metrics

    def declare(
        self, declared: Mapping[str, Mapping[str, Any]] | None, where: object
    ) -> None:
        """Adds a ledger's metrics.

        Args:
            declared: for each name an object with the fields of `Metric`.
            where: the ledger, for messages.

        Raises:
            UsageError: naming ``where``, if one is invalid or its name has another
                meaning already.
        """
        for name, fields in (declared or {}).items():
            try:
                metric = Metric(**fields)
            except (TypeError, UsageError) as error:
                raise UsageError(
                    f"{where} describes the metric {name!r} wrongly. {error}"
                ) from None

            # Several runs may declare the same metric, if they mean the same by it.
            if name not in self:
                self._declared[name] = metric
                self._places[name] = str(where)
            elif self[name] != metric:
                raise UsageError(
                    f"A metric's name must have one meaning. {where} has {name!r} as "
                    f"{_shown(metric)}, {self._places.get(name, 'tfasr')} as "
                    f"{_shown(self[name])}. Rename one of them, or report on the runs "
                    "separately."
                )

    def __getitem__(self, name: str) -> Metric:
        if name in self._declared:
            return self._declared[name]

        return METRICS[name]

    def __contains__(self, name: object) -> bool:
        return name in self._declared or name in METRICS

    def __iter__(self) -> Iterator[str]:
        yield from METRICS
        for name in self._declared:
            if name not in METRICS:  # a plug-in may have registered it since
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def metric_named(name: str, metrics: Mapping[str, Metric] = METRICS) -> Metric:
    """Returns a metric; an unknown one is taken as a number of which lower is better.

    Args:
        name: the metric's name.
        metrics: the known ones: the registered ones, or those of a run.
    """
    return metrics.get(name, Metric())


def _shown(metric: Metric) -> str:
    """Returns a metric's meaning in words, for messages."""
    kind = "a fraction" if metric.rate else "a number"
    meaning = f"{metric.better} is better"
    if metric.label:
        meaning += f", labelled {metric.label!r}"

    return f"{kind} ({meaning})"


def hardest(
    targets: Iterable[Target], metrics: Mapping[str, Metric] = METRICS
) -> Target:
    """Returns the target that is hardest to reach.

    ``--until decided`` decides at this one.
    """

    def hardness(target: Target) -> float:
        metric, value = target
        return metric_named(metric, metrics).hardness(value)

    return max(targets, key=hardness)


def parse_target(text: str, metrics: Mapping[str, Metric] = METRICS) -> Target:
    """Parses a target into metric and value, and checks it.

    Example:
        >>> parse_target("cer=0.10")
        ('cer', 0.1)

    Raises:
        UsageError: see `check_target`.
    """
    return check_target(*written_target(text), metrics)


def written_target(text: str) -> Target:
    """Parses a target into metric and value without checking that the metric exists.

    A run that was not read yet may declare it.

    Raises:
        UsageError: if the text is no target at all.
    """
    metric, _, value = text.partition("=")
    try:
        return metric.strip(), float(value)
    except ValueError:
        raise UsageError(
            f"A target must be written like cer=0.10. Received: {text!r}."
        ) from None


def check_target(
    metric: str, value: float, metrics: Mapping[str, Metric] = METRICS
) -> Target:
    """Checks a target and returns it.

    Raises:
        UsageError: for an unknown metric or an invalid value.
    """
    if metric not in metrics:
        raise UsageError(
            f"A target's metric must be one of {', '.join(metrics)}, or one that a run "
            f"declares. Received: {metric!r}."
        )

    must_be = "a finite number"
    lowest = -math.inf
    highest = math.inf
    if metrics[metric].rate:
        must_be = f"a fraction between 0 and 1, such as {metric}=0.10 for 10 %"
        lowest = 0
        highest = 1

    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not lowest <= value <= highest:
        raise UsageError(f"A target must be {must_be}. Received: {metric}={value!r}.")

    return metric, value
