"""Rules for source and documents: sizes, exports, imports, README, links."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

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


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_short_and_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "a module opens with a docstring"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert path.stem not in {"utils", "common", "helpers", "core", "misc", "manager", "base"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 45, f"{node.name} has {length} lines"
            assert not node.name.startswith("get_") or node.name == "get_command", node.name


def exports(path: Path) -> list[str] | None:
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_exports_are_sorted_and_exist(path: Path) -> None:
    names = exports(path)
    if names is None:
        assert path.name in {"__init__.py", "__main__.py"}, "a module lists its public names in __all__"
        return
    defined = {node.name for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert len(names) == len(set(names))
    for node in tree(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)}
        if isinstance(node, ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
    assert set(names) <= defined


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_frameworks_are_imported_only_in_workers_and_runtime(path: Path) -> None:
    inside = path.relative_to(SOURCE).parts
    if inside[:2] == ("bench", "frameworks") or inside[0] == "runtime":
        return
    for node in ast.walk(tree(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & FRAMEWORKS


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
