"""How the DeepMark speech benchmark is run."""

from tfasr.config import config_class, require


@config_class
class DeepMarkConfig:
    """How the benchmark is run.

    Attributes:
        batch_size: utterances of a batch, over all devices.
        warmup_steps: passes through each shape of a batch that are left out.
        num_devices: devices that share each batch; several on TensorFlow only.
        seed: of weights and data.

    Source: the batch size, DeepMark's torch/audio/benchmark.lua.
    """

    batch_size: int = 32
    warmup_steps: int = 1
    num_devices: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises ValueError for values that measure nothing."""
        for field in ("batch_size", "warmup_steps", "num_devices"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        require(self.seed >= 0, self, "seed", "at least 0")
