import csv
import importlib.util
import io
import math
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfasr
from tests.reports.conftest import COMPARABLE, ledger_of
from tests.reports.test_page import Checked
from tests.reports.test_report import seeds
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
from tfasr.errors import UsageError
from tfasr.ledger.intervals import INTERVALS


@pytest.fixture
def grouped(tmp_path):
    """Four seeds each; the large ones take four times as long a step."""
    seeds(tmp_path / "small", "run", 1.0, count=4)
    seeds(tmp_path / "large", "run", 4.0, count=4)
    return tfasr.compare([tmp_path / "small", tmp_path / "large"])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "name", ["report.html", "report.json", "evaluation.csv", "cer.png"]
)
def test_a_report_overwrites_no_files_of_others(small, tmp_path, name):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / name).write_text('["mine"]')

    before = contents(out)

    with pytest.raises(UsageError, match=name):
        report([small], out=out)
    assert contents(out) == before


def test_a_report_overwrites_its_own_files_and_no_other(small, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")

    report([small], out=out)
    report([small], out=out)

    assert contents(out)["notes.txt"] == b"mine"
    assert {"report.html", "report.json", "evaluation.csv", "cer.png"} <= set(
        contents(out)
    )


def test_a_report_overwrites_what_a_killed_one_left(small, tmp_path):
    out = tmp_path / "out"
    report([small], out=out)
    for name in set(contents(out)) - {"report.json"}:
        (out / name).unlink()

    (out / "cer.png").write_text("half")
    report([small], out=out)

    assert "report.html" in contents(out)


def test_groups_are_named_by_folder_and_configuration(grouped):
    assert list(grouped.groups) == ["small/run", "large/run"]
    assert grouped.groups["small/run"] == [f"small/run-seed{seed}" for seed in range(4)]
    assert grouped.targets == [("cer", 0.1)]


def test_a_groups_result_has_its_times_and_what_makes_the_ratio(grouped):
    small = grouped.result("small/run", cer=0.1)
    large = grouped.result("large/run", cer=0.1)

    assert small.statistics.median_s == pytest.approx(8.09)
    assert small.brackets[0].last_miss_s == pytest.approx(4.0)
    assert small.brackets[0].rule_s == pytest.approx(8.0)
    assert large.comparison.ratio_by_rule == pytest.approx(26.36 / 8.09, rel=0.01)
    assert math.prod(large.decomposition.factors.values()) == pytest.approx(
        large.decomposition.ratio
    )


def test_an_unknown_group_or_target_is_refused(grouped):
    with pytest.raises(ValueError, match="one of the groups.*'tiny'"):
        grouped.result("tiny", cer=0.1)
    with pytest.raises(ValueError, match="one of the targets"):
        grouped.result("small/run", cer=0.2)


def test_the_finding_names_the_faster_the_interval_and_the_reason(grouped):
    (finding,) = grouped.findings

    assert finding.startswith(
        "CER 10 %: small/run is faster: large/run takes 2.75 times as long"
    )
    assert "95 % interval" in finding
    assert "n = 4 and 4" in finding
    assert "large/run has 0.25 times the steady throughput" in finding


def test_against_the_reason_stands_what_speaks_against_it(tmp_path):
    # Four times the epochs of half the length: slower by statistics, faster by
    # hardware.
    slow = ledger_of([0.5] * 10 + [0.1] * 4, train_s=0.5).write(tmp_path / "slow")
    quick = ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "quick")

    (finding,) = tfasr.compare([quick, slow]).findings

    assert tfasr.compare(quick, slow).findings == [finding]
    assert "too few runs for an interval or a test (n = 1 and 1)" in finding
    assert finding.endswith(
        "The reason: slow needs 4.00 times the utterances, but has 2.00 times the steady "
        "throughput."
    )


def test_runs_that_never_arrive_and_runs_that_do_not_compare(tmp_path, small):
    never = ledger_of([0.5] * 4).write(tmp_path / "never")
    unlike = ledger_of([0.5, 0.1, 0.1], comparability=COMPARABLE | {"beam_width": 9})
    unlike = unlike.write(tmp_path / "unlike")

    first, second = tfasr.compare([small, never, unlike]).findings

    assert first == (
        "CER 10 %: 1 of 1 runs of small reached it, median 0.133 min, 0 of 1 runs of never reached "
        "it; too few runs for an interval or a test (n = 1 and 1); seeds alone make such a time "
        "vary by 3 to 20 % (CV in published logs)."
    )
    assert second == (
        "CER 10 %: the comparison of unlike with small is refused: they differ in "
        "beam_width (8, here 9)."
    )


def test_runs_that_do_not_compare_are_compared_by_force(tmp_path, small):
    unlike = ledger_of([0.5, 0.1, 0.1], comparability=COMPARABLE | {"beam_width": 9})
    unlike = unlike.write(tmp_path / "unlike")

    (forced,) = tfasr.compare([small, unlike], force=True).findings
    assert "1.00 times as long" in forced


def test_where_one_of_a_group_never_arrives_there_is_no_interval(tmp_path):
    for seed in range(3):
        ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "quick" / f"seed_{seed}")
        cers = [0.5] * 5 + [0.1 if seed else 0.5] * 3
        ledger_of(cers).write(tmp_path / "slow" / f"seed_{seed}")

    (finding,) = tfasr.compare([tmp_path / "quick", tmp_path / "slow"]).findings
    assert finding == (
        "CER 10 %: slow takes 2.65 times as long as quick; too few runs for an interval or a test "
        "(n = 3 and 3). In detail: of the times at which the rule was met, the ratio is 2.00. By "
        "the geometric means of the 3 and 2 runs that reached it, slow needs 2.33 times the "
        "utterances."
    )


def test_an_interval_that_includes_1_decides_nothing(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.001)):
        for number, length in enumerate((1.0, 2.0, 3.0, 4.0)):
            run_dir = ledger_of([0.5, 0.1, 0.1], train_s=factor * length)
            run_dir.write(tmp_path / name / f"seed{number}")

    (finding,) = tfasr.compare([tmp_path / "a", tmp_path / "b"]).findings
    assert finding.startswith("CER 10 %: undecided: b")


def test_runs_come_as_paths_or_loaded_and_targets_as_text_or_pairs(small, large):
    loaded = [tfasr.load_run(small), large]
    comparison = tfasr.compare(
        loaded, targets=["wer=0.2", ("cer", 0.5)], policy="mlperf", window=2
    )

    assert comparison.targets == [("wer", 0.2), ("cer", 0.5)]
    assert list(comparison.groups) == ["small", "large"]
    assert comparison.report.policy.name == "mlperf"
    assert comparison.report.window == 2
    assert list(tfasr.compare(small).groups) == ["small"]
    # A run's own targets, also of one that is loaded already.
    assert tfasr.compare([tfasr.load_run(small)]).targets == [("cer", 0.1)]


@pytest.mark.parametrize(
    ("runs", "options", "error", "message"),
    [
        ([], {}, UsageError, "at least one run"),
        (["/nowhere"], {}, UsageError, "does not exist"),
        (["small"], {"targets": ["cer<0.1"]}, UsageError, "like cer=0.10"),
        (["small"], {"policy": "fast"}, ValueError, "'fast'"),
        (["small"], {"window": 0}, ValueError, "window"),
    ],
)
def test_wrong_use_is_refused_with_what_must_hold(runs, options, error, message, small):
    with pytest.raises(error, match=message):
        tfasr.compare([small if run == "small" else run for run in runs], **options)


def test_runs_from_python_are_grouped_by_their_experiment(tmp_path):
    for seed in (1, 2):
        run_dir = ledger_of([0.1] * 3).write(tmp_path / f"run_{seed}")
        (run_dir / "experiment.json").write_text(
            f'{{\n "epochs": 3,\n  "seed": {seed},\n "x": 1\n}}'
        )

    other = ledger_of([0.1] * 3).write(tmp_path / "other")
    (other / "experiment.json").write_text('{\n "epochs": 4,\n  "seed": 1,\n "x": 1\n}')

    comparison = tfasr.compare([tmp_path / "run_1", tmp_path / "run_2", other])

    assert {group: len(runs) for group, runs in comparison.groups.items()} == {
        "run": 2,
        "other": 1,
    }


needs_pandas = pytest.mark.skipif(
    importlib.util.find_spec("pandas") is None, reason="needs the notebook extra"
)


@needs_pandas
def test_a_data_frame_has_a_row_for_each_run(grouped):
    frame = grouped.to_dataframe()

    assert len(frame) == 8
    assert frame.groupby("group")[
        "time_to_accuracy_s"
    ].median().to_dict() == pytest.approx({"small/run": 8.09, "large/run": 26.36})
    assert (frame["wall_s"] - frame[[f"{name}_s" for name in INTERVALS]].sum(axis=1)
            ).abs().max() < 1e-5  # fmt: skip


@needs_pandas
def test_a_data_frame_of_groups_has_their_ratios(grouped):
    groups = grouped.groups_to_dataframe()

    assert list(groups["n"]) == [4, 4]
    assert (
        groups["ratio_95_low"][1]
        < groups["ratio_to_first"][1]
        < groups["ratio_95_high"][1]
    )


@needs_pandas
def test_a_run_without_targets_is_a_row_too(tmp_path):
    untargeted = ledger_of([0.5], targets=None).write(tmp_path / "untargeted")
    assert list(tfasr.compare(untargeted).to_dataframe()["run"]) == ["untargeted"]


def test_a_notebook_shows_findings_and_the_rule(grouped):
    html = grouped._repr_html_()
    checked = Checked(html)

    assert "Findings" in checked.texts
    assert "small/run is faster" in html
    # A table's cells would be aligned to the right, and "never" needs its rule.
    assert '<ul style="text-align:left"><li>' in html
    assert "the median of the last" in html
    assert checked.references == []


def test_a_comparison_is_shown_as_text_and_markdown_too(grouped):
    assert "small/run is faster" in repr(grouped)
    assert "## Time to accuracy" in grouped._repr_markdown_()


def test_a_notebook_shows_names_of_folders_as_they_are(tmp_path):
    run_dir = ledger_of([0.1] * 3).write(tmp_path / "<b>&")
    shown = tfasr.compare(run_dir)._repr_html_()

    assert "<b>&" in Checked(shown).texts


def test_comparisons_and_runs_draw_themselves(small, large):
    comparison = tfasr.compare([small, large])
    run = tfasr.load_run(small)

    for drawing in (comparison.plot(), run.plot(), run.plot("wer")):
        assert drawing._repr_png_().startswith(b"\x89PNG")


def test_a_drawing_is_saved_in_the_format_of_its_files_ending(small, large, tmp_path):
    comparison = tfasr.compare([small, large])
    run = tfasr.load_run(small)

    comparison.plot().save(tmp_path / "cer.svg")
    run.plot().save(tmp_path / "cer.png")

    drawn = (tmp_path / "cer.svg").read_text()

    assert drawn.count(">small<") == drawn.count(">large<") == 1
    assert (tmp_path / "cer.png").read_bytes().startswith(b"\x89PNG")


def test_a_metric_that_was_not_evaluated_is_not_drawn(small, large):
    comparison = tfasr.compare([small, large])
    run = tfasr.load_run(small)

    for whole in (comparison, run):
        with pytest.raises(tfasr.UsageError, match="'bleu'.*Evaluated: cer"):
            whole.plot("bleu")


def test_no_tensorflow_and_no_pandas_are_loaded(small, large):
    script = (
        "import sys, tfasr\n"
        f"found = tfasr.compare([{str(small)!r}, {str(large)!r}])\n"
        "found.findings, found._repr_html_(), repr(found)\n"
        "assert not {'tensorflow', 'pandas'} & set(sys.modules)\n"
        "sys.modules['pandas'] = None\n"
        "try:\n    found.to_dataframe()\n"
        "except tfasr.UsageError as error:\n    print(error)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "pip install 'tfasr[notebook]'" in finished.stdout


def test_in_a_notebook_text_is_returned_and_not_shown(small, monkeypatch):
    # What rich asks to find out where it runs.
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    assert "Time to accuracy" in repr(tfasr.compare(small))


AWKWARD = [
    "under_score",
    "100 %",
    "a & b",
    "#1",
    "$x^2$",
    r"c:\new{}",
    "~tilde",
    "名前",
    "[1]",
]
COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)


def check_latex(text):
    """A strict reading: every brace closed, every environment too, nothing special unescaped.

    Returns the number of cells of each row of the tabular.
    """
    depth = 0
    environments = []
    for name, what in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if name == "begin":
            environments.append(what)
        else:
            assert environments.pop() == what

    assert environments == []
    body = "\n".join(line for line in text.split("\n") if not line.startswith("% "))
    for character in COMMAND.sub(
        lambda m: "" if len(m[0]) == 2 and m[0][1] in "{}" else "x", body
    ):
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
def test_latex_writes_special_characters_as_commands(text, written):
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
    result = {}
    for block in text.split("\n\n"):
        title, _, content = block.partition("\n")
        name = re.match(r"# ([a-z0-9_.-]+): .", title)[1]
        result[name] = list(csv.DictReader(io.StringIO(content)))

    return result


@pytest.fixture
def csv_blocks(small, large):
    """The tables of two runs as CSV, with one target that neither reaches."""
    targets = ["cer=.1", "wer=.05"]
    return read_blocks(report([small, large], output_format="csv", targets=targets))


def test_csv_holds_seconds_and_fractions_unrounded(csv_blocks):
    first, second, *_, never = csv_blocks["time_to_accuracy"]

    assert first["run"] == "small"
    assert first["metric"] == "cer"
    assert float(first["target"]) == 0.1
    assert float(first["time_to_accuracy_s"]) == 8.0
    assert (float(first["last_miss_s"]), float(first["first_hit_s"])) == (4.0, 6.0)
    assert float(second["relative_to_first"]) == 1.5
    # Never is an empty cell, and so is all that follows from it.
    assert [
        never[key] for key in ("time_to_accuracy_s", "epoch", "relative_to_first")
    ] == [""] * 3
    assert float(never["last_miss_s"]) == 10.0


def test_csv_holds_where_the_time_went(csv_blocks):
    (small_time, _) = csv_blocks["where_the_time_went"]
    parts = [float(small_time[key]) for key in small_time if key.endswith("_s")][3:]

    assert math.fsum(parts) == float(small_time["wall_s"]) == 8.0


def test_csv_holds_the_factors_of_a_ratio(csv_blocks):
    (why,) = csv_blocks["why_cer_0.1"]
    factors = [float(value) for key, value in why.items() if key.startswith("factor_")]

    assert math.prod(factors) == pytest.approx(float(why["ratio"]))


def test_csv_holds_the_times_by_policy(csv_blocks):
    policies = csv_blocks["policies_cer_0.1"]

    assert float(policies[0]["paper_s"]) == 8.0
    assert float(policies[0]["algoperf_s"]) == 4.0


def test_every_table_is_a_file_of_its_own(small, large, tmp_path):
    report([small, large], out=tmp_path / "out", policy="paper")
    names = {path.stem for path in (tmp_path / "out").glob("*.csv")}

    assert {
        "time_to_accuracy",
        "where_the_time_went",
        "steady_throughput",
        "epochs",
    } <= names
    assert names == {path.stem for path in (tmp_path / "out").glob("*.tex")}

    for name in names:
        rows = list(
            csv.reader(io.StringIO((tmp_path / "out" / f"{name}.csv").read_text()))
        )
        assert len({len(row) for row in rows}) == 1

        tex = (tmp_path / "out" / f"{name}.tex").read_text()

        assert rf"\label{{tab:{name}}}" in tex
        check_latex(tex)


def test_records_leave_the_cells_of_missing_numbers_empty():
    records = Records(
        ["a", "b"], [[None, math.inf], [True, 1], ["x,y", 0.1], ['"', math.nan]]
    )
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


def test_groups_that_cross_alike_are_not_ranked_by_how_often_they_are_evaluated(
    tmp_path,
):
    """One run of each pair is evaluated every 4 s, the other every 12 s; both cross at
    40 s.
    """
    for name, every_s in (("often", 4.0), ("rarely", 12.0)):
        for seed in range(5):
            crossing_s = 40 * (1 + 0.04 * (seed - 2))
            cers = [0.1 * crossing_s / (every_s * n) for n in range(1, 40)]
            run = ledger_of(cers, train_s=every_s / 2)
            run.write(tmp_path / name / f"seed{seed}")

    comparison = tfasr.compare([tmp_path / "often", tmp_path / "rarely"])
    often, rarely = (comparison.result(name, cer=0.1) for name in comparison.groups)
    compared = rarely.comparison

    assert compared.ratio_by_rule > 1.2
    assert compared.ratio == pytest.approx(1, abs=0.1)
    assert compared.sooner is None
    assert compared.interval[0] < 1 < compared.interval[1]

    (finding,) = comparison.findings

    assert "undecided" in finding
    assert (
        f"of the times at which the rule was met, the ratio is {compared.ratio_by_rule:.2f}"
        in finding
    )


def test_factors_of_another_clock_come_with_the_ratio_that_they_multiply_to(tmp_path):
    for name, train_s in (("a", 1.0), ("b", 3.0)):
        ledger_of([0.5, 0.1, 0.1], train_s=train_s).write(tmp_path / name)

    comparison = tfasr.compare([tmp_path / "a", tmp_path / "b"], policy="mlperf")
    (finding,) = comparison.findings

    result = comparison.result("b", cer=0.1)

    assert (
        result.comparison.ratio == result.comparison.ratio_by_rule == pytest.approx(3)
    )
    # 2 s of initialisation before run_start are no part of MLPerf's clock.
    assert result.decomposition.ratio == pytest.approx((2 + 12) / (2 + 4))
    assert "takes 3.00 times" in finding
    assert (
        "The reason: counted from the model's creation (ratio 2.33), b has 0.33"
        in finding
    )
