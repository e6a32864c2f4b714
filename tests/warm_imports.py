"""What the process that `tests.warm` forks imports, once per session of tests.

Only imports: with devices or threads of TensorFlow, a fork would hang.
"""

from tfasr.kit.process import without_noise

with without_noise():
    import tensorflow  # noqa: F401

import tfasr.commands.evaluate
import tfasr.commands.train
import tfasr.training.train  # noqa: F401
