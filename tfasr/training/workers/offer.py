"""What workers tell each other before a run begins, and what must be the same for all."""

import json
import socket
from typing import Any

from tfasr._version import __version__
from tfasr.errors import UsageError
from tfasr.training.experiment import Experiment
from tfasr.training.run_folder import Claim
from tfasr.training.workers.exchange import Workers

_SAME = ("tfasr", "shards", "configuration")


def offered(experiment: Experiment, shards: dict[str, str], claim: Claim | None) -> dict[str, Any]:
    """Returns what a worker offers at the gate.

    Args:
        experiment: its configuration.
        shards: each split's content hash.
        claim: the chief's, of the run's folder.
    """
    content = json.loads(json.dumps(experiment.to_json()))
    # Keras adds a number that depends on what else the process has created.
    content["training"]["optimizer"].pop("name", None)
    return {
        "tfasr": __version__,
        "shards": shards,
        "configuration": {
            f"{group}.{name}": value
            for group, values in content.items()
            for name, value in values.items()
        },
        "host": socket.gethostname(),
        "session": None if claim is None else claim.session,
        "history": None if claim is None else claim.history,
    }


def check_offers(workers: Workers, offers: list[dict[str, Any]]) -> None:
    """Raises UsageError, on all workers, if their versions, data or configurations differ."""
    for what in _SAME:
        for rank, offer in enumerate(offers):
            differing = _difference(offer[what], offers[0][what])
            if differing:
                raise UsageError(
                    f"All workers must be started with the same {what}. {workers.name(rank)} has "
                    f"{differing}."
                )


def _difference(own: Any, chief: Any) -> str:
    if own == chief:
        return ""
    if not isinstance(chief, dict):
        return f"{own!r}, the chief {chief!r}"
    names = sorted(name for name in chief | own if chief.get(name) != own.get(name))
    return "; ".join(f"{name} {own.get(name)!r}, the chief {chief.get(name)!r}" for name in names)
