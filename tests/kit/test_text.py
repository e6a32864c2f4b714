"""Text files as editors, spreadsheets and compressors write them."""

import codecs
import gzip
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.kit.text import encoded_lines, text_lines

# Everything that `str.splitlines` takes for the end of a line, and "\n" doesn't.
BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
LINES = st.lists(
    st.text(st.sampled_from("aé\u0130 \t\0" + BREAKS), max_size=6), max_size=6
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@given(lines=LINES)
@settings(deadline=None, max_examples=25)
def test_every_line_survives(tmp_path_factory, lines, end, encoding, compress):
    path = tmp_path_factory.mktemp("text") / "list.txt"
    content = "".join(line + end for line in lines)

    path.write_bytes(compress(content.encode(encoding)))

    assert list(text_lines(path)) == lines
    assert list(encoded_lines(path)) == [line.encode() for line in lines]


def test_the_last_line_needs_no_end_and_big_endian_is_read(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(codecs.BOM_UTF16_BE + "yes\nnö".encode("utf-16-be"))

    assert list(text_lines(path)) == ["yes", "nö"]


def test_a_carriage_return_within_a_line_stays(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"a\rb\r\r\nc\r\n")

    assert list(text_lines(path)) == ["a\rb\r", "c"]


def test_a_line_that_is_not_utf_8_is_named_or_left_to_the_caller(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("eins\ncafé\n".encode("latin-1"))

    assert list(encoded_lines(path)) == [b"eins", b"caf\xe9"]
    with pytest.raises(
        UsageError, match=r"latin.txt, whose line 2 .* at byte 3.*Save it"
    ):
        list(text_lines(path, "Save it as UTF-8."))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (gzip.compress(b"many lines\n" * 1000, mtime=0)[:-20], "end-of-stream"),
        (gzip.compress(b"one\n", mtime=0)[:4] + b"damage" * 9, "cannot be read"),
        ("\ufeffa".encode("utf-16-le") + b"\x00", "truncated"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_name_and_the_remedy(
    tmp_path, content, cause
):
    path = tmp_path / "damaged"
    path.write_bytes(content)

    for read in (text_lines, encoded_lines):
        with pytest.raises(UsageError, match=f"damaged.*{cause}.*Fetch it again."):
            list(read(path, "Fetch it again."))


def test_a_missing_file_and_a_folder_are_errors(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            list(text_lines(path))


def test_a_packed_file_from_somebody_else_has_a_limit(tmp_path):
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb") as file:
        file.write(b"a" * 100_000)

    with pytest.raises(UsageError, match="more than 50000 bytes"):
        list(text_lines(bomb, most_bytes=50_000))


def test_a_pipe_from_somebody_else_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match="device or a pipe"):
        list(text_lines(tmp_path / "pipe", most_bytes=50_000))


def test_a_file_from_somebody_else_within_its_limit_is_read(tmp_path):
    small = tmp_path / "small.txt"
    small.write_text("one\ntwo\n")

    assert list(text_lines(small, most_bytes=8)) == ["one", "two"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_line_of_megabytes_is_refused_before_it_is_read(tmp_path, encoding):
    path = tmp_path / "list.tsv"
    path.write_text("short\n" + "a" * (2 << 20), encoding=encoding)

    lines = text_lines(path)

    assert next(lines) == "short"
    with pytest.raises(
        UsageError, match=r"list\.tsv, which .*lines has more than 1048576 bytes"
    ):
        next(lines)
