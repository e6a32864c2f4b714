"""``tfasr bench``: measures what a part of the system costs.

``tfasr bench decoder`` and ``step`` have flags; ``tfasr bench --gin_file
bench/ds2_small.gin`` runs any other workload as its preset describes it.
"""

import argparse
import inspect
from collections.abc import Iterable

from tfasr.bench.decoder import DecoderBenchConfig
from tfasr.bench.step import StepConfig
from tfasr.bench.workload import BACKENDS, WORKLOADS, Context, purpose
from tfasr.commands.shared import path_of
from tfasr.decoding.choice import DECODERS
from tfasr.display.table import formats
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.config import trained

# An example for ``tfasr help bench``, under "", and for each subcommand.
EXAMPLES = {
    "": "bench --gin_file bench/ds2_small.gin",
    "decoder": "bench decoder --run_dir runs/a --split validation --beam_widths 8,64",
    "step": "bench step --gin_file an4.gin --batch 8,16",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of workloads that a preset describes, and the subcommands."""
    add = parser.add_argument
    # Workloads with flags of their own are subcommands.
    by_preset = (name for name in WORKLOADS if name not in SUBCOMMANDS)
    purposes = "; ".join(f"{name}: {purpose(name)}" for name in by_preset)
    add("--gin_file", help=f"a preset or file that names a workload ({purposes})")
    add(
        "--gin_binding",
        action="append",
        default=[],
        metavar="LINE",
        help="overrides the file",
    )
    add("--backend", choices=BACKENDS, help="Keras's backend; default: tensorflow")
    add("--fraction", type=float, help="share of the data; default: the preset's")
    add("--corpus_dir", help="recordings, if the workload can use them")
    add("--run_dir", help="a trained run, if the workload can evaluate one")
    add(
        "--split",
        default="validation",
        help="a split of that run; default: %(default)s",
    )
    add("--shard_dir", help="where the split is; default: the run's shards")
    add(
        "--format",
        choices=formats(),
        default="table",
        help="format of the printed tables",
    )
    add(
        "--out",
        metavar="DIR|FILE.json",
        help="a folder for tables, JSON and figures, or a file",
    )

    subcommands = parser.add_subparsers(dest="subcommand", metavar="WORKLOAD")

    for name, (declare, run_it) in SUBCOMMANDS.items():
        # A subcommand's docstring is its help, as a command's file's is.
        description = inspect.getdoc(run_it) + "\n"
        summary = description.split("\n")[0].partition(": ")[2].rstrip(".")

        subcommand = subcommands.add_parser(name, help=summary, description=description)
        declare(subcommand)
        subcommand.add_argument(
            "--format", choices=formats(), default="table", help="default: %(default)s"
        )
        subcommand.set_defaults(run_subcommand=run_it)


def run(arguments: argparse.Namespace) -> int:
    """Runs a subcommand or a preset's workload, and prints its tables; returns 0."""
    if arguments.subcommand is not None:
        text = arguments.run_subcommand(arguments)
    elif arguments.gin_file is None:
        raise UsageError(
            f"tfasr bench must be given a subcommand ({', '.join(SUBCOMMANDS)}) or a "
            "workload's preset with --gin_file, such as bench/ds2_small.gin. "
            "Received: neither."
        )
    else:
        from tfasr.bench.perform import bench_preset

        text = bench_preset(
            arguments.gin_file,
            bindings=arguments.gin_binding,
            backend=arguments.backend,
            fraction=arguments.fraction,
            corpus_dir=arguments.corpus_dir,
            run_dir=arguments.run_dir,
            split=arguments.split,
            shard_dir=arguments.shard_dir,
            out=arguments.out,
            output_format=arguments.format,
        )

    print(text, end="")
    return 0


def _run(arguments: argparse.Namespace, name: str, config, context: Context) -> str:
    """Runs one workload as its flags configure it, and returns its tables.

    Args:
        arguments: the flags, of which ``--out`` and ``--format`` are used here.
        name: the workload's.
        config: an instance of the workload's config class.
        context: the files that it reads and writes.
    """
    from tfasr.bench.perform import run_workload

    return run_workload(
        name, [config], context, out=arguments.out, output_format=arguments.format
    )


def _numbers(arguments: argparse.Namespace, flag: str) -> tuple[int, ...]:
    """Returns the integers of a flag such as ``--batch 8,16``.

    Raises:
        UsageError: if it has anything else.
    """
    text = getattr(arguments, flag)
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"--{flag} must be integers separated by commas, such as 8,16. "
            f"Received: {text!r}."
        ) from error


def _joined(values: Iterable) -> str:
    """Returns a config's values as the default of a flag."""
    return ",".join(map(str, values))


def _decoder_flags(parser: argparse.ArgumentParser) -> None:
    """Adds where log-probabilities come from, and the decoders to measure on them."""
    add = parser.add_argument
    defaults = DecoderBenchConfig()

    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run_dir", help="a folder that tfasr train wrote")
    source.add_argument(
        "--log_probs", metavar="FILE", help="an .npz from --save_log_probs"
    )
    add("--split", help="a prepared split, with --run_dir")
    add("--shard_dir", help="where the split is; default: the run's shards")
    add(
        "--checkpoint",
        default="best",
        help="best, last or a file; default: %(default)s",
    )
    add(
        "--save_log_probs",
        metavar="FILE",
        help="save the log-probabilities to this .npz file",
    )
    add(
        "--lexicon",
        metavar="FILE",
        help="one word a line; default: the run's or the file's",
    )

    add(
        "--decoders",
        default=_joined(defaults.decoders),
        help=f"some of {DECODERS.listed()}, with commas; default: %(default)s",
    )

    add(
        "--beam_widths",
        default=_joined(defaults.beam_widths),
        help="default: %(default)s",
    )
    add(
        "--recombine",
        action="store_true",
        help="also measure with merged beams, if supported",
    )
    add("--num_threads", type=int, default=1, help="default: %(default)s")
    add("--out", metavar="DIR", help="write decoder.png, results.json, table.md here")


def _decoder(arguments: argparse.Namespace) -> str:
    """``tfasr bench decoder``: time, errors and memory of decoders, by beam width.

    The log-probabilities come from a run's model on a split, or from a file.
    """
    if arguments.run_dir is not None and arguments.split is None:
        raise UsageError("--run_dir must come with --split, as in --split validation.")
    if arguments.log_probs is not None and (arguments.split or arguments.shard_dir):
        raise UsageError(
            "--split and --shard_dir need --run_dir instead of --log_probs."
        )

    with wrong_values_are_wrong_use():
        config = DecoderBenchConfig(
            decoders=arguments.decoders.split(","),
            beam_widths=_numbers(arguments, "beam_widths"),
            recombine=arguments.recombine,
            num_threads=arguments.num_threads,
        )

    context = Context(
        split=arguments.split or "",
        checkpoint=arguments.checkpoint,
        run_dir=path_of(arguments.run_dir),
        shard_dir=path_of(arguments.shard_dir),
        log_probs=path_of(arguments.log_probs),
        save_log_probs=path_of(arguments.save_log_probs),
        lexicon=path_of(arguments.lexicon),
    )
    return _run(arguments, "decoder", config, context)


def _step_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the model, and the sizes of the synthetic batches to measure it on."""
    add = parser.add_argument
    add("--gin_file", help="preset or file; default: the paper's model")
    add(
        "--gin_binding",
        action="append",
        default=[],
        help="overrides the file; repeatable",
    )
    add("--batch", default="16", help="with commas; default: %(default)s")
    add("--frames", default="600", help="with commas; default: %(default)s")
    add("--labels", type=int, help="of an utterance; default: a seventh of the frames")

    add(
        "--precision",
        default=_joined(StepConfig().precisions),
        help=f"some of {', '.join(trained())}, with commas; default: %(default)s",
    )

    add("--rounds", type=int, default=5, help="default: %(default)s")
    add(
        "--length_spread",
        type=float,
        default=0.0,
        help="how much lengths vary, as a fraction",
    )
    add("--out", metavar="DIR", help="write results.json and table.md here")


def _step(arguments: argparse.Namespace) -> str:
    """``tfasr bench step``: seconds, FLOP/s and memory of a step on a synthetic batch.

    Every size and precision runs in a separate process, so peak memory is measured for
    each.
    """
    with wrong_values_are_wrong_use():
        config = StepConfig(
            experiment=arguments.gin_file or "",
            bindings=arguments.gin_binding,
            batches=_numbers(arguments, "batch"),
            frames=_numbers(arguments, "frames"),
            precisions=arguments.precision.split(","),
            labels=arguments.labels,
            rounds=arguments.rounds,
            length_spread=arguments.length_spread,
        )

    return _run(arguments, "step", config, Context())


# The workloads with flags: how each declares them, and how it runs.
SUBCOMMANDS = {
    "decoder": (_decoder_flags, _decoder),
    "step": (_step_flags, _step),
}
