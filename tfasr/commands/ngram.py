"""``tfasr ngram``: an n-gram language model of a split's transcripts, as an ARPA file."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from tfasr.commands.shared import progress
from tfasr.errors import UsageError, wrong_values_are_wrong_use

EXAMPLE = "ngram --shard_dir shards --split train --out train.arpa"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the split to count, the length of n-grams, and the file to write."""
    add = parser.add_argument
    add("--shard_dir", required=True, help="what tfasr prepare wrote")
    add("--split", default="train", help="default: %(default)s")
    add("--order", type=int, default=3, help="words of an n-gram; default: 3")
    add(
        "--out",
        required=True,
        help="the ARPA file, for tfasr evaluate --language_model",
    )


def run(arguments: argparse.Namespace) -> None:
    """Counts the split's transcripts, writes the model and prints its size.

    Raises:
        UsageError: if ``--out`` can't be a file, or the order isn't possible.
    """
    from tfasr.data.shards import open_split
    from tfasr.decoding.language_models import NgramModel

    # This fails now, not after the work.
    out = Path(arguments.out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(
            f"--out must be a file in a folder that exists. Received: {out}."
        )

    split = open_split(arguments.shard_dir, arguments.split)
    utterances = split.utterances

    def texts(advance: Callable[[], None]) -> Iterator[str]:
        """Yields the transcripts, and moves the progress bar on."""
        for utterance in utterances:
            yield utterance.text
            advance()

    with wrong_values_are_wrong_use(), progress("counted", len(utterances)) as advance:
        model = NgramModel(texts(advance), arguments.order)

    model.write(out)
    sizes = ", ".join(str(len(order.probabilities)) for order in model.orders)
    print(f"{out}: {sizes} n-grams of 1 to {arguments.order} words, Kneser-Ney")
