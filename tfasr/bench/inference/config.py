"""Which requests to a recogniser are measured."""

from tfasr.config import config_class, require

TORCH = "torch"
BACKENDS = ("keras", "onnx", "onnx_int8", "litert", "litert_int8", TORCH)


@config_class
class InferenceConfig:
    """What is measured: every backend with all batches and chunks.

    Attributes:
        backends: of `BACKENDS`: the run on Keras, its exports, and "torch", the same weights in
            PyTorch's own layers.
        batches: recordings in one request.
        chunks_ms: of a stream.
        recordings: how many are used, evenly spread over those that are given.
        rounds: how often each recording is heard in each way.
        cold_starts: how often the command line is started.
    """

    backends: tuple[str, ...] = BACKENDS
    batches: tuple[int, ...] = (1, 2, 4)
    chunks_ms: tuple[int, ...] = (100, 250, 500, 1000)
    recordings: int = 40
    rounds: int = 3
    cold_starts: int = 5

    def check(self) -> None:
        """Raises ValueError for sizes that measure nothing."""
        known = bool(self.backends) and set(self.backends) <= set(BACKENDS)
        require(known, self, "backends", f"of {', '.join(BACKENDS)}, at least one")
        for field in ("batches", "chunks_ms"):
            require(all(n > 0 for n in getattr(self, field)), self, field, "at least 1 each")
        for field in ("recordings", "rounds", "cold_starts"):
            require(getattr(self, field) > 0, self, field, "at least 1")
