"""Reading audio: rates, formats, channels, and files that are not what they should be."""

import shutil
import subprocess
import sys
from math import gcd
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.data.audio import (
    audio_blocks,
    audio_duration_s,
    check_audio_reader,
    read_audio,
)
from tfasr.errors import UsageError

REPOSITORY = Path(__file__).parents[2]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


def shared(path: str) -> Path:
    """The path of a recording that lies next to the repository."""
    result = SHARED_DATA / path
    if not result.exists():
        pytest.skip(f"needs the recordings in {SHARED_DATA}")

    return result


def tone(rate_hz: int, seconds: float = 1.0, frequency_hz: float = 440.0) -> np.ndarray:
    times = np.arange(int(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * frequency_hz * times)).astype(np.float32)


def write(
    folder: Path, name: str, samples: np.ndarray, rate_hz: int = 16000, **options
) -> Path:
    path = folder / name
    soundfile.write(path, samples, rate_hz, **options)
    return path


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("tone.flac", {}, 1e-4),
        ("deep.flac", {"subtype": "PCM_24"}, 1e-6),
        ("tone.wav", {}, 1e-4),
        ("float.wav", {"subtype": "FLOAT"}, 0),
        ("bytes.wav", {"subtype": "PCM_U8"}, 1e-2),
        ("tone.ogg", {}, 0.05),
        ("tone.mp3", {}, 0.05),
    ],
)
def test_every_format_gives_the_samples_that_were_written(
    tmp_path, name, options, tolerance
):
    expected = tone(16000)
    samples = read_audio(write(tmp_path, name, expected, **options))

    assert samples.dtype == np.float32
    assert samples.shape == expected.shape

    inside = slice(2000, -2000)  # lossy coders smear the ends of a tone
    np.testing.assert_allclose(
        samples[inside], expected[inside], atol=tolerance, rtol=0
    )


def test_channels_are_averaged(tmp_path):
    left = tone(16000)
    right = tone(16000, frequency_hz=700)

    path = write(
        tmp_path, "stereo.wav", np.stack([left, right], axis=1), subtype="FLOAT"
    )

    np.testing.assert_allclose(read_audio(path), (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize("rate_hz", [8000, 11025, 22050, 44100, 48000])
def test_a_tone_of_another_rate_is_the_same_tone(tmp_path, rate_hz):
    path = write(
        tmp_path, "tone.wav", tone(rate_hz, 1.0, 1000), rate_hz, subtype="FLOAT"
    )

    samples = read_audio(path)
    expected = tone(16000, 1.0, 1000)

    assert abs(len(samples) - len(expected)) <= 1
    np.testing.assert_allclose(
        samples[800:15200], expected[800:15200], atol=2e-4, rtol=0
    )


def test_what_lies_above_the_new_band_does_not_fold_into_it(tmp_path):
    path = write(tmp_path, "high.wav", tone(48000, 1.0, 10000), 48000, subtype="FLOAT")
    samples = read_audio(path)

    assert np.abs(samples[800:-800]).max() < 0.5e-4


def test_another_target_rate_gives_the_same_tone(tmp_path):
    path = write(tmp_path, "tone.wav", tone(16000), subtype="FLOAT")

    np.testing.assert_allclose(
        read_audio(path, 8000)[400:-400], tone(8000)[400:-400], atol=2e-4
    )


def test_recordings_at_the_target_rate_are_unchanged():
    path = sorted(shared("librispeech/LibriSpeech/train-clean-5").rglob("*.flac"))[0]

    np.testing.assert_array_equal(
        read_audio(path), soundfile.read(path, dtype="float32")[0]
    )
    assert audio_duration_s(path) == len(read_audio(path)) / 16000


@pytest.mark.parametrize(
    "name", ["fsdd/recordings/3_jackson_7.flac", "yesno/waves_yesno"]
)
def test_recordings_at_8_khz_match_an_independent_resampler(name):
    path = shared(name)
    path = sorted(path.glob("*.flac"))[0] if path.is_dir() else path

    original, rate_hz = soundfile.read(path)

    assert rate_hz == 8000

    common = gcd(rate_hz, 16000)
    window = ("kaiser", 12.0)
    other = scipy.signal.resample_poly(
        original, 16000 // common, rate_hz // common, window=window
    )

    samples = read_audio(path)

    assert len(samples) == 2 * len(original)
    assert audio_duration_s(path) == len(original) / 8000

    # The two filters differ near 4 kHz only, where they cut off.
    below = scipy.signal.butter(8, 3000, fs=16000, output="sos")
    error = scipy.signal.sosfiltfilt(below, samples - other)

    assert np.sqrt(np.mean(error**2)) < 1e-3 * np.sqrt(np.mean(other**2))


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory) -> dict[str, bytes]:
    """A second of a tone in each format, by file name."""
    folder = tmp_path_factory.mktemp("whole")
    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    samples = tone(16000) + 0.01 * noise

    return {
        name: write(folder, name, samples).read_bytes()
        for name in ("cut.flac", "cut.wav", "cut.ogg", "cut.mp3")
    }


@pytest.mark.parametrize("name", ["cut.flac", "cut.wav", "cut.ogg", "cut.mp3"])
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_file_cut_anywhere_is_an_error(name, whole_files, tmp_path_factory, data):
    content = whole_files[name]
    # An MP3 whose last frame alone is cut cannot be told from a whole one.
    last = int(0.9 * len(content)) if name == "cut.mp3" else len(content) - 1
    cut = data.draw(st.integers(0, last))
    path = tmp_path_factory.mktemp("cut") / name

    path.write_bytes(content[:cut])

    with pytest.raises(ValueError, match=name):
        read_audio(path)

    path.write_bytes(content)
    assert len(read_audio(path)) == 16000


def test_a_real_flac_cut_in_the_middle_is_an_error(tmp_path):
    original = sorted(shared("librispeech/LibriSpeech/test-clean").rglob("*.flac"))[0]
    path = tmp_path / "half.flac"

    path.write_bytes(original.read_bytes()[: original.stat().st_size // 2])

    with pytest.raises(ValueError, match="half.flac: .+"):
        read_audio(path)


def test_a_wav_written_to_a_pipe_is_whole(tmp_path):
    path = write(tmp_path, "piped.wav", tone(16000))
    content = bytearray(path.read_bytes())

    assert content[36:40] == b"data"

    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(content)

    assert len(read_audio(path)) == 16000
    assert audio_duration_s(path) == 1.0


def test_a_flac_that_does_not_state_its_length_is_read_to_its_end(tmp_path):
    path = write(tmp_path, "endless.flac", tone(16000))
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0
    content[22:26] = bytes(4)

    path.write_bytes(content)

    assert len(read_audio(path)) == 16000
    assert audio_duration_s(path) == 1.0


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("empty.wav", b"", "it is empty: 0 bytes"),
        ("text.flac", b"no audio at all" * 100, "Format not recognised"),
        ("samples.raw", bytes(1000), "samplerate"),
    ],
)
def test_what_is_no_audio_is_an_error_with_path_and_cause(
    tmp_path, name, content, cause
):
    (tmp_path / name).write_bytes(content)

    for read in (read_audio, audio_duration_s):
        with pytest.raises(ValueError, match=f"{name}.*{cause}"):
            read(tmp_path / name)


def test_what_is_not_there_is_an_error(tmp_path):
    for path in (tmp_path / "none.wav", tmp_path, tmp_path / ("long" * 100)):
        with pytest.raises(ValueError, match="no such file"):
            read_audio(path)


def test_no_samples_are_an_error(tmp_path):
    path = write(tmp_path, "silent.wav", np.zeros(0, np.float32))
    with pytest.raises(ValueError, match="silent.wav: it holds no audio"):
        read_audio(path)


def test_a_sample_that_resampling_loses_is_an_error(tmp_path):
    path = write(tmp_path, "short.wav", np.zeros(1, np.float32), 96000)
    with pytest.raises(ValueError, match="short.wav: it holds no audio"):
        read_audio(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_an_error(tmp_path, value):
    samples = tone(16000)
    samples[123] = value

    path = write(tmp_path, "wild.wav", samples, subtype="FLOAT")

    with pytest.raises(ValueError, match="wild.wav.*not finite"):
        read_audio(path)


def test_a_rate_of_zero_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="sample_rate_hz must be positive"):
        read_audio(write(tmp_path, "tone.wav", tone(16000)), 0)


def test_an_unknown_reader_is_an_error():
    with pytest.raises(UsageError, match="soundfile.*tfio.*'sox'"):
        check_audio_reader("sox")
    with pytest.raises(UsageError, match="'sox'"):
        read_audio("any.wav", reader="sox")


def test_the_default_reader_works_and_tensorflow_is_not_imported():
    code = (
        "import sys; from tfasr.data.audio import check_audio_reader;"
        "check_audio_reader('soundfile');"
        "print([name for name in sys.modules if name.startswith('tensorflow')])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("rate_hz", [8000, 16000, 44100, 96000])
def test_blocks_are_the_whole_recording(tmp_path, rate_hz):
    samples = np.stack([tone(rate_hz, 0.7), tone(rate_hz, 0.7, 600.0)], axis=1)
    path = write(tmp_path, "tone.wav", samples, rate_hz)

    blocks = list(audio_blocks(path, block_s=0.11))

    assert len(blocks) >= 7
    assert {block.dtype for block in blocks} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(np.concatenate(blocks), read_audio(path))


@pytest.mark.parametrize("name", ["noise.mp3", "noise.ogg", "noise.opus"])
def test_samples_do_not_depend_on_the_size_of_the_blocks(tmp_path, name):
    """Soundfile seeks behind each block, which restarts the decoders of MP3 and Opus."""
    noise = 0.3 * np.random.default_rng(0).standard_normal(3 * 16000)
    options = {"format": "OGG", "subtype": "OPUS"} if name.endswith("opus") else {}
    path = write(tmp_path, name, noise, **options)
    expected = read_audio(path)

    for block_s in (1 / 160, 0.1, 1.0, 10.0):
        blocks = list(audio_blocks(path, block_s=block_s))

        np.testing.assert_array_equal(np.concatenate(blocks), expected, str(block_s))


def by_ffmpeg(folder: Path, name: str) -> Path:
    """Two seconds of a tone in a format that libsndfile does not read."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")

    stereo = np.stack([tone(16000, 2.0), np.zeros(32000, np.float32)], axis=1)
    source = write(folder, "source.wav", stereo)
    command = ["ffmpeg", "-nostdin", "-v", "error", "-i", source, folder / name]
    subprocess.run(command, check=True)

    return folder / name


@pytest.mark.parametrize("name", ["talk.m4a", "talk.webm", "talk.aac"])
def test_ffmpeg_decodes_what_libsndfile_does_not(tmp_path, name):
    path = by_ffmpeg(tmp_path, name)
    samples = read_audio(path)

    assert audio_duration_s(path) == pytest.approx(len(samples) / 16000)
    assert 2.0 <= len(samples) / 16000 < 2.2
    np.testing.assert_array_equal(np.concatenate(list(audio_blocks(path))), samples)

    spectrum = np.abs(np.fft.rfft(samples[8000:24000]))

    assert spectrum.argmax() == 440
    assert np.abs(samples[8000:24000]).max() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("name", ["cut.m4a", "cut.webm", "cut.aac"])
def test_what_ffmpeg_cannot_read_to_its_end_is_an_error(tmp_path, name):
    path = by_ffmpeg(tmp_path, name)
    content = path.read_bytes()
    for share in (0.4, 0.9):
        path.write_bytes(content[: int(share * len(content))])

        with pytest.raises(ValueError, match=f"{name}: ffmpeg: .+") as refused:
            read_audio(path)
        assert "/dev/stdin" not in str(refused.value)
        assert "0x" not in str(refused.value)


def test_without_ffmpeg_one_sentence_names_it(tmp_path, monkeypatch):
    path = tmp_path / "talk.m4a"
    path.write_bytes(b"\0\0\0\x1cftypM4A " + bytes(100))

    monkeypatch.setenv("PATH", "")

    for read in (read_audio, audio_duration_s):
        with pytest.raises(ValueError, match="talk.m4a.*install ffmpeg") as refused:
            read(path)
        assert "\n" not in str(refused.value)


def test_only_the_formats_of_the_list_are_given_to_ffmpeg(tmp_path):
    """It would follow a playlist to whatever files that names."""
    (tmp_path / "secret.wav").write_bytes(
        write(tmp_path, "a.wav", tone(16000)).read_bytes()
    )
    path = tmp_path / "list.m4a"

    path.write_text("#EXTM3U\n#EXTINF:1,\nsecret.wav\n#EXT-X-ENDLIST\n")

    with pytest.raises(ValueError, match="Format not recognised"):
        read_audio(path)


def test_blocks_refuse_what_read_audio_refuses(tmp_path):
    bad = tone(16000)
    bad[9000] = np.nan
    paths = [write(tmp_path, "nan.wav", bad, subtype="FLOAT"), tmp_path / "missing.wav"]
    paths.append(write(tmp_path, "empty.wav", bad[:0]))

    (tmp_path / "text.wav").write_text("no audio")

    for path in [*paths, tmp_path / "text.wav"]:
        with pytest.raises(ValueError, match=str(path)) as refused:
            read_audio(path)
        with pytest.raises(ValueError, match=str(path)) as refused_too:
            list(audio_blocks(path))
        assert str(refused_too.value) == str(refused.value)


# The optional reader: the same samples where it loads, a clear refusal where it does
# not.


def refusal() -> str:
    """Why tensorflow-io can't be chosen here, or "" if it can."""
    try:
        check_audio_reader("tfio")
    except UsageError as error:
        return str(error)

    return ""


def run_python(code: str, first_on_path: Path) -> str:
    environment = {
        "PYTHONPATH": f"{first_on_path}:{REPOSITORY}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
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
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "__version__ = '2.99'\nclass config:\n    list_physical_devices = staticmethod(list)\n"
    )

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
