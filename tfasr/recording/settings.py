"""What a recorded run is told about itself: checked, and kept beside its ledger."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfasr.checked_files import read_object
from tfasr.durable import write_whole
from tfasr.errors import UsageError
from tfasr.run_files import RECORDER_FILE
from tfasr.tta.metrics import BUILT_IN, METRICS, Metric, declare
from tfasr.tta.targets import Target, check_target, parse_target


@dataclass(frozen=True)
class Settings:
    """What makes a run the run that it is; a resumed one must keep all of it.

    Attributes:
        targets: pairs of a metric and a value.
        target_window: the evaluations whose median must meet a target.
        metrics: for each metric that is declared, the fields of its `tfasr.tta.metrics.Metric`.
        facts: ``train_samples``, ``global_batch_size``, ``seed`` and others, as events of the
            ledger.
        comparability: what makes the run's results comparable; None where the run does not say.
        config: the configuration in the caller's own terms, JSON.
    """

    targets: list[list[Any]]
    target_window: int
    metrics: dict[str, dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    comparability: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> list[Target]:
        """The targets as metric and value."""
        return [(metric, value) for metric, value in self.targets]

    def write(self, run_dir: Path) -> None:
        """Writes them into a run's folder."""
        # A line a value, so that runs of one configuration are told apart by their seeds alone.
        write_whole(run_dir / RECORDER_FILE, json.dumps(asdict(self), indent=1) + "\n")

    def then_and_now(self, run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the settings that a run's folder was begun with, and these, by name."""
        then = read_object(
            run_dir / RECORDER_FILE, "Without it a run cannot be continued: begin a new one."
        )
        return _flat(then), _flat(json.loads(json.dumps(asdict(self))))


def settings_of(
    targets: Iterable[str | Target],
    metrics: Mapping[str, str | Metric],
    *,
    target_window: int,
    facts: Mapping[str, Any],
    comparability: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
) -> Settings:
    """Returns settings of what a user wrote.

    The arguments are those of `tfasr.Recorder`; facts that are None are left out.

    Raises:
        UsageError: for a value of another kind.
    """
    declared = {
        name: asdict(metric if isinstance(metric, Metric) else Metric(metric))
        for name, metric in metrics.items()
    }
    declare(declared, "The recorder")
    pairs = [parse_target(t) if isinstance(t, str) else check_target(*t) for t in targets]
    if not isinstance(target_window, int) or target_window < 1:
        raise UsageError(
            f"target_window must be at least 1 evaluation. Received: {target_window!r}."
        )
    stated = {name: value for name, value in facts.items() if value is not None}
    check_facts(stated)
    # What a plug-in has registered is told as well: not every reader of the run imports it.
    declared |= {name: asdict(METRICS[name]) for name, _ in pairs if name not in BUILT_IN}
    settings = Settings(
        [list(pair) for pair in pairs],
        target_window,
        declared,
        stated,
        None if comparability is None else dict(comparability),
        dict(config or {}),
    )
    _check_json(asdict(settings))
    return settings


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raises UsageError for facts that no ledger may hold."""
    for name, value in facts.items():
        if name in _COUNTS and (type(value) is not int or value < _COUNTS[name]):
            raise UsageError(
                f"{name} must be a whole number of at least {_COUNTS[name]}. Received: {value!r}."
            )
        if name in WRITTEN:
            raise UsageError(f"A recorder writes {name!r} itself: call the fact something else.")
    _check_json(dict(facts))


def _check_json(values: dict[str, Any]) -> None:
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"Facts, comparability and config of a recorder must be JSON values. {error}."
        ) from error


_BLOCKS = ("init", "run", "epoch", "eval", "eval_forward", "decode", "checkpoint", "sentences")
WRITTEN = {
    *(f"{name}_{edge}" for name in (*_BLOCKS, "session", "logging") for edge in ("start", "stop")),
    *("model_creation", "train_step", "eval_accuracy", "tracked_stats"),
    *("targets", "metrics", "comparability"),
}
"""Keys of events that are no facts."""
_COUNTS = {"train_samples": 1, "global_batch_size": 1, "num_replicas": 1, "seed": 0}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in settings.items() if name not in ("facts", "config")}
    for group in ("facts", "config"):
        values = settings.get(group)
        found |= values if isinstance(values, dict) else {group: values}
    return found
