import csv
import io
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.conftest import ledger_of
from tfasr.commands.report import report
from tfasr.display.table import (
    Records,
    Table,
    file_names,
    latex_text,
    table_to_csv,
    table_to_latex,
    to_csv,
    to_latex,
)

AWKWARD = ["under_score", "100 %", "a & b", "#1", "$x^2$", r"c:\new{}", "~tilde", "名前", "[1]"]
COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)


def check_latex(text):
    """A strict reading: every brace closed, every environment too, nothing special unescaped.

    Returns the number of cells of each row of the tabular.
    """
    depth, environments = 0, []
    for name, what in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if name == "begin":
            environments.append(what)
        else:
            assert environments.pop() == what
    assert environments == []
    body = "\n".join(line for line in text.split("\n") if not line.startswith("% "))
    for character in COMMAND.sub(lambda m: "" if len(m[0]) == 2 and m[0][1] in "{}" else "x", body):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    # A label may hold what text may not, and mathematics stands between its signs.
    plain = re.sub(r"\\label\{[^}]*\}", "", body)
    plain = COMMAND.sub("", plain).replace("$-$", "").replace("$$", "")
    assert not set(plain) & set("#$%^_|<>")
    (inside,) = re.findall(r"\\toprule\n(.*)\\bottomrule", body, re.DOTALL)
    rows = [row for row in inside.split("\n") if row and row != r"\midrule"]
    assert all(row.endswith(r" \\") for row in rows)
    return [len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=4))
def test_latex_holds_any_text(rows):
    table = Table("t", ["Run", "two\nlines", "%"], rows, ["".join(row) for row in rows])
    cells = check_latex(table_to_latex(table, "t"))
    assert cells == [3] * (len(rows) + 1)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a_b & 5 %", r"a\_b \& 5 \%"),
        ("$1 #2 {x}", r"\$1 \#2 \{x\}"),
        ("^~\\", r"\textasciicircum{}\textasciitilde{}\textbackslash{}"),
        ("> 0.5", r"\textgreater{} 0.5"),
        ("0.39–0.44", "0.39--0.44"),
        ("×1.20…", r"$\times$1.20\dots{}"),
        ("two\nlines\ttab", "two lines tab"),
        ("Ümläut 名", "Ümläut 名"),
    ],
)
def test_what_latex_writes(text, written):
    assert latex_text(text) == written


def test_a_cell_that_begins_with_a_bracket_is_no_argument_of_the_row_above():
    written = table_to_latex(Table("t", ["Run"], [["a"], ["[b]"], ["*c"]]), "t")
    assert "{[b]} \\\\" in written
    assert "{*c} \\\\" in written


@pytest.mark.parametrize("name", AWKWARD)
def test_runs_of_any_name_make_tables(name, tmp_path, large):
    run_dir = ledger_of([0.5, 0.1, 0.1]).write(tmp_path / name)
    text = report([run_dir, large], output_format="latex")
    assert r"\usepackage{booktabs}" in text.split("\n")[0]
    for table in re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.DOTALL):
        assert len(set(check_latex(table))) == 1
    parsed = read_blocks(report([run_dir, large], output_format="csv"))
    assert [row["run"] for row in parsed["steady_throughput"]] == [name, "large"]


def read_blocks(text):
    """What the CSV of a whole report holds: rows by the name of their table."""
    found = {}
    for block in text.split("\n\n"):
        title, _, content = block.partition("\n")
        name = re.match(r"# ([a-z0-9_.-]+): .", title)[1]
        found[name] = list(csv.DictReader(io.StringIO(content)))
    return found


def test_csv_holds_seconds_and_fractions_unrounded(small, large):
    found = read_blocks(report([small, large], output_format="csv", targets=["cer=.1", "wer=.05"]))
    first, second, *_, never = found["time_to_accuracy"]
    assert (first["run"], first["metric"], float(first["target"])) == ("small", "cer", 0.1)
    assert float(first["time_to_accuracy_s"]) == 8.0
    assert (float(first["last_miss_s"]), float(first["first_hit_s"])) == (6.0, 8.0)
    assert float(second["relative_to_first"]) == 1.5
    # Never is an empty cell, and so is all that follows from it.
    assert [never[key] for key in ("time_to_accuracy_s", "epoch", "relative_to_first")] == [""] * 3
    assert float(never["last_miss_s"]) == 12.0
    (small_time, _) = found["where_the_time_went"]
    parts = [float(small_time[key]) for key in small_time if key.endswith("_s")][3:]
    assert math.fsum(parts) == float(small_time["wall_s"]) == 8.0
    (why,) = found["why_cer_0.1"]
    factors = [float(value) for key, value in why.items() if key.startswith("factor_")]
    assert math.prod(factors) == pytest.approx(float(why["ratio"]))
    policies = found["policies_cer_0.1"]
    assert float(policies[0]["paper_s"]) == 8.0
    assert float(policies[0]["algoperf_s"]) == 4.0


def test_every_table_is_a_file_of_its_own(small, large, tmp_path):
    report([small, large], out=tmp_path / "out", policy="paper")
    names = {path.stem for path in (tmp_path / "out").glob("*.csv")}
    assert {"time_to_accuracy", "where_the_time_went", "steady_throughput", "epochs"} <= names
    assert names == {path.stem for path in (tmp_path / "out").glob("*.tex")}
    for name in names:
        rows = list(csv.reader(io.StringIO((tmp_path / "out" / f"{name}.csv").read_text())))
        assert len({len(row) for row in rows}) == 1
        tex = (tmp_path / "out" / f"{name}.tex").read_text()
        assert rf"\label{{tab:{name}}}" in tex
        check_latex(tex)


def test_cells_of_records():
    records = Records(["a", "b"], [[None, math.inf], [True, 1], ["x,y", 0.1], ['"', math.nan]])
    written = table_to_csv(Table("t", ["A"], [], records=records))
    assert written == 'a,b\n,\ntrue,1\n"x,y",0.1\n"""",\n'


def test_a_table_without_records_gives_its_text():
    table = Table("Some Title", ["Run", "wall\nmin"], [["a, b", "1.50"]])
    assert to_csv([table]) == '# some_title: Some Title\nRun,wall min\n"a, b",1.50\n'
    assert to_latex([table, table]).count(r"\label{tab:some_title") == 2


def test_file_names_are_distinct_and_plain():
    assert file_names(["A b%", "a b", "", "名", "x" * 200]) == [
        "a_b", "a_b-2", "table", "table-2", "x" * 80,
    ]  # fmt: skip
