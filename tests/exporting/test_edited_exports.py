"""Exports whose files were edited, with hashes that fit: one clear line, and no wrong text."""

import json
import shutil

import numpy as np
import pytest

from tests.recognising.spoken_tones import RUN, spoken, write_wav
from tfasr.cli import parse, run
from tfasr.recognising.spec import SPEC_FILE, SUMS_FILE, write_sums

pytest.importorskip(
    "onnxruntime", reason="needs the export extra: pip install 'tfasr[export]'"
)

FEATURES = len(json.loads((RUN / "run.json").read_text())["feature_statistics"]["mean"])
HUGE = 10**400


def changed(*path, value):
    """An edit of the description: the value at a path of names."""

    def edit(folder):
        content = place = json.loads((folder / SPEC_FILE).read_text())
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        (folder / SPEC_FILE).write_text(json.dumps(content))

    return edit


def written(name, text):
    return lambda folder: (folder / name).write_text(text)


def statistics(**values):
    good = {"mean": [0.0] * FEATURES, "deviation": [1.0] * FEATURES}
    return changed("statistics", value={**good, **values})


EDITS = {
    "mean of one value": statistics(mean=[0.0]),
    "a mean beyond float32": statistics(mean=[1e300] * FEATURES),
    "too many deviations": statistics(deviation=[1.0] * (FEATURES + 1)),
    "deviation 0": statistics(deviation=[0.0] * FEATURES),
    "deviation below 0": statistics(deviation=[-1.0] * FEATURES),
    "mean NaN": statistics(mean=[float("nan")] * FEATURES),
    "mean infinite": statistics(mean=[1e999] * FEATURES),
    "mean of 400 digits": statistics(mean=[HUGE] * FEATURES),
    "mean of words": statistics(mean=["a"] * FEATURES),
    "no statistics": changed("statistics", value=None),
    "statistics without a mean": changed(
        "statistics", value={"deviation": [1.0] * FEATURES}
    ),
    "statistics a list": changed("statistics", value=[1, 2]),
    "geometry 0": changed("geometry", value=[0, 0]),
    "geometry -1": changed("geometry", value=[-1, -1]),
    "geometry of another model": changed("geometry", value=[3, 1]),
    "geometry of fractions": changed("geometry", value=[11.5, 2]),
    "geometry of 400 digits": changed("geometry", value=[HUGE, HUGE]),
    "geometry of three": changed("geometry", value=[1, 1, 1]),
    "geometry missing": changed("geometry", value=None),
    "a million mel bins": changed("features", "num_mel_bins", value=10**6),
    "mel bins of 400 digits": changed("features", "num_mel_bins", value=HUGE),
    "mel bins of another model": changed("features", "num_mel_bins", value=30),
    "a window of hours": changed("features", "window_samples", value=10**9),
    "a rate of a GHz": changed("features", "sample_rate_hz", value=10**9),
    "features a list": changed("features", value=[]),
    "an unknown feature": changed("features", "colour", value=1),
    "an unknown decoder": changed("decoder", "name", value="oracle"),
    "decoder a number": changed("decoder", value=1),
    "a beam of 400 digits": changed("decoder", "beam_width", value=HUGE),
    "runtime a list": changed("runtime", value=["onnx"]),
    "nested deeply": written(SPEC_FILE, "[" * 100_000),
    "other alphabet": written(
        "alphabet.json", '{"characters": " abcdef_", "separator": "_"}'
    ),
    "alphabet a list": written(
        "alphabet.json", '{"characters": ["a"], "separator": null}'
    ),
    "a huge alphabet": written(
        "alphabet.json",
        json.dumps(
            {"characters": "".join(map(chr, range(256, 50_000))), "separator": None}
        ),
    ),
    "a word of a megabyte": written("lexicon.txt", "ab\n" + "a" * 2**20 + "\n"),
    "no graph": written("model.onnx", "no graph"),
}


@pytest.fixture(scope="module")
def audio(tmp_path_factory):
    return write_wav(tmp_path_factory.mktemp("audio") / "a.wav", spoken("abc dad"))


def transcribed(folder, audio, capsys):
    words = ["transcribe", audio, "--run_dir", folder, "--decoder", "word_beam"]
    status = run(parse(["tfasr", *map(str, words), "--beam_width", "4"]))
    return status, *capsys.readouterr()


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_export_is_refused_in_one_line(
    exported_tones, audio, tmp_path, name, capsys
):
    folder = shutil.copytree(exported_tones, tmp_path / "edited")
    EDITS[name](folder)
    write_sums(folder)
    status, out, err = transcribed(folder, audio, capsys)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert str(folder) in err


@pytest.mark.parametrize(
    "left_out", ["model.onnx", SPEC_FILE, "alphabet.json", "lexicon.txt"]
)
def test_sums_must_list_every_file_that_is_read(
    exported_tones, audio, tmp_path, left_out, capsys
):
    folder = shutil.copytree(exported_tones, tmp_path / "edited")
    lines = (folder / SUMS_FILE).read_text().splitlines(keepends=True)
    (folder / SUMS_FILE).write_text(
        "".join(line for line in lines if left_out not in line)
    )
    (folder / "notes.txt").write_text("a file of the user's is no matter")
    status, out, err = transcribed(folder, audio, capsys)
    assert (status, out) == (2, "")
    assert left_out in err


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": [0.0]},
        {"mean": [float("nan")] * FEATURES},
        {"deviation": [0] * FEATURES},
    ],
)
def test_wrong_statistics_of_a_run_are_refused(audio, tmp_path, wrong, capsys):
    folder = shutil.copytree(RUN, tmp_path / "run")
    content = json.loads((folder / "run.json").read_text())
    content["feature_statistics"] |= wrong
    (folder / "run.json").write_text(json.dumps(content))
    assert (
        run(parse(["tfasr", "transcribe", str(audio), "--run_dir", str(folder)])) == 2
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(folder / "run.json") in captured.err


def test_an_untouched_copy_is_heard(exported_tones, audio, tmp_path, capsys):
    folder = shutil.copytree(exported_tones, tmp_path / "copy")
    deviations = np.ones(FEATURES)
    deviations[0] = 0  # of a feature that never moved
    statistics(deviation=deviations.tolist())(folder)
    write_sums(folder)
    assert transcribed(folder, audio, capsys)[0] == 0
