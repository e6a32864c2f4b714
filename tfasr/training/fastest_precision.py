"""The precision in which this machine trains fastest, for presets: ``@fastest_precision()``."""

import gin

from tfasr.telemetry.compiled import layers_instruction_set


@gin.register
def fastest_precision() -> str:
    """Returns the precision in which tfasr's recurrent layers train fastest on this machine.

    "mixed_bfloat16" where they multiply in tiles of bfloat16 (Intel's AMX), "float32" elsewhere:
    other processors emulate such products, or are no faster at them, and on GPUs it has not been
    measured. A run keeps what it began with: ``experiment.json`` holds the answer, and
    ``operative_config.gin`` the question.

    Raises:
        RunError: if TFASR_INSTRUCTION_SET names none of this processor's instruction sets.

    Source: docs/recipes.md, "bfloat16's error rate": what it costs, and what it does not.
    """
    found = layers_instruction_set()
    if found is None or found["name"] != "amx":
        return "float32"
    import tensorflow as tf  # compiled layers are TensorFlow's; physical devices start nothing

    return "float32" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"
