"""Over which targets two groups can be compared; see tests/reports/test_profile.py for the rest."""

from tfasr.reports.winners import common_range
from tfasr.tta.policies import AccuracyPoint


def curve(*values):
    return [AccuracyPoint(n, 60.0 * n, value) for n, value in enumerate(values, start=1)]


def test_runs_without_a_single_error_have_no_range_of_ratios():
    assert common_range([curve(0.5, 0.2, 0.1)] * 2, 1) is not None
    assert common_range([curve(0.5, 0.2, 0.0)] * 2, 1) is None
