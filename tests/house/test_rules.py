"""Rules for source and documents: sizes, exports, imports, README, links."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from paceline.cli import VERBS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "paceline"
MODULES = sorted(path for path in SOURCE.rglob("*.py"))
FRAMEWORKS = {
    "caffe",
    "chainer",
    "chainermn",
    "cntk",
    "deepspeed",
    "horovod",
    "jax",
    "keras",
    "mxnet",
    "paddle",
    "singa",
    "tensorflow",
    "torch",
}


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def complaints(rule: Callable[[Path], Iterator[str]]) -> list[str]:
    """What a rule has against each module: one test reports all of them."""
    return [f"{name_of(path)}: {complaint}" for path in MODULES for complaint in rule(path)]


def test_a_module_is_short_and_has_a_docstring() -> None:
    def rule(path: Path) -> Iterator[str]:
        if not ast.get_docstring(tree(path)):
            yield "a module opens with a docstring"
        if (length := len(path.read_text(encoding="utf-8").splitlines())) > 400:
            yield f"has {length} lines"
        if path.stem in {"utils", "common", "helpers", "core", "misc", "manager", "base"}:
            yield "the name says nothing"

    assert complaints(rule) == []


def test_functions_are_short() -> None:
    def rule(path: Path) -> Iterator[str]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                if length > 45:
                    yield f"{node.name} has {length} lines"
                if node.name.startswith("get_") and node.name not in ("get_command", "get_request"):  # of libraries
                    yield f"{node.name} starts with get_"

    assert complaints(rule) == []


def exports(path: Path) -> list[str] | None:
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def defined_in(path: Path) -> set[str]:
    """Names that a module's own statements bind."""
    names = {node.name for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    lazy = [inner for node in tree(path).body if isinstance(node, ast.If) for inner in node.body]
    for node in [*tree(path).body, *lazy]:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)}
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_exports_are_unique_and_exist() -> None:
    def rule(path: Path) -> Iterator[str]:
        names = exports(path)
        if names is None:
            if path.name not in {"__init__.py", "__main__.py"}:
                yield "a module lists its public names in __all__"
            return
        if len(names) != len(set(names)):
            yield "__all__ repeats a name"
        if missing := set(names) - defined_in(path):
            yield f"__all__ lists what is not defined: {sorted(missing)}"

    assert complaints(rule) == []


def test_frameworks_are_imported_only_in_workers_and_runtime() -> None:
    def rule(path: Path) -> Iterator[str]:
        inside = path.relative_to(SOURCE).parts
        if inside[:2] == ("bench", "frameworks") or inside[0] == "runtime":
            return
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if imported := {name.split(".")[0] for name in names} & FRAMEWORKS:
                yield f"imports {sorted(imported)}"

    assert complaints(rule) == []


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys, paceline.cli as c\n"
        "try: c.program(['--help'], standalone_mode=False)\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'pydantic', 'duckdb', 'pyarrow', 'rich', 'scipy'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_and_json_output(verb: str) -> None:
    command = importlib.import_module(f"paceline.cli.{verb.replace('-', '_')}").command
    parts = list(command.commands.values()) if hasattr(command, "commands") else [command]
    assert any("Example" in (part.help or "") for part in [command, *parts])
    for part in parts:
        assert any("--json" in option.opts for option in part.params), part.name
        without = [one.name for one in part.params if isinstance(one, click.Option) and not one.help]
        assert not without, f"{part.name}: options without a help text: {without}"


def test_readme_is_short_and_its_commands_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"^ +make ([a-z-]+)", text, flags=re.M)) <= targets
    assert set(re.findall(r"`paceline ([a-z-]+)", text)) <= set(VERBS)
    assert "@@" not in text


def test_links_between_documents_resolve() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_verb_parses_calls_one_function_and_shows() -> None:
    """At most 40 lines of code per command: docstrings, imports, `__all__` and blank lines are not counted."""
    long = {}
    for verb in VERBS:
        path = SOURCE / "cli" / f"{verb.replace('-', '_')}.py"
        if code_lines(path) > 40 * num_commands(path):
            long[verb] = code_lines(path)
    assert long == {}


def num_commands(path: Path) -> int:
    """Functions that click calls: a group's own and those of its commands."""
    functions = [node for node in tree(path).body if isinstance(node, ast.FunctionDef)]
    decorators = [
        [ast.unparse(item.func) for item in node.decorator_list if isinstance(item, ast.Call)] for node in functions
    ]
    return sum(any(name.endswith((".command", ".group")) for name in names) for names in decorators)


def code_lines(path: Path) -> int:
    """Lines of a module that are code of its own."""
    body, text = tree(path), path.read_text(encoding="utf-8").splitlines()
    skipped: set[int] = set()
    for node in ast.walk(body):
        documented = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        listed = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if documented or listed or isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(bool(line.strip()) for number, line in enumerate(text, start=1) if number not in skipped)
