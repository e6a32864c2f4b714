"""When a run will meet a target: intervals, and honest ignorance."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.tta.forecast import (
    COEFFICIENTS,
    FEWEST_EVALUATIONS,
    Course,
    course,
    evaluations_left,
    forecast,
    pace_s,
)
from tfasr.tta.policies import AccuracyPoint, first_sustained


def curve(values, pace_s=60.0, start_s=0.0):
    """Error rates of evaluations in equal distances."""
    return [
        AccuracyPoint(n, start_s + n * pace_s, v) for n, v in enumerate(values, start=1)
    ]


POWER = [0.9 * n**-0.6 for n in range(1, 61)]


def test_a_falling_curve_has_an_interval_in_order_that_narrows_on_the_way():
    # It meets 15 % at its 20th evaluation.
    widths = []
    for seen in (16, 17, 18, 19):
        result = forecast(curve(POWER[:seen]), 0.15, metric="wer", window=1)

        assert result.known
        assert result.met_s is None
        assert (
            60 * seen
            < result.not_before_s
            <= result.low_s
            <= result.middle_s
            <= result.high_s
        )
        assert result.low_s % 60 == 0  # rules are met at evaluations

        widths.append(result.high_s - result.low_s)

    assert widths[-1] < widths[0]
    assert result.low_s <= 20 * 60 <= result.high_s


def test_a_target_that_was_met_says_when():
    result = forecast(curve(POWER), 0.15, window=1)

    assert result.met_s == 20 * 60
    assert not result.known
    # The median of three comes an evaluation later.
    assert forecast(curve(POWER), 0.15, window=3).met_s == 21 * 60


@pytest.mark.parametrize(
    ("values", "target", "reason"),
    [
        ([], 0.1, "no evaluation yet"),
        ([0.5], 0.1, "1 of the 4 evaluations that a forecast needs"),
        ([0.5, 0.4, 0.3], 0.1, "3 of the 4 evaluations that a forecast needs"),
        ([0.3, 0.4, 0.5, 0.6, 0.7, 0.8], 0.29, "does not fall"),
        ([0.4] * 12, 0.2, "does not fall"),
        (POWER[:20], 0.01, "the target is 14.9 times below the last value"),
        (POWER[:20], 0.03, "the target is 5.0 times below the last value"),
        (POWER[:20], 0.0, "sure to come down to 0"),
        ([*POWER[:10], math.nan], 0.1, "the last evaluation is no number"),
        # A fifth of the way, when a curve says little: published runs of this course
        # took 41.
        ([1.2, 0.66, 0.28, 0.22, 0.2, 0.19, 0.18, 0.17], 0.086, "too early"),
        (POWER[:10], 0.15, "too early"),
        # A transducer before its fall, and in it.
        ([1 - 0.01 * n for n in range(15)], 0.35, "has not halved"),
        ([*[1.0] * 12, 0.96, 0.8, 0.5, 0.3], 0.15, "falls faster and faster"),
        # As small validation splits have it: 2 % up, 8 % down, in turns.
        (
            [v * (1.02 if n % 2 else 0.92) for n, v in enumerate(POWER[:17])],
            0.15,
            "vary by 10%",
        ),
    ],
)
def test_what_is_not_known_says_why(values, target, reason):
    result = forecast(curve(values), target, window=1)

    assert not result.known
    assert result.met_s is None
    assert reason in result.reason


STEPS = {
    "PiecewiseConstantDecay": {},
    "CosineDecayRestarts": {},
    "ExponentialDecay": {"staircase": True},
}


@pytest.mark.parametrize("name", STEPS)
def test_a_learning_rate_that_changes_in_steps_is_not_forecast(name):
    schedule = {"class_name": name, "config": STEPS[name]}
    result = forecast(curve(POWER[:17]), 0.15, window=1, learning_rate=schedule)

    assert not result.known
    assert "the learning rate changes in steps" in result.reason


def test_a_smooth_learning_rate_is_forecast():
    smooth = {"class_name": "ExponentialDecay", "config": {"staircase": False}}
    for learning_rate in (
        smooth,
        {"class_name": "CosineDecay", "config": {}},
        1.0,
        None,
    ):
        assert forecast(
            curve(POWER[:17]), 0.15, window=1, learning_rate=learning_rate
        ).known


noisy_curves = st.tuples(
    st.floats(0.6, 0.9),
    st.integers(18, 28),
    st.lists(st.floats(-0.01, 0.01), min_size=40, max_size=40),
)


@settings(max_examples=40, deadline=None)
@given(noisy_curves, st.floats(0.3, 1.0), st.sampled_from([1, 3]))
def test_after_a_jump_or_a_rise_nothing_is_forecast(shape, size, window):
    exponent, place, noise = shape
    smooth = [0.9 * n**-exponent * math.exp(e) for n, e in enumerate(noise, start=1)]
    for factor in (math.exp(-size), math.exp(size)):
        values = [v * factor if n > place else v for n, v in enumerate(smooth)]

        for seen in range(place + 8, 40):
            assert not forecast(
                curve(values[:seen]), 0.9 * min(values), window=window
            ).known


def test_a_smooth_curve_with_noise_rises_and_jumps_by_little():
    rng = np.random.default_rng(1)
    for exponent in (0.3, 0.6, 1.0):
        for sigma in (0.003, 0.02, 0.03):
            noise = np.exp(sigma * rng.standard_normal(60))
            values = 0.9 * np.arange(1, 61.0) ** -exponent * noise

            reason = forecast(
                curve(values.tolist()), 0.95 * min(values), window=1
            ).reason

            assert "rose" not in reason
            assert "jump" not in reason


def test_what_surely_takes_longer_is_known_before_an_interval_is():
    result = forecast(curve(POWER[:10]), 0.15, window=1)

    assert not result.known
    assert 600 < result.not_before_s < 20 * 60
    # A curve that has not bent has not even that.
    assert forecast(curve([1 - 0.01 * n for n in range(15)]), 0.35).not_before_s is None


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("edge", [10, 20, 30])
@pytest.mark.parametrize("sinks", [0.0, 0.005, 0.01])
def test_no_bound_and_no_interval_is_broken_by_a_cliff(window, edge, sinks):
    values = [1 - sinks * n for n in range(edge)]
    values += [max(0.3, values[-1] * 0.6**n) for n in range(1, 6)]
    points = curve(values)
    met_s = first_sustained(points, 0.35, metric="wer", window=window).seconds

    for seen in range(1, len(points)):
        result = forecast(points[:seen], 0.35, metric="wer", window=window)

        if result.met_s is None:
            assert result.not_before_s is None or result.not_before_s < met_s
            assert not result.known or result.low_s <= met_s <= result.high_s


def test_clocks_that_stood_still_or_ran_backwards_are_not_forecast():
    points = curve(POWER[:17])
    stood = [AccuracyPoint(p.epoch, 5.0, p.value) for p in points]

    assert "stood still or ran backwards" in forecast(stood, 0.15, window=1).reason

    back = [AccuracyPoint(p.epoch, -p.elapsed_s, p.value) for p in points]
    assert "stood still or ran backwards" in forecast(back, 0.15, window=1).reason


def test_one_pause_of_a_day_is_not_the_pace():
    points = curve(POWER[:17])

    # One pause of a day is not the pace.
    late = [*points[:13], *curve(POWER[13:17], start_s=86400 + 780)]

    assert pace_s(late) == 60
    assert forecast(late, 0.15, window=1).high_s < late[-1].elapsed_s + 3600


def test_the_next_evaluation_may_come_as_soon_as_the_soonest_of_late():
    points = curve(POWER[:17])
    sooner = [
        *points[:16],
        AccuracyPoint(17, points[15].elapsed_s + 45.0, points[16].value),
    ]
    even, uneven = (forecast(one, 0.15, window=1) for one in (points, sooner))
    evaluations = (even.low_s - points[-1].elapsed_s) / 60

    assert uneven.low_s - sooner[-1].elapsed_s == pytest.approx(45 * evaluations)
    assert uneven.high_s - sooner[-1].elapsed_s == even.high_s - points[-1].elapsed_s


def test_diverged_evaluations_between_good_ones_do_not_break_it():
    values = list(POWER[:17])
    values[3], values[7] = math.nan, math.inf

    assert forecast(curve(values), 0.15, window=1).known


def test_a_rule_of_three_needs_more_evaluations():
    needed = FEWEST_EVALUATIONS + 2

    assert course(curve(POWER[: needed - 1]), 0.15, 3)[0] is None
    assert "falls" not in course(curve(POWER[: needed + 5]), 0.15, 3)[1]
    assert course(curve(POWER[: needed + 5]), 0.15, 3)[0] is not None


def test_a_rule_of_three_answers_later():
    alone = forecast(curve(POWER[:17]), 0.15, window=1)
    of_three = forecast(curve(POWER[:17]), 0.15, window=3)

    assert of_three.known
    assert of_three.low_s >= alone.low_s


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(0, 20) | st.just(math.nan), max_size=25),
    target=st.floats(0, 1),
    window=st.integers(1, 3),
    pace=st.floats(1e-3, 1e5),
)
def test_any_curve_gets_an_ordered_interval_or_a_reason(values, target, window, pace):
    result = forecast(curve(values, pace), target, window=window)
    if result.known:
        ends = [result.not_before_s, result.low_s, result.middle_s, result.high_s]

        assert all(map(math.isfinite, ends))
        assert ends == sorted(ends)
        assert result.low_s > len(values) * pace
    else:
        assert result.reason or result.met_s is not None


def test_what_the_clock_counts_in_does_not_matter():
    slow, quick = (
        forecast(curve(POWER[:17], pace), 0.15, window=1) for pace in (60.0, 1.0)
    )

    assert slow.high_s == pytest.approx(60 * quick.high_s)
    assert np.isclose(slow.not_before_s, 60 * quick.not_before_s)


def test_an_accuracy_is_forecast_by_what_it_leaves():
    errors = forecast(curve(POWER[:17]), 0.15, metric="wer", window=1)
    result = forecast(
        curve([1 - v for v in POWER[:17]]), 0.85, metric="accuracy", window=1
    )

    assert result.target == 0.85
    assert result.high_s == pytest.approx(errors.high_s)


def test_an_accuracy_that_was_met_has_its_time():
    met = forecast(curve([1 - v for v in POWER]), 0.85, metric="accuracy", window=1)
    assert met.met_s == 20 * 60


def course_by_polyfit(values, target):
    """The features as the docstring of `course` says them, fitted by NumPy's weighted
    lines.
    """
    number = np.arange(1, len(values) + 1)
    logs = np.log(values)
    falls = []

    for share in (0.12, 0.35):
        weight = np.exp((number - len(values)) / max(share * len(values), 1.2))
        slope = np.polyfit(number, logs, 1, w=np.sqrt(weight))[0]
        falls.append(max(-slope * len(values), 0.05))

    distance = max(logs[-1] - math.log(target), 0.01)
    ratio = distance / math.sqrt(math.prod(falls))
    fallen = sorted(logs)[-2] - logs[-1]

    return [
        1,
        math.log(ratio),
        math.log(distance),
        math.log(falls[0] / falls[1]),
        math.log(fallen),
    ]


@pytest.mark.parametrize(
    "values",
    [
        POWER[:7],  # so few that both slopes remember the least that they may
        POWER[:20],
        [*POWER[:14], *[POWER[13]] * 4],  # it stands still lately
        [*POWER[:14], *(POWER[13] * 0.9985**n for n in range(1, 5))],  # nearly
        [value * (1.02 if n % 3 else 0.98) for n, value in enumerate(POWER[:17])],
    ],
)
def test_a_curve_is_described_by_two_weighted_lines(values):
    present, reason = course(curve(values), 0.9 * min(values), 1)

    assert reason == ""
    assert present.features == pytest.approx(
        course_by_polyfit(values, 0.9 * min(values))
    )


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("single", {"low": 1, "middle": 12, "high": 12}),
        ("median", {"low": 1, "middle": 10, "high": 15}),
    ],
)
def test_what_was_backtested_is_what_is_shipped(rule, left):
    # Near the end of a power law of exponent 0.6, after 100 evaluations.
    traits = np.log([100, 0.02, 0.06])
    present = Course(np.array([1.0, -1.8, -2.3, -0.1, 1.0]), traits, surely=5.0)

    assert evaluations_left(present, 100, COEFFICIENTS[rule]) == left

    far = Course(np.array([1.0, 1.0, 0.1, -0.1, -0.2]), traits, surely=5.0)
    assert evaluations_left(far, 100, COEFFICIENTS[rule]) is None


def test_an_interval_holds_the_numbers_of_which_the_estimate_is_among_the_middle():
    # Estimates lie between half and twice the truth, whatever the traits; with one
    # left, below 3.
    coefficients = {
        "latest": (0.0,),
        "middle": (1.0,),
        "low": (-math.log(2), 1, 0, 0, 0, 0),
        "high": (math.log(2), 1, 0, 0, 0, 0),
        "next": (math.log(3 / 20), 0, 0, 0, 0, 0),
    }
    for estimate, (low, high) in {
        8: (4, 16),
        2.9: (1, 5),
        3.1: (2, 6),
        0.1: (1, 1),
    }.items():
        present = Course(np.log([estimate / 20]), np.zeros(3), surely=1.0)
        left = evaluations_left(present, 20, coefficients)

        assert (left["low"], left["high"]) == (low, high)
        assert left["middle"] == max(low, round(estimate))


def test_cliffs_are_told_by_how_long_half_of_the_fall_took():
    # From 1 to 0.25: half of the logarithm's fall is over below 0.5.
    values = [1.0, 1.0, 0.6, 0.45, 0.3, 0.28, 0.265, 0.255, 0.248, 0.243]
    present, reason = course(curve(values), 0.2, 1)

    assert reason == ""
    assert present.traits[0] == pytest.approx(math.log(10))
    assert present.traits[2] == pytest.approx(math.log(4 / 10))


def test_the_pace_is_of_the_last_five_gaps():
    ends_s = np.cumsum([500.0, 10, 10, 10, 60, 60])
    points = [AccuracyPoint(n, end_s, 0.5) for n, end_s in enumerate(ends_s, start=1)]

    assert pace_s(points) == 10
