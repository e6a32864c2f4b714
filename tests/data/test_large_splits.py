"""A split too large to be held gives what one that is held gives."""

import numpy as np
import pytest

from tests.data.made_corpus import TINY_FEATURES, make_utterances, packing, prepare_split
from tfasr.alphabet import Alphabet
from tfasr.data import manifest as shard_index
from tfasr.data.batches import BatchSource, PipelineConfig
from tfasr.data.manifest import PackedUtterances
from tfasr.data.prepare_corpus import overlap
from tfasr.data.shards import ShardedSplit, open_split
from tfasr.errors import UsageError
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import check_splits
from tfasr.training.experiment import Experiment
from tfasr.training.memory import longest_batch


@pytest.fixture
def both(tmp_path, monkeypatch) -> tuple[ShardedSplit, ShardedSplit]:
    """One split, by columns and held."""
    utterances = make_utterances(tmp_path / "audio", 9)
    prepare_split(utterances, tmp_path / "held", packing(per_shard=2))
    prepare_split(utterances[:4], tmp_path / "held", packing(per_shard=2), split="test")
    monkeypatch.setattr(shard_index, "MOST_HELD", 3)
    prepare_split(utterances, tmp_path / "large", packing(per_shard=2))
    prepare_split(utterances[:4], tmp_path / "large", packing(per_shard=2), split="test")
    return open_split(tmp_path / "large", "train"), open_split(tmp_path / "held", "train")


def test_the_same_utterances_are_read_from_the_file(both):
    large, held = both
    assert isinstance(large.utterances, PackedUtterances)
    assert isinstance(held.utterances, list)
    assert list(large.utterances) == list(large.utterances) == held.utterances
    assert len(large.utterances) == len(held.utterances) == 9
    assert large.utterances[3] == held.utterances[3]
    assert large.utterances[-1] == held.utterances[-1]
    assert large.utterances[2:8:3] == held.utterances[2:8:3]
    with pytest.raises(IndexError):
        large.utterances[9]
    assert large.duration_s == pytest.approx(held.duration_s)
    np.testing.assert_array_equal(large.frames, held.frames)
    np.testing.assert_array_equal(large.frames_needed, held.frames_needed)
    assert list(large.transcripts()) == list(held.transcripts())


def test_utterances_are_found_by_position_where_some_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_index, "MOST_HELD", 3)
    utterances = make_utterances(tmp_path / "audio", 9)
    for bad in (utterances[0], utterances[4]):
        bad.audio_path.write_bytes(b"no audio")
    prepare_split(utterances, tmp_path / "shards", packing(per_shard=2), max_bad_fraction=0.5)
    split = open_split(tmp_path / "shards", "train")
    assert isinstance(split.utterances, PackedUtterances)
    there = [utterance.position for utterance in split.utterances]
    assert len(there) == 7
    assert split.at(there[::-1]) == list(split.utterances)[::-1]
    for missing in {*range(-1, 10)}.difference(there):
        with pytest.raises(KeyError):
            split.at([missing])


def test_what_training_asks_before_its_first_step_is_the_same(both):
    sources = [BatchSource(split, TINY_FEATURES, PipelineConfig(num_buckets=3)) for split in both]
    longest = [longest_batch(source, 4, Alphabet()) for source in sources]
    assert longest[0] == longest[1]
    experiment = Experiment(model=AcousticModelConfig(), features=TINY_FEATURES)
    too_short = Experiment(model=AcousticModelConfig(conv_stride=16), features=TINY_FEATURES)
    refusals = []
    for split in both:
        check_splits({"train": split}, experiment)
        with pytest.raises(UsageError, match="must have a CTC path") as refusal:
            check_splits({"train": split}, too_short)
        refusals.append(str(refusal.value).replace(str(split.folder), ""))
    assert refusals[0] == refusals[1]


def test_batches_and_overlaps_are_the_same(both, tmp_path):
    large, held = both
    pipeline = PipelineConfig(global_batch_size=2, num_buckets=3)
    sources = [BatchSource(split, TINY_FEATURES, pipeline) for split in both]
    assert sources[0].boundaries == sources[1].boundaries
    few, few_held = open_split(tmp_path / "large", "test"), open_split(tmp_path / "held", "test")
    expected = overlap(held.utterances, few_held.utterances)
    assert (len(expected.utterances), expected.of_utterances) == (4, 4)
    assert expected.speakers == ["speaker 0", "speaker 1", "speaker 2"]
    for test in (few, few_held):
        assert overlap(large.utterances, test.utterances) == expected


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_columns_are_refused_and_made_anew(both, tmp_path, damage):
    path = both[0].folder / "columns.npy"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + (b"\x01" if damage == "changed" else b""))
    with pytest.raises(UsageError, match=r"columns\.npy must be"):
        open_split(tmp_path / "large", "train")
    prepare_split(make_utterances(tmp_path / "audio", 9), tmp_path / "large")
    assert len(open_split(tmp_path / "large", "train").utterances) == 9
