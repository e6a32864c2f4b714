"""Lists, names and recordings as people have them: each bad one costs only itself."""

import gzip
import io
import json
import logging
import os

import numpy as np
import pytest
import soundfile

from tests.data.made_corpus import TINY_FEATURES
from tfasr.alphabet import Alphabet
from tfasr.corpora import reading
from tfasr.corpora.corpus import available_splits, read_split
from tfasr.corpora.formats import format_of
from tfasr.corpora.speech_commands import official_split
from tfasr.data import manifest
from tfasr.data.audio import CHANNELS_CANCEL, OTHER_LENGTH, SILENT, read_audio
from tfasr.data.prepare_corpus import prepare
from tfasr.decoding import word_beam_search
from tfasr.errors import UsageError
from tfasr.kit import process
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.recognising.spec import pcm_chunks

RATE_HZ = 16000
NOISE = np.random.default_rng(0).uniform(-0.3, 0.3, RATE_HZ)


def put(path, samples=NOISE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE_HZ, **options)
    return path


def prepared(folder, **options) -> dict:
    return prepare(
        corpus="tsv",
        corpus_dir=folder,
        shard_dir=folder / "shards",
        features=TINY_FEATURES,
        model=AcousticModelConfig(conv_kernel=5, conv_stride=2),
        alphabet=Alphabet(),
        **options,
    )["train"]


def test_odd_recordings_are_counted_and_reported(tmp_path, caplog):
    put(tmp_path / "good.wav")
    put(tmp_path / "silent.wav", 0 * NOISE)
    put(
        tmp_path / "dithered.flac",
        np.random.default_rng(1).integers(-1, 2, RATE_HZ) / 2**15,
    )
    put(tmp_path / "inverted.wav", np.stack([NOISE, -NOISE], 1))
    put(
        tmp_path / "three.flac",
        np.stack([NOISE, -NOISE / 2, -NOISE / 2], 1),
        subtype="PCM_24",
    )
    put(tmp_path / "half.wav", np.stack([NOISE, 0 * NOISE], 1))
    lying = put(tmp_path / "lying.wav").read_bytes()
    (tmp_path / "lying.wav").write_bytes(lying[:40] + b"\0\1\0\0" + lying[44:])
    names = sorted(path.name for path in tmp_path.glob("*.*"))
    rows = "".join(f"{name}\tno\n" for name in names)
    (tmp_path / "train.tsv").write_text("path\ttext\n" + rows)
    with caplog.at_level(logging.WARNING, logger="tfasr"):
        index = prepared(tmp_path)
    assert index["utterances"] == len(names)
    assert index["remarks"] == {SILENT: 2, CHANNELS_CANCEL: 2, OTHER_LENGTH: 1}
    for kind, ids in (
        (SILENT, ("silent", "dithered")),
        (CHANNELS_CANCEL, ("inverted", "three")),
        (OTHER_LENGTH, ("lying",)),
    ):
        (message,) = (r.getMessage() for r in caplog.records if kind in r.getMessage())
        assert all(id_ in message for id_ in ids)

    details = json.loads(
        (tmp_path / "shards" / "train" / "train-00000.json").read_text()
    )
    assert len(details["remarks"]) == 5


@pytest.mark.parametrize("scale", [128, 32768, 2**23])
@pytest.mark.parametrize("form", ["wav", "aiff", "caf"])
def test_samples_on_another_scale_are_an_error_and_loud_ones_are_not(
    tmp_path, scale, form
):
    loud = put(tmp_path / f"loud.{form}", NOISE * 5, subtype="FLOAT")
    assert np.abs(read_audio(loud)).max() > 1.4
    path = put(tmp_path / f"scaled.{form}", NOISE * scale, subtype="FLOAT")
    with pytest.raises(ValueError, match="full scale is 1: scale them"):
        read_audio(path)


def test_a_recording_that_lasts_longer_than_its_header_says_is_still_too_long(tmp_path):
    put(tmp_path / "long.flac", np.tile(NOISE, 18))
    put(tmp_path / "good.flac")
    content = bytearray((tmp_path / "long.flac").read_bytes())
    content[21] &= 0xF0
    content[22:26] = (16000).to_bytes(4, "big")
    (tmp_path / "long.flac").write_bytes(content)
    (tmp_path / "train.tsv").write_text("path\ttext\nlong.flac\tno\ngood.flac\tno\n")
    assert prepared(tmp_path, max_bad_fraction=0.5)["utterances"] == 1
    dropped = json.loads((tmp_path / "shards" / "train" / "dropped.json").read_text())
    assert dropped["reasons"] == {"longer than max_duration_s": 1}
    assert (
        "states 16000 samples, but 288000 are there"
        in dropped["utterances"][0]["detail"]
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_every_list_may_have_a_mark_and_separators_within_a_text(
    tmp_path, end, encoding
):
    put(tmp_path / "a.wav")
    put(tmp_path / "wav" / "1_2_3.flac")
    put(tmp_path / "clips" / "c.wav")
    text = "one\u2028two\u0085three\x0bfour"
    cut = {
        "id": "c",
        "start": 0,
        "duration": 1.0,
        "supervisions": [{"id": "s", "text": text}],
        "recording": {
            "duration": 1.0,
            "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
        },
    }
    lists = {
        ("tsv", "list.tsv"): ["path\ttext", f"a.wav\t{text}"],
        ("json", "list.json"): [
            json.dumps({"audio_filepath": "a.wav", "text": text}, ensure_ascii=False)
        ],
        ("lhotse", "list.jsonl"): [json.dumps(cut, ensure_ascii=False)],
        ("stm", "list.stm"): [f"a 1 anna 0 1 {text}"],
        ("common_voice", "train.tsv"): [
            "client_id\tpath\tsentence",
            f"anna\tc.wav\t{text}",
        ],
    }
    for (corpus, name), lines in lists.items():
        (tmp_path / name).write_bytes((end.join(lines) + end).encode(encoding))
        options = {} if corpus == "common_voice" else {"manifest": name}
        split = read_split(corpus, tmp_path, "train", **options)
        assert [u.text.split() for u in split.utterances] == [
            ["one", "two", "three", "four"]
        ], corpus
        assert split.rejections == []


@pytest.fixture
def commands(tmp_path):
    """A Speech Commands folder: speakers by split, three words each."""
    speakers = {}
    for number in range(2000):
        name = f"{number:08x}"
        speakers.setdefault(official_split(f"{name}_nohash_0.wav"), []).append(name)

    for split in speakers:
        for speaker in speakers[split][:4]:
            for word in ("up", "down"):
                put(tmp_path / word / f"{speaker}_nohash_0.wav", NOISE[:1600])

    return tmp_path, {split: names[:4] for split, names in speakers.items()}


BAD_LINES = {
    "not UTF-8": lambda path: b"\xff\xfe" + path.encode(),
    "no slash": lambda path: path.replace("/", " ").encode(),
    "backslash": lambda path: path.replace("/", "\\").encode(),
    "without the word": lambda path: path.partition("/")[2].encode(),
    "cut off": lambda path: path[:-9].encode(),
    "misspelt": lambda path: path.replace("up", "upp").encode(),
    "gone": lambda path: b"",
}


@pytest.mark.parametrize("kind", sorted(BAD_LINES))
@pytest.mark.parametrize("by_rule", [True, False])
def test_a_bad_line_never_puts_a_test_recording_into_training(commands, kind, by_rule):
    folder, speakers = commands
    # A list that follows the official rule, or another.
    split = "test" if by_rule else "train"
    listed = [
        f"{word}/{s}_nohash_0.wav"
        for word in ("down", "up")
        for s in speakers[split][:3]
    ]
    if by_rule:
        listed += [
            f"{word}/{speakers[split][3]}_nohash_0.wav" for word in ("down", "up")
        ]
    lines = [line.encode() for line in listed]
    bad = lines.index(f"up/{speakers[split][1]}_nohash_0.wav".encode())
    lines[bad] = BAD_LINES[kind](listed[bad])
    if kind == "gone":
        if not by_rule:
            pytest.skip("nothing tells that a line of a list of one's own is missing")
        lines.append(b"a malformed line")

    (folder / "testing_list.txt").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "validation_list.txt").write_bytes(b"")
    training = {u.id for u in read_split("speech_commands", folder, "train").utterances}
    test = read_split("speech_commands", folder, "test")
    assert not training & {line.removesuffix(".wav") for line in listed}
    assert {line.removesuffix(".wav") for line in listed} <= {
        u.id for u in test.utterances
    }
    assert len(test.rejections) == 1


def sound(**options) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, NOISE, RATE_HZ, **options)
    return file.getvalue()


STREAMS = {
    "WAV": sound(format="WAV"),
    "FLAC": sound(format="FLAC"),
    "Ogg": sound(format="OGG"),
    "MP3": sound(format="MP3"),
    "AIFF": sound(format="AIFF"),
    "CAF": sound(format="CAF"),
    "AU": sound(format="AU"),
    "SPHERE": sound(format="NIST", subtype="PCM_16"),
    "mov": b"\0\0\0\x20ftypM4A " + bytes(100),
    "matroska": b"\x1aE\xdf\xa3" + bytes(100),
    "AAC": 3 * (b"\xff\xf1\x50\x80\x19\x1f\xfc" + bytes(193)),  # frames of 200 bytes
    "gzip": gzip.compress(NOISE.tobytes()),
    "ZIP": b"PK\3\4" + bytes(100),
}


@pytest.mark.parametrize("name", sorted(STREAMS))
@pytest.mark.parametrize("chunk_s", [0.002, 0.1, 2.0])
def test_a_stream_that_is_a_file_is_refused(name, chunk_s):
    with pytest.raises(UsageError, match=f"must be raw PCM.*{name}.*ffmpeg"):
        list(pcm_chunks(io.BytesIO(STREAMS[name]), RATE_HZ, chunk_s))
    tagged = b"ID3\4\0\0\0\0\0\0" + STREAMS["MP3"]
    with pytest.raises(UsageError, match="MP3"):
        list(pcm_chunks(io.BytesIO(tagged), RATE_HZ, chunk_s))


def test_speech_is_not_taken_for_a_file():
    rng = np.random.default_rng(5)
    for scale in (1, 100, 3000, 30000):
        for _ in range(2000):
            samples = (
                rng.normal(scale=scale, size=2048).clip(-32768, 32767).astype("<i2")
            )
            assert format_of(samples.tobytes()) is None

    content = samples.tobytes()
    assert (
        b"".join(c.tobytes() for c in pcm_chunks(io.BytesIO(content), RATE_HZ))
        == content
    )


def test_datasets_take_ids_and_folders_and_lose_only_bad_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    content = sound(format="FLAC")

    def read(**columns):
        (tmp_path / "data").mkdir(exist_ok=True)
        parquet.write_table(
            pyarrow.table(columns), tmp_path / "data" / "train-0.parquet"
        )
        split = read_split("dataset", tmp_path, "train")
        rejected = [(r.id, r.reason) for r in split.rejections]
        return [(u.id, u.text) for u in split.utterances], rejected

    def audio(*paths):
        return [None if p is None else {"bytes": content, "path": p} for p in paths]

    assert read(
        audio=audio("a/x.flac", "b/x.flac", "../x.flac"), text=["one", "two", "three"]
    ) == (
        [("a/x", "one"), ("b/x", "two"), ("x", "three")],
        [],
    )
    same = read(audio=audio("x.flac", "x.flac"), text=["one", "two"], id=[7, 8])
    assert same == ([("7", "one"), ("8", "two")], [])
    assert read(audio=audio("a.flac", None, "c.flac"), text=["one", "two", None]) == (
        [("a", "one")],
        [("00000001", "transcript without audio"), ("c", "empty transcript")],
    )


@pytest.mark.skipif(os.name != "posix", reason="needs file names of bytes")
def test_names_that_are_not_utf_8_are_read(tmp_path):
    chapter = tmp_path / "train-clean" / "1" / "2"
    chapter.mkdir(parents=True)
    name = os.fsencode(chapter) + b"/caf\xe9.flac"
    put(chapter / "plain.flac").rename(os.fsdecode(name))
    (chapter / "1-2.trans.txt").write_text("plain yes\n")
    split = read_split("librispeech", tmp_path, "train")
    assert {r.reason for r in split.rejections} == {
        "audio without transcript",
        "transcript without audio",
    }
    word = tmp_path / "words" / "up"
    put(word / "a_nohash_0.wav").rename(
        os.fsdecode(os.fsencode(word) + b"/\xe9_nohash_0.wav")
    )
    put(tmp_path / "words" / "up" / "b_nohash_0.wav")
    ids = []
    for part in available_splits("speech_commands", tmp_path / "words"):
        split = read_split("speech_commands", tmp_path / "words", part)
        ids += [utterance.id for utterance in split.utterances]

    assert sorted(ids) == ["up/\\udce9_nohash_0", "up/b_nohash_0"]


def test_sphere_files_are_found_in_folders_and_read_by_name(tmp_path):
    from tfasr.recognising.files import find_sources

    for name in ("a.sph", "b.SPH", "c.nist"):
        put(tmp_path / name, format="NIST", subtype="PCM_16")
    assert [s.name for s in find_sources([str(tmp_path)])] == [
        "a.sph",
        "b.SPH",
        "c.nist",
    ]
    assert len(read_audio(tmp_path / "b.SPH")) == RATE_HZ


@pytest.mark.parametrize("cores", [0.5, 1, 3])
def test_pools_of_threads_honour_the_quota_of_a_control_group(monkeypatch, cores):
    monkeypatch.setattr(process, "quota", lambda: float(cores))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    expected = max(int(cores), 1)
    assert process.usable_cores() == expected
    search = word_beam_search.WordBeamSearch(Alphabet(), ["yes", "no"])
    assert search.num_threads == expected
    for module in (reading, manifest):
        assert module.usable_cores() == expected
