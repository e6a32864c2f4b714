"""Why some runs take longer to a target than others: the ratio of times as exact factors.

`parts_until` cuts one run's time to a target into parts that add up to it; `decompose`
compares the parts of two groups of runs. `throughput` says how fast a run trains.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.ledger.intervals import EVALUATION, WORKERS, evaluated_epoch
from tfasr.ledger.timeline import Timeline

WARMUP_STEPS = 10
"""The first steps of each session, which are slower: caches and buffers fill up."""

FACTORS = {
    "statistical_efficiency": "amount of training to the target",
    "hardware_throughput": "steady training throughput",
    "host": "what the machine took from its steps",
    "input_wait": "waiting for input, per utterance",
    "evaluation": "evaluation, per utterance",
    "workers": "exchange with other workers and waiting for them, per utterance",
    "startup": "initialisation, compilation, warm-up",
    "lost_work": "lost work",
    "other": "checkpoints and all else, per utterance",
}
"""The factors' names and labels, in the order of a waterfall chart."""

# Parts that grow with training: the utterances trained on (statistical efficiency)
# times a cost per utterance, which includes how often a run evaluates or saves.
_PER_UTTERANCE = ("training", "input_wait", "evaluation", "workers", "other")

# The intervals of the part "other".
_OTHER = ("averaging", "checkpoint", "sentences", "logging", "overhead")


@dataclass(frozen=True)
class Throughput:
    """The steady speed of a run, or of its beginning; None if no steps were steady.

    Steady are all steps except lost work, the first steps of each session and steps
    that traced a new shape. Rates divide by the steps' own seconds (``train_s``),
    without waiting for input.
    """

    utterances_per_s: float | None
    audio_s_per_s: float | None

    # Waiting as a share of training and waiting together.
    input_wait_share: float | None

    # Real over padded frames, in all steps but lost work.
    padding_efficiency: float | None

    # Utterances per step, in all steps but lost work; the last batches of an epoch are
    # smaller.
    mean_batch: float | None
    steps: int  # number of steady steps
    warmup_steps: int  # first steps of sessions, left out
    traced_steps: int  # further steps left out because they compiled a new shape


def throughput(
    timeline: Timeline,
    *,
    until_s: float | None = None,
    warmup_steps: int = WARMUP_STEPS,
) -> Throughput:
    """Returns a run's steady throughput.

    Args:
        timeline: the run.
        until_s: seconds after the model's creation, up to which steps count; None for
            all.
        warmup_steps: how many first steps of each session to leave out.
    """
    steps = timeline.steps
    counted, warm, steady = _steady_steps(timeline, until_s, warmup_steps)
    train_s = _sum(steps.amounts("train_s"), steady)
    wait_s = _sum(steps.amounts("input_wait_s"), steady)

    # Other programs' logs may not record these: unknown, not 0.
    utterances_per_s = None
    audio_s_per_s = None
    mean_batch = None
    number = int(counted.sum())
    if steps.states("audio_s"):
        audio_s_per_s = _ratio(_sum(steps.amounts("audio_s"), steady), train_s)

    if steps.states("utterances"):
        utterances = steps.amounts("utterances")
        utterances_per_s = _ratio(_sum(utterances, steady), train_s)
        mean_batch = _ratio(_sum(utterances, counted), number)

    return Throughput(
        utterances_per_s=utterances_per_s,
        audio_s_per_s=audio_s_per_s,
        input_wait_share=_ratio(wait_s, wait_s + train_s),
        padding_efficiency=_ratio(
            _sum(steps.amounts("frames"), counted),
            _sum(steps.amounts("padded_frames"), counted),
        ),
        mean_batch=mean_batch,
        steps=int(steady.sum()),
        warmup_steps=number - int(warm.sum()),
        traced_steps=int(warm.sum() - steady.sum()),
    )


def _steady_steps(
    timeline: Timeline, until_s: float | None, warmup_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns masks of the steps: those until a time, of them the warm, the steady.

    Args:
        timeline: the run.
        until_s: seconds after the model's creation; None for all steps.
        warmup_steps: how many first steps of each session aren't warm.
    """
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be 0 or more. Received: {warmup_steps}.")

    until_us = math.inf
    if until_s is not None:
        until_us = timeline.zero_us + round(until_s * 1e6)

    counted = timeline.steps.at_us <= until_us
    warm = counted & (timeline.steps.places >= warmup_steps)
    return counted, warm, warm & ~timeline.steps.compiled


def _sum(values: np.ndarray, chosen: np.ndarray) -> float:
    """Returns the exact sum of the chosen values, whatever their order."""
    return math.fsum(values[chosen].tolist())


def _ratio(amount: float, total: float) -> float | None:
    """Returns a share or rate; None if there is nothing to divide by."""
    if total > 0:
        return amount / total

    return None


@dataclass(frozen=True)
class Parts:
    """The time from the model's creation to a target, in parts that add up to it."""

    utterances: float  # trained on until the target, without lost work
    utterances_per_s: float  # of steady training steps, without waiting for input
    evaluations: int  # started before the target was met
    epochs: int  # started before the target was met

    # By name in `FACTORS`; ``training`` replaces the first three.
    seconds: dict[str, float]

    # What the machine gave the steps of the processors that they wanted.
    host_share: float = 1.0

    @property
    def total_s(self) -> float:
        """The time to the target."""
        return math.fsum(self.seconds.values())


@dataclass(frozen=True)
class Decomposition:
    """The ratio of two groups' times to a target as a product of factors.

    A group may be a single run. All ratios are second over first, of geometric means.
    """

    ratio: float  # of times from the creation of the model

    # By the names of `FACTORS`; their product is the ratio, and above 1 slows the
    # second group.
    factors: dict[str, float]

    utterances_ratio: float  # of utterances to the target
    throughput_ratio: float  # of steady throughput to the target

    # Of evaluations to the target; None if a run had no evaluation.
    evaluations_ratio: float | None
    runs: tuple[int, int]  # runs of each group
    never: tuple[int, int]  # runs of each group that never reached the target, left out


def parts_until(
    timeline: Timeline,
    until_s: float,
    *,
    warmup_steps: int = WARMUP_STEPS,
    host_share: float = 1.0,
) -> Parts:
    """Splits a time to accuracy into its parts.

    Args:
        timeline: the run.
        until_s: the time, in seconds after the model's creation.
        warmup_steps: how many first steps of each session aren't steady.
        host_share: what the machine gave the steps of the processors that they wanted
            (`tfasr.tta.host.HostUse.share`), 1 if unknown.

    Raises:
        ValueError: if the run trained on no utterances by then.
    """
    before = timeline.interval_seconds(0.0)
    until = timeline.interval_seconds(until_s)
    spent = {name: seconds - before[name] for name, seconds in until.items()}

    counted, _, steady = _steady_steps(timeline, until_s, warmup_steps)
    of_step = timeline.steps.amounts("utterances")
    train_s = timeline.steps.amounts("train_s")
    utterances = _sum(of_step, counted)
    rate = _ratio(_sum(of_step, steady), _sum(train_s, steady))
    if not rate:
        # Without steady steps, use all steps with their compile time.
        all_s = train_s + timeline.steps.amounts("compile_s")
        rate = _ratio(utterances, _sum(all_s, counted))

    if not rate or not utterances:
        raise ValueError(
            "Only a time to accuracy with training steps can be decomposed. Received: a "
            f"run with {utterances:g} utterances in {counted.sum()} timed steps until "
            "then."
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
            "workers": math.fsum(spent[name] for name in WORKERS),
            "startup": spent["init"] + spent["compile"] + (spent["train"] - training),
            "lost_work": spent["lost_work"],
            "other": math.fsum(spent[name] for name in _OTHER),
        },
        host_share=host_share,
    )


def decompose(
    first: Sequence[Parts], second: Sequence[Parts], *, never: tuple[int, int] = (0, 0)
) -> Decomposition:
    """Splits the ratio of two groups' times into factors.

    Between two runs, each part's factor is ``exp((b - a) / L(A, B))``, with its seconds
    a and b, the total times A and B, and their logarithmic mean L. The factors multiply
    to exactly B / A, don't depend on the parts' order, and invert if the runs swap. A
    part that grows with training is split in the same way into utterances and seconds
    per utterance; the utterances of all such parts are statistical efficiency.
    Training's seconds per utterance are split once more, into those of an undisturbed
    machine and what the machine took. For groups, a factor is the geometric mean over
    all pairs of runs, which keeps these properties.

    Args:
        first: the parts of each run of a group.
        second: those of another group.
        never: how many runs of each group never reached the target and so have no
            parts.

    Raises:
        ValueError: if a group is empty or a time is not positive.

    Source: B. W. Ang, The LMDI approach to decomposition analysis, Energy Policy 33
    (2005).
    """
    empty = not first or not second
    if empty or min(parts.total_s for parts in (*first, *second)) <= 0:
        raise ValueError(
            "Times must be larger than 0 to be decomposed. Received: none, or 0 s."
        )

    # All arrays have a row for each run of the first group and a column for each of the
    # second.
    mean = _log_mean(*_pairs(first, second, lambda parts: parts.total_s))
    of_utterances = _log_ratio(*_pairs(first, second, lambda parts: parts.utterances))
    of_host = -_log_ratio(*_pairs(first, second, lambda parts: parts.host_share))

    logs = dict.fromkeys(FACTORS, 0.0)
    for name in first[0].seconds:
        a, b = _pairs(first, second, lambda parts, name=name: parts.seconds[name])
        factor = name
        log = (b - a) / mean
        weight = _log_mean(a, b) / mean
        if name in _PER_UTTERANCE:
            of_amount = weight * of_utterances
            logs["statistical_efficiency"] += float(np.mean(of_amount))
            log = log - of_amount

        if name == "training":
            factor = "hardware_throughput"
            of_machine = weight * of_host
            logs["host"] += float(np.mean(of_machine))
            log = log - of_machine

        logs[factor] += float(np.mean(log))

    return Decomposition(
        ratio=_geometric_ratio(first, second, lambda parts: parts.total_s),
        factors={name: math.exp(log) for name, log in logs.items()},
        utterances_ratio=_geometric_ratio(
            first, second, lambda parts: parts.utterances
        ),
        throughput_ratio=_geometric_ratio(
            first, second, lambda parts: parts.utterances_per_s
        ),
        evaluations_ratio=_geometric_ratio(
            first, second, lambda parts: parts.evaluations
        ),
        runs=(len(first), len(second)),
        never=never,
    )


def _numbers_until(timeline: Timeline, until_s: float, *keys: str) -> int:
    """Returns in how many epochs an event with one of the keys happened until a time.

    Events that don't say their epoch count as one each.

    Args:
        timeline: the run.
        until_s: the time, in seconds after the model's creation.
        *keys: such as "eval_start".
    """
    until_us = timeline.zero_us + round(until_s * 1e6)
    epochs = set()
    for index in timeline.of(*keys):
        if timeline.useful[index] and timeline.clock_us[index] <= until_us:
            epoch = evaluated_epoch(timeline.metadata[index])
            epochs.add(f"event {index}" if epoch is None else epoch)

    return len(epochs)


_Amount = Callable[[Parts], float]


def _pairs(
    first: Sequence[Parts], second: Sequence[Parts], amount: _Amount
) -> tuple[np.ndarray, np.ndarray]:
    """Returns an amount of all runs, ``(first, 1)`` and ``(1, second)``.

    Whatever is computed from both has a value for each pair of runs.
    """
    rows = np.array([float(amount(parts)) for parts in first])
    columns = np.array([float(amount(parts)) for parts in second])
    return rows[:, None], columns[None, :]


def _geometric_ratio(
    first: Sequence[Parts], second: Sequence[Parts], amount: _Amount
) -> float | None:
    """Returns the ratio of two groups' geometric means, second over first.

    It is None if an amount of any run is 0.
    """
    logs = []
    for group in (first, second):
        amounts = list(map(amount, group))
        if min(amounts) <= 0:
            return None

        logs.append(math.fsum(map(math.log, amounts)) / len(amounts))

    return math.exp(logs[1] - logs[0])


def _log_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns ``ln(b / a)``; 0 where either is 0."""
    positive = (a > 0) & (b > 0)
    return np.log(np.where(positive, b, 1.0) / np.where(positive, a, 1.0))


def _log_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns ``(b - a) / ln(b / a)``.

    It is a where they are equal, and 0 where either is 0 or less.
    """
    positive = (a > 0) & (b > 0)
    a = np.where(positive, a, 1.0)
    difference = np.where(positive, b - a, 0.0)
    equal = difference == 0
    logs = np.where(equal, 1.0, np.log1p(difference / a))
    return np.where(positive, np.where(equal, a, difference) / logs, 0.0)
