"""A metric of your own: the token error rate, in which each character but the space is a token.

tfasr train --import examples/own_metric.py --gin_binding 'TrainingConfig.targets = (("ter", 0.3),)'
"""

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from tfasr.tta.metrics import METRICS, Metric


def token_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Returns the edits per token of the references, over all utterances."""
    edits = 0
    tokens = 0
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        expected = reference.replace(" ", "")
        edits += Levenshtein.distance(expected, hypothesis.replace(" ", ""))
        tokens += len(expected)

    return edits / max(tokens, 1)


METRICS.register("ter", Metric(rate=True, label="TER", compute=token_error_rate))
