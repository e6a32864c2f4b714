"""An error report in every form: terminal, Markdown, JSON, CSV, a section of a page."""

import csv
import dataclasses
import io
import json
from html import escape
from pathlib import Path
from typing import Any

from tfasr.analysis.errors import ErrorReport, System
from tfasr.display.csv_text import harmless
from tfasr.display.table import Table
from tfasr.display.text import to_markdown, to_text
from tfasr.durable import write_whole
from tfasr.reports.tables.errors import error_tables, worst_alignments
from tfasr.scoring.alignment import confusions, worst
from tfasr.scoring.paired import PairedComparison
from tfasr.scoring.speakers import speaker_rows

_WORST = "{name}: the {count} utterances with the most word errors"
CSV_COLUMNS = (
    "system", "id", "speaker", "words", "correct", "substitutions", "deletions", "insertions",
    "characters", "character_edits", "reference", "hypothesis",
)  # fmt: skip


def errors_to_text(report: ErrorReport) -> str:
    """Returns tables and alignments for a terminal."""
    parts = [to_text(error_tables(report))]
    for title, text in _alignments(report).items():
        parts.append(f"{title}\n\n{text}")
    return "\n".join(parts)


def errors_to_markdown(report: ErrorReport) -> str:
    """Returns tables and alignments in GitHub's Markdown."""
    parts = [to_markdown(error_tables(report))]
    for title, text in _alignments(report).items():
        fence = "```" if "```" not in text else "~~~~~~"
        parts.append(f"## {title}\n\n{fence}\n{text}{fence}\n")
    return "\n".join(parts)


def errors_to_json(report: ErrorReport) -> str:
    """Returns one object: ``systems``, ``comparisons`` with the first of them, ``notes``.

    Rates and intervals are fractions; what the data do not allow is null. A comparison that is
    refused has ``refused``, the reason, and nothing else.
    """
    first = report.systems[0].name
    comparisons = []
    for system, found in zip(report.systems[1:], report.comparisons, strict=True):
        about = {"first": first, "second": system.name}
        if isinstance(found, PairedComparison):
            comparisons.append({**about, **dataclasses.asdict(found), "refused": None})
        else:
            comparisons.append({**about, "refused": found})
    whole = {
        "systems": [_system(system, report.worst) for system in report.systems],
        "comparisons": comparisons,
        "notes": report.notes,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def errors_to_csv(report: ErrorReport) -> str:
    """Returns a row for each system and utterance, with the counts that all rates are made of."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for system in report.systems:
        for one in system.scored:
            said, counts = one.transcript, one.counts
            correct = counts.words - counts.substitutions - counts.deletions
            edits = (correct, counts.substitutions, counts.deletions, counts.insertions)
            characters = (counts.characters, counts.character_edits)
            texts = (harmless(said.reference), harmless(said.hypothesis))
            about = (*map(harmless, (system.name, said.id, said.speaker)), counts.words)
            writer.writerow([*about, *edits, *characters, *texts])
    return file.getvalue()


def errors_to_html(report: ErrorReport) -> str:
    """Returns the sections of a page: tables and alignments, everything escaped."""
    sections = [_html_table(table) for table in error_tables(report)]
    for title, text in _alignments(report).items():
        sections.append(
            f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>\n"
        )
    return "".join(sections)


def write_errors(report: ErrorReport, folder: Path) -> None:
    """Writes ``errors.txt``, ``errors.md``, ``errors.json`` and ``errors.csv`` into a folder."""
    forms = {
        "txt": errors_to_text,
        "md": errors_to_markdown,
        "json": errors_to_json,
        "csv": errors_to_csv,
    }
    for suffix, write in forms.items():
        write_whole(folder / f"errors.{suffix}", write(report))


def _alignments(report: ErrorReport) -> dict[str, str]:
    """Returns the worst utterances' alignments by title; systems without an error have none."""
    return {
        _WORST.format(name=name, count=text.count("Scores: (#C #S #D #I)")): text
        for name, text in worst_alignments(report).items()
        if text
    }


def _system(system: System, count: int) -> dict[str, Any]:
    found = confusions(system.scored)
    return {
        "system": system.name,
        "path": str(system.path),
        **system.summary.to_json(),
        "speakers": [
            {"speaker": row.name, "utterances": row.utterances, "words": row.words,
             "wer": row.rates["errors"] if row.words else None}
            for row in speaker_rows(system.scored)
        ],
        "substitutions_by_pair": [[*pair, times] for pair, times in found.substitutions],
        "deletions_by_word": found.deletions,
        "insertions_by_word": found.insertions,
        "worst": [
            {**dataclasses.asdict(one.transcript), "word_edits": one.counts.word_edits}
            for one in worst(system.scored, count)
        ],
        "notes": system.notes,
    }  # fmt: skip


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(heading.strip())}</th>' for heading in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in table.rows
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f"<h2>{escape(table.title)}</h2>"
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
    )
