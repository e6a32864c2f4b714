"""Which backends are compared, and how often."""

from typing import Literal

from tfasr.bench.workload import BACKENDS
from tfasr.config import config_class, require

NATIVE = "native_torch"
"""PyTorch alone, without Keras: the keyword spotter as its users write it."""


@config_class
class BackendsConfig:
    """What is compared, and how often.

    Attributes:
        backends: of "tensorflow", "jax" and "torch", Keras's, and "native_torch", PyTorch alone,
            for the keyword spotter; those not installed are left out.
        layouts: in which the keyword spotter's images are laid out, see
            `tfasr.models.keyword_spotter.LAYOUTS`, where the backend has both.
        rounds: processes of each backend, in alternation.
        steps: steps of each model in each process.
        warmup_steps: steps of each model in each process that are left out.
        keyword_batch_size: utterances of the keyword spotter's batch.
        acoustic_batch_size: utterances of the acoustic model's batch; 0 leaves it out.
        acoustic_frames: feature frames of its utterances.
    """

    backends: tuple[str, ...] = (*BACKENDS, NATIVE)
    layouts: tuple[Literal["NHWC", "NCHW"], ...] = ("NHWC", "NCHW")
    rounds: int = 3
    steps: int = 10
    warmup_steps: int = 3
    keyword_batch_size: int = 64
    acoustic_batch_size: int = 16
    acoustic_frames: int = 600

    def check(self) -> None:
        """Raises ValueError for values that compare nothing."""
        for field in ("rounds", "steps", "warmup_steps", "keyword_batch_size", "acoustic_frames"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        require(self.acoustic_batch_size >= 0, self, "acoustic_batch_size", "at least 0")
        require(bool(self.layouts), self, "layouts", "at least one")
        names = (*BACKENDS, NATIVE)
        known = bool(self.backends) and set(self.backends) <= set(names)
        require(known, self, "backends", f"some of {names}")
