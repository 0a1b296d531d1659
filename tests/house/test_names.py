"""One name, one thing: public names are unique, and every environment variable is named in one module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from paceline import variables
from tests.house.test_rules import MODULES, SOURCE, complaints, exports, name_of, tree


def test_no_two_public_things_have_one_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for name in public_names(path):
            places[name].append(name_of(path))
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert shared == {}


def public_names(path: Path) -> Iterator[str]:
    """Classes and functions that a module defines and offers; a plug-in's entry is its kind's, not the module's own."""
    offered = set(exports(path) or ())
    for node in tree(path).body:
        is_public_class = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        is_offered = isinstance(node, ast.FunctionDef) and node.name in offered
        if (is_public_class or is_offered) and not is_plugin_entry(path, node.name):
            yield node.name


def is_plugin_entry(path: Path, name: str) -> bool:
    """Whether a name is one that every plug-in of its kind has to offer."""
    inside = path.relative_to(SOURCE).parts
    verb = inside[0] == "cli" and len(inside) == 2 and name == "command"
    program = name == "main"
    return verb or program


def test_variables_are_named_in_one_module() -> None:
    def rule(path: Path) -> Iterator[str]:
        if path.stem != "variables":
            yield from (f"{text!r}: use paceline.variables" for text in literals(path) if "PACELINE_" in text)

    assert complaints(rule) == []


def literals(path: Path) -> list[str]:
    """Every text in a module's code, its docstrings aside."""
    body = tree(path)
    documented = {
        id(node.value) for node in ast.walk(body) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    constants = [node for node in ast.walk(body) if isinstance(node, ast.Constant) and id(node) not in documented]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_every_variable_is_named_after_its_constant_and_documented() -> None:
    assert set(variables.__all__) == {name for name in vars(variables) if name.isupper()}
    values = [getattr(variables, name) for name in variables.__all__]
    assert len(set(values)) == len(values)
    source = Path(variables.__file__).read_text(encoding="utf-8")
    for name in variables.__all__:
        text = " ".join(source.split(f'\n{name} = "')[1].split('"""')[1].split())
        assert all(f"{part}: " in text for part in ("Default", "Set by", "Read by")), name
