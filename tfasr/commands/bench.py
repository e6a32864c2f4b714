"""``tfasr bench WORKLOAD``: what a part of the system costs, on the user's own run or file."""

import argparse
import importlib

WORKLOADS = {
    "decoder": "seconds, errors and memory of decoders over beam widths",
    "step": "seconds, FLOP/s and memory of a training step",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the workloads, each with its own flags."""
    workloads = parser.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    for name, purpose in WORKLOADS.items():
        module = importlib.import_module(f"tfasr.commands.bench_{name}")
        workload = workloads.add_parser(name, help=purpose, description=module.__doc__)
        module.add_arguments(workload)
        workload.set_defaults(run_workload=module.run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the workload; returns the exit status."""
    return arguments.run_workload(arguments) or 0
