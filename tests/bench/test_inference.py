"""Latencies of a recogniser: what is measured, and how it is shown."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.recognising.conftest import exported_tones
from tests.recognising.spoken_tones import RUN, spoken, write_wav
from tfasr import cli
from tfasr.bench.inference import (
    InferenceConfig,
    Latency,
    cold_start_s,
    inference_tables,
    measure_backend,
    run,
)
from tfasr.bench.workload import Context
from tfasr.errors import RunError, UsageError
from tfasr.recognising.spec import GRAPH_FILE

__all__ = ["exported_tones"]

CONFIG = InferenceConfig(batches=(1, 2), chunks_ms=(100,), rounds=1, cold_starts=1)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    texts = ["abc da", "dad"]
    return [str(write_wav(folder / f"{n}.wav", spoken(text))) for n, text in enumerate(texts)]


def test_requests_are_counted_and_texts_are_right(exported_tones, recordings):
    size = (exported_tones / GRAPH_FILE).stat().st_size
    measured = measure_backend("onnx", exported_tones, recordings, CONFIG, size)
    assert measured.text == "abc da"
    assert measured.cannot_stream is None
    requests = {(one.kind, one.size): one.requests for one in measured.latencies}
    seconds = [len(spoken(text)) / 16000 for text in ("abc da", "dad")]
    chunks = sum(int(np.ceil(s / 0.1)) for s in seconds)
    assert requests == {("batch", 1): 2, ("batch", 2): 1, ("chunk", 100): chunks}
    for one in measured.latencies:
        assert 0 < one.p50_s <= one.p90_s <= one.p99_s
        assert one.audio_s_per_s > 0
    row = dataclasses.asdict(measured)
    requests_table, processes_table = inference_tables([row])
    assert [row[1] for row in requests_table.rows] == [
        "batch of 1", "batch of 2", "chunk of 100 ms"
    ]  # fmt: skip
    assert processes_table.rows[0][1] == "n/a"  # no cold start was measured
    refused = {**row, "cannot_stream": "it needs the end"}
    notes = inference_tables([refused], {"torch": "not installed"})[0].notes
    assert {"No chunks: it needs the end", "torch is left out: not installed"} <= set(notes)
    assert [row[5] for row in requests_table.rows] == ["n/a"] * 3  # too few for a p99


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_a_backend_that_is_not_installed_says_so(recordings):
    context = Context(run_dir=RUN, corpus_dir=Path(recordings[0]).parent)
    with pytest.raises(UsageError, match="PyTorch is not installed"):
        next(run(dataclasses.replace(CONFIG, backends=("torch",)), context))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_twin_in_pytorch_says_what_the_graph_says(kind, tmp_path):
    pytest.importorskip("torch", reason="a peer: pip install torch")
    from tests.exporting.test_onnx_graph import CONFIGS, FEATURES, graph_of, made
    from tfasr.bench.inference import TorchTwin
    from tfasr.recognising.runtimes import OnnxAcoustics

    config = CONFIGS[kind.lower()]
    path = tmp_path / "model.onnx"
    path.write_bytes(graph_of(config, made(config), {}))
    features = np.random.default_rng(1).normal(size=(2, 40, FEATURES)).astype(np.float32)
    lengths = np.array([40, 40], np.int32)
    twin = TorchTwin(path)
    expected = OnnxAcoustics(path).log_probs(features, lengths)
    np.testing.assert_allclose(twin.log_probs(features, lengths), expected, atol=1e-4)
    log_probs, _ = twin.continued(features[0], twin.initial_state())
    np.testing.assert_allclose(log_probs, expected[0], atol=1e-4)


def test_quantiles_and_speed():
    latency = Latency.of("batch", 1, [0.1] * 98 + [0.2, 0.3], audio_s=103.0)
    assert latency.p50_s == pytest.approx(0.1)
    assert 0.2 <= latency.p99_s <= 0.3
    assert latency.audio_s_per_s == pytest.approx(10.0)


def test_a_cold_start_must_succeed(exported_tones):
    with pytest.raises(RunError, match="missing.wav"):
        cold_start_s(exported_tones, "missing.wav", 1)


def test_an_exported_folder_is_measured_as_it_is(exported_tones, recordings, tmp_path, capsys):
    words = ["--run_dir", exported_tones, "--corpus_dir", Path(recordings[0]).parent]
    words += ["--batch", 1, "--chunk_ms", "200", "--rounds", 1, "--cold_starts", 1]
    words += ["--out", tmp_path / "out"]
    assert cli.run(cli.parse(["tfasr", "bench", "inference", *map(str, words)])) == 0
    assert "chunk of 200 ms" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert (row["backend"], row["text"]) == ("exported", "abc da")
    assert row["cold_start_s"] > 0


def test_it_must_be_given_a_run_and_recordings(tmp_path):
    with pytest.raises(UsageError, match="--run_dir None"):
        next(run(CONFIG, Context()))
    with pytest.raises(ValueError, match="one or more of keras, onnx, onnx_int8"):
        InferenceConfig(backends=("abacus",))
