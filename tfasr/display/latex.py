"""Tables for a paper: LaTeX with booktabs, to be included in a document."""

import unicodedata
from collections.abc import Sequence

from tfasr.display.files import file_names
from tfasr.display.table import Table

PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble.\n"

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    # What the report itself writes beyond ASCII, for engines of any age.
    "–": "--",
    "—": "---",
    "−": "$-$",
    "…": r"\dots{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "µ": r"$\mu$",
    "\u00a0": "~",
}


def to_latex(tables: Sequence[Table]) -> str:
    """Returns tables as ``table`` environments, each with a caption, a label and its notes."""
    names = file_names([table.name or table.title for table in tables])
    blocks = [table_to_latex(table, name) for name, table in zip(names, tables, strict=True)]
    return PREAMBLE + "\n".join(blocks)


def table_to_latex(table: Table, label: str) -> str:
    """Returns one table; its label is ``tab:`` and the given one."""
    head = " & ".join(map(_heading, table.columns))
    rows = [" & ".join(map(_guarded, row)) + r" \\" for row in table.rows]
    notes = [rf"\par\smallskip\footnotesize {escape(note)}" for note in table.notes]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(table.title)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Returns text as LaTeX prints it, on one line.

    Letters of any script stay as they are: those that pdfTeX's fonts lack need XeLaTeX or LuaLaTeX.
    """
    kept = (" " if unicodedata.category(character) == "Cc" else character for character in text)
    return "".join(_SPECIAL.get(one, one) for one in " ".join("".join(kept).split(" ")).strip())


def _guarded(cell: str) -> str:
    text = escape(cell)
    # After a row's end, a bracket would pass for the distance to the next row.
    return f"{{{text}}}" if text.startswith(("[", "*")) else text


def _heading(heading: str) -> str:
    first, *others = heading.split("\n")
    if not others:
        return _guarded(first)
    lines = r"\\".join(map(_guarded, [first, *others]))
    return rf"\shortstack{{{lines}}}"
