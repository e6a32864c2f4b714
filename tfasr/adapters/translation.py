"""Functions that all callbacks share: translating a framework's names into the ledger's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfasr.errors import UsageError
from tfasr.recording.recorder import Evaluation, Recorder
from tfasr.tta.metrics import BUILT_IN

Score = Callable[[], tuple[Sequence[str], Sequence[str]]]
"""Returns references and hypotheses of the validation set, by the weights as they are."""


def check_step(run: Recorder, trainer_step: int) -> None:
    """Raises UsageError if a trainer continues from another step than its recorder."""
    if trainer_step != run.steps_done:
        raise UsageError(
            f"Recorder and trainer must go on from one step. Received: {run.steps_done} of the "
            f"recorder, {trainer_step} of the trainer. Give the recorder "
            f"resumed_from_step={trainer_step}, or the trainer the checkpoint of step "
            f"{run.steps_done}."
        )


def batch_utterances(batch: Any) -> int:
    """Returns the first dimension of a batch's first tensor."""
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

    ``names`` are the ledger's with the framework's, such as ``{"accuracy": "val_acc"}``; None takes
    the logs that are a known metric once ``prefix`` is removed. ``score`` is called for texts to be
    scored. Raises UsageError if the logs lack what is named, or have nothing that is known.
    """
    if names is None:
        plain = {name.removeprefix(prefix): value for name, value in logs.items()}
        values = {name: value for name, value in plain.items() if evaluation.takes(name)}
    else:
        missing = sorted(set(names.values()) - set(logs))
        if missing:
            raise UsageError(
                f"Every evaluation must find {', '.join(missing)}. Received: {', '.join(logs)}. "
                "Log it in validation, or correct the callback's metrics."
            )
        values = {name: logs[logged] for name, logged in names.items()}
    if score is not None:
        with evaluation.decoding():
            evaluation.score(*score())
    elif not values:
        raise UsageError(
            f"An evaluation must find one of {', '.join(sorted(BUILT_IN))}, or what the recorder "
            f"declares. Received: {', '.join(logs) or 'nothing'}. Name what is what, such as "
            'metrics={"accuracy": "val_acc"}.'
        )
    evaluation.measure(**values)
