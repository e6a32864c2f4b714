"""Why runs take longer to a target than others: the ratio of their times in exact factors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.ledger.intervals import EVALUATION
from tfasr.ledger.timeline import Timeline

# How fast a run trained once it was warm, and how much of its batches was padding.

WARMUP_STEPS = 10


@dataclass(frozen=True)
class Throughput:
    """The steady speed of a run, or of its beginning; None where nothing was left to measure.

    Steady are the steps that count (those of lost work do not), without the first steps of each
    session and without those that traced a new shape. All rates of a report are those of
    steady steps over their own seconds (``train_s``); what they waited for input is apart.

    Attributes:
        utterances_per_s: utterances over the seconds of training.
        audio_s_per_s: seconds of audio over the same seconds.
        input_wait_share: of the seconds of training and of waiting for input together, the share
            spent waiting.
        padding_efficiency: real over padded frames, of all steps that count.
        mean_batch: utterances per step, of all steps that count: the last batches of an epoch are
            smaller than the nominal batch.
        steps: the steady steps, which were measured.
        warmup_steps: the first steps of each session, which were left out.
        traced_steps: further steps that were left out because they compiled a new shape.
    """

    utterances_per_s: float | None
    audio_s_per_s: float | None
    input_wait_share: float | None
    padding_efficiency: float | None
    mean_batch: float | None
    steps: int
    warmup_steps: int
    traced_steps: int


def throughput(
    timeline: Timeline, *, until_s: float | None = None, warmup_steps: int = WARMUP_STEPS
) -> Throughput:
    """Returns a run's steady throughput.

    Args:
        until_s: leave out steps that ended after this time, in seconds since the model's
            creation; None takes the whole run.
        warmup_steps: how many steps at the beginning of each session are left out.

    Raises:
        ValueError: if ``warmup_steps`` is negative.
    """
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 or more. Received: {warmup_steps}.")
    steps = timeline.steps
    counted = steps_until(timeline, until_s)
    warm = counted & (steps.places >= warmup_steps)
    steady = warm & ~steps.compiled
    train_s = _sum(steps.amounts("train_s"), steady)
    wait_s = _sum(steps.amounts("input_wait_s"), steady)
    rates = [
        # Logs of other makers know no utterances: that is unknown, not none.
        _ratio(_sum(steps.amounts(name), steady), train_s) if steps.states(name) else None
        for name in ("utterances", "audio_s")
    ]
    frames = [_sum(steps.amounts(name), counted) for name in ("frames", "padded_frames")]
    number = int(counted.sum())
    utterances = _sum(steps.amounts("utterances"), counted)
    return Throughput(
        *rates,
        input_wait_share=_ratio(wait_s, wait_s + train_s),
        padding_efficiency=_ratio(*frames),
        mean_batch=_ratio(utterances, number) if steps.states("utterances") else None,
        steps=int(steady.sum()),
        warmup_steps=number - int(warm.sum()),
        traced_steps=int(warm.sum() - steady.sum()),
    )


def steps_until(timeline: Timeline, until_s: float | None) -> np.ndarray:
    """Returns which of the steps that count ended by a time since the model's creation."""
    steps = timeline.steps
    if until_s is None:
        return np.ones(len(steps), dtype=bool)
    return steps.at_us <= timeline.zero_us + round(until_s * 1e6)


def _sum(values: np.ndarray, chosen: np.ndarray) -> float:
    return math.fsum(values[chosen].tolist())


def _ratio(amount: float, total: float) -> float | None:
    return amount / total if total > 0 else None


FACTORS = {
    "statistical_efficiency": "amount of training to the target",
    "hardware_throughput": "steady training throughput",
    "input_wait": "waiting for input, per utterance",
    "evaluation": "cost of an evaluation",
    "startup": "initialisation, compilation, warm-up",
    "lost_work": "lost work",
    "other": "checkpoints and all else, per epoch",
}
"""The factors' names and what they are about, in the order of a waterfall."""

# Parts that are a number, which statistical efficiency decides, times a cost.
_NUMBERS = {
    "training": "utterances",
    "input_wait": "utterances",
    "evaluation": "evaluations",
    "other": "epochs",
}
_OTHER = ("averaging", "checkpoint", "sentences", "logging", "overhead")


@dataclass(frozen=True)
class Parts:
    """The time to a target, from the model's creation, in parts that add up to it.

    Attributes:
        utterances: trained on until the target, those of lost work excluded.
        utterances_per_s: of steady training steps, without waiting for input.
        evaluations: that had begun by then.
        epochs: that had begun by then.
        seconds: by the names of `FACTORS` but the first two, which share ``training``:
            utterances over throughput. ``startup`` has what steps took beyond that.
    """

    utterances: float
    utterances_per_s: float
    evaluations: int
    epochs: int
    seconds: dict[str, float]

    def number_of(self, name: str) -> float:
        """Returns how many times a part of ``seconds`` was paid: that is its number."""
        return getattr(self, _NUMBERS[name])

    @property
    def total_s(self) -> float:
        """The time to the target."""
        return math.fsum(self.seconds.values())


@dataclass(frozen=True)
class Decomposition:
    """The ratio of two groups' times to a target as a product; a group may be a single run.

    Attributes:
        ratio: the second group's time over the first's, of geometric means, from the creation of
            the model.
        factors: by the names of `FACTORS`; their product is the ratio. Above 1 makes the second
            group slower. Each is weighted by its part of the time: twice the utterances make less
            than a factor 2 where training is not all there is.
        utterances_ratio: utterances to the target, second over first, of geometric means.
        throughput_ratio: steady throughput to the target, likewise.
        evaluations_ratio: evaluations to the target, likewise; None where a run had none.
        runs: how many runs of each group it is about.
        never: how many runs of each never arrived, and are left out.
    """

    ratio: float
    factors: dict[str, float]
    utterances_ratio: float
    throughput_ratio: float
    evaluations_ratio: float | None
    runs: tuple[int, int]
    never: tuple[int, int]


def parts_until(timeline: Timeline, until_s: float, *, warmup_steps: int = WARMUP_STEPS) -> Parts:
    """Returns the parts of a time to accuracy.

    Args:
        until_s: the time to the target, in seconds since the model's creation.
        warmup_steps: the first steps of each session, which are not steady.

    Raises:
        ValueError: if the run trained on no utterances by then.
    """
    whole = timeline.interval_seconds(until_s)
    before = timeline.interval_seconds(0.0)
    spent = {name: whole[name] - before[name] for name in whole}
    steps, counted = timeline.steps, steps_until(timeline, until_s)
    utterances = math.fsum(steps.amounts("utterances")[counted].tolist())
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
        evaluations=_numbers_until(timeline, until_s, "eval_start"),
        epochs=_numbers_until(timeline, until_s, "epoch_start", "epoch_stop"),
        seconds={
            "training": training,
            "input_wait": spent["input_wait"],
            "evaluation": math.fsum(spent[name] for name in EVALUATION),
            "startup": spent["init"] + spent["compile"] + (spent["train"] - training),
            "lost_work": spent["lost_work"],
            "other": math.fsum(spent[name] for name in _OTHER),
        },
    )


def decompose(
    first: Sequence[Parts], second: Sequence[Parts], *, never: tuple[int, int] = (0, 0)
) -> Decomposition:
    """Returns why the second group's times differ from the first's, in geometric means.

    Between two runs, each part's factor is ``exp((b - a) / L(A, B))``, with its seconds a and b,
    the whole times A and B, and their logarithmic mean L. The factors multiply to B / A without a
    rest, do not depend on an order, and turn into their inverses when the runs change places. A
    part that is a number times its cost is split in the same way, and the numbers of all such
    parts are statistical efficiency. Of groups a factor is the geometric mean over all pairs of
    runs, which keeps all of that: the factors multiply to the ratio of the geometric means.

    Args:
        first: of the runs of the group that is compared with, at least one.
        second: of the other's.
        never: how many runs of each never arrived and have no parts.

    Raises:
        ValueError: if a group is empty, or a time is not larger than 0.

    Source: B. W. Ang, The LMDI approach to decomposition analysis, Energy Policy 33 (2005).
    """
    if not first or not second or min(parts.total_s for parts in (*first, *second)) <= 0:
        raise ValueError("Times must be larger than 0 to be decomposed. Received: none, or 0 s.")
    whole = _pairs(first, second, lambda parts: parts.total_s)
    mean = _log_mean(*whole)
    logs = dict.fromkeys(FACTORS, 0.0)
    for name in first[0].seconds:
        seconds = _pairs(first, second, lambda parts, name=name: parts.seconds[name])
        log = (seconds[1] - seconds[0]) / mean
        if name in _NUMBERS:
            numbers = _pairs(first, second, lambda parts, name=name: parts.number_of(name))
            of_number = _log_mean(*seconds) / mean * _log_ratio(*numbers)
            logs["statistical_efficiency"] += float(np.mean(of_number))
            log = log - of_number
        factor = "hardware_throughput" if name == "training" else name
        logs[factor] += float(np.mean(log))
    return Decomposition(
        ratio=_geometric_ratio(first, second, lambda parts: parts.total_s),
        factors={name: math.exp(log) for name, log in logs.items()},
        utterances_ratio=_geometric_ratio(first, second, lambda parts: parts.utterances),
        throughput_ratio=_geometric_ratio(first, second, lambda parts: parts.utterances_per_s),
        evaluations_ratio=_geometric_ratio(first, second, lambda parts: parts.evaluations),
        runs=(len(first), len(second)),
        never=never,
    )


def _numbers_until(timeline: Timeline, until_s: float, *keys: str) -> int:
    until_us = timeline.zero_us + round(until_s * 1e6)
    named = [
        timeline.metadata[index].get("epoch_num", f"event {index}")
        for index in timeline.of(*keys)
        if timeline.useful[index] and timeline.clock_us[index] <= until_us
    ]
    return len(set(named))


_Amount = Callable[[Parts], float]


def _pairs(
    first: Sequence[Parts], second: Sequence[Parts], amount: _Amount
) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([amount(parts) for parts in first], dtype=float)[:, None],
        np.array([amount(parts) for parts in second], dtype=float)[None, :],
    )


def _geometric_ratio(
    first: Sequence[Parts], second: Sequence[Parts], amount: _Amount
) -> float | None:
    amounts = [[amount(parts) for parts in group] for group in (first, second)]
    if min(map(min, amounts)) <= 0:
        return None
    means = [math.fsum(map(math.log, group)) / len(group) for group in amounts]
    return math.exp(means[1] - means[0])


def _log_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns ln(b / a); 0 where either is 0: what is there once only is no number of times."""
    both = (a > 0) & (b > 0)
    return np.log(np.where(both, b, 1.0) / np.where(both, a, 1.0))


def _log_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns (b - a) / ln(b / a), a where they are equal, and 0 where either is 0 or less."""
    both = (a > 0) & (b > 0)
    a, difference = np.where(both, a, 1.0), np.where(both, b - a, 0.0)
    equal = difference == 0
    found = np.where(equal, a, difference) / np.where(equal, 1.0, np.log1p(difference / a))
    return np.where(both, found, 0.0)
