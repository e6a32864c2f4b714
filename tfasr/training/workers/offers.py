"""What workers tell each other before they train, to find out whether they can."""

import json
import socket
from typing import Any

from tfasr._version import __version__
from tfasr.decoding.choice import words_hash
from tfasr.errors import UsageError
from tfasr.training.experiment import Experiment
from tfasr.training.run_folder import Claim
from tfasr.training.workers.exchange import Workers

_SAME = ("tfasr", "shards", "dictionary", "configuration")


def offered(
    experiment: Experiment,
    shards: dict[str, str],
    claim: Claim | None,
    dictionary: list[str] | None = None,
) -> dict[str, Any]:
    """What a worker sends to the others before training; the chief adds its claim of
    the run.
    """
    content = json.loads(json.dumps(experiment.to_json()))
    # Keras adds a number that depends on what else the process has created.
    content["training"]["optimizer"].pop("name", None)
    return {
        "tfasr": __version__,
        "shards": shards,
        "dictionary": {"words": dictionary and words_hash(dictionary)},
        "configuration": {
            f"{g}.{n}": value for g in content for n, value in content[g].items()
        },
        "host": socket.gethostname(),
        "session": None if claim is None else claim.session,
        "history": None if claim is None else claim.history,
    }


def check_offers(workers: Workers, offers: list[dict[str, Any]]) -> None:
    """Raises UsageError, on all workers, if their versions, data or configurations differ."""
    for rank, offer in enumerate(offers):
        differing = unlike(offer, offers[0], workers.name(rank))
        if differing:
            raise UsageError(differing)


def unlike(offer: dict[str, Any], chief: dict[str, Any], name: str) -> str:
    """Returns how a worker's version, data or configuration differ from the chief's, or ""."""
    for what in _SAME:
        differing = _difference(offer.get(what), chief[what])
        if differing:
            return f"All workers must be started with the same {what}. {name} has {differing}."

    return ""


def _difference(offered: Any, chief: Any) -> str:
    if offered == chief:
        return ""

    if not isinstance(chief, dict) or not isinstance(offered, dict):
        return f"{offered!r}, the chief {chief!r}"

    return "; ".join(
        f"{name} {offered.get(name)!r}, the chief {chief.get(name)!r}"
        for name in sorted(chief | offered)
        if offered.get(name) != chief.get(name)
    )
