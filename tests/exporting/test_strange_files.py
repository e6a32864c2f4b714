"""Keras files that anyone may have made."""

import io
import os
import zipfile

import h5py
import keras
import numpy as np
import pytest

from tfasr.errors import UsageError
from tfasr.models.keras_file import load_keras_file


def keras_file(path, weights, compression=zipfile.ZIP_STORED, config="{}"):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", weights)

    return path


def hdf5(change) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        change(file)
    return content.getvalue()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda f: f.create_dataset("a", (1 << 33,), "f4"),
            "its weights would take up",
        ),
        (
            lambda f: f.create_dataset("a", data=np.zeros(1 << 22), compression="gzip"),
            "its weights would take up",
        ),
        (
            lambda f: f.create_dataset(
                "a", (4,), "f4", external=[("/etc/passwd", 0, 16)]
            ),
            "weights of the kind",
        ),
        (
            lambda f: f.create_dataset("a", data=np.zeros(4, complex)),
            "weights of the kind",
        ),
        (
            lambda f: f.__setitem__("a", h5py.ExternalLink("/etc/passwd", "/")),
            "has the link 'a'",
        ),
        (lambda f: f.__setitem__("a", h5py.SoftLink("/a")), "has the link 'a'"),
    ],
)
def test_weights_that_lie_elsewhere_or_grow_are_refused(tmp_path, change, reason):
    path = keras_file(tmp_path / "model.keras", hdf5(change))
    with pytest.raises(UsageError, match=reason) as refused:
        load_keras_file(path)
    assert str(path) in str(refused.value)


def test_compressed_parts_are_refused(tmp_path):
    weights = bytes(1 << 22)
    path = keras_file(tmp_path / "model.keras", weights, zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match="must hold its parts uncompressed"):
        load_keras_file(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"])
def test_files_of_other_kinds_are_named(tmp_path, content):
    path = tmp_path / "model.keras"
    path.write_bytes(content)
    with pytest.raises(
        UsageError, match=r"model\.keras must be an exported Keras model"
    ):
        load_keras_file(path)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "model.keras")
    with pytest.raises(UsageError, match="a device or a pipe"):
        load_keras_file(tmp_path / "model.keras")


def test_code_in_a_model_is_not_run_and_other_models_are_named(tmp_path):
    layer = keras.layers.Lambda(lambda x: x + 1)
    for model, reason in (
        (
            keras.Sequential([keras.Input((2,)), layer]),
            "must be an exported Keras model",
        ),
        (
            keras.Sequential([keras.Input((2,)), keras.layers.ReLU()]),
            "must hold a recogniser",
        ),
    ):
        model.save(tmp_path / "model.keras")
        with pytest.raises(UsageError, match=reason):
            load_keras_file(tmp_path / "model.keras")
