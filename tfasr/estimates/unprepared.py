"""An estimate before any data is prepared: noise with a manifest's lengths and texts.

What a step takes depends on lengths and numbers of letters, not on what is spoken. So a
trial on noise costs what one on the recordings will.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from tfasr.data.prepare_corpus import prepare
from tfasr.data.shards import open_split
from tfasr.errors import UsageError
from tfasr.kit.files import read_text
from tfasr.training.experiment import Experiment

# Utterances of each split that are written as noise, spread evenly over the lengths.
MOST_UTTERANCES = 512
_VALIDATION = 64

# What a manifest must look like, for errors.
_FORM = (
    "It must be JSON lines with duration and text, or tab-separated with the columns seconds and "
    "text in its first line."
)


@dataclass(frozen=True)
class _Spoken:
    """An utterance of the manifest."""

    seconds: float
    text: str


@contextlib.contextmanager
def prepared_noise(
    manifest: str | Path | None, experiment: Experiment, shard_dir: str | Path | None
) -> Iterator[tuple[Path, int]]:
    """Yields a folder with prepared splits, and how many utterances an epoch has.

    Args:
        manifest: a list of utterances with their lengths; the folder is then temporary and
            has noise as long as some of them, with their texts.
        experiment: its features are prepared, for its model.
        shard_dir: without a manifest, the prepared splits.
    """
    if manifest is None:
        folder = Path(shard_dir)
        yield folder, len(open_split(folder, "train").utterances)
        return

    spoken = read_lengths(manifest)

    with tempfile.TemporaryDirectory(prefix="tfasr-estimate-") as name:
        folder = Path(name)
        chosen = _spread(spoken, MOST_UTTERANCES)
        _write_split(folder, "train", chosen, experiment)
        _write_split(folder, "validation", _spread(spoken, _VALIDATION), experiment)
        yield folder / "shards", len(spoken)


def read_lengths(manifest: str | Path) -> list[_Spoken]:
    """Reads the lengths and texts of a manifest, JSON lines or tab-separated.

    Raises:
        UsageError: names the first wrong line.
    """
    path = Path(manifest)
    if not path.is_file():
        raise UsageError(f"--manifest must be a file. Received: {path}. {_FORM}")

    lines = [line for line in read_text(path, _FORM).splitlines() if line.strip()]
    is_json = bool(lines) and lines[0].lstrip().startswith("{")
    columns = [] if is_json or not lines else lines[0].split("\t")

    # The first line of a table has its columns.
    first = 0 if is_json else 1
    spoken = []
    for number, line in enumerate(lines[first:], first + 1):
        try:
            if is_json:
                content = json.loads(line)
                row = _Spoken(float(content["duration"]), str(content["text"]))
            else:
                fields = dict(zip(columns, line.split("\t"), strict=False))
                row = _Spoken(float(fields["seconds"]), fields["text"])

            if not 0 < row.seconds < math.inf:
                raise ValueError(f"{row.seconds} seconds")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"Line {number} of {path} has no length: {error}. {_FORM}"
            ) from error

        spoken.append(row)

    if not spoken:
        raise UsageError(f"{path} lists no utterance. {_FORM}")

    return spoken


def _spread(spoken: list[_Spoken], most: int) -> list[_Spoken]:
    """Returns at most so many utterances, evenly spread over the sorted lengths."""
    by_length = sorted(spoken, key=lambda row: row.seconds)
    places = np.linspace(0, len(by_length) - 1, min(most, len(by_length)))
    return [by_length[round(place)] for place in places]


def _write_split(
    folder: Path, split: str, spoken: list[_Spoken], experiment: Experiment
) -> None:
    """Writes utterances of noise as a corpus, and prepares it as a split."""
    rate = experiment.features.sample_rate_hz
    # Another seed for each split, so that they share no recording.
    rng = np.random.default_rng(len(split))
    rows = ["path\ttext"]
    audio = folder / "audio" / split
    audio.mkdir(parents=True)

    for number, row in enumerate(spoken):
        noise = 0.1 * rng.standard_normal(max(round(row.seconds * rate), 1))
        soundfile.write(audio / f"{number:05d}.wav", noise, rate)
        rows.append(f"audio/{split}/{number:05d}.wav\t{row.text}")

    (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    prepare(
        corpus="tsv",
        corpus_dir=folder,
        shard_dir=folder / "shards",
        split=split,
        manifest=f"{split}.tsv",
        features=experiment.features,
        model=experiment.model,
        max_bad_fraction=1.0,
    )
