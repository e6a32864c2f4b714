"""The table of machines in docs/estimate.md is what the kept runs say."""

import re
from pathlib import Path

import estimate

from tfasr.display.table import to_markdown

PAGE = Path(__file__).parents[2] / "docs" / "estimate.md"


def test_the_pages_table_of_machines_is_generated():
    printed = to_markdown(
        [estimate.table_of_machines(estimate.machine_rows(estimate.kept_runs()))]
    )

    rows = [line for line in printed.splitlines() if line.startswith("|")]

    assert len(rows) > 8
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")


def test_readmes_machines_are_rows_of_the_generated_table():
    preset = "| fast/an4.gin "
    rows = {
        line.removeprefix(preset)
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(preset)
    }
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")

    shown = re.findall(r"^\| \S.* runs\).*\|$", readme, re.MULTILINE)

    assert len(shown) >= 4
    assert set(shown) <= rows
    assert any("NVIDIA" in row for row in shown)


def test_a_row_has_each_machines_own_twin():
    rows = {
        (row.recipe, row.machine): row
        for row in estimate.machine_rows(estimate.kept_runs())
    }

    gpu = rows["fast/an4.gin", "NVIDIA H200 (JAX)"]

    # Each without its first run.
    assert (len(gpu.seconds), len(gpu.twin_seconds)) == (2, 3)
    assert max(gpu.twin_seconds) < min(gpu.seconds)
    assert rows["an4.gin", "AMD EPYC (Zen 3)"].twin_seconds == []
    assert all(row.seconds for row in rows.values())
