"""The synthetic corpus: complete, repeatable, and never half made."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tfasr.alphabet import Alphabet
from tfasr.corpora import espeak
from tfasr.corpora.corpus import available_splits, read_split
from tfasr.corpora.espeak import Espeak
from tfasr.corpora.synthetic import make_synthetic_corpus
from tfasr.data.audio import read_audio
from tfasr.errors import RunError, UsageError

REPOSITORY = Path(__file__).parents[2]
SMALL = {"num_train": 24, "num_validation": 6, "num_test": 6, "num_voices": 18}
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module", autouse=True)
def synthesiser():
    pytest.importorskip("espeakng_loader", reason="needs pip install 'tfasr[demo]'")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, synthesiser) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "corpus"
    make_synthetic_corpus(folder, seed=3, **SMALL)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def making(folder: Path, before: str = "", **arguments) -> list[str]:
    code = (
        f"{before}\nfrom tfasr.corpora.synthetic import make_synthetic_corpus\n"
        f"make_synthetic_corpus({str(folder)!r}, **{arguments})"
    )
    return [sys.executable, "-c", code]


def test_the_corpus_is_complete_and_speakable(corpus):
    assert available_splits("synthetic", corpus) == list(SPLITS)
    voices = {}
    for split, count in zip(SPLITS, (24, 6, 6), strict=True):
        found = read_split("synthetic", corpus, split)
        assert (len(found.utterances), found.rejections) == (count, [])
        voices[split] = {u.speaker for u in found.utterances}
        for utterance in found.utterances:
            assert Alphabet().foreign_characters(utterance.text) == []
            assert 0.2 < utterance.duration_s < 8
            info = soundfile.info(utterance.audio_path)
            assert (info.samplerate, info.subtype, info.channels) == (
                22050,
                "PCM_16",
                1,
            )
            assert np.abs(read_audio(utterance.audio_path)).max() > 0.02

    assert len(voices["validation"] | voices["test"]) >= 4
    assert not voices["train"] & voices["validation"]
    assert not voices["train"] & voices["test"]
    assert not voices["validation"] & voices["test"]


def test_another_process_at_another_time_writes_the_same_bytes(corpus, tmp_path):
    # The library by itself seeds its noise with the seconds of the clock.
    time.sleep(1.1)
    subprocess.run(
        making(tmp_path / "again", seed=3, **SMALL), cwd=REPOSITORY, check=True
    )
    assert content(tmp_path / "again") == content(corpus)


def test_another_seed_speaks_otherwise(corpus, tmp_path):
    make_synthetic_corpus(tmp_path, seed=4, **SMALL)
    same = set(content(tmp_path).items()) & set(content(corpus).items())
    assert same == set()


def test_a_second_call_does_nothing_and_other_arguments_are_refused(
    corpus, monkeypatch
):
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    make_synthetic_corpus(corpus, seed=3, **SMALL)
    with pytest.raises(
        UsageError, match="'seed': 3.*Received: .*'seed': 5.*delete this one"
    ):
        make_synthetic_corpus(corpus, seed=5, **SMALL)
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="a separate folder.*thesis.txt"):
        make_synthetic_corpus(tmp_path, **SMALL)
    with pytest.raises(UsageError, match="must have a folder"):
        make_synthetic_corpus(tmp_path / "thesis.txt", **SMALL)
    with pytest.raises(
        UsageError, match="make_synthetic_corpus.*Found there: thesis.txt"
    ):
        read_split("synthetic", tmp_path, "train")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_killed_making_is_not_read_and_is_made_anew(corpus, tmp_path):
    folder = tmp_path / "corpus"
    process = subprocess.Popen(making(folder, seed=3, num_train=5000), cwd=REPOSITORY)
    while not (folder / "train" / "00010.wav").exists():
        assert process.poll() is None
        time.sleep(0.01)

    with pytest.raises(UsageError, match="being made by another"):
        make_synthetic_corpus(folder, seed=3, **SMALL)
    process.kill()
    process.wait()
    with pytest.raises(UsageError, match="and finished"):
        read_split("synthetic", folder, "train")
    make_synthetic_corpus(folder, seed=3, **SMALL)
    assert content(folder) == content(corpus)


def test_a_full_disk_is_an_error_and_the_rest_can_be_made_later(corpus, tmp_path):
    # Files of at most 40 kB stand for a disk that is full: the system refuses the
    # write.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))"
    folder = tmp_path / "corpus"
    failed = subprocess.run(
        making(folder, limit, seed=3, **SMALL),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert "RunError: The synthetic corpus in" in failed.stderr
    make_synthetic_corpus(folder, seed=3, **SMALL)
    assert content(folder) == content(corpus)


@pytest.mark.parametrize(
    "arguments",
    [{"num_train": 0}, {"num_voices": 2}, {"num_voices": 1000}, {"seed": -1}],
)
def test_arguments_out_of_range_are_errors(tmp_path, arguments):
    with pytest.raises(UsageError, match="must .*Received: "):
        make_synthetic_corpus(tmp_path / "corpus", **{**SMALL, **arguments})
    assert not (tmp_path / "corpus").exists()


def test_without_the_synthesiser_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(UsageError, match=r"pip install 'tfasr\[demo\]'"):
        make_synthetic_corpus(tmp_path, **SMALL)


def test_a_crash_of_the_library_is_an_error_and_no_more():
    with Espeak() as synthesiser:
        assert len(synthesiser.speak("yes", "en-us+m1")) > 1000
        os.kill(synthesiser.pid, signal.SIGSEGV)
        with pytest.raises(RunError, match="SIGSEGV"):
            synthesiser.speak("no", "en-us+m1")


def test_a_voice_that_is_not_there_is_an_error_and_the_next_one_speaks():
    with Espeak() as synthesiser:
        with pytest.raises(RunError, match="no voice 'xx-nowhere'"):
            synthesiser.speak("yes", "xx-nowhere")
        assert len(synthesiser.speak("yes", "en-us+m1")) > 1000


def test_a_library_that_does_not_start_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "espeakng_loader.py").write_text(
        "def get_library_path(): return '/nowhere/libespeak-ng.so'\n"
        "def get_data_path(): return '/nowhere'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "espeakng_loader", raising=False)
    with pytest.raises(RunError, match="while starting.*/nowhere/libespeak-ng.so"):
        Espeak()


def test_a_deep_environment_does_not_cut_the_path_of_the_data(tmp_path, monkeypatch):
    import espeakng_loader

    real = Path(espeakng_loader.get_data_path())
    deep = tmp_path.joinpath(*["a_long_folder_name"] * 12)
    deep.parent.mkdir(parents=True)
    deep.symlink_to(real)
    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: str(deep))
    with Espeak() as synthesiser:
        samples = synthesiser.speak("yes", "en-us+m1")
    monkeypatch.undo()
    with Espeak() as synthesiser:
        np.testing.assert_array_equal(samples, synthesiser.speak("yes", "en-us+m1"))


def test_the_voices_sound_different():
    from tfasr.corpora.synthetic import grammar_of

    voices = grammar_of("en").voices

    with Espeak() as synthesiser:
        spoken = {
            synthesiser.speak("turn the light off", voice).tobytes() for voice in voices
        }
    assert len(spoken) == len(voices)
    assert espeak.SAMPLE_RATE_HZ == 22050


def test_a_split_that_the_corpus_lacks_is_refused_with_those_it_has(corpus):
    with pytest.raises(UsageError, match="train, validation, test.*'test-other'"):
        read_split("synthetic", corpus, "test-other")
