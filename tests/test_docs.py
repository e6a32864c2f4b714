"""The pages of docs/ lead to each other; `make docs` makes a site of them and checks the rest."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tfasr import load_run
from tfasr.kit.gin import presets_folder
from tfasr.training.from_gin import load_config

# Every citation of the paper names a section, table, figure or equation that it has.

ROOT = Path(__file__).parents[1]
FILES = [
    path
    for folder in ("tfasr", "gin", "docs", "benchmarks", "notebooks", "examples")
    for pattern in ("*.py", "*.gin", "*.md", "*.ipynb")
    for path in sorted((ROOT / folder).rglob(pattern))
] + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

# What arXiv 2003.12366 has, counted in its text.
SECTIONS = {
    "1", "2", "2.1", "2.2", "2.2.1", "2.2.2", "2.2.3", "2.2.4", "2.2.5", "3", "3.1", "3.2", "4",
    "4.1", "4.1.1", "4.1.2", "4.1.3", "4.1.4", "4.2", "4.2.1", "4.2.2", "4.2.3", "4.3", "4.4",
    "4.4.1", "4.4.2", "4.4.3", "5", "5.1", "5.2", "5.3", "6",
}  # fmt: skip
FOUND = {
    "section": SECTIONS,
    "table": {str(number) for number in range(1, 7)},
    "figure": {str(number) for number in range(1, 11)}
    | {f"{n}{x}" for n in (5, 7, 8) for x in "abc"},
    "equation": {str(number) for number in range(1, 6)},
}
# Up to the next source: a citation ends with its sentence or the next semicolon.
OF_THE_PAPER = re.compile(
    r"(?:the paper|2003\.12366|of the paper)((?:[^.;]|\.(?=\S))*)", re.I
)
PLACES = re.compile(
    r"(section|table|figure|fig\.|equation)s?\s+((?:\d+(?:\.\d+)*[a-c]?(?:\([^)]*\))?"
    r"(?:\s*\([^)]*\))?(?:,\s+|\s+and\s+|,\s+and\s+)?)+)",
    re.I,
)
NUMBER = re.compile(r"\d+(?:\.\d+)*[a-c]?")


def citations(text: str) -> list[tuple[str, str]]:
    """Kind and number of each place of the paper that a text names."""
    plain = re.sub(r"\n\s*(#\s*)?", " ", text)
    found = []
    for cited in OF_THE_PAPER.finditer(plain):
        for kind, numbers in PLACES.findall(cited[1]):
            without_remarks = re.sub(r"\([^)]*\)", "", numbers)
            name = "figure" if kind.lower() == "fig." else kind.lower()
            found += [(name, number) for number in NUMBER.findall(without_remarks)]

    return found


def test_every_place_of_the_paper_that_is_cited_exists():
    wrong = {
        str(path.relative_to(ROOT)): missing
        for path in FILES
        if (
            missing := [
                (k, n)
                for k, n in citations(path.read_text("utf-8"))
                if n not in FOUND[k]
            ]
        )
    }
    assert wrong == {}


def test_the_sources_are_seen():
    seen = [one for path in FILES for one in citations(path.read_text("utf-8"))]
    assert len(seen) > 25
    assert {kind for kind, _ in seen} == set(FOUND)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("Source: the paper, section 4.4.3; Young, section 9.", [("section", "4.4.3")]),
        (
            "the paper, Table 2 (batch, 96) and section 7.7",
            [("table", "2"), ("section", "7.7")],
        ),
        ("Table 3 of nobody", []),
        ("the paper's Figure 8a", [("figure", "8a")]),
        ("arXiv 2003.12366, Tables 4 and 6", [("table", "4"), ("table", "6")]),
        (
            "# of the paper: Table 2 (batch,\n# readers), Table 4.",
            [("table", "2"), ("table", "4")],
        ),
    ],
)
def test_citations_are_read(text, places):
    assert citations(text) == places


PAGES = sorted(ROOT.glob("docs/**/*.md"))
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The places in a page that a link may name: its headings, as sites spell them."""
    headings = re.findall(
        r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    kept = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in kept}


def site_pages() -> tuple[set[str], set[str]]:
    """Returns the pages that mkdocs.yml names in the navigation, and outside it."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation, _, rest = text.partition("\nnot_in_nav: |\n")
    outside = rest.partition("\n\n")[0]
    return (
        set(re.findall(r"\S+\.md$", navigation, flags=re.MULTILINE)),
        set(re.findall(r"^  /(\S+\.md)$", outside, flags=re.MULTILINE)),
    )


def test_every_page_is_in_the_navigation_or_named_outside_it():
    inside, outside = site_pages()
    made = {"contributing.md", "changelog.md"}  # by docs/site/pages.py
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}
    assert not inside & outside
    assert inside | (outside - made) == pages


def test_the_navigation_is_short_enough_to_be_read():
    inside, _ = site_pages()
    read = [ROOT / "README.md", *(ROOT / "docs" / page for page in inside)]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in read)
    assert len(inside) <= 25
    assert words <= 35_000


def test_the_first_page_and_the_changelog_are_short():
    for name, most in (("README.md", 90), ("CHANGELOG.md", 60)):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert len(lines) <= most, name


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install '.[dev]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]

    done = subprocess.run(
        [*command, "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES],
    ids=lambda page: page.name,
)
def test_every_link_leads_somewhere(page):
    prose = re.sub(
        r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    for target, place in LINK.findall(prose):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {target} is not there"
        if place:
            assert place in anchors(path), (
                f"{page.name}: {path.name} has no heading {place}"
            )


def test_notebooks_are_kept_with_their_answers():
    for path in ROOT.glob("notebooks/*.ipynb"):
        assert '"execution_count": null' not in path.read_text(encoding="utf-8"), path


MANIFESTS = {
    "train.yaml": ["Service", "Job"],
    "study.yaml": ["Service", "Deployment", "Deployment", "Job"],
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_kubernetes_manifests_fit_their_schemas(name):
    validation = pytest.importorskip(
        "kubernetes_validate", reason="pip install '.[dev]'"
    )
    yaml = pytest.importorskip("yaml")  # which the validator needs too
    text = (ROOT / "examples" / "kubernetes" / name).read_text(encoding="utf-8")
    documents = list(yaml.safe_load_all(text))
    assert [document["kind"] for document in documents] == MANIFESTS[name]
    for document in documents:
        validation.validate(document, validation.latest_version(), strict=True)
    documents[-1]["spec"]["backoff"] = documents[-1]["spec"].pop("backoffLimit")
    with pytest.raises(validation.ValidationError, match="backoff"):
        validation.validate(documents[-1], validation.latest_version(), strict=True)


# The shards that `tfasr demo` makes, for the demo's recipe of the paper.
DEMO_SHARDS = {"demo/shards": ["paper_demo.gin"]}


def presets_named(words: list[str]) -> list[str]:
    """Returns the presets among a command's gin files; files that a page makes name no
    features.
    """
    files = [words[at + 1] for at, word in enumerate(words) if word == "--gin_file"]
    return [file for file in files if (presets_folder() / file).is_file()]


def commands_on_shards(page: Path, command: str) -> list[tuple[str, list[str]]]:
    """Returns the folder of shards and the presets of each such command on a page."""
    found = []
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        # A file of flags may name presets too, which the page's command doesn't show.
        for line in re.findall(
            rf"^tfasr {command} .*--shard_dir.*", block, re.MULTILINE
        ):
            words = shlex.split(line, comments=True)
            if "--flagfile" not in words:
                found.append(
                    (words[words.index("--shard_dir") + 1], presets_named(words))
                )

    return found


def test_readmes_loop_runs_as_it_is_printed(tmp_path, monkeypatch):
    """With lists and functions in place of PyTorch's data and model."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    hypotheses = iter(["one to", *["one two"] * 20])
    names = {
        "data": ["one two"] * 4,
        "loader": [["one two"] * 2] * 2,
        "references": ["one two"],
        "build": object,
        "update": lambda model, batch: 0.5,
        "transcribe": lambda model: [next(hypotheses)],
    }
    monkeypatch.chdir(tmp_path)

    exec(block, names)

    run = load_run(tmp_path / "runs/torch")
    assert run.time_to_accuracy(cer=0.15).epoch == 3  # a median of three evaluations
    assert len(run.accuracy_curve("cer")) == 3


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem
)
def test_a_pages_shards_have_the_features_that_its_training_reads(page):
    """README's commands once prepared magnitudes for a preset that reads powers."""
    prepared = DEMO_SHARDS | dict(commands_on_shards(page, "prepare"))
    for shard_dir, presets in commands_on_shards(page, "train"):
        if shard_dir in prepared:
            written = load_config(prepared[shard_dir]).experiment.features
            read = load_config(presets).experiment.features
            assert written == read, (shard_dir, presets)
