"""The comparison of backends."""

import pytest

from tfasr.bench.backends import workload as backends
from tfasr.bench.backends.config import BackendsConfig
from tfasr.bench.backends.figure import backends_figure
from tfasr.bench.backends.table import backends_table
from tfasr.bench.backends.times import BackendTimes
from tfasr.bench.probes.backend import check_backend
from tfasr.bench.workload import Context
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.acoustic_model import AcousticModelConfig
from tfasr.models.keyword_spotter import KeywordSpotterConfig

CONFIG = BackendsConfig(
    backends=("tensorflow", "jax"),
    rounds=1,
    steps=2,
    warmup_steps=2,
    keyword_batch_size=3,
    acoustic_batch_size=2,
    acoustic_frames=40,
)


def test_a_backend_that_is_not_installed_is_left_out_and_said_so(monkeypatch):
    monkeypatch.setattr(backends, "installed_backends", lambda: ["tensorflow"])
    keyword = KeywordSpotterConfig(num_frames=30, num_bins=26, filters=(2, 2, 2, 2))
    acoustic = AcousticModelConfig(conv_filters=4, num_lstm_layers=1, lstm_units=4)
    result = backends.run(CONFIG, keyword, acoustic, FeatureConfig(), Context())
    (table,) = result.tables
    assert [row[:2] for row in table.rows] == [
        ["keyword spotter, batch 3", "tensorflow"],
        ["acoustic model, batch 2", "tensorflow"],
    ]
    assert [row[6] for row in table.rows] == ["1.00", "1.00"]
    assert "Not installed and left out: jax." in table.notes
    assert result.values["not_installed"] == ["jax"]
    rows = result.values["rows"]
    assert [len(row["all_step_ms"][0]) for row in rows] == [2, 2]
    assert result.warmup_steps == 8
    assert result.values["backends"][0]["versions"].keys() == {"keras", "tensorflow"}


def test_ratios_are_to_the_fastest_backend_of_the_same_model():
    times = [
        BackendTimes("m", "tensorflow", 4, [1.0, 3.0], [[1.0], [2.0]], [[8.0, 9.0, 30.0], [7.0]]),
        BackendTimes("m", "jax", 4, [1.0, 1.0], [[1.0], [1.0]], [[4.0], [4.0]]),
    ]
    versions = {"tensorflow": "2", "jax": "0", "keras": "3"}
    described = [
        {"name": name, "devices": ["cpu"], "versions": versions} for name in ("tensorflow", "jax")
    ]
    slow, fast = backends_table(times, CONFIG, described, []).rows
    assert slow[2:] == ["1.5", "8.0", "7.0–9.0", "500.0", "2.00", "2.0"]
    assert fast[6] == "1.00"
    assert len(backends_figure(times).axes) == 1


def test_without_any_backend_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(backends, "installed_backends", list)
    configs = KeywordSpotterConfig(), AcousticModelConfig(), FeatureConfig()
    with pytest.raises(UsageError, match="must be installed"):
        backends.run(CONFIG, *configs, Context())
    with pytest.raises(ValueError, match="backends"):
        BackendsConfig(backends=("tensorflow", "theano"))


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="theano"):
        check_backend("theano")
