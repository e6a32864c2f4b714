"""Times a whole training step of tfasr, stock Keras and a PyTorch twin, in alternation.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --size paper an4 128x8 800x64 --rounds 7 --out results.json

A step is forward, CTC loss, backward and update (Adadelta) of the acoustic model on one
batch of noise with 93 features and 0.3 labels per frame. tfasr's step is that of `tfasr
train`; stock Keras's is that of `fit` with Keras's own layers and `keras.ops.ctc_loss`;
the twin is in `twin/torch_model.py`. Each system and precision has its own process. In
every round, each process takes one turn, after a pause, while the others sleep. The
time of a turn is the median of its steps; the table shows the median of the rounds.
Compilation and warm-up steps are left out. First, the systems get the same weights and
must agree in logits and losses to 1e-4 in float32.

Sizes: paper (16 x 600 frames), an4 (gin/an4.gin, 16 x 300 frames), or UNITSxBATCH for a
model of that many convolution filters and 3 LSTM layers, on 300 frames. bfloat16 is
mixed precision with float32 weights (mixed_bfloat16, torch.autocast); the twin also
runs with all weights in bfloat16, and ``ratio_to_torch_best`` is relative to the
fastest of its variants. A ratio is the other's time divided by ours in the same round,
as a median over rounds: above 1, tfasr is faster.

``--instruction_set avx2`` restricts all systems to these instructions
(`twin/limits.py`), to estimate an older processor's times on a newer one. Clock and
caches stay the newer one's.

PyTorch is included if installed. ``pip install 'tfasr[peers]'`` downloads its default
build; the CPU-only build (see pytorch.org's installation page) is a tenth of the size.
Everything runs on the CPU, even if there is a GPU. The machine must be otherwise idle:
PyTorch's threads spin while they wait for each other, and on a busy machine its steps
took ten times as long. A round takes half a minute with the default sizes on two cores,
and the start two minutes. At the paper's size, stock Keras's process alone takes 17 GB:
with 24 GB in total, measure one --precision at a time.
"""

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
from pathlib import Path

from twin import results
from twin.agreement import TOLERANCE
from twin.limits import LIMITS
from twin.sizes import Size, parse_size
from twin.systems import PRECISIONS, SYSTEMS, VARIANTS
from twin.worker import Worker, take_turn

from tfasr.telemetry.compiled import layers_instruction_set, require_extensions

COLUMNS = [
    ("system", "system"),
    ("precision", "precision"),
    ("step_ms", "ms a step"),
    ("fastest_ms", "fastest"),
    ("slowest_ms", "slowest"),
    ("audio_s_per_s", "audio s/s"),
    ("ratio_to_stock_keras", "x stock Keras"),
    ("ratio_to_torch", "x PyTorch"),
    ("ratio_to_torch_best", "x PyTorch's best"),
    ("ratio_to_own_float32", "x own float32"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=parse_size, nargs="+", default=["paper", "an4"])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--turn_s", type=float, default=0.5, help="least seconds of a turn"
    )
    parser.add_argument(
        "--instruction_set",
        choices=LIMITS,
        help="imitate a processor without newer instructions",
    )
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--out", type=Path, help="also write JSON and Markdown: a file or a folder"
    )
    flags = parser.parse_args()

    os.environ.update(LIMITS.get(flags.instruction_set, {}))
    require_extensions()
    sizes = [parse_size(s) if isinstance(s, str) else s for s in flags.size]
    systems, notes = installed(flags.systems)
    notes.append(f"tfasr's compiled layers used {layers_instruction_set()['name']}.")
    versions = {}
    tables = []

    for size in sizes:
        notes += check_agreement(size, systems)
        table, more, note = measure(size, systems, flags)
        tables.append(table)
        versions |= more
        notes.append(note)

    outcome = results.result("training_step", tables, notes, versions)
    results.publish(outcome, flags.out, flags.format)


def installed(systems: list[str]) -> tuple[list[str], list[str]]:
    """Returns the installed systems, and a note on those missing."""
    if "torch" not in systems or importlib.util.find_spec("torch"):
        return list(systems), []

    return [s for s in systems if s != "torch"], [
        "PyTorch is not installed and left out."
    ]


def check_agreement(size: Size, systems: list[str]) -> list[str]:
    """Returns a note on how well the systems agree; ends the program if they don't."""
    peers = [system for system in systems if system != "tfasr"]
    if "tfasr" not in systems or not peers:
        return []

    say(f"{size.name}: do the systems compute the same?")
    worker = Worker({"task": "agreement", "size": size.name, "peers": peers})
    worker.close()
    wrong = {
        name: value for name, value in worker.ready.items() if not value <= TOLERANCE
    }

    if wrong:
        raise SystemExit(
            f"{size.name}: with equal weights, all systems must agree with tfasr to "
            f"{TOLERANCE}. Received: {wrong}."
        )

    largest = max(worker.ready.values())
    return [
        f"{size.name}: with equal weights all systems agree to {largest:.1e} in float32."
    ]


def measure(size: Size, systems: list[str], flags) -> tuple[dict, dict, str]:
    """Returns a size's table, the packages' versions, and a note on CPU use while waiting."""
    variants = [
        (system, variant)
        for precision in flags.precision
        for system in systems
        for variant in VARIANTS[system][precision]
    ]
    with contextlib.ExitStack() as stack:
        workers = {}
        for system, precision in variants:
            say(f"{size.name}: {system} in {precision} warms up")
            task = {
                "task": "step",
                "size": size.name,
                "system": system,
                "precision": precision,
            }
            workers[system, precision] = stack.enter_context(
                contextlib.closing(Worker(task))
            )

        turns: dict[tuple[str, str], list[dict]] = {variant: [] for variant in variants}
        idle_shares = []
        for number in range(flags.rounds):
            say(f"{size.name}: round {number + 1} of {flags.rounds}")
            for variant, worker in workers.items():
                others = [other for other in workers.values() if other is not worker]
                answer, share = take_turn(worker, others, flags.turn_s)
                turns[variant].append(answer)
                idle_shares.append(share)

    versions = {
        name: v for w in workers.values() for name, v in w.ready["versions"].items()
    }
    rows = [row(size, variant, turns, workers[variant].ready) for variant in variants]
    for of_tfasr in (r for r in rows if r["system"] == "tfasr"):
        of_tfasr |= ratios(of_tfasr["precision"], turns)

    title = f"{size.name}: batch of {size.batch} x {size.frames} frames"
    note = (
        f"{size.name}: waiting processes used at most {max(idle_shares):.1%} of a core."
    )

    return {"title": title, "columns": COLUMNS, "rows": rows}, versions, note


def row(size: Size, variant: tuple[str, str], turns: dict, ready: dict) -> dict:
    """Returns a variant's row; times in milliseconds, memory as its process's peak."""
    times_s = [turn["step_s"] for turn in turns[variant]]
    step_s = statistics.median(times_s)
    return {
        "size": size.name,
        "system": variant[0],
        "precision": variant[1],
        "step_ms": 1000 * step_s,
        "fastest_ms": 1000 * min(times_s),
        "slowest_ms": 1000 * max(times_s),
        "rounds_ms": [1000 * seconds for seconds in times_s],
        "steps_a_round": min(turn["steps"] for turn in turns[variant]),
        "first_step_s": ready["first_step_s"],
        "audio_s_per_s": size.audio_s / step_s,
        "peak_memory_bytes": turns[variant][-1]["peak_memory_bytes"],
        "last_loss": turns[variant][-1]["loss"],
    }


def ratios(
    precision: str, turns: dict[tuple[str, str], list[dict]]
) -> dict[str, float]:
    """Returns tfasr's throughput relative to the others that were measured."""
    others = {
        "ratio_to_stock_keras": [("stock_keras", precision)],
        "ratio_to_torch": [("torch", precision)],
    }
    if precision != "float32":
        others["ratio_to_own_float32"] = [("tfasr", "float32")]
        others["ratio_to_torch_best"] = [
            variant for variant in turns if variant[0] == "torch"
        ]

    outcome = {}
    for name, variants in others.items():
        against = [
            _ratio(turns[v], turns["tfasr", precision]) for v in variants if v in turns
        ]
        if against:
            outcome[name] = min(against)

    return outcome


def _ratio(theirs: list[dict], ours: list[dict]) -> float:
    pairs = zip(theirs, ours, strict=True)
    return statistics.median(their["step_s"] / our["step_s"] for their, our in pairs)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
