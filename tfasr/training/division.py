"""Whether a run follows the paper's recipe, or one of its own."""

import keras

from tfasr.data.augmentation import AugmentationConfig
from tfasr.models.acoustic_model import AcousticModelConfig
from tfasr.training.experiment import Experiment, zeiler_adadelta

CLOSED = "closed: the paper's model and optimizer"


def is_closed(experiment: Experiment) -> bool:
    """Says whether the paper's recipe is trained, so that times tell what machines differ in.

    It is the paper's model with its dropout, begun and fed as it was, AdaDelta as published without
    a schedule, and audio that is not augmented. Batch size, precision, devices, decoder and targets
    are free, as the paper's own systems differ in them.

    Source: the paper, sections 4.4.1 and 4.4.3; MLCommons' training rules, whose closed division
    fixes model and optimizer likewise.
    """
    model, augmented = experiment.model, experiment.augmentation != AugmentationConfig()
    training = experiment.training
    begun_otherwise = training.initial_blank_bias != 0 or training.zero_output_layer
    other_loss = training.intermediate_loss_weight != 0
    pipeline = experiment.pipeline
    fed_otherwise = pipeline.first_epoch_by_length or len(set(pipeline.batch_sizes)) > 1
    otherwise = augmented or begun_otherwise or other_loss or fed_otherwise
    if otherwise or not isinstance(model, AcousticModelConfig):
        return False
    # How the recurrence is computed changes no result.
    paper = AcousticModelConfig(lstm_kernel=model.lstm_kernel)
    return model == paper and _update_rule(training.optimizer()) == _update_rule(zeiler_adadelta())


def _update_rule(optimizer: keras.optimizers.Optimizer) -> dict:
    config = keras.optimizers.serialize(optimizer)["config"]
    del config["name"]
    return {"class": type(optimizer).__name__, **config}
