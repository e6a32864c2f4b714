"""Prints what benchmarks wrote with --out as Markdown.

python benchmarks/render.py benchmarks/results/*.json
"""

import argparse
import json
from pathlib import Path

from twin.results import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    texts = [path.read_text(encoding="utf-8") for path in parser.parse_args().results]
    print("\n".join(to_markdown(json.loads(text)) for text in texts), end="")


if __name__ == "__main__":
    main()
