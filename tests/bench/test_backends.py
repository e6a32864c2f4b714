"""The comparison of backends."""

import numpy as np
import pytest

from tests.bench.backend_probes import native_probe
from tfasr.bench import backends
from tfasr.bench.backends import (
    BackendsConfig,
    BackendTimes,
    backends_chart,
    backends_table,
    row_of,
)
from tfasr.bench.devices import installed_backends
from tfasr.bench.perform import bench_preset
from tfasr.bench.workload import Context
from tfasr.data.features import FeatureConfig
from tfasr.display.vega import picture_spec
from tfasr.errors import UsageError
from tfasr.kit.process import call
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.models.recurrent import AcousticModelConfig

CONFIG = BackendsConfig(
    backends=("tensorflow", "jax", "native_torch"),
    rounds=1,
    steps=2,
    acoustic_batch_size=2,
    acoustic_frames=40,
)


def test_a_backend_that_is_not_installed_is_left_out_and_said_so(monkeypatch):
    monkeypatch.setattr(backends, "installed_backends", lambda: ["tensorflow"])
    keyword = KeywordSpotterConfig(num_frames=30, num_bins=26, filters=(2, 2, 2, 2))
    acoustic = AcousticModelConfig(conv_filters=4, num_lstm_layers=1, lstm_units=4)
    result = backends.run(CONFIG, keyword, acoustic, FeatureConfig(), Context())
    (table,) = result.tables
    # Not every processor can train in NCHW.
    shown = [row for row in table.rows if row[2] != "NCHW"]
    assert [row[:3] for row in shown] == [
        ["keyword spotter, batch 64", "tensorflow", "NHWC"],
        ["acoustic model, batch 2", "tensorflow", "n/a"],
    ]
    # Either layout may be the faster one.
    ratios = [row[7] for row in table.rows if row[0].startswith("keyword")]
    assert "1.00" in ratios
    assert shown[1][7] == "1.00"
    assert "Not installed and left out: jax, PyTorch alone." in table.notes
    assert result.values["not_installed"] == ["jax", "native_torch"]
    rows = [row for row in result.values["rows"] if row["layout"] != "NCHW"]
    assert [len(row["all_step_ms"][0]) for row in rows] == [2, 2]
    assert result.values["backends"][0]["versions"].keys() == {"keras", "tensorflow"}


def test_ratios_are_to_the_fastest_of_the_same_model_and_what_cannot_run_says_why():
    def row(name, layout, *processes, **reason):
        return row_of(
            [
                BackendTimes("m", layout, name, 4, *times, **reason)
                for times in processes
            ]
        )

    slower = ((1.0, [1.0], [8.0, 9.0, 30.0]), (3.0, [2.0], [7.0]))
    rows = [
        row("tensorflow", "NHWC", *slower),
        row("tensorflow", "NCHW", (), (), reason="only supports NHWC"),
        row("native_torch", "NCHW", *[(1.0, [1.0], [4.0])] * 2),
    ]
    assert rows[0]["all_step_ms"] == [[8.0, 9.0, 30.0], [7.0]]
    assert (rows[1]["first_step_s"], rows[1]["all_step_ms"]) == (None, [[], []])
    versions = {"tensorflow": "2", "torch": "2", "keras": "3"}
    described = [
        {"name": name, "devices": ["cpu"], "versions": versions}
        for name in ("tensorflow", "native_torch")
    ]
    table = backends_table(rows, CONFIG, described, [])
    slow, absent, fast = table.rows
    assert slow[3:] == ["1.5", "8.0", "7.0–9.0", "500.0", "2.00", "2.0"]
    assert absent[1:] == ["tensorflow", "NCHW", *["n/a"] * 6]
    assert "n/a for NCHW on tensorflow: “only supports NHWC”" in table.notes
    assert fast[1:3] + fast[7:8] == ["PyTorch alone", "NCHW", "1.00"]
    assert "PyTorch alone NCHW" in str(picture_spec(backends_chart(rows)))


def test_pytorch_alone_learns_what_keras_does_in_either_layout():
    if "torch" not in installed_backends():
        pytest.skip("needs torch: pip install torch")
    keras_scores, *native = call(native_probe, backend="torch")
    for scores in native:
        np.testing.assert_allclose(scores[:3], keras_scores[:3], rtol=1e-3)
        # PyTorch's running variance is the unbiased one, Keras's is not.
        np.testing.assert_allclose(scores[3:], keras_scores[3:], atol=0.03)


def test_without_any_backend_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(backends, "installed_backends", list)
    configs = KeywordSpotterConfig(), AcousticModelConfig(), FeatureConfig()
    with pytest.raises(UsageError, match="must be installed"):
        backends.run(CONFIG, *configs, Context())
    with pytest.raises(ValueError, match="backends"):
        BackendsConfig(backends=("tensorflow", "theano"))


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="theano"):
        bench_preset("bench/ds2_small.gin", backend="theano")
