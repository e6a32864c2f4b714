"""A worker that trains nothing: it adds 1 to every weight in each block.

``python -m tests.cluster.peer ADDRESSES RANK SECRET`` joins a hub and prints a line for
each block.
"""

import sys
from contextlib import closing

import numpy as np

from tfasr.cluster.description import Cluster
from tfasr.cluster.stream import ChiefStream

SUMS = ("audio_s", "frames", "padded_frames", "input_wait_s", "compile_s", "train_s")


def result_of(message: dict, arrays: list[np.ndarray]) -> tuple[dict, list[np.ndarray]]:
    """Returns a worker's result on a block of one utterance a step."""
    steps = message["block"]["steps"]
    result = {
        "steps": steps,
        "utterances": steps,
        "of_utterances": 2 * steps,
        "ends": False,
    }
    result |= {**dict.fromkeys(SUMS, 0.01), "busy_s": 0.0}
    changes = [np.ones_like(array) for array in arrays[: message["weights"]]]
    return result, [*changes, np.zeros(steps, np.float32), np.arange(steps)]


def main() -> None:
    addresses, rank, secret = sys.argv[1:]
    cluster = Cluster(tuple(addresses.split(",")), int(rank))
    with closing(ChiefStream(cluster, secret.encode(), 20.0)) as chief:
        chief.send({"kind": "join", "offer": {}})
        chief.receive()
        while True:
            message, arrays = chief.receive()
            if message["kind"] == "end":
                return
            chief.send(*result_of(message, arrays))
            print(message["block"]["step"], flush=True)


if __name__ == "__main__":
    main()
