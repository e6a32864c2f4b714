"""Ledgers that nobody vouches for: a clear error that names file and line, never a traceback."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.conftest import ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.errors import UsageError
from tfasr.tta.run import load_run, read_metrics


def forged(run_dir, key, /, **changes):
    """Writes a run of which the first event of a key is changed; returns the event's line."""
    ledger = ledger_of([0.5, 0.1, 0.1])
    index = [event["key"] for event in ledger.events].index(key)
    ledger.events[index] |= changes
    ledger.write(run_dir)
    return index + 1


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("init_start", {"metadata": [1]}),
        ("init_start", {"metadata": "x"}),
        ("init_start", {"key": 7}),
        ("init_start", {"key": ["init_start"]}),
        ("epoch_start", {"metadata": {"epoch_num": {}, "session": 0, "mono_s": 52.0}}),
        ("epoch_start", {"metadata": {"session": "a", "mono_s": 52.0}}),
        ("targets", {"value": [["cer"]]}),
        ("targets", {"value": "cer"}),
        ("targets", {"value": ["cer", ["cer", "low"]]}),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_file_and_line(tmp_path, key, changes):
    line = forged(tmp_path / "bad", key, **changes)
    with pytest.raises(UsageError, match=rf"In line {line} of .*bad/events\.jsonl .* must be"):
        load_run(tmp_path / "bad")
    with pytest.raises(UsageError, match="must be"):
        report([tmp_path / "bad"])
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "good")
    shown = report([tmp_path])
    assert "bad is left out" in " ".join(shown.split())
    assert "good" in shown


def test_lines_nested_too_deeply_are_refused(tmp_path):
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path)
    deep = '{"key": "targets", "time_ms": 1, "value": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
    path = tmp_path / "events.jsonl"
    path.write_text(deep + path.read_text())
    with pytest.raises(UsageError, match=r"events\.jsonl must be an event"):
        report([tmp_path])


@pytest.mark.parametrize("text", ['{"system": ', "[]", "\x00", '{"system": {"packages": "x"}}'])
def test_a_damaged_run_json_is_named(tmp_path, text):
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=r"run\.json must"):
        report([tmp_path])


@pytest.mark.parametrize("target", [{"cer": 10}, {"cer": -0.1}, {"foo": 0.1}, {"cer": "low"}])
def test_a_target_that_cannot_be_reached_is_refused_as_on_the_command_line(tmp_path, target):
    run = load_run(ledger_of([0.5, 0.1, 0.1]).write(tmp_path))
    with pytest.raises(UsageError, match="fraction between 0 and 1|metric must be one of"):
        run.time_to_accuracy(**target)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_forged_ledger_ends_in_a_traceback(tmp_path_factory, data):
    ledger = ledger_of([0.5, 0.1, 0.1])
    ledger.events = copy.deepcopy(ledger.events)
    for _ in range(data.draw(st.integers(1, 3))):
        event = data.draw(st.sampled_from(ledger.events))
        inner = [one for one in (event["value"], event["metadata"]) if isinstance(one, dict)]
        place = data.draw(st.sampled_from([event, *inner]))
        if place:
            place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)
    folder = tmp_path_factory.mktemp("forged")
    lines = "".join(json.dumps(event) + "\n" for event in ledger.events)
    (folder / "events.jsonl").write_text(lines)
    try:
        assert report([folder], policy="paper")
    except UsageError as error:
        assert str(error)


def test_a_wrong_kind_is_found_among_all_right_ones(tmp_path):
    ledger = ledger_of([0.5, 0.1, 0.1])
    ledger.events[1]["metadata"] = None
    ledger.events[5]["metadata"] = ["session"]
    with pytest.raises(UsageError, match="In line 6 .* metadata must be an object"):
        load_run(ledger.write(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("global_batch_size", 16.0, "a whole number"),
        ("num_replicas", True, "a whole number"),
        ("opt_name", 3, "text"),
        ("targets", [["cer", True]], "pairs of a metric and a number"),
        ("targets", [["cer", 1e400]], "pairs of a metric and a number"),
        ("targets", [[1, 0.1]], "pairs of a metric and a number"),
        ("targets", [["cer", 0.1, 0.2]], "pairs of a metric and a number"),
    ],
)
def test_facts_are_of_their_kind_or_absent(tmp_path, key, value, kind):
    def run_with(fact):
        ledger = LedgerBuilder().begin().event(key, fact).epoch(1, 0.5).end()
        return ledger.write(tmp_path)

    assert load_run(run_with(None)).fact(key) is None
    with pytest.raises(UsageError, match=f"value of {key} must be .*{kind}"):
        load_run(run_with(value))


def test_a_long_value_is_shown_in_part_and_a_time_is_a_number(tmp_path):
    ledger = ledger_of([0.5, 0.1, 0.1])
    good = copy.deepcopy(ledger.events)
    for text, shown in (("x" * 58, f"'{'x' * 58}'"), ("x" * 59, f"'{'x' * 58}…")):
        ledger.events[0]["metadata"]["session"] = text
        with pytest.raises(UsageError, match=rf"In line 1 .*whole number, not {shown}\. Leave"):
            load_run(ledger.write(tmp_path))
    ledger.events = copy.deepcopy(good)
    for time_ms in ([1], "1", True, None, 10**16, -(10**16)):
        ledger.events[2]["time_ms"] = time_ms
        with pytest.raises(
            UsageError, match="In line 3 .* time_ms must be a finite number of usual"
        ):
            load_run(ledger.write(tmp_path))
    for time_ms in (10**15, -(10**15), 1.5):
        ledger.events[2]["time_ms"] = time_ms
        assert load_run(ledger.write(tmp_path)).wall_s == 8.0
    ledger.events = copy.deepcopy(good)
    ledger.events[3]["metadata"]["mono_s"] = "soon"
    with pytest.raises(UsageError, match=rf"{tmp_path}/events\.jsonl: mono_s must be a finite"):
        load_run(ledger.write(tmp_path))


@pytest.mark.parametrize("metrics", [[1], [{}], {"a": 1}, {"a": {}, "b": []}, "cer"])
def test_metrics_that_are_no_descriptions_are_refused(tmp_path, metrics):
    run_dir = LedgerBuilder().begin().event("metrics", metrics).end().write(tmp_path)
    assert read_metrics(run_dir) == {}
    with pytest.raises(UsageError, match="value of metrics must be"):
        load_run(run_dir)
