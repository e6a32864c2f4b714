"""tensorflow-io reads FLAC for training, and why its masks are not used; see `make test-tfio`."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tensorflow as tf

from tests.tones import tones_experiment
from tfasr.data.audio import check_audio_reader, read_audio
from tfasr.data.augmentation import AugmentationConfig, augment
from tfasr.data.features import FeatureConfig
from tfasr.data.prepare_corpus import prepare
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.training.train import train

try:
    check_audio_reader("tfio")
except UsageError as missing:
    pytest.skip(str(missing), allow_module_level=True)

import tensorflow_io as tfio  # noqa: E402 - after the check of whether it loads

LIBRISPEECH = (
    Path(__file__).parents[3] / "shared" / "data" / "librispeech" / "LibriSpeech"
)
SUBSETS = {"train": "train-clean-5", "validation": "test-clean"}


def spoken_flacs(folder):
    """Writes a tsv corpus of generated speech in FLAC; returns `prepare`'s arguments."""
    pytest.importorskip(
        "espeakng_loader", reason="needs the demo extra: pip install 'tfasr[demo]'"
    )
    from tfasr.corpora.synthetic import make_synthetic_corpus

    make_synthetic_corpus(
        folder, num_train=48, num_validation=16, num_test=4, num_voices=8
    )
    for path in sorted(folder.rglob("*.wav")):
        samples, rate_hz = soundfile.read(path, dtype="int16")
        soundfile.write(path.with_suffix(".flac"), samples, rate_hz)
        path.unlink()

    for split in SUBSETS:
        table = folder / f"{split}.tsv"
        table.write_text(table.read_text().replace(".wav", ".flac"))

    return {
        split: {"corpus": "tsv", "corpus_dir": folder, "split": split}
        for split in SUBSETS
    }


def recorded_flacs():
    """Returns `prepare`'s arguments for recordings of LibriSpeech."""
    if not LIBRISPEECH.is_dir():
        pytest.skip(f"needs recordings in {LIBRISPEECH}")

    corpus = {"corpus": "librispeech", "corpus_dir": LIBRISPEECH}
    return {
        split: {**corpus, "split": split, "subsets": [subset]}
        for split, subset in SUBSETS.items()
    }


@pytest.fixture(scope="module", params=["generated speech", "LibriSpeech"])
def splits(request, tmp_path_factory):
    if request.param == "LibriSpeech":
        return recorded_flacs()

    return spoken_flacs(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def shards(splits, tmp_path_factory):
    """The folder of shards that each reader prepared."""
    folders = {}
    for reader in ("soundfile", "tfio"):
        folders[reader] = tmp_path_factory.mktemp(reader)
        for arguments in splits.values():
            prepare(
                shard_dir=folders[reader],
                audio_reader=reader,
                features=tones_experiment().features,
                model=tones_experiment().model,
                **arguments,
            )

    return folders


def test_flac_is_decoded_in_a_tf_data_pipeline(splits):
    paths = sorted(map(str, splits["train"]["corpus_dir"].rglob("*.flac")))
    assert len(paths) >= 48

    def decoded(path):
        return tfio.audio.decode_flac(tf.io.read_file(path), dtype=tf.int16)

    pipeline = tf.data.Dataset.from_tensor_slices(paths).map(
        decoded, num_parallel_calls=2
    )
    for path, samples in zip(paths, pipeline, strict=True):
        expected, _ = soundfile.read(path, dtype="int16", always_2d=True)

        np.testing.assert_array_equal(samples, expected)


def test_threads_that_read_at_once_get_their_own_files(splits):
    paths = sorted(splits["train"]["corpus_dir"].rglob("*.flac"))
    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(lambda path: read_audio(path, reader="tfio"), paths))

    for path, samples in zip(paths, read, strict=True):
        np.testing.assert_allclose(
            samples, read_audio(path), atol=1e-4, err_msg=str(path)
        )


def test_its_shards_are_those_of_the_usual_reader(shards):
    files = {
        reader: {path.relative_to(folder): path for path in folder.rglob("*.tfrecord")}
        for reader, folder in shards.items()
    }

    assert files["tfio"].keys() == files["soundfile"].keys()
    assert {path.parts[0] for path in files["tfio"]} == set(SUBSETS)
    for name, path in files["tfio"].items():
        assert path.read_bytes() == files["soundfile"][name].read_bytes(), name


def test_a_model_trains_on_its_shards(shards, tmp_path):
    experiment = tones_experiment(epochs=2)
    pipeline = dataclasses.replace(experiment.pipeline, global_batch_size=8)
    experiment = dataclasses.replace(experiment, pipeline=pipeline)
    train(experiment, shard_dir=shards["tfio"], run_dir=tmp_path / "run")

    scores = [
        e["value"] for e in read_events(tmp_path / "run") if e["key"] == "tracked_stats"
    ]

    assert len(scores) == 2
    assert scores[1]["loss"] < scores[0]["loss"]


# Its spectrogram masks, which run beside any TensorFlow, compared with tfasr's own.


def masks_of(features, number):
    """The masked features of so many utterances in a row, by tensorflow-io."""
    tf.random.set_seed(1)
    rows = tf.data.Dataset.from_tensors(features).repeat(number)
    return [
        row.numpy() for row in rows.map(lambda row: tfio.audio.freq_mask(row, param=10))
    ]


def test_its_masks_depend_on_what_was_drawn_before_so_a_resumed_run_would_get_others():
    features = tf.ones((50, 93))

    third_of_five = masks_of(features, 5)[2]
    resumed_at_the_third = masks_of(features, 3)[0]

    assert (third_of_five != resumed_at_the_third).any()


def test_masks_of_a_seed_are_the_same_after_a_resume():
    features = tf.ones((50, 93))

    config = AugmentationConfig(frequency_masks=1, frequency_mask_bins=10)
    utterances_seed = tf.constant([1, 3])
    num_mel_bins = FeatureConfig().num_mel_bins

    drawn = [augment(features, config, utterances_seed, num_mel_bins) for _ in range(2)]

    np.testing.assert_array_equal(*drawn)


def test_its_masks_cover_the_mfcc_too():
    masked = np.array(masks_of(tf.ones((50, 93)), 100)) == 0

    assert masked[:, :, 80:].any()


def test_it_fades_the_ends_of_a_waveform_which_no_recipe_here_does():
    faded = tfio.audio.fade(
        tf.ones(1000), fade_in=100, fade_out=100, mode="linear"
    ).numpy()

    assert faded[0] == pytest.approx(0, abs=0.02)
    assert faded[-1] == pytest.approx(0, abs=0.02)
    np.testing.assert_allclose(faded[200:800], 1, atol=1e-6)
