"""Table 5 from a tree of LibriSpeech's layout: prepared, scored, in the published columns."""

import csv
import json

import numpy as np
import pytest
import soundfile

from tests.recognising.spoken_tones import RATE_HZ, RUN, sentence, spoken
from tests.reports.conftest import COMPARABLE, ledger_of
from tfasr import cli
from tfasr.studies.plan import load_plan, scores_path, study_steps
from tfasr.studies.report import write_report

SUBSETS = ("train-clean-100", "train-clean-360", "train-other-500")
EVALUATED = ("dev-clean", "dev-other", "test-clean", "test-other")


def tfasr(*words):
    assert cli.run(cli.parse(["tfasr", *map(str, words)])) == 0


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """All seven subsets, with an utterance above 16.7 s in each that is evaluated."""
    root = tmp_path_factory.mktemp("openslr") / "LibriSpeech"
    rng = np.random.default_rng(5)
    for speaker, subset in enumerate((*SUBSETS, *EVALUATED), start=84):
        chapter = root / subset / str(speaker) / "121123"
        chapter.mkdir(parents=True)
        lines = []
        for number in range(3 if subset in EVALUATED else 1):
            name = f"{speaker}-121123-{number:04d}"
            text = sentence(rng, 2)
            samples = spoken(text, seed=number)
            if number == 2:
                samples = np.pad(samples, (0, 17 * RATE_HZ))
            soundfile.write(chapter / f"{name}.flac", samples, RATE_HZ)
            lines.append(f"{name} {text.upper()}\n")

        (chapter / f"{speaker}-121123.trans.txt").write_text("".join(lines))

    return root


@pytest.fixture(scope="module")
def shards(tree):
    folder = tree.parent / "shards"
    features = json.loads((RUN / "experiment.json").read_text())["features"]
    given = ["--corpus", "librispeech", "--corpus_dir", tree, "--shard_dir", folder]
    for name in ("num_mel_bins", "num_mfcc"):
        given += ["--gin_binding", f"FeatureConfig.{name} = {features[name]}"]
    given += ["--gin_binding", "FeatureConfig.spectrum = 'power'"]
    tfasr("prepare", *given)
    for split in ("dev-other", "test-other"):
        tfasr("prepare", *given, "--split", split)
    return folder


def test_each_split_is_kept_but_for_what_is_longer_than_16_7_s(shards):
    indexes = {
        path.parent.name: json.loads(path.read_text())
        for path in shards.glob("*/index.json")
    }
    kept = {
        name: (index["utterances"], index["kept_share"])
        for name, index in indexes.items()
    }
    of_three = dict.fromkeys(
        ("validation", "test", "dev-other", "test-other"), (2, 0.6667)
    )
    assert kept == {"train": (3, 1.0), **of_three}


def test_the_studys_scores_fill_the_published_columns(shards, tmp_path):
    plan = load_plan("study/paper.gin")
    ledger_of([0.5, 0.1, 0.1], comparability=COMPARABLE).write(
        tmp_path / "runs" / "sys1"
    )
    score = next(
        step for step in study_steps(plan, tmp_path, shards) if step.kind == "score"
    )
    words = [
        RUN if word == tmp_path / "runs" / "sys1" else word for word in score.words()
    ]
    tfasr(*words)
    assert score.done()
    write_report(plan, tmp_path)
    with (tmp_path / "report" / "beside_table_5.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ["clean validation", "clean test", "other validation", "other test"]
    assert [name for name in rows[0] if name not in ("run", "published")] == columns
    own = next(row for row in rows if row["published"] != "true")
    assert all(0 <= float(own[name]) < 0.5 for name in columns)
    published = next(row for row in rows if row["run"] == "Sys1$" and row is not own)
    assert [float(published[name]) for name in columns] == pytest.approx(
        [0.179, 0.1732, 0.4185, 0.4504]
    )
    assert scores_path(tmp_path, plan.runs[0]).is_file()
