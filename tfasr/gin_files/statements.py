"""The statements of gin files, each with the file and lines where it stands."""

import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from gin import config_parser

from tfasr.errors import UsageError
from tfasr.gin_files.preset import COMMAND_LINE, Line

_NAMES = "Names are those of tfasr's configs."
_PARAMETER_ALONE = re.compile(r"\w+\s*=")


@dataclass(frozen=True)
class Statement:
    """A binding, an import or the head of a block.

    Attributes:
        lines: where it stands.
        text: the statement alone, as gin reads it; of a binding in a block with the block's name.
        name: the module that is imported, or the scope, class and parameter that are bound.
        kind: "binding", "import" or "block".
        in_block: whether it is a binding below the head of a block.
    """

    lines: tuple[Line, ...]
    text: str
    name: str
    kind: str
    in_block: bool = False

    @property
    def place(self) -> str:
        """The file and line where it begins."""
        return self.lines[0].place

    @property
    def source(self) -> int:
        """The source that it came from, see `Line`."""
        return self.lines[0].source


def statements(lines: Iterable[Line]) -> list[Statement]:
    """Returns the statements of lines in their order.

    Raises:
        UsageError: for what is no gin; it names file and line.
    """
    lines = list(lines)
    order = {id(line): index for index, line in enumerate(lines)}
    found = []
    for text in _texts(lines):
        found += _statements_of(text)
    return sorted(found, key=lambda statement: order[id(statement.lines[0])])


def _texts(lines: list[Line]) -> list[list[Line]]:
    """Returns the lines of each file and each binding of the command line, read one by one."""

    def text_of(line: Line) -> tuple[int, int]:
        return line.source, line.number if line.path == COMMAND_LINE else 0

    return [list(group) for _, group in groupby(sorted(lines, key=text_of), key=text_of)]


class _Unresolved(config_parser.ParserDelegate):
    """Takes references and macros as they are written: nothing needs to be registered yet."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return scoped_configurable_name

    def macro(self, scoped_configurable_name):
        return scoped_configurable_name


def _statements_of(lines: list[Line]) -> list[Statement]:
    texts = [text for line in lines for text in line.text.split("\n")]
    # A binding of the command line may hold several lines.
    at = [line for line in lines for _ in line.text.split("\n")]
    starts, parsed, next_line = [], [], 1
    try:
        parser = config_parser.ConfigParser("\n".join(texts) + "\n", _Unresolved())
        while (statement := parser.parse_statement()) is not None:
            next_line = parser.current_token.start[0]
            starts.append(statement.location.line_num)
            parsed.append((statement, next_line))
    except (SyntaxError, tokenize.TokenError, ValueError, TypeError, RecursionError) as error:
        place = _place(error, texts, at, next_line)
        raise UsageError(f"{place}: {_what(error)}. {_NAMES}") from error
    # Of a block gin has read all lines before it returns the first.
    following = [*starts[1:], len(texts) + 1]
    ends = [min(end, start) for (_, end), start in zip(parsed, following, strict=False)]
    return [
        _statement(statement, texts[start - 1 : end - 1], at[start - 1 : end - 1])
        for (statement, _), start, end in zip(parsed, starts, ends, strict=True)
    ]


def _statement(statement, texts: list[str], lines: list[Line]) -> Statement:
    """Returns gin's statement that stands in these lines."""
    places, text = tuple(dict.fromkeys(lines)), "\n".join(texts)
    if isinstance(statement, config_parser.ImportStatement):
        return Statement(places, text, statement.module, "import")
    if isinstance(statement, config_parser.IncludeStatement):
        raise UsageError(
            f"{places[0].place}: an include must stand alone in a line of a file, as in: "
            f"include 'models/paper.gin'. Received: {text!r}."
        )
    name = "/".join(filter(None, (statement.scope, statement.selector)))
    if isinstance(statement, config_parser.BlockDeclaration):
        return Statement(places, text, name, "block")
    text = text.lstrip()
    if not statement.arg_name:
        return Statement(places, text, name, "binding")
    in_block = bool(_PARAMETER_ALONE.match(text))
    if in_block:  # its head names the class
        text = f"{name}.{text}"
    return Statement(places, text, f"{name}.{statement.arg_name}", "binding", in_block)


def _what(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "brackets are nested too deep"
    message = str(error.args[0] if error.args else error).split("\n")[0].strip().rstrip(".")
    if isinstance(error, tokenize.TokenError):
        return f"a bracket or a quotation mark is not closed ({message})"
    if message.startswith("malformed node"):
        return "a value must be a number, a text in quotation marks, a list, None or an @name"
    return message


def _place(error: Exception, texts: list[str], at: list[Line], next_line: int) -> str:
    """Returns where a text is wrong: the line that gin names, or the statement it stopped in."""
    number = getattr(error, "lineno", None)
    if number is None:
        number = next_line
        while number < len(texts) and not texts[number - 1].partition("#")[0].strip():
            number += 1
    return at[min(max(number, 1), len(at)) - 1].place
