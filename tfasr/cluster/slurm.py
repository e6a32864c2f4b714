"""A cluster as SLURM's variables describe it to each task of a job step.

TensorFlow's own resolver fails on nodes without GPUs (tensorflow/tensorflow#56894).
"""

import re
from collections.abc import Mapping

from tfasr.cluster.description import Cluster
from tfasr.errors import UsageError

FIRST_PORT, PORTS = 20000, 12000
"""Without ports of its own (``srun --resv-ports``) a job takes some of these, by its number."""

_COUNT = re.compile(r"(?P<tasks>\d+)(\(x(?P<nodes>\d+)\))?")
_RANGE = re.compile(r"(?P<first>\d+)(-(?P<last>\d+))?")
_MOST_NODES = 100_000


def slurm_cluster(environment: Mapping[str, str]) -> Cluster:
    """Returns the cluster of this process's job step.

    Args:
        environment: with the variables that ``srun`` sets.

    Raises:
        UsageError: if variables are missing, or do not fit together.

    Source: slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
    """
    nodes = expand_nodes(_variable(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    text = _variable(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    tasks = tasks_per_node(text)
    if len(tasks) != len(nodes):
        raise UsageError(
            f"SLURM's variables must tell the tasks of each node. Received: {text!r} for "
            f"{len(nodes)} nodes ({', '.join(nodes[:5])}{', ...' if nodes[5:] else ''})."
        )
    rank = _number(environment, "SLURM_PROCID")
    _check_place(environment, tasks, rank)
    ports = _ports(environment, max(tasks))
    addresses = [
        f"{node}:{ports[place]}"
        for node, count in zip(nodes, tasks, strict=True)
        for place in range(count)
    ]
    return Cluster(tuple(addresses), rank)


def expand_nodes(text: str) -> list[str]:
    """Returns the names in a list of nodes such as ``node[001-003,7],gpu1``, in its order.

    Raises:
        UsageError: if it is none.
    """
    names: list[str] = []
    for part in _split_outside_brackets(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        # Odd places hold what stood in brackets.
        if any(sign in piece for piece in pieces for sign in "[]") or not part.strip():
            raise _no_nodes(text)
        found = [""]
        for place, piece in enumerate(pieces):
            choices = _numbers(piece, text) if place % 2 else [piece]
            if len(found) * len(choices) > _MOST_NODES:
                raise _no_nodes(text)
            found = [before + choice for before in found for choice in choices]
        names += found
    return names


def tasks_per_node(text: str) -> list[int]:
    """Returns the counts in a list such as ``2(x3),1``: 2, 2, 2, 1.

    Raises:
        UsageError: if it is none.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        repeated = int(match["nodes"] or 1) if match else 0
        if match is None or not int(match["tasks"]) or not 0 < repeated <= _MOST_NODES:
            raise UsageError(
                "SLURM_STEP_TASKS_PER_NODE must be counts such as 2(x3),1. Received: "
                f"{text[:200]!r}."
            )
        counts += [int(match["tasks"])] * repeated
    return counts


def _split_outside_brackets(text: str) -> list[str]:
    return re.split(r",(?![^\[\]]*\])", text)


def _numbers(piece: str, text: str) -> list[str]:
    """Returns what a bracket's ranges stand for, with the zeros that fill up their first number."""
    numbers: list[str] = []
    for part in piece.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _no_nodes(text)
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if not first <= last < first + _MOST_NODES:
            raise _no_nodes(text)
        width = len(match["first"])
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers


def _no_nodes(text: str) -> UsageError:
    return UsageError(
        "SLURM_STEP_NODELIST must be a list such as node[001-003,7],gpu1. Received: "
        f"{text[:200]!r}."
    )


def _variable(environment: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environment.get(name):
            return environment[name]
    raise UsageError(
        f"{names[0]} must be set where --cluster is slurm. Received: no such variable. Start the "
        "workers with srun, within sbatch or salloc."
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _variable(environment, name)
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"{name} must be a number. Received: {text!r}.")
    return int(text)


def _check_place(environment: Mapping[str, str], tasks: list[int], rank: int) -> None:
    """Refuses tasks that are dealt out to the nodes in turn: all must know who is where."""
    total = sum(tasks)
    if rank >= total:
        raise UsageError(
            f"SLURM_PROCID must be below the number of tasks, {total}. Received: {rank}. Start "
            "all workers in one srun."
        )
    if not environment.get("SLURM_NODEID"):
        return
    node = next(n for n in range(len(tasks)) if rank < sum(tasks[: n + 1]))
    if _number(environment, "SLURM_NODEID") != node:
        raise UsageError(
            "Tasks must fill one node after the other: start them with srun --distribution=block. "
            f"Received: task {rank} on node {environment['SLURM_NODEID']} instead of {node}."
        )


def _ports(environment: Mapping[str, str], count: int) -> list[int]:
    """Returns as many ports as a node needs, which are the same for all workers of a step."""
    reserved = environment.get("SLURM_STEP_RESV_PORTS")
    if reserved:
        try:
            ports = [int(port) for port in _numbers(reserved, reserved)]
        except UsageError:
            ports = []
        if len(ports) < count:
            raise UsageError(
                f"SLURM_STEP_RESV_PORTS must hold {count} ports, one for each worker of a node. "
                f"Received: {reserved!r}. Ask for more: srun --resv-ports={count}."
            )
        return ports[:count]
    job = _number(environment, "SLURM_JOB_ID")
    return [FIRST_PORT + (job * 16 + place) % PORTS for place in range(count)]
