"""Makes files of n-gram models loadable by kenlm.

Compressed files, models of single words, and files with a byte-order mark or text
before the header all are ARPA files that kenlm refuses.
`tfasr.decoding.language_models` opens every model through `loadable_by_kenlm`.
"""

import contextlib
import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfasr.errors import UsageError
from tfasr.kit.text import encoded_lines

# How KenLM's binary files begin. Source: kenlm, lm/binary_format.cc.
_BINARY_START = b"mmap lm http://kheafield.com/code"
# The header and the end of an ARPA file.
_DATA = b"\\data\\"
_END = b"\\end\\"
_COUNT = re.compile(rb"ngram\s+(\d+)\s*=\s*(\d+)\s*$")
_MOST_DIGITS = 18  # of a count; more would only be a way to ask for memory
_STARTING_BYTES = 1024  # of a file, to see how it begins
_MOST_PREAMBLE = 1000  # lines of free text that an ARPA file may have before its header
# A line has at least four bytes: a digit, a tab, a character and the line's end.
_FEWEST_BYTES = 4


@contextlib.contextmanager
def loadable_by_kenlm(path: Path) -> Iterator[Path]:
    """Yields a file with the same model that kenlm can load: ``path`` or a temporary copy.

    kenlm reads neither gzip (as it is packaged), byte-order marks, text before the
    header, nor models of single words, for which the copy gets a bigram that changes no
    probability. KenLM's own binary files are yielded as they are.

    Raises:
        ValueError: if the file is missing, or is neither an ARPA file nor KenLM's
        binary format.
    """
    if not path.is_file():
        raise ValueError(f"A language model's file must exist. Received: {path}.")

    if is_binary(path):
        yield path
        return

    with path.open("rb") as file:
        start = file.read(_STARTING_BYTES)

    if not start:
        raise ValueError(
            f"An ARPA file must not be empty. Received: {path} of 0 bytes."
        )

    counts = _counts(path)
    # Nothing stands before the header, and the file isn't compressed.
    is_plain = start.lstrip().startswith(_DATA)
    if is_plain:
        _check_size(path, path.stat().st_size, counts)
    if is_plain and len(counts) > 1:
        yield path
        return

    with tempfile.TemporaryDirectory(prefix="tfasr-") as folder:
        copy = Path(folder) / "model.arpa"
        with copy.open("wb") as file:
            file.writelines(line + b"\n" for line in _plain_lines(path, counts))

        # Only the copy's size is that of the text.
        _check_size(path, copy.stat().st_size, counts)
        yield copy


def is_binary(path: Path) -> bool:
    """Whether a file begins like those that KenLM's build_binary writes."""
    with path.open("rb") as file:
        return file.read(len(_BINARY_START)) == _BINARY_START


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines from the header on; none if the file has no header."""
    try:
        lines = encoded_lines(path)
        for line in itertools.islice(lines, _MOST_PREAMBLE):
            if line.strip() == _DATA:
                yield _DATA
                yield from lines
                return
    except UsageError as error:
        raise ValueError(str(error)) from error


def _counts(path: Path) -> list[int]:
    """Returns how many n-grams of each order the header promises."""
    counts: list[int] = []
    for line in itertools.islice(_lines(path), 1, None):
        if match := _COUNT.match(line.strip()):
            # Counts are in the order of the n-grams.
            counts.append(int(match[2][:_MOST_DIGITS]))
        elif line.strip():
            break

    if not counts:
        raise ValueError(
            "A language model must be an ARPA file, which begins with \\data\\ and lines of the "
            "form 'ngram 1=10', plain or compressed by gzip, or a binary file made by KenLM's "
            f"build_binary. Received: {path}, which is neither."
        )

    return counts


def _plain_lines(path: Path, counts: list[int]) -> Iterable[bytes]:
    """Returns the lines of a model that kenlm can load."""
    lines = _lines(path)
    if len(counts) == 1:
        return _with_a_bigram(lines)

    return lines


def _with_a_bigram(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Adds "<s> word", which has the word's own probability, to a model of single words.

    Factors for backing off, which single words can't need, are left out.
    """
    bigram = b""
    for line in lines:
        fields = line.split()
        if _COUNT.match(line.strip()):
            yield line
            yield b"ngram 2=1"
        elif fields[:1] == [_END]:
            yield from (b"\\2-grams:", bigram, b"", line)
        elif len(fields) > 1:
            probability, word = fields[:2]
            yield probability + b"\t" + word
            if not bigram and word != b"<s>":
                bigram = probability + b"\t<s> " + word
        else:
            yield line


def _check_size(path: Path, size: int, counts: list[int]) -> None:
    """Raises ValueError if a header promises more n-grams than its file can hold.

    kenlm allocates memory for as many as the header says.
    """
    if _FEWEST_BYTES * sum(counts) > size:
        raise ValueError(
            f"An ARPA file must contain the n-grams it counts. Received: {path} of {size} bytes, "
            f"which counts {counts}."
        )
