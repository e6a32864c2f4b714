"""What workers send each other before they train, to find out whether they can.

Each worker sends an offer: its version of tfasr, its data and its configuration. They
must be the chief's in everything that changes the result. The chief also sends which
session of the run begins.
"""

import json
import socket
from typing import Any

from tfasr._version import __version__
from tfasr.decoding.choice import words_hash
from tfasr.errors import UsageError
from tfasr.training.experiment import Experiment
from tfasr.training.run_folder import Claim, flattened
from tfasr.training.workers.exchange import Workers

# The parts of an offer that must be equal.
_SAME = ("tfasr", "shards", "dictionary", "configuration")


def offered(
    experiment: Experiment,
    shards: dict[str, str],
    claim: Claim | None,
    dictionary: list[str] | None = None,
) -> dict[str, Any]:
    """Returns what a worker sends to the others before training.

    Args:
        experiment: its configs.
        shards: hashes of its splits' contents, by name.
        claim: of the run's folder; None unless it is the chief.
        dictionary: the words of the user's lexicon file, if any.
    """
    content = json.loads(json.dumps(experiment.to_json()))
    # Keras adds a number that depends on what else the process has made.
    content["training"]["optimizer"].pop("name", None)
    return {
        "tfasr": __version__,
        "shards": shards,
        "dictionary": {"words": dictionary and words_hash(dictionary)},
        "configuration": flattened(content),
        "host": socket.gethostname(),
        "session": None if claim is None else claim.session,
        "history": None if claim is None else claim.history,
    }


def check_offers(workers: Workers, offers: list[dict[str, Any]]) -> None:
    """Raises UsageError, on all workers, if their offers differ from the chief's."""
    for rank, offer in enumerate(offers):
        differing = unlike(offer, offers[0], workers.name(rank))
        if differing:
            raise UsageError(differing)


def unlike(offer: dict[str, Any], chief: dict[str, Any], name: str) -> str:
    """Returns how a worker's offer differs from the chief's, or "".

    Args:
        offer: from `offered`, or whatever came in its place.
        chief: the chief's offer.
        name: what the message calls the worker.
    """
    for what in _SAME:
        differing = _difference(offer.get(what), chief[what])
        if differing:
            return f"All workers must be started with the same {what}. {name} has {differing}."

    return ""


def _difference(offered: Any, chief: Any) -> str:
    """Describes how two values differ, item by item if both are dicts; "" if they don't."""
    if offered == chief:
        return ""

    if not isinstance(chief, dict) or not isinstance(offered, dict):
        return f"{offered!r}, the chief {chief!r}"

    return "; ".join(
        f"{name} {offered.get(name)!r}, the chief {chief.get(name)!r}"
        for name in sorted(chief | offered)
        if offered.get(name) != chief.get(name)
    )
