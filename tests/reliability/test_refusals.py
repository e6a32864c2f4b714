"""What ``tfasr train`` refuses, what a start that fails leaves, and what resuming keeps."""

import ast
import json
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.data.made_corpus import make_utterances, write_tsv
from tests.reliability.conftest import TINY, snapshot
from tests.reports.conftest import ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.display.table import WRITERS
from tfasr.kit import registry
from tfasr.kit.files import PARTIAL_SUFFIX, locked
from tfasr.ledger.events import read_events
from tfasr.reports.figures.registry import FIGURES
from tfasr.telemetry.compiled import layers_instruction_set
from tfasr.tta.run import load_run

# The page on reliability names a test for each case of bad input: that test is there.

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "hostile_cases.md"


def test_every_case_has_its_test():
    section = PAGE.read_text(encoding="utf-8").partition(
        "## Cases of the first two lists"
    )[2]
    cases = [
        item for part in section.split("\n### ")[1:] for item in part.split("\n- ")[1:]
    ]
    assert len(cases) > 80
    for case in cases:
        named = re.findall(r"`([\w/]+)\s+([\w]+)`", case)
        assert named, case
        for file, test in named:
            tree = ast.parse(
                (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
            )
            names = {
                node.name for node in tree.body if isinstance(node, ast.FunctionDef)
            }
            assert f"test_{test}" in names, case


# What ``tfasr prepare`` refuses, and that it deletes nothing of a user's.


def prepare(corpus, shard_dir, *more):
    return (
        *(
            "prepare",
            "--corpus",
            "tsv",
            "--corpus_dir",
            corpus,
            "--shard_dir",
            shard_dir,
        ),
        *("--split", "train", *more),
    )


@pytest.mark.parametrize("plan", [None, "my own plan\n", '{"key": 1}', "[]"])
def test_a_folder_with_files_of_a_users_is_refused_and_left_as_it_is(
    refused, corpus, plan
):
    folder = corpus / "train"
    folder.mkdir()
    (folder / "mydata.tfrecord").write_text("dear to me")
    (folder / "train-annotations.json").write_text("{}")
    if plan is not None:
        (folder / "plan.json").write_text(plan)
    refused(
        *prepare(corpus, corpus), keeps=corpus, names=(str(folder), "mydata.tfrecord")
    )


def test_only_the_plans_own_files_are_removed_and_a_foreign_shards_name_is_not_taken(
    tfasr, refused, corpus, tmp_path
):
    shard_dir = tmp_path / "shards"
    folder = shard_dir / "train"
    assert tfasr(*prepare(corpus, shard_dir)).status == 0
    (folder / "notes.txt").write_text("mine")
    (folder / "train-annotations.json").write_text("mine")
    smaller = ("--gin_binding", "ShardConfig.utterances_per_shard = 2")
    assert tfasr(*prepare(corpus, shard_dir, *smaller)).status == 0
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "train-annotations.json").read_text() == "mine"
    assert len(list(folder.glob("*.tfrecord"))) == 2
    (folder / "train-00003.tfrecord").write_text("mine")
    smallest = ("--gin_binding", "ShardConfig.utterances_per_shard = 1")
    refused(
        *prepare(corpus, shard_dir, *smallest),
        keeps=shard_dir,
        names=("train-00003.tfre",),
    )


def test_the_second_of_two_prepares_gets_one_line(refused, corpus, tmp_path):
    folder = tmp_path / "shards" / "train"
    folder.mkdir(parents=True)
    with locked(folder / "prepare.lock", "held"):
        refused(
            *prepare(corpus, tmp_path / "shards"),
            keeps=folder,
            names=("Only one process may prepare", str(folder)),
        )


def test_a_shard_folder_that_is_a_file_is_named(refused, corpus, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(
        *prepare(corpus, tmp_path / "file"),
        keeps=tmp_path,
        names=(str(tmp_path / "file"),),
    )
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "train").write_text("mine")
    refused(
        *prepare(corpus, tmp_path / "shards"),
        keeps=tmp_path,
        names=("train is a file",),
    )


def test_audio_whose_features_are_no_numbers_is_bad(refused, corpus, tmp_path):
    loud = (1e30 * np.random.default_rng(0).uniform(-1, 1, 16000)).astype("float32")
    soundfile.write(corpus / "loud.wav", loud, 16000, subtype="FLOAT")
    with (corpus / "train.tsv").open("a") as lines:
        lines.write("loud.wav\ts\t1.0\ta\n")
    refused(
        *prepare(corpus, tmp_path / "shards"),
        keeps=corpus,
        status=1,
        names=("unreadable audio", "loud.wav", "where full scale is 1"),
    )
    assert not (tmp_path / "shards" / "train" / "index.json").exists()


def test_a_json_array_is_told_from_json_lines(refused, corpus, tmp_path):
    listed = corpus / "train.json"
    listed.write_text(
        json.dumps([{"audio_filepath": "u000.flac", "text": "a"}], indent=1)
    )
    words = (
        "prepare",
        "--corpus",
        "json",
        "--corpus_dir",
        corpus,
        "--shard_dir",
        tmp_path / "s",
    )
    refused(*words, keeps=corpus, names=(str(listed), "one JSON array"))


def test_links_in_a_circle_are_walked_once(tfasr, tmp_path):
    chapter = tmp_path / "LibriSpeech" / "train-clean" / "84" / "1"
    chapter.mkdir(parents=True)
    (utterance,) = make_utterances(chapter, 1)
    utterance.audio_path.rename(chapter / "84-1-0.flac")
    (chapter / "84-1.trans.txt").write_text("84-1-0 A\n")
    for name in ("loop", "again"):
        (chapter.parent / name).symlink_to(
            tmp_path / "LibriSpeech", target_is_directory=True
        )
    words = (
        "--corpus_dir",
        tmp_path / "LibriSpeech",
        "--shard_dir",
        tmp_path / "shards",
    )
    ended = tfasr("prepare", "--corpus", "librispeech", *words, "--split", "train")
    assert ended.status == 0, ended.err
    assert "train: 1 utterance," in ended.out


def test_validation_utterances_that_are_trained_on_are_told(tfasr, corpus, tmp_path):
    write_tsv(corpus, make_utterances(corpus, 4, text="a b"), "validation.tsv")
    words = (
        "prepare",
        "--corpus",
        "tsv",
        "--corpus_dir",
        corpus,
        "--shard_dir",
        tmp_path / "s",
    )
    ended = tfasr(*words)
    assert ended.status == 0, ended.err
    assert "validation: 4 of 4 utterances are in the training split too" in ended.err
    assert "3 of 3 speakers are in the training split too" in ended.err


# Run folders with one damaged file, through ``tfasr report``: alone, and beside a good
# run.

BINARY = b"\x89PNG\r\n\x1a\n\0\xff\xfe" * 40


@pytest.fixture
def runs(tmp_path):
    """Returns a folder of two runs."""
    for name in ("good", "bad"):
        ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cpu.csv", BINARY),
        ("gpu.csv", BINARY),
        ("config.gin", BINARY),
        ("operative_config.gin", BINARY),
        ("experiment.json", BINARY),
        ("run.json", BINARY),
        ("run.json", b"[" * 100_000),
        ("run.json", b'{"system": {"packages": "x"}}'),
        ("events.jsonl", BINARY),
        ("events.jsonl", b""),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_goes_on(
    tfasr, refused, runs, tmp_path, file, content
):
    (runs / "bad" / file).write_bytes(content)
    out = tmp_path / "out"
    refused("report", runs / "bad", "--policy", "paper", keeps=runs, names=(file,))
    ended = tfasr("report", runs, "--policy", "paper", "--format", "markdown")
    assert ended.status == 0, ended.err
    assert "bad is left out." in " ".join(ended.out.replace("\\", "").split())
    assert "runs/good" in ended.out.replace("\\", "")
    assert not out.exists()


@pytest.mark.parametrize("file", ["cpu.csv", "config.gin"])
def test_a_page_is_not_begun_on_a_damaged_run(refused, runs, tmp_path, file):
    (runs / "bad" / file).write_bytes(BINARY)
    out = tmp_path / "out"
    refused(
        "report",
        runs / "bad",
        "--out",
        out,
        keeps=runs,
        names=(str(runs / "bad" / file),),
    )
    assert not out.exists()


def test_samples_that_a_power_loss_has_torn_are_read_up_to_there(tfasr, runs):
    lines = "time_ms,cpu_percent,process_percent\n" + "".join(
        f"{n},50,40\n" for n in range(99)
    )
    (runs / "bad" / "cpu.csv").write_bytes(lines.encode() + b"\0" * 300_000)
    (runs / "bad" / "energy.csv").write_bytes(BINARY + b"\0" * 300_000)
    ended = tfasr("report", runs, "--policy", "paper")
    assert ended.status == 0, ended.err
    assert "is left out" not in " ".join(ended.out.split())


def test_figures_and_writers_of_a_users_that_fail_are_named(
    tfasr, refused, runs, tmp_path
):
    plugin = tmp_path / "failing_parts.py"
    out = tmp_path / "out"
    plugin.write_text(
        "from tfasr.display.table import WRITERS\n"
        "from tfasr.reports.figures.registry import FIGURES\n"
        "def fails(*_):\n"
        "    raise ValueError('no idea')\n"
        "WRITERS.register('failing', fails)\n"
        "FIGURES.register('failing', fails)\n"
    )
    named = f"{plugin}:4: the {{}} 'failing' failed: ValueError: no idea"
    words = ["report", runs / "good", "--import", plugin]
    try:
        writer = named.format("format")
        refused(*words, "--format", "failing", keeps=runs, status=1, names=(writer,))
        ended = tfasr(*words, "--out", out)
        assert ended.status == 0, ended.err
        assert named.format("figure") in " ".join(
            (ended.out + ended.err).split()
        ) or named.format("figure") in (out / "report.html").read_text().replace(
            "&#x27;", "'"
        ).replace("&#39;", "'")
    finally:
        registry._loaded.pop(str(plugin), None)
        for known in (WRITERS, FIGURES):
            known._entries.pop("failing", None)


@pytest.mark.parametrize("content", [BINARY, b"", b"{}\n", b"[" * 100_000])
def test_hypotheses_that_are_none_are_named(refused, runs, content):
    folder = runs / "good" / "hypotheses"
    folder.mkdir()
    (folder / "validation-epoch-0003.jsonl").write_bytes(content)
    refused("report", runs / "good", "--errors", keeps=runs, names=("hypotheses",))


def train(shard_dir, run_dir, *bindings, resume=False):
    words = [
        "train",
        "--gin_file",
        TINY,
        "--shard_dir",
        shard_dir,
        "--run_dir",
        run_dir,
    ]
    words += ["--no_memory_probe", *(["--resume"] if resume else [])]
    for binding in ("TrainingConfig.epochs = 1", *bindings):
        words += ["--gin_binding", binding]
    return words


def test_resuming_a_finished_run_says_so_and_writes_nothing(tfasr, run_dir, shards):
    before = snapshot(run_dir)
    ended = tfasr(*train(shards, run_dir, resume=True))
    assert ended.status == 0, ended.err
    assert "is finished: there is nothing to resume" in ended.err
    assert "1 epoch, validation CER" in ended.out
    assert snapshot(run_dir) == before


def unfinished(run_dir):
    """Cuts a run's ledger as a kill in its last seconds would have."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    (end,) = [
        n for n, line in enumerate(lines) if json.loads(line)["key"] == "epoch_stop"
    ]
    path.write_text("".join(lines[:end]))


def test_other_shards_are_refused(refused, run_dir, shards):
    unfinished(run_dir)
    shutil.rmtree(shards / "validation")
    shutil.copytree(shards / "test", shards / "validation")
    refused(
        *train(shards, run_dir, resume=True),
        keeps=run_dir,
        names=("keep its data", "validation:"),
    )


def a_zero_byte(run_dir):
    path = run_dir / "events.jsonl"
    content = bytearray(path.read_bytes())
    content[content.index(b"model_creation")] = 0
    path.write_bytes(content)


def a_better_score(run_dir):
    path = run_dir / "events.jsonl"
    path.write_bytes(re.sub(rb'"cer": ?0\.\d', b'"cer":0.0', path.read_bytes()))


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
        (a_zero_byte, ("events.jsonl", "Line", "zero byte")),
        (a_better_score, ("events.jsonl", "Line")),
        (
            lambda run_dir: (run_dir / "experiment.json").write_text(""),
            ("experiment.json",),
        ),
        (
            lambda run_dir: (run_dir / "experiment.json").write_text("[]"),
            ("experiment.json",),
        ),
    ],
)
def test_a_damaged_run_is_not_resumed(refused, run_dir, shards, damage, names):
    unfinished(run_dir)
    damage(run_dir)
    refused(*train(shards, run_dir, resume=True), keeps=run_dir, names=names)


@pytest.mark.parametrize(
    "files",
    [
        {"config.gin": "mine"},
        {"events.jsonl": "", "run.json": "{}"},
        {"events.jsonl": "click", "notes.txt": "mine"},
        {"events.jsonl": "", "experiment.json": '{"title": "mine"}'},
    ],
)
def test_files_of_a_users_in_the_run_folder_are_not_overwritten(
    refused, shards, tmp_path, files
):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    names = [name for name, text in files.items() if text and name != "notes.txt"]
    refused(*train(shards, folder), keeps=folder, names=(str(folder), *names))


def test_a_checkpoint_without_its_ledger_is_not_resumed_from(tfasr, run_dir, shards):
    """A ledger that was cut by hand loses the checkpoints that it no longer covers."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    (first, *_) = [
        n for n, line in enumerate(lines) if json.loads(line)["key"] == "train_step"
    ]
    path.write_text("".join(lines[: first + 1]))
    ended = tfasr(*train(shards, run_dir, resume=True))
    assert ended.status == 0, ended.err
    assert "best.npz cannot be resumed from" in ended.err
    run = load_run(run_dir)
    assert run.status == "success"
    steps = [
        e["metadata"]["step"] for e in read_events(run_dir) if e["key"] == "train_step"
    ]
    assert sorted(set(steps)) == list(range(1, max(steps) + 1))


def test_the_second_of_two_starts_changes_nothing(refused, shards, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder / "lock", "held"):
        refused(
            *train(shards, folder),
            keeps=folder,
            names=("Only one process", str(folder)),
        )


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
        (f"TrainingConfig.epochs = 1{'0' * 400}", ("TrainingConfig.epochs",)),
        (
            f"TrainingConfig.give_up_after_hours = 1{'0' * 400}",
            ("give_up_after_hours",),
        ),
        (
            "PipelineConfig.global_batch_size = 4611686018427387904",
            ("global_batch_size",),
        ),
        (
            "PipelineConfig.batch_size_schedule = ((2, 4611686018427387904),)",
            ("_schedule",),
        ),
        ("AcousticModelConfig.num_lstm_layers = 1000", ("num_lstm_layers",)),
    ],
)
def test_what_cannot_be_trained_is_refused_by_a_dry_run(
    refused, shards, tmp_path, binding, names
):
    words = [*train(shards, tmp_path / "run", binding), "--dry_run"]
    refused(*words, keeps=shards, names=names)


def test_devices_that_are_missing_are_refused_by_a_dry_run(refused, shards, tmp_path):
    devices = "TrainingConfig.evaluation_devices = ('cpu:99999',)"
    beside = "TrainingConfig.evaluation_placement = 'beside'"
    words = [*train(shards, tmp_path / "run", beside, devices), "--dry_run"]
    refused(*words, keeps=shards, names=("evaluation_devices", "cpu:99999"))


@pytest.mark.parametrize("kept", ["one", "best", "none"])
def test_damaged_checkpoints_are_set_aside_and_nothing_newer_is_pruned(
    tfasr, run_dir, shards, kept
):
    """A run resumes from the newest readable checkpoint, else the best one, else from
    step 0.
    """
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
    begun = [e["value"] for e in read_events(run_dir) if e["key"] == "session_start"][
        -1
    ]
    if kept == "none":
        assert begun["resumed_from_step"] is None
        assert "no checkpoint that can be read: resuming from step 0" in ended.err
        assert "Counted as lost work: 1" in ended.err
    else:
        steps = [int(path.stem.split("-")[1]) for path in saved]
        assert begun["resumed_from_step"] == steps[0 if kept == "one" else 1]

    assert f"{saved[1].name} cannot be read" in ended.err
    assert (folder / f"{saved[1].name}.damaged").exists()
    assert not list(folder.glob(f"*{PARTIAL_SUFFIX}"))
    # The best is of the last step: only its evaluation is repeated, and nothing new is
    # written.
    assert saved[1].exists() == (kept != "best")


def test_a_best_checkpoint_that_stays_the_best_leaves_no_part(tmp_path):
    from tfasr.training.checkpoint import keep_as_best

    path = tmp_path / "step-00000001.npz"
    path.write_bytes(b"weights")
    keep_as_best(path)
    keep_as_best(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.npz", path.name]


def test_a_checkpoint_that_finds_no_room_ends_the_run_in_one_message(
    tfasr, shards, tmp_path
):
    run_dir = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        ended = tfasr(*train(shards, run_dir))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert ended.status == 1
    assert "Traceback" not in ended.err
    assert f"could not be written into {run_dir}" in ended.err
    assert not list(run_dir.rglob(f"*{PARTIAL_SUFFIX}"))
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
    assert "TFASR_INSTRUCTION_SET limited its compiled layers to portable" in said


def test_a_run_books_its_shards_and_what_they_share(trained_once, shard_dir):
    events = {event["key"]: event["value"] for event in read_events(trained_once)}
    stated = json.loads((shard_dir / "train" / "index.json").read_text())[
        "content_hash"
    ]
    assert events["shards"]["train"] == stated
    assert events["shared_with_training"]["of_utterances"] == 24
    assert events["shared_with_training"]["speakers"] == 0
    assert events["instruction_set"] == layers_instruction_set()
