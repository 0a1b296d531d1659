"""Fixtures: a browser, and a report of real PyTorch runs that are measured in this session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
STUDY = """
name = "pages"
title = "LeNet on one and two processes"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [1, 2]
batch = [16]

[[strategy]]
name = "default"

[[strategy]]
name = "after-backward"
overlap = false

[protocol]
launches = 2
max_launches = 2
warmup = 2
steps = 8
launch_budget = "1 s"
phase_steps = 3
threads = 1
width = 0.5
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser comes from a Debian package."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.full)


@dataclass(frozen=True)
class Written:
    """A report page, the store it was generated from, and the output of the command."""

    page: Path
    store: Path
    printed: str


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, pytorch: Path) -> Written:
    folder = tmp_path_factory.mktemp("pages")
    store = folder / "results"
    (folder / "study.toml").write_text(STUDY)
    command = str(Path(sys.executable).parent / "paceline")
    env = {**os.environ, "PACELINE_STORE": str(store)}
    subprocess.run([command, "run", str(folder / "study.toml")], env=env, check=True, capture_output=True, timeout=280)
    page = folder / "page.html"
    done = subprocess.run(
        [command, "report", "pages", "-o", str(page)], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    return Written(page, store, done.stdout)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass(frozen=True)
class Opened:
    """An open page, and its console messages, script errors and network requests."""

    page: Page
    problems: list[str]


@pytest.fixture
def opened(browser: Browser, written: Written) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "blob:", "data:")) else problems.append(request.url),
    )
    page.goto(written.page.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    yield Opened(page, problems)
    context.close()
