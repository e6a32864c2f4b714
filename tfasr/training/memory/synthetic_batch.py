"""Batches of noise in the shape of speech, where only sizes matter."""

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import Batch
from tfasr.models.recogniser import output_frames
from tfasr.training.experiment import Experiment

# LibriSpeech's readers say some 14 characters a second, and a feature frame is 10 ms.
FRAMES_PER_LABEL = 7


def synthetic_batch(
    experiment: Experiment,
    utterances: int,
    frames: int,
    labels: int | None = None,
    *,
    alphabet: Alphabet | None = None,
    length_spread: float = 0.0,
    seed: int = 0,
) -> Batch:
    """Makes a batch like those of `tfasr.data.pipeline.BatchSource`.

    Args:
        experiment: names the features and the model.
        utterances: of the batch.
        frames: to which features are padded; the first utterance has them all.
        labels: of the first utterance; by default as many as are said in the time.
        alphabet: whose characters are said; English by default.
        length_spread: lengths lie evenly between this share less than ``frames`` and ``frames``.
        seed: of the noise and the labels.

    Raises:
        ValueError: if the shortest utterance has no output frame, or fewer than its labels.
    """
    rng = np.random.default_rng(seed)
    model, features = experiment.model, experiment.features
    labels = max(frames // FRAMES_PER_LABEL, 1) if labels is None else labels
    shares = 1 - length_spread * np.arange(utterances) / max(utterances - 1, 1)
    lengths = np.maximum(np.round(frames * shares), 1).astype(np.int32)
    label_lengths = np.maximum(np.round(labels * shares), 1).astype(np.int32)
    outputs = np.array([output_frames(model, n) for n in lengths.tolist()])
    if (outputs < label_lengths).any():
        raise ValueError(
            "Utterances must have at least as many output frames as labels. Received: "
            f"{lengths.min()} frames, {outputs.min()} through the model, and "
            f"{label_lengths[outputs.argmin()]} labels. Ask for more frames or fewer labels."
        )
    characters = (alphabet or Alphabet()).blank_id
    # Steps of at least 1 around the alphabet: equal neighbours would need a blank between them.
    said = np.cumsum(rng.integers(1, characters, (utterances, labels)), axis=1) % characters
    noise = rng.standard_normal((utterances, frames, features.num_features), np.float32)
    noise *= np.arange(frames)[None, :, None] < lengths[:, None, None]
    step_s = features.step_samples / features.sample_rate_hz
    return {
        "features": tf.constant(noise),
        "feature_lengths": tf.constant(lengths),
        "labels": tf.constant(said, tf.int32),
        "label_lengths": tf.constant(label_lengths),
        "positions": tf.range(utterances, dtype=tf.int64),
        "duration_s": tf.constant(lengths * step_s, tf.float32),
    }


def batch_spec(experiment: Experiment) -> dict[str, tf.TensorSpec]:
    """Returns the signature of batches with open dimensions."""
    open_batch = tf.TensorSpec([None], tf.int32)
    return {
        "features": tf.TensorSpec([None, None, experiment.features.num_features], tf.float32),
        "feature_lengths": open_batch,
        "labels": tf.TensorSpec([None, None], tf.int32),
        "label_lengths": open_batch,
        "positions": tf.TensorSpec([None], tf.int64),
        "duration_s": tf.TensorSpec([None], tf.float32),
    }
