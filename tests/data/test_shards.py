import dataclasses
import json
import random

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.made_corpus import (
    TINY_FEATURES,
    contents,
    make_utterances,
    packing,
    prepare_split,
    write_tsv,
)
from tfasr.alphabet import Alphabet
from tfasr.corpora import reading as assembly
from tfasr.corpora.manifests import read_tsv
from tfasr.data import manifest as shard_index
from tfasr.data import prepare as preparing
from tfasr.data import rows as rows_module
from tfasr.data.audio import read_audio
from tfasr.data.batches import BatchSource, PipelineConfig
from tfasr.data.features import FeatureConfig, compute_features
from tfasr.data.manifest import PackedUtterances
from tfasr.data.prepare import kept_row, pack_split, packing_order
from tfasr.data.prepare_corpus import overlap
from tfasr.data.rows import Rows, decoded, encoded, in_order, in_places
from tfasr.data.shards import (
    RECORD,
    FeatureSums,
    ShardConfig,
    ShardedSplit,
    check_features,
    open_split,
    write_shard,
)
from tfasr.errors import RunError, UsageError
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import check_splits
from tfasr.training.experiment import Experiment
from tfasr.training.memory import longest_batch

# A split too large to be held gives what one that is held gives.


@pytest.fixture
def both(tmp_path, monkeypatch) -> tuple[ShardedSplit, ShardedSplit]:
    """One split, by columns and held."""
    utterances = make_utterances(tmp_path / "audio", 9)
    prepare_split(utterances, tmp_path / "held", packing(per_shard=2))
    prepare_split(utterances[:4], tmp_path / "held", packing(per_shard=2), split="test")
    monkeypatch.setattr(shard_index, "MOST_HELD", 3)
    prepare_split(utterances, tmp_path / "large", packing(per_shard=2))
    prepare_split(
        utterances[:4], tmp_path / "large", packing(per_shard=2), split="test"
    )

    return open_split(tmp_path / "large", "train"), open_split(
        tmp_path / "held", "train"
    )


def test_the_same_utterances_are_read_from_the_file(both):
    large, held = both

    assert isinstance(large.utterances, PackedUtterances)
    assert isinstance(held.utterances, list)
    assert list(large.utterances) == list(large.utterances) == held.utterances
    assert len(large.utterances) == len(held.utterances) == 9
    assert large.utterances[3] == held.utterances[3]
    assert large.utterances[-1] == held.utterances[-1]
    assert large.utterances[2:8:3] == held.utterances[2:8:3]


def test_there_is_no_utterance_beyond_the_last(both):
    large, _ = both

    with pytest.raises(IndexError):
        large.utterances[9]


def test_lengths_and_texts_are_the_same_from_the_file(both):
    large, held = both

    assert large.duration_s == pytest.approx(held.duration_s)
    np.testing.assert_array_equal(large.frames, held.frames)
    np.testing.assert_array_equal(large.frames_needed, held.frames_needed)
    assert list(large.transcripts()) == list(held.transcripts())


def test_utterances_are_found_by_position_where_some_are_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_index, "MOST_HELD", 3)
    utterances = make_utterances(tmp_path / "audio", 9)
    for bad in (utterances[0], utterances[4]):
        bad.audio_path.write_bytes(b"no audio")

    prepare_split(
        utterances, tmp_path / "shards", packing(per_shard=2), max_bad_fraction=0.5
    )

    split = open_split(tmp_path / "shards", "train")

    assert isinstance(split.utterances, PackedUtterances)

    there = [utterance.position for utterance in split.utterances]

    assert len(there) == 7
    assert split.at(there[::-1]) == list(split.utterances)[::-1]
    for missing in {*range(-1, 10)}.difference(there):
        with pytest.raises(KeyError):
            split.at([missing])


def test_the_longest_batch_is_the_same(both):
    sources = [
        BatchSource(
            split, TINY_FEATURES, PipelineConfig(padding="bucketed", num_buckets=3)
        )
        for split in both
    ]
    longest = [longest_batch(source, 4, Alphabet()) for source in sources]

    assert longest[0] == longest[1]


def test_utterances_without_a_ctc_path_are_refused_alike(both):
    experiment = Experiment(model=AcousticModelConfig(), features=TINY_FEATURES)
    too_short = Experiment(
        model=AcousticModelConfig(conv_stride=16), features=TINY_FEATURES
    )
    refusals = []

    for split in both:
        check_splits({"train": split}, experiment)
        with pytest.raises(UsageError, match="must have a CTC path") as refusal:
            check_splits({"train": split}, too_short)

        refusals.append(str(refusal.value).replace(str(split.folder), ""))

    assert refusals[0] == refusals[1]


def test_boundaries_of_batches_are_the_same(both):
    large, held = both
    pipeline = PipelineConfig(padding="bucketed", global_batch_size=2, num_buckets=3)

    sources = [BatchSource(split, TINY_FEATURES, pipeline) for split in both]

    assert sources[0].boundaries == sources[1].boundaries


def test_overlaps_are_the_same(both, tmp_path):
    large, held = both

    few = open_split(tmp_path / "large", "test")
    few_held = open_split(tmp_path / "held", "test")

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


# What prepare keeps outside memory: in order, sorted, put into places; and what it
# notes.

TEXT = st.text(st.characters(exclude_categories=()), max_size=5)


@given(
    st.lists(st.tuples(TEXT, st.integers(-(2**40), 2**40)), max_size=12),
    st.integers(1, 5),
)
@settings(deadline=None)
def test_rows_come_back_sorted_and_placed_however_few_are_held(
    tmp_path_factory, rows, at_once
):
    folder = tmp_path_factory.getbasetemp()
    kept = Rows(folder, 20).extend(rows)

    assert (len(kept), list(kept)) == (len(rows), [list(row) for row in rows])

    result = in_order(rows, lambda row: row[0], folder, at_once)
    assert list(map(tuple, result)) == sorted(rows, key=lambda row: row[0]), "stable"

    places = random.Random(0).sample(range(len(rows)), len(rows))
    placed = list(map(tuple, in_places(rows, places, len(rows), folder, at_once)))

    assert [placed[place] for place in places] == rows


def test_few_files_are_open_however_many_rows_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "_MOST_FILES", 3)

    rows = [(number * 7 % 20, "") for number in range(20)]
    expected = [[number, ""] for number in range(20)]

    assert list(map(list, in_order(rows, lambda row: row[0], tmp_path, 1))) == expected

    placed = in_places(rows, [row[0] for row in rows], 20, tmp_path, 1)
    assert list(map(list, placed)) == expected


def test_a_name_that_is_no_utf_8_survives():
    assert decoded(encoded(["a\udcffb"])) == ["a\udcffb"]


def test_the_order_of_a_split_is_that_of_older_versions(tmp_path, monkeypatch):
    """Shuffled as a list in memory was, whatever goes to files meanwhile."""
    monkeypatch.setattr(rows_module, "IN_MEMORY_BYTES", 100)
    rows = Rows(tmp_path, 100).extend(
        [f"u{n}", "", 1.0, "", "", None, 0, 0] for n in range(50)
    )
    expected = [f"u{n}" for n in range(50)]
    random.Random("train").shuffle(expected)

    order = packing_order(rows, "train", packing(), tmp_path)

    assert [u.id for part in order.parts(7) for u in part] == expected


@pytest.mark.parametrize("least_computed", [0.0, 1e9], ids=["here", "threads"])
def test_headers_are_read_once_unless_a_file_changes(
    tmp_path, monkeypatch, least_computed
):
    monkeypatch.setattr(preparing, "_LEAST_COMPUTED", least_computed)
    monkeypatch.setattr(preparing, "_CHUNK", 1)
    monkeypatch.setattr(preparing, "_AHEAD", 3)
    utterances = make_utterances(tmp_path / "audio", 6)
    listed = write_tsv(tmp_path / "audio", utterances)
    utterances[2].audio_path.write_bytes(b"damaged")
    read = []

    def counted(path):
        read.append(path.stem)
        return audio_duration_s(path)

    audio_duration_s = assembly.audio_duration_s
    monkeypatch.setattr(assembly, "audio_duration_s", counted)

    def prepare(**options):
        read.clear()
        corpus = read_tsv(listed, tmp_path / "audio")
        return pack_split(corpus, "train", tmp_path / "shards", packing(), **options)

    with pytest.raises(RunError, match="1 of 6"):
        prepare()
    assert sorted(read) == [u.id for u in utterances]

    notes = tmp_path / "shards" / "train" / "prepare-listing.jsonl"

    with notes.open("ab") as file:  # as a kill leaves it
        file.write(b'["cut')

    with pytest.raises(RunError, match="1 of 6"):
        prepare()
    assert read == ["u002"], "what was damaged may have been mended"

    utterances[4].audio_path.write_bytes(utterances[3].audio_path.read_bytes())
    prepare(max_bad_fraction=0.5)

    assert sorted(read) == ["u002", "u004"]
    assert not notes.exists(), "needed no more"

    index = json.loads((tmp_path / "shards" / "train" / "index.json").read_text())
    assert (index["utterances"], index["bad"]) == (5, 1)

    good = [u for u in utterances if u.id != "u002"]
    order = [json.loads(line)["id"] for line in open_manifest(tmp_path / "shards")]

    prepare_split(good, tmp_path / "again")

    assert order == [
        json.loads(line)["id"] for line in open_manifest(tmp_path / "again")
    ]
    assert (
        contents(tmp_path / "again" / "train").keys() == contents(notes.parent).keys()
    )


def open_manifest(shard_dir):
    return (shard_dir / "train" / "manifest.jsonl").read_text().splitlines()


def records(split):
    """The parsed records of a split."""
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

        if dtype == "float16":
            tolerance = {"rtol": 1e-3, "atol": 1e-3}
        else:
            tolerance = {"atol": 1e-5}

        np.testing.assert_allclose(stored, computed, **tolerance)
        assert record["labels"].values.numpy().tolist() == Alphabet().encode("all")
        assert record["position"] == listed.position
        assert record["duration_s"].numpy() == pytest.approx(listed.duration_s)


def test_statistics_are_those_of_all_frames(tmp_path):
    prepare_split(make_utterances(tmp_path / "audio", 7), tmp_path / "shards")
    split = open_split(tmp_path / "shards", "train")

    frames = np.concatenate(
        [
            np.frombuffer(r["features"].numpy(), "float16").reshape(-1, 10)
            for r in records(split)
        ]
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
    """The folder of a packed split of ten utterances."""
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
    with pytest.raises(
        UsageError, match="nowhere, which does not exist. Run tfasr prepare"
    ):
        open_split(prepared / "nowhere", "train")


def test_a_cut_manifest_is_refused(prepared):
    manifest = prepared / "train" / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)

    manifest.write_text("".join(lines[:-1]))

    with pytest.raises(UsageError, match=r"index's 10 utterances\. Received: 9"):
        open_split(prepared, "train")


def test_a_missing_manifest_is_refused(prepared):
    manifest = prepared / "train" / "manifest.jsonl"

    manifest.unlink()

    with pytest.raises(UsageError, match=r"must hold manifest\.jsonl"):
        open_split(prepared, "train")


def test_other_features_than_the_models_are_named(prepared):
    split = open_split(prepared, "train")
    check_features(split, TINY_FEATURES)

    other = FeatureConfig(
        num_mel_bins=8,
        num_mfcc=3,
        step_samples=200,
        normalisation="none",
        spectrum="power",
    )

    with pytest.raises(UsageError) as error:
        check_features(split, other)
    assert "num_mfcc 2 in the shards, 3 wanted" in str(error.value)
    assert "step_samples 160 in the shards, 200 wanted" in str(error.value)
    assert "normalisation" not in str(error.value)


def test_another_spectrum_than_the_models_is_named(prepared):
    split = open_split(prepared, "train")

    magnitude = FeatureConfig(num_mel_bins=8, num_mfcc=2, spectrum="magnitude")
    with pytest.raises(
        UsageError, match="spectrum power in the shards, magnitude wanted"
    ):
        check_features(split, magnitude)


def test_shards_of_power_are_those_made_before_magnitude_could_be_chosen(prepared):
    assert "spectrum" not in open_split(prepared, "train").index["features"]


@pytest.fixture
def planned(tmp_path):
    """Plans the packing of utterances and returns their order."""

    def plan(how, utterances):
        rows = Rows(tmp_path)
        for utterance in utterances:
            file = utterance.audio_path.stat()
            rows.append(kept_row(utterance, file.st_size, file.st_mtime_ns))

        return packing_order(rows, "train", how, tmp_path)

    return plan


def test_the_hash_ignores_where_and_when_files_were_written(planned, tmp_path):
    one = make_utterances(tmp_path / "one", 3)
    base = planned(packing(), one)
    same = planned(packing(), make_utterances(tmp_path / "two", 3))

    assert same.content_hash == base.content_hash, (
        "the place of the files does not count"
    )
    assert same.resume_key != base.resume_key, "nor do times, but to resume"


def test_the_hash_ignores_settings_that_change_no_bytes(planned, tmp_path):
    one = make_utterances(tmp_path / "one", 3)
    base = planned(packing(), one)

    whole = FeatureConfig(
        num_mel_bins=8, num_mfcc=2, upper_edge_hz=8000, spectrum="power"
    )
    assert planned(packing(features=whole), one).content_hash == base.content_hash

    unnormalised = FeatureConfig(
        num_mel_bins=8, num_mfcc=2, normalisation="none", spectrum="power"
    )
    assert (
        planned(packing(features=unnormalised), one).content_hash == base.content_hash
    )


def test_the_hash_knows_what_changes_the_bytes(planned, tmp_path):
    one = make_utterances(tmp_path / "one", 3)
    base = planned(packing(), one)

    different = [
        planned(packing(), one[:2]),
        planned(packing(), one[::-1]),
        planned(packing(), make_utterances(tmp_path / "one", 3, text="other")),
        planned(packing(per_shard=5), one),
        planned(packing(dtype="float32"), one),
        planned(packing(compression=""), one),
        planned(
            packing(features=dataclasses.replace(TINY_FEATURES, num_mel_bins=9)), one
        ),
        planned(
            packing(features=dataclasses.replace(TINY_FEATURES, spectrum="magnitude")),
            one,
        ),
    ]
    assert len({base.content_hash, *(order.content_hash for order in different)}) == 9


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
