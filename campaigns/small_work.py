"""The smallest honest work: words of tones, a tiny model, three configurations."""

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_RATE_HZ = 16000
_LETTER_S = 0.1
_COMMON = """\
FeatureConfig.num_mel_bins = 8
FeatureConfig.num_mfcc = 2
ShardConfig.utterances_per_shard = 2
AcousticModelConfig.conv_kernel = 5
AcousticModelConfig.conv_filters = 8
AcousticModelConfig.num_lstm_layers = 1
AcousticModelConfig.lstm_units = 8
AcousticModelConfig.dropout = 0.1
PipelineConfig.global_batch_size = 4
PipelineConfig.num_readers = 1
PipelineConfig.shuffle_buffer = 8
PipelineConfig.num_buckets = 1
TrainingConfig.target_window = 1
TrainingConfig.optimizer = @Adam
Adam.learning_rate = 0.01
"""


@dataclass(frozen=True)
class Configuration:
    """A way to train that the campaigns try.

    Attributes:
        name: of its gin file.
        checkpoint_every_steps: the most steps that a kill may lose.
        bindings: what it adds to the common ones.
    """

    name: str
    checkpoint_every_steps: int
    bindings: tuple[str, ...]


CONFIGURATIONS = (
    Configuration(
        "each_step",
        1,
        (
            "TrainingConfig.epochs = 3",
            "TrainingConfig.checkpoint_every_steps = 1",
            "TrainingConfig.keep_checkpoints = 2",
            "TrainingConfig.sentences_every_steps = 0",
        ),
    ),
    Configuration(
        "overlapped",
        2,
        (
            "TrainingConfig.epochs = 4",
            "TrainingConfig.checkpoint_every_steps = 2",
            "TrainingConfig.keep_checkpoints = 1",
            "TrainingConfig.sentences_every_steps = 3",
            "TrainingConfig.overlap_evaluation = True",
            "TrainingConfig.targets = [('cer', 0.99)]",
            "DecoderConfig.name = 'beam'",
            "DecoderConfig.beam_width = 4",
            "AugmentationConfig.time_masks = 1",
        ),
    ),
    Configuration(
        "accumulated",
        3,
        (
            "TrainingConfig.epochs = 4",
            "TrainingConfig.checkpoint_every_steps = 3",
            "TrainingConfig.keep_checkpoints = 3",
            "TrainingConfig.sentences_every_steps = 0",
            "TrainingConfig.gradient_accumulation_steps = 2",
            "TrainingConfig.averaged_statistics_utterances = 8",
            "Adam.clipnorm = 1.0",
            "Adam.use_ema = True",
        ),
    ),
)


_STUDY = """\
StudyConfig.experiments = ('one', 'other')
StudyConfig.title = 'A study that is killed'
StudyConfig.final_splits = ('validation',)
StudyConfig.final_beam_width = 4
one/ExperimentConfig.gin_files = ('each_step.gin',)
other/ExperimentConfig.gin_files = ('overlapped.gin',)
"""


@dataclass(frozen=True)
class SmallWork:
    """A corpus, gin files and the commands on them.

    Attributes:
        folder: holds "corpus", "shards" once they are prepared, and a gin file a
            configuration.
    """

    folder: Path

    def write(self) -> None:
        """Writes corpus and gin files, unless they are there already."""
        corpus = self.folder / "corpus"
        if (corpus / "finished").exists():
            return
        write_tones(corpus, train=12, validation=4)
        for configuration in CONFIGURATIONS:
            text = _COMMON + "".join(line + "\n" for line in configuration.bindings)
            self.gin_file(configuration).write_text(text)

        (self.folder / "study.gin").write_text(_STUDY)
        (corpus / "finished").touch()

    def gin_file(self, configuration: Configuration) -> Path:
        """Returns a configuration's file."""
        return self.folder / f"{configuration.name}.gin"

    @property
    def shards(self) -> Path:
        """Where the shards that are trained on lie."""
        return self.folder / "shards"

    def prepare(self, shard_dir: Path) -> list[object]:
        """Returns the words of ``tfasr prepare``."""
        words: list[object] = [
            "prepare",
            "--corpus",
            "tsv",
            "--corpus_dir",
            self.folder / "corpus",
        ]
        words += [
            "--shard_dir",
            shard_dir,
            "--gin_file",
            self.gin_file(CONFIGURATIONS[0]),
        ]
        return [*words, "--num_workers", 2]

    def train(
        self, configuration: Configuration, run_dir: Path, *more: object
    ) -> list[object]:
        """Returns the words of ``tfasr train``."""
        words: list[object] = ["train", "--gin_file", self.gin_file(configuration)]
        words += ["--shard_dir", self.shards, "--run_dir", run_dir, "--no_memory_probe"]
        return [*words, *more]

    def evaluate(self, run_dir: Path, hypotheses: Path) -> list[object]:
        """Returns the words of ``tfasr evaluate``."""
        words: list[object] = [
            "evaluate",
            "--run_dir",
            run_dir,
            "--split",
            "validation",
        ]
        words += ["--decoder", "beam", "--beam_width", 4]
        return [*words, "--hypotheses", hypotheses, "--format", "json"]

    def study(self, study_dir: Path, *more: object) -> list[object]:
        """Returns the words of ``tfasr study``, of a run of two configurations each."""
        words: list[object] = ["study", "--gin_file", self.folder / "study.gin"]
        return [*words, "--shard_dir", self.shards, "--run_dir", study_dir, *more]


def write_tones(folder: Path, **splits: int) -> None:
    """Writes a tsv corpus of words of tones, so many utterances for each split."""
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for split, count in splits.items():
        lines = ["path\tspeaker\tseconds\ttext"]
        for number in range(count):
            text = "".join(rng.choice(list("abcd"), 3))
            samples = np.concatenate([_tone(letter, rng) for letter in text])
            path = f"audio/{split}-{number:02d}.wav"
            with wave.open(str(folder / path), "wb") as file:
                file.setparams((1, 2, _RATE_HZ, 0, "NONE", ""))
                file.writeframes((samples * 20000).astype("<i2").tobytes())

            speaker = f"{split}{number % 2}"
            lines.append(f"{path}\t{speaker}\t{len(samples) / _RATE_HZ:.2f}\t{text}")

        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def _tone(letter: str, rng: np.random.Generator) -> np.ndarray:
    times_s = np.arange(int(_LETTER_S * _RATE_HZ)) / _RATE_HZ
    pitch_hz = 400 * 2 ** "abcd".index(letter)
    noise = 0.01 * rng.normal(size=times_s.shape)
    return (
        0.5
        * np.sin(np.pi * times_s / _LETTER_S)
        * np.sin(2 * np.pi * pitch_hz * times_s)
        + noise
    )
