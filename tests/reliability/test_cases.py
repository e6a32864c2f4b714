"""The page on reliability names a test for each case of bad input: that test is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def test_every_case_has_its_test():
    section = PAGE.read_text(encoding="utf-8").partition("## Cases of bad input")[2]
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert len(rows) > 40
    for row in rows[1:]:
        named = re.findall(r"`([\w/]+) ([\w]+)`", row)
        assert named, row
        for file, test in named:
            tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert f"test_{test}" in names, row
