import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.reports.series import gaussian_smooth, thin


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=200), st.floats(0.3, 20))
def test_it_is_scipys_filter(values, sigma):
    ndimage = pytest.importorskip("scipy.ndimage", reason="SciPy is in the dev extra")
    expected = ndimage.gaussian_filter1d(np.array(values), sigma)
    np.testing.assert_allclose(gaussian_smooth(np.array(values), sigma), expected, atol=1e-9)


def test_nothing_stays_nothing_and_a_constant_constant():
    assert gaussian_smooth(np.array([])).size == 0
    np.testing.assert_allclose(gaussian_smooth(np.full(7, 3.0)), 3.0)


def test_sigma_must_be_positive():
    with pytest.raises(ValueError, match="sigma must be larger than 0"):
        gaussian_smooth(np.ones(3), 0)


def test_thinning_keeps_both_ends():
    assert thin(5, 10).tolist() == [0, 1, 2, 3, 4]
    kept = thin(1000, 10)
    assert (kept.size, kept[0], kept[-1]) == (10, 0, 999)
    assert thin(0, 10).size == 0
