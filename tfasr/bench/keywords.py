"""A small network that recognises single words: memory, time to accuracy, confusions.

A workload of ``tfasr bench`` that trains `tfasr.models.keyword_spotter` and records the
training like any other run, so that its time to accuracy is computed by the same rules.
It runs on synthetic words or on Speech Commands, on Keras's backends or in PyTorch
alone.
"""

import hashlib
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import keras
import numpy as np
from scipy import ndimage

from tfasr.bench.steppers import Batch, Stepper, TorchStepper, make_stepper
from tfasr.bench.workload import Context, Result, Workload, columns_of_tuples
from tfasr.display.chart import (
    Axis,
    Chart,
    Labels,
    Line,
    Panel,
    Points,
    Rects,
    Rule,
    run_colour,
)
from tfasr.display.table import NEVER, UNKNOWN, Table, table_of
from tfasr.errors import RunError, UsageError
from tfasr.kit.config import config_class
from tfasr.kit.files import EVENTS_FILE
from tfasr.models import keyword_spotter as spotter
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.recording.recorder import Recorder
from tfasr.tta.policies import WINDOW, AccuracyPoint
from tfasr.tta.run import load_run

# Passes over the training data.
EPOCHS = 20
# Utterances per update.
BATCH_SIZE = 64
# The layout of images in memory; `tfasr.bench.backends` compares it with "NCHW".
LAYOUT = "NHWC"
# The step size of the Adam optimizer.
LEARNING_RATE = 0.003
# The seed of initial weights, order and synthetic data.
SEED = 0
# Fraction of wrong validation words to reach.
TARGET_ERROR = 0.1
# Synthetic utterances, before taking a fraction; as many as in Speech Commands 1.
UTTERANCES = {"train": 51088, "validation": 6798, "test": 6835}


@config_class
class KeywordTrainingConfig:
    """Training settings of the keyword spotter.

    Attributes:
        framework: "keras" on the current backend, or "torch", PyTorch without Keras.
    """

    framework: Literal["keras", "torch"] = "keras"


# The 30 words of the corpus's first version; the second version has five more.
_WORDS = (
    "bed bird cat dog down eight five four go happy house left marvin nine no off on one right "
    "seven sheila six stop three tree two up wow yes zero"
)
WORDS = _WORDS.split()

if keras.backend.backend() == "torch":
    import torch

# The name of that rate in the ledger.
METRIC = "top1_error"
_log = logging.getLogger(__name__)
SPLITS = ("train", "validation", "test")
# Of Speech Commands: 98 windows of 30 ms in a second.
SAMPLE_RATE_HZ = 16000
WINDOW_SAMPLES = 480
STEP_SAMPLES = 160


@dataclass(frozen=True)
class KeywordSplit:
    """Utterances of one split.

    Attributes:
        features: float32 ``(utterances, num_frames, num_bins)``, each utterance
            normalised.
        labels: int32 ``(utterances,)``, indices of words.
    """

    features: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class KeywordData:
    """What the network is trained on and evaluated with."""

    words: list[str]
    # "train", "validation" and "test".
    splits: dict[str, KeywordSplit]
    # Description for readers.
    source: str
    # Identifies the utterances: equal only if they are.
    identity: str


def synthetic_keywords(
    network: KeywordSpotterConfig,
    sizes: dict,
    seed: int,
) -> KeywordData:
    """Makes utterances: a word's smooth pattern, shifted, plus a weaker one and noise.

    Args:
        network: its sizes are those of the utterances.
        sizes: numbers of utterances by split.
        seed: of all draws.
    """
    random = np.random.default_rng(seed)
    shape = (network.num_frames, network.num_bins)
    patterns = np.stack([_smooth(random, shape) for _ in range(network.num_words)])
    splits = {}

    for name, size in sizes.items():
        labels = random.integers(0, network.num_words, size, dtype=np.int32)
        others = random.integers(0, network.num_words, size)
        strengths = np.float32(0.75) * random.random(size, np.float32)
        # In frames, by which words begin earlier or later.
        shifts = random.integers(-10, 11, (2, size))
        features = random.standard_normal((size, *shape), np.float32)

        for index in range(size):
            spoken = np.roll(patterns[labels[index]], shifts[0, index], axis=0)
            other = np.roll(patterns[others[index]], shifts[1, index], axis=0)
            features[index] += spoken + strengths[index] * other

        # Variances of the pattern, the noise, and the other pattern with its strength.
        features *= np.float32(1 / np.sqrt(1 + 1 + 0.75**2 / 3))
        splits[name] = KeywordSplit(features, labels)

    if network.num_words == len(WORDS):
        words = WORDS
    else:
        words = map(str, range(network.num_words))

    identity = f"synthetic, seed {seed}, {sorted(sizes.items())}"

    return KeywordData(list(words), splits, "synthetic utterances", identity)


def _smooth(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Returns a smooth random pattern with mean 0 and variance 1."""
    coarse = random.standard_normal((8, 6))
    smooth = ndimage.zoom(
        coarse,
        np.divide(shape, coarse.shape),
        order=1,
        mode="nearest",
    )

    return ((smooth - smooth.mean()) / smooth.std()).astype(np.float32)


def speech_commands_keywords(
    corpus_dir: Path,
    network: KeywordSpotterConfig,
    fraction: float,
    seed: int,
) -> KeywordData:
    """Reads the first second of recordings of 30 words.

    ``fraction`` of each split's recordings are drawn at random, by ``seed``.

    Raises:
        UsageError: for a network of another size, or a folder without such recordings.
    """
    from tfasr.corpora.speech_commands import read_speech_commands

    frames = (SAMPLE_RATE_HZ - WINDOW_SAMPLES) // STEP_SAMPLES + 1
    if (network.num_frames, network.num_words) != (frames, len(WORDS)):
        raise UsageError(
            f"Speech Commands: KeywordSpotterConfig needs {frames} frames and {len(WORDS)} words. "
            f"Received: {network.num_frames} and {network.num_words}."
        )

    random = np.random.default_rng(seed)
    splits = {}
    digest = hashlib.sha256()

    for name in SPLITS:
        utterances = read_speech_commands(corpus_dir, name).utterances
        eligible = [utterance for utterance in utterances if utterance.text in WORDS]
        count = max(1, round(fraction * len(eligible)))
        chosen = sorted(random.permutation(len(eligible))[:count])

        if not chosen:
            raise UsageError(
                "--corpus_dir must have recordings of the 30 words in each split. Received: "
                f"{corpus_dir}, without any in {name!r}."
            )

        drawn = [eligible[index] for index in chosen]
        digest.update("".join(f"{name}/{u.id};" for u in drawn).encode())
        splits[name] = KeywordSplit(
            np.stack([_features(u.audio_path, network) for u in drawn]),
            np.array([WORDS.index(u.text) for u in drawn], np.int32),
        )

    return KeywordData(list(WORDS), splits, "Speech Commands", digest.hexdigest())


def _features(path: Path, network: KeywordSpotterConfig) -> np.ndarray:
    """Returns a recording's normalised log-mel features, padded to a second."""
    from tfasr.data.audio import read_audio
    from tfasr.data.features import FeatureConfig, compute_features, normalise_features

    config = FeatureConfig(
        window_samples=WINDOW_SAMPLES,
        step_samples=STEP_SAMPLES,
        num_mel_bins=network.num_bins,
        num_mfcc=0,
    )
    samples = read_audio(path, SAMPLE_RATE_HZ)[:SAMPLE_RATE_HZ]
    samples = np.pad(samples, (0, SAMPLE_RATE_HZ - len(samples)))

    return normalise_features(compute_features(samples, config), config).numpy()


def torch_spotter(config: KeywordSpotterConfig, layout: str) -> "torch.nn.Module":
    """Returns `tfasr.models.keyword_spotter.KeywordSpotter` in PyTorch without Keras."""
    from torch.nn import functional

    memory_format = torch.channels_last if layout == "NHWC" else torch.contiguous_format

    class TorchSpotter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            inputs = (1, *config.filters)
            shapes = zip(inputs, config.filters, spotter.LAYERS, strict=False)
            self.convolutions = torch.nn.ModuleList(
                torch.nn.Conv2d(channels, filters, kernel, bias=False)
                for channels, filters, (kernel, _) in shapes
            )
            # Keras's momentum is 1 minus PyTorch's
            self.normalisations = torch.nn.ModuleList(
                torch.nn.BatchNorm2d(filters, eps=1e-3, momentum=0.1)
                for filters in config.filters
            )
            self.classifier = torch.nn.Linear(config.filters[-1], config.num_words)

            for convolution in self.convolutions:
                torch.nn.init.kaiming_normal_(convolution.weight)

            torch.nn.init.xavier_uniform_(self.classifier.weight)
            torch.nn.init.zeros_(self.classifier.bias)
            self.to(memory_format=memory_format)

        def forward(self, features, training=False):
            self.train(training)
            hidden = features[:, None].contiguous(memory_format=memory_format)
            layers = zip(
                self.convolutions,
                self.normalisations,
                spotter.LAYERS,
                strict=True,
            )

            for convolution, normalisation, (_, pooled) in layers:
                hidden = functional.relu(normalisation(convolution(hidden)))
                if pooled:
                    hidden = functional.max_pool2d(hidden, 2)

            return self.classifier(hidden.mean(dim=(2, 3)))

    return TorchSpotter()


class TorchSpotterStepper(TorchStepper):
    """Eager PyTorch without Keras, with the same optimizer and loss as in Keras."""

    def __init__(
        self,
        config: KeywordSpotterConfig,
        layout: str,
        learning_rate,
        seed: int = 0,
    ):
        torch.manual_seed(seed)
        self.module = torch_spotter(config, layout).to(keras.ops.zeros(()).device)
        super().__init__(self.module, torch.nn.functional.cross_entropy)
        # Keras's Adam uses this epsilon; PyTorch's default differs.
        self._optimizer = torch.optim.Adam(
            self.module.parameters(),
            learning_rate,
            eps=1e-7,
        )

    def place(self, batch: Batch) -> Batch:
        # PyTorch's cross entropy needs 64-bit labels.
        targets = tuple(labels.astype(np.int64) for labels in batch.targets)
        return super().place(Batch(batch.inputs, targets))

    def _apply_gradients(self) -> None:
        self._optimizer.step()


def word_losses(logits, labels):
    """Returns the cross entropy of each utterance, ``(batch,)``."""
    return keras.losses.sparse_categorical_crossentropy(
        labels,
        logits,
        from_logits=True,
    )


def make_spotter(
    network: KeywordSpotterConfig,
    framework: str,
    layout: str,
    learning_rate: float,
    seed: int = 0,
) -> tuple[Stepper, int]:
    """Returns a stepper for the keyword spotter with Adam, and its number of parameters.

    Args:
        network: sizes.
        framework: "keras" or "torch".
        layout: of images, a key of `tfasr.models.keyword_spotter.LAYOUTS`.
        learning_rate: of Adam.
        seed: of initial weights.
    """
    if framework == "torch":
        stepper = TorchSpotterStepper(network, layout, learning_rate, seed)
        return stepper, sum(p.numel() for p in stepper.module.parameters())

    model = spotter.KeywordSpotter(network, seed, layout=layout)
    model.build()
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)

    optimizer = keras.optimizers.Adam(learning_rate)

    return make_stepper(model, word_losses, optimizer), parameters


def train_keywords(
    network: KeywordSpotterConfig,
    config: KeywordTrainingConfig,
    data: KeywordData,
    run_dir: Path,
) -> np.ndarray:
    """Trains a network and records the run.

    Returns:
        The test split's confusion matrix, with a row for each spoken word.

    Raises:
        UsageError: if ``run_dir`` has a run.
        RunError: if the loss isn't finite.
    """
    if (run_dir / EVENTS_FILE).exists():
        raise UsageError(
            f"A run needs its own folder. Received: {run_dir}, which has a run; change --out."
        )

    train, validation, test = (data.splits[name] for name in SPLITS)
    random = np.random.default_rng(SEED)
    sizes_seen = set()

    with Recorder(
        run_dir,
        train_samples=len(train.labels),
        targets=[(METRIC, TARGET_ERROR)],
        target_window=WINDOW,
        global_batch_size=BATCH_SIZE,
        seed=SEED,
        facts={
            "num_replicas": 1,
            "eval_samples": len(validation.labels),
            "opt_name": "adam",
            "opt_base_learning_rate": LEARNING_RATE,
        },
        comparability={
            "task": "keyword spotting",
            "data": data.identity,
            "words": data.words,
        },
    ) as recorder:
        stepper, parameters = make_spotter(
            network,
            config.framework,
            LAYOUT,
            LEARNING_RATE,
            SEED,
        )
        recorder.note(parameters=parameters)

        for epoch in range(1, EPOCHS + 1):
            recorder.epoch()
            order = random.permutation(len(train.labels))

            for begin in range(0, len(order), BATCH_SIZE):
                chosen = order[begin : begin + BATCH_SIZE]
                size = len(chosen)
                frames = train.features.shape[1] * len(chosen)
                batch = stepper.place(
                    Batch((train.features[chosen],), (train.labels[chosen],))
                )

                with recorder.step(
                    utterances=size,
                    audio_s=1.0 * size,
                    frames=frames,
                    padded_frames=frames,
                ) as step:
                    step.loss = stepper.update(batch)
                    # The first batch of each size is traced.
                    step.compiled = size not in sizes_seen
                    if not np.isfinite(step.loss):
                        raise RunError(
                            f"The loss must be a finite number. Received: {step.loss}. Check the "
                            "recordings in --corpus_dir."
                        )

                sizes_seen.add(size)

            with recorder.evaluation() as evaluation:
                error = error_rate(
                    _confusion(stepper, config, validation, len(data.words))
                )
                evaluation.measure(**{METRIC: error})

            _log.info("epoch %d: %.1f %% wrong words", epoch, 100 * error)

        return _confusion(stepper, config, test, len(data.words))


def _confusion(
    stepper: Stepper,
    config: KeywordTrainingConfig,
    split: KeywordSplit,
    num_words: int,
) -> np.ndarray:
    """Returns how often each word was recognised as each other, ``(spoken, recognised)``."""
    confusion = np.zeros((num_words, num_words), int)
    for begin in range(0, len(split.labels), BATCH_SIZE):
        part = slice(begin, begin + BATCH_SIZE)
        batch = stepper.place(Batch((split.features[part],), ()))
        np.add.at(
            confusion, (split.labels[part], stepper.predict(batch).argmax(axis=1)), 1
        )

    return confusion


def error_rate(confusion: np.ndarray) -> float:
    """Returns the share of wrong words."""
    return float(1 - np.trace(confusion) / confusion.sum())


def memory_table(layers: Sequence[spotter.LayerMemory]) -> Table:
    """Returns a line per layer, and their sum."""
    sizes = [
        (layer.weights, layer.activations, layer.num_bytes / 1000) for layer in layers
    ]
    shapes = (" x ".join(map(str, layer.shape)) for layer in layers)
    rows = [
        (x.name, shape, *size)
        for x, shape, size in zip(layers, shapes, sizes, strict=True)
    ]
    rows.append(
        ("sum", "", *(sum(size[place] for size in sizes) for place in range(3)))
    )
    headings = ["layer", "output", "parameters", "activations", "KB"]
    columns = columns_of_tuples(
        headings, lambda n: f"{n:,}" if type(n) is int else f"{n:.1f}", 2
    )
    title = f"Memory of one utterance in single precision: {rows[-1][4]:.0f} KB"
    notes = [
        "4 bytes a number, 1 KB is 1000 bytes. Normalisation and rectifier work in place."
    ]

    return table_of(title, columns, rows, notes)


def _training_table(
    data,
    config,
    points,
    reached,
    throughput,
    confusion,
    backend: str,
) -> Table:
    """Returns the results of a training; the arguments are all that the table shows."""
    rate = throughput.utterances_per_s
    sizes = ", ".join(str(len(split.labels)) for split in data.splits.values())
    rows = {
        "backend": backend,
        "data": data.source,
        "utterances: train, validation, test": sizes,
        "epochs, batch size": f"{len(points)}, {BATCH_SIZE}",
        "validation accuracy, last epoch, %": f"{100 * (1 - points[-1].value):.1f}",
        "test accuracy, %": f"{100 * (1 - error_rate(confusion)):.1f}",
        "epochs to the target": str(reached.epoch or NEVER),
        "time to the target, s": f"{reached.seconds:.2f}" if reached.reached else NEVER,
        "whole run, s": f"{points[-1].elapsed_s:.2f}",
        "training, utterances/s": UNKNOWN if rate is None else f"{rate:,.0f}",
    }

    notes = [
        f"Target: {100 * TARGET_ERROR:g} % wrong words on the validation split, as the "
        f"median of {WINDOW} epochs. Times are wall-clock times from the model's "
        f"creation on. {NEVER}: never reached.",
        f"Utterances/s leaves out {throughput.warmup_steps} warm-up steps and "
        f"{throughput.traced_steps} more that compiled.",
    ]
    title = "Keyword spotting: time to accuracy"

    return Table(title, ["", "value"], list(map(list, rows.items())), notes)


def confusion_table(words: Sequence[str], confusion: np.ndarray) -> Table:
    """Returns the ten most frequent confusions."""
    wrong = confusion.copy()
    # Words that were recognised.
    np.fill_diagonal(wrong, 0)
    pairs = np.argwhere(wrong)
    most = sorted(pairs.tolist(), key=lambda pair: -wrong[pair[0], pair[1]])[:10]
    spoken = confusion.sum(axis=1)
    rows = [(words[a], words[b], int(wrong[a, b]), int(spoken[a])) for a, b in most]
    columns = columns_of_tuples(["spoken", "recognised as", "times", "of"], str)
    notes = [
        f"{wrong.sum()} of {confusion.sum()} utterances were recognised as another word."
    ]

    return table_of("Most frequent confusions on the test split", columns, rows, notes)


# Levels of shading in the matrix.
_LEVELS = 12
# The height of both panels, in pixels.
_HEIGHT_PX = 460


def keyword_chart(
    words: Sequence[str],
    confusion: np.ndarray,
    points: Sequence[AccuracyPoint],
    target: float,
) -> Chart:
    """Draws the confusion matrix, and the error rate over time."""
    seconds = [point.elapsed_s for point in points]
    errors = [100 * point.value for point in points]
    curve: list = [
        Line(x=seconds, y=errors, colour=run_colour(0), width=2.2),
        Points(x=seconds, y=errors, colour=run_colour(0)),
        Rule(value=100 * target, label=f"target {100 * target:g} %"),
    ]
    # So that the target is always in the picture.
    top = max(100 * target * 1.3, *errors) * 1.05
    time = Axis("seconds since the model's creation", limits=(0, 1.02 * max(seconds)))
    wrong = Axis("wrong words, validation, %", limits=(0, top))
    panels = [_matrix(words, confusion), Panel(curve, time, wrong, height=_HEIGHT_PX)]
    caption = "Which words the keyword spotter confuses, and how fast it learns"

    return Chart("keyword_spotting", caption, panels, columns=2, width=_HEIGHT_PX)


def _matrix(words: Sequence[str], confusion: np.ndarray) -> Panel:
    """Draws a confusion matrix, each row shaded by its shares."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    # A mark per level instead of per cell keeps the figure small.
    levels = np.ceil(_LEVELS * shares).astype(int)
    marks: list = []

    for level in range(1, _LEVELS + 1):
        rows, columns = np.nonzero(levels == level)
        marks.append(
            Rects(
                x0=columns - 0.5,
                x1=columns + 0.5,
                y0=rows - 0.5,
                y1=rows + 0.5,
                colour=run_colour(0),
                opacity=level / _LEVELS,
            )
        )

    for dark in (True, False):
        rows, columns = np.nonzero((confusion > 0) & ((shares > 0.6) == dark))
        numbers = [str(confusion[at]) for at in zip(rows, columns, strict=True)]
        labels = Labels(x=columns, y=rows, words=numbers, align="center", size=7.5)
        marks.append(replace(labels, colour="#ffffff") if dark else labels)

    places = range(len(words))
    count = len(words)
    ends = (-0.5, count - 0.5)
    right = f"recognised as; {100 * (1 - error_rate(confusion)):.1f} % right"
    x = Axis(
        right,
        limits=ends,
        ticks=places,
        tick_labels=list(words),
        grid=False,
        label_angle=-90,
    )
    # The first word is at the top.
    y = replace(x, label="spoken, test", limits=ends[::-1], label_angle=0.0)
    shown = [
        mark for mark in marks if len(mark.x0 if isinstance(mark, Rects) else mark.x)
    ]

    return Panel(shown, x, y, height=_HEIGHT_PX)


def run(
    network: KeywordSpotterConfig,
    training: KeywordTrainingConfig,
    context: Context,
) -> Result:
    """Trains once and returns all tables; the run itself is in ``--out``."""
    if training.framework == "torch" and keras.backend.backend() != "torch":
        raise UsageError(
            "KeywordTrainingConfig.framework = 'torch' needs --backend torch. Received: "
            f"{keras.backend.backend()}."
        )

    data = _data(network, context)
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = Path(context.out or scratch) / "run"
        confusion = train_keywords(network, training, data, run_dir)
        finished = load_run(run_dir)

    target = TARGET_ERROR
    reached = finished.time_to_accuracy(window=WINDOW, **{METRIC: target})
    throughput = finished.throughput()
    points = finished.accuracy_curve(METRIC)
    layers = spotter.memory_accounting(network)
    name = "PyTorch alone" if training.framework == "torch" else keras.backend.backend()
    backend = f"{name}, {LAYOUT}"

    return Result(
        tables=[
            memory_table(layers),
            _training_table(
                data,
                training,
                points,
                reached,
                throughput,
                confusion,
                backend,
            ),
            confusion_table(data.words, confusion),
        ],
        values={
            "framework": training.framework,
            "layout": LAYOUT,
            "source": data.source,
            "utterances": {
                name: len(split.labels) for name, split in data.splits.items()
            },
            "parameters": sum(layer.weights for layer in layers),
            "memory_bytes": sum(layer.num_bytes for layer in layers),
            "validation_error": [[p.epoch, p.elapsed_s, p.value] for p in points],
            "target": [METRIC, target],
            "time_to_accuracy_s": reached.seconds,
            "epochs_to_accuracy": reached.epoch,
            "utterances_per_s": throughput.utterances_per_s,
            "test_accuracy": 1 - error_rate(confusion),
            "words": data.words,
            "confusion": confusion.tolist(),
        },
        warmup_steps=throughput.warmup_steps + throughput.traced_steps,
        figures={
            "keyword_spotting": lambda: keyword_chart(
                data.words,
                confusion,
                points,
                target,
            )
        },
    )


def _data(network, context: Context) -> KeywordData:
    """Returns the recordings of ``--corpus_dir``, or synthetic ones without it."""
    if context.corpus_dir is not None:
        if keras.backend.backend() != "tensorflow":
            # TensorFlow computes the features and must not take another backend's
            # memory.
            import tensorflow as tf

            tf.config.set_visible_devices([], "GPU")

        return speech_commands_keywords(
            context.corpus_dir,
            network,
            context.fraction,
            SEED,
        )

    sizes = {
        name: max(1, round(context.fraction * UTTERANCES[name])) for name in SPLITS
    }
    return synthetic_keywords(network, sizes, SEED)


KEYWORD_SPOTTING = Workload(run, (KeywordSpotterConfig, KeywordTrainingConfig))
