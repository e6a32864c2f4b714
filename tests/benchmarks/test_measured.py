"""docs/measured.md: every figure is current, or the newest one and marked."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import measured  # noqa: E402


def test_the_pages_are_those_of_the_present_code():
    """Run `python benchmarks/measured.py --page` after a change of code that was measured."""
    rows = measured.read_results()

    assert measured.PAGE.read_text() == measured.page(rows)
    assert measured.EARLIER.read_text() == measured.earlier_page(rows)


def row_of(name, processor, figure, code):
    return {
        "name": name,
        "processor": processor,
        "figure": figure,
        "date": "2026-11-28",
        "commit": "abc",
        "code": code,
    }


def test_stale_figures_leave_the_page_once_there_is_a_current_one(monkeypatch):
    figures = {
        name: measured.Figure(name, (), lambda printed, work: "", (), 1)
        for name in ("step", "search")
    }
    monkeypatch.setattr(measured, "FIGURES", figures)
    now = measured.code_hash(())
    rows = [
        row_of("step", "mine", "1.0 s", now),
        row_of("step", "mine", "2.0 s", "before"),
        row_of("step", "theirs", "3.0 s", "before"),
        row_of("search", "theirs", "4.0 s", "before"),
        row_of("search", "mine", "5.0 s", "long before"),
    ]

    page = measured.page(rows)
    earlier = measured.earlier_page(rows)

    assert [f"{n}.0 s" in page for n in range(1, 6)] == [1, 0, 0, 1, 0]
    assert [f"{n}.0 s" in earlier for n in range(1, 6)] == [0, 1, 1, 0, 1]

    marked = [line for line in page.splitlines() if "abc \u2020" in line]
    assert len(marked) == 1 and "4.0 s" in marked[0]


def test_changed_code_makes_its_figures_stale_and_prose_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "ROOT", tmp_path)
    figure = measured.Figure(
        "a figure", (), lambda printed, work: "", ("module.py",), 1
    )
    monkeypatch.setitem(measured.FIGURES, "made", figure)
    module = tmp_path / "module.py"
    module.write_text(
        '"""Adds."""\n\ndef add(a, b):\n    """Returns a sum."""\n    return a + b\n'
    )
    row = {"name": "made", "code": measured.code_hash(figure.code)}

    module.write_text('def add(\n    a, b\n):  # a "sum"\n    """Ä."""\n    return a + b\n'.replace(
        "(\n    a, b\n)", "(a,\n b)"))  # fmt: skip

    assert not measured.is_stale(row)

    module.write_text("def add(a, b):\n    return b + a\n")
    assert measured.is_stale(row)


@pytest.mark.parametrize(
    ("suffix", "mark"), [("cpp", "//"), ("inc", "//"), ("gin", "#")]
)
def test_comments_of_other_languages_are_prose_too(tmp_path, monkeypatch, suffix, mark):
    monkeypatch.setattr(measured, "ROOT", tmp_path)
    path = tmp_path / f"code.{suffix}"
    path.write_text(f'a = 1  {mark} it\'s "one\nb = "{mark} two"\n')
    before = measured.code_hash([path.name])

    path.write_text(f'a = 1\nb = "{mark} two"  {mark} another\n')

    assert measured.code_hash([path.name]) == before

    path.write_text(f'a = 1\nb = "{mark} three"\n')
    assert measured.code_hash([path.name]) != before


def test_a_figure_is_measured_once(tmp_path, monkeypatch, capsys):
    results = tmp_path / "measured.json"
    page = tmp_path / "measured.md"
    monkeypatch.setattr(measured, "RESULTS", results)
    monkeypatch.setattr(measured, "PAGE", page)
    monkeypatch.setattr(measured, "EARLIER", tmp_path / "earlier.md")
    command = "{python} -c \"print('41 of 42')\""
    figure = measured.Figure(
        "made up", (command,), lambda out, work: out.strip(), ("Makefile",), 1
    )
    monkeypatch.setattr(measured, "FIGURES", {"made": figure})
    arguments = [
        "measured.py",
        "--corpora",
        str(tmp_path),
        "--work",
        str(tmp_path / "work"),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    measured.main()

    (row,) = json.loads(results.read_text())

    assert row["figure"] == "41 of 42" and re.fullmatch("[0-9a-f]{7,}", row["commit"])
    assert (
        "made up" in page.read_text()
        and "\u2020" not in page.read_text().partition("## ")[2]
    )

    measured.main()
    assert "skipped" in capsys.readouterr().out


def test_a_failing_command_keeps_the_figures_before(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "FIGURES", {
        "broken": measured.Figure("it", ("{python} -c 1/0",), lambda out, work: out, (), 1)
    })  # fmt: skip

    with pytest.raises(SystemExit, match="broken"):
        measured.measure("broken", tmp_path, tmp_path)


def test_an_interrupted_row_goes_on_and_a_repeated_one_begins_anew(
    tmp_path, monkeypatch
):
    trainer = tmp_path / "trainer.py"
    trainer.write_text(
        "import pathlib, sys\n"
        "run = pathlib.Path(sys.argv[3])\n"
        "run.mkdir(exist_ok=True)\n"
        "(run / 'experiment.json').touch()\n"
        "print('resumed' if '--resume' in sys.argv else 'begun')\n"
    )
    command = f"{{python}} {trainer} train --run_dir {{work}}/run"
    figure = measured.Figure(
        "a figure", (command,), lambda printed, work: printed, (), 1
    )
    monkeypatch.setitem(measured.FIGURES, "made", figure)

    rows = [
        measured.measure("made", tmp_path, tmp_path, again=again) for again in (0, 0, 1)
    ]

    assert [row["figure"].strip() for row in rows] == ["begun", "resumed", "begun"]


@pytest.mark.parametrize(
    ("parts", "measured_at", "mark"),
    [
        ([0.05], 1, ""),
        ([0.4, 0.02], 2, ""),
        ([0.4, 0.3], 2, "*disturbed: the machine took 30 %*"),
    ],
)
def test_a_disturbed_figure_is_measured_once_more_and_then_marked(
    monkeypatch, tmp_path, parts, measured_at, mark
):
    about = {
        "name": "made",
        "figure": "1 s",
        "processor": "one",
        "date": "today",
        "commit": "abc",
    }
    coming = iter(parts)
    calls = []

    def measure(name, corpora, work, *, again):
        calls.append(again)
        return about | {"taken": next(coming), "code": measured.code_hash(())}

    monkeypatch.setattr(measured, "measure", measure)
    figure = measured.Figure("a figure", (), lambda printed, work: "", (), 1)
    monkeypatch.setattr(measured, "FIGURES", {"made": figure})

    row = measured.measured_quietly("made", tmp_path, tmp_path, again=False)

    assert calls == [False, True][:measured_at]
    assert row["taken"] == parts[-1]

    text = measured.page([row])

    assert mark in text
    assert ("disturbed" in text) == bool(mark)
