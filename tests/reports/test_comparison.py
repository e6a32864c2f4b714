from tfasr.reports.numbers import difference_text, differences


def test_equal_runs_do_not_differ():
    assert differences({"a": [1, 2]}, {"a": [1, 2]}) == {}
    assert differences(None, None) == {}


def test_what_differs_is_named_with_both_values():
    found = differences({"beam_width": 8, "split": "x"}, {"beam_width": 256, "lexicon": None})
    assert found == {
        "beam_width": ("8", "256"),
        "split": ('"x"', "not stated"),
        "lexicon": ("not stated", "null"),
    }
    assert difference_text({"beam_width": ("8", "256")}) == "beam_width (8, here 256)"


def test_a_run_that_states_nothing_is_not_comparable_with_one_that_does():
    assert differences(None, {"a": 1}) == {"comparability": ("not stated", "stated")}
    assert differences({"a": 1}, None) == {"comparability": ("stated", "not stated")}


def test_a_long_value_is_shortened():
    (first, _) = differences({"text": "x" * 500}, {"text": "y"})["text"]
    assert len(first) == 60
