"""The keyword workload: data, training, ledger, confusions."""

from pathlib import Path

import numpy as np
import pytest

from tfasr.bench.keywords import (
    WORDS,
    KeywordTrainingConfig,
    confusion_table,
    run,
    synthetic_keywords,
)
from tfasr.bench.workload import Context
from tfasr.errors import UsageError
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.tta.run import load_run

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data" / "speech_commands"
SMALL = KeywordSpotterConfig(
    num_frames=40, num_bins=26, filters=(4, 4, 8, 8), num_words=4
)


@pytest.fixture(autouse=True)
def few_utterances(monkeypatch):
    sizes = {"train": 240, "validation": 40, "test": 40}
    monkeypatch.setattr("tfasr.bench.keywords.UTTERANCES", sizes)
    monkeypatch.setattr("tfasr.bench.keywords.BATCH_SIZE", 16)
    monkeypatch.setattr("tfasr.bench.keywords.EPOCHS", 6)


def training(**values):
    return KeywordTrainingConfig(**values)


def test_synthetic_words_are_learnt_and_every_second_is_booked(tmp_path, monkeypatch):
    for name, value in {
        "LEARNING_RATE": 0.01,
        "TARGET_ERROR": 0.5,
        "WINDOW": 1,
    }.items():
        monkeypatch.setattr(f"tfasr.bench.keywords.{name}", value)
    result = run(SMALL, training(), Context(out=tmp_path))
    found = result.values
    assert found["utterances"] == {"train": 240, "validation": 40, "test": 40}
    confusion = np.array(found["confusion"])
    assert confusion.sum() == 40
    assert found["test_accuracy"] == pytest.approx(np.trace(confusion) / 40)
    assert found["test_accuracy"] > 0.5  # four words: 0.25 by chance
    finished = load_run(tmp_path / "run")
    errors = [point.value for point in finished.accuracy_curve("top1_error")]
    assert errors == [value for *_, value in found["validation_error"]]
    assert len(errors) == 6
    assert finished.targets == [("top1_error", 0.5)]
    assert (
        found["time_to_accuracy_s"]
        == finished.time_to_accuracy(window=1, top1_error=0.5).seconds
    )
    assert finished.accuracy_curve("wer") == []
    assert len(result.figures["keyword_spotting"]().panels) == 2
    # Ten warm-up steps, the first of which compiled.
    assert result.warmup_steps == 10


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("")
    with pytest.raises(UsageError, match="own folder"):
        run(SMALL, training(), Context(out=tmp_path))


def test_pytorch_alone_needs_its_own_process():
    with pytest.raises(UsageError, match="--backend torch"):
        run(SMALL, training(framework="torch"), Context())


def test_a_fraction_takes_its_share_of_each_split():
    result = run(SMALL, training(), Context(fraction=0.5))
    assert result.values["utterances"] == {"train": 120, "validation": 20, "test": 20}


def test_synthetic_data_is_the_same_for_the_same_seed():
    sizes = {"train": 3, "validation": 2}
    one, same, other = (synthetic_keywords(SMALL, sizes, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(
        one.splits["train"].features, same.splits["train"].features
    )
    assert (one.splits["train"].features != other.splits["train"].features).any()
    assert one.identity == same.identity != other.identity


def test_real_recordings_of_the_30_words_are_used(tmp_path):
    if not SHARED.is_dir():
        pytest.skip("needs recordings in ../shared/data/speech_commands")
    context = Context(corpus_dir=SHARED, fraction=0.1)
    found = run(KeywordSpotterConfig(), training(), context).values
    assert found["source"] == "Speech Commands"
    assert found["parameters"] == 8504
    assert found["memory_bytes"] == 405_840
    assert found["words"] == WORDS
    assert 25 <= found["utterances"]["train"] <= 32
    assert np.array(found["confusion"]).shape == (30, 30)
    with pytest.raises(UsageError, match="98 frames and 30 words"):
        run(SMALL, training(), context)


def test_a_folder_without_words_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--corpus_dir"):
        run(KeywordSpotterConfig(), training(), Context(corpus_dir=tmp_path))


def test_confusions_are_listed_by_their_number():
    confusion = np.array([[5, 1, 0], [3, 2, 0], [0, 0, 7]])
    table = confusion_table(["a", "b", "c"], confusion)
    assert table.rows == [["b", "a", "3", "5"], ["a", "b", "1", "6"]]
    assert "4 of 18" in table.notes[0]
