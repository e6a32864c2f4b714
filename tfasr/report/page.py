"""``report.html``: one page that needs nothing but itself, and the figures as files."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from tfasr._version import __version__
from tfasr.report.analysis import Report
from tfasr.report.drawing import run_colour, to_svg, write_png
from tfasr.report.figures import figures
from tfasr.report.findings import finding
from tfasr.report.grouping import GroupResult, colours, group_members, group_results
from tfasr.report.naming import target_label
from tfasr.report.tables import Table

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #22262b; --soft: #5c6670;
  --line: #d9dee3; --tint: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e4e8ec; --soft: #9aa5b1;
  --line: #333a42; --tint: #1c2026; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.answers { list-style: none; margin: 0; padding: 0; font-size: 1.1rem; }
.answers li { margin: .4rem 0; padding-left: .8rem; border-left: 3px solid var(--line); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: pre; }
thead th { border-bottom: 1px solid var(--ink); }
tbody tr { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--paper); max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%;
  margin-right: .5em; }
.notes { color: var(--soft); font-size: .88rem; margin: .6rem 0 0; padding-left: 1.1rem;
  max-width: 48rem; overflow-wrap: anywhere; }
.figures { display: grid; gap: 1.5rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 44rem; height: auto;
  font-family: "DejaVu Sans", Verdana, sans-serif; }
figure svg * { stroke-linejoin: round; }
figcaption { color: var(--soft); font-size: .88rem; margin-bottom: .3rem; }
details { margin: .5rem 0; } summary { cursor: pointer; }
pre { overflow-x: auto; background: var(--tint); padding: .75rem; font-size: .8rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .8rem; }
"""


def write_page(report: Report, folder: Path, shown: Sequence[Table], appendix: str = "") -> None:
    """Writes ``report.html`` and each figure as a PNG into a folder.

    The page is one file without a reference to any other. Figures are drawn in its own text
    colour, so that they read in light and in dark; what comes from the runs, names and
    configurations, is escaped.

    Args:
        report: what the figures and the answers are of.
        folder: where to write; it must exist.
        shown: the report's tables; the first one stands above the figures.
        appendix: HTML that stands below them.
    """
    drawn = figures(report)
    for name, (_, figure) in drawn.items():
        write_png(figure, folder / f"{name}.png")
    (folder / "report.html").write_text(_page(report, drawn, shown, appendix), encoding="utf-8")


def _page(
    report: Report,
    drawn: dict[str, tuple[str, Figure]],
    shown: Sequence[Table],
    appendix: str,
) -> str:
    pictures = "".join(
        f'<figure id="{escape(name)}"><figcaption>{escape(caption)}</figcaption>'
        f"{to_svg(figure, name)}</figure>\n"
        for name, (caption, figure) in drawn.items()
    )
    first, *others = shown
    of_runs = colours(report)
    below = "".join(f"<h2>{escape(one.title)}</h2>{_table(one, of_runs)}" for one in others)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>Time to accuracy</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        "<h1>Time to accuracy</h1>\n"
        f"{_list(answers(report), 'answers')}"
        f"{_table(first, of_runs)}"
        f'<div class="figures">\n{pictures}</div>\n'
        f"{below}{appendix}"
        f"{_configurations(report)}"
        f"<footer>tfasr {escape(__version__)}</footer>\n</body>\n</html>\n"
    )


def answers(report: Report) -> list[str]:
    """Returns a sentence for each target: who met it first, and how long the others took."""
    grouped = any(len(members) > 1 for members in group_members(report.runs).values())
    if grouped:
        return [
            answer
            for of_target in group_results(report)
            for answer in (
                _group_answer(of_target),
                *(finding(of_target[0], other) for other in of_target[1:4]),
            )
        ]
    return [_answer(report, index) for index in range(len(report.targets))]


def _group_answer(results: Sequence[GroupResult]) -> str:
    parts = []
    for result in results[:4]:
        found = result.statistics
        times = "never" if found.median_s is None else f"median {found.median_s / 60:.3g} min"
        parts.append(f"{result.group}: {times} ({found.reached} of {found.n} runs reached it)")
    if len(results) > 4:
        parts.append(f"{len(results) - 4} more groups")
    return f"{target_label(*results[0].target)}: {'; '.join(parts)}."


def _answer(report: Report, target: int) -> str:
    label = target_label(*report.targets[target])
    compared = [
        (run, run.results[target].tta)
        for index, run in enumerate(report.runs)
        if not report.refused(index)
    ]
    times = sorted(
        ((tta.minutes, run.name, tta.epoch) for run, tta in compared if tta.reached),
        key=lambda found: found[0],
    )
    if not times:
        return f"{label}: no run has reached it."
    (fastest, name, epoch), *slower = times
    parts = [f"{label}: {name} in {fastest:.3g} min (epoch {epoch})"]
    parts += [f"{other} in {took:.3g} min, {took / fastest:.2f} times as long"
              for took, other, _ in slower[:3]]  # fmt: skip
    if len(slower) > 3:
        parts.append(f"{len(slower) - 3} more runs after them")
    never = [run.name for run, tta in compared if not tta.reached]
    if never:
        shown = ", ".join(never[:3]) + (f" and {len(never) - 3} more" if len(never) > 3 else "")
        parts.append(f"never: {shown}")
    return "; ".join(parts) + "."


def _table(table: Table, of_runs: Sequence[int]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.columns)
    rows = []
    runs = range(len(table.rows)) if table.colours is None else table.colours
    for run, (name, *cells) in zip(runs, table.rows, strict=True):
        swatch = f'<span class="swatch" style="background:{run_colour(of_runs[run])}"></span>'
        tail = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><td title="{escape(name)}">{swatch}{escape(name)}</td>{tail}</tr>\n')
    return (
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table></div>\n"
        f"{_list(table.notes, 'notes')}"
    )


def _list(items: Iterable[str], kind: str) -> str:
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{entries}</ul>\n' if entries else ""


def _configurations(report: Report) -> str:
    saved = [run for run in report.runs if run.config is not None]
    if not saved:
        return ""
    shown = "".join(
        f"<details><summary>{escape(run.name)}</summary><pre>{escape(run.config)}</pre></details>\n"
        for run in saved
    )
    return f"<h2>Configurations</h2>\n{shown}"


def plain_page(title: str, body: str) -> str:
    """Returns a page of the report's style around HTML that has no figure."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}"
        f"<footer>tfasr {escape(__version__)}</footer>\n</body>\n</html>\n"
    )
