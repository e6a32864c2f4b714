"""A run records its machine's price and energy, and the report charges for both."""

import functools
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from tfasr.commands.report import report
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.telemetry.energy import EnergySampler
from tfasr.training.from_gin import load_config
from tfasr.training.train import train
from tfasr.tta.energy import read_samples
from tfasr.tta.run import load_run

TINY = str(Path(__file__).parent / "tiny.gin")
WATTS = 80


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """A processor whose counter rises by 80 W."""
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    (folder / "name").write_text("package-0\n")
    (folder / "max_energy_range_uj").write_text("262143328850\n")
    begin, ended = time.monotonic(), threading.Event()

    def show():
        part = folder / "part"
        part.write_text(f"{(time.monotonic() - begin) * WATTS * 1e6:.0f}\n")
        part.replace(folder / "energy_uj")

    def keep_rising():
        while not ended.wait(0.05):
            show()

    show()
    thread = threading.Thread(target=keep_rising)
    thread.start()
    sampler = functools.partial(EnergySampler, root=tmp_path / "powercap", interval_s=0.1)
    monkeypatch.setattr("tfasr.training.train.EnergySampler", sampler)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the tests' own machine may have GPUs
    yield
    ended.set()
    thread.join()


def test_price_and_energy_are_recorded_and_charged(powercap, shard_dir, tmp_path):
    files = [TINY, "hardware/rented_per_hour.gin"]
    more = ["TrainingConfig.epochs = 1", "TrainingConfig.target_window = 1"]
    config = load_config(files, [*more, "HardwareConfig.price_usd_per_hour = 3600"])
    run_dir = tmp_path / "run"
    train(config.experiment, shard_dir=shard_dir, run_dir=run_dir, hardware=config.hardware)
    assert "HardwareConfig.price_usd_per_hour = 3600" in config.operative
    (stated,) = [e["value"] for e in read_events(run_dir) if e["key"] == "hardware"]
    assert stated["name"] == "rented by the hour"
    (row,) = json.loads(report([run_dir], output_format="json", targets=["cer=1.0"], window=1))
    wall_s = load_run(run_dir).wall_s
    assert 0 < row["charged_s"] <= wall_s
    assert row["cost_usd"] == pytest.approx(row["charged_s"])
    assert row["energy_unknown_s"] == 0
    samples = read_samples(run_dir)
    assert 0 < row["energy_joules"] <= samples[-1].joules - samples[0].joules
    assert row["energy_counters"] == ["package-0"]
    spent = row["energy_by_interval_joules"]
    assert sum(spent.values()) == pytest.approx(row["energy_joules"])
    assert spent["init"] > 0
    assert spent["compile"] + spent["train"] > 0


def test_without_a_machine_nothing_of_it_is_in_the_configuration():
    config = load_config(TINY)
    assert config.hardware is None
    assert "HardwareConfig" not in config.operative


def test_wrong_prices_name_file_and_line(tmp_path):
    with pytest.raises(UsageError, match=r"rented_per_hour\.gin:\d+: .*nothing, bind it"):
        load_config([TINY, "hardware/rented_per_hour.gin"])
    with pytest.raises(UsageError, match=r"--gin_binding:1: .*greater than 0"):
        load_config(TINY, ["HardwareConfig.price_usd_per_hour = -3"])
    with pytest.raises(UsageError, match="must not both be given"):
        load_config(
            [TINY, "hardware/rented_per_hour.gin"],
            [
                "HardwareConfig.price_usd_per_hour = 3",
                "HardwareConfig.purchase_price_usd = 900",
                "HardwareConfig.amortisation_years = 3",
            ],
        )
    mine = tmp_path / "mine.gin"
    mine.write_text(f"include '{TINY}'\ninclude 'hardware/paper_sys1.gin'\n")
    assert load_config(str(mine)).hardware.name == "Sys1$"
