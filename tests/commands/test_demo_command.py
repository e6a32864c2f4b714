"""What `tfasr demo` asks of the other commands; the commands themselves are tested elsewhere."""

import types
from pathlib import Path

import pytest

from tfasr.commands import demo as module
from tfasr.commands.demo import demo
from tfasr.errors import RunError, UsageError


@pytest.fixture
def asked(monkeypatch):
    """Collects the commands instead of running them; training makes the run's folder."""
    commands = []

    def run_module(module, *words):
        words = list(words)
        commands.append(words)
        if words[0] == "train":
            Path(words[words.index("--run_dir") + 1]).mkdir(parents=True)
        return types.SimpleNamespace(returncode=1 if "fail" in str(words) else 0)

    monkeypatch.setattr(module, "run_module", run_module)
    monkeypatch.setattr("tfasr.corpora.synthetic.make_synthetic_corpus", lambda folder: None)
    return commands


def of(commands, name):
    return [words for words in commands if words[0] == name]


def trained(commands, folder):
    """Returns the run's path below the folder of runs, its batch size and its seed."""
    return [
        (
            str(Path(words[words.index("--run_dir") + 1]).relative_to(folder / "runs")),
            *(int(word.rpartition("= ")[2]) for word in words if " = " in word),
        )
        for words in of(commands, "train")
    ]


def test_one_run_of_each_batch_size(asked, tmp_path):
    assert demo(demo_dir=tmp_path) == tmp_path / "report" / "report.html"
    assert trained(asked, tmp_path) == [("batch_8", 8, 1), ("batch_64", 64, 1)]
    runs = [str(tmp_path / "runs" / name) for name in ("batch_8", "batch_64")]
    assert of(asked, "report") == [["report", *runs, "--out", str(tmp_path / "report")]]
    # Once more: the runs are kept, and new ones stand beside them.
    demo(demo_dir=tmp_path)
    assert [name for name, *_ in trained(asked, tmp_path)[2:]] == ["batch_8-2", "batch_64-2"]


def test_seeds_make_groups_whose_runs_take_turns(asked, tmp_path):
    demo(demo_dir=tmp_path, seed=4, seeds=3)
    assert trained(asked, tmp_path) == [
        (f"batch_{size}/seed_{seed}", size, seed) for seed in (4, 5, 6) for size in (8, 64)
    ]
    assert len(of(asked, "evaluate")) == 6
    groups = [str(tmp_path / "runs" / name) for name in ("batch_8", "batch_64")]
    assert of(asked, "report")[0][1:3] == groups


def test_wrong_use_and_failure(asked, tmp_path):
    with pytest.raises(UsageError, match="at least 1. Received: 0"):
        demo(demo_dir=tmp_path, seeds=0)
    assert asked == []
    with pytest.raises(RunError, match="tfasr prepare ended with exit code 1"):
        demo(demo_dir=tmp_path / "fail")
