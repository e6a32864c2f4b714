"""CTC loss and gradient in float64, by the definition and by sums of logarithms."""

import itertools

import numpy as np


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def collapse(path, blank):
    return [label for label, _ in itertools.groupby(path) if label != blank]


def by_all_paths(logits, labels):
    """Loss and gradient by the definition: over all sequences of classes that spell the
    labels.
    """
    log_probs = log_softmax(logits)
    frames, classes = log_probs.shape
    posterior = np.zeros((frames, classes))
    total = 0.0
    for path in itertools.product(range(classes), repeat=frames):
        if collapse(path, classes - 1) == list(labels):
            probability = np.exp(log_probs[range(frames), path].sum())
            posterior[range(frames), path] += probability
            total += probability

    return -np.log(total), np.exp(log_probs) - posterior / total


def by_logarithms(logits, labels):
    """The same in float64, by sums of logarithms forwards and backwards."""
    log_probs = log_softmax(logits)
    frames, classes = log_probs.shape
    states = [classes - 1]
    for label in labels:
        states += [label, classes - 1]
    spoken = log_probs[:, states]
    skips = [
        i > 1 and states[i] != classes - 1 and states[i] != states[i - 2]
        for i in range(len(states))
    ]

    def sums(emitted, skips):
        rows = np.full((frames, len(states)), -np.inf)
        rows[0, :2] = emitted[0, :2]
        for t in range(1, frames):
            before = np.concatenate([[-np.inf, -np.inf], rows[t - 1]])
            over = np.where(skips, before[:-2], -np.inf)
            rows[t] = emitted[t] + np.logaddexp.reduce([before[2:], before[1:-1], over])

        return rows

    with np.errstate(invalid="ignore"):
        ahead = sums(spoken, skips)
        # Backwards the same states are skipped over, seen from the other side.
        back_skips = [*skips[2:], False, False][::-1]
        behind = sums(spoken[::-1, ::-1], back_skips)[::-1, ::-1]
        through = ahead + behind - spoken
        total = np.logaddexp.reduce(ahead[-1, -2:])

    if total == -np.inf:
        return np.inf, np.zeros((frames, classes))
    posterior = np.zeros((frames, classes))
    for state, label in enumerate(states):
        posterior[:, label] += np.exp(through[:, state] - total)
    return -total, np.exp(log_probs) - posterior
