"""Which decoder an experiment evaluates with."""

from typing import Literal

from tfasr.alphabet import Alphabet
from tfasr.config import config_class, require
from tfasr.decoding.decoder import Decoder
from tfasr.decoding.greedy import GreedyDecoder


@config_class
class DecoderConfig:
    """The decoder of evaluations.

    Attributes:
        name: "greedy", or "beam" for prefix beam search over characters.
        beam_width: hypotheses kept per frame; greedy decoding has none.
    """

    name: Literal["greedy", "beam"] = "greedy"
    beam_width: int = 256

    def check(self) -> None:
        """Raises ValueError for a beam that holds nothing."""
        require(self.beam_width > 0, self, "beam_width", "at least 1")


def make_decoder(config: DecoderConfig, alphabet: Alphabet) -> Decoder:
    """Returns the decoder that a config names."""
    if config.name == "greedy":
        return GreedyDecoder(alphabet)
    from tfasr.decoding.beam_search import BeamSearchDecoder  # loads TensorFlow only if chosen

    return BeamSearchDecoder(alphabet, config.beam_width)
