"""Which processes train a run together, and which one this is."""

import bisect
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tfasr.errors import UsageError

_ADDRESS = re.compile(r"[^\s:\[\]/]+:(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Cluster:
    """The workers of a run: processes that train one model together."""

    addresses: tuple[str, ...]  # host:port of each worker, by rank
    rank: int  # of this process; rank 0 is the chief, which writes the run's files

    def __post_init__(self):
        listed = ",".join(self.addresses)
        if not self.addresses:
            raise UsageError(
                "A cluster must have at least one worker. Received: no address."
            )
        for address in self.addresses:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 0 < int(match["port"]) <= 65535:
                raise UsageError(
                    "A worker's address must be HOST:PORT with a port of 1 to 65535. Received: "
                    f"{address!r} among {listed}."
                )

        repeated = sorted(
            a for a, count in Counter(self.addresses).items() if count > 1
        )
        if repeated:
            raise UsageError(
                "Workers' addresses must differ. Received more than once: "
                f"{', '.join(repeated)}. Give workers on one host different ports."
            )

        if not 0 <= self.rank < self.size:
            raise UsageError(
                f"A worker's rank must be 0 to {self.size - 1}, as there are {self.size} "
                f"addresses. Received: {self.rank} with {listed}."
            )

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def plan(self) -> str:
        """A hash of all addresses, which shows that workers belong to the same cluster."""
        return hashlib.sha256(",".join(self.addresses).encode()).hexdigest()

    @property
    def local_rank(self) -> int:
        """The number of workers of lower rank on the same host, which selects its GPU."""
        host = host_of(self.addresses[self.rank])
        return sum(host_of(address) == host for address in self.addresses[: self.rank])

    def name(self, rank: int) -> str:
        """A worker's name in messages, such as "worker 1 (node2:12345)"."""
        return f"worker {rank}{', the chief' if rank == 0 else ''} ({self.addresses[rank]})"


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


# Without reserved ports (``srun --resv-ports``), the job's number chooses some of these
# ports.
FIRST_PORT = 20000
PORTS = 12000
_COUNT = re.compile(r"(?P<tasks>\d{1,6})(\(x(?P<nodes>\d{1,6})\))?")
_RANGE = re.compile(r"(?P<first>\d{1,18})(-(?P<last>\d{1,18}))?")
_MOST_NODES = 100_000  # also the largest total of tasks


def slurm_cluster(environment: Mapping[str, str]) -> Cluster:
    """Reads the cluster of this process's job step from the variables set by ``srun``.

    Source: slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
    """
    nodes = expand_nodes(
        _variable(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    )
    text = _variable(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    tasks = tasks_per_node(text)
    if sum(tasks) > _MOST_NODES or max(tasks) > PORTS:
        raise UsageError(
            f"A cluster must have at most {_MOST_NODES} tasks, and {PORTS} on a node. Received: "
            f"SLURM_STEP_TASKS_PER_NODE={text[:200]!r}."
        )

    if len(tasks) != len(nodes):
        raise UsageError(
            f"SLURM's variables must give the tasks of each node. Received: {text!r} for "
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
    """Expands a list of nodes such as ``node[001-003,7],gpu1``, keeping its order."""
    names: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text):  # at commas outside of brackets
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        # Items at odd indices were in brackets.
        if any(sign in piece for piece in pieces for sign in "[]") or not part.strip():
            raise _no_nodes(text)
        expanded = [""]
        for place, piece in enumerate(pieces):
            choices = _numbers(piece, text) if place % 2 else [piece]
            if len(expanded) * len(choices) > _MOST_NODES:
                raise _no_nodes(text)
            expanded = [prefix + choice for prefix in expanded for choice in choices]

        names += expanded
        if len(names) > _MOST_NODES:
            raise _no_nodes(text)

    return names


def tasks_per_node(text: str) -> list[int]:
    """Expands counts such as ``2(x3),1`` to 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        repeated = int(match["nodes"] or 1) if match else 0
        room = _MOST_NODES - len(counts)
        if match is None or not int(match["tasks"]) or not 0 < repeated <= room:
            raise UsageError(
                "SLURM_STEP_TASKS_PER_NODE must be counts such as 2(x3),1. Received: "
                f"{text[:200]!r}."
            )

        counts += [int(match["tasks"])] * repeated

    return counts


def _numbers(piece: str, text: str) -> list[str]:
    """Expands the ranges in a bracket; numbers get as many digits as the first of their
    range.
    """
    numbers: list[str] = []
    for part in piece.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _no_nodes(text)
        first = int(match["first"])
        last = int(match["last"] or match["first"])
        if not first <= last < first + _MOST_NODES - len(numbers):
            raise _no_nodes(text)
        numbers += [str(n).zfill(len(match["first"])) for n in range(first, last + 1)]

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
        f"{names[0]} must be set if --cluster is slurm. Received: no such variable. Start "
        "workers with srun, in sbatch or salloc."
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _variable(environment, name)
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"{name} must be a number. Received: {text!r}.")
    return int(text)


def _check_place(environment: Mapping[str, str], tasks: list[int], rank: int) -> None:
    """Raises UsageError unless tasks fill node after node, from which addresses are
    computed.
    """
    total = sum(tasks)
    if rank >= total:
        raise UsageError(
            f"SLURM_PROCID must be below the number of tasks, {total}. Received: {rank}. Start "
            "all workers in one srun."
        )

    if not environment.get("SLURM_NODEID"):
        return
    node = bisect.bisect(list(itertools.accumulate(tasks)), rank)
    if _number(environment, "SLURM_NODEID") != node:
        raise UsageError(
            "Tasks must fill one node after another. Received: task "
            f"{rank} on node {environment['SLURM_NODEID']} instead of {node}. Start them with srun "
            "--distribution=block."
        )


def _ports(environment: Mapping[str, str], count: int) -> list[int]:
    """Chooses a node's ports, which are the same for all workers of a step."""
    reserved = environment.get("SLURM_STEP_RESV_PORTS")
    if reserved:
        try:
            ports = [int(port) for port in _numbers(reserved, reserved)]
        except UsageError:
            ports = []

        if len(ports) < count:
            raise UsageError(
                f"SLURM_STEP_RESV_PORTS must have {count} ports, one for each worker of a node. "
                f"Received: {reserved!r}. Request more: srun --resv-ports={count}."
            )

        return ports[:count]

    job = _number(environment, "SLURM_JOB_ID")
    return [FIRST_PORT + (job * 16 + place) % PORTS for place in range(count)]


TF_CONFIG = "TF_CONFIG"


def named_cluster(
    name: str | None, rank: int | None, environment: Mapping[str, str]
) -> Cluster | None:
    """Returns the cluster that ``--cluster`` and ``--rank`` describe; None without
    ``--cluster``.

    Raises UsageError if the flags are inconsistent. ``--rank`` is only for a list of
    addresses.
    """
    if name is None:
        if rank is not None:
            raise UsageError(
                "--rank must come with --cluster HOST:PORT,HOST:PORT. Received: no --cluster."
            )

        return None

    if name in ("tf_config", "slurm"):
        if rank is not None:
            raise UsageError(
                f"--rank must be left out with --cluster {name}, whose variables contain it. "
                f"Received: --rank {rank}."
            )

        return (from_tf_config if name == "tf_config" else slurm_cluster)(environment)

    if ":" not in name:
        raise UsageError(
            "--cluster must be tf_config, slurm or addresses such as node1:12345,node2:12345. "
            f"Received: {name!r}."
        )

    if rank is None:
        raise UsageError(
            "--rank must give this process's index among the addresses in --cluster, 0 for the "
            "first. Received: no --rank."
        )

    return Cluster(tuple(address.strip() for address in name.split(",")), rank)


def from_tf_config(environment: Mapping[str, str]) -> Cluster:
    """Reads the cluster from ``TF_CONFIG``; a "chief" gets rank 0, each "worker" a later one.

    Source: tensorflow.org/guide/distributed_training, "TF_CONFIG" (the format).
    """
    text = environment.get(TF_CONFIG)
    if not text:
        raise UsageError(
            f"{TF_CONFIG} must describe the cluster if --cluster is tf_config. Received: "
            f"{'an empty one' if text == '' else 'no such variable'}. Kubernetes operators and "
            "tfasr launch set it."
        )

    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"JSON ({error})", text) from None

    jobs = content.get("cluster") if isinstance(content, dict) else None
    task = content.get("task") if isinstance(content, dict) else None
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise _wrong('an object with "cluster" and "task"', text)
    if not jobs or jobs.keys() - {"chief", "worker"}:
        raise _wrong('a cluster with "worker"s and at most a "chief"', text)
    for addresses in jobs.values():
        if not isinstance(addresses, list) or not all(
            isinstance(a, str) for a in addresses
        ):
            raise _wrong('a list of "host:port" for each job', text)

    chiefs = jobs.get("chief", [])
    kind = task.get("type")
    index = task.get("index")
    if (
        kind not in [*jobs]
        or type(index) is not int
        or not 0 <= index < len(jobs[kind])
    ):
        raise _wrong('a task whose "type" and "index" exist in the cluster', text)
    rank = index if kind == "chief" else len(chiefs) + index
    return Cluster((*chiefs, *jobs.get("worker", [])), rank)


def _wrong(wanted: str, text: str) -> UsageError:
    return UsageError(f"{TF_CONFIG} must hold {wanted}. Received: {text[:300]!r}")
