"""``tfasr bench step``: seconds, FLOP/s and memory of a training step on a synthetic batch.

Every size and precision is measured in a process of its own, so that its peak memory is its own.
"""

import argparse
import sys

from tfasr.bench.step import StepConfig
from tfasr.commands.flags import numbers
from tfasr.display.writers import formats
from tfasr.errors import wrong_values_are_wrong_use
from tfasr.precision import trained

_DEFAULTS = StepConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the workload's flags."""
    parser.add_argument("--gin_file", help="preset or file; default: the paper's model")
    parser.add_argument("--gin_binding", action="append", default=[], help="repeatable")
    parser.add_argument("--batch", default="16", help="with commas; default: %(default)s")
    parser.add_argument("--frames", default="600", help="with commas; default: %(default)s")
    parser.add_argument("--labels", type=int, help="default: a seventh of the frames")
    parser.add_argument(
        "--precision",
        default=",".join(_DEFAULTS.precisions),
        help=f"of {', '.join(trained())}, with commas; default: %(default)s",
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--length_spread", type=float, default=0.0, help="share by which lengths differ"
    )
    parser.add_argument("--out", metavar="DIR", help="gets results.json and table.md")
    parser.add_argument("--format", choices=formats(), default="table", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Runs the workload."""
    from tfasr.bench.perform import run_workload
    from tfasr.bench.workload import Context

    with wrong_values_are_wrong_use():
        config = StepConfig(
            experiment=arguments.gin_file or "",
            bindings=arguments.gin_binding,
            batches=numbers("--batch", arguments.batch),
            frames=numbers("--frames", arguments.frames),
            labels=arguments.labels,
            precisions=arguments.precision.split(","),
            rounds=arguments.rounds,
            length_spread=arguments.length_spread,
        )
    options = {"out": arguments.out, "output_format": arguments.format}
    sys.stdout.write(run_workload("step", [config], Context(), **options))
