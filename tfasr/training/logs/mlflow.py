"""Scalars in MLflow; ``MLFLOW_TRACKING_URI`` names its server."""

from collections.abc import Sequence
from pathlib import Path

from tfasr.durable import write_whole
from tfasr.training.logs.registry import Log, required
from tfasr.tta.clock import Event

ID_FILE = "mlflow_run_id"


class MlflowLog(Log):
    """Logs metrics at optimizer steps, ``useful_seconds`` among them.

    A resumed run goes on in the MLflow run it began; steps that were lost stand there twice.

    Args:
        run_dir: the run's folder, which gives the run its name and keeps its identity.
        events: not needed here.
    """

    package = "mlflow"

    def __init__(self, run_dir: Path, events: Sequence[Event]):
        self._mlflow = required("mlflow")
        known = run_dir / ID_FILE
        if known.is_file():
            self._mlflow.start_run(run_id=known.read_text(encoding="utf-8").strip())
        else:
            run = self._mlflow.start_run(run_name=run_dir.resolve().name)
            write_whole(known, run.info.run_id + "\n")

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        self._mlflow.log_metrics({**scalars, "useful_seconds": useful_s}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()
