"""The examples in docstrings give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import tfasr

PACKAGE = Path(tfasr.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    results = doctest.testmod(importlib.import_module(name))

    assert results.attempted > 0
    assert results.failed == 0
