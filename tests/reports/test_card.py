"""The training-time card: its schema, and the same values in both formats."""

import json
from pathlib import Path

import pytest

from tests.studies.races import RECORDS, unpack
from tests.tta.test_host import Machine
from tfasr.reports.write import report

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "card.schema.json").read_text()
)


def valid(text):
    """The card as read from JSON that the published schema allows."""
    card = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(card)
    return card


@pytest.fixture
def study(tmp_path):
    """A recorded study of two groups of two seeds."""
    return unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")


@pytest.fixture
def disturbed(small):
    """A run that got three quarters of the processors that it wanted."""
    machine = Machine()
    for _ in range(20):
        machine.second(ran_s=1.5, busy_s=2.0, waited_s=0.5)

    machine.write(small)
    return small


def test_a_studys_card_has_seeds_rates_and_times_by_policy(study):
    card = valid(report([study], targets=["cer=0.5"], output_format="card_json"))
    seeds = {
        group["name"]: [run["seed"] for run in group["runs"]]
        for group in card["groups"]
    }

    assert seeds == {"two": [1, 2], "four": [1, 2]}

    run = card["groups"][0]["runs"][0]
    low, high = run["error_rates"]["cer"]["interval"]

    assert low <= run["error_rates"]["cer"]["value"] <= high
    assert set(run["targets"][0]["seconds"]) == {
        "paper",
        "mlperf",
        "algoperf",
        "dawnbench",
    }


def test_a_studys_card_in_markdown_counts_its_runs(study):
    text = report([study], targets=["cer=0.5"], output_format="card")

    assert "| runs, seeds | 2: 1, 2 |" in text
    assert "seconds to CER 50 %, mlperf" in text
    assert "declared 4, found 4." in text


def test_a_run_without_hypotheses_price_or_machine_has_a_card_too(small, tmp_path):
    out = tmp_path / "report"
    card = valid(report([small], out=out, output_format="card_json"))
    # The ledger's rate; without hypotheses there is no interval.
    rates = card["groups"][0]["runs"][0]["error_rates"]

    assert rates["cer"] == {"value": 0.1, "interval": None}
    assert card["groups"][0]["runs"][0]["targets"][0]["seconds"]["paper"] == 8.0
    assert valid((out / "card.json").read_text()) == card
    assert (
        "| of the processors that steps wanted, % | NA |"
        in (out / "card.md").read_text()
    )
    assert (
        "| best CER % of each run, 95 % interval | 10.0 |"
        in (out / "card.md").read_text()
    )


def test_the_card_of_a_run_with_a_price_states_dollars(small):
    priced = valid(report([small], price_usd_per_hour=3600, output_format="card_json"))
    assert priced["groups"][0]["runs"][0]["targets"][0]["usd"] == pytest.approx(8.0)


def test_a_card_states_what_the_machine_gave(disturbed):
    card = valid(report([disturbed], output_format="card_json"))
    run = card["groups"][0]["runs"][0]

    assert run["machine_share"] == pytest.approx(0.75)
    assert run["undisturbed_steps_s"] == pytest.approx(4.5)  # of 6 s


def test_a_card_in_markdown_states_what_the_machine_gave(disturbed):
    text = report([disturbed], output_format="card")
    assert "| of the processors that steps wanted, % | 75 |" in text
