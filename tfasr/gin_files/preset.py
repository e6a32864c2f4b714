"""Where the presets lie: ``gin/`` beside an editable install, ``tfasr/presets`` in a wheel."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfasr.errors import UsageError

_INCLUDE = re.compile(r"""^\s*include\s+['"]([^'"]+)['"]\s*(#.*)?$""")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_BINDING = re.compile(r"^([A-Za-z_][\w./]*)\s*=")


COMMAND_LINE = "--gin_binding"


@dataclass(frozen=True)
class Line:
    """A line of gin and where it stands.

    Attributes:
        path: its file, or `COMMAND_LINE`.
        number: in the file, from 1; of the command line's bindings in the order given.
        text: without the line's end.
        source: counts what was read: a file comes after those that it includes, a file after
            those named before it, the command line last.
    """

    path: Path | str
    number: int
    text: str
    source: int = 0

    @property
    def place(self) -> str:
        """The file and the line's number."""
        return f"{self.path}:{self.number}"


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
    found = [*folder.glob("*.gin"), *folder.glob("bench/*.gin"), *folder.glob("study/*.gin")]
    known = ", ".join(sorted(path.relative_to(folder).as_posix() for path in found))
    raise UsageError(f"--gin_file must be a file or a preset. Received: {name!r}. Presets: {known}")


def read_gin(files: Sequence[str], bindings: Sequence[str] = ()) -> list[Line]:
    """Returns the lines of gin files and of the command line's bindings.

    Args:
        files: paths or the names of presets.
        bindings: lines of gin that override the files'.

    Raises:
        UsageError: see `find_preset` and `read_preset`.
    """
    lines: list[Line] = []
    sources = 0
    for file in files:
        path = find_preset(file)
        found = read_preset(path)
        included = [read for read in dict.fromkeys(line.path for line in found) if read != path]
        numbers = {read: sources + n for n, read in enumerate([*included, path])}
        lines += [replace(line, source=numbers[line.path]) for line in found]
        sources += len(numbers)
    return lines + [Line(COMMAND_LINE, n, text, sources) for n, text in enumerate(bindings, 1)]


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
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"A gin file must be readable. Received: {path} ({error}).") from error
    try:
        text = content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{number}: a gin file must be text in UTF-8. Received: the byte "
            f"0x{content[error.start]:02x}. Save the file as UTF-8, or name another one."
        ) from error
    texts = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    for number, line in enumerate(texts, start=1):
        strange = _CONTROL.search(line)
        if strange:
            raise UsageError(
                f"{path}:{number}: a gin file must be text. Received: the control character "
                f"{strange[0]!r}. Is this a gin file?"
            )
    return [Line(path, number, line) for number, line in enumerate(texts, start=1)]


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
