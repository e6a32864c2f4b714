"""Damaged, edited and foreign files that ``tfasr evaluate`` is given: one line that names them."""

import hashlib
import json
import shutil
import zipfile

import numpy as np
import pytest
import soundfile

from tests.data.made_corpus import noise


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
    shutil.move(folder / "validation-00000.tfrecord", folder.parent / "elsewhere.tfrecord")
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
        (cut_index, ("index.json", "cut or damaged")),
        (lambda folder: (folder / "index.json").write_text("{}"), ("index.json", "must hold")),
        (lambda folder: (folder / "index.json").write_text("[]"), ("index.json", "JSON list")),
        (lambda folder: index_of(folder, format=0), ("index.json", "says 0")),
        (lambda folder: index_of(folder, format=99), ("index.json", "says 99")),
        (lambda folder: index_of(folder, duration_s=1.0), ("index.json", "does not match its h")),
        (float999, ("index.json", "packing.dtype")),
        (outside, ("index.json", "../elsewhere.tfrecord")),
        (edited_text, ("manifest.jsonl", "does not match its hash")),
        (swapped_positions, ("manifest.jsonl", "does not match its hash")),
        (cut_manifest, ("manifest.jsonl", "does not match its hash")),
        (folder_for_shard, ("validation-00000.tfrecord",)),
        (flipped_byte, ("validation-00000.tfrecord", "do not match their hash")),
    ],
)
def test_shards_that_are_not_as_they_were_written(refused, run_dir, shards, damage, names):
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
        ("alphabet.json", lambda path: path.write_text('{"characters": 3, "separator": 4}'), ()),
        ("alphabet.json", lambda path: path.unlink(), ()),
        ("run.json", cut, ()),
        ("run.json", lambda path: path.unlink(), ()),
        ("run.json", lambda path: path.write_bytes(b"\xff\xfe"), ()),
        ("checkpoints/best.npz", cut, ()),
        ("checkpoints/best.npz", flip, ()),
        ("checkpoints/best.npz", lambda path: path.write_bytes(b""), ()),
        ("checkpoints/best.npz", empty_archive, ()),
        ("lexicon.txt", lambda path: path.write_text(""), ("--decoder", "word_beam")),
        ("lexicon.txt", lambda path: path.write_text("größe\n"), ("--decoder", "word_beam")),
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
    with pytest.raises(UsageError, match=r"needs about 1\d\d\.\d GiB.*--beam_width 4\d\d or less"):
        check_beam(wide, num_classes=30, frames=400, available_bytes=2 * 2**30)
    check_beam(DecoderConfig(name="beam", beam_width=400), 30, 400, 2 * 2**30)


def test_a_checkpoint_that_is_a_sound_file(refused, run_dir):
    sound = run_dir / "some.wav"
    soundfile.write(sound, noise(0.2), 16000)
    words = ("--run_dir", run_dir, "--split", "validation", "--checkpoint", sound)
    refused("evaluate", *words, keeps=run_dir, names=(str(sound), "checkpoint"))


@pytest.mark.parametrize("place", [".", "no_such_folder/hypotheses.jsonl"])
def test_hypotheses_where_no_file_can_be_are_refused_before_the_work(refused, run_dir, place):
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
    ended = tfasr("evaluate", "--run_dir", run_dir, "--split", "validation", "--format", "json")
    assert "best.npz holds weights that are not finite" in ended.err


def test_shards_of_an_older_tfasr_are_scored_with_a_word(tfasr, run_dir, shards):
    folder = shards / "validation"
    index = json.loads((folder / "index.json").read_text())
    for name in ("index_sha256", "manifest_sha256"):
        del index[name]
    for shard in index["shards"]:
        del shard["sha256"]
    (folder / "index.json").write_text(json.dumps(index))
    manifest = folder / "manifest.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    for line in lines:
        del line["content"]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--run_dir", run_dir, "--shard_dir", shards, "--split", "validation")
    ended = tfasr("evaluate", *words)
    assert ended.status == 0, ended.err
    assert "prepared by an older tfasr, without hashes" in ended.err
