"""``tfasr study --until decided``: only as many seeds as the comparison needs."""

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr import cli
from tfasr.errors import UsageError
from tfasr.studies.perform import SEEDS, check_until, decision, decision_text, perform_until_decided
from tfasr.studies.plan import load_plan
from tfasr.studies.steps import study_steps

TWO = """\
StudyConfig.experiments = ('slow', 'fast')
StudyConfig.final_splits = ('test',)
ExperimentConfig.gin_files = ('demo.gin',)
slow/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 8',)
fast/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 64',)
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(TWO)
    return load_plan(str(path), [SEEDS])


def performed(plan, folder, pace_of, *, fails=None, targets=(("cer", 0.2), ("cer", 0.1))):
    """Does a study's steps by writing ledgers; returns their names and what failed."""
    names = []

    def perform(steps):
        failed = []
        for step in steps:
            if step.done():
                continue
            names.append(step.name)
            if step.name == fails:
                failed.append(step.name)
            elif step.kind == "train":
                seed = int(step.name.rsplit("_", 1)[1])
                ledger = LedgerBuilder().begin(targets=targets)
                for epoch in range(1, 8):
                    pace = pace_of(step.alike) * (1 + 0.01 * (seed % 5))
                    ledger.epoch(epoch, 0.9 * 0.6**epoch, steps=1, train_s=pace)
                ledger.end().write(step.run_dir)
        return failed

    steps = study_steps(plan, folder, folder / "shards")
    return names, perform_until_decided(plan, folder, steps, perform)


def test_a_clear_gap_takes_three_seeds_and_scores_those_alone(plan, tmp_path):
    check_until("decided", plan)
    names, failed = performed(plan, tmp_path, {"slow": 2.0, "fast": 1.0}.get)
    assert failed == []
    trained = [name for name in names if name.startswith("train")]
    assert trained == [
        f"train {experiment}-seed_{seed}" for seed in (1, 2, 3) for experiment in ("slow", "fast")
    ]
    assert [name for name in names if name.startswith("score")] == [
        name.replace("train", "score") for name in trained
    ]
    found = decision(plan, tmp_path)
    assert (found.sooner, found.runs) == ("second", 3)
    assert decision_text(plan, found).startswith("slow against fast: fast is faster (p = ")
    assert (tmp_path / "decision.txt").read_text() == decision_text(plan, found) + "\n"
    # Resumed, it is decided already.
    names, _ = performed(plan, tmp_path, {"slow": 2.0, "fast": 1.0}.get)
    assert [name for name in names if name.startswith("train")] == []


def test_no_gap_takes_all_seeds_and_stays_undecided(plan, tmp_path):
    names, _ = performed(plan, tmp_path, {"slow": 1.0, "fast": 1.0}.get)
    assert len([name for name in names if name.startswith("train")]) == 24
    assert "undecided after all looks" in decision_text(plan, decision(plan, tmp_path))


def test_a_run_that_failed_ends_the_looks(plan, tmp_path):
    pace = {"slow": 1.0, "fast": 1.0}.get
    names, failed = performed(plan, tmp_path, pace, fails="train fast-seed_2")
    assert failed == ["train fast-seed_2"]
    assert len([name for name in names if name.startswith("train")]) == 6
    assert decision(plan, tmp_path).runs == 0


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ([SEEDS, "StudyConfig.experiments = ('slow', 'fast', 'third')",
          "third/ExperimentConfig.label = 'third'"], "compares two experiments.* has 3"),
        ([], "slow has 1 seeds of its own"),
    ],
)  # fmt: skip
def test_what_is_no_comparison_of_two_is_refused(bindings, message, tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(TWO)
    with pytest.raises(UsageError, match=message):
        check_until("decided", load_plan(str(path), bindings))


def test_a_dry_run_lists_the_most_that_may_be_trained(plan, tmp_path, capsys):
    words = ["study", "--gin_file", str(tmp_path / "mine.gin"), "--shard_dir", str(tmp_path)]
    assert cli.run(cli.parse(["tfasr", *words, "--dry_run", "--until", "decided"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/48 train slow-seed_1"
    assert lines[23] == "24/48 train fast-seed_12"


def test_there_is_one_thing_to_wait_for(plan):
    with pytest.raises(UsageError, match="must be 'decided'.*'done'"):
        check_until("done", plan)


def test_runs_without_a_target_decide_nothing(plan, tmp_path):
    with pytest.raises(UsageError, match="needs a target"):
        performed(plan, tmp_path, {"slow": 1.0, "fast": 1.0}.get, targets=None)
