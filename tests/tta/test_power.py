import math

import numpy as np
import pytest

from tfasr.tta.bracketed_means import bracketed_mean, mean_difference
from tfasr.tta.power import runs_to_detect


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
