"""``tfasr estimate``: how long training will take until its target, and at what price."""

import argparse
import json
import sys
from pathlib import Path

from tfasr.commands.report import add_hardware_arguments
from tfasr.commands.train import LEXICON_HELP, SHORT_CUTS, add_gin_arguments, short_cut
from tfasr.tta.costs import HardwareConfig, load_hardware
from tfasr.tta.policies import POLICIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_gin_arguments(add)
    flag = "--batch_size"
    add(flag, dest="gin_binding", action="append", metavar="N", type=short_cut(SHORT_CUTS[flag]))
    add("--shard_dir", help="folder with the prepared splits train and validation")
    add("--manifest", metavar="FILE", help="not prepared yet: a list with lengths and texts")
    add("--target", metavar="METRIC=VALUE", help="such as cer=0.15; default: the recipe's first")
    add("--policy", choices=sorted(POLICIES), default="paper", help="default: %(default)s")
    add_hardware_arguments(add, "this machine: a gin file, preset or system.json")
    add("--machine", metavar="FILE", help="another machine, from tfasr doctor --measure --out FILE")
    add("--catalogue", action="append", default=[], metavar="DIR", help="of report --catalogue")
    add("--workers", type=_counts, default=[], metavar="N,N", help="also for so many machines")
    add("--link_gbit_s", type=float, metavar="X", help="the speed of the link between them")
    add("--lexicon", metavar="FILE", help=LEXICON_HELP)
    add("--format", choices=("text", "json"), default="text")


def _counts(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers like 2,4,8. Received: {text}") from None


def run(args: argparse.Namespace) -> None:
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


def _hardware(args: argparse.Namespace, bound: HardwareConfig | None) -> HardwareConfig | None:
    """Returns the machine's price: from its flags, its file, or the gin files."""
    price = args.price_usd_per_hour
    name = args.hardware
    if name is None and args.machine is not None and Path(args.machine).is_file():
        name = args.machine
    if name is not None:
        return load_hardware(name, price_usd_per_hour=price)
    if price is None:
        return bound
    return HardwareConfig(price_usd_per_hour=price)
