"""A run's folder: who may write it, and how its record begins and ends."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.errors import UsageError
from tfasr.ledger import Ledger, read_events
from tfasr.run_files import EVENTS_FILE, EXPERIMENT_FILE, RUN_FILE
from tfasr.telemetry.system import describe_system
from tfasr.training.experiment import Experiment


def claim_run_folder(run_dir: Path, experiment: Experiment, resume: bool) -> int:
    """Returns the session's number; refuses a folder that holds another run."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if not (run_dir / EVENTS_FILE).exists():
        return 0
    if not resume:
        raise UsageError(
            f"--run_dir must not hold a run yet. Received: {run_dir}, which holds one. Continue it "
            "with --resume, or choose another folder."
        )
    saved = json.loads((run_dir / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    # What an older tfasr did not know yet was as it is by default.
    defaults = Experiment().to_json()
    then = {group: {**defaults[group], **values} for group, values in saved.items()}
    wanted = json.loads(json.dumps(experiment.to_json()))
    for content in (then, wanted):
        # Keras numbers the optimizers that a process makes.
        content["training"]["optimizer"].pop("name", None)
    differing = [
        f"{group}.{name}: {then[group].get(name)!r} then, {wanted[group].get(name)!r} now"
        for group in wanted
        for name in wanted[group]
        if then[group].get(name) != wanted[group].get(name)
    ]
    if differing:
        raise UsageError(
            f"A resumed run must keep its configuration. {run_dir} differs in: "
            f"{'; '.join(differing)}. Use the same --gin_file and bindings, or another --run_dir."
        )
    sessions = [event["metadata"].get("session", 0) for event in read_events(run_dir)]
    return max(sessions, default=-1) + 1


@contextlib.contextmanager
def booked(ledger: Ledger) -> Iterator[None]:
    """Writes how the run ended, unless it is killed."""
    try:
        yield
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            ledger.event(
                "run_stop", event_type="INTERVAL_END", status="aborted", reason=reason[:500]
            )
        raise
    ledger.event("run_stop", event_type="INTERVAL_END", status="success")


def record_sources(
    run_dir: Path, shard_dir: Path, statistics: tuple[np.ndarray, np.ndarray]
) -> None:
    """Writes ``run.json``: where the shards were, the machine, the features' statistics.

    Args:
        run_dir: the run's folder.
        shard_dir: its shards, for later evaluations.
        statistics: mean and deviation of each feature ``(num_features,)``.
    """
    mean, deviation = statistics
    content = {
        "shard_dir": str(shard_dir.resolve()),
        "system": describe_system(),
        "feature_statistics": {"mean": mean.tolist(), "deviation": deviation.tolist()},
    }
    (run_dir / RUN_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def recorded_shard_dir(run_dir: Path) -> Path:
    """Returns where a run's shards were."""
    return Path(_read_run(run_dir)["shard_dir"])


def load_feature_statistics(run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and deviation of the training split's features, float32 ``(num_features,)``."""
    statistics = _read_run(run_dir)["feature_statistics"]
    return tuple(np.asarray(statistics[name], np.float32) for name in ("mean", "deviation"))


def _read_run(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
