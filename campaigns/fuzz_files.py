"""Fuzzes the readers of audio files and lists of utterances with atheris, guided by coverage.

    pip install atheris
    python campaigns/fuzz_files.py audio|tsv|json [--runs 20000] [--seed 12]

It starts from small valid files. Reading a file must give a result or an error that names the file;
anything else ends the campaign, and the input is written to the working directory. ``make fuzz``
does the same without atheris, on real files damaged at random.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np
import soundfile

with atheris.instrument_imports(include=["tfasr"]):
    from tfasr.corpora.manifests import read_json_manifest, read_tsv
    from tfasr.data.audio import audio_duration_s, read_audio
    from tfasr.errors import UsageError

_SOUNDS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
           ("OGG", "OPUS"), ("AIFF", "PCM_16"), ("MP3", "MPEG_LAYER_III"),
           ("NIST", "PCM_16"), ("CAF", "PCM_16"), ("AU", "PCM_16")]  # fmt: skip
_LONGEST_BYTES = 16384


def main() -> None:
    """Fuzzes one kind of file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("audio", "tsv", "json"))
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=12)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tfasr-fuzz-"))
    begins = folder / "begins"
    begins.mkdir()
    judge = {"audio": audio, "tsv": tsv, "json": json_lines}[arguments.kind](
        folder, begins
    )
    words = [
        f"-runs={arguments.runs}",
        f"-seed={arguments.seed}",
        f"-max_len={_LONGEST_BYTES}",
    ]
    words += ["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", str(begins)]
    atheris.Setup([sys.argv[0], *words], judge)
    atheris.Fuzz()


def audio(folder: Path, begins: Path) -> Callable[[bytes], None]:
    """Writes first inputs; returns a function that reads an audio file and checks the
    result.
    """
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 1600)
    for form, kind in _SOUNDS:
        if soundfile.check_format(form, kind):
            soundfile.write(begins / f"{form}-{kind}", noise, 16000, kind, format=form)

    path = folder / "sound"

    def judge(content: bytes) -> None:
        path.write_bytes(content)
        try:
            assert audio_duration_s(path) >= 0
            samples = read_audio(path)
        except ValueError as error:
            assert str(path) in str(error), error
            return

        assert samples.dtype == np.float32 and np.isfinite(samples).all()

    return judge


def tsv(folder: Path, begins: Path) -> Callable[[bytes], None]:
    """Writes a first input; returns a function that reads a tab-separated list and
    checks it.
    """
    soundfile.write(folder / "a.wav", np.zeros(1600), 16000)
    lines = "path\tspeaker\tseconds\ttext\na.wav\ts\t0.1\tyes no\nb.wav\ts\t1e3\tno\n"
    (begins / "list").write_text(lines)
    return _list_judge(read_tsv, folder / "list.tsv", folder)


def json_lines(folder: Path, begins: Path) -> Callable[[bytes], None]:
    """Writes a first input; returns a function that reads a JSON manifest and checks it."""
    soundfile.write(folder / "a.wav", np.zeros(1600), 16000)
    line = {
        "audio_filepath": "a.wav",
        "text": "yes",
        "duration": 0.1,
        "speaker": 1,
        "id": "x",
    }
    (begins / "list").write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    return _list_judge(read_json_manifest, folder / "list.json", folder)


def _list_judge(read: Callable, path: Path, folder: Path) -> Callable[[bytes], None]:
    def judge(content: bytes) -> None:
        path.write_bytes(content)
        try:
            found = read(path, folder)
        except UsageError as error:
            assert str(path) in str(error), error
            return

        assert found.utterances or found.rejections

    return judge


if __name__ == "__main__":
    os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")
    main()
