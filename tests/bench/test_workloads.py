"""Presets of workloads: every one can be read, and names what it runs."""

import dataclasses
import re

import pytest

from tfasr.bench import perform
from tfasr.bench.perform import bench_preset, load_bench
from tfasr.bench.workload import WORKLOADS, Workload, purpose
from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.models.deep_speech_2 import DeepSpeech2Config
from tfasr.models.model import ModelConfig
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.from_gin import load_config

FOLDER = presets_folder() / "bench"
PRESETS = sorted(path.name for path in FOLDER.glob("*.gin"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_read_and_its_workload_imported(name):
    loaded = load_bench(f"bench/{name}")
    workload = WORKLOADS[loaded.bench.workload]
    wanted = (
        AcousticModelConfig if t is ModelConfig else t for t in workload.config_types
    )
    assert [type(config) for config in loaded.configs] == list(wanted)


@pytest.mark.parametrize("name", ["scaling", "roofline", "hardware_sweep", "backends"])
def test_a_workload_takes_the_model_that_is_named(name):
    bindings = ["ModelConfig.name = 'deep_speech_2'", "DeepSpeech2Config.units = 8"]
    configs = load_bench(f"bench/{name}_small.gin", bindings).configs
    assert DeepSpeech2Config(units=8) in configs


@pytest.mark.parametrize("workload", sorted(WORKLOADS.keys() - {"decoder", "step"}))
def test_every_workload_has_a_preset_and_a_small_one_beside(workload):
    of = {name: load_bench(f"bench/{name}").bench.workload for name in PRESETS}
    own = {name for name, named in of.items() if named == workload}
    full = {name for name in own if "\ninclude " not in (FOLDER / name).read_text()}
    assert full
    assert {name.replace(".gin", "_small.gin") for name in full} <= own


def test_the_full_preset_is_the_specification_and_the_small_one_differs_in_size_alone():
    full, small = (load_bench(f"bench/{name}.gin") for name in ("ds2", "ds2_small"))
    network = full.configs[0]
    assert (network.num_recurrent_layers, network.units, network.num_classes) == (
        7,
        1760,
        29,
    )
    assert full.bench.fraction == 1.0
    assert full.configs[1].search_batches[-1] == 128
    assert small.configs[0].num_recurrent_layers == 7


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name.endswith("_small.gin")]
)
def test_a_small_preset_binds_only_what_differs_from_the_full_one(name):
    bound = set(re.findall(r"^(\w+\.\w+) =", (FOLDER / name).read_text(), re.MULTILINE))
    small, full = (
        load_bench(f"bench/{file}") for file in (name, name.replace("_small", ""))
    )
    pairs = zip([small.bench, *small.configs], [full.bench, *full.configs], strict=True)
    differing = {
        f"{type(one).__name__}.{field.name}"
        for one, other in pairs
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    }
    assert bound == differing


def test_the_papers_model_of_the_full_presets_is_that_of_its_preset():
    paper = load_config("models/paper.gin").experiment
    for name in ("backends", "scaling", "roofline", "hardware_sweep"):
        configs = load_bench(f"bench/{name}.gin").configs
        assert configs[-2:] == [paper.model, paper.features]


def test_every_workload_says_what_it_measures():
    assert all(len(purpose(name)) > 20 for name in WORKLOADS)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("run", "Workload"),
        (Workload(None, ()), "Workload"),
        (Workload(print, (), ("x",)), "'x'"),
    ],
)
def test_what_is_no_workload_is_refused_where_it_is_registered(workload, message):
    with pytest.raises(UsageError, match=f"test_workloads.py.*{message}"):
        WORKLOADS.register("wrong", workload)
    assert "wrong" not in WORKLOADS


def test_reading_a_preset_leaves_no_trace():
    load_bench("bench/ds2_small.gin", ["DeepMarkConfig.num_devices = 3"])
    assert load_bench("bench/ds2_small.gin").configs[1].num_devices == 1
    assert load_config("an4.gin").experiment.training.epochs == 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"BenchConfig\.workload must be one of"),
        ("BenchConfig.workload = 'dance'\n", r"'dance'"),
        ("BenchConfig.workload = 'step'\n", r"tfasr bench step --help"),
        (
            "BenchConfig.workload = 'ds2'\nDeepMarkConfig.batchsize = 3\n",
            r"mine\.gin:2.*batchsize",
        ),
        (
            "BenchConfig.workload = 'ds2'\nAdam.learning_rate = 1.0\n",
            r"mine\.gin:2.*nothing uses",
        ),
        (
            "BenchConfig.workload = 'ds2'\nNoSuchConfig.x = 1\n",
            r"mine\.gin:2.*NoSuchConfig",
        ),
        (
            "BenchConfig.workload = 'ds2'\nDeepMarkConfig.num_devices = 'x'\n",
            r"mine\.gin:2.*must be int",
        ),
        (
            "BenchConfig.workload = 'ds2'\nBenchConfig.fraction = 0.0\n",
            r"mine\.gin:2.*above 0",
        ),
    ],
)
def test_bad_presets_are_refused_by_file_and_line(tmp_path, content, message):
    (tmp_path / "mine.gin").write_text(content)
    with pytest.raises(UsageError, match=message):
        load_bench(str(tmp_path / "mine.gin"))


def test_wrong_arguments_are_refused_before_any_work(monkeypatch):
    with pytest.raises(UsageError, match="fraction"):
        bench_preset("bench/ds2_small.gin", fraction=2.0)
    with pytest.raises(UsageError, match="left out"):
        bench_preset("bench/backends_small.gin", backend="torch")
    monkeypatch.setattr(perform, "installed_backends", lambda: ["tensorflow"])
    with pytest.raises(UsageError, match="pip install jax"):
        bench_preset("bench/ds2_small.gin", backend="jax")


def test_an_unknown_preset_is_answered_with_one_of_workloads():
    with pytest.raises(UsageError, match="scalling.*bench/scaling"):
        load_bench("bench/scalling.gin")
