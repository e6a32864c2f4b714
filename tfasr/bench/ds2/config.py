"""How the DeepMark speech benchmark is run."""

from tfasr.bench.ds2.data import LENGTHS_S
from tfasr.config import config_class, require


@config_class
class DeepMarkConfig:
    """How the benchmark is run.

    Attributes:
        batch_size: utterances of a batch on each device, where none is searched for.
        search_batches: sizes of which the fastest is searched for and then used; growing, as far
            as the memory allows. Empty for `batch_size`.
        search_lengths_s: lengths of utterances on which the sizes are compared; empty for all.
        search_rounds: how often each of them is measured for a size.
        cliff_tolerance: share by which an utterance of a larger batch may take longer before that
            counts as a cliff.
        memory_share: of the free memory that the search may take.
        warmup_steps: passes through each shape of a batch that are left out.
        num_devices: devices, each with a batch of its own; several on TensorFlow only.
        seed: of weights and data.

    Source: the batch size, DeepMark's torch/audio/benchmark.lua; the search, the remarks on the
    fastest minibatch in DeepMark's issue 1.
    """

    batch_size: int = 32
    search_batches: tuple[int, ...] = ()
    search_lengths_s: tuple[int, ...] = ()
    search_rounds: int = 2
    cliff_tolerance: float = 0.05
    memory_share: float = 0.8
    warmup_steps: int = 1
    num_devices: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises ValueError for values that measure nothing."""
        for field in ("batch_size", "warmup_steps", "num_devices", "search_rounds"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        sizes = self.search_batches
        rising = all(0 < one < other for one, other in zip(sizes, sizes[1:], strict=False))
        require(
            rising and min(sizes, default=1) > 0, self, "search_batches", "positive and growing"
        )
        known = set(self.search_lengths_s) <= set(LENGTHS_S)
        require(known, self, "search_lengths_s", f"of {LENGTHS_S[0]}..{LENGTHS_S[-1]} s")
        require(self.cliff_tolerance >= 0, self, "cliff_tolerance", "at least 0")
        require(0 < self.memory_share <= 1, self, "memory_share", "above 0 and at most 1")
        require(self.seed >= 0, self, "seed", "at least 0")
