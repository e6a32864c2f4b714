"""A run as pandas data frames, and as a notebook shows it."""

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfasr.errors import UsageError
from tfasr.tta.html_table import html_table
from tfasr.tta.timeline import metadata

if TYPE_CHECKING:
    import pandas as pd

    from tfasr.tta.run import Run

_METRICS = ("cer", "wer", "cer_reference", "loss", "top1_error", "top5_error", "f1_error")
_STEP_FIELDS = (
    "loss", "utterances", "audio_s", "frames", "padded_frames", "input_wait_s", "compile_s",
    "train_s",
)  # fmt: skip


class RunFrames:
    """What `tfasr.tta.run.Run` offers to notebooks; pandas is loaded when first asked for."""

    def to_dataframe(self: "Run", policy: str = "paper") -> "pd.DataFrame":
        """Returns the accuracy curve: a row for each evaluation that counts.

        Args:
            policy: the clock of ``elapsed_s``, see `tfasr.tta.policies`.

        Returns:
            Columns ``epoch``, ``elapsed_s`` and the metrics that were evaluated, rates as
            fractions.

        Raises:
            UsageError: if pandas is not installed.
            ValueError: if there is no such policy.
        """
        from tfasr.tta.policies import policy as policy_named

        clock = policy_named(policy)
        rows: dict[int, dict[str, float]] = {}
        for metric in _METRICS:
            for point in self.accuracy_curve(metric, clock):
                row = rows.setdefault(point.epoch, {"epoch": point.epoch})
                row |= {"elapsed_s": point.elapsed_s, metric: point.value}
        return dataframe(list(rows.values()), ["epoch", "elapsed_s"])

    def steps_to_dataframe(self: "Run") -> "pd.DataFrame":
        """Returns the training steps that count, a row each.

        Returns:
            Columns ``step``, ``epoch``, ``elapsed_s`` (since the model's creation), and what
            the ledger has of a step: ``loss``, ``utterances``, ``audio_s``, ``frames``,
            ``padded_frames``, ``input_wait_s``, ``compile_s``, ``train_s``.

        Raises:
            UsageError: if pandas is not installed.
        """
        rows = []
        for event, now, useful in zip(self.events, self.elapsed_s, self.useful, strict=True):
            if event["key"] == "train_step" and useful:
                where, value = metadata(event), event.get("value")
                stats = value if isinstance(value, dict) else {}
                rows.append(
                    {"step": where.get("step"), "epoch": where.get("epoch_num"), "elapsed_s": now}
                    | {field: stats.get(field) for field in _STEP_FIELDS}
                )
        return dataframe(rows, ["step", "epoch", "elapsed_s", *_STEP_FIELDS])

    def _repr_html_(self: "Run") -> str:
        spent = self.intervals
        whole = math.fsum(spent.values())
        about = {
            "status": self.status,
            "sessions": str(self.sessions),
            "wall": f"{whole:.1f} s",
            "targets": ", ".join(f"{metric} {value:g}" for metric, value in self.targets) or "none",
        }
        for metric, value in self.targets:
            about[f"time to {metric} {value:g}"] = self.time_to_accuracy(**{metric: value}).summary
        about |= {
            name.replace("_", " "): f"{seconds:.1f} s, {100 * seconds / whole:.1f} %"
            for name, seconds in spent.items()
            if seconds
        }
        return html_table(["", ""], [[name, text] for name, text in about.items()], self.name)


def dataframe(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> "pd.DataFrame":
    """Returns rows as a pandas data frame; ``columns`` are there even if there is no row.

    Raises:
        UsageError: if pandas is not installed; it says how to get it.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise UsageError(
            "A data frame must have pandas, which is not installed. Install it with: "
            "pip install 'tfasr[notebook]'."
        ) from error
    more = dict.fromkeys(name for row in rows for name in row)
    return pandas.DataFrame(list(rows), columns=list(dict.fromkeys([*columns, *more])))
