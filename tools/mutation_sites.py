"""Semantic mutations of a Python file: every place where one small change gives another program.

Comparison flipped, bound moved by one, `and` for `or`, term or factor dropped, sign changed, `min` for `max`, constant
changed, default of a parameter changed, two arguments exchanged, condition negated, branches swapped, statement or
error dropped, function left early. Docstrings, annotations, decorators and the text of errors stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from difflib import unified_diff
from itertools import takewhile
from pathlib import Path

__all__ = ["Mutation", "by_hand", "mark_functions", "mutations_of"]

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
MOVED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
            "argmax": "argmin", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}  # fmt: skip
SILENT = {"debug", "info", "warning", "error", "exception", "say", "log", "print"}
"""Calls that only tell somebody something; an argument of theirs is a text for people."""


@dataclass(frozen=True)
class Mutation:
    """One change: where, what, and the text of the whole file after it."""

    path: Path
    function: str
    line: int
    kind: str
    before: str
    after: str

    def diff(self) -> str:
        """Changed lines only."""
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))

    def compiles(self) -> bool:
        """Whether the changed file is Python."""
        try:
            compile(self.after, "mutant", "exec")
        except SyntaxError:
            return False
        return True

    @property
    def key(self) -> str:
        """Names the mutation wherever its lines have moved to."""
        return f"{self.path.as_posix()}::{self.function}: {' '.join(self.diff().split())}"


def by_hand(path: Path, before: str, old: str, new: str) -> Mutation:
    """The mutation that writes `new` in place of `old`, which is there once."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    line = before[: before.index(old) + same].count("\n") + 1
    function = _function_at(_lines_of_functions(before), line)
    return Mutation(path, function, line, "by hand", before, before.replace(old, new))


def mark_functions(tree: ast.Module, key: str) -> ast.Module:
    """Add to every function a first statement that notes its name: `__called__(key + name)`."""
    for name, node in _functions(tree, ""):
        note = ast.parse(f"__called__({key + name!r})").body[0]
        node.body.insert(1 if ast.get_docstring(node, clean=False) is not None else 0, note)
        for part in ast.walk(note):
            ast.copy_location(part, node)
    return tree


def _lines_of_functions(source: str) -> list[tuple[str, int, int]]:
    """Qualified name, first and last line of the body of every function."""
    return [(name, node.body[0].lineno, node.end_lineno or 0) for name, node in _functions(ast.parse(source), "")]


def _function_at(functions: list[tuple[str, int, int]], line: int) -> str:
    """The innermost function around a line; empty for the module's own lines."""
    around = [(last - first, name) for name, first, last in functions if first <= line <= last]
    return min(around)[1] if around else ""


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def mutations_of(path: Path, source: str) -> list[Mutation]:
    """Every mutation of a file, in order of lines."""
    functions = _lines_of_functions(source)
    found = []
    for node in _mutable(ast.parse(source)):
        for kind, changed in _changes(node):
            text = _replaced(source, node, changed)
            if text != source:
                line: int = node.lineno  # type: ignore[attr-defined]
                found.append(Mutation(path, _function_at(functions, line), line, kind, source, text))
    return sorted(found, key=lambda mutation: (mutation.line, mutation.after))


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that decide what the program computes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise):
            yield child
        if _is_kept(child):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for default in (*child.args.defaults, *child.args.kw_defaults):
                yield from _under(default)
            for part in child.body:
                if part is child.body[-1] and isinstance(part, ast.Return):
                    yield from _mutable(part)  # without its last return a function ends as well
                    continue
                yield part
                yield from _mutable(part)
            continue
        if isinstance(child, ast.ClassDef):
            for part in child.body:
                yield from _mutable(ast.Module([part], []))
            continue
        if isinstance(child, ast.AnnAssign):
            yield from _under(child.value)
            continue
        if isinstance(child, ast.arg | ast.Assign) and _is_declaration(child):
            continue
        yield child
        yield from _mutable(child)


def _is_kept(node: ast.AST) -> bool:
    """Whether nothing inside is changed: what only tells somebody something, and assertions (`strict` of zip too)."""
    if isinstance(node, ast.Call):
        return _name(node.func) in SILENT
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr)


def _under(node: ast.AST | None) -> Iterator[ast.AST]:
    if node is not None:
        yield node
        yield from _mutable(node)


def _is_declaration(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return isinstance(node, ast.arg) or any(isinstance(t, ast.Name) and t.id in ("__all__", "_") for t in targets)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[op], comparators=[right]):
            yield from _comparison(node, op, right)
        case ast.BoolOp():
            swapped = deepcopy(node)
            swapped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", swapped
            yield "condition dropped", node.values[0]
        case ast.BinOp() if not _is_text(node):
            yield from _arithmetic(node)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "sign" if isinstance(node.op, ast.USub) else "negation", node.operand
        case ast.Call() if _name(node.func) in EXTREMES and node.args:
            yield "min/max", _renamed(node, EXTREMES[_name(node.func)])
        case ast.Call(args=[ast.Name() as first, ast.Name() as second, *rest]) if first.id != second.id:
            yield "arguments swapped", ast.Call(node.func, [second, first, *rest], node.keywords)
        case ast.Constant() if isinstance(node.value, bool | int | float):
            yield "constant", ast.Constant(_another(node.value))
        case ast.IfExp():
            yield "branches swapped", ast.IfExp(node.test, node.orelse, node.body)
        case ast.stmt():
            yield from _statement(node)


def _statement(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()):
            changed = deepcopy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield "negation", changed
        case ast.AugAssign() if not _is_text(node):
            yield "statement dropped", ast.Pass()
        case ast.Expr(value=ast.Call(func=func)) if _name(func) not in SILENT:
            yield "statement dropped", ast.Pass()
        case ast.Raise(exc=ast.Call()):
            yield "error dropped", ast.Pass()
        case ast.Return(value=ast.Constant(value=None)) | ast.Return(value=None):
            yield "goes on", ast.Pass()


def _comparison(node: ast.Compare, op: ast.cmpop, right: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    flipped = deepcopy(node)
    flipped.ops = [FLIPPED[type(op)]()]
    yield "comparison flipped", flipped
    if type(op) in MOVED and (_is_count(node.left) or _is_count(right)):
        moved = deepcopy(node)
        moved.ops = [MOVED[type(op)]()]
        yield "off by one", moved


def _is_count(node: ast.expr) -> bool:
    whole = isinstance(node, ast.Constant) and isinstance(node.value, int)
    return whole or (isinstance(node, ast.Call) and _name(node.func) == "len")


def _arithmetic(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    if type(node.op) not in OTHER:
        return
    yield (
        "sign" if isinstance(node.op, ast.Add | ast.Sub) else "operator",
        ast.BinOp(node.left, OTHER[type(node.op)](), node.right),
    )
    yield "term dropped", node.left


def _is_text(node: ast.AST) -> bool:
    """Whether an addition joins texts or lists."""
    literal = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict)
    return any(
        isinstance(part, literal) or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in ast.iter_child_nodes(node)
    )


def _another(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else (value * 2 or 1.0)


def _renamed(node: ast.Call, name: str) -> ast.Call:
    changed = deepcopy(node)
    if isinstance(changed.func, ast.Attribute):
        changed.func.attr = name
    else:
        changed.func = ast.Name(name)
    return changed


def _replaced(source: str, node: ast.AST, changed: ast.AST) -> str:
    """The source with the text of one node exchanged; a condition keeps the lines of its body."""
    if isinstance(node, ast.If):
        node, changed = node.test, changed.test  # type: ignore[attr-defined]
    text = ast.unparse(changed)
    lines = source.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]  # type: ignore[attr-defined]
    wrapped = f"({text})" if isinstance(node, ast.expr) and not isinstance(changed, ast.Constant | ast.Name) else text
    return b"".join([*lines[:first], head, wrapped.encode(), tail, *lines[last + 1 :]]).decode()
