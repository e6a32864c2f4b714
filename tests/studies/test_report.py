"""The report on a study: of runs whose ledgers are written by hand."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.conftest import COMPARABLE, ledger_of
from tfasr.errors import RunError
from tfasr.studies.plan import load_plan, scores_path, widths_path
from tfasr.studies.progress import Lap, Running, time_left_s, time_text
from tfasr.studies.report import write_report

# The time that is left of a study.

seconds = st.floats(0, 1e6)
laps = st.lists(
    st.builds(Lap, st.sampled_from("ab"), st.sampled_from("xy"), seconds), max_size=6
)


def at_work(lap: Lap, elapsed_s: float, share: float = 0.0) -> Running:
    return Running(lap, began_s=time.monotonic() - elapsed_s, share=share)


def test_steps_take_what_steps_alike_took():
    done = [
        Lap("train", "slow", 100),
        Lap("train", "slow", 200),
        Lap("train", "fast", 10),
    ]
    waiting = [Lap("train", "fast"), Lap("train", "new"), Lap("score", "slow")]

    # The fast one 10 s, the new one the mean of all, of the score nothing is known.
    left, known = time_left_s(done, waiting)
    assert (left, known) == (pytest.approx(10 + 310 / 3), False)

    # The one at work has 30 of its 150 s behind it.
    left, known = time_left_s(done, [], [at_work(Lap("train", "slow"), 30, share=0.01)])
    assert (left, known) == (pytest.approx(120, abs=1), True)

    # It takes longer than any before: nothing is left of it, not less.
    assert time_left_s(done, [], [at_work(Lap("train", "fast"), 30)]) == (0, True)


def test_the_first_training_tells_from_its_own_progress():
    first = Lap("train", "a")
    waiting = [Lap("train", "b")]

    left, known = time_left_s([], waiting, [at_work(first, 20, share=0.25)])
    assert (left, known) == (pytest.approx(60 + 80, abs=1), True)

    assert time_left_s([], waiting, [at_work(first, 20)]) == (0, False)


@given(laps, laps, seconds, st.floats(0, 1), st.integers(1, 4))
def test_no_time_is_negative_and_waiting_adds_to_it(
    done, waiting, elapsed, share, hosts
):
    running = [at_work(Lap("a"), elapsed, share)]
    left, _ = time_left_s(done, waiting, running, hosts)
    more, _ = time_left_s(done, [*waiting, Lap("b")], running, hosts)
    assert 0 <= left <= more + 1e-3 * elapsed + 1


def test_times_as_people_say_them():
    assert [time_text(s) for s in (40, 150, 6000)] == ["40 s", "2 min", "1.7 h"]


TARGETS = (("cer", 0.10), ("cer", 0.08))
CERS = {"sys1": [0.5, 0.1, 0.07, 0.07, 0.06], "sys2": [0.3, 0.1, 0.1, 0.1, 0.07]}


@pytest.fixture(scope="module")
def plan():
    return load_plan("study/paper_small.gin")


@pytest.fixture
def folder(tmp_path, plan):
    for name in ("sys1", "sys2", "equal_sys1"):
        width = 64 if name.startswith("equal") else 256
        stated = COMPARABLE | {"beam_width": width}
        ledger = ledger_of(
            CERS[name.removeprefix("equal_")], targets=TARGETS, comparability=stated
        )
        ledger.write(tmp_path / "runs" / name)

    scores = [{"split": s, "decoder": "word_beam", "beam_width": 512, "wer": 0.125, "cer": 0.05}
              for s in ("validation", "test")]  # fmt: skip
    for run in (plan.runs[0], plan.runs[3]):
        path = scores_path(tmp_path, run)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"rows": scores}))

    widths = [
        {"beam_width": w, "evaluation_s": w / 8, "wer": 0.3, "cer": 0.1}
        for w in (64, 128)
    ]
    widths_path(tmp_path).parent.mkdir()
    widths_path(tmp_path).write_text(json.dumps({"rows": widths}))
    return tmp_path


def test_the_papers_tables_and_figures_stand_on_one_page(plan, folder):
    page = write_report(plan, folder)
    html = page.read_text()
    text = (page.parent / "report.txt").read_text()
    for number in ("1", "2", "3", "4", "5", "6"):
        assert f"Table {number} of the paper" in html
        assert f"Table {number} of the paper" in text
        for suffix in ("csv", "tex"):
            assert (page.parent / f"beside_table_{number}.{suffix}").exists()

    for figure in ("7a", "7b", "9", "10"):
        assert f"As Figure {figure} of the paper" in html
    assert html.count('id="tip"') == 1
    assert (page.parent / "own_batch_sizes_cer.png").stat().st_size > 1000
    # One's own first, by the study's labels, and published rows below.
    times = text[text.index("with Table 4") :]
    assert times.index("Sys1$-like, batch 8") < times.index("Sys1$ (published)")
    assert "Sys2$-like, batch 20" in times
    assert "refused" not in text
    final = text[text.index("with Table 5") :]
    assert "12.50" in final
    assert "17.32" in final
    widths = text[text.index("with Table 3") :]
    assert widths.split("64", 1)[1].split()[:3] == ["8", "30.00", "10.000"]
    assert "4200" in widths


def test_a_run_without_an_evaluation_is_left_out(plan, folder):
    ledger_of([]).write(folder / "runs" / "sys10")
    (folder / "runs" / "equal_sys2").mkdir()
    (folder / "runs" / "equal_sys2" / "events.jsonl").write_text("cut")
    values = json.loads((write_report(plan, folder).parent / "report.json").read_text())
    shown = {
        part: [run["run"] for run in runs] for part, runs in values["parts"].items()
    }
    assert shown == {
        "own batch sizes": ["Sys1$-like, batch 8", "Sys2$-like, batch 20"],
        "equal batch sizes": ["Sys1$-like, equal batch"],
    }


def test_nothing_to_report_on(plan, tmp_path):
    with pytest.raises(RunError, match="at least one run"):
        write_report(plan, tmp_path)
