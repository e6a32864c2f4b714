"""``tfasr presets``: the gin files that come with tfasr, for --gin_file."""

import argparse
import re
from itertools import takewhile
from pathlib import Path

from tfasr.kit.gin import presets

EXAMPLE = "presets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no further flags."""


def run(arguments: argparse.Namespace) -> None:
    """Prints each preset's name, as ``--gin_file`` takes it, and what it is for."""
    for name, path in presets().items():
        print(f"{name.removesuffix('.gin'):<28}  {_summary(path)}")


def _summary(path: Path) -> str:
    """Returns the first sentence of the comment with which a preset begins."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("# "), lines)
    text = " ".join(line[2:].strip() for line in comment)

    # The first sentence ends at a full stop, but not at that of "the 3. layer", or at a
    # colon once it is long enough to say something.
    return re.split(r"(?<=[^.\d])\. |(?<=.{30}): ", text)[0].rstrip(".:")
