"""Records any training loop in a ledger that ``tfasr report`` reads.

`Recorder` is `tfasr.Recorder`: a user's loop calls it between its own lines, and each
call writes an event. What happens between two calls is booked by the later one, so
nothing is measured twice. The adapters for Keras, Lightning and transformers call the
same methods. TensorFlow is never imported.
"""

import contextlib
import hashlib
import json
import logging
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError, did_you_mean, wrong_values_are_wrong_use
from tfasr.kit.files import HYPOTHESES_FOLDER, RUN_FILE, write_whole
from tfasr.ledger.events import Ledger
from tfasr.ledger.schema import to_json
from tfasr.recording.session import (
    Order,
    Session,
    check_facts,
    check_mappings,
    claimed,
    folder_named,
    position,
    settings_of,
)
from tfasr.scoring.errors import ErrorCounts, count_errors, read_transcripts
from tfasr.telemetry.host import HostSampler
from tfasr.telemetry.machine import version
from tfasr.telemetry.samplers import UtilisationSampler
from tfasr.telemetry.system import describe_system
from tfasr.tta.metrics import (
    BUILT_IN,
    HIGHER,
    METRICS,
    Metric,
    Metrics,
    Target,
    metric_named,
)
from tfasr.tta.policies import WINDOW, rule_met
from tfasr.tta.run import load_run

_log = logging.getLogger(__name__)

# Packages whose versions a run states if the user's program has loaded them.
_FRAMEWORKS = (
    "torch",
    "jax",
    "flax",
    "lightning",
    "transformers",
    "tensorflow",
    "keras",
)
# A larger error rate is probably in percent; that of an untrained model can reach 5, or
# 500 %.
_LARGEST_ERROR_RATE = 10.0

# Half of a character outside the basic plane, which no file in UTF-8 can contain.
_SURROGATE = re.compile("[\ud800-\udfff]")

# What a step may count; reports show their sums per second.
AMOUNTS = ("utterances", "audio_s", "frames", "padded_frames")


@dataclass(eq=False)
class Step:
    """One update of the weights, as a ``with`` block; a block that raises records no step.

    Every field except the input wait can be set until the block ends. None means
    unknown.
    """

    _run: "Recorder"
    _input_wait_s: float | None
    utterances: float | None  # of the batch, or samples of any kind
    audio_s: float | None  # seconds of audio
    frames: int | None  # feature frames, without padding
    padded_frames: int | None
    # The mean training loss. Reading it makes an asynchronous framework finish the
    # step. If it stays None, the rest of the computation counts towards whatever waits
    # for it next.
    loss: Any = None
    # Whether the framework compiled: the step's time is compilation.
    compiled: bool = False

    def __post_init__(self):
        self._order = self._run._order
        self._began = 0.0
        # Those of the dataclass and the three set here.
        self._attributes = len(self.__dict__) + 1
        self._order.promise("step")

    def __enter__(self) -> "Step":
        self._order.enter("step")
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._order.leave("step")
        if kind is not None:
            return

        # Only the number of attributes is checked: a check of each assignment would
        # take too long.
        if len(self.__dict__) != self._attributes:
            self._refuse_unknown()

        # This waits until the framework has computed it.
        loss = number(self.loss)
        if loss is None and self.loss is not None:
            self._run._warn_of_loss()

        took = time.perf_counter() - self._began
        waited = self._input_wait_s
        if waited is None:
            waited = max(0.0, self._began - self._run._last_at)

        values: dict[str, Any] = {"loss": loss}

        for name in AMOUNTS:
            value = getattr(self, name)
            if value is not None:
                # The usual case, a count, must be fast: this runs in every step.
                if type(value) is not int or value < 0:
                    value = amount(name, value)

                values[name] = value

        values["input_wait_s"] = round(waited, 6)
        values["compile_s"] = round(took, 6) if self.compiled else 0.0
        values["train_s"] = 0.0 if self.compiled else round(took, 6)
        self._run._book_step(values)

    def _refuse_unknown(self) -> None:
        """Raises the error for a misspelled attribute, such as ``step.los``."""
        settable = ["loss", "compiled", *AMOUNTS]
        unknown = list(vars(self))[self._attributes :]
        meant = did_you_mean(
            f"step.{unknown[0]}", [f"step.{name}" for name in settable]
        )
        raise UsageError(
            f"A step has no attribute {unknown[0]!r}, so it is not recorded. It has "
            f"{', '.join(settable)}.{meant}"
        )


class Evaluation:
    """The results of one evaluation, as a ``with`` block, which books its time.

    Until `decoding` begins, its time counts as forward passes. ``scores`` holds the
    results by metric, complete when the block has ended.

    If the block raises, nothing is recorded but its time: a broken evaluation can't
    meet a target.
    """

    def __init__(self, run: "Recorder"):
        self.scores: dict[str, Any] = {}
        self._run = run
        self._order = run._order
        self._ledger = run._ledger
        self._running = False
        self._counts: ErrorCounts | None = None
        self._references: list[str] = []
        self._order.promise("evaluation")

    def __enter__(self) -> "Evaluation":
        self._order.enter("evaluation")
        self._running = True
        self._where = {"epoch_num": self._order.epoch}
        self._ledger.start("eval", **self._where)
        self._ledger.start("eval_forward", **self._where)

        return self

    def decoding(self) -> contextlib.AbstractContextManager[None]:
        """Counts a part of the block as decoding: turning a model's outputs into text."""
        return self._part("decoding", "decode")

    def swapping(self) -> contextlib.AbstractContextManager[None]:
        """Counts a part of the block as swapping: the evaluated model is put in place.

        An average of the weights, for example, is evaluated instead of the trained
        ones.
        """
        return self._part("swapping", "swap")

    @contextlib.contextmanager
    def _part(self, block: str, interval: str) -> Iterator[None]:
        """Books a part of the block as a separate interval."""
        self._order.check(f"e.{block}()", "evaluation")
        self._order.promise(block)
        self._order.enter(block, "evaluation")
        self._ledger.start(interval, **self._where)

        try:
            yield
        finally:
            self._ledger.stop(interval, **self._where)
            self._order.leave(block)

    def score(self, references: Sequence[str], hypotheses: Sequence[str]) -> None:
        """Counts word and character errors of plain texts; several calls add up.

        Args:
            references: the true transcripts.
            hypotheses: what the model recognised, in the same order.

        Raises:
            UsageError: outside the block, or if the lists differ in length or hold anything
                but texts; at the end of the block, if all references are empty.
        """
        self._check_running("e.score(...)")
        references = _texts(references, "references")
        hypotheses = _texts(hypotheses, "hypotheses")

        with wrong_values_are_wrong_use():
            counts = count_errors(references, hypotheses)

        if self._counts is not None:
            counts = self._counts + counts

        self._counts = counts
        self._references += references

    def measure(self, **values: Any) -> None:
        """Records other numbers, rates as fractions: ``e.measure(accuracy=0.93)``.

        A later value replaces an earlier one.

        Raises:
            UsageError: for a metric that is neither built in nor declared, for a value that
                isn't a number, and for a rate that isn't a fraction.
        """
        self._check_running("e.measure(...)")
        for name, value in values.items():
            if not self.takes(name):
                example = f'tfasr.Recorder(..., metrics={{"{name}": "higher"}})'
                raise UsageError(
                    f"A metric must be one of {', '.join(sorted(BUILT_IN))}, or declared with its "
                    f"direction: {example}. Received: {name}."
                )

            score = measured(value, name, self._run._metrics)
            if score is None:
                _log.warning(
                    "%s of epoch %d is NaN or infinite. It is recorded as missing, so this "
                    "evaluation can't meet a target of it.",
                    name,
                    self._run._order.epoch,
                )

            self.scores[name] = score

    def takes(self, metric: str) -> bool:
        """Whether a metric is built in or declared, so that `measure` accepts it."""
        return metric in BUILT_IN or metric in self._run._settings.metrics

    def _check_running(self, method: str) -> None:
        if not self._running:
            raise UsageError(
                f"{method} must be called in a block: with run.evaluation() as e:."
            )

    def __exit__(self, kind, error, trace) -> None:
        self._order.leave("evaluation")
        self._ledger.stop("eval_forward", **self._where)
        self._running = False

        # What the user measured replaces what was counted.
        empty = False
        if self._counts is not None:
            empty = not self._counts.characters
            self.scores = self._counts.to_json() | self.scores

        missing = [
            name for name, _ in self._run._settings.targets if name not in self.scores
        ]
        usable = kind is None and self.scores and not missing and not empty
        if usable:
            if "wer" in self.scores:
                self._ledger.event("eval_accuracy", self.scores["wer"], **self._where)

            self._ledger.event("tracked_stats", self.scores, **self._where)

        self._ledger.stop("eval", **self._where)
        if usable:
            self._run._end_evaluation(self.scores, self._references)
        elif kind is None and empty:
            raise UsageError(
                "An evaluation must score at least one character of a reference. Received: "
                f"{self._counts.utterances} utterances without any."
            )
        elif kind is None:
            raise UsageError(
                f"An evaluation must measure {', '.join(missing) or 'something'}: call e.score("
                "references, hypotheses) for cer and wer, e.measure(accuracy=...) for others."
            )


class Saving:
    """A checkpoint being saved, as a ``with`` block; recorded when it has ended."""

    def __init__(self, run: "Recorder"):
        self._run = run
        self._order = run._order
        self._order.promise("saving")

    def __enter__(self) -> None:
        self._order.enter("saving")
        self._run._ledger.start("checkpoint", **self._run._where)

    def __exit__(self, kind, error, trace) -> None:
        self._order.leave("saving")
        # If saving failed, the event ends the interval but has no step, so no run
        # resumes from it.
        if kind is None:
            self._run._ledger.stop("checkpoint", **self._run._where)
        else:
            self._run._ledger.stop("checkpoint")

        self._run._ledger.sync()
        self._run._touch()


class Mark:
    """The result of `Recorder.checkpoint`, which can't be used as a ``with`` block.

    `Recorder.saving` is the block. Without this class, ``with run.checkpoint():`` would
    look right and book no time.
    """

    def __enter__(self) -> None:
        raise UsageError(
            "run.checkpoint() records that a checkpoint has been saved. To book the time of "
            "saving, write with run.saving(): instead."
        )

    def __exit__(self, *_) -> None: ...


class Epoch:
    """An epoch that `Recorder.epoch` has begun; as a ``with`` block, it ends there."""

    def __init__(self, run: "Recorder", number: int):
        self.number = number
        self._run = run
        self._order = run._order

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, kind, error, trace) -> None:
        if kind is None and self._order.in_epoch and self._order.epoch == self.number:
            self._order.check("The end of an epoch's block")
            self._run._end_epoch()


def amount(name: str, value: Any) -> float:
    """Returns a count or a number of seconds for the ledger, whole numbers as int.

    Raises:
        UsageError: if it is negative, NaN, infinite or not a number.
    """
    result = number(value, name)
    if result is None or result < 0:
        raise UsageError(
            f"{name} must be a number of at least 0. Received: {_shown(value)}."
        )

    return int(result) if result == int(result) else result


def number(value: Any, name: str = "loss") -> float | None:
    """Returns a number for the ledger; `None` for missing, infinite or NaN values.

    Args:
        value: a number, or a scalar tensor or array of any framework.
        name: for the error.

    Raises:
        UsageError: for anything else, also text and bool, which ``float`` would accept.
    """
    if value is None:
        return None

    try:
        # float() of a PyTorch tensor with a gradient would warn.
        plain = value.item() if hasattr(value, "item") else value
        if isinstance(plain, bool | str | bytes | bytearray):
            raise TypeError

        result = float(plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{name} must be a number. Received: {_shown(value)}."
        ) from error

    if not math.isfinite(result):
        return None

    # Nine decimals are more than any metric has, and keep the ledger's lines short.
    return round(result, 9)


def measured(
    value: Any, name: str, metrics: Mapping[str, Metric] = METRICS
) -> float | None:
    """Returns a metric's value for the ledger; None for NaN and infinity.

    Raises:
        UsageError: if it is missing or not a number, or a rate outside its range: most
            likely it is in percent.
    """
    result = number("missing" if value is None else value, name)
    metric = metric_named(name, metrics)
    most = _LARGEST_ERROR_RATE
    if metric.better == HIGHER:
        most = 1.0

    if metric.rate and result is not None and not 0 <= result <= most:
        raise UsageError(
            f"{name} must be a fraction between 0 and {most:g}, such as 0.1 for 10 %. "
            f"Received: {_shown(value)}."
        )

    return result


def _texts(values: Iterable[str], name: str) -> list[str]:
    """Returns transcripts as a list; raises `UsageError` for anything but texts.

    A single text is an error too, although Python would iterate its letters.
    """
    if isinstance(values, str | bytes):
        raise UsageError(
            f"{name} must be a list of texts, one for each utterance. Received: "
            f"{_shown(values)}."
        )

    texts = list(values)
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.isascii() and _SURROGATE.search(text):
            raise UsageError(
                f"{name} must be texts of valid Unicode. Received: {_shown(text)}, index "
                f"{number}."
            )

    return texts


def _shown(value: Any) -> str:
    """Returns a value for an error message, in at most 100 characters."""
    try:
        return repr(value)[:100]
    # Python writes no integer of more than 4300 digits.
    except ValueError:
        return f"a {type(value).__name__}"


class Recorder:
    """Records a training of any framework, so that ``tfasr report`` can read it.

    ::

        with tfasr.Recorder("runs/mine", train_samples=948, targets=[("cer", 0.15)]) as run:
            model = build()  # time before the first epoch counts as initialisation
            for _ in range(run.epochs_done, 20):
                run.epoch()
                for batch in batches:  # waiting for it counts as waiting for input
                    with run.step(utterances=len(batch)) as step:
                        step.loss = update(model, batch)
                with run.evaluation() as e:  # ends the epoch
                    e.score(references, recognise(model))
                save(model)
                run.checkpoint()

    Every event is handed to the operating system at once: ``kill -9`` loses at most the
    line being written. A folder with an unfinished run of the same settings is
    continued at its last checkpoint, and what was done after that counts as lost work.
    If the block ends with an exception, the run is recorded as aborted; it can still be
    continued.

    Args:
        run_dir: the run's folder, created if missing; only one process at a time may
            write it.
        train_samples: utterances, or samples of any kind, in an epoch.
        targets: as ``("cer", 0.15)`` or "accuracy=0.9"; error rates are fractions.
        target_window: how many evaluations' median must meet a target.
        metrics: your own metrics by name, each "lower" or "higher" (which is better) or
            a `tfasr.Metric`. Built-in ones (cer, wer, accuracy, loss and others) need
            no declaration.
        global_batch_size: utterances per update.
        seed: the run's random seed.
        facts: further facts, JSON by key, such as ``opt_name``, see
            `tfasr.ledger.schema`.
        comparability: what makes results comparable, JSON: reports don't rank runs that
            differ in it. By default the scored references and the target window.
        comparable_with: the folder of a run to be ranked with this one. Copies that
            run's comparability, except for ``comparability`` and the facts that the
            recorder measures: if the scored references or the target window differ,
            reports still don't rank the two.
        config: your configuration, JSON. A continued run must keep it, and runs that
            share it are one group of a report, whatever their seeds.
        resumed_from_step: the step of your checkpoint, 0 for none; default: the last
            recorded one.
        longer: how a finished run is extended, such as "to 40 epochs"; reports don't
            rank it with runs that were not extended in this way.
        utilisation: whether to sample how busy the machine is, see
            `tfasr.telemetry.samplers`.
        own_process: whether this process serves only this run, so that its start-up
            counts.

    Raises:
        UsageError: for invalid settings; when the block begins, if another process
            writes the folder, or it holds a different run or a finished one that isn't
            trained ``longer``; and for calls in a wrong order.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        train_samples: int | None = None,
        targets: Iterable[str | Target] = (),
        target_window: int = WINDOW,
        metrics: Mapping[str, str | Metric] | None = None,
        global_batch_size: int | None = None,
        seed: int | None = None,
        facts: Mapping[str, Any] | None = None,
        comparability: Mapping[str, Any] | None = None,
        comparable_with: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        resumed_from_step: int | None = None,
        longer: str = "",
        utilisation: bool = False,
        own_process: bool = False,
    ):
        check_mappings(
            metrics=metrics, facts=facts, comparability=comparability, config=config
        )
        self.run_dir = folder_named(run_dir)
        stated = {
            "train_samples": train_samples,
            "global_batch_size": global_batch_size,
            "seed": seed,
            **(facts or {}),
        }
        # The other run's comparability is stated after the first evaluation, when it is
        # known whether the references are the same.
        self._model: Comparable | None = None
        if comparable_with is not None:
            self._model = Comparable(Path(comparable_with), dict(comparability or {}))
            stated["comparable_with"] = self._model.fact()
            comparability = None

        self._settings = settings_of(
            targets,
            metrics or {},
            target_window=target_window,
            facts=stated,
            comparability=comparability,
            config=config,
        )
        self._metrics = Metrics.of(self._settings.metrics, "The recorder")
        self._wanted_step = resumed_from_step
        self._longer = longer
        self._utilisation = utilisation
        self._own_process = own_process
        self._order = Order()

        # In a continued run, this starts at the checkpoint's step.
        self.steps_done = 0
        # The checkpoint's step, 0 if there was none; None if this process began the
        # run.
        self.resumed_from_step: int | None = None
        self._history: list[dict[str, Any]] = []

    @property
    def epochs_done(self) -> int:
        """The number of finished epochs, those before the checkpoint included."""
        return self._order.epoch - self._order.in_epoch

    @property
    def train_samples(self) -> int | None:
        """Utterances, or samples of any kind, in an epoch; None if unknown."""
        return self._settings.facts.get("train_samples")

    @property
    def global_batch_size(self) -> int | None:
        """Utterances per update; None if unknown."""
        return self._settings.facts.get("global_batch_size")

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch has begun and not ended."""
        return self._order.in_epoch

    @property
    def history(self) -> list[dict[str, Any]]:
        """The scores of all evaluations outside lost work, in order."""
        return list(self._history)

    @property
    def targets_met(self) -> bool:
        """Whether the last evaluations meet all targets, so that training may stop."""
        # NaN meets no target, whichever way its metric is better.
        history = [dict(scores) for scores in self._history]
        for scores in history:
            for name, value in scores.items():
                if value is None:
                    scores[name] = math.nan

        return rule_met(
            history,
            self._settings.targets,
            self._settings.target_window,
            metrics=self._metrics,
        )

    def __enter__(self) -> "Recorder":
        if self._order.open:
            raise UsageError(
                "A recorder must be opened once. Received: one that is open."
            )

        with contextlib.ExitStack() as stack:
            stack.enter_context(claimed(self.run_dir, "folder"))
            begin = position(
                self.run_dir, self._settings, self._wanted_step, self._longer
            )
            self._settings.write(self.run_dir)
            self._ledger = Ledger(self.run_dir, begin.session)
            stack.callback(self._ledger.close)
            self._session = Session(self._ledger)
            # Whether training has begun, the references' hash was stated, and a loss
            # that is NaN was named.
            self._training = False
            self._hashed = False
            self._warned = False
            self.steps_done = begin.step
            self.resumed_from_step = begin.step if begin.session else None
            self._history = [begin.history[epoch] for epoch in sorted(begin.history)]
            self._touch()
            self._session.start(self.resumed_from_step, own_process=self._own_process)

            # What is known about comparability before the first evaluation. A run that
            # was extended keeps what it stated before.
            self._extended = begin.extended
            self._before = self._settings.comparability
            if self._before is None and self._extended:
                self._before = begin.comparability or {}

            if begin.extends:
                self._ledger.event("extended", begin.extended[-1])

            # Before ``model_creation``, where the paper's clock starts: this isn't
            # training.
            text = json.dumps({"system": _system()}, indent=1)
            write_whole(self.run_dir / RUN_FILE, f"{text}\n")
            self._ledger.start("init")
            self._ledger.event("model_creation")
            stack.enter_context(HostSampler(self.run_dir, begin.session))
            if self._utilisation:
                stack.enter_context(UtilisationSampler(self.run_dir))

            self._stack = stack.pop_all()
            self._order = Order(
                True, begin.epoch, evaluated=begin.epoch in begin.history
            )

        return self

    def __exit__(self, kind, error, trace) -> None:
        # The process that opened the recorder ends the run.
        if self._order.inherited:
            return

        if not self._order.open:
            if kind is None:
                self._order.check("The end of the recorder's block")

            return

        try:
            if kind is None:
                self._order.check("The end of the recorder's block")
                self._end_epoch()
                self._end_init()

                # On a full disk, the training itself has still succeeded.
                with contextlib.suppress(OSError):
                    self._session.finish()
            else:
                self._session.finish(error)
        except UsageError as wrong:
            self._session.finish(wrong)
            raise
        finally:
            self._order.open = False
            self._stack.close()

    def note(self, **facts: Any) -> None:
        """Records JSON facts known only now, such as ``run.note(parameters=123_456)``.

        Raises:
            UsageError: for what isn't JSON, or within a block.
        """
        self._order.check("run.note(...)")
        check_facts(facts)
        self._session.write_facts(facts)
        self._touch()

    def epoch(self, number: int | None = None) -> Epoch:
        """Begins the next epoch, or epoch ``number``, and ends the one before.

        An epoch also ends with its evaluation or its ``with`` block. To evaluate more
        often than once per pass over the data, begin a new epoch after each evaluation.

        Raises:
            UsageError: within another block, or if the number is not larger than the last
                epoch's.
        """
        order = self._order
        order.check("run.epoch()")
        if number is None:
            number = order.epoch + 1

        if type(number) is not int or number <= order.epoch:
            text = f"An epoch's number must be above the last epoch's, {order.epoch}."
            raise UsageError(f"{text} Received: {number!r}.")

        self._end_epoch()
        self._end_init()
        order.epoch = number
        order.in_epoch = True
        order.evaluated = False
        self._ledger.start("epoch", epoch_num=number)
        self._touch()

        return Epoch(self, number)

    def step(
        self,
        *,
        utterances: float | None = None,
        audio_s: float | None = None,
        frames: int | None = None,
        padded_frames: int | None = None,
        input_wait_s: float | None = None,
    ) -> Step:
        """Returns a block for one update of the weights, a `Step`.

        Args:
            utterances: of the batch, or samples of any kind.
            audio_s: seconds of audio.
            frames: feature frames, without padding.
            padded_frames: feature frames, with padding.
            input_wait_s: how long the batch took to arrive; by default the time since the
                recorder's last call.

        Raises:
            UsageError: outside an epoch or within another block; at the block's end, for an
                amount that is negative or not a number.
        """
        self._order.check("run.step(...)")
        self._order.check_epoch("run.step(...)")

        return Step(self, input_wait_s, utterances, audio_s, frames, padded_frames)

    def evaluation(self) -> Evaluation:
        """Returns a block for an evaluation, which ends the epoch.

        Raises:
            UsageError: before the first epoch, for a second evaluation of the same epoch, or
                within another block.
        """
        self._order.check("run.evaluation()")
        if self._order.evaluated or not self._order.epoch:
            self._order.check_epoch("run.evaluation()")

        self._end_init()

        return Evaluation(self)

    def checkpoint(self) -> Mark:
        """Records that all work so far is saved: an interrupted run continues from here."""
        self._order.check("run.checkpoint()")
        with Saving(self):
            return Mark()

    def saving(self) -> Saving:
        """Returns a block for saving a checkpoint; like `checkpoint`, with its time."""
        self._order.check("run.saving()")
        return Saving(self)

    @property
    def _where(self) -> dict[str, int]:
        return {"step": self.steps_done, "epoch_num": self._order.epoch}

    def _end_init(self) -> None:
        """Ends the initialisation, once: the first epoch or evaluation begins.

        All facts are written now, since a framework may know some of them only after
        its start.
        """
        if self._training:
            return

        self._training = True
        settings = self._settings
        self._ledger.stop("init")
        self._session.begin_training(
            {
                **settings.facts,
                "metrics": settings.metrics,
                "targets": settings.targets,
                "target_rule": to_json(settings.target_rule),
            }
        )
        if self._before is not None:
            self._state_comparability(self._before)

        self._ledger.sync()
        self._touch()

    def _end_epoch(self) -> None:
        """Ends the current epoch, if there is one."""
        if self._order.in_epoch:
            self._order.in_epoch = False
            self._ledger.stop("epoch", epoch_num=self._order.epoch)

        self._touch()

    def _warn_of_loss(self) -> None:
        """Warns once of a loss that is NaN: mixed precision skips such steps."""
        if not self._warned:
            _log.warning(
                "The loss of step %d (epoch %d) is NaN or infinite. Such losses are recorded as "
                "missing. If further losses are too, the weights are spoiled: lower the learning "
                "rate or clip gradients, and continue from the last checkpoint.",
                self.steps_done + 1,
                self._order.epoch,
            )

        self._warned = True

    def _book_step(self, value: dict[str, Any]) -> None:
        """Writes a step's event; ``value`` has its amounts, times and loss."""
        self.steps_done += 1
        self._ledger.event(
            "train_step", value, epoch_num=self._order.epoch, step=self.steps_done
        )
        self._touch()

    def _end_evaluation(
        self, scores: dict[str, Any], references: Sequence[str]
    ) -> None:
        """Ends the epoch with an evaluation's scores.

        The first evaluation that scored texts also states what makes the run
        comparable, unless the user did: the references, in any order, and the rule for
        targets.
        """
        self._history.append(scores)
        self._order.evaluated = True
        if self._settings.comparability is None and references and not self._hashed:
            self._hashed = True
            lines = "\n".join(_in_order(references))
            digest = hashlib.sha256(lines.encode()).hexdigest()
            comparability = {
                "validation_references": digest[:16],
                "validation_utterances": len(references),
                "target_rule": to_json(self._settings.target_rule),
            }
            if self._model is not None:
                comparability = self._model.taken_over(comparability, references)

            self._state_comparability(comparability)

        self._end_epoch()
        self._ledger.sync()

    def _state_comparability(self, stated: dict[str, Any]) -> None:
        """Writes what makes the run comparable, and how it was extended if it was."""
        if self._extended:
            stated = {**stated, "extended": self._extended}

        self._ledger.event("comparability", stated)

    def _touch(self) -> None:
        """Notes the end of a call: time from now on counts as waiting for a batch."""
        self._last_at = time.perf_counter()


def _in_order(texts: Iterable[str]) -> list[str]:
    """Returns transcripts sorted and with single spaces, to compare and hash them."""
    return sorted(" ".join(text.split()) for text in texts)


class Comparable:
    """Takes over another run's comparability, so that reports rank this run with it.

    Args:
        run_dir: the other run's folder.
        stated: what the user says is different in this run.

    Raises:
        UsageError: if the other run doesn't state what makes it comparable.
    """

    def __init__(self, run_dir: Path, stated: dict[str, Any]):
        comparability = load_run(run_dir).comparability
        if comparability is None:
            raise UsageError(
                f"comparable_with must name a run whose ledger has a comparability event; a "
                f"recorder writes it at the first evaluation. Received: {run_dir}."
            )

        self._run_dir = run_dir
        self._theirs = comparability
        self._stated = stated
        self._references: list[str] | None = None  # None if unknown
        files = sorted((run_dir / HYPOTHESES_FOLDER).glob("*.jsonl"))
        scored = read_transcripts(files[0]) if files else []
        if scored and len(scored) == comparability.get("validation_utterances"):
            self._references = _in_order(transcript.reference for transcript in scored)

    def fact(self) -> dict[str, Any]:
        """Describes the other run for the ledger."""
        return {"run": str(self._run_dir), "stated": self._stated}

    def taken_over(
        self, recorded: dict[str, Any], references: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the other run's comparability, except for what differs in this run.

        Args:
            recorded: what this run measured: references, their number and the rule.
            references: the transcripts that were scored.
        """
        # tfasr train's hash covers utterance ids, which a recorder lacks: equal texts
        # suffice here.
        theirs = self._theirs
        if self._references == _in_order(references):
            recorded["validation_references"] = theirs.get("validation_references")

        # The hash is that of all other values: it holds only if none of them differs.
        taken = {name: value for name, value in theirs.items() if name != "hash"}
        ours = {**taken, **recorded, **self._stated}
        if ours == taken:
            return dict(theirs)

        differing = ", ".join(
            name for name in ours if ours[name] != taken.get(name, ours)
        )
        _log.warning(
            "Reports will not rank this run with %s: %s.", self._run_dir, differing
        )

        return ours


def _system() -> dict[str, Any]:
    """Returns a description of the machine, with only the frameworks that are in use.

    tfasr's own packages are installed next to a user's PyTorch, say, but train nothing
    here.
    """
    system = describe_system()
    used = {name: version(name) for name in _FRAMEWORKS if name in sys.modules}
    packages = {
        n: text for n, text in system["packages"].items() if n not in _FRAMEWORKS
    }
    system["packages"] = packages | {name: text for name, text in used.items() if text}

    return system
