"""``tfasr bench``: what a part of the system costs.

``tfasr bench decoder``, ``step``, ``inference`` and ``scaling`` have flags of their own;
``tfasr bench --gin_file bench/ds2_small.gin`` runs any workload as its preset describes it.
"""

import argparse
import importlib

from tfasr.bench.workload import BACKENDS, WORKLOADS, purpose
from tfasr.display.writers import formats
from tfasr.errors import UsageError

SUBCOMMANDS = ("decoder", "step", "inference", "scaling")
"""Workloads with flags of their own, besides a preset."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of synthetic workloads, and the subcommands with their own."""
    known = "; ".join(f"{name}: {purpose(name)}" for name in WORKLOADS)
    parser.add_argument("--gin_file", help=f"a preset or file that names a workload ({known})")
    parser.add_argument(
        "--gin_binding",
        action="append",
        default=[],
        metavar="LINE",
        help="a line of gin that overrides the file; repeatable",
    )
    parser.add_argument("--backend", choices=BACKENDS, help="Keras's; default: the preset's")
    parser.add_argument("--fraction", type=float, help="share of the data; default: the preset's")
    parser.add_argument("--corpus_dir", help="recordings, where the workload can use them")
    parser.add_argument("--run_dir", help="a trained run, where the workload can evaluate one")
    parser.add_argument("--split", default="validation", help="of that run; default: %(default)s")
    parser.add_argument("--shard_dir", help="where the split is; default: the run's own")
    parser.add_argument("--format", choices=formats(), default="table", help="of standard output")
    parser.add_argument(
        "--out", metavar="DIR|FILE.json", help="a folder for tables, JSON and figures, or a file"
    )
    subcommands = parser.add_subparsers(dest="subcommand", metavar="WORKLOAD")
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"tfasr.commands.bench_{name}")
        summary = module.__doc__.split("\n")[0].partition(": ")[2].rstrip(".")
        subcommand = subcommands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(subcommand)
        subcommand.set_defaults(run_subcommand=module.run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the workload; returns the exit status."""
    if arguments.subcommand is not None:
        return arguments.run_subcommand(arguments) or 0
    if arguments.gin_file is None:
        raise UsageError(
            f"tfasr bench must be given a subcommand ({', '.join(SUBCOMMANDS)}) or a workload's "
            "preset with --gin_file, such as bench/ds2_small.gin. Received: neither."
        )
    from tfasr.bench.perform import bench_preset

    text = bench_preset(
        arguments.gin_file,
        bindings=arguments.gin_binding,
        backend=arguments.backend,
        fraction=arguments.fraction,
        corpus_dir=arguments.corpus_dir,
        out=arguments.out,
        run_dir=arguments.run_dir,
        split=arguments.split,
        shard_dir=arguments.shard_dir,
        output_format=arguments.format,
    )
    print(text, end="")
    return 0
