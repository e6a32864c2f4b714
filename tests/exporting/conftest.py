"""The recogniser that is exported, and the speech that an export is compared on."""

from pathlib import Path

import numpy as np
import pytest

from tests.recognising.conftest import exported_tones, recogniser
from tests.recognising.spoken_tones import RATE_HZ, RUN, sentence, spoken, write_wav

__all__ = ["exported_tones", "recogniser"]


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    """A folder with six prepared utterances."""
    from tfasr.data.prepare_corpus import prepare
    from tfasr.training.experiment import Experiment

    folder = tmp_path_factory.mktemp("export")
    rng = np.random.default_rng(11)
    lines = ["path\tspeaker\tseconds\ttext"]
    for number in range(6):
        text = sentence(rng, 3)
        samples = spoken(text, seed=number)
        write_wav(folder / f"{number}.wav", samples)
        lines.append(f"{number}.wav\ts{number}\t{len(samples) / RATE_HZ:.3f}\t{text}")

    (folder / "validation.tsv").write_text("\n".join(lines) + "\n")
    prepare(
        corpus="tsv", corpus_dir=folder, manifest="validation.tsv", split="validation",
        shard_dir=folder / "shards", features=Experiment.load(RUN).features, num_workers=1,
    )  # fmt: skip
    write_wav(folder / "said.wav", spoken("abc dad"))
    return folder
