from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.reports.numbers import distinct_names, merged_targets, target_label
from tfasr.tta.metrics import parse_target


def test_a_name_is_as_long_as_it_must_be():
    paths = [Path("/x/a/run"), Path("/x/b/run"), Path("/y/b/run"), Path("/x/other")]
    assert distinct_names(paths) == ["a/run", "x/b/run", "y/b/run", "other"]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), unique_by=tuple))
def test_different_folders_have_different_names(folders):
    names = distinct_names([Path("/", *folder) for folder in folders])
    assert len(set(names)) == len(folders)


def test_targets_are_fractions():
    assert parse_target("cer=0.10") == ("cer", 0.1)
    assert parse_target("loss=30") == ("loss", 30.0)


@pytest.mark.parametrize("text", ["cer", "cer=", "cer=ten", "=0.1", "bleu=0.1", ""])
def test_a_target_written_otherwise_is_refused(text):
    with pytest.raises(UsageError, match="A target"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("cer=10", "a fraction between 0 and 1"),
        ("wer=-0.1", "a fraction between 0 and 1"),
        ("accuracy=98", "a fraction between 0 and 1"),
        ("cer=nan", "a fraction between 0 and 1"),
        ("loss=inf", "a finite number"),
    ],
)
def test_a_target_no_run_could_mean_is_refused(text, must):
    with pytest.raises(UsageError, match=f"must be {must}"):
        parse_target(text)


def test_targets_of_all_runs_once_in_order():
    merged = merged_targets([[("wer", 0.2), ("cer", 0.07)], [("cer", 0.1), ("cer", 0.07)]])
    assert merged == [("cer", 0.1), ("cer", 0.07), ("wer", 0.2)]
    easiest_first = [("accuracy", 0.9), ("accuracy", 0.95)]
    assert merged_targets([easiest_first[::-1]]) == easiest_first


def test_people_read_percent():
    assert target_label("wer", 0.202) == "WER 20.2 %"
    assert target_label("loss", 3.5) == "loss 3.5"
    assert target_label("accuracy", 0.9) == "accuracy 90 %"
