"""Which decoders are measured at which beam widths."""

from tfasr.config import config_class, require


@config_class
class DecoderBenchConfig:
    """What is measured: every decoder at every beam width.

    Attributes:
        decoders: of `tfasr.decoding.choice.DECODERS`, in the order of the table.
        beam_widths: hypotheses kept per frame; greedy decoding has none.
        recombine: whether word beam search is also measured with recombination.
        num_threads: of word beam search and of TensorFlow.
    """

    decoders: tuple[str, ...] = ("word_beam", "greedy")
    beam_widths: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
    recombine: bool = False
    num_threads: int = 1

    def check(self) -> None:
        """Raises ValueError for values that measure nothing."""
        require(self.num_threads > 0, self, "num_threads", "at least 1 (--num_threads)")
