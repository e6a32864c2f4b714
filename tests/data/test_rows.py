"""What prepare keeps outside memory: in order, sorted, put into places; and what it notes."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.made_corpus import contents, make_utterances, packing, prepare_split, write_tsv
from tfasr.corpora import reading as assembly
from tfasr.corpora.manifests import read_tsv
from tfasr.data import listing
from tfasr.data import rows as rows_module
from tfasr.data.listing import packing_order
from tfasr.data.prepare import pack_split
from tfasr.data.rows import Rows, decoded, encoded, in_order, in_places
from tfasr.errors import RunError

TEXT = st.text(st.characters(exclude_categories=()), max_size=5)


@given(st.lists(st.tuples(TEXT, st.integers(-(2**40), 2**40)), max_size=12), st.integers(1, 5))
@settings(deadline=None)
def test_rows_come_back_sorted_and_placed_however_few_are_held(tmp_path_factory, rows, at_once):
    folder = tmp_path_factory.getbasetemp()
    kept = Rows(folder, 20).extend(rows)
    assert (len(kept), list(kept)) == (len(rows), [list(row) for row in rows])
    found = in_order(rows, lambda row: row[0], folder, at_once)
    assert list(map(tuple, found)) == sorted(rows, key=lambda row: row[0]), "stable"
    places = random.Random(0).sample(range(len(rows)), len(rows))
    placed = list(map(tuple, in_places(rows, places, len(rows), folder, at_once)))
    assert [placed[place] for place in places] == rows


def test_few_files_are_open_however_many_rows_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "_MOST_FILES", 3)
    rows = [(number * 7 % 20, "") for number in range(20)]
    expected = [[number, ""] for number in range(20)]
    assert list(map(list, in_order(rows, lambda row: row[0], tmp_path, 1))) == expected
    placed = in_places(rows, [row[0] for row in rows], 20, tmp_path, 1)
    assert list(map(list, placed)) == expected


def test_a_name_that_is_no_utf_8_survives():
    assert decoded(encoded(["a\udcffb"])) == ["a\udcffb"]


def test_the_order_of_a_split_is_that_of_older_versions(tmp_path, monkeypatch):
    """Shuffled as a list in memory was, whatever goes to files meanwhile."""
    monkeypatch.setattr(rows_module, "IN_MEMORY_BYTES", 100)
    rows = Rows(tmp_path, 100).extend([f"u{n}", "", 1.0, "", "", 0, 0] for n in range(50))
    expected = [f"u{n}" for n in range(50)]
    random.Random("train").shuffle(expected)
    order = packing_order(rows, "train", packing(), tmp_path)
    assert [u.id for part in order.parts(7) for u in part] == expected


@pytest.mark.parametrize("least_computed", [0.0, 1e9], ids=["here", "threads"])
def test_headers_are_read_once_unless_a_file_changes(tmp_path, monkeypatch, least_computed):
    monkeypatch.setattr(listing, "_LEAST_COMPUTED", least_computed)
    monkeypatch.setattr(listing, "_CHUNK", 1)
    monkeypatch.setattr(listing, "_AHEAD", 3)
    utterances = make_utterances(tmp_path / "audio", 6)
    listed = write_tsv(tmp_path / "audio", utterances)
    utterances[2].audio_path.write_bytes(b"damaged")
    read = []

    def counted(path):
        read.append(path.stem)
        return audio_duration_s(path)

    audio_duration_s = assembly.audio_duration_s
    monkeypatch.setattr(assembly, "audio_duration_s", counted)

    def prepare(**options):
        read.clear()
        corpus = read_tsv(listed, tmp_path / "audio")
        return pack_split(corpus, "train", tmp_path / "shards", packing(), **options)

    with pytest.raises(RunError, match="1 of 6"):
        prepare()
    assert sorted(read) == [u.id for u in utterances]
    notes = tmp_path / "shards" / "train" / "prepare-listing.jsonl"
    with notes.open("ab") as file:  # as a kill leaves it
        file.write(b'["cut')
    with pytest.raises(RunError, match="1 of 6"):
        prepare()
    assert read == ["u002"], "what was damaged may have been mended"
    utterances[4].audio_path.write_bytes(utterances[3].audio_path.read_bytes())
    prepare(max_bad_fraction=0.5)
    assert sorted(read) == ["u002", "u004"]
    assert not notes.exists(), "needed no more"
    index = json.loads((tmp_path / "shards" / "train" / "index.json").read_text())
    assert (index["utterances"], index["bad"]) == (5, 1)
    good = [u for u in utterances if u.id != "u002"]
    order = [json.loads(line)["id"] for line in open_manifest(tmp_path / "shards")]
    prepare_split(good, tmp_path / "again")
    assert order == [json.loads(line)["id"] for line in open_manifest(tmp_path / "again")]
    assert contents(tmp_path / "again" / "train").keys() == contents(notes.parent).keys()


def open_manifest(shard_dir):
    return (shard_dir / "train" / "manifest.jsonl").read_text().splitlines()
