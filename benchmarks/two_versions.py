"""Times the training steps of two versions of tfasr against each other, in alternation.

    git worktree add ../earlier COMMIT
    (cd ../earlier && python setup.py build_ext --inplace)
    python benchmarks/two_versions.py --earlier ../earlier --size an4 paper --rounds 9

The step is that of `training_step.py`: forward, CTC loss, backward and update on one batch of
noise. Each version is a process that imports `tfasr` and its benchmarks from its own source tree;
Python, TensorFlow and Keras are those of this command. Both are warm before the first round. In a
round each has one turn while the other sleeps, and the order changes from round to round. A ratio
is the earlier version's time over the later's in the same round: above 1, the later is faster. The
table has the median of the rounds' ratios, and the interval between two of them that covers the
median with 95 % whatever their distribution is (six rounds are the fewest that have one): the speed
of a shared machine drifts by more than what is asked for here, and a round's two turns share it.
"""

import argparse
import contextlib
import json
import statistics
import sys
from pathlib import Path

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
    parser.add_argument("--earlier", type=Path, required=True, help="source tree with built parts")
    parser.add_argument("--later", type=Path, default=LATER, help="default: this one")
    parser.add_argument("--size", type=parse_size, nargs="+", default=["paper", "an4"])
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn_s", type=float, default=0.5, help="least seconds of a turn")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--out", type=Path, help="also write JSON and Markdown: a file or a folder")
    flags = parser.parse_args()
    trees = {"earlier": flags.earlier.resolve(), "later": flags.later.resolve()}
    for name, tree in trees.items():
        require_built(name, tree)
    sizes = [parse_size(s) if isinstance(s, str) else s for s in flags.size]
    rows, versions = [], {}
    for size in sizes:
        for precision in flags.precision:
            row, versions = compare(size, precision, trees, flags)
            rows.append(row)
    table = {"title": "Training step, two versions", "columns": COLUMNS, "rows": rows}
    found = results.result("two_versions", [table], [], versions)
    if flags.out:
        results.write(found, flags.out)
    print(json.dumps(found, indent=1) if flags.format == "json" else results.to_text(found))


def require_built(name: str, tree: Path) -> None:
    """Ends the program if a source tree lacks tfasr or one of its compiled parts."""
    for pattern in ["tfasr/__init__.py", "tfasr/layers/_recurrent*.so"]:
        if not any(tree.glob(pattern)):
            sys.exit(
                f"--{name}: {tree} must hold {pattern} and does not. Name a source tree of tfasr "
                f"and build its compiled parts there: python setup.py build_ext --inplace"
            )


def compare(size: Size, precision: str, trees: dict[str, Path], flags) -> tuple[dict, dict]:
    """Returns a row of the table, and the versions of the packages that both used."""
    task = {"task": "step", "size": size.name, "system": "tfasr", "precision": precision}
    times_s: dict[str, list[float]] = {name: [] for name in trees}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, tree in trees.items():
            say(f"{size.name}, {precision}: the {name} version warms up")
            workers[name] = stack.enter_context(contextlib.closing(Worker(task, tree)))
        for number in range(flags.rounds):
            for name in list(trees) if number % 2 == 0 else list(trees)[::-1]:
                others = [other for other in workers.values() if other is not workers[name]]
                answer, _ = take_turn(workers[name], others, flags.turn_s)
                times_s[name].append(answer["step_s"])
            say(
                f"round {number + 1}: "
                + ", ".join(f"{n} {t[-1]:.3f} s" for n, t in times_s.items())
            )
        versions = workers["later"].ready["versions"]
    ratios = [e / s for e, s in zip(times_s["earlier"], times_s["later"], strict=True)]
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
        "rounds_s": times_s,
    }, versions


def median_interval(values: list[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Returns the narrowest pair of order statistics that covers the median; None for too few."""
    in_order, count = sorted(values), len(values)
    # The median lies outside [k-th smallest, k-th largest] if fewer than k values are on one side.
    outermost = [k for k in range(count // 2) if 2 * binom.cdf(k, count, 0.5) <= 1 - confidence]
    return (in_order[outermost[-1]], in_order[-1 - outermost[-1]]) if outermost else None


def say(what: str) -> None:
    """Writes progress to the error stream: the output is the result's."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
