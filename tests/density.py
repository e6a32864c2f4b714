"""How dense the code of each package is; ``python -m tests.density`` writes what it is today.

Density is statements per 1000 lines. `tests/test_layers.py` compares it with
``density.json``, so that it may only fall. Renew the file when a package has become
airier.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import tfasr

PACKAGE = Path(tfasr.__file__).parent
FILE = Path(__file__).with_suffix(".json")
MOST_PARAMETERS = 6  # of a function, without self
MOST_FIELDS = 12  # of a class
_REASON = re.compile(
    r"^ *(args|attributes):$|\b(parameters|arguments|fields)\b",
    re.MULTILINE | re.IGNORECASE,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def densities() -> dict[str, float]:
    """Returns the statements per 1000 lines of each package, and of the modules outside
    of them.
    """
    lines: dict[str, int] = {}
    statements: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else "tfasr"
        count = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        lines[package] = lines.get(package, 0) + len(text.splitlines())
        statements[package] = statements.get(package, 0) + count

    return {
        name: round(1000 * statements[name] / lines[name], 1) for name in sorted(lines)
    }


def unexplained(source: str) -> Iterator[str]:
    """Yields functions and classes with many parameters or fields whose docstring has
    no reason.

    A docstring explains them under "Args:" or "Attributes:", or says in a sentence why
    there are so many parameters, arguments or fields. Those of ``__init__`` may stand
    in the class's docstring.
    """
    tree = ast.parse(source)
    of_class = {
        function: node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for function in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, Function):
            names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            many = (
                sum(name.arg not in ("self", "cls") for name in names) > MOST_PARAMETERS
            )
        elif isinstance(node, ast.ClassDef):
            many = (
                sum(isinstance(line, ast.AnnAssign) for line in node.body) > MOST_FIELDS
            )
        else:
            continue

        documented = [node]
        if node in of_class and node.name == "__init__":
            documented.append(of_class[node])
        texts = (ast.get_docstring(each) or "" for each in documented)
        if many and not any(map(_REASON.search, texts)):
            yield node.name


if __name__ == "__main__":
    FILE.write_text(json.dumps(densities(), indent=1) + "\n")
