"""The pages of docs/ lead to each other; `make docs` makes a site of them and checks the rest."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The places in a page that a link may name: its headings, as sites spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    kept = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in kept}


def test_every_page_is_in_the_sites_navigation():
    named = set(re.findall(r"\S+\.md$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert named == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name
)
def test_every_link_leads_somewhere(page):
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, place in LINK.findall(prose):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {target} is not there"
        if place:
            assert place in anchors(path), f"{page.name}: {path.name} has no heading {place}"


def test_notebooks_are_kept_with_their_answers():
    for path in ROOT.glob("notebooks/*.ipynb"):
        assert '"execution_count": null' not in path.read_text(encoding="utf-8"), path
