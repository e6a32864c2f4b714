"""What a report calls its runs and its targets."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tfasr.tta.metrics import METRICS, metric_named
from tfasr.tta.targets import Target


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Returns a short name for each folder: its own, with as many parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    depths = [1] * len(parts)
    names = ["/".join(own[-1:]) for own in parts]
    for depth in range(2, max(map(len, parts), default=0) + 1):
        counts = Counter(names)
        if max(counts.values()) == 1:
            break
        depths = [
            depth if counts[name] > 1 else old for name, old in zip(names, depths, strict=True)
        ]
        names = ["/".join(own[-deep:]) for own, deep in zip(parts, depths, strict=True)]
    return names


def merged_targets(of_runs: Iterable[Sequence[Target]]) -> list[Target]:
    """Returns every target once: metrics in their usual order, the easiest value first."""
    targets = {target for targets in of_runs for target in targets}
    return sorted(
        targets, key=lambda target: (_rank(target[0]), metric_named(target[0]).hardness(target[1]))
    )


def target_label(metric: str, value: float) -> str:
    """Returns a target as people read it: "CER 10 %"."""
    if not metric_named(metric).rate:
        return f"{metric_label(metric)} {value:g}"
    return f"{metric_label(metric)} {100 * value:.4g} %"


def metric_label(metric: str) -> str:
    return metric_named(metric).label or metric.replace("_", " ")


def sentence(text: str) -> str:
    """Returns a text that begins a line, as "Accuracy 90 %" for "accuracy 90 %"."""
    return text[:1].upper() + text[1:]


def _rank(metric: str) -> tuple[int, str]:
    known = list(METRICS)
    return (known.index(metric) if metric in known else len(known), metric)
