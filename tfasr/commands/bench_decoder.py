"""``tfasr bench decoder``: seconds, errors and memory of decoders over beam widths.

The log-probabilities are those of a run's model on a split, or stand in a file.
"""

import argparse
import sys
from pathlib import Path

from tfasr.bench.decoder import DecoderBenchConfig
from tfasr.commands.flags import numbers
from tfasr.decoding.choice import DECODERS
from tfasr.display.writers import formats
from tfasr.errors import UsageError, wrong_values_are_wrong_use

_DEFAULTS = DecoderBenchConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the workload's flags."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run_dir", help="a folder that tfasr train wrote")
    source.add_argument("--log_probs", metavar="FILE", help="an .npz of --save_log_probs")
    parser.add_argument("--split", help="a prepared split, with --run_dir")
    parser.add_argument("--shard_dir", help="default: the run's own")
    parser.add_argument("--checkpoint", default="best", help="best, last or a file")
    parser.add_argument(
        "--save_log_probs", metavar="FILE", help="an .npz that gets the log-probabilities"
    )
    parser.add_argument(
        "--lexicon", metavar="FILE", help="a word a line; default: the run's, or the file's own"
    )
    parser.add_argument(
        "--decoders",
        default=",".join(_DEFAULTS.decoders),
        help=f"of {DECODERS.listed()}, with commas; default: %(default)s",
    )
    parser.add_argument(
        "--beam_widths",
        default=",".join(map(str, _DEFAULTS.beam_widths)),
        help="default: %(default)s",
    )
    parser.add_argument(
        "--recombine",
        action="store_true",
        help="also with recombination, where a decoder can; see WordBeamSearch",
    )
    parser.add_argument("--num_threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--out", metavar="DIR", help="gets decoder.png, results.json, table.md")
    parser.add_argument("--format", choices=formats(), default="table", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Runs the workload."""
    from tfasr.bench.perform import run_workload
    from tfasr.bench.workload import Context

    if arguments.run_dir is not None and arguments.split is None:
        raise UsageError("--run_dir must come with --split, as in --split validation.")
    if arguments.log_probs is not None and (arguments.split or arguments.shard_dir):
        raise UsageError("--split and --shard_dir belong to --run_dir. Received: --log_probs too.")
    with wrong_values_are_wrong_use():
        config = DecoderBenchConfig(
            decoders=arguments.decoders.split(","),
            beam_widths=numbers("--beam_widths", arguments.beam_widths),
            recombine=arguments.recombine,
            num_threads=arguments.num_threads,
        )
    names = ("run_dir", "shard_dir", "log_probs", "save_log_probs", "lexicon")
    given = {name: getattr(arguments, name) for name in names}
    context = Context(
        split=arguments.split or "",
        checkpoint=arguments.checkpoint,
        **{name: None if value is None else Path(value) for name, value in given.items()},
    )
    options = {"out": arguments.out, "output_format": arguments.format}
    sys.stdout.write(run_workload("decoder", [config], context, **options))
