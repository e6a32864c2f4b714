"""Weights in eight bits."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Not the convolution: ONNX Runtime's integer convolution is slower than its float one.
_OPERATORS = ["LSTM", "MatMul"]


def quantised(graph: bytes) -> bytes:
    """Returns a graph whose large matrices are int8, activations being scaled as they come.

    A GRU's stay as they are: ONNX Runtime has no such GRU.

    Args:
        graph: a file's content.
    """
    import onnxruntime  # noqa: F401 - before the folder is made: it may be missing
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, _without_advice():
        given, made = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        given.write_bytes(graph)
        quantize_dynamic(
            given,
            made,
            op_types_to_quantize=_OPERATORS,
            weight_type=QuantType.QInt8,
            per_channel=False,
        )
        return made.read_bytes()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Keeps ONNX Runtime from logging what it does, and how to optimise the graph before."""

    def refused(_: logging.LogRecord) -> bool:
        return False  # what it tells its own root logger concerns nobody who exports

    root = logging.getLogger()
    root.addFilter(refused)
    try:
        yield
    finally:
        root.removeFilter(refused)
