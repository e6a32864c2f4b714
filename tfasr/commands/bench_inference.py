"""``tfasr bench inference``: how long a trained recogniser takes to answer.

Batches and chunks of a stream, cold start and memory, of the run on Keras, of its exports to ONNX
Runtime and LiteRT with float32 and int8 weights, and of the same weights in PyTorch's own layers.
What is not installed, or cannot carry the model, is left out and named.
"""

import argparse
import sys
from pathlib import Path

from tfasr.bench.inference import InferenceConfig
from tfasr.commands.flags import numbers
from tfasr.display.writers import formats
from tfasr.errors import wrong_values_are_wrong_use

_DEFAULTS = InferenceConfig()


def _joined(values: tuple) -> str:
    return ",".join(map(str, values))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the workload's flags."""
    parser.add_argument(
        "--run_dir", required=True, help="a folder that tfasr train or tfasr export wrote"
    )
    parser.add_argument("--corpus_dir", required=True, help="a folder of recordings")
    parser.add_argument("--checkpoint", default="best", help="best, last or a file")
    parser.add_argument("--backends", default=_joined(_DEFAULTS.backends), help="with commas")
    parser.add_argument("--batch", default=_joined(_DEFAULTS.batches), help="with commas")
    parser.add_argument("--chunk_ms", default=_joined(_DEFAULTS.chunks_ms), help="with commas")
    parser.add_argument("--recordings", type=int, default=_DEFAULTS.recordings)
    parser.add_argument("--rounds", type=int, default=_DEFAULTS.rounds)
    parser.add_argument("--cold_starts", type=int, default=_DEFAULTS.cold_starts)
    parser.add_argument("--out", metavar="DIR", help="gets results.json and table.md")
    parser.add_argument("--format", choices=formats(), default="table", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Runs the workload."""
    from tfasr.bench.perform import run_workload
    from tfasr.bench.workload import Context

    with wrong_values_are_wrong_use():
        config = InferenceConfig(
            backends=tuple(arguments.backends.split(",")),
            batches=numbers("--batch", arguments.batch),
            chunks_ms=numbers("--chunk_ms", arguments.chunk_ms),
            recordings=arguments.recordings,
            rounds=arguments.rounds,
            cold_starts=arguments.cold_starts,
        )
    context = Context(
        run_dir=Path(arguments.run_dir).resolve(),
        corpus_dir=Path(arguments.corpus_dir).resolve(),
        checkpoint=arguments.checkpoint,
    )
    options = {"out": arguments.out, "output_format": arguments.format}
    sys.stdout.write(run_workload("inference", [config], context, **options))
