import math
import subprocess
import sys

import pytest

import tfasr
from tests.reports.conftest import COMPARABLE, ledger_of
from tests.reports.test_groups import seeds
from tests.reports.test_page import Checked
from tfasr.errors import UsageError
from tfasr.ledger.intervals import INTERVALS


@pytest.fixture
def grouped(tmp_path):
    """Three seeds each; the large ones take twice as long a step."""
    seeds(tmp_path / "small", "run", 1.0)
    seeds(tmp_path / "large", "run", 2.0)
    return tfasr.compare([tmp_path / "small", tmp_path / "large"])


def test_groups_and_what_they_say(grouped):
    assert list(grouped.groups) == ["small/run", "large/run"]
    assert grouped.groups["small/run"] == [f"small/run-seed{seed}" for seed in range(3)]
    assert grouped.targets == [("cer", 0.1)]
    small, large = grouped.result("small/run", cer=0.1), grouped.result("large/run", cer=0.1)
    assert small.statistics.median_s == pytest.approx(8.06)
    assert small.brackets[0].last_miss_s == pytest.approx(6.0)
    assert large.comparison.ratio == pytest.approx(14.12 / 8.06, rel=1e-3)
    assert math.prod(large.decomposition.factors.values()) == pytest.approx(
        large.decomposition.ratio
    )
    with pytest.raises(ValueError, match="one of the groups.*'tiny'"):
        grouped.result("tiny", cer=0.1)
    with pytest.raises(ValueError, match="one of the targets"):
        grouped.result("small/run", cer=0.2)


def test_the_finding_names_the_faster_the_interval_and_the_reason(grouped):
    (said,) = grouped.findings
    assert said.startswith("CER 10 %: small/run is faster: large/run takes 1.75 times as long")
    assert "95 % interval" in said
    assert "n = 3 and 3" in said
    assert "large/run has 0.50 times the steady throughput" in said


def test_against_the_reason_stands_what_speaks_against_it(tmp_path):
    # Four times the epochs of half the length: slower by statistics, faster by hardware.
    slow = ledger_of([0.5] * 10 + [0.1] * 4, train_s=0.5).write(tmp_path / "slow")
    quick = ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "quick")
    (said,) = tfasr.compare([quick, slow]).findings
    assert "no significance possible: fewer than 3 runs in a group" in said
    assert said.endswith(
        "The reason: slow needs 4.00 times the utterances, against which it has 2.00 times the "
        "steady throughput."
    )


def test_runs_that_never_arrive_and_runs_that_do_not_compare(tmp_path, small):
    never = ledger_of([0.5] * 4).write(tmp_path / "never")
    unlike = ledger_of([0.1] * 3, comparability=COMPARABLE | {"beam_width": 9})
    unlike = unlike.write(tmp_path / "unlike")
    first, second = tfasr.compare([small, never, unlike]).findings
    assert first == (
        "CER 10 %: 1 of 1 runs of small reached it, median 0.133 min, 0 of 1 runs of never reached "
        "it (no significance possible: fewer than 3 runs in a group; n = 1 and 1: seeds alone make "
        "such a time vary by 3 to 20 % (CV in published logs))."
    )
    assert second == "CER 10 %: unlike against small: refused."
    (forced,) = tfasr.compare([small, unlike], force=True).findings
    assert "1.00 times as long" in forced


def test_where_one_of_a_group_never_arrives_there_is_no_interval(tmp_path):
    for seed in range(3):
        ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "quick" / f"seed_{seed}")
        cers = [0.5] * 5 + [0.1 if seed else 0.5] * 3
        ledger_of(cers).write(tmp_path / "slow" / f"seed_{seed}")
    (said,) = tfasr.compare([tmp_path / "quick", tmp_path / "slow"]).findings
    # Until 8 s, when the last quick one arrives, all slow ones are on their way.
    assert said == (
        "CER 10 %: 3 of 3 runs of quick reached it, median 0.133 min, 2 of 3 runs of slow reached "
        "it, median 0.267 min; of the first 0.133 min, which both were seen for, slow spends 1.00 "
        "times as much before it arrives (no test: a run never arrived, and fewer than 5 runs in a "
        "group). By the geometric means of the 3 and 2 runs that arrived, slow needs 2.33 times "
        "the utterances."
    )


def test_an_interval_that_includes_1_decides_nothing(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.001)):
        for number, length in enumerate((1.0, 2.0, 3.0)):
            run_dir = ledger_of([0.1] * 3, train_s=factor * length)
            run_dir.write(tmp_path / name / f"seed{number}")
    (said,) = tfasr.compare([tmp_path / "a", tmp_path / "b"]).findings
    assert said.startswith("CER 10 %: undecided: b")


def test_runs_come_as_paths_or_loaded_and_targets_as_text_or_pairs(small, large):
    loaded = [tfasr.load_run(small), large]
    found = tfasr.compare(loaded, targets=["wer=0.2", ("cer", 0.5)], policy="mlperf", window=2)
    assert found.targets == [("wer", 0.2), ("cer", 0.5)]
    assert list(found.groups) == ["small", "large"]
    assert found.report.policy.name == "mlperf"
    assert found.report.window == 2
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
def test_wrong_use(runs, options, error, message, small):
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
    found = tfasr.compare([tmp_path / "run_1", tmp_path / "run_2", other])
    assert {group: len(runs) for group, runs in found.groups.items()} == {"run": 2, "other": 1}


def test_data_frames(grouped, tmp_path, small):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    frame = grouped.to_dataframe()
    assert len(frame) == 6
    assert frame.groupby("group")["time_to_accuracy_s"].median().to_dict() == pytest.approx(
        {"small/run": 8.06, "large/run": 14.12}
    )
    assert (frame["wall_s"] - frame[[f"{name}_s" for name in INTERVALS]].sum(axis=1)
            ).abs().max() < 1e-5  # fmt: skip
    groups = grouped.groups_to_dataframe()
    assert list(groups["n"]) == [3, 3]
    assert groups["ratio_95_low"][1] < groups["ratio_to_first"][1] < groups["ratio_95_high"][1]
    untargeted = ledger_of([0.5], targets=None).write(tmp_path / "untargeted")
    assert list(tfasr.compare(untargeted).to_dataframe()["run"]) == ["untargeted"]


def test_what_a_notebook_shows(grouped, tmp_path):
    html = grouped._repr_html_()
    checked = Checked(html)
    assert "Findings" in checked.texts
    assert "small/run is faster" in html
    assert checked.references == []
    assert "small/run is faster" in repr(grouped)
    assert "## Time to accuracy" in grouped._repr_markdown_()
    run_dir = ledger_of([0.1] * 3).write(tmp_path / "<b>&")
    shown = tfasr.compare(run_dir)._repr_html_()
    assert "<b>&" in Checked(shown).texts


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
