"""A comparison of decoders as text and as files."""

import json
from pathlib import Path

from tfasr.bench.decoder_table import DecoderComparison
from tfasr.report.formats import to_markdown, to_text

FORMATS = ("table", "markdown", "json")


def to_format(comparison: DecoderComparison, output_format: str) -> str:
    """Returns a comparison as a terminal's table, as Markdown or as JSON."""
    if output_format == "json":
        return json.dumps(comparison.to_json(), indent=1, ensure_ascii=False) + "\n"
    write = to_markdown if output_format == "markdown" else to_text
    return write([comparison.table()])


def write_comparison(comparison: DecoderComparison, folder: Path) -> None:
    """Writes ``decoder.png``, ``results.json`` and ``table.md``; makes the folder where missing.

    Raises:
        OSError: if it cannot be written.
    """
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.bench.decoder_figure import decoder_figure
    from tfasr.report.drawing import write_png

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(to_format(comparison, "json"), encoding="utf-8")
    (folder / "table.md").write_text(to_format(comparison, "markdown"), encoding="utf-8")
    write_png(decoder_figure(comparison.rows), folder / "decoder.png")
