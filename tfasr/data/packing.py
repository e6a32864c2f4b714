"""One shard's content: what decides its bytes, and how its utterances become records."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.corpora.manifests import ctc_frames_needed, length_fault
from tfasr.corpora.utterance import Rejection, Utterance
from tfasr.data.audio import read_audio
from tfasr.data.features import FeatureConfig, compute_features
from tfasr.data.manifest import FORMAT, ShardedUtterance, file_sha256
from tfasr.data.noise import Copies
from tfasr.data.shards import FeatureSums, ShardConfig, encode_record, write_shard
from tfasr.kit.config import to_json
from tfasr.models.model import RecogniserConfig, frame_geometry, output_frames


@dataclass(frozen=True)
class Packing:
    """All that decides the bytes of a split's shards."""

    alphabet: Alphabet
    features: FeatureConfig
    shards: ShardConfig
    model: RecogniserConfig  # its output frames decide which utterances are too short
    audio_reader: str = "soundfile"
    copies: Copies | None = None  # noisy ones, and of other speeds

    def content(self) -> dict[str, Any]:
        """Returns all settings that change the bytes, as JSON; normalisation happens later."""
        features = to_json(self.features)
        del features["normalisation"]
        if features["spectrum"] == "power":  # as all were before it could be chosen
            del features["spectrum"]
        return {
            "format": FORMAT,
            "alphabet": self.alphabet.to_json(),
            "features": features,
            "packing": to_json(self.shards),
            "conv": frame_geometry(self.model),
            "audio_reader": self.audio_reader,
            **({} if self.copies is None else {"noise": self.copies.content()}),
        }

    def output_frames(self, duration_s: float) -> int:
        """Returns the model's frames for so many seconds of audio; below 1 where none fits."""
        samples = round(duration_s * self.features.sample_rate_hz)
        frames = self.features.num_frames(samples)
        return output_frames(self.model, frames)


def write_part(
    shard_path: Path,
    packing: Packing,
    first_position: int,
    part: Sequence[Utterance],
    partial: Path | None = None,
) -> dict[str, Any]:
    """Writes one shard and returns its sidecar as JSON.

    Bad utterances are left out and their positions, from ``first_position`` on, stay empty.
    """
    records, utterances, bad = [], [], []
    sums = FeatureSums()
    for position, utterance in enumerate(part, start=first_position):
        packed = _pack_utterance(packing, utterance, position)
        if isinstance(packed, Rejection):
            bad.append(vars(packed))
            continue
        features, labels, utterance_sums, listed = packed
        records.append(encode_record(features, labels, position, listed.duration_s))
        sums.merge(utterance_sums)
        utterances.append(dataclasses.asdict(listed))
    write_shard(shard_path, records, packing.shards.compression, partial)
    return {
        "file": shard_path.name,
        "bytes": shard_path.stat().st_size,
        "sha256": file_sha256(shard_path),
        "records_sha256": hashlib.sha256(b"".join(records)).hexdigest(),
        "feature_sums": sums.to_json(),
        "utterances": utterances,
        "bad": bad,
    }


def _pack_utterance(
    packing: Packing, utterance: Utterance, position: int
) -> Rejection | tuple[np.ndarray, list[int], FeatureSums, ShardedUtterance]:
    rate_hz = packing.features.sample_rate_hz
    try:
        recorded = read_audio(utterance.audio_path, rate_hz, packing.audio_reader)
        copies = packing.copies
        samples = recorded if copies is None else copies.changed(recorded, utterance.id, rate_hz)
    except (ValueError, OSError) as error:
        return Rejection(utterance.id, "unreadable audio", str(error))
    duration_s = len(samples) / rate_hz
    # Judged before by the header's duration, here by the samples.
    fault = length_fault(utterance, packing.alphabet, packing.output_frames(duration_s))
    if fault is not None:
        return fault
    # Values that a float16 cannot hold become infinite.
    features = _feature_function(packing.features, packing.shards.dtype)(samples).numpy()
    original = features
    if samples is not recorded:  # a copy is the recording, where splits must not share any
        original = _feature_function(packing.features, packing.shards.dtype)(recorded).numpy()
    sums = FeatureSums()
    sums.add(features)
    if not sums.finite:
        loudest = float(np.abs(samples).max())
        detail = f"{utterance.audio_path}: samples up to {loudest:g}, where full scale is 1"
        return Rejection(utterance.id, "features that are not finite numbers", detail)
    labels = packing.alphabet.encode(utterance.text)
    listed = ShardedUtterance(
        *(position, utterance.id, utterance.text, utterance.speaker),
        duration_s=round(duration_s, 4),
        frames=len(features),
        frames_needed=ctc_frames_needed(labels),
        content=hashlib.sha256(original.tobytes()).hexdigest()[:16],
    )
    return features, labels, sums, listed


@functools.cache
def _feature_function(config: FeatureConfig, dtype: str) -> Callable[[np.ndarray], tf.Tensor]:
    return tf.function(
        lambda samples: tf.cast(compute_features(samples, config), dtype),
        input_signature=[tf.TensorSpec([None], tf.float32)],
    )
