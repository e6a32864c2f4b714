import math

import pytest

from tfasr.errors import UsageError
from tfasr.tta.metrics import METRICS, Metric, check_target, declare


def test_lower_is_better_unless_it_is_said():
    error, accuracy = Metric(), Metric("higher")
    assert (error.better, error.rate, error.label) == ("lower", False, "")
    assert [error.met(value, 0.5) for value in (0.4, 0.5, 0.6)] == [True, True, False]
    assert [accuracy.met(value, 0.5) for value in (0.4, 0.5, 0.6)] == [False, True, True]
    assert (error.worst, accuracy.worst) == (math.inf, -math.inf)
    assert error.best([0.3, math.nan, 0.2]) == 0.2
    assert accuracy.best([0.3, math.nan, 0.2]) == 0.3
    assert error.best([]) is accuracy.best([math.nan]) is None
    assert error.hardness(0.1) > error.hardness(0.2)
    assert accuracy.hardness(0.2) > accuracy.hardness(0.1)


def test_error_rates_and_accuracies_are_fractions_and_losses_are_not():
    assert {name for name in METRICS if METRICS[name].rate} >= {
        "cer", "wer", "cer_reference", "top1_error", "top5_error", "f1_error", "accuracy",
    }  # fmt: skip
    assert not METRICS["loss"].rate
    assert not METRICS["perplexity"].rate
    assert METRICS["accuracy"].better == "higher"


@pytest.mark.parametrize("wrong", [{"better": "more"}, {"rate": 1}, {"label": 3}, {"rate": None}])
def test_a_metric_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError, match="A metric must"):
        Metric(**wrong)


def test_only_metrics_are_registered():
    with pytest.raises((TypeError, UsageError), match=r"must be a tfasr\.tta\.metrics\.Metric"):
        METRICS.register("no_metric", "lower")


def test_a_fraction_may_be_all_or_nothing():
    assert [check_target("cer", value) for value in (0, 1)] == [("cer", 0), ("cer", 1)]
    for value in (-0.01, 1.01, math.nan, math.inf, True, "0.1"):
        with pytest.raises(UsageError, match="fraction"):
            check_target("cer", value)
    assert check_target("loss", 3.5) == ("loss", 3.5)
    for value in (math.nan, -math.inf):
        with pytest.raises(UsageError):
            check_target("loss", value)


def test_a_name_with_two_meanings_is_refused_with_both():
    declare({"of_this_test": {"rate": False, "better": "higher"}}, "one/run")
    with pytest.raises(
        UsageError, match="as a fraction that is better higher, one/run as a number"
    ):
        declare({"of_this_test": {"rate": True, "better": "higher"}}, "another/run")
