"""Translates frameworks' names into the ledger's; shared by all callbacks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfasr.errors import UsageError
from tfasr.recording.recorder import Evaluation, Recorder
from tfasr.tta.metrics import BUILT_IN

Score = Callable[[], tuple[Sequence[str], Sequence[str]]]
"""Returns references and hypotheses of the validation set with the current weights."""


def check_step(run: Recorder, trainer_step: int) -> None:
    """Raises UsageError if a trainer continues from another step than its recorder."""
    if trainer_step != run.steps_done:
        raise UsageError(
            f"Recorder and trainer must continue from the same step. Received: {run.steps_done} of "
            f"the recorder, {trainer_step} of the trainer. Pass resumed_from_step={trainer_step} "
            f"to the recorder, or the checkpoint of step {run.steps_done} to the trainer."
        )


def new_utterances(run: Recorder, seen: int, size: int) -> int:
    """Returns how many utterances a step adds to an epoch: the last batch may be smaller.

    Args:
        run: says how many an epoch has, if that is known.
        seen: those of the epoch before this step.
        size: those of a whole step.
    """
    if run.train_samples is None or run.train_samples <= seen:
        return size

    return min(size, run.train_samples - seen)


def batch_utterances(batch: Any) -> int:
    """Returns the length of the first tensor in a batch of lists and dicts."""
    while not hasattr(batch, "shape"):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))

    return int(batch.shape[0])


def note(
    evaluation: Evaluation,
    logs: Mapping[str, Any],
    prefix: str,
    names: Mapping[str, str] | None,
    score: Score | None,
) -> None:
    """Records the results of an open evaluation.

    Args:
        evaluation: the recorder's.
        logs: the framework's results, by its names.
        prefix: of the framework's names, such as "val_".
        names: maps the ledger's names to the framework's, such as ``{"accuracy":
            "val_acc"}``; None takes all known metrics in the logs, without ``prefix``.
        score: provides texts to score; None if the framework computes all metrics.

    Raises:
        UsageError: if a named metric isn't logged, or if there is nothing to record.
    """
    if names is None:
        plain = {name.removeprefix(prefix): value for name, value in logs.items()}
        values = {
            name: value for name, value in plain.items() if evaluation.takes(name)
        }
    else:
        missing = sorted(set(names.values()) - set(logs))
        if missing:
            raise UsageError(
                f"Every evaluation must log {', '.join(missing)}. Received: {', '.join(logs)}. "
                "Log it in validation, or correct the callback's metrics."
            )

        values = {name: logs[logged] for name, logged in names.items()}

    if score is not None:
        with evaluation.decoding():
            evaluation.score(*score())
    elif not values:
        raise UsageError(
            f"An evaluation must log one of {', '.join(sorted(BUILT_IN))}, or a metric that the "
            f"recorder declares. Received: {', '.join(logs) or 'nothing'}. Map the names, for "
            'example metrics={"accuracy": "val_acc"}.'
        )

    evaluation.measure(**values)
