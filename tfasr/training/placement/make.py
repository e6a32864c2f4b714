"""Which placement an experiment asks for."""

from collections.abc import Callable
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.training.ctc_model import CtcModel
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import TrainingConfig
from tfasr.training.placement.beside import OtherProcess
from tfasr.training.placement.protocol import Placement
from tfasr.training.placement.shared import SharedModel
from tfasr.training.placement.swapped import SwappedModel


def make_placement(
    training: TrainingConfig,
    *,
    run_dir: Path,
    model: CtcModel,
    build: Callable[[], CtcModel],
    evaluator: Callable[[CtcModel], Evaluator],
    ledger: Ledger,
    averaged: bool = False,
) -> Placement:
    """Returns where a run's epochs are evaluated.

    Args:
        training: names the placement.
        run_dir: the run's folder.
        model: the one that is trained.
        build: returns a model like it, without optimizer.
        evaluator: makes an evaluator of the validation split for a model.
        ledger: the run's.
        averaged: whether checkpoints hold averaged weights, see `tfasr.training.averaging`.
    """
    overlap = training.overlap_evaluation
    if training.evaluation_placement == "beside":
        return OtherProcess(run_dir, training.evaluation_devices, ledger)
    if training.evaluation_placement == "swapped":
        return SwappedModel(model, build, evaluator, ledger, overlap=overlap)
    return SharedModel(model, evaluator(model), ledger, overlap=overlap, averaged=averaged)
