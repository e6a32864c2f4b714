"""`tfasr transcribe`: formats, folders, resumption, bad files, standard input."""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.commands.test_terminal import on_terminal
from tests.recognising.conftest import exported_tones
from tests.recognising.spoken_tones import RUN, spoken, write_wav
from tfasr.cli import parse, run
from tfasr.decoding.language_models import NgramModel
from tfasr.recognising.files import FORMATS
from tfasr.recognising.spec import Transcript, Word

__all__ = ["exported_tones"]

TEXTS = {"one": "abc ab", "two": "dad", "three": "bb cab"}


@pytest.fixture(scope="module")
def transcribe(exported_tones):
    """Runs the command; an exported folder is loaded sooner than a run."""

    def transcribe(*words: object) -> int:
        given = ["--run_dir", exported_tones, *words]
        return run(parse(["tfasr", "transcribe", *map(str, given)]))

    return transcribe


@pytest.fixture(scope="module")
def audio(tmp_path_factory):
    """A folder of recordings, one of them in a folder below."""
    folder = tmp_path_factory.mktemp("audio")
    (folder / "below").mkdir()
    for number, (name, text) in enumerate(TEXTS.items()):
        where = folder / "below" if name == "three" else folder
        write_wav(where / f"{name}.wav", spoken(text, seed=number))

    (folder / "notes.txt").write_text("not audio")
    return folder


def test_a_run_folder_is_transcribed_with(audio, capsys):
    words = [str(audio / "one.wav"), "--run_dir", str(RUN)]
    assert run(parse(["tfasr", "transcribe", *words])) == 0
    assert capsys.readouterr().out == TEXTS["one"] + "\n"


def test_a_file_becomes_text_and_several_are_named(transcribe, audio, capsys):
    assert transcribe(audio / "one.wav") == 0
    assert capsys.readouterr().out == TEXTS["one"] + "\n"
    assert transcribe(audio / "one.wav", audio / "two.wav") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{audio / name}.wav\t{TEXTS[name]}" for name in ("one", "two")]


def test_files_of_a_folder_that_are_passed_over_are_counted_and_named(
    transcribe, audio, capsys
):
    assert transcribe(audio) == 0
    said = capsys.readouterr().err
    assert "notes.txt" in said
    assert "1 of 4 files" in said


def test_a_dictionary_of_ones_own_and_a_language_model(
    transcribe, audio, tmp_path, capsys
):
    (tmp_path / "words").write_text("abd\nab\n")
    words = ["--decoder", "word_beam", "--lexicon", tmp_path / "words"]
    out = tmp_path / "out"
    assert transcribe(audio / "one.wav", *words, "--out", out) == 0
    assert set((out / "one.txt").read_text().split()) <= {"abd", "ab"}
    # Other words make another recogniser.
    assert transcribe(audio / "one.wav", "--decoder", "word_beam", "--out", out) == 2
    assert transcribe(audio / "one.wav", "--lexicon", tmp_path / "words") == 2
    assert "word_beam" in capsys.readouterr().err
    assert transcribe(audio / "one.wav", "--lm_weight", 2) == 2
    assert "--language_model" in capsys.readouterr().err


def test_a_language_model_decides_between_words(transcribe, audio, tmp_path, capsys):
    pytest.importorskip(
        "kenlm", reason="needs the kenlm extra: pip install 'tfasr[kenlm]'"
    )
    (tmp_path / "words").write_text("abc\nabd\nab\n")
    NgramModel(["abd ab"] * 9 + ["abc ab"], 2).write(tmp_path / "model.arpa")
    words = [
        "--lexicon",
        tmp_path / "words",
        "--language_model",
        tmp_path / "model.arpa",
    ]
    # The run's decoder is greedy; a language model implies word beam search.
    for weight, text in ((0, "abc ab"), (10, "abd ab")):
        options = ["--lm_weight", weight]
        assert transcribe(audio / "one.wav", *words, *options) == 0
        assert capsys.readouterr().out == text + "\n"


def test_hot_words_decide_between_words(transcribe, audio, tmp_path, capsys):
    names = tmp_path / "names.txt"
    names.write_text("ABD\t12\n", encoding="utf-8-sig")
    # The run's decoder is greedy; hot words imply prefix beam search.
    assert transcribe(audio / "one.wav", "--hot_words", names) == 0
    assert capsys.readouterr().out == "abc abd\n"
    (tmp_path / "words").write_text("abc\nab\n")
    words = ["--decoder", "word_beam", "--lexicon", tmp_path / "words"]
    assert transcribe(audio / "one.wav", *words) == 0
    assert capsys.readouterr().out == "abc ab\n"
    assert transcribe(audio / "one.wav", *words, "--hot_words", names) == 0
    assert capsys.readouterr().out == "abc abd\n"
    names.write_text("abc\n日\n", encoding="utf-8")
    assert transcribe(audio / "one.wav", "--hot_words", names) == 2
    assert "Line 2" in capsys.readouterr().err
    # Other hot words make another recogniser.
    names.write_text("abc\n")
    out = tmp_path / "out"
    assert transcribe(audio / "one.wav", "--out", out, "--hot_words", names) == 0
    assert transcribe(audio / "one.wav", "--out", out) == 2


def test_subtitles_keep_the_limits_of_the_flags(transcribe, audio, tmp_path, capsys):
    narrow = ["--format", "srt", "--subtitle_characters", 3, "--subtitle_lines", 1]
    assert transcribe(audio / "one.wav", *narrow, "--subtitle_shortest_s", 0.1) == 0
    said = capsys.readouterr().out
    assert "\nabc\n\n2\n" in said
    assert transcribe(audio / "one.wav", *narrow, "--subtitle_longest_s", 0.5) == 2
    assert "--subtitle_longest_s must be at least" in capsys.readouterr().err
    assert (
        transcribe(audio / "one.wav", "--format", "vtt", "--out", tmp_path / "out") == 0
    )
    limits = ["--subtitle_lines", 1]  # results of other limits are never mixed
    assert (
        transcribe(
            audio / "two.wav", "--format", "vtt", "--out", tmp_path / "out", *limits
        )
        == 2
    )
    assert "subtitles differ" in capsys.readouterr().err


def test_progress_is_drawn_on_a_terminal_that_is_guarded(exported_tones, audio):
    words = ("transcribe", str(audio), "--run_dir", str(exported_tones))
    status, written = on_terminal(*words, cwd=audio)
    assert status == 0
    assert b"3/3" in written
    assert b"\x1b[2K" in written
    assert b"\\x1b" not in written


def test_every_format(transcribe, audio, tmp_path, capsys):
    outputs = {}
    for name in ("json", "srt", "vtt", "ctm", "tsv"):
        assert transcribe(audio / "one.wav", "--format", name) == 0
        outputs[name] = capsys.readouterr().out

    content = json.loads(outputs["json"])
    assert content["text"] == TEXTS["one"]
    assert [word["word"] for word in content["result"]] == TEXTS["one"].split()
    first = content["result"][0]
    last = content["result"][-1]
    assert first["start"] < first["end"] < last["end"] < content["duration_s"]
    assert outputs["srt"].splitlines()[0] == "1"
    assert outputs["srt"].splitlines()[2] == TEXTS["one"]
    start, arrow, _ = outputs["srt"].splitlines()[1].split()
    assert (start, arrow) == (f"00:00:{first['start']:06.3f}".replace(".", ","), "-->")
    assert outputs["vtt"].startswith("WEBVTT\n\n00:00:0")
    assert outputs["ctm"].splitlines()[0].split()[4] == "abc"
    header, row = outputs["tsv"].splitlines()[:2]
    cells = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert float(cells["start_s"]) == first["start"]


def test_a_folder_is_resumed_and_a_bad_file_is_skipped(
    transcribe, audio, tmp_path, capsys
):
    folder = tmp_path / "audio"
    out = tmp_path / "out"
    shutil.copytree(audio, folder)
    (folder / "bad.wav").write_text("no audio at all")
    assert transcribe(folder, "--out", out) == 1
    said = capsys.readouterr().err
    assert "bad.wav is skipped" in said
    assert "1 of 4 could not be transcribed" in said
    written = {path.relative_to(out).as_posix() for path in out.rglob("*.txt")}
    assert written == {"one.txt", "two.txt", "below/three.txt"}
    assert (out / "below" / "three.txt").read_text() == TEXTS["three"] + "\n"
    # A result that is there is kept, whatever it says; a missing one is made.
    (out / "one.txt").write_text("kept")
    (out / "two.txt").unlink()
    (folder / "bad.wav").unlink()
    assert transcribe(folder, "--out", out) == 0
    assert "2 of 3 are in --out already" in capsys.readouterr().err
    assert (out / "one.txt").read_text() == "kept"
    assert (out / "two.txt").read_text() == TEXTS["two"] + "\n"
    assert transcribe(folder, "--out", out, "--format", "json") == 2
    assert "its format differ" in capsys.readouterr().err


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_texts_of_the_users_own_are_neither_results_nor_overwritten(
    transcribe, audio, tmp_path, capsys, newer, begun
):
    out = tmp_path / "out"
    if begun:
        assert transcribe(audio / "two.wav", "--out", out) == 0
    (out / "below").mkdir(parents=True)
    mine = [out / "one.txt", out / "below" / "three.txt"]
    for path in mine:
        path.write_text("what I heard myself")
        if not newer:
            os.utime(path, (1, 1))

    before = sorted(out.rglob("*"))
    assert transcribe(audio, "--out", out) == 2
    assert "below/three.txt, one.txt" in capsys.readouterr().err
    assert {path.read_text() for path in mine} == {"what I heard myself"}
    assert sorted(out.rglob("*")) == before


def test_a_corrected_result_is_kept_and_an_emptied_one_made_again(
    transcribe, audio, tmp_path, capsys
):
    out = tmp_path / "out"
    folder = tmp_path / "audio"
    shutil.copytree(audio, folder)
    assert transcribe(folder, "--out", out) == 0
    (out / "one.txt").write_text("corrected")
    (out / "two.txt").write_text("")
    assert transcribe(folder, "--out", out) == 0
    assert (out / "one.txt").read_text() == "corrected"
    assert (out / "two.txt").read_text() == TEXTS["two"] + "\n"
    for name in ("one", "two"):  # recorded anew
        os.utime(folder / f"{name}.wav", (2**31, 2**31))
    assert transcribe(folder, "--out", out) == 2
    said = capsys.readouterr().err
    assert "one.txt" in said
    assert "two.txt" not in said
    assert (out / "one.txt").read_text() == "corrected"


def test_a_recording_that_an_older_one_replaced_is_transcribed_again(
    transcribe, audio, tmp_path
):
    out = tmp_path / "out"
    folder = tmp_path / "audio"
    shutil.copytree(audio, folder)
    assert transcribe(folder, "--out", out) == 0
    shutil.copy(audio / "one.wav", folder / "two.wav")
    os.utime(folder / "two.wav", (10**9, 10**9))  # years before the text
    assert transcribe(folder, "--out", out) == 0
    assert (out / "two.txt").read_text() == TEXTS["one"] + "\n"


def test_the_settings_are_no_result_and_no_other_files(
    transcribe, audio, tmp_path, capsys
):
    folder = tmp_path / "audio"
    out = tmp_path / "out"
    folder.mkdir()
    shutil.copy(audio / "one.wav", folder / "transcribe.wav")
    for already in ("", "1 of 1 are in --out already"):
        assert transcribe(folder, "--out", out, "--format", "json") == 0
        assert already in capsys.readouterr().err
        assert (
            json.loads((out / "transcribe.wav.json").read_text())["text"]
            == TEXTS["one"]
        )

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "transcribe.json").write_text('{"format": "mine"}')
    assert transcribe(folder, "--out", tmp_path / "mine") == 2
    assert "transcribe.json" in capsys.readouterr().err
    assert (tmp_path / "mine" / "transcribe.json").read_text() == '{"format": "mine"}'


def test_raw_samples_come_from_standard_input(transcribe, monkeypatch, capsys):
    # Half a sample more.
    raw = (spoken(TEXTS["one"]) * 32767).astype("<i2").tobytes() + b"\x00"

    def stdin():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    stdin()
    assert transcribe("-") == 0
    assert capsys.readouterr().out == TEXTS["one"] + "\n"
    stdin()
    assert transcribe("-", "--stream", "--chunk_ms", 37) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(line) == {"partial"} for line in lines[:-1])
    assert lines[-1]["text"] == TEXTS["one"]
    assert [word["word"] for word in lines[-1]["result"]] == TEXTS["one"].split()


def test_a_file_can_be_streamed(transcribe, audio, capsys):
    assert (
        transcribe(audio / "one.wav", "--stream", "--format", "text", "--no_endpoints")
        == 0
    )
    assert capsys.readouterr().out == TEXTS["one"] + "\n"


def write_loud(path, loudest):
    soundfile.write(path, np.full(16000, loudest), 16000, subtype="FLOAT")
    return path


def test_audio_whose_features_are_no_numbers_is_no_text(
    transcribe, audio, tmp_path, capsys
):
    folder = shutil.copytree(audio, tmp_path / "audio")
    out = tmp_path / "out"
    write_loud(folder / "loud.wav", 1e30)
    assert transcribe(folder, "--out", out) == 1
    captured = capsys.readouterr()
    assert "loud.wav is skipped" in captured.err
    assert "where full scale is 1" in captured.err
    written = {path.relative_to(out).as_posix() for path in out.rglob("*.txt")}
    assert written == {"one.txt", "two.txt", "below/three.txt"}
    for words in ([], ["--stream"], ["--format", "srt"]):
        assert transcribe(folder / "loud.wav", *words) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "1e+30" in captured.err

    # Integers that nobody scaled, written as floating-point numbers.
    assert transcribe(write_loud(folder / "loud.wav", 30000.0)) == 1
    assert "samples up to 3e+04" in capsys.readouterr().err


def test_a_rate_beyond_all_recorders_is_refused(transcribe, tmp_path, capsys):
    soundfile.write(
        tmp_path / "fast.wav", np.zeros(1000), 100_000_000, subtype="PCM_16"
    )
    assert transcribe(tmp_path / "fast.wav") == 1
    assert "100000000 Hz" in capsys.readouterr().err


def test_names_of_any_kind_are_transcribed(transcribe, audio, tmp_path, capsys):
    folder = tmp_path / "audio"
    out = tmp_path / "out"
    folder.mkdir()
    odd = "a\tb\nc.wav"
    too_long = "x" * 251 + ".wav"  # of which no result can be written
    for name in (odd, too_long, "z.wav"):
        shutil.copy(audio / "one.wav", folder / name)
    assert transcribe(folder, "--out", out, "--format", "json") == 1
    assert f"{too_long} is skipped" in capsys.readouterr().err
    assert {path.stem for path in out.glob("*.json")} >= {Path(odd).stem, "z"}
    for words in ([], ["--format", "tsv"]):
        assert transcribe(folder / odd, audio / "two.wav", *words) == 0
        out = capsys.readouterr().out
        # With the heading, a line for each word.
        assert out.count("\n") == (4 if words else 2)
        assert f"{folder}/a\\tb\\nc.wav\t" in out


def test_names_that_differ_in_their_suffixes_have_a_result_each(
    transcribe, tmp_path, capsys
):
    said = spoken("ab")
    for name in ("a.wav", "a.flac", "a.wav.flac"):
        soundfile.write(tmp_path / name, said, 16000)
    assert transcribe(tmp_path, "--out", tmp_path / "out") == 0
    written = {path.name for path in (tmp_path / "out").glob("*.txt")}
    assert written == {"a.wav.txt", "a.flac.txt", "a.wav.flac.txt"}


def test_closed_standard_input_is_told(transcribe, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    for words in ([], ["--stream"]):
        assert transcribe("-", *words) == 2
        assert "closed" in capsys.readouterr().err


def test_subtitles_hold_no_marks_of_a_word():
    words = [Word("<b>&amp;", 0.0, 1.0, 1.0)]
    assert "&lt;b&gt;&amp;amp;\n" in FORMATS["vtt"].write("a", Transcript(words, 1.0))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-", "a.wav"), "- must stand alone"),
        (("a.wav", "--batch_size", 0), "--batch_size must be at least 1"),
        (("a.wav", "b.wav", "--format", "srt"), "--format srt"),
        (("a.wav", "--stream", "--format", "srt"), "json or text"),
        (("a.wav", "--stream", "--chunk_ms", 0), "--chunk_ms must be positive"),
        (("a.wav", "--stream", "--chunk_ms", "inf"), "Received: inf"),
        (("a.wav", "--stream", "--chunk_ms", "nan"), "Received: nan"),
        (("a.wav", "b.wav", "--stream"), "--stream takes one"),
    ],
)
def test_wrong_use_is_told_before_any_work(transcribe, words, said, capsys):
    assert transcribe(*words) == 2
    assert said in capsys.readouterr().err


def test_what_cannot_be_found_is_told(transcribe, tmp_path, capsys):
    assert transcribe(tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert transcribe(tmp_path / "missing.wav") == 2
    assert "does not exist" in capsys.readouterr().err
    assert transcribe(tmp_path / "missing.wav", "--stream") == 2
    assert "does not exist" in capsys.readouterr().err
    twice = [tmp_path / folder / "a.wav" for folder in ("x", "y")]
    for path in twice:
        path.parent.mkdir()
        write_wav(path, np.zeros(1600, np.float32))

    assert transcribe(*twice, "--out", tmp_path / "out") == 2
    assert "Name the folder" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_told(transcribe, tmp_path, capsys):
    shutil.copytree(RUN, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    write_wav(tmp_path / "a.wav", np.zeros(1600, np.float32))
    assert transcribe(tmp_path / "a.wav", "--run_dir", tmp_path / "run") == 2
    assert "no checkpoint yet" in capsys.readouterr().err
