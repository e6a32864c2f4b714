"""Counts of traces and compilations, and the warning of too many."""

import logging

from tfasr.ledger.events import Ledger, read_events
from tfasr.training.step import StepTraces, book_traces


def test_steps_and_compilations_are_counted_by_shape(tmp_path):
    traces = StepTraces()
    for utterances, frames, compile_s in ((8, 100, 2.0), (8, 100, 0.0), (3, 100, 0.5), (8, 70, 0)):
        traces.record(utterances, frames, traced=1, compile_s=compile_s)
    counts = traces.to_json()
    assert (counts["traces"], counts["shapes"], counts["compiling_steps"]) == (1, 3, 2)
    assert counts["compile_s"] == 2.5
    assert counts["by_frames"] == {
        "70": {"steps": 1, "compiling_steps": 0, "compile_s": 0},
        "100": {"steps": 3, "compiling_steps": 2, "compile_s": 2.5},
    }
    ledger = Ledger(tmp_path)
    book_traces(ledger, traces, evaluation_traces=1)
    ledger.close()
    (event,) = read_events(tmp_path)
    assert event["value"] == {"training": counts, "evaluation": {"traces": 1}}


def test_a_trace_too_many_is_warned_of_once_with_a_remedy(caplog):
    traces = StepTraces()
    with caplog.at_level(logging.WARNING):
        traces.record(8, 100, traced=1, compile_s=1.0)
        assert not caplog.records
        for traced in (2, 2, 3):
            traces.record(8, 110, traced=traced, compile_s=1.0)
    (warning,) = caplog.messages
    assert "8 utterances x 110 frames" in warning
    assert "num_buckets" in warning
