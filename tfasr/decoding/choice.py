"""Which decoder an experiment evaluates with."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.alphabet import Alphabet, normalise
from tfasr.decoding.decoder import Decoder, DecoderKind, check_kind
from tfasr.decoding.word_beam_search import MAX_BEAM_WIDTH, WordBeamSearch
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require
from tfasr.kit.files import LEXICON_FILE, read_text, write_whole
from tfasr.kit.registry import Registry

if TYPE_CHECKING:
    from tfasr.decoding.language_models import KenlmModel

DECODERS: Registry[DecoderKind] = Registry(
    "decoder",
    {
        "greedy": "tfasr.decoding.decoder:GREEDY",
        "beam": "tfasr.decoding.decoder:BEAM",
        "word_beam": "tfasr.decoding.word_beam_search:WORD_BEAM",
    },
    check=check_kind,
)

# TensorFlow 2.21's prefix tree by measurement: 5.3 to 6.5 kB for each frame and unit of width at 30
# classes (widths 2000 and 8000, 50 and 100 frames); an utterance's tree is freed before the next.
_BYTES_PER_CHILD = 220
_LONGEST_WORD = 4096  # characters: an hour of them takes seconds to prepare


@config_class
class DecoderConfig:
    """The decoder of evaluations.

    Attributes:
        name: "greedy", "beam" (prefix beam search over characters) or "word_beam" (word beam
            search with the words of the training transcripts as dictionary, as in the paper), or
            another one of `DECODERS`.
        beam_width: hypotheses kept per frame, 65536 at most; greedy decoding has none.
        recombine: whether word beam search keeps one beam for each future, see
            `tfasr.decoding.word_beam_search.WordBeamSearch`; not in the published algorithm.
    """

    name: str = "greedy"
    beam_width: int = 256
    recombine: bool = False

    def check(self) -> None:
        require(self.name in DECODERS, self, "name", f"a known decoder: {DECODERS.listed()}")
        require(0 < self.beam_width <= MAX_BEAM_WIDTH, self, "beam_width", f"1..{MAX_BEAM_WIDTH}")


def check_beam(config: DecoderConfig, num_classes: int, frames: int, available_bytes: int) -> None:
    """Raises UsageError, with a width that fits, if prefix beam search needs too much memory."""
    a_width = _BYTES_PER_CHILD * num_classes * frames
    needed = config.beam_width * a_width
    if config.name == "beam" and needed > available_bytes:
        raise UsageError(
            f"The beam search's memory must fit into {available_bytes / 2**30:.1f} GiB. Width "
            f"{config.beam_width} needs about {needed / 2**30:.1f} GiB for an utterance of "
            f"{frames} frames and {num_classes} classes: choose --beam_width "
            f"{max(available_bytes // a_width // 2, 1)} or less."
        )


def make_decoder(
    config: DecoderConfig,
    alphabet: Alphabet,
    lexicon: Iterable[str] = (),
    num_threads: int | None = None,
    language_model: "KenlmModel | None" = None,
) -> Decoder:
    """Returns the decoder that a config names; RunError if it was not built.

    ``lexicon`` has the words of a decoder that needs them, in plain spelling; ``num_threads`` is
    for "word_beam" (None: one per available core), and so is ``language_model``, which scores the
    words too: UsageError for another decoder.
    """
    if language_model is None:
        return DECODERS[config.name].make(config, alphabet, lexicon, num_threads)
    if config.name != "word_beam":
        raise UsageError(
            "A language model needs the decoder word_beam, which writes the words that it "
            f"scores. Received: the decoder {config.name}. Choose --decoder word_beam."
        )
    options = {"beam_width": config.beam_width, "recombine": config.recombine}
    options |= {"mode": "kenlm", "num_threads": num_threads}
    return WordBeamSearch(alphabet, lexicon, language_model=language_model, **options)


def needs_lexicon(config: DecoderConfig) -> bool:
    return DECODERS[config.name].needs_lexicon


def read_lexicon(path: str | Path, alphabet: Alphabet) -> list[str]:
    """Returns a file's words, one a line, normalised as transcripts are; UsageError if it can't."""
    remedy = "Name a text file with a word a line, such as LibriSpeech's librispeech-vocab.txt."
    words = set()
    for number, line in enumerate(read_text(path, remedy).splitlines(), start=1):
        word = normalise(line)
        if " " in word or alphabet.foreign_characters(word):
            raise UsageError(
                f"Every line of {path} must hold a word in the letters of the alphabet. Line "
                f"{number} is {line.strip()!r}. {remedy}"
            )
        words.add(word)
    words.discard("")
    if not words:
        raise UsageError(f"{path} must hold words; it is empty. {remedy}")
    return sorted(words)


def require_lexicon_use(path: str | Path, *decoders: DecoderConfig | None) -> None:
    """Raises UsageError unless one of the decoders has a dictionary that the file can replace."""
    known = [decoder for decoder in decoders if decoder is not None]
    if not any(map(needs_lexicon, known)):
        raise UsageError(
            f"--lexicon must come with a decoder that has a dictionary, such as word_beam. "
            f"Received: {path} with {' and '.join(decoder.name for decoder in known)}."
        )


def words_hash(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def save_lexicon(run_dir: Path, words: Iterable[str]) -> None:
    write_whole(run_dir / LEXICON_FILE, "".join(f"{word}\n" for word in words))


def load_lexicon(run_dir: Path) -> list[str]:
    """Returns the words that `save_lexicon` wrote, or raises UsageError."""
    path = run_dir / LEXICON_FILE
    remedy = "Copy it from where the run was: it holds the training transcripts' words, one a line."
    words = [word for word in read_text(path, remedy).split("\n") if word]
    if not words:
        raise UsageError(f"A run's dictionary must hold words. {path} is empty. {remedy}")
    if len(longest := max(words, key=len)) > _LONGEST_WORD:
        raise UsageError(
            f"A word of a dictionary may have {_LONGEST_WORD} characters. {path} has one of "
            f"{len(longest)}. {remedy}"
        )
    return words
