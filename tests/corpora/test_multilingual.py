"""Common Voice, FLEURS, Multilingual LibriSpeech, datasets and lhotse, in small folders of their
layout."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tfasr.corpora.corpus import available_splits, read_split
from tfasr.corpora.utterance import Segment
from tfasr.errors import UsageError

RATE_HZ = 16000


def sound(seconds: float = 0.5, form: str = "WAV") -> bytes:
    file = io.BytesIO()
    tone = 0.1 * np.sin(np.arange(round(seconds * RATE_HZ)) / 7)
    soundfile.write(file, tone, RATE_HZ, format=form)
    return file.getvalue()


def put(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def rows(
    corpus: str, folder: Path, split: str, **options
) -> list[tuple[str, str, str]]:
    found = read_split(corpus, folder, split, **options)
    assert not found.rejections
    assert all(
        utterance.duration_s == pytest.approx(0.5, 0.1)
        for utterance in found.utterances
    )
    return [
        (utterance.id, utterance.text, utterance.speaker)
        for utterance in found.utterances
    ]


@pytest.fixture
def common_voice(tmp_path) -> Path:
    folder = tmp_path / "cv-corpus-17.0-2024-03-15" / "de"
    head = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\t"
    head += "gender\taccents\tvariant\tlocale\tsegment\n"
    for split, number in (("train", 1), ("dev", 2), ("validated", 3)):
        line = (
            f"ab{number}\tcommon_voice_de_{number}.mp3\t9f\t"
            'Er sagte: "Grüß"\t\t2\t0\t\t\t\t\tde\t'
        )
        put(folder / f"{split}.tsv", head + line + "\n")
        put(folder / "clips" / f"common_voice_de_{number}.mp3", sound(form="MP3"))

    return folder


def test_common_voice(common_voice):
    assert available_splits("common_voice", common_voice) == [
        "train",
        "validation",
        "validated",
    ]
    expected = [("common_voice_de_2", 'er sagte: "grüß"', "ab2")]
    assert rows("common_voice", common_voice, "validation") == expected
    assert rows("common_voice", common_voice, "validated")[0][0] == "common_voice_de_3"
    with pytest.raises(UsageError, match=r"train\.tsv.*Found there: de/"):
        available_splits("common_voice", common_voice.parent)
    with pytest.raises(UsageError, match="train, validation, validated.*'test'"):
        read_split("common_voice", common_voice, "test")


def test_a_damaged_list_of_common_voice_is_reported_by_line(common_voice):
    path = common_voice / "train.tsv"
    path.write_bytes(
        path.read_bytes() + b"short\tline\n" + "Gr\xfc\xdfe\t\n".encode("latin-1")
    )
    reasons = [
        r.detail for r in read_split("common_voice", common_voice, "train").rejections
    ]
    assert "line 3: it must have 13 columns, not 2" in reasons[0]
    assert "line 4: it is not UTF-8" in reasons[1]
    put(path, "client_id\tpath\nab\tx.mp3\n")
    with pytest.raises(UsageError, match=r"train\.tsv must have a column 'sentence'"):
        _ = read_split("common_voice", common_voice, "train").utterances


@pytest.mark.parametrize("place", ["audio/dev", "dev", "audio"])
def test_fleurs(tmp_path, place):
    line = "1509\t12345.wav\tEr sagte: Nein!\ter sagte nein\te r | s a g t e |\t8000\tMALE\n"
    put(tmp_path / "dev.tsv", line)
    put(tmp_path / place / "12345.wav", sound())
    assert available_splits("fleurs", tmp_path) == ["validation"]
    assert rows("fleurs", tmp_path, "validation") == [("12345", "er sagte nein", "")]


@pytest.mark.parametrize("suffix", ["flac", "opus"])
def test_multilingual_librispeech(tmp_path, suffix):
    put(tmp_path / "train" / "transcripts.txt", "252_1_000000\tguten tag\n")
    put(
        tmp_path / "train" / "segments.txt",
        "252_1_000000\thttps://example.org\t0\t0.5\n",
    )
    content = sound(form="FLAC") if suffix == "flac" else opus()
    put(tmp_path / "train" / "audio" / "252" / "1" / f"252_1_000000.{suffix}", content)
    assert available_splits("mls", tmp_path) == ["train"]
    assert rows("mls", tmp_path, "train") == [("252_1_000000", "guten tag", "252")]


def opus() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(RATE_HZ // 2), RATE_HZ, format="OGG", subtype="OPUS")
    return file.getvalue()


def audio_column(names: list[str]) -> list[dict]:
    return [{"bytes": sound(), "path": name} for name in names]


def test_parquet_with_audio_bytes(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="needs pip install 'tfasr[parquet]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"audio": audio_column(["a.wav", "b.wav"]), "sentence": ["Ja", "Nein"]}
    )
    (tmp_path / "de").mkdir()
    parquet.write_table(table, tmp_path / "de" / "train-00000-of-00001.parquet")
    assert available_splits("dataset", tmp_path) == ["train"]
    assert rows("dataset", tmp_path, "train") == [("a", "ja", ""), ("b", "nein", "")]
    written = sorted((tmp_path / "tfasr-audio" / "train").iterdir())
    assert [path.read_bytes() for path in written] == [sound(), sound()]
    times = [path.stat().st_mtime_ns for path in written]
    rows("dataset", tmp_path, "train")
    assert [path.stat().st_mtime_ns for path in written] == times
    (tmp_path / "de" / "train-00000-of-00001.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(UsageError, match="parquet must be a readable table"):
        read_split("dataset", tmp_path, "train")


def test_a_dataset_saved_to_disk(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="needs pip install 'tfasr[parquet]'")
    put(tmp_path / "dataset_dict.json", json.dumps({"splits": ["train", "test"]}))
    columns = {"audio": audio_column(["x.wav"]), "text": ["Ja"], "speaker_id": [7]}
    table = pa.table(columns)
    for split in ("train", "test"):
        put(tmp_path / split / "state.json", "{}")
        with pa.ipc.new_stream(
            tmp_path / split / "data-00000-of-00001.arrow", table.schema
        ) as out:
            out.write_table(table)

    assert available_splits("dataset", tmp_path) == ["train", "test"]
    assert rows("dataset", tmp_path, "test") == [("x", "ja", "7")]
    with pytest.raises(
        UsageError, match="'validation'.*Found there: dataset_dict.json"
    ):
        read_split("dataset", tmp_path, "validation")


def test_a_dataset_without_text_names_its_columns(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="needs pip install 'tfasr[parquet]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"label": [1]}), tmp_path / "train.parquet")
    with pytest.raises(UsageError, match="one of text, sentence.*has label"):
        read_split("dataset", tmp_path, "train")


RECORDING = {
    "id": "r1",
    "sources": [{"type": "file", "channels": [0], "source": "wav/r1.wav"}],
    "sampling_rate": RATE_HZ,
    "num_samples": RATE_HZ // 2,
    "duration": 0.5,
}
SUPERVISION = {
    **{"id": "s1", "recording_id": "r1", "start": 0.0, "duration": 0.5, "channel": 0},
    **{"text": "Ja", "language": "German", "speaker": "anna"},
}


def cut(**changes) -> dict:
    rest = {"id": "c1", "start": 0.0, "duration": 0.5, "channel": 0, "type": "MonoCut"}
    return {**rest, "supervisions": [SUPERVISION], "recording": RECORDING, **changes}


def lines(*objects: dict) -> bytes:
    return gzip.compress("".join(json.dumps(o) + "\n" for o in objects).encode())


def test_lhotse_cuts_and_supervisions(tmp_path):
    put(tmp_path / "wav" / "r1.wav", sound())
    put(tmp_path / "cuts_train.jsonl.gz", lines(cut()))
    assert rows("lhotse", tmp_path, "train", manifest="cuts_train.jsonl.gz") == [
        ("c1", "ja", "anna")
    ]
    put(tmp_path / "mini_supervisions_train.jsonl.gz", lines(SUPERVISION))
    name = "mini_supervisions_train.jsonl.gz"
    with pytest.raises(
        UsageError, match="mini_recordings_train.jsonl.gz, which does not exist"
    ):
        read_split("lhotse", tmp_path, "train", manifest=name)
    put(tmp_path / "mini_recordings_train.jsonl.gz", lines(RECORDING))
    assert rows("lhotse", tmp_path, "train", manifest=name) == [("s1", "ja", "anna")]


def test_cuts_of_parts_are_segments_and_damaged_lines_are_rejected(tmp_path):
    put(tmp_path / "wav" / "r1.wav", sound())
    content = [
        cut(),
        cut(id="c2", start=0.3, duration=0.2),
        cut(supervisions=[]),
        {"id": 1},
    ]
    put(tmp_path / "train.jsonl", gzip.decompress(lines(*content)) + b"[1]\n{\n")
    found = read_split("lhotse", tmp_path, "train")
    utterances = {utterance.id: utterance for utterance in found.utterances}
    assert utterances["c1"].segment is None
    assert utterances["c2"].segment == Segment(0.3, 0.5)
    assert utterances["c2"].duration_s == pytest.approx(0.2)
    assert len(utterances) == 2
    assert len(found.rejections) == 4
