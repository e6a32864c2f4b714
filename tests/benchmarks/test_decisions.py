"""The backtest of forecasts and the simulation of histories: that they run, and can be believed."""

import json
import runpy
from pathlib import Path

import history
import numpy as np
import pytest
from forecast_backtest import curves as curves_of
from forecast_backtest.calibration import write_coefficients
from forecast_backtest.judgement import backtest
from forecast_backtest.tables import chart, markdown

from tests.benchmarks.conftest import BENCHMARKS
from tfasr.tta.forecast import forecast
from tfasr.tta.policies import AccuracyPoint

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published"


@pytest.fixture(scope="module")
def curves():
    """Power laws of several exponents and floors, in groups of two runs, of one source each."""
    rng = np.random.default_rng(4)
    found = []
    for source in ("mlperf", "algoperf"):
        for group in range(8):
            exponent, floor = rng.uniform(0.5, 1.1), rng.uniform(0.0, 0.04)
            for run in range(2):
                number = np.arange(1, 41)
                noise = np.exp(0.03 * rng.standard_normal(number.size))
                values = floor + 0.9 * number**-exponent * noise
                points = [AccuracyPoint(n, 60.0 * n, values[n - 1]) for n in range(1, 41)]
                log = Path(f"run{run}")
                for times in (1.0, 1.6):
                    found.append(
                        curves_of._curve(source, f"{source}{group}", log, points, times, 0.08, 1)
                    )
    return found


def test_intervals_hold_on_the_half_that_did_not_calibrate(curves, tmp_path):
    found = backtest(curves, seed=1)
    held = [row["covered"] for row in found["coverage"] if row["times_target"] is None]
    assert len(held) == 2
    assert min(held) > 0.55
    assert np.mean(held) == pytest.approx(0.8, abs=0.15)
    late = [row for row in found["errors"] if row["share"] == 0.7]
    assert max(row["error"] for row in late) < 0.5
    # Nobody is given up who would have arrived in half of the time.
    assert [row["wrongly"] for row in found["given_up"] if row["budget"] == 2.0] == [0, 0]
    assert len([row for row in found["given_up"] if row["budget"] == 0.5]) == 2
    calibrating = {name.split("/")[1] for name in found["calibrated_on"]}
    assert len(calibrating) == 8
    text = markdown({**found, "runs": 32, "groups": 16, "seed": 1})
    assert text.count("### ") == 6
    assert "nan" not in text
    assert len(chart(found).panels) == 2
    write_coefficients(tmp_path / "own.py", found["coefficients"])
    own = runpy.run_path(str(tmp_path / "own.py"))["COEFFICIENTS"]
    points = next(c for c in curves if c.hit and c.hit > 12).points[:10]
    assert forecast(points, 0.08, window=1, coefficients=own).known


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published logs are not beside the project")
def test_published_logs_are_read_with_their_own_targets(tmp_path):
    source = PUBLISHED / "algoperf_v0.5_deepspeech_baseline_8xV100"
    folder = tmp_path / "algoperf"
    folder.mkdir()
    (folder / "deepspeech").symlink_to(source)
    found = curves_of.read_curves({"algoperf": folder})
    own = [curve for curve in found if curve.times == 1 and curve.window == 1]
    assert [curve.hit is not None for curve in own] == [True, True, True, False, True]
    # The four that ended with their first crossing say nothing of the median of three.
    assert len(found) == 5 * len(curves_of.TIMES_TARGET) * len(curves_of.WINDOWS) - 4


def test_histories_have_few_false_alarms_and_find_what_is_slower():
    noises = {"normal": history.normal(0.02), "wanders": history.wandering(0.02, 0.5)}
    normal, wanders = history.rows(noises, 8, seed=1)
    assert normal["false_alarms"] < 0.5
    assert normal["found_10_in_5"] > 60
    assert wanders["false_alarms"] < 1.5
    assert history.markdown([normal, wanders]).count("\n") == 4


def test_measured_times_become_noise(tmp_path):
    (tmp_path / "steps.json").write_text(json.dumps({"step_s": [1.0, 1.1, 0.9, 1.0]}))
    found = history.measured_deviations([tmp_path / "steps.json"])
    assert found.size == 4
    assert found.std() > np.log([1.0, 1.1, 0.9, 1.0]).std()
    results = sorted((BENCHMARKS / "results").glob("*training_step_an4.json"))
    assert history.measured_deviations(results).size >= 10
    stretch = history.in_order(np.arange(30.0))(np.random.default_rng(0), 20)
    assert stretch.size == 20
    assert (np.diff(stretch) == 1).mean() > 0.8
