"""How the keyword spotter is trained."""

from typing import Literal

from tfasr.config import config_class, require


@config_class
class KeywordTrainingConfig:
    """How the keyword spotter is trained.

    Attributes:
        batch_size: utterances of an update.
        epochs: passes over the training split.
        learning_rate: of Adam.
        seed: of weights, order and synthetic data.
        target_error: share of wrong words on the validation split to come down to.
        target_window: epochs whose median must meet the target.
        framework: "keras", on the backend that runs, or "torch": PyTorch alone, without Keras.
        layout: of `tfasr.models.keyword_spotter.LAYOUTS`; not every backend has both everywhere.
        num_train: synthetic utterances of the training split, as all others before the fraction
            is taken; the defaults are those of the 30 words in Speech Commands, version 1.
        num_validation: of the validation split.
        num_test: of the test split.
    """

    batch_size: int = 64
    epochs: int = 20
    learning_rate: float = 0.003
    seed: int = 0
    target_error: float = 0.1
    target_window: int = 3
    framework: Literal["keras", "torch"] = "keras"
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    num_train: int = 51088
    num_validation: int = 6798
    num_test: int = 6835

    def check(self) -> None:
        """Raises ValueError for values that train nothing."""
        for field in ("batch_size", "epochs", "target_window", "num_train", "num_validation"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        require(self.num_test > 0, self, "num_test", "at least 1")
        require(self.learning_rate > 0, self, "learning_rate", "positive")
        require(0 <= self.target_error <= 1, self, "target_error", "in 0..1")
        require(self.seed >= 0, self, "seed", "at least 0")
