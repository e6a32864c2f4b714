"""The chief's memory and network when workers train in rounds.

    python benchmarks/chief.py [--megabytes 10 100] [--workers 2 3 4] [--rounds 3] [--out FILE]

A chief and its workers, each a process, exchange random weights over loopback as in
training, with TLS, but nothing is trained: a worker sends back what it got. Memory is
the chief's peak (VmHWM) less what it had before the first weights. Bytes are those that
the loopback device counted, so other traffic on it counts too. "of weights" divides by
the bytes of the weights.

The formulas of docs/cluster.md, with N workers (the chief is one of them) and weights
of W bytes:

- local: the weights, N changes and their mean, (N + 2) W. All changes are kept until
  all are here.
- asynchronous: N changes that arrive at once, N versions of the weights that are being
  sent, and the weights before and after the change that is being added, at most (2 N +
  2) W.
- network: each of the N - 1 others gets W bytes and sends W bytes in every round.
"""

import argparse
import json
import resource
import secrets
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import free_ports
from tfasr.cluster.stream import ChiefStream
from tfasr.training.workers.hub import SUMMED, Block, Delivery, Hub

ARRAYS = 20  # of which the weights consist
COMPUTED = (2, 4, 8, 16, 32, 64)


def work(addresses: tuple[str, ...], rank: int, secret: str) -> None:
    """Is a worker that sends every block's weights back as its changes."""
    chief = ChiefStream(Cluster(addresses, rank), secret.encode(), 60)
    chief.send({"kind": "join", "offer": {}})
    chief.receive()

    while True:
        message, arrays = chief.receive()
        if message["kind"] == "end":
            return

        result = {
            "steps": message["block"]["steps"],
            "utterances": 1,
            "of_utterances": 4,
        }
        result |= {**dict.fromkeys(SUMMED, 0.0), "ends": False, "busy_s": 0.0}
        chief.send(result, [*arrays, np.zeros(1, np.float32), np.zeros(1, np.int64)])
        del arrays


def own_delivery(block: Block, weights: list[np.ndarray]) -> Delivery:
    """The chief's own result: changes as large as the weights."""
    return Delivery(
        rank=0,
        steps=block.steps,
        utterances=1,
        of_utterances=4,
        numbers=dict.fromkeys(SUMMED, 0.0),
        ends=False,
        changes=[np.full_like(weight, 1e-3) for weight in weights],
        losses=np.zeros(1, np.float32),
        positions=np.zeros(1, np.int64),
    )


def average(weights: list[np.ndarray], delivered: list[Delivery]) -> list[np.ndarray]:
    """The weights after a local round, as `RoundStep` computes them."""
    part = np.float32(1 / len(delivered))
    columns = zip(weights, *(one.changes for one in delivered), strict=True)
    return [
        weight + sum(part * change for change in changes)
        for weight, *changes in columns
    ]


def lead(arguments: argparse.Namespace) -> None:
    """Is the chief; prints what it measured as JSON."""
    count = arguments.workers[0]
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    secret = secrets.token_hex(32)
    hub = Hub(Cluster(addresses, 0), secret.encode())

    words = [sys.executable, __file__, "--secret", secret, "--addresses", *addresses]
    others = [
        subprocess.Popen([*words, "--rank", str(rank)]) for rank in range(1, count)
    ]
    missing = hub.await_all(lambda offer, name: "", 0, 120)
    assert not missing, missing

    hub.begin_training(
        asynchronous=arguments.asynchronous,
        block_steps=1,
        utterances=10,
        note=lambda event: None,
    )
    hub.timeout_s = 600.0

    resting_bytes = psutil.Process().memory_info().rss
    size = int(arguments.megabytes[0] * 1e6 / 4 / ARRAYS)
    weights = [np.random.default_rng(k).random(size, np.float32) for k in range(ARRAYS)]
    began = time.monotonic()
    sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent

    for number in range(arguments.rounds):
        hub.open(1, number, number + 1, weights, list)
        weights = []
        block, start = hub.take()
        hub.deliver(block, own_delivery(block, start))
        start = []
        hub.settle()
        delivered = hub.collect()
        assert len(delivered) == count

        if arguments.asynchronous:
            weights = hub.weights
        else:
            weights = average(hub.weights, delivered)

        delivered.clear()

    took_s = time.monotonic() - began
    sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - sent
    hub.close()

    for process in others:
        process.wait(60)

    weight_bytes = 4 * size * ARRAYS
    peak_bytes = (
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resting_bytes
    )
    rounds = arguments.rounds
    measured = {
        "megabytes": arguments.megabytes[0],
        "workers": count,
        "asynchronous": arguments.asynchronous,
        "memory_of_weights": round(peak_bytes / weight_bytes, 2),
        "sent_of_weights": round(sent / rounds / weight_bytes, 3),
        "seconds_a_round": round(took_s / rounds, 2),
    }
    print(json.dumps(measured), flush=True)


def table(measured: list[dict]) -> str:
    lines = [
        "| weights | workers | exchange | memory, of weights | sent a round, of weights "
        "| seconds a round |",
        "|---:|---:|---|---:|---:|---:|",
    ]
    for one in measured:
        exchange = "asynchronous" if one["asynchronous"] else "local"
        lines.append(
            f"| {one['megabytes']:g} MB | {one['workers']} | {exchange} "
            f"| {one['memory_of_weights']:.2f} | {one['sent_of_weights']:.2f} "
            f"| {one['seconds_a_round']:.2f} |"
        )

    return "\n".join(lines) + "\n"


def computed(megabytes: float) -> str:
    """What the formulas say for more workers."""
    lines = [
        "| workers | memory for the exchange | gets and sends a round | 1 Gbit/s "
        "| 10 Gbit/s |",
        "|---:|---:|---:|---:|---:|",
    ]
    for count in COMPUTED:
        one_way = (count - 1) * megabytes * 1e6
        lines.append(
            f"| {count} | {(count + 2) * megabytes / 1000:.1f} GB "
            f"| {one_way / 1e9:.1f} GB each "
            f"| {2 * one_way * 8 / 1e9:.1f} s | {2 * one_way * 8 / 1e10:.1f} s |"
        )

    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 100])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON of what was measured")
    # Of the processes that this one starts
    parser.add_argument("--asynchronous", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    if arguments.rank is not None:
        work(tuple(arguments.addresses), arguments.rank, arguments.secret)
        return

    if arguments.lead:
        lead(arguments)
        return

    measured = []
    for megabytes in arguments.megabytes:
        for count in arguments.workers:
            for mode in ([], ["--asynchronous"]):
                words = [
                    sys.executable,
                    __file__,
                    "--lead",
                    "--megabytes",
                    str(megabytes),
                ]
                words += [
                    "--workers",
                    str(count),
                    "--rounds",
                    str(arguments.rounds),
                    *mode,
                ]
                done = subprocess.run(
                    words, stdout=subprocess.PIPE, text=True, check=True
                )
                measured.append(json.loads(done.stdout.splitlines()[-1]))
                print(measured[-1], file=sys.stderr, flush=True)

    print(table(measured))
    for megabytes in (100, 1000):
        print(f"{megabytes} MB of weights, by the formulas:\n\n{computed(megabytes)}")

    if arguments.out:
        arguments.out.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
