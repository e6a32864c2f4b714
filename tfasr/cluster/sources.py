"""What ``--cluster`` and ``--rank`` name: a list of addresses, TF_CONFIG, or SLURM's variables."""

import json
from collections.abc import Mapping
from typing import Any

from tfasr.cluster.description import Cluster
from tfasr.cluster.slurm import slurm_cluster
from tfasr.errors import UsageError

TF_CONFIG = "TF_CONFIG"


def named_cluster(
    name: str | None, rank: int | None, environment: Mapping[str, str]
) -> Cluster | None:
    """Returns the cluster that flags name; None where there are none.

    Args:
        name: "tf_config", "slurm", or the workers' addresses with commas between them.
        rank: of this process; with addresses alone, as the others tell it themselves.
        environment: of this process.

    Raises:
        UsageError: if they describe no cluster.
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
                f"--rank must be left out with --cluster {name}, whose variables tell it. "
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
            "--rank must say which of the addresses in --cluster this process is, 0 for the first. "
            "Received: no --rank."
        )
    return Cluster(tuple(address.strip() for address in name.split(",")), rank)


def from_tf_config(environment: Mapping[str, str]) -> Cluster:
    """Returns the cluster that ``TF_CONFIG`` describes; a "chief" comes before the "worker"s.

    Raises:
        UsageError: if the variable is missing or describes other jobs than these two.

    Source: tensorflow.org/guide/distributed_training, "TF_CONFIG" (the format).
    """
    text = environment.get(TF_CONFIG)
    if not text:
        raise UsageError(
            f"{TF_CONFIG} must describe the cluster where --cluster is tf_config. Received: "
            f"{'an empty one' if text == '' else 'no such variable'}. Kubernetes' operators and "
            "tfasr launch set it."
        )
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _wrong(f"JSON ({error})", text) from None
    jobs = content.get("cluster") if isinstance(content, dict) else None
    task = content.get("task") if isinstance(content, dict) else None
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise _wrong('an object with "cluster" and "task"', text)
    if not jobs or jobs.keys() - {"chief", "worker"}:
        raise _wrong('a cluster of "worker"s, and "chief" if there is one, alone', text)
    if not all(_addresses(listed) for listed in jobs.values()):
        raise _wrong('a list of "host:port" for each job', text)
    chiefs = jobs.get("chief", [])
    kind, index = task.get("type"), task.get("index")
    whole = isinstance(index, int) and not isinstance(index, bool)
    if kind not in jobs or not whole or not 0 <= index < len(jobs[kind]):
        raise _wrong('a task whose "type" and "index" are one of the cluster\'s', text)
    rank = index if kind == "chief" else len(chiefs) + index
    return Cluster((*chiefs, *jobs.get("worker", [])), rank)


def _addresses(listed: Any) -> bool:
    return isinstance(listed, list) and all(isinstance(address, str) for address in listed)


def _wrong(wanted: str, text: str) -> UsageError:
    return UsageError(f"{TF_CONFIG} must hold {wanted}. Received: {text[:300]}")
