"""Fixtures that several tests share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shard_dir(tmp_path_factory) -> Path:
    """Shards of a small synthetic corpus: 96 training and 24 validation utterances."""
    pytest.importorskip("espeakng_loader", reason="needs the demo extra: pip install 'tfasr[demo]'")
    from tfasr.corpora.synthetic.synthetic import make_synthetic_corpus
    from tfasr.data.prepare_corpus import prepare
    from tfasr.data.shards import ShardConfig

    folder = tmp_path_factory.mktemp("synthetic")
    make_synthetic_corpus(
        folder / "corpus", num_train=96, num_validation=24, num_test=12, num_voices=12
    )
    prepare(
        corpus="synthetic",
        corpus_dir=folder / "corpus",
        shard_dir=folder / "shards",
        shards=ShardConfig(utterances_per_shard=16),
    )
    return folder / "shards"
