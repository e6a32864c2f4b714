"""Recognises errors of exhausted memory on any backend."""

# TensorFlow and JAX name the status, PyTorch has a class of its own.
_STATUS = "RESOURCE_EXHAUSTED"
_CLASSES = ("OutOfMemoryError", "ResourceExhaustedError", "MemoryError", "_ArrayMemoryError")


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that there was not enough memory."""
    named = any(cls.__name__ in _CLASSES for cls in type(error).__mro__)
    return named or _STATUS in str(error)
