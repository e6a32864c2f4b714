"""Speech that is made in milliseconds: every letter a tone, every space a pause.

`RUN` is a small recogniser of it, which writes it down almost without errors; ``python
-m tests.recognising.spoken_tones`` trained it and would train it anew.
"""

import json
import shutil
import wave
from pathlib import Path

import numpy as np

RUN = Path(__file__).parent / "tone_run"
RATE_HZ = 16000
LETTERS = "abcd"
LETTER_S = 0.12
PAUSE_S = 0.25
EDGE_S = 0.2
# In which all of it is said, pauses too: without any noise the recogniser would hear
# what it was never trained on.
NOISE = 0.003


def spoken(text: str, seed: int = 0) -> np.ndarray:
    """Returns float32 samples that say a text of the letters a to d and spaces.

    Args:
        text: what is said.
        seed: of how it is said.
    """
    rng = np.random.default_rng(seed)
    parts = [np.zeros(int(EDGE_S * RATE_HZ))]
    parts += [_sound(character, rng) for character in text]
    samples = np.concatenate([*parts, np.zeros(int(EDGE_S * RATE_HZ))])

    return (samples + NOISE * rng.normal(size=samples.shape)).astype(np.float32)


def pause(seconds: float, seed: int = 0) -> np.ndarray:
    """Returns float32 samples in which nothing is said."""
    noise = np.random.default_rng(seed).normal(size=int(seconds * RATE_HZ))
    return (NOISE * noise).astype(np.float32)


def word_starts_s(text: str) -> list[float]:
    """Returns where each word of `spoken` begins."""
    starts = []
    now_s = EDGE_S
    before = " "

    for character in text:
        if character != " " and before == " ":
            starts.append(now_s)

        now_s += PAUSE_S if character == " " else LETTER_S
        before = character

    return starts


def _sound(character: str, rng: np.random.Generator) -> np.ndarray:
    if character == " ":
        return np.zeros(int(PAUSE_S * RATE_HZ))

    times_s = np.arange(int(LETTER_S * RATE_HZ)) / RATE_HZ
    pitch_hz = 400 * 2 ** LETTERS.index(character) * rng.uniform(0.97, 1.03)
    loudness = rng.uniform(0.2, 0.6)
    envelope = np.sin(np.pi * times_s / LETTER_S)

    return loudness * envelope * np.sin(2 * np.pi * pitch_hz * times_s)


def sentence(rng: np.random.Generator, words: int) -> str:
    """Returns so many words of two to four letters."""
    return " ".join(
        "".join(rng.choice(list(LETTERS), rng.integers(2, 5))) for _ in range(words)
    )


def write_wav(path: Path, samples: np.ndarray, rate_hz: int = RATE_HZ) -> Path:
    """Writes 16-bit samples."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate_hz, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())

    return path


def adam():
    """Returns the optimizer of the run."""
    import keras

    return keras.optimizers.Adam(0.01, clipnorm=1.0)


def train_run(folder: Path) -> None:
    """Trains a run like `RUN` in a folder."""
    from tfasr.data.batches import PipelineConfig
    from tfasr.data.features import FeatureConfig
    from tfasr.data.prepare_corpus import prepare
    from tfasr.models.recurrent import AcousticModelConfig
    from tfasr.training.experiment import Experiment, TrainingConfig
    from tfasr.training.train import train

    rng = np.random.default_rng(1)
    (folder / "audio").mkdir(parents=True)
    features = FeatureConfig(num_mel_bins=12, num_mfcc=4, normalisation="corpus")
    model = AcousticModelConfig(
        conv_kernel=5, conv_filters=24, num_lstm_layers=2, lstm_units=32, dropout=0.0
    )

    for split, count in (("train", 320), ("validation", 32)):
        lines = ["path\tspeaker\tseconds\ttext"]
        for number in range(count):
            text = sentence(rng, 1 + number % 5)
            samples = spoken(text, seed=int(rng.integers(2**31)))
            path = write_wav(folder / "audio" / f"{split}-{number}.wav", samples)
            lines.append(
                f"audio/{path.name}\tnobody\t{len(samples) / RATE_HZ:.3f}\t{text}"
            )

        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        prepare(
            corpus="tsv",
            corpus_dir=folder,
            manifest=f"{split}.tsv",
            split=split,
            shard_dir=folder / "shards",
            features=features,
            model=model,
        )

    training = TrainingConfig(
        epochs=20,
        optimizer=adam,
        targets=(("cer", 0.002),),
        target_window=1,
        stop_at_targets=True,
        keep_checkpoints=1,
    )
    experiment = Experiment(
        features=features,
        pipeline=PipelineConfig(
            padding="bucketed", global_batch_size=16, num_buckets=4
        ),
        model=model,
        training=training,
    )
    history = train(experiment, shard_dir=folder / "shards", run_dir=folder / "run")
    print([round(epoch["cer"], 3) for epoch in history])
    keep_run(folder / "run")


def keep_run(run_dir: Path) -> None:
    """Makes `RUN` of a run: its weights without the optimizer's, and nothing of the
    machine.
    """
    shutil.rmtree(RUN, ignore_errors=True)
    (RUN / "checkpoints").mkdir(parents=True)
    for name in ("experiment.json", "alphabet.json", "lexicon.txt"):
        shutil.copy(run_dir / name, RUN / name)

    statistics = json.loads((run_dir / "run.json").read_text())["feature_statistics"]
    content = {"shard_dir": "shards", "feature_statistics": statistics}
    (RUN / "run.json").write_text(json.dumps(content, indent=1) + "\n")

    with np.load(run_dir / "checkpoints" / "best.npz") as saved:
        names = sorted(saved.files)
        last = next(n for n, name in enumerate(names) if name.endswith(" iteration"))
        arrays = {name: saved[name] for name in [*names[:last], "state"]}

    np.savez(RUN / "checkpoints" / "best.npz", **arrays)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        train_run(Path(folder))
