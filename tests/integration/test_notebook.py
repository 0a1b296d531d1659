"""The example notebook runs from top to bottom on stored runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.made import Made, write

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "stored_runs.ipynb"


@pytest.mark.filterwarnings("ignore")
def test_the_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [Made(ranks=1), Made(ranks=2, aggregate=0.03)])
    monkeypatch.setenv("PACELINE_STORE", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = notebook.cells[-1]["outputs"][0]["text"]
    assert "From 1 to 2 ranks lenet becomes" in printed
