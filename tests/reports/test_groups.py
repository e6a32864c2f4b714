import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.reports.conftest import ledger_of
from tfasr.commands.report import report
from tfasr.reports.groups import group_name

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "published"
published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published logs are not beside the repository"
)


def seeds(folder, name, train_s, *, count=3, epochs=5):
    """Runs of one configuration whose steps differ a little in time."""
    run_dirs = []
    for seed in range(count):
        cers = [0.5, *[0.1] * (epochs - 1)]
        run_dir = ledger_of(cers, train_s=train_s * (1 + 0.01 * seed)).write(
            folder / f"{name}-seed{seed}"
        )
        (run_dir / "config.gin").write_text(f"batch = '{name}'\ntrain.seed = {seed}\n")
        run_dirs.append(run_dir)
    return run_dirs


def groups(*paths, **options):
    options = {"policy": "paper", **options}
    return json.loads(report(paths, output_format="json", **options))


def test_runs_of_one_configuration_form_a_group_whatever_their_seed(tmp_path):
    found = groups(*seeds(tmp_path, "small", 1.0), *seeds(tmp_path, "large", 2.0))
    assert [(one["group"], one["n"], one["reached"]) for one in found] == [
        ("small", 3, 3),
        ("large", 3, 3),
    ]
    small, large = found
    assert small["time_to_accuracy_s"] == pytest.approx([8.0, 8.06, 8.12])
    assert small["median_s"] == pytest.approx(8.06)
    assert small["mean_without_extremes_s"] is None
    # The rule was not met at the second epoch, but at the third.
    assert small["bracket"][0] == pytest.approx([6.0, 8.0])
    assert small["against_first"] is small["factors"] is None
    assert large["against_first"]["ratio"] == pytest.approx(14.12 / 8.06, rel=1e-3)
    assert small["bracket_s"] == pytest.approx(2.02)
    assert large["bracket_s"] == pytest.approx(4.04)
    assert large["against_first"]["sooner"] == "first"
    low, high = large["against_first"]["interval"]
    assert 1 < low < large["against_first"]["ratio"] < high
    factors = large["factors"]["factors"]
    assert factors["hardware_throughput"] > 1.5
    assert factors["statistical_efficiency"] == pytest.approx(1)


def test_a_folder_of_runs_is_a_group(tmp_path, large):
    seeds(tmp_path / "mine", "run", 1.0, count=2)
    found = groups(tmp_path / "mine", large)
    assert [(one["group"], one["n"]) for one in found] == [("mine/run", 2), ("large", 1)]
    assert found[0]["runs"] == ["mine/run-seed0", "mine/run-seed1"]


def test_text_says_what_the_groups_allow_to_say(tmp_path):
    two = report([*seeds(tmp_path, "small", 1.0, count=2), *seeds(tmp_path, "large", 2.0, count=2)])
    assert "no significance possible: fewer than 3 runs in a group" in " ".join(two.split())
    run_dirs = [*seeds(tmp_path, "small", 1.0, count=5), *seeds(tmp_path, "large", 2.0, count=5)]
    five = " ".join(report(run_dirs, power=True, out=tmp_path / "out").split())
    # Written afresh from the ledgers: misses at 6 and 10 s, hits at 8 and 14 s, initialisation 2 s.
    late, errors, bounds, middles = 1 + 0.01 * np.arange(5), [], [], []
    for miss, hit in ((4, 6), (8, 12)):
        low, high = np.log(2 + miss * late), np.log(2 + hit * late)
        width, variance = np.mean(high - low), np.var((low + high) / 2, ddof=1)
        middles.append(np.mean(low + high) / 2)
        bounds.append(width / 2 * np.exp(-2 * np.pi**2 * variance / width**2))
        errors.append(max(variance, width**2 / 48) / 5)
    # Student's t at 7.5 to 8 degrees of freedom: 2.33 to 2.31.
    reach = math.hypot(2.32 * math.sqrt(sum(errors)), sum(bounds))
    low, high = (math.exp(middles[1] - middles[0] + end) for end in (-reach, reach))
    said = "CER 10 %: small is faster: large takes 1.75 times as long as small (95 % interval "
    assert f"{said}{low:.2f} to {high:.2f}; " in five
    assert "Welch's t on logarithms, n = 5 and 5" in five
    assert "large has 0.50 times the steady throughput" in five
    assert "permutation test p = 0.0079" in five
    assert "no number of runs would show a gap of 10 %: evaluate more often" in five
    assert "A verdict needs p < 0.05 and a gap larger than the time between evaluations" in five
    assert "Why: CER 10 %, factors of the time of small" in five
    page = (tmp_path / "out" / "report.html").read_text()
    assert "large: median 0.237 min (5 of 5 runs reached it)." in page
    assert "large takes 1.75 times as long as small (95 % interval" in page
    # A group has one colour and one entry in a legend: error rates, loss, throughput of both kinds.
    assert page.count(">small (n = 5)</text>") == 5


def test_all_policies_are_shown_beside_the_one_that_was_asked_for(small):
    text = report([small], policy="mlperf")
    assert "CER 10 % under each clock policy, minutes" in text
    rows = [line.split() for line in text.splitlines()]
    # 8 s on the paper's clock; the first crossing is in the second epoch, 4 s after run_start.
    assert ["small", "0.133", "0.067", "0.067", "0.100"] in rows
    (found,) = groups(small, policy="mlperf")
    assert (found["policy"], found["window"], found["time_to_accuracy_s"]) == ("mlperf", 1, [4.0])


def test_unlike_groups_are_refused_a_comparison(tmp_path, small):
    other = ledger_of([0.1] * 3, comparability={"beam_width": 256}).write(tmp_path / "other")
    assert groups(small, other)[1]["against_first"] is None
    assert groups(small, other, force=True)[1]["against_first"]["ratio"] == 1.0


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["batch8-seed1", "batch8-seed2"], "batch8"),
        (["x/result_1", "x/result_10"], "x"),
        (["a", "b"], "a and 1 more"),
        (["alone-1"], "alone-1"),
        (["lstm_256_r1", "lstm_256_r2"], "lstm_256"),
    ],
)
def test_a_group_is_called_what_its_runs_begin_with(names, group):
    assert group_name(names) == group


@published
def test_the_published_answers_through_the_command():
    folders = [
        PUBLISHED / "mlperf_v3.1_rnnt_8xH100_NVIDIA",
        PUBLISHED / "mlperf_v3.1_rnnt_6xL4_xFusion",
    ]
    found = groups(*folders, policy="mlperf", targets=["wer=0.058"])
    assert [round(one["mean_without_extremes_s"] / 60, 3) for one in found] == [16.686, 183.567]
    assert [one["n"] for one in found] == [10, 10]
    study = PUBLISHED / "algoperf_v0.5_deepspeech_baseline_8xV100"
    (found,) = groups(study, policy="algoperf", targets=["wer=0.119936"])
    rounded = [time and round(time) for time in found["time_to_accuracy_s"]]
    assert rounded == [36051, 36051, 36049, None, 36047]
    assert found["bracket"][3][1] is None
