"""docs/imports.svg shows the imports as they are."""

import re

from tests.imports_picture import PICTURE, necessary, package_imports, places_of
from tests.test_layers import RANKS


def test_the_picture_of_the_imports_is_current():
    shown = re.findall(r"<title>(\w+) imports (\w+)</title>", PICTURE.read_text())
    remedy = "The imports have changed: run python -m tests.imports_picture"
    assert sorted(shown) == sorted(necessary(package_imports())), remedy


def test_an_import_that_follows_from_others_is_not_shown():
    graph = {"cli": {"api", "errors"}, "api": {"errors"}, "errors": set()}
    assert necessary(graph) == [("cli", "api"), ("api", "errors")]


def test_an_arrow_has_a_place_in_each_row_that_it_passes():
    first, *between, last = places_of(("cli", "api"))
    assert (first, last) == ("cli", "api")
    assert [rank for _, _, rank in between] == list(
        range(RANKS["cli"] - 1, RANKS["api"], -1)
    )
