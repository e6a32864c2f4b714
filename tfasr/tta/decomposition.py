"""Why one run takes longer to a target than another: the ratio of their times in exact factors."""

import math
from dataclasses import dataclass

from tfasr.tta.throughput import WARMUP_STEPS, steps_until, throughput
from tfasr.tta.timeline import Timeline

FACTORS = {
    "statistical_efficiency": "utterances to the target",
    "hardware_throughput": "steady training throughput",
    "input_wait": "waiting for input",
    "evaluation": "evaluation",
    "startup": "initialisation, compilation, warm-up",
    "lost_work": "lost work",
    "other": "checkpoints and all else",
}
"""The factors' names and what they are about, in the order of a waterfall."""

_OTHER = ("checkpoint", "sentences", "logging", "overhead")


@dataclass(frozen=True)
class Parts:
    """The time to a target, from the model's creation, in parts that add up to it.

    Attributes:
        utterances: trained on until the target, those of lost work excluded.
        utterances_per_s: of steady training steps, without waiting for input.
        seconds: by the names of `FACTORS` but the first two, which share ``training``:
            utterances over throughput. ``startup`` has what steps took beyond that.
    """

    utterances: float
    utterances_per_s: float
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        """The time to the target."""
        return math.fsum(self.seconds.values())


@dataclass(frozen=True)
class Decomposition:
    """The ratio of two times to a target as a product.

    Attributes:
        ratio: the second run's time over the first's.
        factors: by the names of `FACTORS`; their product is the ratio. Above 1 makes the second
            run slower. Each is weighted by its part of the time: twice the utterances make less
            than a factor 2 where training is not all there is.
        utterances_ratio: utterances to the target, second over first.
        throughput_ratio: steady throughput, second over first.
    """

    ratio: float
    factors: dict[str, float]
    utterances_ratio: float
    throughput_ratio: float


def parts_until(timeline: Timeline, until_s: float, *, warmup_steps: int = WARMUP_STEPS) -> Parts:
    """Returns the parts of a time to accuracy.

    Args:
        timeline: the run's.
        until_s: the time to the target, in seconds since the model's creation.
        warmup_steps: the first steps of each session, which are not steady.

    Raises:
        ValueError: if the run trained on no utterances by then.
    """
    whole = timeline.interval_seconds(until_s)
    before = timeline.interval_seconds(0.0)
    spent = {name: whole[name] - before[name] for name in whole}
    steps, counted = timeline.steps, steps_until(timeline, until_s)
    utterances = math.fsum(steps.amounts("utterances")[counted])
    rate = throughput(timeline, until_s=until_s, warmup_steps=warmup_steps).utterances_per_s
    if not rate:
        # Without any steady step, all steps must do, with what they compiled.
        seconds = math.fsum((steps.amounts("train_s") + steps.amounts("compile_s"))[counted])
        rate = utterances / seconds if seconds > 0 else 0.0
    if not rate or not utterances:
        raise ValueError(
            "A time to accuracy is decomposed by the utterances of its training steps. Received: "
            f"a run with {utterances:g} utterances in {counted.sum()} timed steps until then."
        )
    training = utterances / rate
    return Parts(
        utterances=utterances,
        utterances_per_s=rate,
        seconds={
            "training": training,
            "input_wait": spent["input_wait"],
            "evaluation": spent["eval_forward"] + spent["decode"],
            "startup": spent["init"] + spent["compile"] + (spent["train"] - training),
            "lost_work": spent["lost_work"],
            "other": math.fsum(spent[name] for name in _OTHER),
        },
    )


def decompose(first: Parts, second: Parts) -> Decomposition:
    """Returns why the second run's time differs from the first's.

    Each part's factor is ``exp((b - a) / L(A, B))``, with its seconds a and b, the whole times A
    and B, and their logarithmic mean L. The factors multiply to B / A without a rest, do not
    depend on an order, and turn into their inverses when the runs change places. Training's is
    split in the same way between utterances and throughput.

    Source: B. W. Ang, The LMDI approach to decomposition analysis, Energy Policy 33 (2005).
    """
    mean = _log_mean(first.total_s, second.total_s)
    logs = {
        name: (second.seconds[name] - first.seconds[name]) / mean
        for name in first.seconds
        if name != "training"
    }
    weight = _log_mean(first.seconds["training"], second.seconds["training"]) / mean
    utterances_ratio = second.utterances / first.utterances
    throughput_ratio = second.utterances_per_s / first.utterances_per_s
    logs["statistical_efficiency"] = weight * math.log(utterances_ratio)
    logs["hardware_throughput"] = -weight * math.log(throughput_ratio)
    return Decomposition(
        ratio=second.total_s / first.total_s,
        factors={name: math.exp(logs[name]) for name in FACTORS},
        utterances_ratio=utterances_ratio,
        throughput_ratio=throughput_ratio,
    )


def _log_mean(a: float, b: float) -> float:
    """Returns (b - a) / ln(b / a), and a where they are equal."""
    difference = b - a
    if difference == 0:
        return a
    return difference / math.log1p(difference / a)
