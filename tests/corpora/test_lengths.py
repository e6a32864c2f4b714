"""Recordings are as long as their samples, whatever their headers state."""

import io
import logging
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.corpora.audio_header import audio_duration_s, opened_audio
from tfasr.corpora.mpeg import _frame
from tfasr.data.audio import audio_blocks, read_audio

RATE_HZ = 16000
SECONDS = 3
NOISE = (
    np.random.default_rng(0).uniform(-0.3, 0.3, SECONDS * RATE_HZ).astype(np.float32)
)


def written(samples=NOISE, rate_hz: int = RATE_HZ, **options) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, **options)
    return file.getvalue()


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def measured(path: Path, rate_hz: int = RATE_HZ) -> list[float]:
    return [audio_duration_s(path), len(read_audio(path, rate_hz)) / rate_hz]


def remark_of(path: Path) -> str:
    remarks = []
    for _ in audio_blocks(path, remark=lambda kind, detail: remarks.append(detail)):
        pass
    return " ".join(remarks)


# How each container states the size of its samples: where, as what, and how much is
# added to it.
CHUNKS = {
    "WAV": (b"data", 4, "<I", 0),
    "AIFF": (b"SSND", 4, ">I", 8),
    "CAF": (b"data", 4, ">Q", 4),
    "W64": (b"data" + bytes.fromhex("f3acd3118cd100c04f8edb8a"), 16, "<Q", 24),
    "RF64": (b"ds64", 16, "<Q", 0),
    "AU": (b".snd", 8, ">I", 0),
}


def with_stated(form: str, stated: int, subtype: str = "PCM_16") -> tuple[bytes, int]:
    """Returns a file whose header states so many bytes of samples, and where the size is."""
    content = bytearray(written(format=form, subtype=subtype))
    mark, offset, kind, added = CHUNKS[form]
    place = content.index(mark) + offset
    largest = 256 ** struct.calcsize(kind) - 1
    struct.pack_into(kind, content, place, min(stated + added, largest))
    return bytes(content), place


@pytest.mark.parametrize("form", sorted(CHUNKS))
@given(stated=st.integers(1, SECONDS * RATE_HZ - 20).map(lambda count: 2 * count))
@settings(deadline=None, max_examples=15)
def test_a_size_that_is_too_small_is_corrected_and_reported(
    tmp_path_factory, form, stated
):
    content, _ = with_stated(form, stated)
    path = put(tmp_path_factory.getbasetemp(), f"small.{form.lower()}", content)
    assert measured(path) == pytest.approx([SECONDS, SECONDS], abs=0.001)
    assert f"states {stated} bytes" in remark_of(path)
    assert f"{2 * SECONDS * RATE_HZ} are there" in remark_of(path)
    np.testing.assert_array_equal(
        read_audio(path)[: len(NOISE)],
        soundfile.read(io.BytesIO(written(format="WAV")), dtype="float32")[0],
    )


@pytest.mark.parametrize("form", sorted(CHUNKS))
@pytest.mark.parametrize("stated", [0, 2**63 - 25])
def test_a_size_that_says_unknown_is_counted(tmp_path, form, stated):
    path = put(tmp_path, f"unknown.{form.lower()}", with_stated(form, stated)[0])
    assert measured(path) == pytest.approx([SECONDS, SECONDS], abs=0.001)


@pytest.mark.parametrize("form", sorted(CHUNKS))
def test_a_size_that_is_too_large_is_an_error_with_both_numbers(tmp_path, form):
    path = put(tmp_path, f"cut.{form.lower()}", with_stated(form, 10**6)[0])
    for read in (audio_duration_s, read_audio):
        with pytest.raises(ValueError, match=r"truncated: 9600\d of 100000\d bytes"):
            read(path)


@pytest.mark.parametrize("subtype", ["ULAW", "PCM_24", "FLOAT", "IMA_ADPCM", "GSM610"])
def test_codecs_within_wav_are_read_to_their_end_too(tmp_path, subtype):
    whole = put(
        tmp_path,
        "whole.wav",
        written(NOISE[:RATE_HZ], 8000, format="WAV", subtype=subtype),
    )
    content = bytearray(whole.read_bytes())
    place = content.index(b"data") + 4
    (size,) = struct.unpack_from("<I", content, place)
    struct.pack_into("<I", content, place, size // 4)
    path = put(tmp_path, "small.wav", bytes(content[: place + 4 + size]))
    np.testing.assert_array_equal(read_audio(path), read_audio(whole))


def test_chunks_after_the_samples_are_no_samples(tmp_path):
    whole = written(NOISE[:501], format="WAV", subtype="PCM_16")
    chunk = b"LIST" + struct.pack("<I", 10) + b"INFO123456"
    for number, more in enumerate(
        (chunk, chunk * 3, chunk[:-3], b"xtra\2\0\0\0ab", b"\0")
    ):
        path = put(tmp_path, f"{number}.wav", whole + more)
        assert measured(path) == [501 / RATE_HZ] * 2
        assert remark_of(path) == ""


def test_a_second_chunk_of_samples_is_read_too(tmp_path):
    head = written(NOISE[:500], format="WAV", subtype="PCM_16")
    chunk = b"data" + struct.pack("<I", 1000) + head[44:]
    path = put(tmp_path, "two.wav", head + b"LIST\4\0\0\0INFO" + chunk)
    samples = read_audio(path)
    np.testing.assert_array_equal(samples[:500], samples[500:])
    assert "states 1000 bytes of samples, but 2000 are there" in remark_of(path)


def test_a_wav_of_more_than_4_gib_is_as_long_as_its_file(tmp_path):
    content = bytearray(written(NOISE[:1000], format="WAV", subtype="PCM_16"))
    total = 2**32 + 2000
    struct.pack_into("<I", content, 40, total % 2**32)
    path = put(tmp_path, "large.wav", bytes(content))
    os.truncate(path, 44 + total)  # the rest is a hole
    assert audio_duration_s(path) == total // 2 / RATE_HZ
    with opened_audio(path) as file:
        assert f"states 2000 bytes of samples, but {total} are there" in file.remark
        assert len(file.read(5000)) == 5000


@pytest.mark.parametrize("form", ["FLAC", "WAV", "AIFF", "CAF", "W64", "RF64"])
@pytest.mark.parametrize("lengths", [(48000, 48000), (900, 900), (1000, 48000, 300)])
def test_joined_files_are_read_to_the_end_of_the_last(tmp_path, form, lengths):
    parts = [written(NOISE[:count], format=form, subtype="PCM_16") for count in lengths]
    path = put(tmp_path, f"joined.{form.lower()}", b"".join(parts))
    expected = [soundfile.read(io.BytesIO(part), dtype="float32")[0] for part in parts]
    np.testing.assert_array_equal(read_audio(path), np.concatenate(expected))
    assert f"{len(lengths)} files are joined" in remark_of(path)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
@pytest.mark.parametrize(
    "lengths", [(48000, 16000), (16000, 16000), (9000, 48000, 16000)]
)
def test_all_streams_of_an_ogg_chain_are_read(tmp_path, subtype, lengths):
    options = {"format": "OGG", "subtype": subtype}
    parts = [written(NOISE[:count], **options) for count in lengths]
    path = put(tmp_path, "chain.ogg", b"".join(parts))
    assert measured(path) == [sum(lengths) / RATE_HZ] * 2
    assert f"a chain of {len(lengths)} Ogg streams" in remark_of(path)
    cut = put(tmp_path, "cut.ogg", b"".join(parts)[:-300])
    with pytest.raises(ValueError, match=r"cut.ogg: truncated"):
        read_audio(cut)


def test_files_of_different_rates_that_were_joined_are_refused(tmp_path):
    for form in ("FLAC", "OGG", "MP3"):
        content = written(format=form) + written(NOISE[:8000], 8000, format=form)
        path = put(tmp_path, f"other.{form.lower()}", content)
        with pytest.raises(ValueError, match=r"16000.*8000|8000.*16000"):
            read_audio(path)


@pytest.mark.parametrize("stated", [0, 1, 47999])
def test_a_flac_whose_header_states_too_few_samples_is_read_to_its_end(
    tmp_path, stated
):
    content = bytearray(written(format="FLAC"))
    content[21] &= 0xF0
    struct.pack_into(">I", content, 22, stated)
    path = put(tmp_path, "few.flac", bytes(content))
    np.testing.assert_array_equal(
        read_audio(path),
        soundfile.read(io.BytesIO(written(format="FLAC")), dtype="float32")[0],
    )
    if stated:
        assert f"states {stated} samples, but 48000 are there" in remark_of(path)
    else:
        assert audio_duration_s(path) == SECONDS  # by its last frame

    cut = put(tmp_path, "cut.flac", bytes(content[:-200]))
    with pytest.raises(ValueError, match=r"cut.flac: (truncated|.*lost sync)"):
        read_audio(cut)


MP3S = {
    "mono": (NOISE, 16000, {}),
    "stereo at 44.1 kHz": (np.stack([NOISE, NOISE[::-1]], 1), 44100, {}),
    "8 kHz": (NOISE, 8000, {}),
    "variable": (NOISE, 48000, {"bitrate_mode": "VARIABLE"}),
    "quiet start": (
        np.concatenate([0 * NOISE, NOISE]),
        22050,
        {"bitrate_mode": "VARIABLE"},
    ),
    "loud start": (
        np.concatenate([NOISE, 0 * NOISE]),
        24000,
        {"bitrate_mode": "VARIABLE"},
    ),
}
DELAY_S = 0.2  # at 8 kHz: what an encoder adds at both ends, if no header states it


@pytest.fixture(params=sorted(MP3S))
def mp3(request) -> tuple[bytes, bytes, float]:
    """An MP3 with its length header, the same without, and its seconds."""
    samples, rate_hz, options = MP3S[request.param]
    content = written(samples, rate_hz, format="MP3", **options)
    return content, content[_frame(content[:4]).bytes :], len(samples) / rate_hz


TAG = b"ID3\x03\0\0\0\0\x20\0" + b"\xff\xfb\x90\0" * 1024
TAGS = {"bare": b"", "tagged": TAG, "twice tagged": TAG + TAG}


@pytest.mark.parametrize("tag", sorted(TAGS))
def test_an_mp3_without_length_header_is_read_to_its_end(tmp_path, mp3, tag):
    _, bare, seconds = mp3
    path = put(tmp_path, "bare.mp3", TAGS[tag] + bare + b"TAG" + bytes(125))
    stated, read = measured(path)
    assert stated == pytest.approx(read, abs=1e-3)
    assert seconds <= read <= seconds + DELAY_S


@pytest.mark.parametrize("between", [b"", TAG, b"TAG" + bytes(125), bytes(1000)])
def test_joined_mp3s_are_read_to_the_end_and_reported(tmp_path, mp3, between):
    content, bare, seconds = mp3
    for name, second in (("whole", content), ("bare", bare)):
        path = put(tmp_path, f"{name}.mp3", content + between + second)
        stated, read = measured(path)
        assert stated == pytest.approx(read, abs=1e-3)
        assert 2 * seconds <= read <= 2 * seconds + 2 * DELAY_S
        assert "its header states" in remark_of(path)


def test_an_mp3_with_a_right_header_is_as_long_as_it_states(tmp_path, mp3):
    content, _, seconds = mp3
    for number, end in enumerate((b"", b"TAG" + bytes(125), bytes(4096))):
        path = put(tmp_path, f"{number}.mp3", TAG + content + end)
        assert measured(path) == pytest.approx([seconds] * 2, abs=1e-3)
        assert remark_of(path) == ""


@pytest.mark.parametrize("share", [0.2, 0.9, 1.5])
def test_an_mp3_whose_header_states_other_frames_but_the_right_bytes_is_counted(
    tmp_path, mp3, share
):
    content, _, seconds = mp3
    place = max(content.find(b"Xing"), content.find(b"Info")) + 8
    stated = round(int.from_bytes(content[place : place + 4], "big") * share)
    changed = content[:place] + stated.to_bytes(4, "big") + content[place + 4 :]
    path = put(tmp_path, "changed.mp3", changed)
    if share > 1:
        with pytest.raises(ValueError, match=r"truncated: \d+ of \d+ samples"):
            read_audio(path)
        return

    assert measured(path) == pytest.approx([seconds] * 2, abs=DELAY_S)
    assert "its header states" in remark_of(path)


@pytest.mark.parametrize(
    "content", [bytes(5000), b"\xff\xfb\x90\0" + b"\1" * 900, b"not found"]
)
def test_a_file_of_no_known_format_is_named_as_such(tmp_path, content):
    for name in ("a.mp3", "a.wav", "a.ogg"):
        with pytest.raises(ValueError, match=rf"{name}: .*") as raised:
            read_audio(put(tmp_path, name, content))
        assert "pipe" not in str(raised.value)


def test_a_cut_or_damaged_mp3_is_an_error_with_both_numbers(tmp_path, mp3):
    content, bare, _ = mp3
    path = put(tmp_path, "cut.mp3", content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cut.mp3: truncated: \d+ of \d+ samples"):
        audio_duration_s(path)
    middle = len(bare) // 3
    damaged = bare[:middle] + b"\1" * 5000 + bare[middle + 5000 :]
    with pytest.raises(ValueError, match=r"damaged: \d+ bytes"):
        read_audio(put(tmp_path, "damaged.mp3", damaged))


def test_a_sphere_file_that_is_cut_is_an_error(tmp_path):
    content = written(format="NIST", subtype="PCM_16")
    assert measured(put(tmp_path, "whole.sph", content)) == [SECONDS] * 2
    with pytest.raises(ValueError, match=r"truncated: 47000 of 48000 samples"):
        audio_duration_s(put(tmp_path, "cut.sph", content[:-2000]))


def test_transcribing_reports_a_wrong_header(tmp_path, caplog):
    from tfasr.data.audio import warn

    path = put(tmp_path, "small.wav", with_stated("WAV", 1000)[0])
    with caplog.at_level(logging.WARNING, logger="tfasr"):
        assert sum(map(len, audio_blocks(path, remark=warn))) == len(NOISE)
    assert "its header states 1000 bytes of samples, but 96000 are there" in caplog.text
