"""A short real training, whose ledger says what each part of a run costs.

`try_out` trains in a temporary folder until the mean step is known well enough, at most
a minute. `trial_of` reads the ledger: what the start takes, each utterance, each
evaluation and each checkpoint. `Trial.seconds` puts them together for a run of any
length.
"""

import contextlib
import dataclasses
import logging
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfasr.data.shards import open_split
from tfasr.errors import RunError
from tfasr.ledger.intervals import EVALUATION, INTERVALS
from tfasr.training.experiment import Experiment
from tfasr.training.train import train
from tfasr.tta.energy import read_samples, used_joules
from tfasr.tta.host import HostUse, host_use, read_host_file
from tfasr.tta.policies import POLICIES, Policy
from tfasr.tta.run import Run, load_run

# Seconds of steps at most, after those of the warm-up.
MOST_S = 60.0

# Relative standard error of the mean step at which no more steps are needed.
KNOWN = 0.03

# With so many seconds of steps, a second evaluation isn't waited for.
ENOUGH_S = 20.0

# The first steps, which compile and fill caches.
WARM_UP = 10

# Steps behind a mean, at least.
FEWEST = 30

# Utterances of each trial evaluation, at most.
EVALUATED = 300

# Intervals that a checkpoint takes, and that only the start takes. Everything else that
# isn't an evaluation goes with the steps.
_SAVING = ("checkpoint", "averaging")
_ONCE = ("init", "compile")

# More than any trial reaches: only `_Enough` ends it.
_EPOCHS = 2**31 - 1

# A process that stood still for longer, such as in a debugger, gives no estimate.
_MOST_STOPPED_S = 3.0


@dataclass(frozen=True)
class Trial:
    """What the parts of a run cost, by interval of the ledger, in seconds.

    It has fields for each kind of work that `Estimate` multiplies by how often a run
    does it.

    Attributes:
        start_s: by policy, the clock's reading after the warm-up.
        warm_utterances: on which the warm-up has trained.
        per_utterance: by interval.
        per_evaluation: by interval, of all validation utterances.
        per_checkpoint: by interval.
        later_s: compiling further shapes, and what the first evaluation takes longer.
        relative_error: the standard error of the mean step.
        step_fixed_s: of a step, whatever the batch.
        step_s: the mean.
        joules_per_s: None without counters.
        parameters: of the model.
        steps: how many were timed.
        evaluations: how many there were.
        host: what the machine gave the steps; None if unknown.
    """

    start_s: dict[str, float]
    warm_utterances: int
    per_utterance: dict[str, float]
    per_evaluation: dict[str, float]
    per_checkpoint: dict[str, float]
    later_s: float
    relative_error: float
    step_fixed_s: float
    step_s: float
    joules_per_s: float | None
    parameters: int
    steps: int
    evaluations: int
    host: HostUse | None

    def seconds(
        self,
        policy: Policy,
        utterances: np.ndarray,
        evaluations: np.ndarray,
        checkpoints: np.ndarray,
        speed: float | np.ndarray = 1.0,
    ) -> np.ndarray:
        """Returns a policy's clock after so much training.

        Args:
            policy: decides which intervals count.
            utterances: trained on, those of the warm-up included.
            evaluations: how many.
            checkpoints: how many.
            speed: multiplies all but the start.

        All arguments but the policy are arrays of one shape or numbers.
        """
        further = np.maximum(utterances - self.warm_utterances, 0)
        running = self._counted(self.per_utterance, policy) * further
        running = running + self._counted(self.per_evaluation, policy) * evaluations
        running = running + self._counted(self.per_checkpoint, policy) * checkpoints
        later_s = 0.0 if "compile" in policy.excluded else self.later_s

        return self.start_s[policy.name] + later_s + running * speed

    def _counted(self, seconds: Mapping[str, float], policy: Policy) -> float:
        """Returns the seconds of all intervals that count by a policy."""
        excluded = set(policy.excluded)
        if not policy.counts_evaluation:
            excluded |= set(EVALUATION)

        return math.fsum(
            value for name, value in seconds.items() if name not in excluded
        )


class _Enough(keras.callbacks.Callback):
    """Ends the trial once the mean step is known well enough, or its time is over.

    Args:
        most_s: how long the steps after the first one may take.
    """

    def __init__(self, most_s: float):
        super().__init__()
        self._most_s = most_s
        # Seconds of each step after the warm-up.
        self._steps: list[float] = []
        self._taken = 0
        self._evaluated = 0
        self._began = 0.0
        self._first: float | None = None

    def on_train_batch_begin(self, batch, logs=None):
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self._taken += 1
        if self._taken <= WARM_UP:
            # A step of minutes must not be repeated ten times.
            self._first = self._first or now
            if now - self._first > self._most_s:
                self.model.stop_training = True

            return

        self._steps.append(now - self._began)
        spent_s = math.fsum(self._steps)
        is_precise = relative_error(self._steps) <= KNOWN and len(self._steps) >= FEWEST
        enough = is_precise and (self._evaluated >= 2 or spent_s > ENOUGH_S)
        if enough or now - self._first > self._most_s:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self._evaluated += 1


def relative_error(seconds: list[float]) -> float:
    """Returns the relative standard error of a mean; infinity below two values."""
    if len(seconds) < 2:
        return math.inf

    error = statistics.stdev(seconds) / math.sqrt(len(seconds))
    return error / statistics.fmean(seconds)


def try_out(
    experiment: Experiment,
    shard_dir: str | Path,
    *,
    lexicon: str | Path | None = None,
    most_s: float = MOST_S,
    own_process: bool = False,
) -> Trial:
    """Trains for at most a minute, with every part of a real run.

    Args:
        experiment: the recipe, on the devices of this machine.
        shard_dir: prepared splits "train" and "validation".
        lexicon: word beam search's dictionary.
        most_s: the longest time to take steps.
        own_process: whether the process's own start counts.

    Raises:
        UsageError, RunError: for whatever would stop a real run, such as a batch that
            doesn't fit into memory.
    """
    training = experiment.training
    validation = len(open_split(shard_dir, "validation").utterances)
    scored = min(training.evaluation_utterances or validation, validation)
    # No target or budget may end the trial, and a large validation split needs only a
    # part.
    training = dataclasses.replace(
        training,
        epochs=_EPOCHS,
        targets=(),
        stop_at_targets=False,
        stop_after_hours=0.0,
        give_up_after_hours=0.0,
        evaluation_utterances=min(scored, EVALUATED),
    )
    experiment = dataclasses.replace(experiment, training=training)

    with tempfile.TemporaryDirectory(prefix="tfasr-estimate-") as folder, _quiet():
        run_dir = Path(folder, "run")
        try:
            train(
                experiment,
                shard_dir=shard_dir,
                run_dir=run_dir,
                lexicon=lexicon,
                callbacks=[_Enough(most_s)],
                own_process=own_process,
            )
        except tf.errors.OpError as error:
            if "DNN library" not in str(error):
                raise

            raise RunError(
                "TensorFlow finds the GPU but not its library cuDNN: install it with pip install "
                "'tensorflow[and-cuda]', or hide the GPU with CUDA_VISIBLE_DEVICES=-1."
            ) from error

        run = load_run(run_dir)
        _check_unstopped(run)
        return trial_of(run, scored)


def _check_unstopped(run: Run) -> None:
    """Raises RunError if the process was stopped while it measured."""
    use = host_use(read_host_file(run.path), run.timeline, INTERVALS)
    if use is not None and use.stopped_s > _MOST_STOPPED_S:
        raise RunError(
            f"The process stood still for {use.stopped_s:.0f} s while it measured, so its times "
            "mean nothing. Run it again without stopping it."
        )


@contextlib.contextmanager
def _quiet():
    """Hides the training's progress: a trial's epochs would confuse readers."""
    log = logging.getLogger("tfasr")
    level = log.level
    log.setLevel(max(level, logging.WARNING))

    try:
        yield
    finally:
        log.setLevel(level)


def trial_of(run: Run, evaluated: int) -> Trial:
    """Reads the parts' costs from a short run.

    Args:
        run: the trial's.
        evaluated: how many utterances an evaluation of a real run has.

    Raises:
        RunError: if it has no step: the split is smaller than a batch.
    """
    line = run.timeline
    steps = line.steps
    if not len(steps):
        raise RunError(
            "A training needs at least one whole batch to be estimated. Found none."
        )

    # The warm-up ends before the first evaluation, which would otherwise be part of the
    # start.
    first_eval = next(iter(line.of("eval_start")), len(line.events))
    before_it = sum(index < first_eval for index in steps.indices)
    warm = min(WARM_UP, max(before_it - 1, 0), len(steps) - 1)
    utterances = steps.column("utterances")

    # Steps that compiled have no time of training.
    after = steps.column("train_s")[warm:] > 0
    timed_s = steps.column("train_s")[warm:][after]
    frames = steps.column("padded_frames")[warm:][after]

    # The event at which the warm-up ends.
    at = steps.indices[warm - 1] if warm else line.indices["init_stop"][0]

    spent = _since(run, at)
    trained = float(utterances[warm:].sum())
    in_evaluation = {name: spent.pop(name) for name in EVALUATION}
    saving = {name: spent.pop(name) for name in _SAVING}
    once = {name: spent.pop(name) for name in _ONCE}
    if len(timed_s):
        # Steps that compiled would have taken a step's time otherwise.
        spent["train"] *= len(after) / len(timed_s)

    evaluations = len(line.of("tracked_stats"))
    checkpoints = max(len(line.of("checkpoint_stop")), 1)
    per_evaluation, first_extra_s = _evaluation(
        run, in_evaluation, evaluations, evaluated
    )
    start_s = {
        name: float(policy.times_s(line)[at]) for name, policy in POLICIES.items()
    }
    joules = used_joules(read_samples(run.path))

    return Trial(
        start_s=start_s,
        warm_utterances=int(utterances[:warm].sum()),
        per_utterance={
            name: seconds / trained for name, seconds in spent.items() if seconds
        },
        per_evaluation=per_evaluation,
        per_checkpoint={
            name: seconds / checkpoints for name, seconds in saving.items()
        },
        later_s=once["compile"] + first_extra_s,
        relative_error=_stratified_error(frames, timed_s),
        step_fixed_s=_fixed_s(frames, timed_s),
        step_s=float(timed_s.mean()) if len(timed_s) else once["compile"],
        joules_per_s=None if joules is None else joules / run.wall_s,
        parameters=int(run.fact("parameters")),
        steps=len(timed_s),
        evaluations=evaluations,
        host=host_use(read_host_file(run.path), line),
    )


def _since(run: Run, index: int) -> dict[str, float]:
    """Returns the seconds by interval from an event to the end of the last epoch."""
    before = run.intervals_until(run.elapsed_s[index])
    until = run.intervals_until(run.elapsed_s[run.timeline.of("epoch_stop")[-1]])

    return {name: until[name] - before[name] for name in until}


def _evaluation(
    run: Run, spent: Mapping[str, float], evaluations: int, evaluated: int
) -> tuple[dict[str, float], float]:
    """Returns an evaluation's seconds by interval, and what the first one took longer.

    Args:
        run: the trial's.
        spent: seconds of all its evaluations.
        evaluations: how many there were.
        evaluated: how many utterances one of a real run has.
    """
    scale = evaluated / run.fact("eval_samples")
    if evaluations < 2:
        return {name: scale * seconds for name, seconds in spent.items()}, 0.0

    # The first one traces its graph, so it is set apart.
    first_ends = run.timeline.of("tracked_stats")[0]
    first = run.intervals_until(run.elapsed_s[first_ends])

    steady = {}
    extra_s = 0.0
    for name, seconds in spent.items():
        steady[name] = (seconds - first[name]) / (evaluations - 1)
        extra_s += max(first[name] - steady[name], 0.0)
        steady[name] *= scale

    return steady, extra_s


def _stratified_error(frames: np.ndarray, seconds: np.ndarray) -> float:
    """Returns the relative standard error of the mean step, by length of the batch.

    Batches of one length have one bucket; only the spread within buckets is an error,
    because a run has all of them in proportion.

    Args:
        frames: padded frames of each step's batch.
        seconds: what each step took.
    """
    by_length: dict[float, list[float]] = defaultdict(list)
    for length, value in zip(frames.tolist(), seconds.tolist(), strict=True):
        by_length[length].append(value)
    if len(seconds) < 2:
        return KNOWN

    if len(seconds) >= 20 * len(by_length):
        squares = [
            len(values) * statistics.pvariance(values) for values in by_length.values()
        ]
        variance = math.fsum(squares) / len(seconds)
    else:
        # With few steps a bucket the mixture itself isn't known.
        variance = statistics.pvariance(seconds.tolist())

    return math.sqrt(variance / len(seconds)) / float(seconds.mean())


def _fixed_s(frames: np.ndarray, seconds: np.ndarray) -> float:
    """Returns the part of a mean step that doesn't grow with its frames.

    It is the intercept of a straight line by least squares, 0 if all batches are alike.
    """
    if len(set(frames.tolist())) < 2:
        return 0.0

    slope, intercept = np.polyfit(frames, seconds, 1)

    return float(np.clip(intercept, 0.0, seconds.mean()))
