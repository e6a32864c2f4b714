"""Logs whose order, number or units are wrong are rejected, with the line."""

import copy
import csv
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.errors import UsageError
from tfasr.tta.policies import POLICIES
from tfasr.tta.published import load_log, mlperf

BEGAN_MS = 1_680_000_000_000
WER = (0.9, 0.5, 0.2, 0.05)
ALGOPERF = (
    "accumulated_submission_time", "accumulated_eval_time", "total_duration", "global_step",
    "validation/wer",
)  # fmt: skip


def time_s(run, target=0.058, policy="mlperf", metric="wer"):
    return (
        POLICIES[policy]
        .time_to_accuracy(run.timeline, target, metric=metric)[0]
        .seconds
    )


def mlperf_events(scores=WER):
    """A run that trains 10 s an epoch, then evaluates for 1 s; it ends after the last
    score.
    """
    events = [{"key": "run_start", "time_ms": BEGAN_MS, "metadata": {}}]
    for epoch, score in enumerate(scores, start=1):
        end_ms = BEGAN_MS + 11_000 * epoch
        for key, time_ms, value in (
            ("epoch_start", end_ms - 11_000, None),
            ("epoch_stop", end_ms - 1000, None),
            ("eval_start", end_ms - 1000, None),
            ("eval_accuracy", end_ms, score),
            ("eval_stop", end_ms, None),
        ):
            events.append(
                {
                    "key": key,
                    "time_ms": time_ms,
                    "value": value,
                    "metadata": {"epoch_num": epoch},
                }
            )

    stop = {"key": "run_stop", "time_ms": end_ms, "metadata": {"status": "success"}}
    return [*events, stop]


def write_mlperf(tmp_path, events):
    path = tmp_path / "result_0.txt"
    path.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))
    return path


def of(events, key, epoch=None):
    """Places of a key's events, or of the only one that names the epoch."""
    places = [place for place, event in enumerate(events) if event["key"] == key]
    if epoch is None:
        return places

    return next(p for p in places if events[p]["metadata"]["epoch_num"] == epoch)


def algoperf_rows(scores=WER):
    """Rows of an AlgoPerf study, one for each score."""
    return [
        [1440.0 * epoch, 120.0 * epoch, 1600.0 * epoch, 1 + 1700 * (epoch - 1), score]
        for epoch, score in enumerate(scores, start=1)
    ]


def write_algoperf(tmp_path, rows):
    path = tmp_path / "study_0.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([ALGOPERF, *rows])

    return path


def write_dawnbench(tmp_path, rows, column="top5Accuracy"):
    path = tmp_path / "net.tsv"
    lines = ["\t".join(map(str, row)) for row in [["epoch", "hours", column], *rows]]
    path.write_text("\n".join(lines) + "\n")

    return path


def test_an_orderly_log_of_mlperf_is_read(tmp_path):
    assert time_s(load_log(write_mlperf(tmp_path, mlperf_events()))) == 44.0


def test_an_orderly_log_of_algoperf_is_read(tmp_path):
    run = load_log(write_algoperf(tmp_path, algoperf_rows()))
    assert time_s(run, policy="algoperf") == 4 * 1440


def test_an_orderly_log_of_dawnbench_is_read(tmp_path):
    run = load_log(write_dawnbench(tmp_path, [[1, 0.1, 50], [2, 0.2, 93.1]]))
    assert time_s(run, 0.07, "dawnbench", "top5_error") == 720


@settings(max_examples=40, deadline=None)
@given(place=st.integers(1, 21), back_s=st.floats(1.001, 1e6))
def test_an_mlperf_clock_that_falls_is_rejected(tmp_path_factory, place, back_s):
    events = mlperf_events()
    latest_ms = max(event["time_ms"] for event in events[:place])
    events[place]["time_ms"] = latest_ms - 1000 * back_s

    path = write_mlperf(tmp_path_factory.mktemp("log"), events)

    with pytest.raises(UsageError, match=rf"Line {place + 1} of .* before line \d+"):
        load_log(path)


@settings(max_examples=40, deadline=None)
@given(
    row=st.integers(1, 3),
    column=st.sampled_from(ALGOPERF[:4]),
    share=st.floats(0, 0.999),
)
def test_an_algoperf_clock_that_falls_is_rejected(tmp_path_factory, row, column, share):
    rows = algoperf_rows()
    rows[row][ALGOPERF.index(column)] = share * rows[row - 1][ALGOPERF.index(column)]

    path = write_algoperf(tmp_path_factory.mktemp("log"), rows)

    with pytest.raises(
        UsageError, match=f"{column} falls from .* in line {row + 1} .* {row + 2}"
    ):
        load_log(path)


@settings(max_examples=40, deadline=None)
@given(hours=st.lists(st.floats(0.01, 100), min_size=2, max_size=6, unique=True))
def test_dawnbench_hours_that_fall_are_rejected(tmp_path_factory, hours):
    rows = [[epoch, hour, 50.0 + epoch] for epoch, hour in enumerate(hours, start=1)]
    path = write_dawnbench(tmp_path_factory.mktemp("log"), rows)

    if hours == sorted(hours):
        assert load_log(path).wall_s == pytest.approx(3600 * hours[-1])
    else:
        with pytest.raises(UsageError, match="hours falls"):
            load_log(path)


def test_processes_that_write_one_log_may_be_slightly_out_of_order(tmp_path):
    events = mlperf_events()
    events[of(events, "eval_accuracy", 3)]["time_ms"] -= 57

    assert time_s(load_log(write_mlperf(tmp_path, events))) == 44.0


def shifted(events, later_s):
    """The events so many seconds later."""
    return [{**event, "time_ms": event["time_ms"] + 1000 * later_s} for event in events]


@pytest.mark.parametrize("kept", [1, 8, 22])
def test_a_restarted_run_in_the_same_file_is_rejected(tmp_path, kept):
    events = [*mlperf_events()[:kept], *shifted(mlperf_events(), 3600)]

    with pytest.raises(
        UsageError, match=rf"Line {kept + 1} of .* second run_start, after line 1"
    ):
        load_log(write_mlperf(tmp_path, events))


def test_epochs_that_are_repeated_after_a_restart_are_rejected(tmp_path):
    events = mlperf_events()
    start = of(events, "epoch_start", 2)

    again = [*events[: start + 10], *shifted(events[start:], 100)]

    with pytest.raises(UsageError, match="scores epoch 2 after line .* scored epoch 3"):
        load_log(write_mlperf(tmp_path, again))


@pytest.mark.parametrize("late_ms", [1, 5, 20_000])
def test_a_score_that_arrives_after_its_evaluation_counts_from_then(tmp_path, late_ms):
    events = mlperf_events()
    place = of(events, "eval_accuracy", 4)
    late = events.pop(place)
    late["time_ms"] += late_ms

    run = load_log(write_mlperf(tmp_path, [*events, late]))

    assert time_s(run) == pytest.approx(44 + late_ms / 1000)
    assert time_s(run, 0.2) == 33.0


@pytest.mark.parametrize("key", ["eval_start", "eval_accuracy", "eval_stop"])
def test_evaluations_must_name_their_epoch(tmp_path, key):
    events = mlperf_events()
    place = of(events, key, 2)
    del events[place]["metadata"]["epoch_num"]

    with pytest.raises(
        UsageError, match=f"Line {place + 1} of .* epoch_num of its {key}"
    ):
        load_log(write_mlperf(tmp_path, events))


@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_an_epoch_with_two_scores_is_rejected(tmp_path, epoch):
    events = mlperf_events()
    events[of(events, "eval_accuracy", 3)]["metadata"]["epoch_num"] = epoch

    with pytest.raises(UsageError, match="each epoch must have one score, in order"):
        load_log(write_mlperf(tmp_path, events))


def test_a_score_of_no_evaluation_is_rejected(tmp_path):
    events = mlperf_events()
    place = of(events, "eval_accuracy", 4)
    moved = copy.deepcopy(events)
    moved[place]["metadata"]["epoch_num"] = 9

    with pytest.raises(
        UsageError, match=f"Line {place + 1} of .* scores epoch 9, which the log"
    ):
        load_log(write_mlperf(tmp_path, moved))


def test_an_evaluation_without_a_score_is_rejected(tmp_path):
    events = mlperf_events()

    del events[of(events, "eval_accuracy", 2)]

    with pytest.raises(
        UsageError, match="ends the evaluation of epoch 2, which has no eval_accur"
    ):
        load_log(write_mlperf(tmp_path, events))


@pytest.mark.parametrize("status", ["aborted", "failed", "timeout"])
def test_a_run_without_success_never_meets_a_target(tmp_path, status):
    events = mlperf_events()
    events[-1]["metadata"]["status"] = status
    run = load_log(write_mlperf(tmp_path, events))

    for target in (0.058, 0.9, 0.99):
        result, limits = POLICIES["mlperf"].time_to_accuracy(
            run.timeline, target, metric="wer"
        )

        assert not result.reached
        assert limits.read_s == 44.0  # it is known to be longer than the run

    assert run.status == status


def test_what_is_evaluated_after_the_end_does_not_count(tmp_path):
    events = mlperf_events((0.9, 0.5))
    again = shifted(
        events[of(events, "eval_start", 2) : of(events, "eval_stop", 2) + 1], 2
    )
    again[1]["value"] = 0.01

    run = load_log(write_mlperf(tmp_path, [*events, *again]))

    assert time_s(run) is None
    assert time_s(run, 0.5) == 22.0


def test_a_log_whose_beginning_is_missing_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="no run_start: its beginning is missing"):
        load_log(write_mlperf(tmp_path, mlperf_events()[3:]))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_times_in_other_units_are_rejected(tmp_path, factor):
    events = [
        {**event, "time_ms": event["time_ms"] * factor} for event in mlperf_events()
    ]

    with pytest.raises(
        UsageError, match="Line 1 of .* milliseconds, not seconds or microseconds"
    ):
        load_log(write_mlperf(tmp_path, events))


def test_error_rates_in_percent_are_rejected(tmp_path):
    percent = tuple(100 * rate for rate in WER)

    with pytest.raises(
        UsageError, match=r"Line 5 of .* must be a fraction.* Received: 90"
    ):
        load_log(write_mlperf(tmp_path, mlperf_events(percent)))

    with pytest.raises(
        UsageError, match=r"Line 2 of .* must be a fraction.* Received: 90"
    ):
        load_log(write_algoperf(tmp_path, algoperf_rows(percent)))

    # More errors than words, as from recognisers that have learnt nothing.
    assert load_log(write_mlperf(tmp_path, mlperf_events((13.3, 4.0, 0.9))))
    assert load_log(write_algoperf(tmp_path, algoperf_rows((4.2, 1.6))))
    assert (
        time_s(load_log(write_mlperf(tmp_path, mlperf_events((math.nan, *WER)))))
        == 55.0
    )


@pytest.mark.parametrize("value", [-0.1, "0.05", [0.05], True])
def test_scores_that_are_no_error_rates_are_rejected(tmp_path, value):
    with pytest.raises(
        UsageError, match=r"Line 5 of .* must be an error rate of at least 0"
    ):
        load_log(write_mlperf(tmp_path, mlperf_events((value, *WER))))


def test_an_algoperf_table_whose_first_rows_are_missing_is_rejected(tmp_path):
    rows = algoperf_rows((0.9, 0.8, 0.7, 0.5, 0.2, 0.05))

    with pytest.raises(
        UsageError, match="Line 2 of .* of global_step 3401.* rows before it are"
    ):
        load_log(write_algoperf(tmp_path, rows[2:]))


def test_a_repeated_algoperf_row_is_rejected(tmp_path):
    rows = algoperf_rows()

    with pytest.raises(UsageError, match="accumulated_submission_time stands still"):
        load_log(write_algoperf(tmp_path, [rows[0], *rows]))


def test_an_algoperf_clock_in_other_units_is_rejected(tmp_path):
    rows = [[row[0] * 1000, *row[1:]] for row in algoperf_rows()]

    with pytest.raises(UsageError, match="total_duration must be at least"):
        load_log(write_algoperf(tmp_path, rows))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "top5Accuracy",
            (0.5, 0.8, 0.931),
            "Line 4 of .* must be in percent. Received: 0.931",
        ),
        (
            "wordAccuracy",
            (0.5, 0.8, 0.931),
            "Line 4 of .* must be in percent. Received: 0.931",
        ),
        ("f1Score", (50, 80, 93.1), "Line 2 of .* must be from 0 to 1. Received: 50"),
        (
            "top1Accuracy",
            (50, 120, 93),
            "Line 3 of .* must be from 0 to 100. Received: 120",
        ),
        (
            "top1Accuracy",
            (-1, 12, 93),
            "Line 2 of .* must be from 0 to 100. Received: -1",
        ),
    ],
)
def test_dawnbench_accuracies_have_the_unit_of_their_column(
    tmp_path, column, values, message
):
    rows = [[epoch, epoch / 10, value] for epoch, value in enumerate(values, start=1)]

    with pytest.raises(UsageError, match=message):
        load_log(write_dawnbench(tmp_path, rows, column))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 1.0, 50], [2, 2.0, 60], [1, 3.0, 70]], "epoch falls from 2 in line 3"),
        ([[1, 1.0, 50], [1, 1.0, 50]], "hours stands still"),
        ([[1, 3600.0, 50], [2, 9000.0, 60]], "hours must be at most 8766"),
    ],
)
def test_dawnbench_rows_are_in_order(tmp_path, rows, message):
    with pytest.raises(UsageError, match=message):
        load_log(write_dawnbench(tmp_path, rows))


def test_byte_order_marks_are_no_part_of_a_table(tmp_path):
    for path in (
        write_algoperf(tmp_path, algoperf_rows()),
        write_dawnbench(tmp_path, [[1, 0.1, 50], [2, 0.2, 93.1]]),
    ):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

        assert load_log(path).accuracy_curve(
            "wer" if path.suffix == ".csv" else "top5_error"
        )


def test_an_aborted_run_of_ours_never_meets_a_target_in_mlperfs_format(tmp_path):
    ledger = LedgerBuilder().begin(init_s=1).epoch(1, 0.2)
    ledger.event("run_stop", status="aborted")
    run = load_log(ledger.write(tmp_path / "run"))

    mlperf.write(run, tmp_path / "result_0.txt")

    assert time_s(load_log(tmp_path / "result_0.txt"), 0.5) is None
