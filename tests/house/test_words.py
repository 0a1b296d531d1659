"""The project uses the terms of its glossary: replaced phrases do not return, and the glossary names existing code."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.house.test_rules import MODULES, ROOT, SOURCE, tree

GLOSSARY = ROOT / "docs" / "explanation" / "glossary.md"
REPLACED = {
    r"(fall|falls|fell|falling) silent": "misses the heartbeat timeout",
    r"taken for dead": "declared failed",
    r"strangers?": "unauthenticated peer",
    r"asks? nobody who": "does not authenticate",
    r"signs? of life": "heartbeat",
    r"(come|comes|came|coming) late": "late joiner",
    r"in peace": "exits cleanly",
    r"at (the|one|its) door": "listener",
    r"meeting[ _]points?": "rendezvous, endpoint",
    r"leash": "connection",
    r"so many": "num_steps in num_blocks",
    r"from the computation": "CPU overhead of communication",
    r"ways? of a plan": "candidate strategies",
    r"one's own": "user-defined",
    r"in the eyes of": "as seen by",
    r"front door": "interface",
    r"takes? part no more": "no longer participates",
    r"without a word": "without a message",
    r"stands? beside": "is printed beside",
    r"who may go on": "quorum",
}
"""Phrases by the term that replaces them."""
REPLACED_CLASSES = {"Between", "Door", "Judgement", "Launched", "Noun", "Order", "Patience", "Place", "Proof"}
REPLACED_CLASSES |= {"Seat", "Sharing", "Sign", "Ticket", "Trouble", "Wish", "Workshop"}
TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *MODULES, *(ROOT / "examples").rglob("*.toml")]


@pytest.mark.parametrize("phrase", REPLACED)
def test_replaced_phrases_do_not_return(phrase: str) -> None:
    pattern = re.compile(r"\b" + phrase.replace(" ", r"\s+") + r"\b", flags=re.I)
    hits = [str(path.relative_to(ROOT)) for path in TEXTS if pattern.search(_text(path))]
    assert hits == [], f"write: {REPLACED[phrase]}"


def _text(path: Path) -> str:
    """The text of a file without the file names of links."""
    return re.sub(r"\]\([^)]*\)", "]", path.read_text(encoding="utf-8"))


def test_replaced_classes_do_not_return() -> None:
    defined = {node.name for path in MODULES for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)}
    assert defined & REPLACED_CLASSES == set()


def test_the_glossary_names_existing_code() -> None:
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (`.+) \|$", GLOSSARY.read_text(encoding="utf-8"), flags=re.M)
    assert len(rows) > 50
    classes = _classes_by_package()
    for row in rows:
        names = set(re.findall(r"`(\w+)`", row))
        packages = names & set(classes)
        assert packages, f"{row}: no such package"
        assert names - packages <= {name for package in packages for name in classes[package]}, row


def _classes_by_package() -> dict[str, set[str]]:
    classes: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        package = path.relative_to(SOURCE).parts[0]
        classes[package] |= {node.name for node in tree(path).body if isinstance(node, ast.ClassDef)}
    return classes


NUMBERS = ("eight", "nine", "ten", "eleven", "twelve")


def test_the_walks_of_the_architecture_have_at_most_twelve_files_none_of_them_twice() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walks = re.findall(r"^## How [^\n]+: (\w+) files$(.+?)(?=^## )", text, flags=re.M | re.S)
    assert len(walks) == 4
    for number, walk in walks:
        files = re.findall(r"`([\w/]+\.py)`", walk)
        assert (number, len(files)) == (NUMBERS[len(set(files)) - 8], len(set(files)))
        assert all((SOURCE / file).is_file() for file in files)


def test_paths_in_documents_exist() -> None:
    quoting = {"frameworks.md", "hardware.md"}  # these pages cite files of other projects
    pages = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.name not in quoting]
    packages = "|".join(path.name for path in SOURCE.iterdir() if path.is_dir())
    own = re.compile(rf"`((?:tests|benchmarks|examples|tools|docs|{packages})/[\w./-]*\w)/?(?: [^`]*)?`")
    missing = {f"{page.name}: {name}" for page in pages for name in own.findall(_text(page)) if not _exists(name)}
    assert missing == set()


def _exists(name: str) -> bool:
    if name.startswith("benchmarks/results"):  # written by `make benchmarks`
        return True
    return any(path.exists() or path.with_suffix(".py").exists() for path in (ROOT / name, SOURCE / name))
