"""Where the presets lie: ``gin/`` beside an editable install, ``tfasr/presets`` in a wheel."""

import re
from dataclasses import dataclass
from pathlib import Path

from tfasr.errors import UsageError

_INCLUDE = re.compile(r"""^\s*include\s+['"]([^'"]+)['"]\s*(#.*)?$""")
_BINDING = re.compile(r"^([A-Za-z_][\w./]*)\s*=")


@dataclass(frozen=True)
class Line:
    """A line of a preset and where it stands."""

    path: Path
    number: int
    text: str


def presets_folder() -> Path:
    """Returns the folder of the presets that came with tfasr."""
    package = Path(__file__).parents[1]
    in_wheel = package / "presets"
    return in_wheel if in_wheel.is_dir() else package.parent / "gin"


def find_preset(name: str) -> Path:
    """Returns the absolute path of a gin file: a path of the user's, or a preset's name.

    Raises:
        UsageError: if there is neither; it lists the presets.
    """
    for candidate in (Path(name), presets_folder() / name, presets_folder() / f"{name}.gin"):
        if candidate.is_file():
            return candidate.resolve()
    folder = presets_folder()
    found = [*folder.glob("*.gin"), *folder.glob("bench/*.gin")]
    known = ", ".join(sorted(path.relative_to(folder).as_posix() for path in found))
    raise UsageError(f"--gin_file must be a file or a preset. Received: {name!r}. Presets: {known}")


def read_preset(path: Path) -> list[Line]:
    """Returns a gin file's lines with those of its includes in their places.

    Includes are looked up beside the file, then among the presets. Included files are leaves:
    they include nothing, and no two bind the same name, since gin would take the last silently.

    Raises:
        UsageError: if an include is missing, is no leaf, or repeats another's binding.
    """
    lines: list[Line] = []
    bound: dict[str, Line] = {}
    for line in _lines(path):
        include = _INCLUDE.match(line.text)
        if not include:
            lines.append(line)
            continue
        for leaf_line in _leaf(include[1], line):
            binding = _BINDING.match(leaf_line.text)
            if binding and binding[1] in bound and bound[binding[1]].path != leaf_line.path:
                other = bound[binding[1]]
                raise UsageError(
                    f"Included presets must not bind a name twice. {leaf_line.path}:"
                    f"{leaf_line.number} binds {binding[1]}, which {other.path}:{other.number} "
                    "does too. Bind it in the experiment's own file instead."
                )
            if binding:
                bound[binding[1]] = leaf_line
            lines.append(leaf_line)
    return lines


def _lines(path: Path) -> list[Line]:
    texts = path.read_text(encoding="utf-8").splitlines()
    return [Line(path, number, text) for number, text in enumerate(texts, start=1)]


def _leaf(name: str, included_by: Line) -> list[Line]:
    where = f"{included_by.path}:{included_by.number}"
    candidates = [included_by.path.parent / name, presets_folder() / name]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise UsageError(
            f"An included file must exist. {where} includes {name!r}; looked for "
            f"{' and '.join(map(str, candidates))}."
        )
    lines = _lines(found)
    nested = [line for line in lines if _INCLUDE.match(line.text)]
    if nested:
        raise UsageError(
            f"An included file must not include others. {found}:{nested[0].number} does, and is "
            f"included by {where}."
        )
    return lines
