"""Restricts libraries to the instructions of an older processor."""

from tfasr.telemetry.compiled import INSTRUCTION_SET_VARIABLE


def _limits(layers: str, one_dnn: str, aten: str, mkl: str) -> dict[str, str]:
    return {
        INSTRUCTION_SET_VARIABLE: layers,
        "ONEDNN_MAX_CPU_ISA": one_dnn,  # TensorFlow's and PyTorch's products
        "DNNL_MAX_CPU_ISA": one_dnn,  # its name before
        "ATEN_CPU_CAPABILITY": aten,  # PyTorch's own loops
        "MKL_ENABLE_INSTRUCTIONS": mkl,  # PyTorch's products in float32
    }


# Environment variables of a process by instruction set of tfasr's layers, the best one
# first. TensorFlow's wheels need AVX, so nothing can be compared below it.
LIMITS = {
    "avx512": _limits("avx512", "AVX512_CORE", "avx512", "AVX512"),
    "avx2": _limits("avx2", "AVX2", "avx2", "AVX2"),
    "portable": _limits("portable", "SSE41", "default", "SSE4_2"),
}
