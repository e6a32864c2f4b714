"""Which placement an experiment asks for."""

from tfasr.training.build import build_model
from tfasr.training.ctc_model import CtcModel
from tfasr.training.evaluation import Evaluator, make_evaluator
from tfasr.training.placement.beside import OtherProcess
from tfasr.training.placement.protocol import Placement
from tfasr.training.placement.shared import SharedModel
from tfasr.training.placement.swapped import SwappedModel
from tfasr.training.run import TrainingRun


def evaluator_of(run: TrainingRun, model: CtcModel) -> Evaluator:
    """Returns what evaluates a model on a run's validation split, together with all workers."""
    workers = run.team.workers if run.team.share else None
    source = run.sources["validation"]
    return make_evaluator(run.experiment, model, source, run.alphabet, run.lexicon, workers)


def make_placement(run: TrainingRun, *, averaged: bool = False) -> Placement:
    """Returns where a run's epochs are evaluated.

    Args:
        run: built.
        averaged: whether checkpoints hold averaged weights, see `tfasr.training.averaging`.
    """
    training, model, ledger = run.training, run.model, run.ledger
    overlap = training.overlap_evaluation
    if training.evaluation_placement == "beside":
        return OtherProcess(run.run_dir, training.evaluation_devices, ledger)
    if training.evaluation_placement == "swapped":
        return SwappedModel(
            model,
            lambda: build_model(run.experiment, run.alphabet, compiled=False),
            lambda other: evaluator_of(run, other),
            ledger,
            overlap=overlap,
        )
    evaluator = evaluator_of(run, model)
    return SharedModel(model, evaluator, ledger, overlap=overlap, averaged=averaged)
