"""Events of a ledger: their types, the published schema, and what is refused."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.conftest import ledger_of
from tests.studies.races import RECORDS, unpack
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.errors import UsageError
from tfasr.ledger import schema
from tfasr.ledger.events import Ledger, read_events
from tfasr.ledger.schema import GivenUp, TrainStep
from tfasr.ledger.timeline import Timeline
from tfasr.recording.recorder import Recorder
from tfasr.tta.run import load_run

PUBLISHED = Path(__file__).parents[2] / "docs" / "ledger.schema.json"


def test_the_published_schema_is_current():
    assert json.loads(PUBLISHED.read_text()) == schema.json_schema()


@pytest.mark.parametrize("study", ["plain", "interrupted_twice", "extended"])
def test_kept_ledgers_fit_the_published_schema(tmp_path, study):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))
    folder = unpack(RECORDS / "studies" / f"{study}.tar.xz", tmp_path / "study")

    ledgers = sorted(folder.rglob("runs/**/events.jsonl"))

    assert ledgers

    for path in ledgers:
        for line in path.read_text().splitlines():
            validator.validate(json.loads(line))


def test_what_is_written_is_read_back(tmp_path):
    written = [
        TrainStep(loss=None, utterances=4, train_s=0.5),
        GivenUp(budget_s=60.0, metric="cer", target=0.1, not_before_s=None),
    ]
    ledger = Ledger(tmp_path)
    for value in written:
        ledger.write(value, epoch_num=1, step=1)

    ledger.close()

    events = read_events(tmp_path)

    # What is unknown by default is left out.
    assert events[0]["value"] == {"loss": None, "utterances": 4, "train_s": 0.5}

    line = Timeline(events)

    assert line.all(TrainStep) + line.all(GivenUp) == written
    assert line.last(GivenUp) == written[1]
    assert line.last(schema.Extended) is None


def test_a_value_of_another_type_is_not_written(tmp_path):
    ledger = Ledger(tmp_path)
    with pytest.raises(
        TypeError, match="the value of seed must be a whole number, not 'one'"
    ):
        ledger.event("seed", "one")

    ledger.close()


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("train_step", 3, "must be an object, not 3"),
        (
            "train_step",
            {"loss": 1.0, "train_s": "x"},
            "train_s must be a number or null, not 'x'",
        ),
        ("given_up", {"budget_s": 3}, "metric must be text, not 'missing'"),
        (
            "extended",
            {"after_epoch": 1.5, "schedule": ""},
            "after_epoch must be a whole number",
        ),
        ("shards", {"train": 1}, "train must be text, not 1"),
        ("missing_compiled_parts", "all", "must be a list of text, not 'all'"),
        (
            "exchanged",
            {
                "utterances": 1,
                "lost_utterances": 0,
                "waited_s": 0,
                "workers": [{"rank": 0}],
            },
            "workers.0.utterances must be a number, not 'missing'",
        ),
    ],
)
def test_a_damaged_value_is_named_by_line_and_place(tmp_path, key, value, problem):
    run_dir = (
        LedgerBuilder().begin().event(key, value).epoch(1, 0.5).end().write(tmp_path)
    )

    with pytest.raises(
        UsageError, match="In line 6 of .*events.jsonl the value of"
    ) as error:
        load_run(run_dir)

    assert problem in str(error.value)


def test_a_recorders_fact_must_fit_the_schema_of_its_name(tmp_path):
    with pytest.raises(
        UsageError, match="the value of cluster must be an object, not 'mine'"
    ):
        Recorder(tmp_path, facts={"cluster": "mine"})

    Recorder(tmp_path, facts={"my_cluster": "mine"})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=6,
)


@given(st.sampled_from(sorted(schema.EVENTS)), values)
def test_a_value_is_refused_in_one_sentence_or_can_be_made(key, value):
    problem = schema.wrong(key, value)
    if problem is not None:
        assert "must be" in problem
        assert "\n" not in problem

        return

    made = schema.value_of(key, value)
    if made is not None and dataclasses.is_dataclass(made):
        assert schema.wrong(key, schema.to_json(made)) is None


def test_every_event_of_a_report_can_be_read_as_its_class(tmp_path):
    run = load_run(ledger_of([0.5, 0.1, 0.1]).write(tmp_path))

    for kind in schema.KEYS:
        assert len(run.timeline.all(kind)) == len(run.timeline.of(schema.KEYS[kind]))
