import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.made_corpus import (
    TINY_FEATURES,
    make_utterances,
    packing,
    prepare_split,
)
from tfasr.alphabet import Alphabet
from tfasr.data.augmentation import AugmentationConfig, VocalTract
from tfasr.data.batches import BatchSource, PipelineConfig, Share, bucket_boundaries
from tfasr.data.features import FeatureConfig, pooled
from tfasr.data.shards import RECORD, open_split
from tfasr.errors import RunError, UsageError


def padded_frames(lengths, boundaries):
    boundaries = np.asarray(boundaries)
    return int(boundaries[np.searchsorted(boundaries, lengths)].sum())


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=15), st.integers(1, 5))
def test_boundaries_are_the_best_of_all(lengths, num_buckets):
    boundaries = bucket_boundaries(lengths, num_buckets)

    assert boundaries == sorted(set(boundaries))
    assert boundaries[-1] == max(lengths)
    assert 1 <= len(boundaries) <= num_buckets

    others = sorted(set(lengths) - {max(lengths)})
    best = min(
        padded_frames(lengths, [*chosen, max(lengths)])
        for size in range(min(num_buckets - 1, len(others)) + 1)
        for chosen in itertools.combinations(others, size)
    )

    assert padded_frames(lengths, boundaries) == best


def test_the_shortest_and_rare_lengths_can_be_boundaries():
    assert bucket_boundaries([10, 100], 2) == [10, 100]
    assert bucket_boundaries([10] * 5000 + [500, 1000], 3) == [10, 500, 1000]


def test_many_lengths_are_cut_well():
    lengths = np.random.default_rng(0).integers(100, 1600, 20000)
    boundaries = bucket_boundaries(lengths, 8)

    assert len(boundaries) == 8
    assert boundaries[-1] == lengths.max()

    # Uniform lengths in 8 equal buckets: half a bucket's width is padded.
    even = np.linspace(100, 1600, 9)[1:].astype(int)
    assert padded_frames(lengths, boundaries) < 1.005 * padded_frames(lengths, even)


def test_one_length_needs_one_bucket():
    assert bucket_boundaries([7, 7, 7], 8) == [7]


def test_no_utterances_are_refused():
    with pytest.raises(ValueError, match="must hold utterances"):
        bucket_boundaries([], 3)


UTTERANCES = 37
NAMES = {
    "features",
    "feature_lengths",
    "labels",
    "label_lengths",
    "positions",
    "duration_s",
}
FIXED = {"padding": "fixed", "max_frames": 130}
PADDINGS = pytest.mark.parametrize(
    "padding", [{"num_buckets": 3}, FIXED], ids=["buckets", "fixed"]
)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """A split of several shards with utterances of different lengths."""
    folder = tmp_path_factory.mktemp("pipeline")
    utterances = make_utterances(folder / "audio", UTTERANCES)
    prepare_split(utterances, folder / "shards", packing(per_shard=5))

    return open_split(folder / "shards", "train")


def half(frames):
    """The output frames of a model that is not there."""
    return frames // 2


def make_source(
    split, features=TINY_FEATURES, augmentation=None, statistics=None, **pipeline
):
    """Batches of four utterances, bucketed unless `pipeline` says otherwise."""
    config = {
        "padding": "bucketed",
        "global_batch_size": 4,
        "num_readers": 2,
        "shuffle_buffer": 10,
        "num_buckets": 3,
    }
    config = PipelineConfig(**{**config, **pipeline})
    return BatchSource(split, features, config, augmentation, statistics, half)


def arrays(dataset):
    return list(dataset.as_numpy_iterator())


def positions(batches):
    return [batch["positions"].tolist() for batch in batches]


def assert_same(received, expected):
    assert positions(received) == positions(expected)
    for one, other in zip(received, expected, strict=True):
        assert one.keys() == other.keys() == NAMES
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@PADDINGS
@pytest.mark.parametrize("kind", ["evaluation", "training"])
def test_every_utterance_stands_once_in_an_epoch_whole_and_padded_with_zeros(
    split, padding, kind
):
    source = make_source(split, **padding)
    batches = arrays(
        source.evaluation() if kind == "evaluation" else source.training(1, 1)
    )

    assert sorted(sum(positions(batches), [])) == list(range(UTTERANCES))

    largest = max(len(batch["positions"]) for batch in batches)
    assert largest == (8 if kind == "evaluation" else 4)

    by_position = {u.position: u for u in split.utterances}

    for batch in batches:
        assert len(batch["positions"]) >= 1, "no empty row is ever added"
        assert batch["features"].shape[1] in source.boundaries

        for row, position in enumerate(batch["positions"]):
            listed = by_position[position]
            frames = batch["feature_lengths"][row]
            labels = batch["label_lengths"][row]

            assert frames == listed.frames
            assert batch["duration_s"][row] == pytest.approx(listed.duration_s)

            text = Alphabet().decode(batch["labels"][row, :labels])

            assert text == listed.text
            assert not batch["features"][row, frames:].any()
            assert not batch["labels"][row, labels:].any()

            valid = batch["features"][row, :frames].astype(np.float64)

            np.testing.assert_allclose(valid.mean(axis=0), 0, atol=1e-3)
            np.testing.assert_allclose(valid.std(axis=0), 1, atol=1e-2)


def test_an_utterance_belongs_to_the_shortest_bucket_that_holds_it(split):
    source = make_source(split)
    for batch in arrays(source.training(3, 1)):
        padded = batch["features"].shape[1]
        shorter = [b for b in source.boundaries if b < padded]

        assert all(
            length > max(shorter, default=0) for length in batch["feature_lengths"]
        )


def test_fixed_batches_have_the_papers_shape_and_differ_in_their_last_alone(split):
    batches = arrays(make_source(split, **FIXED).training(1, 1))

    assert [b["features"].shape for b in batches[:-1]] == [(4, 130, 10)] * (
        UTTERANCES // 4
    )
    assert batches[-1]["features"].shape == (UTTERANCES % 4, 130, 10)


@PADDINGS
def test_the_order_depends_on_seed_and_epoch_alone(split, padding):
    first = arrays(make_source(split, **padding).training(seed=1, epoch=1))
    source = make_source(split, **padding)

    dataset = source.training(seed=1, epoch=1)

    assert_same(arrays(dataset), first)
    assert_same(arrays(dataset), first)  # a second pass

    other_epoch = arrays(source.training(seed=1, epoch=2))
    other_seed = arrays(source.training(seed=2, epoch=1))

    assert positions(first) != positions(other_epoch)
    assert positions(first) != positions(other_seed)
    assert_same(arrays(source.training(seed=1, epoch=1)), first)


def test_a_global_seed_changes_nothing(split):
    first = arrays(make_source(split).training(seed=1, epoch=1))
    try:
        tf.random.set_seed(123)

        assert_same(arrays(make_source(split).training(seed=1, epoch=1)), first)
    finally:
        tf.random.set_seed(None)


def test_utterances_meet_others_in_every_epoch(split):
    source = make_source(split)
    companies = [
        {frozenset(batch) for batch in positions(arrays(source.training(1, epoch)))}
        for epoch in (1, 2)
    ]

    assert len(companies[0] & companies[1]) < len(companies[0]) / 2


@PADDINGS
def test_skip_leaves_exactly_the_remaining_batches(split, padding):
    masks = AugmentationConfig(time_masks=1, time_mask_fraction=0.5, frequency_masks=1)
    whole = arrays(make_source(split, augmentation=masks, **padding).training(1, 2))
    for skip in (1, 4, len(whole) - 1, len(whole), len(whole) + 3):
        source = make_source(split, augmentation=masks, **padding)

        assert_same(arrays(source.training(1, 2, skip=skip)), whole[skip:])


@PADDINGS
def test_a_schedule_changes_the_size_of_batches_and_nothing_else(split, padding):
    growing = make_source(split, batch_size_schedule=[(2, 2), (4, 9)], **padding)
    for epoch, size in ((1, 4), (2, 2), (3, 2), (4, 9), (7, 9)):
        batches = arrays(growing.training(1, epoch))
        usual = make_source(split, global_batch_size=size, **padding)

        assert_same(batches, arrays(usual.training(1, epoch)))
        assert max(len(batch["positions"]) for batch in batches) == size
        assert_same(arrays(growing.training(1, epoch, skip=2)), batches[2:])

    shares = [arrays(growing.training(1, 4, share=Share(rank, 2))) for rank in (0, 1)]
    # A worker whose share of a small batch is empty holds another's row, which does not
    # count.
    assert set(sum(positions(shares[0]) + positions(shares[1]), [])) == set(
        range(UTTERANCES)
    )


@given(
    st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), max_size=4),
    st.integers(1, 9),
)
def test_a_schedule_is_in_order_and_says_each_epochs_batch_size(schedule, size):
    epochs = [1, *(epoch for epoch, _ in schedule)]
    if epochs != sorted(set(epochs)) or any(later <= 0 for _, later in schedule):
        with pytest.raises(
            ValueError, match="batch_size_schedule must be pairs of an epoch"
        ):
            PipelineConfig(global_batch_size=size, batch_size_schedule=schedule)

        return

    pipeline = PipelineConfig(global_batch_size=size, batch_size_schedule=schedule)
    told = [pipeline.batch_size(epoch) for epoch in range(1, 11)]
    expected = size

    for epoch in range(1, 11):
        expected = dict(schedule).get(epoch, expected)

        assert told[epoch - 1] == expected

    assert set(told) <= set(pipeline.batch_sizes)


@PADDINGS
def test_replicas_get_equal_consecutive_cuts_of_each_global_batch(split, padding):
    source = make_source(split, **padding)
    for skip in (0, 2):
        whole = arrays(source.training(1, 1, skip=skip))
        cuts = iter(arrays(source.training(1, 1, skip=skip, replicas=2)))
        for batch in whole:
            each = len(batch["positions"]) // 2
            for part in range(2 if each else 0):
                cut = next(cuts)
                for name in NAMES:
                    expected = batch[name][part * each : (part + 1) * each]

                    np.testing.assert_array_equal(cut[name], expected)

        assert next(cuts, None) is None


@pytest.mark.parametrize("replicas", [1, 2])
def test_shapes_are_known_before_the_first_batch(split, replicas):
    fixed = make_source(split, **FIXED).training(1, 1, replicas=replicas).element_spec
    assert fixed["features"].shape.as_list()[1:] == [130, 10]

    bucketed = make_source(split).training(1, 1, replicas=replicas).element_spec

    assert bucketed["features"].shape.as_list() == [None, None, 10]
    for spec in (fixed, bucketed):
        assert spec["labels"].shape.as_list() == [None, None]
        for name in NAMES - {"features", "labels"}:
            assert spec[name].shape.as_list() == [None]


def by_position(batches):
    """The features of each utterance, by its position in the split, unpadded."""
    return {
        position: batch["features"][row, : batch["feature_lengths"][row]]
        for batch in batches
        for row, position in enumerate(batch["positions"])
    }


def test_augmentation_masks_in_training_alone_the_same_for_the_same_seed(split):
    masks = AugmentationConfig(time_masks=2, time_mask_fraction=0.5, frequency_masks=1)
    plain = by_position(arrays(make_source(split).evaluation()))
    source = make_source(split, augmentation=masks)
    evaluated = by_position(arrays(source.evaluation()))
    trained = by_position(arrays(source.training(1, 1)))
    next_epoch = by_position(arrays(source.training(1, 2)))

    for position, features in plain.items():
        np.testing.assert_array_equal(evaluated[position], features)

        kept = trained[position] != 0
        np.testing.assert_array_equal(trained[position][kept], features[kept])

    masked = [not (trained[p] != 0).all() for p in plain]

    assert np.mean(masked) > 0.8
    assert any(not np.array_equal(trained[p], next_epoch[p]) for p in plain)
    assert_same(arrays(source.training(1, 1)), arrays(source.training(1, 1)))


def test_masks_from_a_later_epoch_leave_the_epochs_before_as_they_are(split):
    masks = {"time_masks": 2, "time_mask_fraction": 0.5, "frequency_masks": 1}

    late = make_source(split, augmentation=AugmentationConfig(**masks, from_epoch=3))
    plain = make_source(split)
    always = make_source(split, augmentation=AugmentationConfig(**masks))

    assert_same(arrays(late.training(1, 3)), arrays(always.training(1, 3)))
    assert_same(arrays(late.training(1, 2, skip=3)), arrays(plain.training(1, 2))[3:])
    assert late.training(1, 1).element_spec == late.training(1, 3).element_spec


def test_a_changed_tempo_resamples_each_utterance_anew_in_each_epoch(split):
    source = make_source(split, augmentation=AugmentationConfig(tempo_change=0.2))
    assert source.boundaries[-1] >= 1.2 * max(u.frames for u in split.utterances)

    plain = by_position(arrays(source.evaluation()))
    assert {p: len(f) for p, f in plain.items()} == {
        u.position: u.frames for u in split.utterances
    }

    epochs = [arrays(source.training(1, epoch)) for epoch in (1, 2)]

    for batch in epochs[0]:
        padded = batch["features"].shape[1]
        shorter = [b for b in source.boundaries if b < padded]

        assert all(
            max(shorter, default=0) < n <= padded for n in batch["feature_lengths"]
        )

    first, second = map(by_position, epochs)
    bounds = zip(split.utterances, *source.frame_ranges, strict=True)

    assert all(least <= len(first[u.position]) <= most for u, least, most in bounds)

    ratios = np.array([len(first[p]) / len(plain[p]) for p in plain])

    assert 0.79 < min(ratios) < 0.9 < 1.1 < max(ratios) < 1.21
    assert [len(first[p]) for p in plain] != [len(second[p]) for p in plain]

    for position, features in plain.items():
        places = np.linspace(0, len(features) - 1, len(first[position]))
        expected = [np.interp(places, np.arange(len(f)), f) for f in features.T]

        np.testing.assert_allclose(first[position], np.transpose(expected), atol=1e-3)


def test_a_changed_tempo_is_the_same_after_skipped_batches(split):
    source = make_source(split, augmentation=AugmentationConfig(tempo_change=0.2))

    epochs = [arrays(source.training(1, epoch)) for epoch in (1, 2)]

    assert_same(arrays(source.training(1, 1, skip=2)), epochs[0][2:])


def test_a_tempo_too_slow_for_fixed_batches_is_refused(split):
    with pytest.raises(UsageError, match="at the slowest tempo"):
        longest = max(u.frames for u in split.utterances)
        make_source(
            split,
            augmentation=AugmentationConfig(tempo_change=0.2),
            padding="fixed",
            max_frames=longest,
        )


def test_a_changed_vocal_tract_is_drawn_anew_in_each_epoch_and_never_in_evaluation(
    split,
):
    source = make_source(split, augmentation=AugmentationConfig(vocal_tract_change=0.2))

    plain = by_position(arrays(source.evaluation()))
    same = by_position(arrays(make_source(split).evaluation()))

    assert all(np.array_equal(plain[position], same[position]) for position in same)

    epochs = [arrays(source.training(1, epoch)) for epoch in (1, 2)]
    first, second = map(by_position, epochs)

    for position, features in plain.items():
        assert first[position].shape == features.shape
        assert not np.allclose(first[position], features, atol=1e-2)
        assert not np.allclose(first[position], second[position], atol=1e-2)
        # Normalised after it, as all that the model sees.
        np.testing.assert_allclose(first[position].mean(axis=0), 0, atol=1e-3)


def test_a_changed_vocal_tract_is_the_same_after_skipped_batches(split):
    source = make_source(split, augmentation=AugmentationConfig(vocal_tract_change=0.2))

    epochs = [arrays(source.training(1, epoch)) for epoch in (1, 2)]

    assert_same(arrays(source.training(1, 1, skip=2)), epochs[0][2:])


def stored(split):
    for record in tf.data.TFRecordDataset(split.files, "GZIP"):
        parsed = tf.io.parse_single_example(record, RECORD)
        flat = np.frombuffer(parsed["features"].numpy(), "float16")

        yield int(parsed["position"]), flat.reshape(-1, 10).astype(np.float32)


def test_corpus_normalisation_needs_statistics(split):
    corpus = dataclasses.replace(TINY_FEATURES, normalisation="corpus")
    with pytest.raises(UsageError, match="statistics"):
        make_source(split, corpus)


def test_corpus_normalisation_makes_the_split_as_a_whole_normal(split):
    corpus = dataclasses.replace(TINY_FEATURES, normalisation="corpus")

    mean, deviation = statistics = split.feature_statistics()
    features = by_position(
        arrays(make_source(split, corpus, statistics=statistics).evaluation())
    )

    for position, plain in stored(split):
        np.testing.assert_allclose(
            features[position], (plain - mean) / deviation, atol=1e-4
        )

    frames = np.concatenate(list(features.values()))

    np.testing.assert_allclose(frames.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(frames.std(axis=0), 1, atol=1e-3)


SPEAKERS = dataclasses.replace(TINY_FEATURES, normalisation="speaker")


def of_speakers(split, known=lambda utterance: True):
    """Each position's features, and the statistics of all that its speaker says in
    ``split``.
    """
    plain = dict(stored(split))
    said = {}
    for one in split.utterances:
        said.setdefault(one.speaker if known(one) else one.id, []).append(one.position)

    for positions in said.values():
        frames = np.concatenate([plain[position] for position in positions]).astype(
            np.float64
        )
        own = frames.mean(axis=0), frames.std(axis=0)
        for position in positions:
            yield (
                position,
                plain[position],
                pooled(len(frames), own, split.feature_statistics()),
            )


def test_normalisation_by_speaker_needs_statistics(split):
    with pytest.raises(UsageError, match="Normalisation 'speaker' must be given"):
        make_source(split, SPEAKERS)


def test_speakers_are_normalised_over_all_that_they_say_in_the_split(
    split, tmp_path, monkeypatch
):
    statistics = split.feature_statistics()
    expected = {}

    for position, plain, (mean, deviation) in of_speakers(split):
        expected[position] = (plain - mean) / deviation

    monkeypatch.setattr("tfasr.data.manifest.MOST_HELD", 3)
    utterances = make_utterances(tmp_path / "audio", UTTERANCES)
    prepare_split(utterances, tmp_path / "shards", packing(per_shard=5))

    packed = open_split(tmp_path / "shards", "train")

    assert type(packed.utterances) is not type(split.utterances)

    for some in (split, packed, split.part(9), split.part(9).part(5)):
        source = make_source(some, SPEAKERS, statistics=statistics)
        features = by_position(arrays(source.evaluation()))

        assert features.keys() == {one.position for one in some.utterances}
        for position, result in features.items():
            np.testing.assert_allclose(result, expected[position], atol=1e-3)

    first = source.first(3)  # of the shards, not of the part
    for row, position in enumerate(first["positions"].numpy()):
        result = first["features"][row, : first["feature_lengths"][row]]

        np.testing.assert_allclose(result, expected[position], atol=1e-3)


def test_a_damaged_shard_is_told_where_speakers_statistics_are_taken(tmp_path):
    prepare_split(
        make_utterances(tmp_path / "audio", 7),
        tmp_path / "shards",
        packing(per_shard=5),
    )
    split = open_split(tmp_path / "shards", "train")
    damaged = bytearray(Path(split.files[0]).read_bytes())
    damaged[len(damaged) // 2] ^= 255

    Path(split.files[0]).write_bytes(damaged)

    with pytest.raises(RunError, match="shards"):
        make_source(split, SPEAKERS, statistics=split.feature_statistics())


def test_an_utterance_of_an_unknown_speaker_is_normalised_by_itself(tmp_path):
    utterances = make_utterances(tmp_path / "audio", 7)
    utterances[2:5] = [dataclasses.replace(one, speaker="") for one in utterances[2:5]]
    prepare_split(utterances, tmp_path / "shards", packing(per_shard=5))
    split = open_split(tmp_path / "shards", "train")
    source = make_source(split, SPEAKERS, statistics=split.feature_statistics())

    features = by_position(arrays(source.evaluation()))

    for position, plain, (mean, deviation) in of_speakers(
        split, lambda one: one.speaker
    ):
        np.testing.assert_allclose(
            features[position], (plain - mean) / deviation, atol=1e-3
        )


def test_a_vocal_tract_changes_the_speakers_mean_too(split, monkeypatch):
    # A linear change of known outcome in place of the random one.
    monkeypatch.setattr(
        VocalTract, "drawn", lambda self, features, seed: features[:, ::-1]
    )
    changed = AugmentationConfig(vocal_tract_change=0.1)
    options = {"statistics": split.feature_statistics()}
    source = make_source(split, SPEAKERS, changed, **options)
    features = by_position(arrays(source.training(1, 1)))

    for position, plain, (mean, deviation) in of_speakers(split):
        expected = (plain - mean)[:, ::-1] / deviation

        np.testing.assert_allclose(features[position], expected, atol=1e-3)


def test_without_normalisation_features_are_as_stored(split):
    none = dataclasses.replace(TINY_FEATURES, normalisation="none")
    features = by_position(arrays(make_source(split, none).evaluation()))

    for position, plain in stored(split):
        np.testing.assert_array_equal(features[position], plain)


def test_without_a_shuffle_buffer_and_prefetching(split):
    source = make_source(split, shuffle_buffer=0, prefetch=0, num_readers=50)

    for batches in (arrays(source.training(1, 1)), arrays(source.evaluation())):
        assert sorted(sum(positions(batches), [])) == list(range(UTTERANCES))


def test_other_features_than_the_shards_are_refused(split):
    with pytest.raises(UsageError, match="num_mel_bins 8 in the shards, 80 wanted"):
        make_source(split, FeatureConfig())


def test_too_short_fixed_batches_are_refused(split):
    longest = max(u.frames for u in split.utterances)
    with pytest.raises(UsageError, match=f"{longest} frames. Received: {longest - 1}"):
        make_source(split, padding="fixed", max_frames=longest - 1)

    make_source(split, padding="fixed", max_frames=longest)


@pytest.mark.parametrize(
    "field", ["global_batch_size", "num_readers", "num_buckets", "max_frames"]
)
def test_sizes_that_make_no_batch_are_refused(field):
    with pytest.raises(ValueError, match=f"PipelineConfig.{field} must be positive"):
        PipelineConfig(**{field: 0})
