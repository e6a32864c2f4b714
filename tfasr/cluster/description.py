"""Which processes train a run together, and which one this is.

`named_cluster` reads what ``tfasr train --cluster`` names: addresses, ``TF_CONFIG`` or
SLURM's variables. All three become a `Cluster`, the only thing that the rest of tfasr
knows about them.
"""

import bisect
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tfasr.errors import UsageError

TF_CONFIG = "TF_CONFIG"

_ADDRESS = re.compile(r"[^\s:\[\]/]+:(?P<port>\d{1,5})")

# Without reserved ports (``srun --resv-ports``), the job's number chooses some of these
# ports. They are below those that Linux gives to outgoing connections (32768 and up).
FIRST_PORT = 20000
PORTS = 12000

# Numbers between two jobs' first ports: workers per node until neighbouring jobs that
# share a node would choose the same ports.
_PORTS_OF_JOB = 16

# SLURM's own forms: "2(x3)" tasks per node, and "001-003" within a node's brackets.
_COUNT = re.compile(r"(?P<tasks>\d{1,6})(\(x(?P<nodes>\d{1,6})\))?")
_RANGE = re.compile(r"(?P<first>\d{1,18})(-(?P<last>\d{1,18}))?")

# Also the largest total of tasks. A short text can stand for more nodes than memory
# holds.
_MOST_NODES = 100_000

_SHOWN_CHARACTERS = 200  # of a wrong variable, in messages
_SHOWN_NODES = 5


@dataclass(frozen=True)
class Cluster:
    """The workers of a run: processes that train one model together.

    Example:
        >>> cluster = Cluster(("node1:12345", "node2:12345"), rank=1)
        >>> cluster.name(0)
        'worker 0, the chief (node1:12345)'

    Raises:
        UsageError: if there is no address, one is malformed or repeated, or the rank
            is not that of an address.
    """

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
                    "A worker's address must be HOST:PORT with a port of 1 to 65535. "
                    f"Received: {address!r} among {listed}."
                )

        counts = Counter(self.addresses)
        repeated = sorted(address for address in counts if counts[address] > 1)
        if repeated:
            raise UsageError(
                "Workers' addresses must differ. Received more than once: "
                f"{', '.join(repeated)}. Give workers on one host different ports."
            )

        if not 0 <= self.rank < self.size:
            raise UsageError(
                f"A worker's rank must be 0 to {self.size - 1}, as there are "
                f"{self.size} addresses. Received: {self.rank} with {listed}."
            )

    @property
    def size(self) -> int:
        """The number of workers, this one included."""
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
        if rank == 0:
            return f"worker 0, the chief ({self.addresses[0]})"

        return f"worker {rank} ({self.addresses[rank]})"


def host_of(address: str) -> str:
    """Returns the host of an address ``HOST:PORT``."""
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    """Returns the port of an address ``HOST:PORT``."""
    return int(address.rpartition(":")[2])


def named_cluster(
    name: str | None, rank: int | None, environment: Mapping[str, str]
) -> Cluster | None:
    """Returns the cluster that ``--cluster`` and ``--rank`` describe.

    Args:
        name: "tf_config", "slurm" or addresses, separated by commas; None without
            ``--cluster``.
        rank: this process's rank, only for a list of addresses.
        environment: the process's environment variables.

    Returns:
        None without ``--cluster``.

    Raises:
        UsageError: if the flags are inconsistent, or what they name is wrong.
    """
    if name is None:
        if rank is not None:
            raise UsageError(
                "--rank must come with --cluster HOST:PORT,HOST:PORT. Received: no "
                "--cluster."
            )

        return None

    if name in ("tf_config", "slurm") and rank is not None:
        raise UsageError(
            f"--rank must be left out with --cluster {name}, whose variables contain "
            f"it. Received: --rank {rank}."
        )

    if name == "tf_config":
        return from_tf_config(environment)

    if name == "slurm":
        return slurm_cluster(environment)

    if ":" not in name:
        raise UsageError(
            "--cluster must be tf_config, slurm or addresses such as "
            f"node1:12345,node2:12345. Received: {name!r}."
        )

    if rank is None:
        raise UsageError(
            "--rank must give this process's index among the addresses in --cluster, 0 "
            "for the first. Received: no --rank."
        )

    return Cluster(tuple(address.strip() for address in name.split(",")), rank)


def from_tf_config(environment: Mapping[str, str]) -> Cluster:
    """Reads the cluster from ``TF_CONFIG``; a "chief" gets rank 0, each "worker" a later one.

    Args:
        environment: the process's environment variables.

    Raises:
        UsageError: if the variable is missing, malformed or names other jobs.

    Source: tensorflow.org/guide/distributed_training, "TF_CONFIG" (the format).
    """
    text = environment.get(TF_CONFIG)
    if not text:
        received = "no such variable" if text is None else "an empty one"
        raise UsageError(
            f"{TF_CONFIG} must describe the cluster if --cluster is tf_config. "
            f"Received: {received}. Kubernetes operators and tfasr launch set it."
        )

    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"JSON ({error})", text) from None

    if not isinstance(content, dict):
        content = {}

    jobs = content.get("cluster")
    task = content.get("task")
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise _wrong('an object with "cluster" and "task"', text)

    if not jobs or jobs.keys() - {"chief", "worker"}:
        raise _wrong('a cluster with "worker"s and at most a "chief"', text)

    for addresses in jobs.values():
        is_list = isinstance(addresses, list)
        if not is_list or not all(isinstance(address, str) for address in addresses):
            raise _wrong('a list of "host:port" for each job', text)

    kind = task.get("type")
    index = task.get("index")
    is_place = kind in list(jobs) and type(index) is int
    if not is_place or not 0 <= index < len(jobs[kind]):
        raise _wrong('a task whose "type" and "index" exist in the cluster', text)

    chiefs = jobs.get("chief", [])
    rank = index
    if kind == "worker":
        rank += len(chiefs)

    return Cluster((*chiefs, *jobs.get("worker", [])), rank)


def _wrong(wanted: str, text: str) -> UsageError:
    return UsageError(f"{TF_CONFIG} must hold {wanted}. Received: {text[:300]!r}")


def slurm_cluster(environment: Mapping[str, str]) -> Cluster:
    """Reads the cluster of this process's job step from the variables set by ``srun``.

    Args:
        environment: the process's environment variables.

    Raises:
        UsageError: if a variable is missing, malformed or contradicts another.

    Source: slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
    """
    nodes = expand_nodes(
        _variable(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    )
    text = _variable(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    tasks = tasks_per_node(text)
    if sum(tasks) > _MOST_NODES or max(tasks) > PORTS:
        raise UsageError(
            f"A cluster must have at most {_MOST_NODES} tasks, and {PORTS} on a node. "
            f"Received: SLURM_STEP_TASKS_PER_NODE={text[:_SHOWN_CHARACTERS]!r}."
        )

    if len(tasks) != len(nodes):
        shown = ", ".join(nodes[:_SHOWN_NODES])
        if len(nodes) > _SHOWN_NODES:
            shown += ", ..."

        raise UsageError(
            "SLURM's variables must give the tasks of each node. Received: "
            f"{text!r} for {len(nodes)} nodes ({shown})."
        )

    rank = _number(environment, "SLURM_PROCID")
    _check_place(environment, tasks, rank)
    ports = _ports(environment, max(tasks))
    addresses = [
        f"{node}:{port}"
        for node, count in zip(nodes, tasks, strict=True)
        for port in ports[:count]
    ]
    return Cluster(tuple(addresses), rank)


def expand_nodes(text: str) -> list[str]:
    """Expands a list of nodes as SLURM writes it, keeping its order.

    Example:
        >>> expand_nodes("node[001-002,7],gpu1")
        ['node001', 'node002', 'node7', 'gpu1']

    Raises:
        UsageError: if it is no such list or too long.
    """
    names: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text):  # at commas outside of brackets
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        if any(sign in piece for piece in pieces for sign in "[]") or not part.strip():
            raise _no_nodes(text)

        expanded = [""]
        for place, piece in enumerate(pieces):
            choices = [piece]
            if place % 2:  # it was in brackets
                choices = _numbers(piece, text)
            if len(expanded) * len(choices) > _MOST_NODES:
                raise _no_nodes(text)

            expanded = [prefix + choice for prefix in expanded for choice in choices]

        names += expanded
        if len(names) > _MOST_NODES:
            raise _no_nodes(text)

    return names


def tasks_per_node(text: str) -> list[int]:
    """Expands the numbers of tasks on each node as SLURM writes them.

    Example:
        >>> tasks_per_node("2(x3),1")
        [2, 2, 2, 1]

    Raises:
        UsageError: if they are no such numbers, or too many.
    """
    counts: list[int] = []
    for part in text.split(","):
        tasks = 0
        nodes = 0
        match = _COUNT.fullmatch(part.strip())
        if match is not None:
            tasks = int(match["tasks"])
            nodes = int(match["nodes"] or 1)

        if not tasks or not 0 < nodes <= _MOST_NODES - len(counts):
            raise UsageError(
                "SLURM_STEP_TASKS_PER_NODE must be counts such as 2(x3),1. Received: "
                f"{text[:_SHOWN_CHARACTERS]!r}."
            )

        counts += [tasks] * nodes

    return counts


def _numbers(piece: str, text: str) -> list[str]:
    """Expands the ranges in a bracket.

    Numbers get as many digits as the first of their range: ``08-10`` is 08, 09, 10.
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

        digits = len(match["first"])
        numbers += [str(number).zfill(digits) for number in range(first, last + 1)]

    return numbers


def _no_nodes(text: str) -> UsageError:
    return UsageError(
        "SLURM_STEP_NODELIST must be a list such as node[001-003,7],gpu1. Received: "
        f"{text[:_SHOWN_CHARACTERS]!r}."
    )


def _variable(environment: Mapping[str, str], *names: str) -> str:
    """Returns the first of some variables that is set.

    Variables of the step come first: those of the job are for all of its steps.

    Raises:
        UsageError: if none of them is set.
    """
    for name in names:
        if environment.get(name):
            return environment[name]

    raise UsageError(
        f"{names[0]} must be set if --cluster is slurm. Received: no such variable. "
        "Start workers with srun, in sbatch or salloc."
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    """Returns a variable as a number; UsageError if it is missing or something else."""
    text = _variable(environment, name)
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"{name} must be a number. Received: {text!r}.")

    return int(text)


def _check_place(environment: Mapping[str, str], tasks: list[int], rank: int) -> None:
    """Raises UsageError unless tasks fill node after node.

    The addresses are computed from that order.
    """
    total = sum(tasks)
    if rank >= total:
        raise UsageError(
            f"SLURM_PROCID must be below the number of tasks, {total}. Received: "
            f"{rank}. Start all workers in one srun."
        )

    if not environment.get("SLURM_NODEID"):
        return

    node = bisect.bisect(list(itertools.accumulate(tasks)), rank)
    if _number(environment, "SLURM_NODEID") != node:
        raise UsageError(
            f"Tasks must fill one node after another. Received: task {rank} on node "
            f"{environment['SLURM_NODEID']} instead of {node}. Start them with srun "
            "--distribution=block."
        )


def _ports(environment: Mapping[str, str], count: int) -> list[int]:
    """Chooses a node's ports, which are the same for all workers of a step.

    They are those that SLURM reserved, or else follow from the job's number: every
    worker computes the same ones without asking another.

    Args:
        environment: the process's environment variables.
        count: how many ports the node with most workers needs.
    """
    reserved = environment.get("SLURM_STEP_RESV_PORTS")
    if not reserved:
        first = _number(environment, "SLURM_JOB_ID") * _PORTS_OF_JOB
        return [FIRST_PORT + (first + place) % PORTS for place in range(count)]

    try:
        ports = [int(port) for port in _numbers(reserved, reserved)]
    except UsageError:
        ports = []

    if len(ports) < count:
        raise UsageError(
            f"SLURM_STEP_RESV_PORTS must have {count} ports, one for each worker of a "
            f"node. Received: {reserved!r}. Request more: srun --resv-ports={count}."
        )

    return ports[:count]
