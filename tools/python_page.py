"""The Python reference: signatures and docstrings of what `paceline` offers, read from the source, not imported."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "paceline"
RESULTS = {
    "predict": "PredictionTable",
    "extrapolate": "PredictionTable",
    "plan": "PlanTable",
    "explain": "FindingTable",
    "load_runs": "RunTable",
    "load_trace": "SpanTable",
}
ORDER = (
    "predict",
    "extrapolate",
    "plan",
    "explain",
    "load_runs",
    "load_trace",
    "capture",
    "outline",
    "watch",
    "join",
    "Settings",
)
HOMES = {"watch": "integrations/watching.py", "join": "runtime/pace.py", "Settings": "runtime/settings.py"}


def python_lines() -> list[str]:
    """Every name of the front door, then the results."""
    intro = (
        "`import paceline` loads nothing heavy; a name is loaded on first use. Every result prints as a small table, "
        "in notebooks as HTML, and has `.records()` and `.to_pandas()` (`pip install 'paceline[pandas]'`)."
    )
    lines = [intro, ""]
    for name in ORDER:
        lines += _section(_definition(HOMES.get(name, "api.py"), name))
    lines += ["## Results", ""]
    for name in dict.fromkeys(RESULTS.values()):
        lines += _result(_definition("report/frames.py", name))
    return lines


def _definition(file: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    body = ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
    return next(node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)


def _section(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    head = _signature(node) if isinstance(node, ast.FunctionDef) else f"{node.name}(...)"
    fields = _fields(node) if isinstance(node, ast.ClassDef) else []
    return [f"## {node.name}", "", "```python", head, "```", "", *_document(node), *fields]


def _signature(node: ast.FunctionDef) -> str:
    """One line, or one argument per line where it is long."""
    source = ast.unparse(node.args).replace("File", "Path | str")
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({source}){returned}"
    if len(line) <= 100:
        return line
    arguments = ast.parse(f"def f({source}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    return "\n".join([f"{node.name}(", *(f"    {one}," for one in _arguments(arguments.args)), f"){returned}"])


def _arguments(args: ast.arguments) -> list[str]:
    plain = [_argument(arg, default) for arg, default in zip(args.args, _padded(args), strict=True)]
    marker = [f"*{_argument(args.vararg, None)}"] if args.vararg else ["*"] if args.kwonlyargs else []
    named = [_argument(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return [*plain, *marker, *named]


def _padded(args: ast.arguments) -> list[ast.expr | None]:
    return [*[None] * (len(args.args) - len(args.defaults)), *args.defaults]


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {_type(arg.annotation)}" if arg.annotation else ""
    return f"{arg.arg}{annotation}" + (f" = {ast.unparse(default)}" if default is not None else "")


def _document(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """The docstring as Markdown: examples become blocks of code."""
    lines: list[str] = []
    inside = False
    for line in (ast.get_docstring(node) or "").splitlines():
        begins = line.startswith(">>>") and not inside
        ends = inside and not line.strip()
        lines += ["```python"] if begins else ["```"] if ends else []
        inside = (inside or begins) and not ends
        lines.append(line)
    return [*lines, *(["```"] if inside else []), ""]


def _fields(node: ast.ClassDef) -> list[str]:
    rows = [
        f"| `{field.target.id}` | `{_type(field.annotation).replace('|', 'or')}` | {_text(after)} |"
        for field, after in zip(node.body, [*node.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    ]
    return ["| field | type | meaning |", "|---|---|---|", *rows, ""]


def _type(annotation: ast.expr) -> str:
    return ast.unparse(annotation).replace("File", "Path | str")


def _text(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return " ".join(str(node.value.value).split()) if is_text else ""  # type: ignore[union-attr]


def _result(node: ast.ClassDef) -> list[str]:
    makers = ", ".join(f"`{name}`" for name, kind in RESULTS.items() if kind == node.name)
    lines = [f"### {node.name}", "", f"{_text(node.body[0])} From {makers}.", ""]
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            lines.append(f"- `{ast.unparse(field.target)}`: `{ast.unparse(field.annotation)}`. {_text(after)}".rstrip())
        if isinstance(field, ast.FunctionDef) and not field.name.startswith("_") and field.name != "shown":
            call = "" if field.decorator_list else "()"
            lines.append(f"- `{field.name}{call}`: {_text(field.body[0])}")
    return [*lines, ""]
