"""Shards that change while a run trains, or that do not hold what their index lists."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tests.tones import SHARDS, TONES_GIN
from tfasr.kit import registry
from tfasr.ledger.events import read_events
from tfasr.training.checkpoint import read_state
from tfasr.training.logs import LOGS

# A log is called after each step, in the midst of the training.
PLUGIN = """
import os, shutil
from pathlib import Path
from tfasr.training.logs import LOGS

@LOGS.register("{name}")
class Saboteur:
    def __init__(self, run_dir, events):
        self.shards = Path({shards!r})

    def write(self, scalars, step, useful_s):
        if step == 8 and "train/loss" in scalars:
            {deed}

    def flush(self):
        pass

    close = flush
"""
TRAIN = "self.shards / 'train'"
VALIDATION = "self.shards / 'validation'"
FIRST = "next(({split}).glob('*.tfrecord'))"
REPLACED = (
    f"path = {FIRST}; content = path.read_bytes(); path.unlink(); path.write_bytes("
)


def words(shards, run_dir, *more):
    named = ["--gin_file", TONES_GIN, "--shard_dir", shards, "--run_dir", run_dir]
    bindings = ["TrainingConfig.epochs = 2", "TrainingConfig.sentences_every_steps = 2"]
    return [
        "train",
        *named,
        *(w for b in bindings for w in ("--gin_binding", b)),
        *more,
    ]


@pytest.fixture
def shards(tmp_path) -> Path:
    return Path(shutil.copytree(SHARDS, tmp_path / "shards"))


@pytest.mark.parametrize(
    ("name", "deed", "named"),
    [
        ("removed", f"shutil.rmtree({TRAIN})", "train"),
        ("replaced", REPLACED.format(split=TRAIN) + "content[::-1])", "train"),
        ("heard", REPLACED.format(split=VALIDATION) + "content[::-1])", "validation"),
        ("unable", "raise SystemExit('no room')", None),
        (
            "copied",
            REPLACED.format(split=TRAIN) + "content); os.utime(path, (1, 1))",
            None,
        ),
    ],
)
def test_shards_that_change_while_training_end_it(
    tfasr, shards, tmp_path, name, deed, named
):
    plugin = tmp_path / f"saboteur_{name}.py"
    run_dir = tmp_path / "run"
    plugin.write_text(PLUGIN.format(name=name, shards=str(shards), deed=deed))
    kept = Path(shutil.copytree(shards, tmp_path / "kept"))
    try:
        ended = tfasr(*words(shards, run_dir, "--import", plugin, "--log_to", name))
        last = ended.err.splitlines()[-1]
        assert "Traceback" not in ended.err
        if named is None:  # the bytes are the same, or the log alone has failed
            assert ended.status == 0, last
            assert (f"{plugin}:13: SystemExit: no room" in ended.err) == (
                name == "unable"
            )
            return

        assert ended.status == 1, last
        assert str(shards / named) in last
        steps = [
            e["metadata"]["step"]
            for e in read_events(run_dir)
            if e["key"] == "train_step"
        ]
        assert max(steps) <= 12  # the epoch of the change is the last
        newest = max((run_dir / "checkpoints").glob("step-*.npz"))
        # The checkpoint before the change; what is heard in validation alone does no
        # harm to it.
        assert read_state(newest).step == (12 if name == "heard" else 8)
        if name == "removed":
            resumed = words(kept, run_dir, "--import", plugin, "--resume")
            assert tfasr(*resumed).status == 0
    finally:
        registry._loaded.pop(str(plugin), None)
        LOGS._entries.pop(name, None)


def forged(shards: Path, change) -> None:
    """Rewrites the training shards, with sizes and hashes that fit."""
    folder = shards / "train"
    index = json.loads((folder / "index.json").read_text())
    compression = index["packing"]["compression"]
    for shard in index["shards"]:
        path = folder / shard["file"]
        records = list(
            tf.data.TFRecordDataset(str(path), compression).as_numpy_iterator()
        )
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for record in change(records):
                writer.write(record)

        content = path.read_bytes()
        shard |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    index.pop("index_sha256")
    text = json.dumps(index, sort_keys=True)
    index["index_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records[1:],
        lambda records: [],
        lambda records: [records[0], *records[:-1]],
        lambda records: [record[:-3] for record in records],
    ],
    ids=["too few", "none", "doubled", "garbage"],
)
def test_shards_that_do_not_hold_their_split_once_end_the_run(
    tfasr, shards, tmp_path, change
):
    forged(shards, change)
    ended = tfasr(*words(shards, tmp_path / "run", "--no_memory_probe"))
    assert ended.status == 1, ended.err
    assert str(shards / "train") in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    assert "eval_accuracy" not in {
        event["key"] for event in read_events(tmp_path / "run")
    }
