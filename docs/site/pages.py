"""Adds pages to the `mkdocs` site from files outside docs/.

Results of benchmarks, the worked examples, the executed notebooks, CONTRIBUTING and
CHANGELOG become pages, and links from docs/ to these files lead to the pages. The
results' JSON files are copied into the site as they are. Other links out of docs/ are
not changed, so mkdocs reports them as broken.
"""

import posixpath
import re
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

_ROOT = Path(__file__).resolve().parents[2]
# File suffixes of the worked examples, with the language of the code block on their
# page.
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".yaml": "yaml"}
_LINK = re.compile(r"(\]\()(\.\./[^)#\s]*)")


def _sources() -> dict[str, str]:
    """Returns the added pages' and files' paths in the site; keys are paths in the
    repository.
    """
    pages = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    for path in sorted(_ROOT.glob("benchmarks/results/*.md")):
        name = "index.md" if path.name == "README.md" else path.name
        pages[f"benchmarks/results/{path.name}"] = f"results/{name}"

    for path in sorted(_ROOT.glob("benchmarks/results/*.json")):
        pages[f"benchmarks/results/{path.name}"] = f"results/{path.name}"
    for path in sorted(
        p for p in _ROOT.glob("examples/**/*") if p.suffix in _LANGUAGES
    ):
        source = path.relative_to(_ROOT)
        pages[source.as_posix()] = source.with_suffix(".md").as_posix()

    for path in sorted(_ROOT.glob("notebooks/*.ipynb")):
        pages[f"notebooks/{path.name}"] = f"notebooks/{path.stem}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages themselves, and the pictures that notebooks hold."""
    for source, page in _sources().items():
        path = _ROOT / source
        if path.suffix == ".json":
            files.append(File.generated(config, page, abs_src_path=str(path)))
            continue

        if path.suffix == ".ipynb":
            text = _notebook(path, page, files, config)
        else:
            text = path.read_text(encoding="utf-8")

        if path.suffix in _LANGUAGES:
            text = f"# {path.stem}\n\n`{source}`\n\n```{_LANGUAGES[path.suffix]}\n{text}```\n"
        files.append(File.generated(config, page, content=_in_site(text, source, page)))

    return files


def _notebook(path: Path, page: str, files: Files, config: MkDocsConfig) -> str:
    """Returns a notebook as Markdown; raises ValueError if not all its cells were executed."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if any(cell.execution_count is None for cell in code):
        raise ValueError(
            f"Notebooks must be executed. {path.name} is not: run `make notebooks`."
        )
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    folder = page.removesuffix(".md")
    for name, content in resources["outputs"].items():
        text = text.replace(f"({name})", f"({posixpath.basename(folder)}/{name})")
        files.append(File.generated(config, f"{folder}/{name}", content=content))

    return text


def _in_site(text: str, source: str, page: str) -> str:
    """Returns an added page's text with its links to added pages and docs/ adapted to
    the site.
    """
    pages = _sources()

    def mended(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        place = pages.get(target, target.removeprefix("docs/"))
        if target not in pages and not target.startswith("docs/"):
            return f"{match[1]}{match[2]}"
        return match[1] + posixpath.relpath(place, posixpath.dirname(page) or ".")

    return re.sub(r"(\]\()((?!https?:|#)[^)#\s]+)", mended, text)


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Points links to files outside docs/ at the pages made from these files."""
    pages = _sources()
    here = posixpath.dirname(page.file.src_uri)

    def mended(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join("docs", here, match[2]))
        if (_ROOT / target).is_dir():  # link a folder to the first page from it
            target = next(
                (source for source in pages if source.startswith(f"{target}/")), target
            )
        if target not in pages:
            return match[0]
        return match[1] + posixpath.relpath(pages[target], here or ".")

    return _LINK.sub(mended, markdown)
