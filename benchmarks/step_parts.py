"""Milliseconds of a training step by kind of work, from TensorFlow's profiler.

    python benchmarks/step_parts.py --gin_file fast/an4.gin --shard_dir DIR [--steps 20]
        [--precision mixed_bfloat16] [--operations] [--out FOLDER]
    python benchmarks/step_parts.py --size paper [--steps 4] ...

The steps are those of `tfasr train` on an epoch's batches of the folder's split
"train", or with --size those of `training_step.py` on one batch of noise. A part's time
is the sum over TensorFlow's threads, so all parts together may take longer than the
step, which is timed without the profiler. With --operations the table has a row for
each operation.
"""

import argparse
import re
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from twin import results, systems
from twin.sizes import parse_size

from tfasr.data.batches import BatchSource
from tfasr.data.shards import open_split
from tfasr.training.build import build_model, check_splits
from tfasr.training.from_gin import load_config
from tfasr.training.step import TimedStep

# The first pattern that matches an operation's name in the graph, and its type.
PARTS = [
    ("input", r"Iterator|ParallelMap|Decode|Parse|reduce_std|Single|Dataset"),
    ("casts", r":Cast$"),
    ("recurrence forward", r":TfasrRecurrence$|/lstm_\d+(_\d+)?/PyFunc"),
    (
        "recurrence backward",
        r"^recurrence_gradient.*(PyFunc|Tfasr)|^PyFunc|RecurrenceGradient",
    ),
    ("matrix products", r":(_Mkl)?(Fused)?MatMul$"),
    ("normalisation and dropout", r"normalisation|dropout"),
    ("convolution", r"convolution"),
    ("loss", r"ctc_loss|CTC|SparseTensor|boolean_mask|SequenceMask|ScatterNd"),
    ("update", r"[Aa]da|[Mm]uon"),
    ("around the recurrence", r"lstm|recurrence_gradient"),
]
OPERATION = re.compile(r"(\S+):([A-Za-z_]\w*)$")
# The executor that runs operations is not an operation.
CONTAINER = re.compile(
    "ExecutorState|KernelAndDevice|InstantiatedCapturedFunction|Iterator"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gin_file", default="an4.gin")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--shard_dir")
    source.add_argument(
        "--size", type=parse_size, help="paper, an4, ...: see training_step.py"
    )
    parser.add_argument(
        "--precision", choices=["float32", "mixed_bfloat16"], default="float32"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--epoch", type=int, default=1, help="whose batches, which may have masks"
    )
    parser.add_argument(
        "--operations", action="store_true", help="a row for each operation"
    )
    parser.add_argument(
        "--out", type=Path, help="also write JSON and Markdown: a file or a folder"
    )
    flags = parser.parse_args()

    name = flags.gin_file
    if flags.size:
        name = flags.size.name
        step = systems.make_step(
            "tfasr", flags.size, flags.precision.removeprefix("mixed_")
        )
    else:
        step = make_step(flags)

    for _ in range(5):
        step()

    timed = []
    for _ in range(flags.steps):
        began = time.perf_counter()
        step()
        timed.append(time.perf_counter() - began)

    rows = rows_of(profiled(step, flags.steps), flags.steps, flags.operations)
    first = row_kind(flags.operations)
    table = {
        "title": f"{name}, {flags.precision}: {1e3 * statistics.median(timed):.1f} ms",
        "columns": [(first, first), ("ms", "ms a step"), ("calls", "calls a step")],
        "rows": rows,
    }
    outcome = results.result("step_parts", [table], [], {"tensorflow": tf.__version__})

    if flags.out:
        results.write(outcome, flags.out)

    print(results.to_text(outcome))


def make_step(flags):
    """Returns a function that takes the next step of endless training."""
    bindings = [f"TrainingConfig.precision = {flags.precision!r}"]
    experiment = load_config(flags.gin_file, bindings).experiment
    split = open_split(flags.shard_dir, "train")
    alphabet = check_splits({"train": split}, experiment)
    model = build_model(experiment, alphabet, compiled=True)
    source = BatchSource(
        split,
        experiment.features,
        experiment.pipeline,
        experiment.augmentation,
        split.feature_statistics(),
        model.output_lengths,
        second_view=experiment.training.views > 1,
    )
    step = TimedStep(model)

    def batches():
        while True:
            yield from source.training(experiment.training.seed, flags.epoch)

    class Endless:
        element_spec = source.training(0, 1).element_spec

        def __init__(self):
            self.batches = batches()

        def __next__(self):
            return next(self.batches)

    endless = Endless()
    return lambda: step(endless)


def profiled(step, steps: int) -> list[tuple[str, int]]:
    """Returns the operations of some steps with their own times in picoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(steps):
            step()

        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()

        for trace in sorted(Path(folder).rglob("*.xplane.pb")):
            space.MergeFromString(trace.read_bytes())

    outcome = []
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue

        for line in plane.lines:
            outcome += own_times(plane, line)

    return outcome


def own_times(plane, line) -> list[tuple[str, int]]:
    """Returns a thread's operations with their times, without nested operations."""
    own = []
    open_ = []
    for event in sorted(
        line.events, key=lambda event: (event.offset_ps, -event.duration_ps)
    ):
        name = plane.event_metadata[event.metadata_id].name
        if not OPERATION.match(name) or CONTAINER.match(name):
            continue

        while open_ and open_[-1][0] <= event.offset_ps:
            open_.pop()

        end = event.offset_ps + event.duration_ps

        if open_:
            own[open_[-1][1]][1] -= min(end, open_[-1][0]) - event.offset_ps

        open_.append((end, len(own)))
        own.append([name, event.duration_ps])

    return [(name, max(time_ps, 0)) for name, time_ps in own]


def row_kind(operations: bool) -> str:
    """Returns what a row of the table is about, which is also its first column."""
    if operations:
        return "operation"

    return "part"


def rows_of(events: list[tuple[str, int]], steps: int, operations: bool) -> list[dict]:
    """Returns the table's rows, by falling time."""
    times = Counter()
    calls = Counter()
    for name, time_ps in events:
        row = name
        if not operations:
            row = part_of(name)

        times[row] += time_ps
        calls[row] += 1

    first = row_kind(operations)
    return [
        {first: row, "ms": time_ps / 1e9 / steps, "calls": calls[row] / steps}
        for row, time_ps in times.most_common()
    ]


def part_of(name: str) -> str:
    """Returns the part of the step that an operation belongs to."""
    return next((part for part, names in PARTS if re.search(names, name)), "other")


if __name__ == "__main__":
    main()
