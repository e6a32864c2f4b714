"""Events for logs that are only a table of evaluations: when each was, and its result."""

from typing import Any

from tfasr.tta.clock import Event


class TableEvents:
    """Collects a run's events from the seconds that a table gives."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_s = 0.0
        self._step = 0
        for key in ("session_start", "model_creation", "run_start"):
            self._event(key)

    def train(self, seconds: float, epoch: int) -> None:
        """Books seconds of training as one step, which says nothing else."""
        self._now_s += max(0.0, seconds)
        self._step += 1
        value = {"train_s": max(0.0, seconds), "input_wait_s": 0.0, "compile_s": 0.0}
        self._event("train_step", value, epoch_num=epoch, step=self._step)

    def evaluate(self, seconds: float, epoch: int, stats: dict[str, float]) -> None:
        """Books seconds of evaluation and what it found."""
        self._event("eval_start", epoch_num=epoch)
        self._event("eval_forward_start", epoch_num=epoch)
        self._now_s += max(0.0, seconds)
        self._event("eval_forward_stop", epoch_num=epoch)
        self._event("tracked_stats", stats, epoch_num=epoch)
        self._event("eval_stop", epoch_num=epoch)

    def save(self, until_s: float) -> None:
        """Books the time up to ``until_s`` as saving and logging."""
        self._event("checkpoint_start")
        self._now_s = max(self._now_s, until_s)
        self._event("checkpoint_stop")

    def end_epoch(self, epoch: int) -> None:
        """Ends an epoch."""
        self._event("epoch_stop", epoch_num=epoch)

    def end(self) -> list[Event]:
        """Ends the run and returns its events."""
        self._event("run_stop", status="success")
        return self.events

    def _event(self, key: str, value: Any = None, **metadata: Any) -> None:
        metadata = {**metadata, "session": 0, "mono_s": self._now_s}
        self.events.append(
            {"time_ms": round(self._now_s * 1000), "key": key, "value": value, "metadata": metadata}
        )
