"""The shares of several workers are the single process's batches, row by row."""

import numpy as np
import pytest

from tests.data.made_corpus import make_utterances, packing, prepare_split
from tests.data.test_batches import FIXED, arrays, make_source
from tfasr.data.augmentation import AugmentationConfig
from tfasr.data.batches import Share
from tfasr.data.shards import open_split

OWN = ("features", "feature_lengths", "label_lengths", "positions", "duration_s")
UTTERANCES = 22


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """A split of several shards."""
    folder = tmp_path_factory.mktemp("shares")
    utterances = make_utterances(folder / "audio", UTTERANCES)
    prepare_split(utterances, folder / "shards", packing(per_shard=5))

    return open_split(folder / "shards", "train")


@pytest.mark.parametrize(("count", "epoch", "more"), [(3, 2, FIXED), (5, 2, {})])
def test_the_shares_together_are_each_batch_in_the_same_order(
    split, count, epoch, more
):
    # Of 22 utterances by fours there are rests, and five workers always have one
    # without a row.
    changed = AugmentationConfig(time_masks=1, tempo_change=0.1)
    source = make_source(split, augmentation=changed, **more)
    whole = arrays(source.training(3, epoch, skip=1))
    shares = [
        arrays(source.training(3, epoch, skip=1, share=Share(k, count)))
        for k in range(count)
    ]
    sizes = []

    for number, batch in enumerate(whole):
        parts = [share[number] for share in shares]
        counted = [part for part in parts if part["counted"]]
        for name in OWN:
            together = np.concatenate([part[name] for part in counted])

            np.testing.assert_array_equal(together, batch[name])

        labels = [
            list(row[:n]) for p in parts for row, n in _labelled(p) if p["counted"]
        ]

        assert labels == [list(row[:n]) for row, n in _labelled(batch)]
        for part in parts:
            np.testing.assert_array_equal(part["all_positions"], batch["positions"])
            np.testing.assert_array_equal(part["all_lengths"], batch["feature_lengths"])
            np.testing.assert_array_equal(part["all_duration_s"], batch["duration_s"])
            assert part["positions"][0] == batch["positions"][part["first_row"]]
            assert len(part["positions"]) >= 1

        sizes.append({len(part["positions"]) * bool(part["counted"]) for part in parts})

    assert all(len(share) == len(whole) for share in shares)
    assert max(max(size) - min(size) for size in sizes) == 1


def test_shares_of_an_epoch_before_the_masks_have_none(split):
    masks = AugmentationConfig(time_masks=1, time_mask_fraction=0.5, from_epoch=2)
    source = make_source(split, augmentation=masks)
    plain = make_source(split)

    for epoch, equal in ((1, True), (2, False)):
        of_shares = [
            arrays(one.training(3, epoch, share=Share(1, 2))) for one in (source, plain)
        ]
        pairs = list(zip(*of_shares, strict=True))

        assert equal == all(
            np.array_equal(a["features"], b["features"]) for a, b in pairs
        )


def _labelled(batch):
    return zip(batch["labels"], batch["label_lengths"], strict=True)


def test_an_evaluation_is_shared_out_and_each_utterance_is_scored_once(split):
    source = make_source(split)
    count = 6
    shares = [arrays(source.evaluation(Share(rank, count))) for rank in range(count)]

    positions = [
        p for share in shares for batch in share for p in batch["positions"].tolist()
    ]

    assert sorted(positions) == sorted(u.position for u in split.utterances)
    assert not shares[-1], "there are five shards: a sixth worker has none"
