"""Published results beside one's own: quoted as they stand, and never ranked against them."""

import json

import pytest

from tests.reports.conftest import COMPARABLE, ledger_of
from tfasr.errors import UsageError
from tfasr.reports.write import report
from tfasr.tta.published.results import SOURCES, published


@pytest.mark.parametrize("name", SOURCES)
def test_every_share_that_contradicts_its_minutes_says_so(name):
    for table in published(name).tables.values():
        if table.kind != "time_to_accuracy":
            continue
        first = {}
        for row in table.rows:
            base = first.setdefault((row["metric"], row["target"]), row["seconds"])
            printed = row.get("printed_relative")
            if printed is None or row["seconds"] is None:
                continue
            right = abs(row["seconds"] / base - printed) < 0.0051
            assert right == ("note" not in row), row


def test_the_papers_figures():
    tables = published("paper").tables
    assert [row["total_usd"] for row in tables["Table 1"].rows] == [2605.29, 5699.95, 25999.00]
    assert [row["evaluation_s"] for row in tables["Table 3"].rows] == [
        154, 187, 266, 443, 849, 1860, 4200,
    ]  # fmt: skip
    never = [(r["system"], r["target"]) for r in tables["Table 4"].rows if r["seconds"] is None]
    assert never == [("Sys10$", 0.07), ("Sys10$", 0.192)]
    assert len(tables["Table 4"].rows) == len(tables["Table 6"].rows) == 18
    noted = [r["note"] for r in tables["Table 4"].rows if "note" in r]
    assert noted[0] == "1118 of 1641 minutes are 68 %; the paper prints 62 %."
    with pytest.raises(UsageError, match="of paper, mlperf.*Received: 'nobody'"):
        published("nobody")


def test_own_runs_stand_first_and_are_ranked_among_themselves_alone(small, large, tmp_path):
    unlike = ledger_of([0.1] * 3, comparability=COMPARABLE | {"beam_width": 9})
    unlike.write(tmp_path / "unlike")
    text = report([small, large, tmp_path / "unlike"], beside="paper", out=tmp_path / "out")
    table = text[text.index("Time to accuracy at each system's own") :]
    table = table[: table.index("beside Table 5")]
    lines = [line.split() for line in table.splitlines() if line.startswith(" ")]
    times = {line[0]: line for line in lines}
    assert times["small"][1:3] == ["0.133", "(100"]
    assert times["large"][1:3] == ["0.2", "(150"]
    assert times["unlike"][1:3] == ["0.133", "(refused)"]
    # The published share is of the published first row.
    assert times["Sys2$"][1:4] == ["(published)", "672", "(82"]
    assert "(62 %*)" in table
    assert "are not ranked against them" in " ".join(table.split())
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Sys10$ (published)" in page
    records = (tmp_path / "out" / "beside_table_4.csv").read_text().splitlines()
    assert records[0].startswith("run,published,cer_0.1_s")
    assert any(line.startswith("Sys1$,") and "49200" in line for line in records)


def test_prices_and_speeds_of_other_sources(small):
    assert "16.7" in report([small], beside="mlperf")
    assert "601" in report([small], beside="algoperf")
    deepmark = report([small], beside="deepmark")
    assert "4 x Titan X (published)" in deepmark
    assert " 180 " in deepmark
    assert "4013" in deepmark  # seconds, as they were published


def test_json_stays_what_it_was(small):
    assert json.loads(report([small], output_format="json", beside="paper")) == json.loads(
        report([small], output_format="json")
    )
