"""Damaged, edited and foreign files that ``tfasr evaluate`` is given: one line that names them."""

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.data.made_corpus import noise
from tests.reliability.conftest import TINY
from tests.reports.conftest import ledger_of
from tfasr.corpora.reading import require_folder
from tfasr.data.audio import read_audio
from tfasr.display.table import Records, Table, table_to_csv
from tfasr.errors import UsageError


def index_of(folder, **changes):
    path = folder / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def resealed(folder):
    """Gives an index the hash that somebody who edits it on purpose would give it."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    del index["index_sha256"]
    whole = json.dumps(index, sort_keys=True).encode()
    index_of(folder, index_sha256=hashlib.sha256(whole).hexdigest())


def cut_index(folder):
    path = folder / "index.json"
    path.write_text(path.read_text()[:200])


def edited_text(folder):
    path = folder / "manifest.jsonl"
    first, rest = path.read_text().split("\n", 1)
    line = json.loads(first)
    path.write_text(json.dumps({**line, "text": line["text"] + " too"}) + "\n" + rest)


def swapped_positions(folder):
    path = folder / "manifest.jsonl"
    one, two, *rest = map(json.loads, path.read_text().splitlines())
    one["position"], two["position"] = two["position"], one["position"]
    path.write_text("".join(json.dumps(line) + "\n" for line in (one, two, *rest)))


def cut_manifest(folder):
    path = folder / "manifest.jsonl"
    path.write_text(path.read_text()[:-30])


def flipped_byte(folder):
    path = folder / "validation-00000.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def folder_for_shard(folder):
    (folder / "validation-00000.tfrecord").unlink()
    (folder / "validation-00000.tfrecord").mkdir()


def outside(folder):
    index = json.loads((folder / "index.json").read_text())
    shutil.move(
        folder / "validation-00000.tfrecord", folder.parent / "elsewhere.tfrecord"
    )
    shard = {**index["shards"][0], "file": "../elsewhere.tfrecord"}
    index_of(folder, shards=[shard, *index["shards"][1:]])
    resealed(folder)


def float999(folder):
    packing = json.loads((folder / "index.json").read_text())["packing"]
    index_of(folder, packing={**packing, "dtype": "float999"})
    resealed(folder)


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (cut_index, ("index.json", "damaged")),
        (
            lambda folder: (folder / "index.json").write_text("{}"),
            ("index.json", "lacks format"),
        ),
        (
            lambda folder: (folder / "index.json").write_text("[]"),
            ("index.json", "JSON list"),
        ),
        (lambda folder: index_of(folder, format=0), ("index.json", "are in 0")),
        (lambda folder: index_of(folder, format=99), ("index.json", "are in 99")),
        (
            lambda folder: index_of(folder, duration_s=1.0),
            ("index.json", "does not match its h"),
        ),
        (float999, ("index.json", "packing.dtype")),
        (outside, ("index.json", "../elsewhere.tfrecord")),
        (edited_text, ("manifest.jsonl", "does not match its hash")),
        (swapped_positions, ("manifest.jsonl", "does not match its hash")),
        (cut_manifest, ("manifest.jsonl", "does not match its hash")),
        (folder_for_shard, ("validation-00000.tfrecord",)),
        (flipped_byte, ("validation-00000.tfrecord", "do not match their hash")),
    ],
)
def test_shards_that_are_not_as_they_were_written(
    refused, run_dir, shards, damage, names
):
    damage(shards / "validation")
    words = ("--run_dir", run_dir, "--shard_dir", shards, "--split", "validation")
    refused("evaluate", *words, keeps=shards, names=names)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty_archive(path):
    with zipfile.ZipFile(path, "w"):
        pass


@pytest.mark.parametrize(
    ("file", "damage", "more"),
    [
        ("experiment.json", cut, ()),
        ("experiment.json", lambda path: path.write_text("[]"), ()),
        ("experiment.json", lambda path: path.write_text('{"training": 3}'), ()),
        ("alphabet.json", cut, ()),
        (
            "alphabet.json",
            lambda path: path.write_text('{"characters": 3, "separator": 4}'),
            (),
        ),
        ("alphabet.json", lambda path: path.unlink(), ()),
        ("run.json", cut, ()),
        ("run.json", lambda path: path.unlink(), ()),
        ("run.json", lambda path: path.write_bytes(b"\xff\xfe"), ()),
        ("checkpoints/best.npz", cut, ()),
        ("checkpoints/best.npz", flip, ()),
        ("checkpoints/best.npz", lambda path: path.write_bytes(b""), ()),
        ("checkpoints/best.npz", empty_archive, ()),
        ("lexicon.txt", lambda path: path.write_text(""), ("--decoder", "word_beam")),
        (
            "lexicon.txt",
            lambda path: path.write_text("größe\n"),
            ("--decoder", "word_beam"),
        ),
        (
            "lexicon.txt",
            lambda path: path.write_bytes("größe".encode("latin-1")),
            ("--decoder", "word_beam"),
        ),
    ],
)
def test_a_damaged_file_of_a_run(refused, run_dir, file, damage, more):
    damage(run_dir / file)
    words = ("--run_dir", run_dir, "--split", "validation", *more)
    refused("evaluate", *words, keeps=run_dir, names=(file,))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--beam_width", "0"), ("beam_width must be 1..65536", "Received: 0")),
        (("--beam_width", "-5"), ("Received: -5",)),
        (("--beam_width", "1000000", "--decoder", "beam"), ("Received: 1000000",)),
        (("--beam_width", "1000000", "--decoder", "word_beam"), ("Received: 1000000",)),
        (("--checkpoint", "nowhere.npz"), ("nowhere.npz",)),
    ],
)
def test_a_flag_that_asks_for_the_impossible(refused, run_dir, flags, names):
    words = ("--run_dir", run_dir, "--split", "validation", *flags)
    refused("evaluate", *words, keeps=run_dir, names=names)


def test_a_beam_that_memory_does_not_hold_is_refused_with_one_that_fits():
    from tfasr.decoding.choice import DecoderConfig, check_beam
    from tfasr.errors import UsageError

    wide = DecoderConfig(name="beam", beam_width=60000)
    with pytest.raises(
        UsageError, match=r"needs about 1\d\d\.\d GiB.*--beam_width 4\d\d or less"
    ):
        check_beam(wide, num_classes=30, frames=400, available_bytes=2 * 2**30)
    check_beam(DecoderConfig(name="beam", beam_width=400), 30, 400, 2 * 2**30)


def test_a_checkpoint_that_is_a_sound_file(refused, run_dir):
    sound = run_dir / "some.wav"
    soundfile.write(sound, noise(0.2), 16000)
    words = ("--run_dir", run_dir, "--split", "validation", "--checkpoint", sound)
    refused("evaluate", *words, keeps=run_dir, names=(str(sound), "checkpoint"))


@pytest.mark.parametrize("place", [".", "no_such_folder/hypotheses.jsonl"])
def test_hypotheses_where_no_file_can_be_are_refused_before_the_work(
    refused, run_dir, place
):
    path = run_dir / place
    words = ("--run_dir", run_dir, "--split", "validation", "--hypotheses", path)
    refused("evaluate", *words, keeps=run_dir, names=(str(path), "folder"))


def test_weights_that_are_no_numbers_are_scored_with_a_word(tfasr, run_dir):
    best = run_dir / "checkpoints" / "best.npz"
    with np.load(best) as saved:
        arrays = dict(saved)
    first = next(name for name in arrays if arrays[name].ndim > 1)
    arrays[first] = np.full_like(arrays[first], np.nan)
    np.savez(best, **arrays)
    ended = tfasr(
        "evaluate", "--run_dir", run_dir, "--split", "validation", "--format", "json"
    )
    assert "best.npz holds weights that are not finite" in ended.err


# CSV whose cells come from files that nobody vouches for.


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1"]
)
def test_a_text_that_a_spreadsheet_would_run_is_quoted(text):
    records = Records([text, "n"], [[text, -1.5]])
    rows = list(
        csv.reader(
            io.StringIO(table_to_csv(Table("t", ["A", "n"], [], records=records)))
        )
    )
    assert rows == [["'" + text, "n"], ["'" + text, "-1.5"]]


def test_a_carriage_return_begins_no_line(tmp_path):
    table = Table("t", ["A", "B"], [], records=Records(["A", "B"], [["a\r=1", "\r=2"]]))
    rows = list(csv.reader(io.StringIO(table_to_csv(table))))
    assert rows == [["A", "B"], ["a\n=1", "'\n=2"]]


@pytest.mark.parametrize("text", ["-1.5", "+3", "a=b", "", "don't", "-inf"])
def test_numbers_and_words_stay_as_they_are(text):
    table = Table("t", ["A", "B"], [], records=Records(["A", "B"], [[text, "x"]]))
    assert table_to_csv(table) == f"A,B\n{text},x\n"


# What a user may not read or write: one line that names it, and the rest goes on.

NOBODY = 65534


@contextlib.contextmanager
def without_privileges():
    """Lets permissions hold for the block: to a superuser none do."""
    if os.geteuid():
        yield
        return

    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """Returns a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        for path in Path(folder).rglob("*"):
            path.chmod(0o755)


@pytest.mark.parametrize("locked", ["events.jsonl", "."])
def test_an_unreadable_run_is_left_out_of_a_folders_report_by_name(
    tfasr, open_folder, locked
):
    for name in ("one", "two"):
        ledger_of([0.5, 0.1, 0.1]).write(open_folder / name)
    assert tfasr("report", open_folder).status == 0  # imports what nobody may not read
    (open_folder / "two" / locked).chmod(0)
    with without_privileges():
        folder = tfasr("report", open_folder)
        alone = tfasr("report", open_folder / "two")

    assert folder.status == 0, folder.err
    said = " ".join(folder.out.split())
    assert f"{open_folder / 'two'} is left out." in said
    assert "change its permissions" in said
    assert (alone.status, "Traceback" in alone.err) == (2, False)
    assert str(open_folder / "two") in alone.err
    assert "change its permissions" in alone.err


def test_unreadable_audio_and_folders_are_named_with_the_remedy(open_folder):
    sound = open_folder / "a.wav"
    soundfile.write(sound, noise(0.1), 16000)
    read_audio(sound)
    sound.chmod(0)
    (open_folder / "corpus").mkdir()
    (open_folder / "corpus").chmod(0)
    with without_privileges():
        with pytest.raises(
            ValueError, match=rf"{sound}: this user may not read it; change its p"
        ):
            read_audio(sound)
        with pytest.raises(
            UsageError, match=r"must be readable\. Received: .*corpus: Permission"
        ):
            require_folder(open_folder / "corpus", "a folder")


@pytest.mark.skipif(
    not Path("/sys/kernel").is_dir(), reason="needs Linux's read-only /sys"
)
@pytest.mark.parametrize("command", ["train", "prepare", "report"])
def test_a_folder_that_takes_no_files_is_named(
    tfasr, corpus, shards, tmp_path, command
):
    words = {
        "train": (
            "--gin_file",
            TINY,
            "--shard_dir",
            shards,
            "--run_dir",
            "/sys/kernel/run",
        ),
        "prepare": (
            "--corpus",
            "tsv",
            "--corpus_dir",
            corpus,
            "--shard_dir",
            "/sys/kernel/s",
        ),
        "report": (
            ledger_of([0.5]).write(tmp_path / "run"),
            "--out",
            "/sys/kernel/out",
        ),
    }[command]
    ended = tfasr(command, *words)
    assert ended.status in (1, 2)
    assert "Traceback" not in ended.err
    assert "/sys/kernel/" in ended.err
    assert "choose another" in ended.err.lower()


def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path, run_dir):
    plugin = tmp_path / "slow.py"
    plugin.write_text(
        f"import os, time\nos.kill(os.getpid(), {int(signal.SIGINT)})\ntime.sleep(9)\n"
    )
    (tmp_path / "tensorflow.py").write_text("raise KeyboardInterrupt\n")
    for command, more in (("report", ("x", "--import", plugin)), ("evaluate", ())):
        words = more or ("--run_dir", run_dir, "--split", "test")
        done = subprocess.run(
            [sys.executable, "-m", "tfasr.cli", command, *map(str, words)],
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
            },
            capture_output=True,
            text=True,
            # A shell's background jobs, and what they start, ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert done.returncode == 1
        assert done.stderr.endswith("interrupted\n")
        assert "Traceback" not in done.stderr
