"""An optimizer of your own: the sign of a running mean of gradients, and a schedule for it.

tfasr train --import examples/own_optimizer.py --gin_file an4.gin \
    --gin_binding 'TrainingConfig.optimizer = @Signum' --gin_binding 'Signum.learning_rate = 3e-4'

Source: Bernstein et al., "signSGD", ICML 2018, Algorithm 2.
"""

import keras

from tfasr.training.from_gin import OPTIMIZERS


@OPTIMIZERS.register("Signum")
class Signum(keras.optimizers.Optimizer):
    """Moves every weight by the learning rate, against the sign of its mean gradient."""

    def __init__(self, learning_rate=1e-3, momentum=0.9, name="signum", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables):
        """Makes one running mean for each variable."""
        if not self.built:
            super().build(variables)
            self.means = self.add_optimizer_variables(variables, "mean")

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable."""
        mean = self.means[self._get_variable_index(variable)]
        rest = keras.ops.cast(1 - self.momentum, gradient.dtype)
        self.assign_add(mean, (gradient - mean) * rest)
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * keras.ops.sign(mean))

    def get_config(self):
        """Returns all arguments, from which a resumed run makes the same optimizer."""
        return {**super().get_config(), "momentum": self.momentum}


@OPTIMIZERS.register("Halving")
class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """Halves the learning rate every ``steps`` steps: Signum.learning_rate = @Halving()."""

    def __init__(self, initial_learning_rate=1e-3, steps=1000):
        self.initial_learning_rate = initial_learning_rate
        self.steps = steps

    def __call__(self, step):
        """Returns the learning rate of a step."""
        halvings = keras.ops.floor(keras.ops.cast(step, "float32") / self.steps)
        return self.initial_learning_rate * 0.5**halvings

    def get_config(self):
        """Returns the arguments."""
        return {
            "initial_learning_rate": self.initial_learning_rate,
            "steps": self.steps,
        }
