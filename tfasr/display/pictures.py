"""Charts as files, as elements of a page, and the library that draws them on a page."""

import json
import re
from functools import cache
from pathlib import Path

import vl_convert

from tfasr.child import call
from tfasr.display.chart import Chart
from tfasr.display.style import INK
from tfasr.display.vega import picture_spec
from tfasr.durable import write_whole

_VEGA_LITE = "6.4"
_PNG_SCALE = 2
_PAPER = '<rect width="100%" height="100%" fill="#ffffff"/>'


def write_chart(chart: Chart, folder: Path) -> str:
    """Writes a chart as ``NAME.png`` and ``NAME.svg`` on white; returns the SVG document."""
    svg = svg_text(chart)
    write_whole(folder / f"{chart.name}.svg", svg)
    write_whole(folder / f"{chart.name}.png", vl_convert.svg_to_png(svg, scale=_PNG_SCALE))
    return svg


def svg_text(chart: Chart) -> str:
    """Returns a chart as an SVG document on white, its text as text."""
    # A name may hold bytes of a file's name that are no UTF-8, which the renderer refuses.
    spec = json.dumps(picture_spec(chart), ensure_ascii=False).encode(errors="replace").decode()
    svg = vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE)
    # Hundredths of a pixel are fine enough, and a third of the size.
    svg = re.sub(
        r' (?:d|transform|[xy][12]?|width|height)="[^"]*\.\d{3}[^"]*"',
        lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]),
        svg,
    )
    return re.sub(r"(<svg [^>]*>)", rf"\1{_PAPER}", svg, count=1)


def embedded_svg(svg: str) -> str:
    """Returns an SVG document of `svg_text` as an element for an HTML page.

    It has no namespace, no address and no background, and its ink is the page's text colour.
    """
    svg = svg.replace(_PAPER, "", 1)
    svg = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg)
    svg = re.sub(r' (?:class|id|font-family)="[^"]*"', "", svg)
    return svg.replace(INK, "currentColor")


@cache
def page_library() -> str:
    """Returns the script that draws a page's charts: ``vegaEmbed``, and all that it needs.

    It is made by another process, which takes 100 MB for it that this one would not give back.
    """
    return call(_bundled, plugins=(), show_messages=False, task="Bundling the page's script")


def _bundled() -> str:
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE)
