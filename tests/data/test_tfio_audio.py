"""The optional reader: the same samples where it loads, a clear refusal where it does not."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tfasr.data.audio import check_audio_reader, read_audio
from tfasr.errors import UsageError

REPOSITORY = Path(__file__).parents[2]


def refusal() -> str:
    try:
        check_audio_reader("tfio")
    except UsageError as error:
        return str(error)
    return ""


def run_python(code: str, first_on_path: Path) -> str:
    environment = {"PYTHONPATH": f"{first_on_path}:{REPOSITORY}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return answer.stdout


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.flac", {}),
        ("deep.flac", {"subtype": "PCM_24"}),
        ("a.wav", {}),
        ("bytes.wav", {"subtype": "PCM_U8"}),
        ("float.wav", {"subtype": "FLOAT"}),
        ("a.ogg", {}),
        ("a.mp3", {}),
    ],
)
def test_both_readers_hear_the_same(tmp_path, name, options):
    if why := refusal():
        pytest.skip(why)
    path = tmp_path / name
    stereo = 0.3 * np.sin(np.arange(44100)[:, None] * [0.05, 0.08])
    soundfile.write(path, stereo, 22050, **options)
    expected = read_audio(path)
    np.testing.assert_allclose(read_audio(path, reader="tfio"), expected, atol=1e-4)


def test_files_it_cannot_read_are_errors(tmp_path):
    if why := refusal():
        pytest.skip(why)
    path = tmp_path / "cut.flac"
    soundfile.write(path, np.random.default_rng(0).standard_normal(48000) * 0.1, 16000)
    path.write_bytes(path.read_bytes()[:20000])
    for wrong in (path, tmp_path / "none.flac"):
        with pytest.raises(ValueError, match=wrong.name):
            read_audio(wrong, reader="tfio")


def test_where_it_cannot_load_choosing_it_says_why_and_what_to_install(tmp_path):
    why = refusal()
    if not why:
        pytest.skip("tensorflow-io loads here")
    assert "tensorflow-io" in why
    assert "TensorFlow 2.16 with tensorflow-io 0.37.1" in why
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(100), 16000)
    with pytest.raises(UsageError, match="or keep the default reader, soundfile"):
        read_audio(path, reader="tfio")


def test_native_operations_that_do_not_load_are_the_reason(tmp_path):
    """A stand-in that fails as tensorflow-io 0.37.1 does beside TensorFlow 2.21."""
    operations = tmp_path / "tensorflow_io" / "python" / "ops"
    operations.mkdir(parents=True)
    (tmp_path / "tensorflow" / "__init__.py").parent.mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("__version__ = '2.99'\n")
    for package in (operations.parents[1], operations.parent):
        (package / "__init__.py").touch()
    (operations / "__init__.py").write_text(
        "import warnings\nwarnings.warn('file system plugins are not loaded')\n"
        "class Operations:\n"
        "    def __getattr__(self, name):\n"
        "        raise NotImplementedError('undefined symbol: _ZNK10')\n"
        "core_ops = Operations()\n"
    )
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from tfasr.data.audio import check_audio_reader\n"
        "try: check_audio_reader('tfio')\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    answer = run_python(code, tmp_path)
    assert answer.startswith("UsageError")
    assert "does not load with TensorFlow 2.99 (undefined symbol: _ZNK10)" in answer
    assert "tensorflow-io==0.37.1" in answer
