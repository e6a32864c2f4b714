"""``tfasr estimate``: how long training will take until its target, and at what price."""

import argparse
import json
import logging
import sys
from pathlib import Path

from tfasr.commands.shared import SHORT_CUTS, short_cut
from tfasr.commands.targets import add_hardware_arguments
from tfasr.tta.costs import HardwareConfig, load_hardware
from tfasr.tta.policies import POLICIES

EXAMPLE = "estimate --gin_file fast/an4 --shard_dir shards --target cer=0.15"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: the recipe and its data, the target, and the machine."""
    # argparse would list all flags, most of which are for special cases.
    parser.usage = (
        "tfasr estimate --gin_file FILE --shard_dir DIR [--target METRIC=VALUE] ..."
    )
    add = parser.add_argument
    add(
        "--gin_file",
        action="append",
        metavar="FILE",
        help="preset or file; repeatable; default: the paper's",
    )

    add(
        "--gin_binding",
        action="append",
        default=[],
        metavar="LINE",
        help="overrides the files; repeatable",
    )

    add(
        "--batch_size",
        dest="gin_binding",
        action="append",
        metavar="N",
        type=short_cut(SHORT_CUTS["--batch_size"]),
        help="utterances",
    )
    add("--shard_dir", metavar="DIR", help="prepared splits train and validation")
    add("--manifest", metavar="FILE", help="or, before preparing, lengths and texts")
    add(
        "--target",
        metavar="METRIC=VALUE",
        help="such as cer=0.15; default: the recipe's",
    )
    add(
        "--policy",
        metavar="NAME",
        choices=sorted(POLICIES),
        default="paper",
        help="its clock",
    )

    # The machine, or several, and what they cost.
    add("--machine", metavar="FILE", help="another one, from doctor --measure --out")
    add_hardware_arguments(add, "the machine and its price: preset or file")
    add(
        "--catalogue",
        action="append",
        default=[],
        metavar="DIR",
        help="your finished runs",
    )
    add(
        "--workers",
        type=_counts,
        default=[],
        metavar="2,4",
        help="also for so many machines",
    )
    add("--link_gbit_s", type=float, metavar="X", help="speed of the link between them")
    add("--lexicon", metavar="FILE", help="a dictionary for word_beam, one word a line")
    add(
        "--format",
        choices=("text", "json"),
        default="text",
        help="default: %(default)s",
    )


def _counts(text: str) -> list[int]:
    """Returns the numbers of a flag such as ``--workers 2,4``.

    >>> _counts("2,4")
    [2, 4]
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be numbers like 2,4,8. Received: {text}"
        ) from None


def run(args: argparse.Namespace) -> None:
    """Prints an estimate of the recipe's time to its target, as text or JSON."""
    if not getattr(args, "verbose", False):
        # The answer is all that is printed.
        logging.getLogger("tfasr").setLevel(logging.WARNING)

    # Imported here, because tfasr help must not wait for TensorFlow.
    from tfasr.estimates.estimate import estimate
    from tfasr.training.from_gin import load_config

    config = load_config(args.gin_file, args.gin_binding)
    result = estimate(
        config.experiment,
        target=args.target,
        shard_dir=args.shard_dir,
        manifest=args.manifest,
        recipe=", ".join(args.gin_file or ["the paper's recipe"]),
        policy=args.policy,
        hardware=_hardware(args, config.hardware),
        catalogue=args.catalogue,
        machine=args.machine,
        workers=args.workers,
        link_gbit_s=args.link_gbit_s,
        lexicon=args.lexicon,
        own_process=True,
    )

    if args.format == "json":
        text = json.dumps(result.to_json(), indent=1)
    else:
        text = "\n".join(result.lines())

    sys.stdout.write(f"{text}\n")


def _hardware(
    args: argparse.Namespace, bound: HardwareConfig | None
) -> HardwareConfig | None:
    """Returns the machine's price, from its flags, its file or the gin files.

    Args:
        args: the flags.
        bound: what the gin files say about the machine.
    """
    price = args.price_usd_per_hour
    name = args.hardware

    # A machine's description has a price too, if somebody wrote it there.
    if name is None and args.machine is not None and Path(args.machine).is_file():
        name = args.machine

    if name is not None:
        return load_hardware(name, price_usd_per_hour=price)

    # A rent alone says nothing else about the machine.
    if price is None:
        return bound

    return HardwareConfig(price_usd_per_hour=price)
