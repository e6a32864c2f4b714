"""The facts that describe a run, and those that two results must share to be compared."""

import hashlib
import json
from typing import Any

from tfasr.alphabet import Alphabet
from tfasr.config import to_json
from tfasr.data.shards import ShardedSplit
from tfasr.decoding.choice import needs_lexicon
from tfasr.training.averaging.averages import averaging_rule
from tfasr.training.batch_statistics import statistics_rule
from tfasr.training.checkpoint import plain_array
from tfasr.training.division import CLOSED, is_closed
from tfasr.training.experiment import Experiment
from tfasr.training.optimizer.make import inner_optimizer
from tfasr.training.run import TrainingRun
from tfasr.tta.metrics import LOWER


def run_facts(run: TrainingRun, hardware: dict[str, Any]) -> dict[str, Any]:
    """Returns what describes a run and decides with which others it may be compared, by event key.

    Args:
        run: built.
        hardware: what the machine costs, {} if that is not known.
    """
    experiment, training = run.experiment, run.training
    averaged = averaging_rule(training)
    facts = {
        "global_batch_size": experiment.pipeline.global_batch_size,
        "num_replicas": training.num_replicas,
        "seed": training.seed,
        "train_samples": len(run.splits["train"].utterances),
        "eval_samples": len(run.splits["validation"].utterances),
        "opt_name": inner_optimizer(run.model.optimizer).name,
        "opt_base_learning_rate": float(plain_array(run.model.optimizer.learning_rate)),
        "evaluation_placement": {
            "name": training.evaluation_placement,
            "devices": list(training.evaluation_devices),
        },
        **_second_decoder_facts(training.second_decoder),
        **({"evaluated_weights": averaged} if averaged else {}),
        "targets": [list(target) for target in training.targets],
        "parameters": int(run.model.count_params()),
        "comparability": comparability(
            experiment,
            run.splits["validation"],
            run.alphabet,
            run.lexicon,
            run.own_momentum,
            in_cluster=run.team.share is not None,
        ),
    }
    return facts | hardware | run.team.facts(run.model, training.gradient_exchange, run.link)


def _second_decoder_facts(name: str) -> dict[str, Any]:
    if not name:
        return {}
    label = name.replace("_", " ")
    rates = {"wer": "WER", "cer": "CER"}
    declared = {
        f"{name}_{rate}": {"better": LOWER, "rate": True, "label": f"{label} {short}"}
        for rate, short in rates.items()
    }
    return {"second_decoder": name, "metrics": declared}


def comparability(
    experiment: Experiment,
    validation: ShardedSplit,
    alphabet: Alphabet,
    lexicon: list[str],
    own_momentum: int = 0,
    *,
    in_cluster: bool = False,
) -> dict[str, Any]:
    """Returns the facts that make two times-to-accuracy comparable, and a hash of them.

    Args:
        experiment: names decoder, window of batch statistics, averaged weights, target rule, and a
            recipe, which keeps runs of the paper's apart from all others.
        validation: the split that is evaluated.
        alphabet: of the transcripts.
        lexicon: the words of the training transcripts.
        own_momentum: batch normalisations that keep a momentum of their own.
        in_cluster: whether several workers train; rounded gradients are then no others' equals.

    Source: DESIGN of honest clocks: split, duration cut, text, alphabet, decoder, target rule.
    """
    references = hashlib.sha256()
    for utterance in sorted(validation.utterances, key=lambda u: u.id):
        references.update(f"{utterance.id}\0{utterance.text}\n".encode())
    words = hashlib.sha256("\n".join(lexicon).encode()).hexdigest()[:16]
    facts = {
        "validation_references": references.hexdigest()[:16],
        "validation_utterances": len(validation.utterances),
        "max_duration_s": validation.index["packing"]["max_duration_s"],
        "text_normalisation": "NFC, lower case, single spaces",
        "alphabet": [alphabet.characters, alphabet.separator],
        "decoder": to_json(experiment.decoder),
        "lexicon": words if needs_lexicon(experiment.decoder) else None,
        "batch_statistics": statistics_rule(experiment.training, own_momentum),
        "target_rule": f"median of {experiment.training.target_window} epochs",
        # Open runs do not state it, as none did before: they stay comparable with those.
        **({"division": CLOSED} if is_closed(experiment) else {}),
    }
    exchange = experiment.training.gradient_exchange
    if in_cluster and exchange != "float32":
        facts["gradient_exchange"] = exchange
    whole = json.dumps(facts, sort_keys=True).encode()
    return {**facts, "hash": hashlib.sha256(whole).hexdigest()[:16]}
