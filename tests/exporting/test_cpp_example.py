"""examples/cpp: a stream in C++ writes what `tfasr transcribe` writes."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.recognising.spoken_tones import spoken

onnx = pytest.importorskip(
    "onnx", reason="needs the export extra: pip install 'tfasr[export]'"
)

SOURCE = Path(__file__).parents[2] / "examples" / "cpp"
ENVIRONMENT = ("ORT_INCLUDE", "ORT_LIBRARY")
pytestmark = [
    pytest.mark.skipif(
        not all(os.environ.get(name) for name in ENVIRONMENT),
        reason=f"needs {' and '.join(ENVIRONMENT)}: ONNX Runtime's headers and library",
    ),
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = shutil.copytree(SOURCE, tmp_path_factory.mktemp("cpp") / "cpp")
    done = subprocess.run(
        ["make", "-B", "CXXFLAGS=-O1 -Wall -Wextra -Werror"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "stream"


@pytest.fixture(scope="module")
def exported(exported_tones, recogniser, tmp_path_factory) -> Path:
    """What `tfasr export` writes, without the comparison."""
    from tfasr.exporting.onnx import feature_graph, metadata

    spec = recogniser.spec
    folder = shutil.copytree(
        exported_tones, tmp_path_factory.mktemp("cpp") / "exported"
    )
    graph = feature_graph(spec.features, spec.statistics, metadata(spec))
    (folder / "features.onnx").write_bytes(graph)
    return folder


def heard(program: Path, folder: Path, samples: np.ndarray, *words: object):
    return subprocess.run(
        [program, folder, *map(str, words)],
        input=(samples * 32768).astype("<i2").tobytes(), capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 333, 1600, 10**6])
def test_chunks_of_any_size_give_the_offline_text(program, exported, recogniser, chunk):
    samples = (spoken("abc dd bacd", seed=3) * 32768).astype("<i2") / np.float32(32768)
    done = heard(program, exported, samples, chunk)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.decode().split())
    assert text == recogniser.transcribe(samples).text
    assert len(text) > 8


@pytest.mark.parametrize("normalisation", ["utterance", "speaker"])
def test_what_it_cannot_hear_is_told(normalisation, program, exported, tmp_path):
    assert heard(program, tmp_path, np.zeros(0)).returncode == 1
    assert heard(program, exported, np.zeros(100)).stdout == b"\n"
    graph = onnx.load(exported / "features.onnx")
    for pair in graph.metadata_props:
        if pair.key == "normalisation":
            pair.value = normalisation

    shutil.copy(exported / "model.onnx", tmp_path)
    onnx.save(graph, tmp_path / "features.onnx")
    done = heard(program, tmp_path, np.zeros(100))
    assert done.returncode == 1
    assert b"an4_streaming.gin" in done.stderr
