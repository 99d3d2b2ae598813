"""The faults that a file can have, one at a time."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_OPPOSITE = [
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("clamp_min", "clamp_max"),
    ("clamp_min_", "clamp_max_"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("new_zeros", "new_ones"),
    ("zeros_like", "ones_like"),
]
NAMES = {a: b for left, right in _OPPOSITE for a, b in ((left, right), (right, left))}


@dataclass(frozen=True)
class Mutant:
    """One fault: the `change`-th of those that the node at position `node` of `ast.walk` can have."""

    line: int
    last_line: int  # of what is changed
    what: str  # before → after
    node: int
    change: int


def mutants(source: str) -> list[Mutant]:
    """All faults of a file, in the order of its lines.

    Not touched: types, decorators, docstrings and other strings, error messages, and assertions, which the library uses
    to tell a type checker what it knows.
    """
    tree = ast.parse(source)
    order = {id(node): position for position, node in enumerate(ast.walk(tree))}
    found = []
    for node in _code(tree):
        for change, (site, after) in enumerate(_changes(node)):
            what = f"{_short(site)} → {_short(after)}"
            found.append(Mutant(site.lineno, site.end_lineno or site.lineno, what, order[id(node)], change))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.node, mutant.change))


def mutate(source: str, mutant: Mutant) -> ast.Module:
    """The file with that fault; its line numbers stay."""
    tree = ast.parse(source)
    target = list(ast.walk(tree))[mutant.node]
    _, after = list(_changes(target))[mutant.change]
    _Replace(target, after).visit(tree)
    return ast.fix_missing_locations(tree)


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, after: ast.AST):
        self.target, self.after = target, after

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.target:
            return ast.copy_location(self.after, node)
        return super().visit(node)  # type: ignore[no-any-return]


def _code(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """The statements and expressions that do something."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                continue
            if isinstance(child, ast.BinOp) and _is_union(child):
                continue
            if isinstance(child, ast.stmt | ast.expr):
                yield child
            yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Every fault of one node: the node as it is, and what takes its place."""
    if isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[position] = COMPARISONS[type(operator)]()
            yield node, changed
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        changed_operation = copy.deepcopy(node)
        changed_operation.op = OPERATORS[type(node.op)]()
        yield node, changed_operation
    elif isinstance(node, ast.BoolOp):
        changed_bool = copy.deepcopy(node)
        changed_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, changed_bool
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield node, copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant):
        yield from ((node, ast.Constant(value)) for value in _other_constants(node.value))
    elif isinstance(node, ast.Call):
        yield from _changes_of_call(node)
    elif isinstance(node, ast.IfExp | ast.If | ast.While) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        negated = copy.copy(node)
        negated.test = ast.UnaryOp(ast.Not(), node.test)
        yield node, negated
    elif isinstance(node, ast.Return) and not _is_none(node.value):
        yield node, ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, ast.Pass()


def _other_constants(value: object) -> list[bool | int | float]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 2 if value else 1.0]
    return []


def _changes_of_call(node: ast.Call) -> Iterator[tuple[ast.expr, ast.expr]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in NAMES:
        return
    changed = copy.deepcopy(node)
    if isinstance(changed.func, ast.Attribute):
        changed.func.attr = NAMES[name]
    elif isinstance(changed.func, ast.Name):
        changed.func.id = NAMES[name]
    yield node, changed


def _is_union(node: ast.BinOp) -> bool:
    """Whether `a | b` is of types: to break it breaks the import, which says nothing of the tests."""
    return isinstance(node.op, ast.BitOr) and any(_is_type(side) for side in (node.left, node.right))


def _is_type(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Subscript):
        return _is_type(node.value)
    if isinstance(node, ast.BinOp):
        return _is_union(node)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name[:1].isupper() or name in ("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _short(node: ast.expr | ast.stmt, length: int = 60) -> str:
    text = ast.unparse(node)
    text = text.splitlines()[0] if isinstance(node, ast.If | ast.While) else " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
