"""What reaches the disk before what: a crash at any point leaves a checkpoint with its ledger."""

import os
from pathlib import Path

import keras
import pytest

from tests.reliability.conftest import TINY
from tfasr.errors import RunError
from tfasr.kit.files import make_folder
from tfasr.training.checkpoint import TrainingState, save_checkpoint


@pytest.fixture
def operations(monkeypatch, tmp_path):
    """Returns what is synced, renamed and removed below the test's folder, as it happens."""
    happened = []

    def name_of(path):
        path = Path(path)
        return str(path.relative_to(tmp_path)) if path.is_relative_to(tmp_path) else str(path)

    sync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def fsync(descriptor):
        sync(descriptor)
        happened.append(("sync", name_of(Path(f"/proc/self/fd/{descriptor}").readlink())))

    def renamed(path, target):
        happened.append(("rename", name_of(target)))
        return replace(path, target)

    def removed(path, missing_ok=False):
        happened.append(("remove", name_of(path)))
        return unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    return happened


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_first_the_ledger_then_the_checkpoint_then_older_ones_go(
    operations, tfasr, shards, tmp_path
):
    words = ["train", "--gin_file", TINY, "--shard_dir", shards, "--run_dir", tmp_path / "run"]
    for binding in ("TrainingConfig.epochs = 1", "TrainingConfig.keep_checkpoints = 1"):
        words += ["--gin_binding", binding]
    ended = tfasr(*words, "--no_memory_probe")
    assert ended.status == 0, ended.err
    assert operations.count(("sync", "run")) >= 2, "the ledger's name, and that of checkpoints"
    operations = [one for one in operations if one != ("sync", "run")]
    published = [
        number
        for number, (what, name) in enumerate(operations)
        if what == "rename" and name.startswith("run/checkpoints/step-")
    ]
    assert len(published) == 3  # of steps 5 and 10, and at the epoch's end
    for number in published:
        name = operations[number][1]
        assert operations[number - 2 : number + 2] == [
            ("sync", "run/events.jsonl"),
            ("sync", f"{name}.partial"),
            ("rename", name),
            ("sync", "run/checkpoints"),
        ]
    removed = [(n, name) for n, (what, name) in enumerate(operations) if what == "remove"]
    older = [(n, name) for n, name in removed if name.startswith("run/checkpoints/step-")]
    assert [name for _, name in older] == [operations[n][1] for n in published[:2]]
    assert [n for n, _ in older] == [n + 2 for n in published[1:]]


def test_weights_that_are_no_numbers_replace_no_checkpoint(tmp_path):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer="sgd")
    save_checkpoint(tmp_path, model, TrainingState(step=1), keep=1)
    model.layers[0].kernel.assign([[float("nan"), 0.0]] * 3)
    with pytest.raises(RunError, match="All weights must be finite. After step 2"):
        save_checkpoint(tmp_path, model, TrainingState(step=2), keep=1)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001.npz"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_the_names_of_new_folders_reach_the_disk_from_the_top(operations, tmp_path):
    make_folder(tmp_path / "runs" / "one")
    make_folder(tmp_path / "runs" / "one")
    assert operations == [("sync", "."), ("sync", "runs")]
