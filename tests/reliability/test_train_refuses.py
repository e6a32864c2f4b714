"""What ``tfasr train`` refuses, what a start that fails leaves, and what resuming keeps."""

import json
import logging
import resource
import shutil

import pytest

from tests.reliability.conftest import TINY, snapshot
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.kit.files import locked
from tfasr.ledger.events import read_events
from tfasr.telemetry.compiled import layers_instruction_set


def train(shard_dir, run_dir, *bindings, resume=False):
    words = ["train", "--gin_file", TINY, "--shard_dir", shard_dir, "--run_dir", run_dir]
    words += ["--no_memory_probe", *(["--resume"] if resume else [])]
    for binding in ("TrainingConfig.epochs = 1", *bindings):
        words += ["--gin_binding", binding]
    return words


def test_resuming_a_finished_run_says_so_and_writes_nothing(tfasr, run_dir, shards):
    before = snapshot(run_dir)
    ended = tfasr(*train(shards, run_dir, resume=True))
    assert ended.status == 0, ended.err
    assert "is finished: there is nothing to resume" in ended.err
    assert "1 epochs, validation CER" in ended.out
    assert snapshot(run_dir) == before


def unfinished(run_dir):
    """Cuts a run's ledger as a kill in its last seconds would have."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["key"] not in ("run_stop", "epoch_stop")]
    path.write_text("".join(kept))


def test_other_shards_are_refused(refused, run_dir, shards):
    unfinished(run_dir)
    shutil.rmtree(shards / "validation")
    shutil.copytree(shards / "test", shards / "validation")
    refused(
        *train(shards, run_dir, resume=True), keeps=run_dir, names=("keep its data", "validation:")
    )


def ledger_gone(run_dir):
    (run_dir / "events.jsonl").unlink()


def garbage_line(run_dir):
    path = run_dir / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[3:]]))


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (ledger_gone, ("events.jsonl", "no ledger")),
        (garbage_line, ("events.jsonl", "Line 4")),
        (lambda run_dir: (run_dir / "experiment.json").write_text(""), ("experiment.json",)),
        (lambda run_dir: (run_dir / "experiment.json").write_text("[]"), ("experiment.json",)),
    ],
)
def test_a_damaged_run_is_not_resumed(refused, run_dir, shards, damage, names):
    unfinished(run_dir)
    damage(run_dir)
    refused(*train(shards, run_dir, resume=True), keeps=run_dir, names=names)


def test_files_of_a_users_in_the_run_folder_are_not_overwritten(refused, shards, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.gin").write_text("mine")
    refused(*train(shards, folder), keeps=folder, names=(str(folder), "config.gin"))


def test_the_second_of_two_starts_changes_nothing(refused, shards, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder / "lock", "held"):
        refused(*train(shards, folder), keeps=folder, names=("Only one process", str(folder)))


def test_a_start_that_fails_leaves_no_claim(refused, shards, tmp_path):
    folder = tmp_path / "run"
    two = "TrainingConfig.num_replicas = 2"
    refused(*train(shards, folder, two), keeps=shards, names=("num_replicas",))
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    refused(*train(shards, folder, two), keeps=folder, names=("num_replicas",))


@pytest.mark.parametrize(
    ("binding", "names"),
    [
        ("AcousticModelConfig.lstm_units = 10000000", ("weights must fit", "GiB")),
        ("Adam.learning_rate = -1.0", ("learning rate", "Received: -1.0")),
        ("Adam.learning_rate = 1e999", ("learning rate", "inf")),
        ("TrainingConfig.seed = 100000000000000000000", ("TrainingConfig.seed",)),
    ],
)
def test_what_cannot_be_trained_is_refused_by_a_dry_run(refused, shards, tmp_path, binding, names):
    words = [*train(shards, tmp_path / "run", binding), "--dry_run"]
    refused(*words, keeps=shards, names=names)


@pytest.mark.parametrize("kept", ["one", "best", "none"])
def test_damaged_checkpoints_are_set_aside_and_nothing_newer_is_pruned(
    tfasr, run_dir, shards, kept
):
    """A run resumes from the newest readable checkpoint, else the best one, else from step 0."""
    unfinished(run_dir)
    folder = run_dir / "checkpoints"
    saved = sorted(folder.glob("step-*.npz"))
    assert len(saved) == 2
    best = folder / "best.npz"
    content = best.read_bytes()
    for path in saved[1:] if kept == "one" else saved:
        path.write_bytes(b"")
    best.unlink()
    if kept != "none":
        best.write_bytes(content)
    ended = tfasr(*train(shards, run_dir, resume=True))
    assert ended.status == 0, ended.err
    begun = [e["value"] for e in read_events(run_dir) if e["key"] == "session_start"][-1]
    if kept == "none":
        assert begun["resumed_from_step"] is None
        assert "no checkpoint that can be read: resuming from step 0" in ended.err
        assert "Counted as lost work: 1" in ended.err
    else:
        steps = [int(path.stem.split("-")[1]) for path in saved]
        assert begun["resumed_from_step"] == steps[0 if kept == "one" else 1]
    assert f"{saved[1].name} cannot be read" in ended.err
    assert (folder / f"{saved[1].name}.damaged").exists()
    assert not list(folder.glob("*.partial"))
    # The best is of the last step: only its evaluation is repeated, and nothing new is written.
    assert saved[1].exists() == (kept != "best")


def test_a_best_checkpoint_that_stays_the_best_leaves_no_part(tmp_path):
    from tfasr.training.checkpoint import keep_as_best

    path = tmp_path / "step-00000001.npz"
    path.write_bytes(b"weights")
    keep_as_best(path)
    keep_as_best(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.npz", path.name]


def test_a_run_of_an_older_tfasr_is_resumed_with_a_word(run_dir, caplog):
    from tfasr.training.from_gin import load_config
    from tfasr.training.run_folder import own_run_folder

    unfinished(run_dir)
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["key"] != "shards"))
    experiment = load_config(str(TINY), ["TrainingConfig.epochs = 1"]).experiment
    with (
        caplog.at_level(logging.WARNING),
        own_run_folder(run_dir, experiment, {"train": "a"}, resume=True) as claim,
    ):
        assert claim.session == 1
    assert "recorded no hash of its shards" in caplog.text


def test_a_checkpoint_that_finds_no_room_ends_the_run_in_one_message(tfasr, shards, tmp_path):
    run_dir = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        ended = tfasr(*train(shards, run_dir))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ended.status == 1
    assert "Traceback" not in ended.err
    assert f"Checkpoints must find room in {run_dir}" in ended.err
    assert not list(run_dir.rglob("*.partial"))
    stop = read_events(run_dir)[-1]
    assert (stop["key"], stop["metadata"]["status"]) == ("run_stop", "aborted")


def test_what_both_splits_hold_is_booked_and_in_the_report(tmp_path):
    from tfasr.commands.report import report

    counts = {"utterances": 12, "of_utterances": 24, "speakers": 0, "of_speakers": 8}
    ledger = LedgerBuilder().begin().event("shared_with_training", counts)
    ledger.event("missing_compiled_parts", ["recurrent layers"])
    ledger.event("instruction_set", {"name": "portable", "forced": True})
    run_dir = ledger.epoch(1, 0.5).end().write(tmp_path / "run")
    said = " ".join(report([run_dir], targets=["cer=0.1"]).split())
    assert "12 of 24 utterances of the validation split are trained on too" in said
    assert "speakers of the validation split" not in said
    assert "compiled parts were missing (recurrent layers)" in said
    assert "TFASR_INSTRUCTION_SET held its compiled layers to portable" in said


def test_a_run_books_its_shards_and_what_they_share(trained_once, shard_dir):
    events = {event["key"]: event["value"] for event in read_events(trained_once)}
    stated = json.loads((shard_dir / "train" / "index.json").read_text())["content_hash"]
    assert events["shards"]["train"] == stated
    assert events["shared_with_training"]["of_utterances"] == 24
    assert events["shared_with_training"]["speakers"] == 0
    assert events["instruction_set"] == layers_instruction_set()
