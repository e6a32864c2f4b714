"""`tfasr.estimate`: how long a training will take until its target, before it begins.

A time to accuracy is how many utterances a recipe needs, times what each takes. The
first hardly depends on the machine and comes from finished runs
(`tfasr.estimates.entries`); the second is measured in a minute
(`tfasr.estimates.trial`). Both are uncertain, so the answer is an interval
(`tfasr.estimates.interval`).

docs/estimate.md has how often such intervals contained the time of a real run.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.data.shards import open_split
from tfasr.display.chart import Axis, Chart, Line, Panel, run_colour
from tfasr.errors import UsageError
from tfasr.estimates.entries import read_catalogue, target_name
from tfasr.estimates.interval import (
    MACHINE_ERROR,
    SHARE,
    Range,
    drawn_speeds,
    drawn_utterances,
    range_of,
)
from tfasr.estimates.machine import Machine, measure, read_machine, scaled
from tfasr.estimates.recipes import Match, find_entry
from tfasr.estimates.trial import MOST_S, Trial, try_out
from tfasr.estimates.unprepared import prepared_noise
from tfasr.estimates.workers import gradient_bytes, step_of_workers
from tfasr.reports.numbers import metric_label, target_label
from tfasr.reports.watching import duration, range_text
from tfasr.training.build import on_devices
from tfasr.training.experiment import Experiment
from tfasr.training.train import training_audio
from tfasr.tta.costs import Cost, HardwareConfig, cost_of
from tfasr.tta.energy import EnergyUse
from tfasr.tta.host import HostUse
from tfasr.tta.metrics import Target, check_target, written_target
from tfasr.tta.policies import PAPER, POLICIES, Policy, policy_named

if TYPE_CHECKING:
    from tfasr.display.vega import Drawing

HOUR_S = 3600.0


@dataclass(frozen=True)
class Estimate:
    """What `estimate` found; ``print`` shows it, ``plot`` draws it.

    Times are in seconds. ``seconds`` has the paper's clock and the others, by their
    names; None where the catalogue doesn't say when a policy's rule was met. Its fields
    are the JSON's.
    """

    recipe: str
    metric: str
    target: float
    policy: str  # whose clock the headline, the price and the workers follow
    machine: str
    trial: Trial
    unknown: str  # why no time to the target is known, or ""
    match: Match  # the catalogue's entry, or why it is missing
    runs: int  # finished runs behind the utterances
    never: int  # of them, that never met the target
    utterances: Range | None
    seconds: dict[str, Range | None]
    workers: dict[int, Range]  # by their number, on the headline's clock
    cost: Cost  # of the middle, or of an hour if the time is unknown
    epoch_s: float  # a whole epoch with its evaluation and checkpoint
    train_utterances: int
    notes: list[str]  # caveats, shown as lines at the end
    # Seconds to the target of simulated runs, for the plot; None without a time.
    draws: np.ndarray | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    @property
    def label(self) -> str:
        """The target for readers, such as "CER 15 %"."""
        return target_label(self.metric, self.target)

    def lines(self) -> list[str]:
        """Returns the answer in about five lines of plain text."""
        lines = [self._headline(), *self._clocks(), self._ground(), self._price()]
        lines += [
            f"{count} workers: {range_text(self.label, times.low, times.high)}"
            for count, times in self.workers.items()
        ]

        return [*lines, *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _headline(self) -> str:
        """Returns the interval in a sentence, or why it isn't known."""
        if self.unknown:
            return f"{self.label} not known ({self.unknown})"

        times = self.seconds[self.policy]
        spoken = range_text(self.label, times.low, times.high)

        return f"{spoken}, most likely {duration(times.middle)}: {self.recipe} on {self.machine}"

    def _clocks(self) -> list[str]:
        """Returns the time by each policy, or what an hour trains if it isn't known."""
        if self.unknown:
            epochs = HOUR_S / self.epoch_s
            utterances = round(epochs * self.train_utterances, -2)
            return [
                f"an hour trains {epochs:.3g} epochs ({utterances:,.0f} utterances), each with "
                f"its evaluation: {duration(self.epoch_s)} an epoch"
            ]

        texts = []
        for name, times in self.seconds.items():
            time = "not known" if times is None else duration(times.middle)
            texts.append(f"{name} {time}")

        return [f"by clock: {', '.join(texts)}"]

    def _ground(self) -> str:
        """Names the finished runs and timed steps behind the estimate."""
        measured = f"{self.trial.steps} steps timed here"
        if self.utterances is None:
            return f"rests on: {measured}"

        span = f"{self.utterances.low:,.0f} to {self.utterances.high:,.0f} utterances"
        never = f", {self.never} of them never arrived" if self.never else ""
        runs = "1 finished run" if self.runs == 1 else f"{self.runs} finished runs"
        return (
            f"rests on: {runs}{never} "
            f"({self.match.entry.recipe} on {self.match.entry.corpus}; {span}), {measured}"
        )

    def _price(self) -> str:
        """Returns price and energy to the target, or of an hour if no time is known."""
        cost = self.cost
        hour = "an hour costs " if self.unknown else ""
        if cost.usd is not None:
            price = f"price: {hour}{cost.usd:.2g} USD"
        else:
            price = "price: not known (add --price_usd_per_hour or --hardware)"

        if cost.kwh is None:
            return f"{price}; energy: not known (no counters here)"

        return f"{price}; energy: {1000 * cost.kwh:.3g} Wh ({cost.kwh_is})"

    def to_json(self) -> dict[str, Any]:
        """Returns everything but the draws as JSON values."""
        content = dataclasses.asdict(dataclasses.replace(self, draws=None))
        del content["draws"]
        entry = self.match.entry
        content["match"] = {
            "entry": None if entry is None else f"{entry.recipe} on {entry.corpus}",
            "source": None if entry is None else entry.source,
            "reason": self.match.reason,
        }
        content["share"] = SHARE
        host = self.trial.host
        content["trial"]["host"] = None if host is None else host.share

        return content

    def plot(self) -> "Drawing":
        """Draws how likely the target is met by a time.

        Raises:
            UsageError: if no time is known.
        """
        # Imported here: drawing is slow to load.
        from tfasr.display.vega import Drawing

        if self.draws is None:
            raise UsageError(f"There is no time to draw: {self._headline()}.")

        shares = np.linspace(0.01, 0.99, 99)
        minutes = np.quantile(self.draws, shares) / 60
        line = Line(x=minutes, y=100 * shares, colour=run_colour(0), series=self.recipe)
        panel = Panel(
            [line],
            Axis("minutes since the creation of the model"),
            Axis("runs that have arrived, %"),
        )
        return Drawing(Chart("estimate", f"Estimate: {self._headline()}", [panel]))


def estimate(
    experiment: Experiment,
    *,
    target: str | Target | None = None,
    shard_dir: str | Path | None = None,
    manifest: str | Path | None = None,
    recipe: str = "this recipe",
    policy: str | Policy = PAPER,
    hardware: HardwareConfig | None = None,
    catalogue: Sequence[str | Path] = (),
    machine: str | Path | None = None,
    workers: Sequence[int] = (),
    link_gbit_s: float | None = None,
    lexicon: str | Path | None = None,
    most_s: float = MOST_S,
    own_process: bool = False,
) -> Estimate:
    """Estimates how long a training takes until a target, without training to it.

    It trains for at most a minute in a temporary folder to see what steps, evaluations
    and checkpoints take, and looks up how many utterances finished runs of this recipe
    needed. About 80 % of intervals contain the time of a new run; docs/estimate.md has
    how that was tested.

    Args:
        experiment: the run's configs, such as
            ``tfasr.load_config("fast/an4.gin").experiment``.
        target: such as "cer=0.15"; by default the first of the experiment's targets.
        shard_dir: the folder with the prepared splits "train" and "validation".
        manifest: instead of ``shard_dir``, a list of the training utterances with their
            lengths.
        recipe: the recipe's name for readers.
        policy: whose clock and rule count, see `tfasr.tta.policies`.
        hardware: the machine's price.
        catalogue: folders of ``tfasr report --catalogue``, looked at before the shipped
            one.
        machine: a file of ``tfasr doctor --measure --out``, to estimate for that
            machine instead.
        workers: numbers of workers to estimate too, each with a machine like this one.
        link_gbit_s: the speed of the link between them.
        lexicon: word beam search's dictionary, see `tfasr.train`.
        most_s: the longest time to take steps, in seconds.
        own_process: whether this process was started for this estimate alone.

    Raises:
        UsageError: for whatever is missing or doesn't fit together.
        RunError: if the training couldn't run here either, such as if a batch doesn't
            fit.
    """
    metric, value = _target(target, experiment)
    clock = policy_named(policy)
    other = None if machine is None else read_machine(machine)
    _check_sources(shard_dir, manifest, workers, link_gbit_s)
    entries = read_catalogue(catalogue)
    experiment = on_devices(experiment)

    with prepared_noise(manifest, experiment, shard_dir) as (folder, train_utterances):
        trial = try_out(
            experiment, folder, lexicon=lexicon, most_s=most_s, own_process=own_process
        )
        split = open_split(folder, "train")
        audio = training_audio(split) if manifest is None else ""

    notes = _busy(trial.host)
    if other is not None:
        # The ratio of the same probes on both machines carries over what a step costs
        # here.
        precision = experiment.training.precision
        here = measure(only=precision)
        ratio = other.step_ratio(here, trial.step_s, precision)
        trial = scaled(trial, here, other, precision)
        notes.append(
            f"for {other.name} from its file: steps {ratio:.2g} times as long as here; such ratios "
            "are off by 30 % (docs/estimate.md)"
        )

    match = find_entry(
        entries, experiment, recipe, train_utterances, audio, (metric, value)
    )
    asked = _Question(
        experiment=experiment,
        target=(metric, value),
        policy=clock,
        train_utterances=train_utterances,
        trial=trial,
        match=match,
        elsewhere=other is not None,
    )
    return asked.answer(recipe, hardware, workers, link_gbit_s, other, notes)


@dataclass
class _Question:
    """Everything that is known before the answer is computed.

    Attributes:
        experiment: the recipe.
        target: a metric and a value.
        policy: whose clock the headline follows.
        train_utterances: of an epoch.
        trial: what each part of a run costs here, or on the machine of a file.
        match: the catalogue's entry, or why it is missing.
        elsewhere: whether the times are for a machine that is known from its file alone.
    """

    experiment: Experiment
    target: Target
    policy: Policy
    train_utterances: int
    trial: Trial
    match: Match
    elsewhere: bool

    def answer(
        self,
        recipe: str,
        hardware: HardwareConfig | None,
        workers: Sequence[int],
        link_gbit_s: float | None,
        other: Machine | None,
        notes: list[str],
    ) -> Estimate:
        """Computes the estimate.

        Args:
            recipe: the recipe's name for readers.
            hardware: the machine's price, or None.
            workers: numbers of workers to estimate too.
            link_gbit_s: the speed of the link between them.
            other: the machine of the file, or None for this one.
            notes: caveats so far.
        """
        training = self.experiment.training
        reached = self._reached(training.target_window)
        met = [value for value in reached if value is not None]
        unknown = self._unknown(reached, met)
        draws = None
        utterances = None
        seconds: dict[str, Range | None] = {}
        by_workers: dict[int, Range] = {}
        if not unknown:
            drawn = self._drawn(met)
            utterances = range_of(drawn)
            speed = self._speed()
            draws = self._seconds(self.policy, drawn, speed)
            seconds = self._by_clock(training.target_window, speed)
            seconds[self.policy.name] = range_of(draws)

            for count in workers:
                ratio = self._worker_ratio(count, link_gbit_s)
                by_workers[count] = range_of(
                    self._seconds(self.policy, drawn, speed * ratio)
                )

            notes = [*self.match.notes, *notes, *self._ends_before(utterances)]
        elif workers:
            notes = [*notes, f"--workers needs a known time: {unknown}"]

        epoch_s = float(self._epoch_s())
        middle_s = HOUR_S if unknown else seconds[self.policy.name].middle

        return Estimate(
            recipe=recipe,
            metric=self.target[0],
            target=self.target[1],
            policy=self.policy.name,
            machine="this machine" if other is None else other.name,
            trial=self.trial,
            unknown=unknown,
            match=self.match,
            runs=len(reached),
            never=len(reached) - len(met),
            utterances=utterances,
            seconds=seconds,
            workers=by_workers,
            cost=cost_of(hardware, middle_s, self._energy(middle_s)),
            epoch_s=epoch_s,
            train_utterances=self.train_utterances,
            notes=notes,
            draws=draws,
        )

    def _reached(self, window: int) -> list[float | None]:
        """Returns the utterances of each finished run; None if it never arrived."""
        entry = self.match.entry
        if entry is None:
            return []

        return entry.utterances_to(self.target, window)

    def _unknown(self, reached: Sequence[float | None], met: Sequence[float]) -> str:
        """Returns why no time can be estimated, or "".

        Args:
            reached: of all finished runs of the recipe.
            met: of those that met the target.
        """
        metric, value = self.target
        entry = self.match.entry
        if entry is None:
            return self.match.reason
        if met:
            return ""
        if reached:
            best = entry.best(metric)
            if best is None:
                least = ""
            else:
                least = f"; the best {metric_label(metric)} is {best:.1%}"

            return f"no run of {entry.recipe} reached this target{least}"

        recorded_targets = ", ".join(entry.targets()) or "none"

        return (
            f"nobody has trained {entry.recipe} to {target_name(metric, value)} by this rule; "
            f"recorded targets: {recorded_targets}"
        )

    @property
    def _per_evaluation(self) -> float:
        """The utterances between two evaluations."""
        return self.train_utterances / self.experiment.training.evaluations_per_epoch

    def _drawn(self, met: Sequence[float]) -> np.ndarray:
        """Draws the utterances of new runs, scaled for another batch size if needed."""
        scaled = [self.match.factor * value for value in met]
        rng = np.random.default_rng(0)
        return drawn_utterances(scaled, step=self._per_evaluation, rng=rng)

    def _speed(self) -> np.ndarray:
        """Draws factors for the seconds of new runs.

        The spread has the trial's own error, and another machine's if it is known from
        its file. A disturbed trial was slower than a quiet run would be.
        """
        rng = np.random.default_rng(1)
        error = self.trial.relative_error
        if self.elsewhere:
            error = math.hypot(error, MACHINE_ERROR)

        speed = drawn_speeds(error, rng)
        host = self.trial.host
        if host is not None and host.disturbed:
            # The disturbance may go on, or end at once.
            speed = speed * host.share ** rng.uniform(0, 1, len(speed))

        return speed

    def _seconds(self, policy: Policy, utterances, speed=1.0) -> np.ndarray:
        """Returns a policy's clock after so many utterances.

        A checkpoint is saved after each evaluation and after every so many steps.
        """
        evaluations = utterances / self._per_evaluation
        batch = self.experiment.pipeline.global_batch_size
        every = batch * self.experiment.training.checkpoint_every_steps

        return self.trial.seconds(
            policy,
            utterances,
            evaluations,
            evaluations + np.floor(utterances / every),
            speed,
        )

    def _by_clock(self, window: int, speed: np.ndarray) -> dict[str, Range | None]:
        """Returns the interval by each policy; None if the catalogue can't tell.

        A policy that takes the first evaluation that meets the target has another rule
        than the recipe, so its runs needed other numbers of utterances.
        """
        times: dict[str, Range | None] = {}
        for name, policy in POLICIES.items():
            rule = window if policy.window > 1 else 1
            met = [value for value in self._reached(rule) if value is not None]
            times[name] = None
            if met:
                times[name] = range_of(self._seconds(policy, self._drawn(met), speed))

        return times

    def _epoch_s(self) -> float:
        """Returns the seconds of a whole epoch, as the difference of two and one.

        The difference leaves out the start and what only the first epoch takes longer.
        """
        once = self._seconds(self.policy, np.array(2.0 * self.train_utterances))
        return once - self._seconds(self.policy, np.array(1.0 * self.train_utterances))

    def _worker_ratio(self, count: int, link_gbit_s: float | None) -> float:
        """Returns a step's seconds on so many workers, as a share of one worker's."""
        size = gradient_bytes(
            self.trial.parameters, self.experiment.training.gradient_exchange
        )
        together_s = step_of_workers(
            count, self.trial.step_s, self.trial.step_fixed_s, size, link_gbit_s
        )

        return together_s / self.trial.step_s

    def _ends_before(self, utterances: Range) -> list[str]:
        """Returns a warning if the recipe's epochs may end before the target is met."""
        epochs = self.experiment.training.epochs
        if utterances.high <= epochs * self.train_utterances:
            return []

        needed = utterances.high / self.train_utterances

        return [
            f"TrainingConfig.epochs = {epochs} may end training before the target: up to "
            f"{needed:.0f} epochs are needed"
        ]

    def _energy(self, seconds: float) -> EnergyUse | None:
        """Returns the energy until the target; None without counters there."""
        watts = self.trial.joules_per_s
        if watts is None or self.elsewhere:
            return None

        return EnergyUse({"train": watts * seconds}, {}, [])


def _target(target: str | Target | None, experiment: Experiment) -> Target:
    """Returns the target that was asked for, else the recipe's first."""
    if target is None:
        if not experiment.training.targets:
            raise UsageError(
                "This recipe sets no target. Name one, such as --target cer=0.15."
            )

        target = experiment.training.targets[0]

    if isinstance(target, str):
        target = written_target(target)
    metric, value = target
    return check_target(metric, value)


def _check_sources(shard_dir, manifest, workers: Sequence[int], link_gbit_s) -> None:
    """Checks the arguments of `estimate` that belong together."""
    if (shard_dir is None) == (manifest is None):
        raise UsageError(
            "An estimate needs either --shard_dir, the prepared data, or, before it is prepared, "
            f"--manifest. Received: {'neither' if shard_dir is None else 'both'}."
        )

    if any(count < 2 for count in workers):
        raise UsageError(
            f"--workers must be numbers of at least 2. Received: {list(workers)}."
        )

    if workers and not (link_gbit_s and 0 < link_gbit_s < math.inf):
        raise UsageError(
            "--workers needs the speed of the link between them, such as --link_gbit_s 10. "
            f"Received: {link_gbit_s}."
        )


def _busy(host: HostUse | None) -> list[str]:
    """Returns a caveat if other work disturbed the trial's steps."""
    if host is None or not host.disturbed:
        return []

    cause, share = host.causes()[0]
    return [
        f"busy: steps got {host.share:.0%} of the processors they wanted ({cause}: {share:.0%}), "
        "so a quiet machine may be faster than the interval; estimate again on one"
    ]
