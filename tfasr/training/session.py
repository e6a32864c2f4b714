"""A session's first events in the ledger, and the facts that describe the run."""

import os
from pathlib import Path
from typing import Any

from tfasr.alphabet import Alphabet
from tfasr.data.overlap import overlap, warn_of_overlap
from tfasr.data.shards import ShardedSplit, content_hashes
from tfasr.ledger import Ledger
from tfasr.telemetry.compiled import layers_instruction_set, warn_of_missing_parts
from tfasr.telemetry.process import process_age_s
from tfasr.training.averaging.averages import averaging_rule
from tfasr.training.checkpoint import newest_checkpoint, plain_array, read_state
from tfasr.training.comparability import comparability
from tfasr.training.ctc_model import CtcModel
from tfasr.training.experiment import Experiment
from tfasr.training.optimizer.make import inner_optimizer
from tfasr.training.run_folder import log_resumption
from tfasr.tta.metrics import LOWER


def begin_session(
    run_dir: Path, ledger: Ledger, splits: dict[str, ShardedSplit], *, own_process: bool
) -> Path | None:
    """Writes a session's first events and returns the checkpoint to resume from.

    Args:
        run_dir: the run's folder.
        ledger: the run's, without an event of this session yet.
        splits: "train" and "validation"; the hashes of their contents are recorded.
        own_process: whether to record the process's age, see `tfasr.training.train.train`.

    Returns:
        The newest checkpoint that can be read; None for a new run, or where there is none.
    """
    session = ledger.session
    checkpoint = newest_checkpoint(run_dir, set_aside=True) if session else None
    step = read_state(checkpoint).step if checkpoint else None
    age = {"process_age_s": round(process_age_s(), 6)} if own_process else {}
    ledger.event(
        "session_start",
        {
            "session": session,
            "resumed_from_step": step,
            "alive_until_ms": ledger.alive_until_ms if session else None,
        },
        pid=os.getpid(),
        **age,
    )
    ledger.event("shards", content_hashes(splits))
    shared = overlap(splits["train"].utterances, splits["validation"].utterances)
    warn_of_overlap(shared, "validation")
    ledger.event("shared_with_training", shared.to_json())
    ledger.event("missing_compiled_parts", warn_of_missing_parts())
    ledger.event("instruction_set", layers_instruction_set())
    if session:
        log_resumption(run_dir, step)
    return checkpoint


def book_facts(
    ledger: Ledger,
    experiment: Experiment,
    model: CtcModel,
    splits: dict[str, ShardedSplit],
    alphabet: Alphabet,
    lexicon: list[str],
    more: dict[str, Any],
    own_momentum: int = 0,
) -> None:
    """Writes what describes a run and decides with which others it may be compared.

    Args:
        ledger: gets an event for each fact.
        experiment: what is measured.
        model: built and compiled.
        splits: "train" and "validation".
        alphabet: of the transcripts.
        lexicon: the words of the training transcripts.
        more: further facts, by the event's key.
        own_momentum: batch normalisations that keep a momentum of their own.
    """
    training = experiment.training
    averaged = averaging_rule(training)
    facts = {
        "global_batch_size": experiment.pipeline.global_batch_size,
        "num_replicas": training.num_replicas,
        "seed": training.seed,
        "train_samples": len(splits["train"].utterances),
        "eval_samples": len(splits["validation"].utterances),
        "opt_name": inner_optimizer(model.optimizer).name,
        "opt_base_learning_rate": float(plain_array(model.optimizer.learning_rate)),
        "evaluation_placement": {
            "name": training.evaluation_placement,
            "devices": list(training.evaluation_devices),
        },
        **_second_decoder_facts(training.second_decoder),
        **({"evaluated_weights": averaged} if averaged else {}),
        "targets": [list(target) for target in training.targets],
        "parameters": int(model.count_params()),
        "comparability": comparability(
            experiment,
            splits["validation"],
            alphabet,
            lexicon,
            own_momentum,
            in_cluster="cluster" in more,
        ),
        **more,
    }
    for key, value in facts.items():
        ledger.event(key, value)


def _second_decoder_facts(name: str) -> dict[str, Any]:
    """Returns the declaration of the error rates that a second decoder adds; {} without one."""
    if not name:
        return {}
    label = name.replace("_", " ")
    rates = {"wer": "WER", "cer": "CER"}
    declared = {
        f"{name}_{rate}": {"better": LOWER, "rate": True, "label": f"{label} {short}"}
        for rate, short in rates.items()
    }
    return {"second_decoder": name, "metrics": declared}
