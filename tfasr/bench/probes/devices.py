"""Devices of a measuring process: GPUs where there are, else slices of the processor."""

import tensorflow as tf

from tfasr.errors import UsageError


def num_gpus() -> int:
    """Returns how many GPUs TensorFlow sees; starts none of them."""
    return len(tf.config.list_physical_devices("GPU"))


def use_devices(count: int) -> str:
    """Makes this process use so many devices; to be called before TensorFlow uses any.

    Args:
        count: GPUs, or where there is none logical devices that share the processor.

    Returns:
        "GPU" or "logical CPU".

    Raises:
        UsageError: if there are GPUs, but fewer.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        processor = tf.config.list_physical_devices("CPU")[0]
        slices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        tf.config.set_logical_device_configuration(processor, slices)
        return "logical CPU"
    if count > len(gpus):
        raise UsageError(
            f"Device counts must not exceed the {len(gpus)} GPUs. Received: {count}. Bind fewer, "
            "as with --gin_binding 'ScalingConfig.device_counts = (1, 2)'."
        )
    tf.config.set_visible_devices(gpus[:count], "GPU")
    for gpu in gpus[:count]:
        tf.config.experimental.set_memory_growth(gpu, True)
    return "GPU"


def peak_device_bytes(count: int) -> list[int | None]:
    """Returns the most memory that TensorFlow used on each GPU; None for slices of a processor."""
    if not tf.config.list_logical_devices("GPU"):
        return [None] * count
    information = tf.config.experimental.get_memory_info
    return [information(f"GPU:{index}")["peak"] for index in range(count)]
