import json
import resource
import subprocess

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.data.made_corpus import (
    contents,
    make_utterances,
    noise,
    packing,
    prepare_split,
)
from tfasr.corpora.manifests import TOO_LONG
from tfasr.corpora.utterance import Rejection, Utterance
from tfasr.data.manifest import HeldUtterances, ShardedUtterance
from tfasr.data.prepare import Dropped, Selection
from tfasr.data.prepare_corpus import Overlap
from tfasr.data.prepare_corpus import overlap as overlap_of_held
from tfasr.data.rows import Rows
from tfasr.data.shards import FeatureSums, open_split, write_shard
from tfasr.errors import RunError

# The list of what was left out, written a row at a time.


@pytest.mark.parametrize(
    "unfit", [[], [["é", "no CTC path", "a\nb"], ["f", "no CTC path", "y"]]]
)
def test_it_is_what_json_makes_of_the_whole(tmp_path, unfit):
    too_long = [["l", TOO_LONG, "20 s"]] * (len(unfit) // 2)
    unusable = [["u\udcff", "unreadable audio", "x"]] * (len(unfit) // 2)
    groups = [
        Rows(tmp_path).extend(rows) for rows in ([["k"]], too_long, unusable, unfit)
    ]
    dropped = Dropped(Selection(*groups), Rows(tmp_path))
    dropped.write(tmp_path / "dropped.json")

    fields = ("id", "reason", "detail")
    rows = [
        dict(zip(fields, row, strict=True)) for row in [*too_long, *unusable, *unfit]
    ]
    reasons = {}
    if unfit:
        reasons = {"no CTC path": 2, TOO_LONG: 1, "unreadable audio": 1}

    content = {"too_long": len(too_long), "bad": len(unusable) + len(unfit)}
    content |= {"reasons": reasons, "utterances": rows}

    expected = json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    assert (tmp_path / "dropped.json").read_bytes() == expected.encode(
        errors="backslashreplace"
    )


# What counts as the same utterance in two splits.


def overlap(training: list, held_out: list) -> Overlap:
    return overlap_of_held(HeldUtterances(training), HeldUtterances(held_out))


def utterance(name, content, speaker="", text="yes"):
    return ShardedUtterance(0, name, text, speaker, 1.0, 98, 3, content)


def test_equal_features_are_one_utterance_whatever_they_are_called():
    result = overlap(
        [utterance("a", "1f")], [utterance("b", "1f"), utterance("c", "2e")]
    )

    assert (result.utterances, result.of_utterances) == (["b"], 2)


def test_speakers_are_counted_by_name():
    training = [utterance("a", "1", "ann"), utterance("b", "2")]
    result = overlap(training, [utterance("c", "3", "ann"), utterance("d", "4", "bob")])

    assert (result.speakers, result.of_speakers, result.utterances) == (["ann"], 2, [])


# What goes into a shard, computed the quick way, is what the slow way gives.


@given(arrays.arrays(np.float32, 40, elements=st.floats(width=32)))
@settings(deadline=None)
def test_tensorflow_rounds_to_float16_as_numpy_does(values):
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)

    np.testing.assert_array_equal(tf.cast(values, tf.float16).numpy(), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sums_tell_whether_all_features_are_finite(value):
    features = np.full((5, 3), 60000, np.float16)
    sums = FeatureSums()

    sums.add(features)

    assert sums.finite

    features[3, 1] = value
    sums.add(features)

    assert not sums.finite


def test_shards_are_compressed_by_how_often_bytes_occur(tmp_path):
    """As well as with a search for matches, which finds none among features."""
    features = (
        np.random.default_rng(0).normal(-3, 2, (600, 93)).astype(np.float16).tobytes()
    )
    sizes = []
    for name, options in (
        ("ours", None),
        ("matches", tf.io.TFRecordOptions("GZIP", compression_level=1)),
    ):
        path = tmp_path / name
        if options is None:
            write_shard(path, [features], "GZIP")
        else:
            with tf.io.TFRecordWriter(str(path), options) as writer:
                writer.write(features)

        assert (
            next(iter(tf.data.TFRecordDataset(str(path), "GZIP"))).numpy() == features
        )

        sizes.append(path.stat().st_size)

    assert sizes[0] < 1.02 * sizes[1] < len(features)


def mtimes(folder):
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("*.tfrecord")}


def test_index_and_manifest_tell_what_was_packed(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 10)
    index = prepare_split(utterances, tmp_path / "shards", num_workers=2)

    assert [shard["utterances"] for shard in index["shards"]] == [4, 4, 2]
    assert index["utterances"] == 10
    assert index["duration_s"] == pytest.approx(sum(u.duration_s for u in utterances))

    split = open_split(tmp_path / "shards", "train")

    assert split.index == index
    assert sorted(u.id for u in split.utterances) == [u.id for u in utterances]
    assert [u.id for u in split.utterances] != [u.id for u in utterances], (
        "must be mixed"
    )
    assert [u.position for u in split.utterances] == list(range(10))

    by_id = {u.id: u for u in utterances}

    for packed in split.utterances:
        result = by_id[packed.id]

        assert (packed.text, packed.speaker) == (result.text, result.speaker)
        assert packed.duration_s == pytest.approx(result.duration_s)
        assert packed.frames == (round(result.duration_s * 16000) - 512) // 160 + 1
        assert packed.frames_needed == 6


def test_same_bytes_in_two_folders_and_with_one_and_two_workers(tmp_path):
    results = []
    for place, workers in (("one", 1), ("two/further", 2)):
        utterances = make_utterances(tmp_path / place / "audio", 13)
        prepare_split(utterances, tmp_path / place / "shards", num_workers=workers)
        results.append(contents(tmp_path / place / "shards" / "train"))

    assert results[0] == results[1]
    assert len(results[0]) == 4 + 4 + 3  # shards, sidecars, index, manifest, dropped


def test_order_of_the_corpus_is_mixed_the_same_for_a_split_and_otherwise_for_another(
    tmp_path,
):
    utterances = make_utterances(tmp_path / "audio", 12)
    orders = []
    for folder, split in (("a", "train"), ("b", "train"), ("a", "test")):
        prepare_split(utterances, tmp_path / folder, split=split)
        orders.append([u.id for u in open_split(tmp_path / folder, split).utterances])

    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_finished_shards_are_kept_and_lost_ones_made_anew(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 10)
    prepare_split(utterances, tmp_path / "shards")
    folder = tmp_path / "shards" / "train"
    whole = contents(folder)
    before = mtimes(folder)
    (folder / "train-00001.tfrecord").unlink()
    truncated = folder / "train-00002.tfrecord"
    truncated.write_bytes(truncated.read_bytes()[:-3])

    prepare_split(utterances, tmp_path / "shards")

    assert contents(folder) == whole

    after = mtimes(folder)

    assert after["train-00000.tfrecord"] == before["train-00000.tfrecord"]
    assert after["train-00001.tfrecord"] != before["train-00001.tfrecord"]
    assert after["train-00002.tfrecord"] != before["train-00002.tfrecord"]


def test_other_settings_make_all_shards_anew_and_leave_nothing_of_the_old(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 10)

    old = prepare_split(utterances, tmp_path / "shards", packing(per_shard=2))
    new = prepare_split(utterances, tmp_path / "shards", packing(per_shard=8))

    assert old["content_hash"] != new["content_hash"]

    names = {p.name for p in (tmp_path / "shards" / "train").glob("train-*")}
    assert names == {
        f"train-0000{n}.{suffix}" for n in (0, 1) for suffix in ("json", "tfrecord")
    }


def test_audio_mended_in_place_is_read_again_though_its_size_is_the_same(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(0.5, seed=1), 16000)
    utterances = [Utterance("a", path, 0.5, "yes")]
    prepare_split(utterances, tmp_path / "shards")
    before = contents(tmp_path / "shards" / "train")
    size = path.stat().st_size

    soundfile.write(path, noise(0.5, seed=2), 16000)

    assert path.stat().st_size == size

    prepare_split(utterances, tmp_path / "shards")
    assert contents(tmp_path / "shards" / "train") != before


def break_flac(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_bad_utterances_are_listed_and_a_larger_fraction_keeps_the_finished_shards(
    tmp_path,
):
    utterances = make_utterances(tmp_path / "audio", 10)
    break_flac(utterances[3].audio_path)
    utterances[5].audio_path.write_bytes(b"no audio at all")

    stray = Rejection("stray", "audio without transcript", "stray.flac")

    with pytest.raises(RunError) as error:
        prepare_split(
            utterances, tmp_path / "shards", rejections=(stray,), max_bad_fraction=0.2
        )

    message = str(error.value)
    folder = tmp_path / "shards" / "train"

    for part in (
        "u003: unreadable audio",
        "u005: unreadable audio",
        "stray: audio without",
        "3 of 11",
        "20.00%",
        "--max_bad_fraction 0.273",
        "dropped.json",
    ):
        assert part in message

    dropped = json.loads((folder / "dropped.json").read_text())

    assert dropped["reasons"] == {"unreadable audio": 2, "audio without transcript": 1}
    assert {u["id"] for u in dropped["utterances"]} == {"u003", "u005", "stray"}
    assert not (folder / "index.json").exists()

    before = mtimes(folder)
    assert len(before) == 3

    index = prepare_split(
        utterances, tmp_path / "shards", rejections=(stray,), max_bad_fraction=0.273
    )

    assert mtimes(folder) == before
    assert (index["utterances"], index["bad"]) == (8, 3)
    assert len(open_split(tmp_path / "shards", "train").utterances) == 8


@pytest.mark.parametrize(
    ("bad", "total"), [(29, 100), (7, 100), (1, 3), (2, 7), (57, 100)]
)
def test_the_fraction_that_the_error_recommends_is_enough(tmp_path, bad, total):
    # One file under many names: only the numbers matter.
    path = make_utterances(tmp_path, 1)[0].audio_path

    good = [Utterance(f"u{n}", path, 0.3, "a") for n in range(total - bad)]
    rejections = tuple(Rejection(f"r{n}", "empty transcript", "") for n in range(bad))

    with pytest.raises(RunError, match="--max_bad_fraction") as error:
        prepare_split(good, tmp_path, rejections=rejections, max_bad_fraction=0.0)

    recommended = float(str(error.value).split("--max_bad_fraction ")[1].split(";")[0])
    prepare_split(good, tmp_path, rejections=rejections, max_bad_fraction=recommended)

    with pytest.raises(RunError):
        smaller = recommended - 0.001
        prepare_split(good, tmp_path, rejections=rejections, max_bad_fraction=smaller)


def test_a_split_of_bad_utterances_alone_is_never_accepted(tmp_path):
    bad = (Rejection("a", "empty transcript", "a.flac"),)

    with pytest.raises(RunError, match="at least one good utterance"):
        prepare_split([], tmp_path, rejections=bad, max_bad_fraction=1.0)


def test_too_long_utterances_are_no_faults_but_cannot_be_all(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 10)  # 0.3 .. 1.2 s
    index = prepare_split(
        utterances, tmp_path / "s", max_duration_s=0.95, max_bad_fraction=0.0
    )

    assert (index["utterances"], index["too_long"], index["bad"]) == (7, 3, 0)
    assert (
        json.loads((tmp_path / "s/train/index.json").read_text())["kept_share"] == 0.7
    )
    with pytest.raises(RunError, match="would be empty"):
        prepare_split(utterances, tmp_path / "s", max_duration_s=0.1)


def test_audio_shorter_than_its_header_says_is_judged_by_its_samples(tmp_path):
    utterances = make_utterances(tmp_path, 3)
    short = tmp_path / "short.wav"
    soundfile.write(short, noise(0.04), 16000)
    few = tmp_path / "few.wav"
    soundfile.write(few, noise(0.2), 16000)
    lying = [
        Utterance("short", short, 5.0, "a"),
        Utterance("few", few, 5.0, "one two three"),
    ]
    prepare_split(utterances + lying, tmp_path / "shards", max_bad_fraction=0.5)

    dropped = json.loads((tmp_path / "shards" / "train" / "dropped.json").read_text())

    assert {u["id"]: u["reason"] for u in dropped["utterances"]} == {
        "short": "too short for the model's convolution",
        "few": "no CTC path",
    }


def test_a_shard_of_bad_utterances_alone_harms_nothing(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 6)
    order = open_order(utterances, tmp_path)
    for utterance in utterances:
        if utterance.id in order[2:4]:  # the second shard
            utterance.audio_path.write_bytes(b"nothing")

    index = prepare_split(
        utterances, tmp_path / "shards", packing(per_shard=2), max_bad_fraction=0.5
    )
    assert [shard["utterances"] for shard in index["shards"]] == [2, 0, 2]

    split = open_split(tmp_path / "shards", "train")
    assert sum(1 for _ in tf.data.TFRecordDataset(split.files, "GZIP")) == 4

    mean, deviation = split.feature_statistics()
    assert mean.shape == deviation.shape == (10,)


def open_order(utterances, tmp_path):
    """The ids in the order in which the split packs them."""
    prepare_split(utterances, tmp_path / "trial")
    return [u.id for u in open_split(tmp_path / "trial", "train").utterances]


def test_progress_counts_to_the_total(tmp_path):
    seen = []
    prepare_split(
        make_utterances(tmp_path / "audio", 10),
        tmp_path / "shards",
        on_progress=lambda done, total: seen.append((done, total)),
    )

    # In the order in which shards are finished: the last one is shorter.
    assert [done for done, _ in seen] in ([4, 8, 10], [4, 6, 10], [2, 6, 10])
    assert {total for _, total in seen} == {10}


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tfasr-test", str(folder)]

    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs the command mount")

    if mounted.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.strip()}")

    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_says_so_and_the_work_resumes_where_there_is_room(
    tmp_path, small_disk
):
    utterances = make_utterances(tmp_path / "audio", 12)
    how = packing(per_shard=4, dtype="float32", compression="")
    ballast = small_disk / "ballast"

    # Room for about two of three shards of some 12 kB.
    ballast.write_bytes(bytes(256 * 1024 - 9 * 4096))

    with pytest.raises(RunError, match="must have room") as error:
        prepare_split(utterances, small_disk, how, num_workers=1)
    assert "run tfasr prepare again" in str(error.value)

    folder = small_disk / "train"
    assert not (folder / "index.json").exists()

    kept = mtimes(folder)
    assert kept, "the shards that had room must be kept"

    ballast.unlink()
    prepare_split(utterances, small_disk, how, num_workers=1)

    assert {name: time for name, time in mtimes(folder).items() if name in kept} == kept

    prepare_split(utterances, tmp_path / "roomy", how)
    assert contents(folder) == contents(tmp_path / "roomy" / "train")


@pytest.mark.parametrize("free_pages", range(1, 20, 3))
def test_whenever_the_disk_is_full_it_is_a_run_error(tmp_path, small_disk, free_pages):
    utterances = make_utterances(tmp_path / "audio", 6)
    (small_disk / "ballast").write_bytes(bytes(256 * 1024 - 4096 * free_pages))
    try:
        prepare_split(utterances, small_disk, packing(per_shard=3), num_workers=1)
    except RunError as error:
        assert "must have room" in str(error)  # noqa: PT017 - with enough pages there is none
        assert free_pages < 16
    else:
        assert len(open_split(small_disk, "train").utterances) == 6


def test_a_file_that_cannot_grow_leaves_neither_an_index_nor_a_part(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 6)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))

    try:
        with pytest.raises((OSError, RunError)):
            prepare_split(utterances, tmp_path / "shards", num_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    names = {p.name for p in (tmp_path / "shards" / "train").iterdir()}
    # The second shard is small enough.
    assert names <= {"plan.json", "train-00001.tfrecord", "train-00001.json"}

    prepare_split(utterances, tmp_path / "shards")
    assert len(open_split(tmp_path / "shards", "train").utterances) == 6
