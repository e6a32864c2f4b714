"""The prediction of data-parallel scaling: what must hold whatever the numbers."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tfasr.bench.scaling.fit import (
    Link,
    ScalingModel,
    SingleDeviceStep,
    fit_link,
    fit_single_device,
    ring_all_reduce_s,
)

SECONDS = st.floats(1e-6, 10)
LINKS = st.builds(Link, st.floats(1e6, 1e12), st.floats(0, 1e-2))
MODELS = st.builds(
    ScalingModel,
    st.builds(SingleDeviceStep, SECONDS, SECONDS),
    st.floats(0, 1e10),
    LINKS,
    st.floats(0, 1),
    st.floats(0, 1),
)
COUNTS = st.integers(1, 1024)


def test_a_ring_by_hand():
    # 4 devices: 6 messages of 250 bytes at 1000 bytes/s, 0.01 s each besides.
    assert ring_all_reduce_s(4, 1000, Link(1000, 0.01)) == pytest.approx(6 * 0.26)
    assert ring_all_reduce_s(1, 1e12, Link(1.0, 1.0)) == 0
    model = ScalingModel(SingleDeviceStep(1.0, 0.1), 1000, Link(1000, 0.01), overlap=0.5)
    assert model.step_s(4, 10) == pytest.approx(2.0 + 1.56 / 2)
    assert model.weak_efficiency(4, 10) == pytest.approx(2.0 / 2.78)
    assert model.strong_efficiency(4, 40) == pytest.approx(5.0 / (4 * 2.78))


@settings(deadline=None, max_examples=100)
@given(MODELS, COUNTS, st.integers(1, 512))
def test_more_devices_are_never_better_than_ideal(model, devices, batch):
    assert model.step_s(1, batch) == pytest.approx(model.single.seconds(batch))
    assert model.step_s(devices, batch) >= model.single.seconds(batch)
    for efficiency in (
        model.weak_efficiency(devices, batch),
        model.strong_efficiency(devices, batch * devices),
    ):
        assert 0 < efficiency <= 1 + 1e-9
    assert model.step_s(devices + 1, batch) >= model.step_s(devices, batch) * (1 - 1e-9)


@settings(deadline=None, max_examples=100)
@given(COUNTS, st.integers(0, 10**12), LINKS)
def test_bandwidth_bounds_a_ring_whatever_its_length(devices, size, link):
    seconds = ring_all_reduce_s(devices, size, link)
    most = 2 * size / link.bytes_per_s + 2 * devices * link.latency_s
    assert 0 <= seconds <= most * (1 + 1e-9)
    assert ring_all_reduce_s(devices, 2 * size, link) >= seconds


@settings(deadline=None, max_examples=100)
@given(MODELS, st.integers(2, 256), st.integers(1, 64), st.floats(0, 1))
def test_overlap_hides_no_more_than_the_exchange_and_the_backward_pass(model, devices, batch, more):
    def exposed(overlap: float) -> float:
        changed = ScalingModel(
            model.single, model.gradient_bytes, model.link, overlap, model.backward_share
        )
        return changed.step_s(devices, batch) - model.single.seconds(batch)

    bare, hidden = exposed(0.0), exposed(more)
    tolerance = 1e-9 * (bare + model.single.seconds(batch))
    assert -tolerance <= hidden <= bare + tolerance
    assert bare - hidden <= model.backward_share * model.single.seconds(batch) + tolerance


@settings(deadline=None, max_examples=50)
@given(MODELS, st.integers(2, 64), st.integers(1, 64))
def test_slices_of_one_processor_gain_nothing(model, devices, batch):
    sliced = ScalingModel(model.single, model.gradient_bytes, model.link, shared_cores=True)
    assert sliced.weak_efficiency(devices, batch) <= 1 / devices + 1e-9
    assert sliced.strong_efficiency(devices, batch * devices) <= 1 / devices + 1e-9


@settings(deadline=None, max_examples=50)
@given(st.floats(1e6, 1e11), st.floats(1e-6, 1e-2), st.integers(2, 8), st.integers(2, 8))
def test_a_link_is_found_again_in_its_own_times(bandwidth, latency_s, first, second):
    link = Link(bandwidth, latency_s)
    # Sizes around the one whose transfer takes as long as the latency tell the two apart.
    size = bandwidth * latency_s
    assume(size > 1)
    devices, sizes = [first, first, second], [size / 4, 4 * size, 16 * size]
    seconds = [ring_all_reduce_s(n, s, link) for n, s in zip(devices, sizes, strict=True)]
    found = fit_link(devices, sizes, seconds)
    assert found.bytes_per_s == pytest.approx(bandwidth, rel=1e-3)
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3)


def test_a_link_that_is_all_latency_has_no_bandwidth_to_speak_of():
    found = fit_link([2, 2], [1e3, 1e6], [0.01, 0.01])
    assert ring_all_reduce_s(2, 1e6, found) == pytest.approx(0.01, rel=0.01)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 5), st.floats(0.01, 5), st.sets(st.integers(1, 300), min_size=2))
def test_a_step_is_found_again_in_its_own_times(fixed_s, per_utterance_s, batches):
    step = SingleDeviceStep(fixed_s, per_utterance_s)
    found = fit_single_device(sorted(batches), [step.seconds(b) for b in sorted(batches)])
    for batch in batches:
        assert found.seconds(batch) == pytest.approx(step.seconds(batch), rel=1e-3)


def test_one_batch_alone_leaves_nothing_fixed():
    assert fit_single_device([4], [2.0]) == SingleDeviceStep(0.0, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Link(0.0),
        lambda: Link(math.nan),
        lambda: Link(1.0, -1.0),
        lambda: ring_all_reduce_s(0, 1, Link(1.0)),
        lambda: fit_link([1], [10], [1.0]),
        lambda: fit_link([], [], []),
        lambda: fit_single_device([0], [1.0]),
        lambda: ScalingModel(SingleDeviceStep(1, 1), 1, Link(1.0), overlap=1.5),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        wrong()
