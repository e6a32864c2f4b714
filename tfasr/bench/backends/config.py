"""Which backends are compared, and how often."""

from tfasr.bench.workload import BACKENDS
from tfasr.config import config_class, require


@config_class
class BackendsConfig:
    """What is compared, and how often.

    Attributes:
        backends: of "tensorflow", "jax" and "torch"; those not installed are left out.
        rounds: processes of each backend, in alternation.
        steps: steps of each model in each process.
        warmup_steps: steps of each model in each process that are left out.
        keyword_batch_size: utterances of the keyword spotter's batch.
        acoustic_batch_size: utterances of the acoustic model's batch.
        acoustic_frames: feature frames of its utterances.
    """

    backends: tuple[str, ...] = BACKENDS
    rounds: int = 3
    steps: int = 10
    warmup_steps: int = 3
    keyword_batch_size: int = 64
    acoustic_batch_size: int = 16
    acoustic_frames: int = 600

    def check(self) -> None:
        """Raises ValueError for values that compare nothing."""
        for field in ("rounds", "steps", "warmup_steps", "keyword_batch_size"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        for field in ("acoustic_batch_size", "acoustic_frames"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        known = bool(self.backends) and set(self.backends) <= set(BACKENDS)
        require(known, self, "backends", f"some of {BACKENDS}")
