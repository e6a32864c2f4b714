"""Times the training steps of two versions of tfasr against each other, in alternation.

    git worktree add ../earlier COMMIT
    (cd ../earlier && python setup.py build_ext --inplace)
    python benchmarks/two_versions.py --earlier ../earlier --size an4 paper --rounds 9

The step is that of `training_step.py`: forward, CTC loss, backward and update on one
batch of noise. Each version is a process that imports `tfasr` and its benchmarks from
its own source tree; Python, TensorFlow and Keras are those of this command. Both are
warm before the first round. In a round each has one turn while the other sleeps, and
the order alternates. A ratio is the earlier version's time divided by the later's in
the same round: above 1, the later is faster. The table has the median ratio, and the
distribution-free 95 % confidence interval of the median between two rounds' ratios
(which needs at least six rounds). A shared machine's speed drifts by more than the
effects measured here, but a round's two turns share it.

If the speed changes within a second, turns are no longer pairs. With --at_once, both
versions train at the same time, each on half of the cores, which they swap from round
to round; a ratio then combines two rounds, so that each has had both halves.
"""

import argparse
import contextlib
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from scipy.stats import binom
from twin import results
from twin.sizes import Size, parse_size
from twin.systems import PRECISIONS
from twin.worker import Worker, take_turn

LATER = Path(__file__).resolve().parents[1]
COLUMNS = [
    ("size", "size"),
    ("precision", "precision"),
    ("earlier_ms", "earlier, ms a step"),
    ("later_ms", "later, ms a step"),
    ("ratio", "ratio"),
    ("ratio_low", "from"),
    ("ratio_high", "to"),
    ("rounds", "rounds"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--earlier", type=Path, required=True, help="source tree with built parts"
    )
    parser.add_argument("--later", type=Path, default=LATER, help="default: this one")
    parser.add_argument("--size", type=parse_size, nargs="+", default=["paper", "an4"])
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--turn_s", type=float, default=0.5, help="least seconds of a turn"
    )
    parser.add_argument(
        "--at_once", action="store_true", help="both together, half the cores each"
    )
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--out", type=Path, help="also write JSON and Markdown: a file or a folder"
    )
    flags = parser.parse_args()

    trees = {"earlier": flags.earlier.resolve(), "later": flags.later.resolve()}

    for name, tree in trees.items():
        require_built(name, tree)

    sizes = [parse_size(s) if isinstance(s, str) else s for s in flags.size]
    rows = []
    versions = {}

    for size in sizes:
        for precision in flags.precision:
            row, versions = compare(size, precision, trees, flags)
            rows.append(row)

    table = {"title": "Training step, two versions", "columns": COLUMNS, "rows": rows}
    outcome = results.result("two_versions", [table], [], versions)
    results.publish(outcome, flags.out, flags.format)


def require_built(name: str, tree: Path) -> None:
    """Ends the program if a source tree lacks tfasr or one of its compiled parts."""
    for pattern in ["tfasr/__init__.py", "tfasr/layers/_recurrent*.so"]:
        if not any(tree.glob(pattern)):
            sys.exit(
                f"--{name}: {tree} must hold {pattern} and does not. Name a source "
                f"tree of tfasr and build its compiled parts there: "
                f"python setup.py build_ext --inplace"
            )


def compare(
    size: Size, precision: str, trees: dict[str, Path], flags
) -> tuple[dict, dict]:
    """Returns a row of the table, and the versions of the packages that both used."""
    task = {
        "task": "step",
        "size": size.name,
        "system": "tfasr",
        "precision": precision,
    }
    times_s: dict[str, list[float]] = {name: [] for name in trees}
    with contextlib.ExitStack() as stack:
        workers = {}
        every_core = os.sched_getaffinity(0)
        for name, cores in zip(trees, halves(flags.at_once), strict=True):
            say(f"{size.name}, {precision}: the {name} version warms up")
            # Which the worker inherits, and its thread pools count.
            os.sched_setaffinity(0, cores)
            workers[name] = stack.enter_context(
                contextlib.closing(Worker(task, trees[name]))
            )

        os.sched_setaffinity(0, every_core)
        turn = turns_in_order
        if flags.at_once:
            turn = turns_at_once

        for number in range(flags.rounds):
            for name, step_s in turn(workers, number, flags.turn_s).items():
                times_s[name].append(step_s)

            earlier_s = times_s["earlier"][-1]
            later_s = times_s["later"][-1]
            say(f"round {number + 1}: {earlier_s:.3f}, {later_s:.3f} s")

        versions = workers["later"].ready["versions"]

    ratios = [e / s for e, s in zip(times_s["earlier"], times_s["later"], strict=True)]
    # The geometric mean of a pair of rounds, in which the cores are exchanged.
    if flags.at_once:
        ratios = [
            (a * b) ** 0.5 for a, b in zip(ratios[::2], ratios[1::2], strict=False)
        ]

    low, high = median_interval(ratios) or (None, None)
    return {
        "size": size.name,
        "precision": precision,
        "earlier_ms": 1000 * statistics.median(times_s["earlier"]),
        "later_ms": 1000 * statistics.median(times_s["later"]),
        "ratio": statistics.median(ratios),
        "ratio_low": low,
        "ratio_high": high,
        "rounds": flags.rounds,
        "at_once": flags.at_once,
        "rounds_s": times_s,
    }, versions


def halves(at_once: bool) -> tuple[list[int], list[int]]:
    """Returns the cores of either version: all of them, or half of them each."""
    cores = sorted(psutil.Process().cpu_affinity())
    if not at_once:
        return cores, cores

    if len(cores) < 2:
        sys.exit("--at_once needs two cores and has one. Leave it out.")

    half = len(cores) // 2

    return cores[:half], cores[half : 2 * half]


def turns_in_order(
    workers: dict[str, Worker], number: int, turn_s: float
) -> dict[str, float]:
    """Trains one after another; returns the seconds of a step of each."""
    order = list(workers)
    if number % 2:
        order.reverse()

    taken = {}
    for name in order:
        others = [other for other in workers.values() if other is not workers[name]]
        taken[name] = take_turn(workers[name], others, turn_s)[0]["step_s"]

    return taken


def turns_at_once(
    workers: dict[str, Worker], number: int, turn_s: float
) -> dict[str, float]:
    """Trains both together, then swaps their cores; returns the seconds of a step."""
    with ThreadPoolExecutor(len(workers)) as pool:
        answers = pool.map(lambda worker: worker.turn(turn_s), workers.values())
        taken = {
            name: answer["step_s"]
            for name, answer in zip(workers, answers, strict=True)
        }

    cores = [worker.cores() for worker in workers.values()]
    for worker, others in zip(workers.values(), cores[::-1], strict=True):
        worker.move_to(others)

    return taken


def median_interval(
    values: list[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Returns the narrowest pair of order statistics that covers the median; None for
    too few.
    """
    in_order = sorted(values)
    count = len(values)
    # The median is outside [k-th smallest, k-th largest] if fewer than k values are on
    # one side.
    outermost = [
        k for k in range(count // 2) if 2 * binom.cdf(k, count, 0.5) <= 1 - confidence
    ]

    if outermost:
        return (in_order[outermost[-1]], in_order[-1 - outermost[-1]])

    return None


def say(what: str) -> None:
    """Writes progress to standard error, as the output is the result."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
