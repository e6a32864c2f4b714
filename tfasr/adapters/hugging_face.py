"""A callback for Hugging Face's ``Trainer`` that records its training."""

from collections.abc import Mapping

from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from tfasr.adapters.translation import Score, check_step, new_utterances, note
from tfasr.recording.recorder import Recorder


class RecordTrainer(TrainerCallback):
    """Records steps, evaluations and checkpoints of a ``Trainer``.

    ::

        with tfasr.Recorder(
            "runs/mine", train_samples=len(data), targets=["wer=0.2"]
        ) as run:
            trainer = Trainer(..., callbacks=[RecordTrainer(run)])
            trainer.train(resume_from_checkpoint=bool(run.steps_done))

    With an ``eval_strategy`` of "steps", each recorded epoch ends with an evaluation.

    Args:
        run: an open recorder.
        metrics: maps the ledger's names to the trainer's, such as ``{"accuracy":
            "eval_acc"}``; by default all ``eval_`` metrics that are built in or
            declared.
        score: returns references and hypotheses of the validation set, if
            ``compute_metrics`` doesn't compute WER and CER.
        stop_at_targets: whether to stop training once the run's targets are met.
    """

    def __init__(
        self,
        run: Recorder,
        *,
        metrics: Mapping[str, str] | None = None,
        score: Score | None = None,
        stop_at_targets: bool = False,
    ):
        self._run = run
        self._names = metrics
        self._score = score
        self._stop_at_targets = stop_at_targets
        self._evaluation = None
        # Samples of the epoch so far: its last batch may be smaller than the others.
        self._seen = 0

    def on_train_begin(self, args, state, control, **kwargs):
        check_step(self._run, state.global_step)

    def on_epoch_begin(self, args, state, control, **kwargs):
        self._seen = 0
        if not self._run.in_epoch or args.eval_strategy != IntervalStrategy.STEPS:
            self._run.epoch()

    def on_step_begin(self, args, state, control, **kwargs):
        if not self._run.in_epoch:
            self._run.epoch()

        self._step = self._run.step().__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        per_device = args.train_batch_size * args.gradient_accumulation_steps
        batch = per_device * args.world_size
        self._step.utterances = new_utterances(self._run, self._seen, batch)
        self._seen += batch
        self._step.__exit__(None, None, None)
        self._evaluate_if_asked(control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self._evaluate_if_asked(control)

    def _evaluate_if_asked(self, control):
        """Opens the evaluation that the trainer is about to make."""
        if control.should_evaluate and self._evaluation is None:
            self._evaluation = self._run.evaluation().__enter__()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if self._evaluation is not None:
            note(self._evaluation, metrics or {}, "eval_", self._names, self._score)
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None
            if self._stop_at_targets and self._run.targets_met:
                control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        self._run.checkpoint()
