"""The backtest of forecasts and the simulation of histories: that they run, and can be believed."""

import json
import runpy
from pathlib import Path

import history
import numpy as np
import pytest
from forecast_backtest import curves as curves_of
from forecast_backtest.calibration import write_coefficients
from forecast_backtest.curves import make_curve, simulated_curves
from forecast_backtest.judgement import Votes, backtest
from forecast_backtest.tables import markdown

from tests.benchmarks.conftest import BENCHMARKS
from tests.reports.conftest import ledger_of
from tfasr.tta.forecast import forecast
from tfasr.tta.policies import AccuracyPoint

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published"


@pytest.fixture(scope="module")
def found():
    """The backtest on ten small systems of each shape."""
    curves = simulated_curves(seed=4, systems=6)
    return {**backtest(curves, seed=1), "runs": 90, "groups": 30, "seed": 1}


def test_intervals_hold_on_the_half_that_did_not_calibrate(found):
    calibrating = {name.split("/")[0] for name in found["calibrated_on"]}

    assert len(found["calibrated_on"]) == 18
    assert "two falls" not in calibrating  # a shape that only tests

    total = {
        row["source"]: row["all"] for row in found["coverage"] if row["window"] == 1
    }

    assert {*calibrating, "two falls"} <= set(total)
    # So few systems say little about one shape, but something about all of them.
    assert 0.55 < np.mean([row["held"] for row in total.values()]) < 0.95
    assert max(row["spoke"] for row in total.values()) < 0.6

    early = [cell["spoke"] for row in found["coverage"] for cell in row["tenths"][:2]]
    assert max(share or 0 for share in early) < 0.05


def test_the_page_of_the_back_test_has_every_table(found):
    text = markdown(found)

    assert text.count("### ") == 6
    assert "nan" not in text


def test_written_coefficients_give_forecasts(found, tmp_path):
    write_coefficients(tmp_path / "own.py", found["coefficients"])

    own = runpy.run_path(str(tmp_path / "own.py"))["COEFFICIENTS"]
    points = [AccuracyPoint(n, 60.0 * n, 0.9 * n**-0.6) for n in range(1, 20)]

    assert forecast(points, 0.15, window=1, coefficients=own).known


def test_hardly_a_run_is_given_up_wrongly(found):
    for row in found["given_up"]:
        assert max(row["at_1.0"], row["at_1.2"], row["at_1.5"], row["at_2.0"]) <= 0.05
    assert max(row["at_0.5"] for row in found["given_up"]) > 0.1


def test_every_run_has_one_vote():
    points = [AccuracyPoint(1, 60.0, 0.5)]
    one, other, third = (
        make_curve("mlperf", group, run, points, 0.1, 1)
        for group, run in ("aa", "ab", "ba")
    )

    votes = Votes([(one, 1)] * 98 + [(other, 0), (third, 0), (third, 1)])

    assert votes.runs == 3
    assert votes.mean == pytest.approx((1 + 0 + 0.5) / 3)


def test_two_systems_that_differ_are_two_votes_however_many_runs_they_have():
    points = [AccuracyPoint(1, 60.0, 0.5)]

    # Two systems that differ are two, however many looks and runs they have.
    many = [
        make_curve("mlperf", group, str(run), points, 0.1, 1)
        for group in "ab"
        for run in range(50)
    ]
    votes = Votes([(curve, curve.group == "a") for curve in many])

    assert votes.mean == 0.5
    assert votes.error(np.random.default_rng(1)) == pytest.approx(
        0.5 / 2**0.5, abs=0.04
    )


@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published logs are not beside the project"
)
def test_published_logs_are_read_with_their_own_targets(tmp_path):
    source = PUBLISHED / "algoperf_v0.5_deepspeech_baseline_8xV100"
    folder = tmp_path / "algoperf"
    folder.mkdir()
    (folder / "deepspeech").symlink_to(source)
    found = curves_of.read_curves({"algoperf": folder})
    own = [curve for curve in found if curve.target == 0.119936 and curve.window == 1]

    assert [curve.hit is not None for curve in own] == [True, True, True, False, True]
    # The four that ended with their first crossing say nothing of the median of three.
    assert len(found) == 5 * len(curves_of.TIMES_TARGET) * len(curves_of.WINDOWS) - 4


def test_histories_have_few_false_alarms_and_find_what_is_slower():
    rows = [
        history.row_of(noise, 4, seed=1)
        for noise in ("each epoch's own, 3 %", "the run's, 5 %")
    ]

    for row in rows:
        # Of 28 and 12 histories.
        assert row["any_change"] <= 15
        assert row["speed_up_exit_3"] <= 17

    assert rows[0]["found_10_in_8"] == 100
    assert rows[0]["repaired_by_4_exit_3"] == 100
    assert history.markdown(rows).count("\n") == 9


def test_measured_times_become_noise(tmp_path):
    (tmp_path / "steps.json").write_text(json.dumps({"step_s": [1.0, 1.1, 0.9, 1.0]}))
    found = history.measured_deviations([tmp_path / "steps.json"])

    assert found.size == 4
    assert found.std() > np.log([1.0, 1.1, 0.9, 1.0]).std()


def test_times_of_steps_are_read_from_results():
    results = sorted((BENCHMARKS / "results").glob("*training_step_an4.json"))
    assert history.measured_deviations(results).size >= 10


def test_noise_is_mostly_in_the_order_in_which_it_was_measured():
    stretch = history.in_order(np.arange(30.0))(np.random.default_rng(0), 20)

    assert stretch.size == 20
    assert (np.diff(stretch) == 1).mean() > 0.8


def test_factor_tables_say_of_how_many_runs_they_are(tmp_path):
    from twin.tta_tables import tta_tables

    paces = {"tfasr": (1.0, 1.1, 1.3), "torch": (2.0, 2.4, None)}
    runs = {system: {} for system in paces}
    for system, of_system in paces.items():
        for seed, pace in enumerate(of_system):
            cers = [0.5, 0.1, 0.1] if pace else [0.5, 0.5, 0.5]
            path = tmp_path / system / f"seed-{seed}"
            runs[system][seed] = ledger_of(cers, train_s=pace or 1.0).write(path)

    *_, factors = tta_tables(runs, ("cer", 0.1))

    assert "3 of 3 runs of tfasr" in factors["title"]
    assert "2 of 3 runs of torch" in factors["title"]
    assert "median" not in factors["title"]

    # Each run takes 2 s to begin and six steps, so that the medians' ratio would be
    # another.
    times = {name: [2 + 6 * pace for pace in of if pace] for name, of in paces.items()}
    means = {name: np.exp(np.mean(np.log(of))) for name, of in times.items()}

    assert factors["rows"][-1]["times"] == pytest.approx(
        means["torch"] / means["tfasr"]
    )
