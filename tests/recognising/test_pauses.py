"""Long recordings are cut in pauses, and nothing of them is lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.recognising.segments import PauseCutter

RATE_HZ = 1000


def cut(samples: np.ndarray, longest_s: float, block: int = 700):
    cutter = PauseCutter(RATE_HZ, longest_s)
    segments = []
    for start in range(0, len(samples), block):
        segments += cutter.push(samples[start : start + block])
    return segments + cutter.finish()


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.floats(0.001, 30),
    longest_s=st.floats(1.0, 8.0),
    block=st.integers(1, 40000),
    seed=st.integers(0, 100),
)
def test_each_moment_belongs_to_one_segment_that_has_heard_it(seconds, longest_s, block, seed):
    samples = np.random.default_rng(seed).normal(size=max(int(seconds * RATE_HZ), 1))
    segments = cut(samples.astype(np.float32), longest_s, max(block, len(samples) // 50))
    assert (segments[0].from_s, segments[-1].to_s) == (-np.inf, np.inf)
    for before, after in zip(segments, segments[1:], strict=False):
        assert before.to_s == after.from_s
    for segment in segments:
        begin = round(segment.start_s * RATE_HZ)
        end = begin + len(segment.samples)
        np.testing.assert_array_equal(segment.samples, samples[begin:end].astype(np.float32))
        assert 0 < len(segment.samples) <= longest_s * RATE_HZ
        assert begin / RATE_HZ <= max(segment.from_s, 0)
        assert end / RATE_HZ >= min(segment.to_s, len(samples) / RATE_HZ)
    # Half a segment at least lies between two cuts.
    assert len(segments) <= 1 + len(samples) / RATE_HZ / (0.3 * longest_s)


def test_cuts_lie_in_pauses():
    rng = np.random.default_rng(1)
    times_s = np.arange(60 * RATE_HZ) / RATE_HZ
    quiet = (times_s % 3.0) > 2.5  # half a second in each three
    samples = rng.normal(size=len(times_s)) * np.where(quiet, 0.01, 1.0)
    segments = cut(samples.astype(np.float32), longest_s=10.0)
    assert len(segments) >= 6
    for segment in segments[1:]:
        assert 2.6 < segment.from_s % 3.0 < 2.9


def test_a_short_recording_stays_whole_and_an_empty_one_has_no_segment():
    (segment,) = cut(np.ones(2000, np.float32), longest_s=2.0)
    assert (segment.start_s, len(segment.samples)) == (0.0, 2000)
    assert cut(np.ones(0, np.float32), longest_s=2.0) == []
