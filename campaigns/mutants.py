"""Small wrong changes of a Python module: what a test that notices nothing would let pass.

Changed are comparisons, arithmetic, constants and branches; docstrings, texts, annotations and
decorators are left alone. A module's mutants are numbered in the order of its text, so that a
number and the module say which one is meant.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_comment", "format_spec"}


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        file: the module's path, from the project's root.
        number: of the change among the module's, from 0.
        line: where it is, from 1.
        lines: the first and the last line of its statement, of a compound one of its head.
        kind: "comparison", "arithmetic", "constant" or "branch".
        before: the expression as it stands.
        after: what it becomes.
    """

    file: str
    number: int
    line: int
    lines: tuple[int, int]
    kind: str
    before: str
    after: str


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Returns all mutants of a module."""
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    return [
        Mutant(file, number, place.lineno, lines, kind, ast.unparse(place), ast.unparse(new))
        for number, (kind, place, lines, new, _) in enumerate(_changes(tree))
    ]


def mutated(root: Path, mutant: Mutant) -> str:
    """Returns the module's text with the change made."""
    tree = ast.parse((root / mutant.file).read_text(encoding="utf-8"))
    for number, (*_, new, put) in enumerate(_changes(tree)):
        if number == mutant.number:
            put(new)
            return ast.unparse(ast.fix_missing_locations(tree))
    raise ValueError(f"{mutant.file} must have a mutant {mutant.number}. It has fewer.")


def _changes(tree: ast.AST) -> Iterator[tuple]:
    """Yields kind, node, lines, what it becomes, and a function that puts that in its place."""
    for parent, lines in _walked(tree):
        for field, value in ast.iter_fields(parent):
            if field in _SKIPPED_FIELDS:
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST):
                    continue
                place = index if isinstance(value, list) else None
                own = (node.lineno, node.end_lineno) if isinstance(node, ast.stmt) else lines
                for kind, new in _variants(node):
                    yield kind, node, own, new, _putter(parent, field, place)
                if _is_condition(parent, field) and not _negated_elsewhere(node):
                    negation = ast.UnaryOp(ast.Not(), copy.deepcopy(node))
                    yield "branch", node, lines, negation, _putter(parent, field, place)


def _walked(tree: ast.AST) -> Iterator[tuple[ast.AST, tuple[int, int]]]:
    """Yields what may hold a change, in the order of the text, with the lines of its statement."""
    waiting = [(tree, (1, 1))]
    while waiting:
        node, lines = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            lines = (node.lineno, max(node.lineno, last))
        yield node, lines
        below = [
            (child, lines)
            for field, value in ast.iter_fields(node)
            if field not in _SKIPPED_FIELDS
            for child in (value if isinstance(value, list) else [value])
            if isinstance(child, ast.AST)
        ]
        waiting.extend(reversed(below))


def _putter(parent: ast.AST, field: str, index: int | None):
    def put(new: ast.AST) -> None:
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return put


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:
                new = copy.deepcopy(node)
                new.ops[index] = other()
                yield "comparison", new
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        new = copy.deepcopy(node)
        new.op = _ARITHMETIC[type(node.op)]()
        yield "arithmetic", new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "arithmetic", copy.deepcopy(node.operand)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "branch", copy.deepcopy(node.operand)
    elif isinstance(node, ast.BoolOp):
        new = copy.deepcopy(node)
        new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "branch", new
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value = node.value
        if type(value) is bool:
            other = not value
        elif type(value) is int:
            other = value + 1
        else:
            other = 2 * value if value else 1.0
        yield "constant", ast.copy_location(ast.Constant(other), node)
    elif isinstance(node, ast.Break):
        yield "branch", ast.copy_location(ast.Continue(), node)
    elif isinstance(node, ast.Continue):
        yield "branch", ast.copy_location(ast.Break(), node)


def _is_condition(parent: ast.AST, field: str) -> bool:
    if isinstance(parent, ast.If | ast.IfExp | ast.While):
        return field == "test"
    return isinstance(parent, ast.comprehension) and field == "ifs"


def _negated_elsewhere(node: ast.AST) -> bool:
    """Whether the negation of a condition is among its own variants."""
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
