"""A split too large to be held gives what one that is held gives."""

import numpy as np
import pytest

from tests.data.made_corpus import TINY_FEATURES, make_utterances, packing, prepare_split
from tfasr.data import columns
from tfasr.data.overlap import overlap
from tfasr.data.packed_utterances import PackedUtterances
from tfasr.data.pipeline import BatchSource, PipelineConfig
from tfasr.data.shards import ShardedSplit, open_split
from tfasr.errors import UsageError


@pytest.fixture
def both(tmp_path, monkeypatch) -> tuple[ShardedSplit, ShardedSplit]:
    """One split, by columns and held."""
    utterances = make_utterances(tmp_path / "audio", 9)
    prepare_split(utterances, tmp_path / "held", packing(per_shard=2))
    prepare_split(utterances[:4], tmp_path / "held", packing(per_shard=2), split="test")
    monkeypatch.setattr(columns, "MOST_HELD", 3)
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
