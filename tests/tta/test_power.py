import math

import numpy as np
import pytest
from scipy.stats import nct, norm, t

from tfasr.tta.groups import bracketed_mean, mean_difference, runs_to_detect


def test_more_noise_needs_more_runs():
    # Tables of the two-sample t test: a gap of one standard deviation takes 17 runs per arm.
    deviation = math.log1p(0.10)
    assert runs_to_detect(math.sqrt(math.expm1(deviation**2))) == 17
    needed = [runs_to_detect(cv) for cv in (0.0, 0.03, 0.1, 0.2)]
    assert needed == sorted(needed)
    # Fewer than three have no interval, and so no verdict.
    assert needed[0] == 3
    assert runs_to_detect(50.0, 0.001) is None


def test_no_number_of_runs_shows_a_gap_below_the_bracket():
    # AlgoPerf's studies: a CV of 0.005 % of their first hits, brackets of 4 % of the time.
    assert runs_to_detect(0.00005, 0.01) == 3
    assert runs_to_detect(0.00005, 0.01, bracket=0.04) is None
    assert runs_to_detect(0.012, 0.10, bracket=0.04) is not None


def test_wider_brackets_need_more_runs():
    needed = [runs_to_detect(0.05, bracket=bracket) for bracket in (0.0, 0.05, 0.08, 0.095)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


@pytest.mark.parametrize(("variation", "bracket"), [(0.1, 0.0), (0.05, 0.05), (0.03, 0.06)])
def test_so_many_runs_do_show_it(variation, bracket):
    n = runs_to_detect(variation, 0.2, bracket=bracket)
    rng = np.random.default_rng(0)
    draws, width = 4000, math.log1p(bracket)
    groups = []
    for centre in (0.0, math.log(1.2)):
        # Times on a grid of logarithms, at any place between two evaluations.
        times = centre + math.sqrt(math.log1p(variation**2)) * rng.standard_normal((draws, n))
        if width:
            phase = rng.random((draws, 1)) * width
            low = np.floor((times - phase) / width) * width + phase
            groups.append(bracketed_mean(low, low + width))
        else:
            groups.append(bracketed_mean(times, times))
    found = mean_difference(*groups)
    shown = (found.p_value < 0.05) & (np.abs(found.shift) > width)
    assert np.mean(shown) > 0.76
    if n > 3:
        assert np.mean(shown) < 0.93  # nor is it far too many


@pytest.mark.parametrize("wrong", [{"gap": 0}, {"bracket": -0.1}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="gap must be larger than 0"):
        runs_to_detect(0.1, **wrong)


def by_formula(variation, gap, bracket):
    """The runs per arm by the formulas of docs/statistics.md, written out."""
    shift, width = math.log(1 + gap), math.log(1 + bracket)
    variance = math.log(1 + variation**2) + width**2 / 12
    bound = width * math.exp(-2 * math.pi**2 * variance / width**2)
    for n in range(3, 1000):
        error = math.sqrt(2 * variance / n)
        away = math.sqrt(shift**2 - bound**2) / error
        shown = nct.sf(t.ppf(0.975, 2 * n - 2), 2 * n - 2, away)
        if min(shown, norm.cdf((shift - width) / error)) >= 0.8:
            return n
    return None


@pytest.mark.parametrize(
    ("variation", "gap", "bracket"),
    [
        (0.02, 0.1, 0.08),
        (0.03, 0.1, 0.05),
        (0.01, 0.05, 0.045),
        (0.005, 0.03, 0.025),
        (0.2, 0.3, 0.1),
    ],
)
def test_the_number_of_runs_by_formula(variation, gap, bracket):
    assert runs_to_detect(variation, gap, bracket=bracket) == by_formula(variation, gap, bracket)


def test_a_thousand_runs_are_the_most():
    # By the t test's power: 0.8841 to 0.8847 takes 1000 runs per arm, anything more takes others.
    assert runs_to_detect(0.8844) == 1000
    assert runs_to_detect(0.8850) is None


def test_a_gap_far_beyond_all_noise_takes_the_fewest_runs():
    assert runs_to_detect(1e-9, 0.5) == 3
    assert runs_to_detect(0.0, 0.5) == 3


@pytest.mark.parametrize(
    "variation", [0.03, 0.035, 0.04, 0.045, 0.05, 0.055, 0.06, 0.07, 0.08, 0.09]
)
def test_few_runs_have_few_degrees_of_freedom(variation):
    assert runs_to_detect(variation) == by_formula(variation, 0.1, 1e-6)
