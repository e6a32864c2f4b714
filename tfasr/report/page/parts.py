"""The page's parts that belong to its interactive curves, and what keeps it from the network."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from plotly.offline import get_plotlyjs

from tfasr.report.figures.catalogue import Drawing

_CONTROLS = (
    (
        "x",
        "Horizontal axis:",
        (("minutes", "minutes"), ("epochs", "epochs"), ("utterances", "utterances")),
    ),
    ("x-scale", "scale:", (("linear", "linear"), ("log", "log"))),
    ("y-scale", "Vertical axis:", (("linear", "linear"), ("log", "log"))),
)


def style() -> str:
    """Returns the page's style sheet."""
    return _own_file("page.css")


def scripts(drawn: Sequence[Drawing]) -> tuple[str, list[str]]:
    """Returns the elements that make curves interactive, and the hashes of what they run.

    Args:
        drawn: whose plots are written into the page, as data that no browser runs.
    """
    plots = json.dumps(
        {one.name: one.plot for one in drawn}, allow_nan=False, separators=(",", ":")
    )
    # Within a script element only "</" and "<!--" mean anything, and JSON can do without "<".
    data = plots.replace("<", "\\u003c")
    run = [get_plotlyjs(), _own_file("page.js")]
    elements = "".join(f"<script>{code}</script>\n" for code in run)
    return (
        f'<script type="application/json" id="plots">{data}</script>\n{elements}',
        [_hash(code) for code in run],
    )


def content_policy(hashes: Sequence[str]) -> str:
    """Returns the element that forbids the page everything but its own scripts and styles."""
    allowed = " ".join(f"'{one}'" for one in hashes)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def controls() -> str:
    """Returns the choices of axes, hidden until the script can obey them."""
    fields = "".join(
        f"<fieldset><legend>{label}</legend>{_choices(name, values)}</fieldset>"
        for name, label, values in _CONTROLS
    )
    return f'<form class="controls" id="controls" hidden>{fields}</form>\n'


def pictures(drawn: Sequence[Drawing], still: Mapping[str, str]) -> str:
    """Returns the figures: places for plots, and still drawings until there are any."""
    return "".join(
        f'<figure id="{escape(one.name)}"{_wide(one)}>'
        f"<figcaption>{escape(one.caption)}.</figcaption>"
        f'<div class="plot"></div><div class="still">{still[one.name]}</div></figure>\n'
        for one in drawn
    )


def _choices(name: str, values: Sequence[tuple[str, str]]) -> str:
    checked = " checked"
    return "".join(
        f'<label><input type="radio" name="{name}" value="{value}"'
        f"{checked if not index else ''}>{label}</label>"
        for index, (value, label) in enumerate(values)
    )


def _wide(one: Drawing) -> str:
    return ' class="wide"' if one.wide else ""


def _own_file(name: str) -> str:
    return resources.files("tfasr.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(code: str) -> str:
    # A parser hands on line ends as "\n", and hashes what it hands on.
    digest = hashlib.sha256(code.replace("\r\n", "\n").replace("\r", "\n").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
