"""``tfasr ngram``: an n-gram language model of a split's transcripts, as an ARPA file."""

import argparse
from pathlib import Path

from tfasr.errors import UsageError, wrong_values_are_wrong_use


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard_dir", required=True, help="what tfasr prepare wrote")
    parser.add_argument("--split", default="train", help="default: %(default)s")
    parser.add_argument("--order", type=int, default=3, help="words of an n-gram; default: 3")
    parser.add_argument(
        "--out", required=True, help="the ARPA file, for tfasr evaluate --language_model"
    )


def run(arguments: argparse.Namespace) -> None:
    from tfasr.data.shards import open_split
    from tfasr.decoding.ngram_model import NgramModel

    out = Path(arguments.out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out must be a file in a folder that exists. Received: {out}.")
    split = open_split(arguments.shard_dir, arguments.split)
    with wrong_values_are_wrong_use():
        model = NgramModel((u.text for u in split.utterances), arguments.order)
    model.write(out)
    sizes = ", ".join(str(len(order.probabilities)) for order in model.orders)
    print(f"{out}: {sizes} n-grams of 1 to {arguments.order} words, Kneser-Ney")
