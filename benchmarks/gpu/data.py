"""Packs a corpus and a recipe for a machine without TensorFlow, and makes batches there with NumPy.

    python -m gpu.data --corpus_dir an4 --gin_file fast/an4.gin --folder packed --name an4

writes ``an4.json`` (the resolved recipe and all transcripts) and ``an4-0.zip``, ``an4-1.zip`` and
so on: the unchanged recordings in parts small enough to copy one by one. Steps that need
TensorFlow (gin, listing, the choice of padded lengths) are done here. The other machine computes
features, augmentation and batches as `tfasr.data` does, with other random numbers.
"""

import argparse
import csv
import io
import json
import queue
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.alphabet import Alphabet, normalise
from tfasr.data.features import (
    FeatureConfig,
    cosines,
    expect_many_frames,
    normalise_frames,
    numpy_features,
)
from tfasr.kit.config import to_json
from tfasr.models.recurrent import AcousticModelConfig

SPLITS = {"train": "train", "validation": "dev"}
Batch = dict[str, np.ndarray]


def pack(
    corpus_dir: Path,
    gin_file: str,
    folder: Path,
    name: str,
    part_mib: float,
    limit: int | None = None,
    bindings: tuple[str, ...] = (),
) -> None:
    """Writes a corpus and a recipe for `Packed`; needs TensorFlow.

    Args:
        corpus_dir: contains ``splits/train.tsv`` and ``splits/dev.tsv`` with the
            columns path, seconds and text.
        gin_file: a configuration with an LSTM model.
        part_mib: how large one archive of recordings may be.
        limit: utterances of each split; None for all.
    """
    import keras
    import soundfile

    from tfasr.data.augmentation import most_frames
    from tfasr.data.batches import bucket_boundaries
    from tfasr.training.build import moving_momentum
    from tfasr.training.from_gin import load_config

    experiment = load_config(gin_file, bindings).experiment
    features = experiment.features
    pipeline = experiment.pipeline
    training = experiment.training
    if training.intermediate_labels != "same" or features.normalisation == "speaker":
        raise ValueError(
            f"{gin_file} needs units or speakers, which aren't packed. Pack another recipe."
        )

    alphabet = Alphabet()
    splits = {}
    frames = {}
    for split, file in SPLITS.items():
        with (corpus_dir / "splits" / f"{file}.tsv").open(
            encoding="utf-8", newline=""
        ) as rows:
            listed = list(csv.DictReader(rows, delimiter="\t"))[:limit]
        splits[split] = [[row["path"], normalise(row["text"])] for row in listed]
        seconds = [
            soundfile.info(corpus_dir / path).duration for path, _ in splits[split]
        ]
        samples = [round(length_s * features.sample_rate_hz) for length_s in seconds]
        frames[split] = np.array([features.num_frames(count) for count in samples])

    change = experiment.augmentation.tempo_change
    slowest = [most_frames(frames["train"], c) for c in (-change, 0, change)]
    padded_to = {
        "train": bucket_boundaries(np.concatenate(slowest), pipeline.num_buckets),
        "validation": bucket_boundaries(frames["validation"], pipeline.num_buckets),
    }
    optimizer = keras.optimizers.serialize(training.optimizer())
    # Averaging weights would need extra code for each backend's optimizer.
    optimizer["config"]["use_ema"] = False
    recipe = {
        "gin_file": gin_file,
        "model": to_json(experiment.model),
        "features": to_json(features),
        "augmentation": to_json(experiment.augmentation),
        "optimizer": json.loads(json.dumps(optimizer, default=float)),
        "batch_size": pipeline.global_batch_size,
        "epochs": training.epochs,
        "momentum": moving_momentum(experiment, len(splits["train"])),
        "zero_output_layer": training.zero_output_layer,
        "intermediate_loss_weight": training.intermediate_loss_weight,
        "alphabet": alphabet.characters,
        "padded_to": {
            split: [int(n) for n in lengths] for split, lengths in padded_to.items()
        },
        "splits": splits,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(recipe), encoding="utf-8")
    part = 0
    size = 0
    archive = None
    for path, _ in [row for rows in splits.values() for row in rows]:
        content = (corpus_dir / path).read_bytes()
        if archive is None or size + len(content) > part_mib * 2**20:
            archive = zipfile.ZipFile(folder / f"{name}-{part}.zip", "w")
            part = part + 1
            size = 0

        archive.writestr(path, content)
        size += len(content)

    archive.close()


def _features(recording: tuple[bytes, FeatureConfig]) -> np.ndarray:
    import soundfile

    content, config = recording
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    if rate != config.sample_rate_hz:
        raise ValueError(
            f"Recordings must have {config.sample_rate_hz} Hz. Received: {rate}."
        )
    # float16, as in shards.
    return numpy_features(samples.mean(axis=1), config).astype(np.float16)


@dataclass(frozen=True)
class Utterance:
    features: np.ndarray  # float16 ``(frames, num_features)``, before normalisation
    labels: np.ndarray
    text: str


class Packed:
    """What `pack` wrote, with the features of all recordings in memory.

    Raises:
        FileNotFoundError: if a part of the recordings is missing.
    """

    def __init__(self, folder: Path, name: str):
        self.recipe: dict[str, Any] = json.loads(
            (folder / f"{name}.json").read_text("utf-8")
        )
        self.alphabet = Alphabet(self.recipe["alphabet"])
        self.model = AcousticModelConfig(**self.recipe["model"])
        self.config = FeatureConfig(**self.recipe["features"])
        recordings = {}
        for part in sorted(folder.glob(f"{name}-*.zip")):
            with zipfile.ZipFile(part) as archive:
                recordings |= {path: archive.read(path) for path in archive.namelist()}

        self.splits: dict[str, list[Utterance]] = {}
        expect_many_frames()
        with ThreadPoolExecutor() as pool:
            for split, rows in self.recipe["splits"].items():
                if missing := [path for path, _ in rows if path not in recordings]:
                    raise FileNotFoundError(
                        f"{missing[0]} is in none of the archives {name}-*.zip in {folder}. Copy "
                        "all of them there."
                    )

                inputs = [(recordings[path], self.config) for path, _ in rows]
                made = pool.map(_features, inputs)
                self.splits[split] = [
                    self._utterance(features, text)
                    for features, (_, text) in zip(made, rows, strict=True)
                ]

    def _utterance(self, features: np.ndarray, text: str) -> Utterance:
        return Utterance(features, np.array(self.alphabet.encode(text), np.int32), text)

    def training(self, seed: int, epoch: int) -> Iterator[Batch]:
        """Yields an epoch's batches, made by another thread, four ahead."""
        ahead: queue.Queue = queue.Queue(4)

        def fill() -> None:
            random = np.random.default_rng([seed, epoch])
            order = random.permutation(len(self.splits["train"]))
            for batch in self._batches(
                "train", order, lambda u: self._augmented(u, random, epoch)
            ):
                ahead.put(batch)
            ahead.put(None)

        threading.Thread(target=fill, daemon=True).start()
        while (batch := ahead.get()) is not None:
            yield batch

    def evaluation(self) -> Iterator[Batch]:
        """Yields the validation split's batches, the last filled up with its last utterance."""
        return self._batches(
            "validation", range(len(self.splits["validation"])), self._normalised
        )

    def _normalised(self, utterance: Utterance) -> np.ndarray:
        return normalise_frames(utterance.features.astype(np.float32), self.config)

    def _batches(self, split: str, order: Any, made: Callable) -> Iterator[Batch]:
        padded_to = self.recipe["padded_to"][split]
        size = self.recipe["batch_size"]
        waiting: dict[int, list] = {frames: [] for frames in padded_to}
        # The same padding for all, so that JAX compiles each length once.
        most_labels = max(len(utterance.labels) for utterance in self.splits[split])
        for position in order:
            features = made(self.splits[split][position])[: padded_to[-1]]
            frames = next(n for n in padded_to if len(features) <= n)
            waiting[frames].append((position, features))
            if len(waiting[frames]) == size:
                yield self._batch(split, frames, waiting[frames], most_labels)
                waiting[frames] = []

        # What is left of all lengths goes together, so that JAX compiles no program for
        # each length and number of rows: 13 programs instead of 23 on AN4, for 0.4 % more
        # frames in training and 6 % in evaluation.
        rest = [(frames, row) for frames, rows in waiting.items() for row in rows]
        for start in range(0, len(rest), size):
            part = rest[start : start + size]
            rows = [row for _, row in part]
            frames = part[-1][0]
            if len(rows) < size:
                frames = padded_to[-1]
                if split != "train":
                    rows += rows[-1:] * (size - len(rows))

            yield self._batch(split, frames, rows, most_labels)

    def _batch(self, split: str, frames: int, rows: list, most_labels: int) -> Batch:
        batch = {
            "features": np.zeros(
                (len(rows), frames, self.config.num_features), np.float32
            ),
            "feature_lengths": np.array(
                [len(features) for _, features in rows], np.int32
            ),
            "labels": np.zeros((len(rows), most_labels), np.int32),
            "label_lengths": np.zeros(len(rows), np.int32),
            "positions": np.array([position for position, _ in rows]),
        }
        for number, (position, features) in enumerate(rows):
            labels = self.splits[split][position].labels
            batch["features"][number, : len(features)] = features
            batch["labels"][number, : len(labels)] = labels
            batch["label_lengths"][number] = len(labels)

        return batch

    def _augmented(self, utterance: Utterance, random: np.random.Generator, epoch: int):
        wanted = self.recipe["augmentation"]
        bins = self.config.num_mel_bins
        features = utterance.features.astype(np.float32)
        if wanted["vocal_tract_change"]:
            factor = random.uniform(
                1 - wanted["vocal_tract_change"], 1 + wanted["vocal_tract_change"]
            )
            features = _other_vocal_tract(features, factor, self.config)

        features = normalise_frames(features, self.config)
        if wanted["tempo_change"]:
            factor = random.uniform(
                1 - wanted["tempo_change"], 1 + wanted["tempo_change"]
            )
            features = self._at_tempo(features, utterance.labels, factor)

        if epoch >= wanted["from_epoch"]:
            share = int(wanted["time_mask_fraction"] * len(features))
            for _ in range(wanted["time_masks"]):
                features[
                    _mask(len(features), min(wanted["time_mask_frames"], share), random)
                ] = 0
            for _ in range(wanted["frequency_masks"]):
                features[
                    :, _mask(bins, min(wanted["frequency_mask_bins"], bins), random)
                ] = 0

        return features

    def _at_tempo(
        self, features: np.ndarray, labels: np.ndarray, factor: float
    ) -> np.ndarray:
        frames = round(factor * len(features))
        needed = len(labels) + np.count_nonzero(labels[1:] == labels[:-1])
        if self.model.output_lengths(frames) < needed:
            return features
        places = np.linspace(0, len(features) - 1, frames)
        before = places.astype(int)
        weight = (places - before)[:, None].astype(np.float32)
        after = np.minimum(before + 1, len(features) - 1)
        return (1 - weight) * features[before] + weight * features[after]


def _mask(size: int, widest: int, random: np.random.Generator) -> slice:
    width = random.integers(0, widest + 1)
    start = random.integers(0, size - width + 1)
    return slice(start, start + width)


def _other_vocal_tract(
    features: np.ndarray, factor: float, config: FeatureConfig
) -> np.ndarray:
    """Scales frequencies as `tfasr.data.augmentation.VocalTract` does."""
    bins = config.num_mel_bins
    highest = config.sample_rate_hz / 2
    edges = 1127 * np.log1p(
        np.array([config.lower_edge_hz, config.upper_edge_hz]) / 700
    )
    hz = 700 * np.expm1(np.linspace(*edges, bins + 2)[1:-1] / 1127)
    after = 0.6 * highest * min(factor, 1.0)
    slope = (highest - after / factor) / (highest - after)
    origins = np.where(hz <= after, hz / factor, highest - (highest - hz) * slope)
    places = (1127 * np.log1p(origins / 700) - edges[0]) / (edges[1] - edges[0]) * (
        bins + 1
    ) - 1
    places = np.clip(places, 0, bins - 1)
    below = places.astype(int)
    weight = (places - below).astype(np.float32)
    mel = features[:, :bins]
    mel = (1 - weight) * mel[:, below] + weight * mel[
        :, np.minimum(below + 1, bins - 1)
    ]
    return np.concatenate([mel, mel @ cosines(bins, config.num_mfcc)], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus_dir", type=Path, required=True)
    parser.add_argument("--gin_file", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--part_mib", type=float, default=36.0)
    parser.add_argument(
        "--limit", type=int, help="utterances of each split, for a trial"
    )
    flags = parser.parse_args()
    pack(
        flags.corpus_dir,
        flags.gin_file,
        flags.folder,
        flags.name,
        flags.part_mib,
        flags.limit,
    )


if __name__ == "__main__":
    main()
