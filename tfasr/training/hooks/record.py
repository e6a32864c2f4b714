"""Hooks that record steps, check the data, and log transcripts and scalars.

`RecordSteps` and `CheckData` come before all other hooks but the evaluation: the former
ends a run whose loss isn't finite, the latter one whose data isn't what it should be.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfasr.data.batches import Batch
from tfasr.decoding.choice import DecoderConfig, make_decoder
from tfasr.errors import RunError
from tfasr.kit.registry import blamed
from tfasr.ledger.schema import TrainStep
from tfasr.models.model import kernels
from tfasr.training.checkpoint import plain_array
from tfasr.training.hooks.show import on_terminal
from tfasr.training.logs import Log
from tfasr.training.loop import Hook
from tfasr.training.run import TrainingRun
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")

# Source: the paper, Figure 6: sentences are generated with a beam width of one.
_SENTENCE_DECODER = DecoderConfig(name="beam", beam_width=1)
# How many are logged each time.
_SENTENCES = 3
# How many utterances an error message names.
_NAMED = 20


class RecordSteps(Hook):
    """Writes every step into the ledger and ends the run at a loss that is not finite."""

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        diverged = not math.isfinite(step.loss)
        loss = None if diverged else round(step.loss, 6)

        recorded = TrainStep(
            loss=loss,
            utterances=step.utterances,
            audio_s=round(step.audio_s, 6),
            frames=step.frames,
            padded_frames=step.padded_frames,
            input_wait_s=round(step.input_wait_s, 6),
            compile_s=round(step.compile_s, 6),
            train_s=round(step.train_s, 6),
        )
        state = run.state
        run.ledger.write(recorded, epoch_num=state.epoch, step=state.step)

        if diverged:
            raise RunError(_divergence(run, step))

        # The first step shows which kernels the layers use.

        if state.step == 1:
            used = sorted(kernels(run.model.recogniser))
            run.ledger.event("lstm_kernel", used)
            if used:
                log.info("recurrent layers computed by: %s", ", ".join(used))


def _divergence(run: TrainingRun, step: StepResult) -> str:
    """Describes a loss that isn't finite, with the utterances that it came from."""
    bad = set(step.positions[~np.isfinite(step.utterance_loss)].tolist())
    ids = [u.id for u in run.splits["train"].utterances if u.position in bad]
    named = ", ".join(ids[:_NAMED])

    if len(ids) > _NAMED:
        named += " and more"

    return (
        f"The loss must be finite. Step {run.state.step} (epoch {run.state.epoch}) got "
        f"{step.loss} from the utterances {named}. The last good checkpoint is kept. Lower "
        "the learning rate or clip gradients (clipnorm), look at those utterances, then "
        "start a new run or continue with --resume."
    )


class CheckData(Hook):
    """Ends the run if its data isn't what it should be.

    That is if shards changed while it trained, or an epoch did not contain each
    utterance exactly once.
    """

    def __init__(self):
        # The epoch's utterances so far, one array per step.
        self._positions: list[np.ndarray] = []
        # Whether the epoch is trained from its first to its last batch.
        self._whole = False

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        run.splits["train"].check_unchanged()
        self._positions = []
        self._whole = (
            run.state.step_in_epoch == 0
            and not run.state.epoch_trained
            # Several replicas take equal parts of a batch, and skip what remains.
            and run.training.replicas == 1
        )

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        self._positions.append(step.positions)
        self._whole = self._whole and not step.lost_utterances
        # Before a checkpoint is saved, which would outlive the mistake.
        if run.state.step % run.training.checkpoint_every_steps == 0:
            run.splits["train"].check_unchanged()

    def on_epoch_trained(self, run: TrainingRun, epoch: int) -> None:
        for split in run.splits.values():
            split.check_unchanged()

        split = run.splits["train"]
        trained = np.concatenate([*self._positions, np.zeros(0, np.int64)])

        distinct = len(np.unique(trained))
        expected = len(split.utterances)
        # A run that stops early doesn't train its last epoch to the end.
        lacks_some = self._whole and not run.stop_requested and distinct < expected
        has_repeated = distinct < len(trained)
        if lacks_some or has_repeated or distinct > expected:
            raise RunError(
                f"An epoch must train on each of the {expected} utterances of {split.folder} once. "
                f"Epoch {epoch} got {len(trained)}, of which {distinct} distinct: the shards do "
                "not match their index. Run tfasr prepare into another --shard_dir."
            )

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        run.splits["validation"].check_unchanged()


class PrintSentences(Hook):
    """Logs transcripts of the first training utterances, next to their references.

    On a terminal, which also has the progress line, only the first one is logged. The
    utterances are read when first needed, separately from training's batches and not
    augmented; the model runs as in an evaluation.

    Source: the paper, Figure 6: sentences of the training set, beam width 1.
    """

    def __init__(self, run: TrainingRun):
        self._run = run
        self._decoder = make_decoder(_SENTENCE_DECODER, run.alphabet)
        self._every_steps = run.training.sentences_every_steps

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        state = run.state
        if not self._every_steps or state.step % self._every_steps:
            return

        with run.ledger.interval("sentences", step=state.step):
            log.info("step %d, epoch %d, loss %.3f", state.step, state.epoch, step.loss)
            # A terminal also has the progress line.
            shown = 1 if on_terminal() else None
            for reference, hypothesis in self._sentences()[:shown]:
                log.info("  reference:  %s\n  recognised: %s", reference, hypothesis)

    def _sentences(self) -> list[tuple[str, str]]:
        """Returns references and transcripts; RunError if the split lacks an utterance."""
        positions = self._batch["positions"].numpy().tolist()
        split = self._run.sources["train"].split

        try:
            utterances = split.at(positions)
        except KeyError as error:
            raise RunError(
                f"The shards in {split.folder} must hold what its manifest lists. They hold an "
                f"utterance at position {error}, which it does not list. Run tfasr prepare into "
                "another --shard_dir."
            ) from None

        log_probs, lengths = self._forward()
        hypotheses = self._decoder.decode(log_probs.numpy(), lengths.numpy())
        return [
            (utterance.text, hypothesis.text)
            for utterance, hypothesis in zip(utterances, hypotheses, strict=True)
        ]

    @functools.cached_property
    def _batch(self) -> Batch:
        return self._run.sources["train"].first(_SENTENCES)

    @tf.function(autograph=False)
    def _forward(self) -> tuple[tf.Tensor, tf.Tensor]:
        model = self._run.model
        lengths = model.output_lengths(self._batch["feature_lengths"])
        return tf.nn.log_softmax(model(self._batch, training=False)), lengths


class ScalarLog(Hook):
    """Gives logs the training's scalars after every step, and scores once they are known.

    Training: ``train/loss``, ``train/learning_rate``, ``train/utterances_per_s`` and
    ``train/audio_s_per_s`` of a step with its wait for input. Evaluation:
    ``validation/cer``, ``cer_reference``, ``wer`` and ``loss``, at the step that ended
    the epoch. All come with the *useful seconds*, the run's clock in every table: those
    since the creation of the model, with lost work, without downtime between sessions.
    Writing is recorded as ``logging``. The hook closes the logs.
    """

    def __init__(self, logs: Sequence[Log]):
        self._logs = list(logs)
        # How many evaluations of the run's history the logs have.
        self._written = 0
        # The last step of each epoch, since scores may come after later steps.
        self._last_steps: dict[float, int] = {}

    def on_train_begin(self, run: TrainingRun) -> None:
        self._written = len(run.state.history)

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        if not self._logs:
            return

        optimizer = run.model.optimizer
        seconds = step.input_wait_s + step.compile_s + step.train_s
        scalars = {
            "train/loss": step.loss,
            "train/learning_rate": float(plain_array(optimizer.learning_rate)),
            "train/utterances_per_s": step.utterances / seconds,
            "train/audio_s_per_s": step.audio_s / seconds,
        }

        with run.ledger.interval("logging", step=run.state.step):
            self._write(run, scalars, run.state.step)

        self._write_evaluations(run)

    def on_part_end(self, run: TrainingRun, epoch: float) -> None:
        self.on_epoch_end(run, epoch)

    def on_epoch_end(self, run: TrainingRun, epoch: float) -> None:
        self._last_steps[epoch] = run.state.step
        self._write_evaluations(run)

    def on_train_end(self, run: TrainingRun) -> None:
        self._write_evaluations(run)

    def _write_evaluations(self, run: TrainingRun) -> None:
        history = run.state.history
        last_step = run.state.step
        if not self._logs or len(history) == self._written:
            return

        with run.ledger.interval("logging", step=last_step):
            new = history[self._written :]
            for number, scores in enumerate(new, start=self._written + 1):
                scalars = {
                    f"validation/{name}": score
                    for name, score in scores.items()
                    if name != "epoch"
                }
                epoch = scores.get("epoch", number)
                self._write(run, scalars, self._last_steps.get(epoch, last_step))

            self._written = len(history)
            self._with_each(lambda scalar_log: scalar_log.flush())

    def close(self) -> None:
        self._with_each(lambda scalar_log: scalar_log.close())

    def _write(self, run: TrainingRun, scalars: dict[str, float], step: int) -> None:
        useful_s = run.clock.elapsed_s()
        self._with_each(lambda scalar_log: scalar_log.write(scalars, step, useful_s))

    def _with_each(self, action: Callable[[Log], None]) -> None:
        """Calls a function with each log, and drops the logs for which it fails.

        A failing log, a user's own or a service that is down, is no reason to lose a
        run.
        """
        for scalar_log in list(self._logs):
            try:
                action(scalar_log)
            except (Exception, SystemExit) as error:
                self._logs.remove(scalar_log)
                place, cause = blamed(error)
                log.warning(
                    "%s gets no more scalars. %s: %s.",
                    type(scalar_log).__name__,
                    place,
                    cause,
                )
