import json

import numpy as np
import pytest
import tensorflow as tf

from tests.data.made_corpus import TINY_FEATURES, make_utterances, packing, prepare_split
from tfasr.alphabet import Alphabet
from tfasr.data.audio import read_audio
from tfasr.data.features import FeatureConfig, compute_features
from tfasr.data.listing import kept_row, packing_order
from tfasr.data.rows import Rows
from tfasr.data.shards import (
    RECORD,
    FeatureSums,
    ShardConfig,
    check_features,
    open_split,
    write_shard,
)
from tfasr.errors import UsageError


def records(split):
    compression = split.index["packing"]["compression"]
    for record in tf.data.TFRecordDataset(split.files, compression):
        yield tf.io.parse_single_example(record, RECORD)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("compression", ["GZIP", "ZLIB", ""])
def test_records_hold_what_was_heard_and_spelled(tmp_path, dtype, compression):
    utterances = make_utterances(tmp_path / "audio", 5, text="all")
    how = packing(per_shard=3, dtype=dtype, compression=compression)
    prepare_split(utterances, tmp_path / "shards", how)
    split = open_split(tmp_path / "shards", "train")
    by_id = {u.id: u for u in utterances}
    for listed, record in zip(split.utterances, records(split), strict=True):
        stored = np.frombuffer(record["features"].numpy(), dtype).reshape(-1, 10)
        path = by_id[listed.id].audio_path
        computed = compute_features(read_audio(path), TINY_FEATURES).numpy()
        tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == "float16" else {"atol": 1e-5}
        np.testing.assert_allclose(stored, computed, **tolerance)
        assert record["labels"].values.numpy().tolist() == Alphabet().encode("all")
        assert record["position"] == listed.position
        assert record["duration_s"].numpy() == pytest.approx(listed.duration_s)


def test_statistics_are_those_of_all_frames(tmp_path):
    prepare_split(make_utterances(tmp_path / "audio", 7), tmp_path / "shards")
    split = open_split(tmp_path / "shards", "train")
    frames = np.concatenate(
        [np.frombuffer(r["features"].numpy(), "float16").reshape(-1, 10) for r in records(split)]
    ).astype(np.float64)
    mean, deviation = split.feature_statistics()
    np.testing.assert_allclose(mean, frames.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(deviation, frames.std(axis=0), rtol=1e-4)
    assert split.index["frames"] == len(frames)


def test_sums_merge_as_if_added_at_once():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)).astype(np.float32) for n in (4, 0, 9)]
    separate = []
    whole = FeatureSums()
    for part in parts:
        sums = FeatureSums()
        sums.add(part)
        separate.append(json.loads(json.dumps(sums.to_json())))
        whole.add(part)
    merged = FeatureSums.merged([*separate, FeatureSums().to_json()])
    assert merged.frames == whole.frames == 13
    np.testing.assert_allclose(merged.total, whole.total)
    np.testing.assert_allclose(merged.squares, whole.squares)


@pytest.fixture
def prepared(tmp_path):
    prepare_split(make_utterances(tmp_path / "audio", 10), tmp_path / "shards")
    return tmp_path / "shards"


def test_a_missing_shard_is_named(prepared):
    (prepared / "train" / "train-00001.tfrecord").unlink()
    with pytest.raises(UsageError) as error:
        open_split(prepared, "train")
    assert "lists 3 shards but 2 files exist" in str(error.value)
    assert "train-00001.tfrecord" in str(error.value)
    assert "Run tfasr prepare again" in str(error.value)


def test_a_truncated_shard_is_named_with_its_sizes(prepared):
    path = prepared / "train" / "train-00002.tfrecord"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    wanted = f"train-00002.tfrecord with {size - 10} of {size} bytes"
    with pytest.raises(UsageError, match=wanted):
        open_split(prepared, "train")


def test_a_split_that_was_never_prepared_names_those_that_were(prepared):
    with pytest.raises(UsageError, match=r"'validation'.*\['train'\]"):
        open_split(prepared, "validation")
    with pytest.raises(UsageError, match=r"finished splits \[\]"):
        open_split(prepared / "nowhere", "train")


def test_a_missing_or_cut_manifest_is_refused(prepared):
    manifest = prepared / "train" / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(lines[:-1]))
    with pytest.raises(UsageError, match=r"index's 10 utterances\. Received: 9"):
        open_split(prepared, "train")
    manifest.unlink()
    with pytest.raises(UsageError, match=r"must hold manifest\.jsonl"):
        open_split(prepared, "train")


def test_other_features_than_the_models_are_named(prepared):
    split = open_split(prepared, "train")
    check_features(split, TINY_FEATURES)
    other = FeatureConfig(num_mel_bins=8, num_mfcc=3, step_samples=200, normalisation="none")
    with pytest.raises(UsageError) as error:
        check_features(split, other)
    assert "num_mfcc 2 in the shards, 3 wanted" in str(error.value)
    assert "step_samples 160 in the shards, 200 wanted" in str(error.value)
    assert "normalisation" not in str(error.value)


def test_the_hash_knows_what_changes_the_bytes_and_nothing_else(tmp_path):
    def planned(how, utterances):
        rows = Rows(tmp_path)
        for u in utterances:
            rows.append(kept_row(u, u.audio_path.stat().st_size, u.audio_path.stat().st_mtime_ns))
        return packing_order(rows, "train", how, tmp_path)

    one, two = (make_utterances(tmp_path / name, 3) for name in ("one", "two"))
    base = planned(packing(), one)
    same = planned(packing(), two)
    assert same.content_hash == base.content_hash, "the place of the files does not count"
    assert same.resume_key != base.resume_key, "nor do times, but to resume"
    whole = FeatureConfig(num_mel_bins=8, num_mfcc=2, upper_edge_hz=8000)
    assert planned(packing(features=whole), one).content_hash == base.content_hash
    unnormalised = FeatureConfig(num_mel_bins=8, num_mfcc=2, normalisation="none")
    assert planned(packing(features=unnormalised), one).content_hash == base.content_hash
    different = [
        planned(packing(), one[:2]),
        planned(packing(), one[::-1]),
        planned(packing(), make_utterances(tmp_path / "one", 3, text="other")),
        planned(packing(per_shard=5), one),
        planned(packing(dtype="float32"), one),
        planned(packing(compression=""), one),
        planned(packing(features=FeatureConfig(num_mel_bins=9, num_mfcc=2)), one),
    ]
    assert len({base.content_hash, *(order.content_hash for order in different)}) == 8


def test_a_shard_appears_whole_or_not_at_all(tmp_path):
    def breaking():
        yield b"one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / "a.tfrecord", breaking(), "GZIP")
    assert not list(tmp_path.iterdir())


def test_senseless_packing_is_refused():
    with pytest.raises(ValueError, match="utterances_per_shard"):
        ShardConfig(utterances_per_shard=0)
    with pytest.raises(TypeError, match="dtype"):
        ShardConfig(dtype="float64")
