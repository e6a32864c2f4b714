"""Which decoder an experiment evaluates with."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from tfasr.alphabet import Alphabet
from tfasr.config import config_class, require
from tfasr.decoding.decoder import Decoder
from tfasr.decoding.greedy import GreedyDecoder
from tfasr.decoding.word_beam_search import WordBeamSearch
from tfasr.durable import write_whole
from tfasr.errors import UsageError
from tfasr.run_files import LEXICON_FILE

DECODERS = ("greedy", "beam", "word_beam")


@config_class
class DecoderConfig:
    """The decoder of evaluations.

    Attributes:
        name: "greedy", "beam" (prefix beam search over characters) or "word_beam" (word beam
            search with the words of the training transcripts as dictionary, as in the paper).
        beam_width: hypotheses kept per frame; greedy decoding has none.
        recombine: whether word beam search keeps one beam for each future, see
            `tfasr.decoding.word_beam_search.WordBeamSearch`; not in the published algorithm.
    """

    name: Literal["greedy", "beam", "word_beam"] = "greedy"
    beam_width: int = 256
    recombine: bool = False

    def check(self) -> None:
        """Raises ValueError for a beam that holds nothing."""
        require(self.beam_width > 0, self, "beam_width", "at least 1")


def make_decoder(
    config: DecoderConfig,
    alphabet: Alphabet,
    lexicon: Iterable[str] = (),
    num_threads: int | None = None,
) -> Decoder:
    """Returns the decoder that a config names.

    Args:
        config: names it.
        alphabet: the classes.
        lexicon: the words of "word_beam", in plain spelling.
        num_threads: of "word_beam"; None: one per available core.

    Raises:
        RunError: if word beam search was not built; it says how to.
        ValueError: if its lexicon is empty or cannot be spelled.
    """
    if config.name == "greedy":
        return GreedyDecoder(alphabet)
    if config.name == "word_beam":
        return WordBeamSearch(
            alphabet,
            lexicon,
            beam_width=config.beam_width,
            recombine=config.recombine,
            num_threads=num_threads,
        )
    from tfasr.decoding.beam_search import BeamSearchDecoder  # loads TensorFlow only if chosen

    return BeamSearchDecoder(alphabet, config.beam_width)


def save_lexicon(run_dir: Path, words: Iterable[str]) -> None:
    """Writes ``lexicon.txt``, a word a line."""
    write_whole(run_dir / LEXICON_FILE, "".join(f"{word}\n" for word in words))


def load_lexicon(run_dir: Path) -> list[str]:
    """Returns the words that `save_lexicon` wrote.

    Raises:
        UsageError: if the run has none.
    """
    path = run_dir / LEXICON_FILE
    if not path.is_file():
        raise UsageError(f"A run must hold its dictionary, {LEXICON_FILE}. {run_dir} has none.")
    return path.read_text(encoding="utf-8").splitlines()
