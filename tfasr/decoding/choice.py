"""Selects the decoder that evaluations use.

Training, ``tfasr evaluate`` and recognisers in use all get theirs from `make_decoder`,
by a `DecoderConfig`. A decoder of your own is registered in `DECODERS`, see
docs/extending.md. The words of a run's dictionary are stored in its folder by
`save_lexicon`.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.alphabet import Alphabet, words
from tfasr.decoding.decoder import Decoder, DecoderKind, check_kind
from tfasr.decoding.word_beam_search import MAX_BEAM_WIDTH, WordBeamSearch
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require
from tfasr.kit.files import LEXICON_FILE, read_text, write_whole
from tfasr.kit.registry import Registry
from tfasr.kit.text import text_lines

if TYPE_CHECKING:
    from tfasr.decoding.hot_words import HotWords
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

HOT_WORD_DECODERS = ("beam", "word_beam")  # that can prefer some words

# TensorFlow 2.21's prefix tree took 5.3 to 6.5 kB per frame and hypothesis kept, with
# 30 classes (measured at widths 2000 and 8000, 50 and 100 frames). It is freed before
# the next utterance.
_BYTES_PER_CHILD = 220
_LONGEST_WORD = 4096  # characters; real words are far shorter


@config_class
class DecoderConfig:
    """The decoder used in evaluations.

    Attributes:
        name: "greedy", "beam" (prefix beam search over characters), "word_beam" (word
            beam search with the words of the training transcripts as dictionary, as in
            the paper), or another one of `DECODERS`.
        beam_width: hypotheses kept per frame, at most 65536; not used by greedy
            decoding.
        recombine: whether word beam search drops beams that can't win, see
            `tfasr.decoding.word_beam_search.WordBeamSearch`; not in the published
            algorithm.
    """

    name: str = "word_beam"
    beam_width: int = 256
    recombine: bool = False

    def check(self) -> None:
        require(
            self.name in DECODERS,
            self,
            "name",
            f"a known decoder: {DECODERS.listed()}",
        )
        require(
            0 < self.beam_width <= MAX_BEAM_WIDTH,
            self,
            "beam_width",
            f"1..{MAX_BEAM_WIDTH}",
        )


def check_beam(
    config: DecoderConfig,
    num_classes: int,
    frames: int,
    available_bytes: int,
) -> None:
    """Raises UsageError, suggesting a width, if prefix beam search needs too much memory.

    TensorFlow would otherwise be killed in the middle of an evaluation.

    Args:
        config: of the decoder; others than "beam" need little memory.
        num_classes: including the blank.
        frames: output frames of the longest utterance.
        available_bytes: of memory.
    """
    a_width = _BYTES_PER_CHILD * num_classes * frames
    needed = config.beam_width * a_width
    if config.name == "beam" and needed > available_bytes:
        raise UsageError(
            f"The beam search must fit into {available_bytes / 2**30:.1f} GiB of memory. Width "
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
    hot_words: "HotWords | None" = None,
) -> Decoder:
    """Creates the decoder that a config names; RunError if its compiled core is missing.

    Args:
        config: the decoder's name and settings.
        alphabet: the recogniser's.
        lexicon: words in plain spelling, for decoders that need them.
        num_threads: of "word_beam"; None for one per usable core.
        language_model: scores words; for "word_beam".
        hot_words: weights by word, for "word_beam" and "beam".

    Raises:
        UsageError: if another decoder gets a language model or hot words.
    """
    if hot_words and config.name not in HOT_WORD_DECODERS:
        raise UsageError(
            f"Hot words need one of the decoders {', '.join(HOT_WORD_DECODERS)}. Received: the "
            f"decoder {config.name}. Choose one of them by --decoder."
        )

    # The usual case, which plug-ins support as well.
    if language_model is None and not hot_words:
        return DECODERS[config.name].make(config, alphabet, lexicon, num_threads)

    if language_model is None and config.name == "beam":
        return WordBeamSearch(
            alphabet,
            None,
            beam_width=config.beam_width,
            hot_words=hot_words,
            num_threads=num_threads,
        )

    if config.name != "word_beam":
        raise UsageError(
            "A language model needs the decoder word_beam, which writes the words that it "
            f"scores. Received: the decoder {config.name}. Choose --decoder word_beam."
        )

    return WordBeamSearch(
        alphabet,
        lexicon,
        beam_width=config.beam_width,
        mode="words" if language_model is None else "kenlm",
        language_model=language_model,
        hot_words=hot_words,
        recombine=config.recombine,
        num_threads=num_threads,
    )


def with_hot_words(config: DecoderConfig) -> DecoderConfig:
    """Returns the decoder to use if there are hot words.

    Greedy decoding, which can't use them, becomes prefix beam search.
    """
    if config.name == "greedy":
        return replace(config, name="beam")

    return config


def needs_lexicon(config: DecoderConfig) -> bool:
    """Whether a decoder finds only words of a dictionary."""
    return DECODERS[config.name].needs_lexicon


def read_lexicon(path: str | Path, alphabet: Alphabet) -> list[str]:
    """Reads a dictionary: words, one per line, normalised like transcripts.

    Returns:
        Distinct words, sorted.

    Raises:
        UsageError: naming a line that isn't a word of the alphabet.
    """
    remedy = "Use a text file with one word per line, such as LibriSpeech's librispeech-vocab.txt."
    vocabulary = set()

    for number, line in enumerate(text_lines(path, remedy), start=1):
        word = alphabet.normalise(line)
        if len(words(word)) > 1 or alphabet.foreign_characters(word):
            raise UsageError(
                f"Every line of {path} must be a word in the letters of the alphabet. Line "
                f"{number} is {line.strip()!r}. {remedy}"
            )

        vocabulary.add(word)

    # Empty lines, and lines of marks alone.
    vocabulary.discard("")
    if not vocabulary:
        raise UsageError(f"{path} must contain words, but is empty. {remedy}")

    _check_lengths(vocabulary, Path(path), remedy)

    return sorted(vocabulary)


def require_lexicon_use(path: str | Path, *decoders: DecoderConfig | None) -> None:
    """Raises UsageError unless one of the decoders has a dictionary to replace.

    ``path`` is the lexicon's; a decoder may be None.
    """
    used = [decoder for decoder in decoders if decoder is not None]
    if not any(map(needs_lexicon, used)):
        raise UsageError(
            f"--lexicon needs a decoder with a dictionary, such as word_beam. "
            f"Received: {path} with {' and '.join(decoder.name for decoder in used)}."
        )


def words_hash(words: Iterable[str]) -> str:
    """Returns 16 hexadecimal digits that identify a list of words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def save_lexicon(run_dir: Path, words: Iterable[str]) -> None:
    """Stores a run's dictionary in its folder, so that it decodes the same everywhere."""
    write_whole(run_dir / LEXICON_FILE, "".join(f"{word}\n" for word in words))


def load_lexicon(run_dir: Path) -> list[str]:
    """Reads the words written by `save_lexicon`; UsageError if the file is unfit."""
    path = run_dir / LEXICON_FILE
    remedy = "Copy it from the original run: it has the training transcripts' words, one per line."
    words = [word for word in read_text(path, remedy).split("\n") if word]
    if not words:
        raise UsageError(
            f"A run's dictionary must contain words. {path} is empty. {remedy}"
        )

    _check_lengths(words, path, remedy)

    return words


def _check_lengths(words: Iterable[str], path: Path, remedy: str) -> None:
    """Raises UsageError for words that can't be any, which would cost much memory."""
    if len(longest := max(words, key=len)) > _LONGEST_WORD:
        raise UsageError(
            f"A dictionary's words must have at most {_LONGEST_WORD} characters. {path} has one of "
            f"{len(longest)}. {remedy}"
        )
