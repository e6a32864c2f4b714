"""A Keras callback: word beam search and time to accuracy for CTC models.

It does under ``fit`` what ``tfasr train`` does between epochs (`tfasr.training.swap`),
and records it as `RecordFit` does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfasr.adapters.keras import RecordFit
from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import Hypothesis
from tfasr.decoding.word_beam_search import WordBeamSearch
from tfasr.errors import UsageError
from tfasr.kit.files import hypotheses_file
from tfasr.recording.recorder import Evaluation, Recorder
from tfasr.training.evaluation import hypothesis_line, on_all_devices, write_lines
from tfasr.training.swap import Swap

Inputs = Any
"""Tensors, arrays, or lists or dicts of them, as your model's ``call`` takes them."""


class BeamSearchEvaluation(RecordFit):
    """Evaluates a CTC model by word beam search after every epoch, and records times to
    accuracy.

    ::

        model.fit(batches, epochs=20, callbacks=[
            tfasr.BeamSearchEvaluation("runs/mine", validation, words=words,
                                       alphabet=" abcdefghijklmnopqrstuvwxyz'",
                                       batch_size=32, targets=["wer=0.2"])])

    As in `tfasr.train` with ``evaluation_placement = "swapped"``, the model and its
    optimizer leave the devices, an evaluation model with the same weights takes their
    place and computes the outputs on all devices of the model's strategy, while a
    thread decodes them. Then the training values come back, bit for bit. Epochs, steps,
    evaluations, swaps and decoding are recorded with their times, so that ``tfasr
    report`` shows the run. The callback's ``logs`` get ``val_wer`` and ``val_cer`` for
    the callbacks after it. Keras's TensorFlow backend is needed.

    Args:
        run: the run's folder, or an open `tfasr.Recorder`. A folder's clock starts when
            the callback is made, so make it before the model or, to count everything,
            pass a recorder.
        validation: pairs of inputs for the model and texts, one pair per batch, such as
            a list or a ``tf.data.Dataset``. It is read once per epoch.
        words: the dictionary. Only its words are recognised.
        alphabet: the characters in the order of the model's classes, without the blank;
            or an `Alphabet`.
        blank: which class is the CTC blank: "first", as in ``keras.losses.CTC``, or
            "last".
        from_logits: whether the model returns logits or log-probabilities, ``(batch,
            frames, classes)``, rather than probabilities.
        output_lengths: returns the valid output frames ``(batch,)`` of inputs; by
            default all.
        build: returns an untrained copy of the model; by default
            ``keras.models.clone_model`` copies a Sequential or functional model.
        beam_width: hypotheses kept per frame.
        batch_size: utterances per step, as in ``fit``; default: the recorder's
            ``global_batch_size``.
        targets: as of `tfasr.Recorder`, if ``run`` is a folder.
        checkpoint: whether a callback before this one saves a checkpoint after each
            epoch.
        stop_at_targets: whether to stop training once the run's targets are met.

    Raises:
        UsageError: if an argument is unfit or, in the first evaluation, the model's
            outputs don't match the alphabet.
    """

    def __init__(
        self,
        run: Recorder | str | Path,
        validation: Iterable[tuple[Inputs, Sequence[str]]],
        *,
        words: Iterable[str],
        alphabet: str | Alphabet,
        blank: Literal["first", "last"] = "first",
        from_logits: bool = True,
        output_lengths: Callable[[Inputs], Sequence[int]] | None = None,
        build: Callable[[], keras.Model] | None = None,
        beam_width: int = 256,
        batch_size: int | None = None,
        targets: Iterable[str | tuple[str, float]] = (),
        checkpoint: bool = False,
        stop_at_targets: bool = False,
    ):
        if keras.backend.backend() != "tensorflow":
            raise UsageError(
                "BeamSearchEvaluation needs Keras's TensorFlow backend. Received: "
                f"{keras.backend.backend()}. RecordFit records any backend."
            )

        if blank not in ("first", "last"):
            raise UsageError(f'blank must be "first" or "last". Received: {blank!r}.')

        if isinstance(alphabet, str):
            alphabet = Alphabet(alphabet, separator=None)
        self._alphabet = alphabet
        self._decoder = WordBeamSearch(self._alphabet, words, beam_width)
        self._owned: Recorder | None = None
        if not isinstance(run, Recorder):
            run = Recorder(run, targets=targets, global_batch_size=batch_size)
            self._owned = run.__enter__()
        elif targets:
            raise UsageError(
                "Pass the targets to the recorder: Recorder(..., targets=[...])."
            )

        super().__init__(
            run,
            batch_size=batch_size,
            checkpoint=checkpoint,
            stop_at_targets=stop_at_targets,
        )
        self._validation = validation
        self._blank_first = blank == "first"
        self._from_logits = from_logits
        self._output_lengths = output_lengths
        self._build = build
        self._swap: Swap | None = None
        self._evaluation_model: keras.Model | None = None
        self._forward: Callable[[Inputs], tf.Tensor] | None = None
        self._evaluation: Evaluation | None = None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._swap = Swap(self.model, self._build or self._clone)
        self._forward = None

    def on_test_begin(self, logs=None):
        # fit's own validation_data are evaluated first; both are one evaluation of the
        # run.
        if self._fitting:
            self._begin_evaluation()

    def on_test_end(self, logs=None):
        """Records the loss of fit's own validation data in the same evaluation."""
        if self._fitting and logs and "loss" in logs:
            self._evaluation.measure(loss=logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        """Evaluates the model, in the evaluation that fit's own validation began."""
        if self._evaluation is None:
            self._begin_evaluation()

        evaluation = self._evaluation
        self._evaluation = None

        try:
            memory = self._evaluate(evaluation, self._run.epochs_done + 1)
        except BaseException as error:
            evaluation.__exit__(type(error), error, error.__traceback__)
            raise

        evaluation.__exit__(None, None, None)
        self._run.note(device_memory=memory)
        if logs is not None:
            logs["val_wer"] = evaluation.scores["wer"]
            logs["val_cer"] = evaluation.scores["cer"]

        super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs=None):
        """Ends the run if the callback has begun it."""
        super().on_train_end(logs)
        if self._owned is not None:
            self._owned.__exit__(None, None, None)

    def _begin_evaluation(self) -> None:
        """Opens an evaluation whose block `on_epoch_end` closes."""
        self._evaluation = self._run.evaluation()
        self._evaluation.__enter__()

    def _clone(self) -> keras.Model:
        """Returns an untrained copy of the model, without its optimizer.

        Raises:
            UsageError: if Keras can't copy a model of this kind.
        """
        compiled = self.model.compiled
        # Keras would copy the optimizer too, whose values are as large as the weights.
        self.model.compiled = False
        try:
            return keras.models.clone_model(self.model)
        except ValueError as error:
            raise UsageError(
                "BeamSearchEvaluation can copy Sequential and functional models. Received: "
                f"{type(self.model).__name__}. Pass build=..., a function that returns an "
                "untrained model of the same layers."
            ) from error
        finally:
            self.model.compiled = compiled

    def _evaluate(self, evaluation: Evaluation, epoch: int) -> Mapping[str, int]:
        """Scores the validation data in an open evaluation.

        A thread decodes each batch while the devices compute the next ones. What is
        left to decode once the training values are back counts as decoding.

        Args:
            evaluation: the recorder's.
            epoch: names the file of hypotheses.

        Returns:
            The devices' memory in bytes, by name.
        """
        with evaluation.swapping():
            self._swap.prepare()
            weights = self.model.get_weights()

        def load(model: keras.Model) -> None:
            self._evaluation_model = model
            if len(model.weights) != len(weights):
                raise UsageError(
                    f"The evaluation model must have the {len(weights)} weights of the model that "
                    f"trains. Received: {len(model.weights)}. Pass build=..., a function that "
                    "returns an untrained model of the same layers, with an Input."
                )

            model.set_weights(weights)

        references: list[str] = []
        decoding: list[Future[list[Hypothesis]]] = []
        with ThreadPoolExecutor(1, thread_name_prefix="decoder") as thread:
            with self._swap.swapped(load, evaluation.swapping) as memory:
                for texts, log_probs, lengths in self._outputs():
                    references += texts
                    decoding.append(
                        thread.submit(self._decoder.decode, log_probs, lengths)
                    )

            hypotheses: list[Hypothesis] = []
            with evaluation.decoding():
                for future in decoding:
                    hypotheses += future.result()

        evaluation.score(references, [hypothesis.text for hypothesis in hypotheses])
        pairs = zip(references, hypotheses, strict=True)
        lines = [
            hypothesis_line(f"{number:06d}", reference, hypothesis)
            for number, (reference, hypothesis) in enumerate(pairs)
        ]
        write_lines(hypotheses_file(self._run.run_dir, epoch), lines)

        return memory

    def _outputs(self) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
        """Yields texts, log-probabilities with the blank last, and valid frames.

        Raises:
            UsageError: if there are no batches, or if the outputs don't match the alphabet.
        """
        if self._forward is None:
            strategy = self.model.distribute_strategy

            def forward(inputs: Inputs) -> tf.Tensor:
                return self._evaluation_model(inputs, training=False)

            self._forward = tf.function(
                on_all_devices(strategy, forward),
                reduce_retracing=True,
                autograph=False,
            )

        batches = 0
        for inputs, texts in self._validation:
            batches += 1
            texts = _plain_texts(texts)
            tensors = tf.nest.map_structure(tf.convert_to_tensor, inputs)
            log_probs = self._log_probs(self._forward(tensors).numpy(), len(texts))
            if self._output_lengths is None:
                lengths = np.full(len(texts), log_probs.shape[1])
            else:
                lengths = np.asarray(self._output_lengths(inputs))

            yield texts, log_probs, lengths.astype(np.int32)

        if not batches:
            raise UsageError(
                "validation must have batches in every epoch. Received: none. A generator is empty "
                "after its first epoch: pass a list or a tf.data.Dataset."
            )

    def _log_probs(self, outputs: np.ndarray, utterances: int) -> np.ndarray:
        """Returns log-probabilities ``(batch, frames, classes)``, the blank last."""
        classes = self._alphabet.num_classes
        fits = (
            outputs.ndim == 3
            and len(outputs) == utterances
            and outputs.shape[2] == classes
        )
        if not fits:
            raise UsageError(
                f"The model must return outputs ({utterances}, frames, {classes}): one row for "
                f"each text, and {classes - 1} characters and the blank as classes. Received: "
                f"outputs of the shape {outputs.shape}. Correct validation or alphabet."
            )

        outputs = outputs.astype(np.float32)
        if self._from_logits:
            log_probs = tf.nn.log_softmax(outputs).numpy()
        else:
            # A probability of 0 would give minus infinity.
            log_probs = np.log(np.maximum(outputs, np.finfo(np.float32).tiny))

        if self._blank_first:
            return np.roll(log_probs, -1, axis=-1)

        return log_probs


def _plain_texts(texts: Any) -> list[str]:
    """Returns a batch's texts, which may be a string tensor, bytes or str."""
    values = texts.numpy() if hasattr(texts, "numpy") else texts
    return [text.decode() if isinstance(text, bytes) else str(text) for text in values]
