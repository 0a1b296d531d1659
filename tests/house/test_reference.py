"""docs/reference matches the output of tools/reference.py, and every field of an input file is documented."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.fields import meanings_of

from paceline.catalog.clusters.files import ClusterFile
from paceline.spec.load import models_of
from paceline.spec.network import Network
from paceline.spec.study import Study

ROOT = Path(__file__).parents[2]
PLAIN = {"name", "kind", "channels", "height", "width"}
"""Fields that need no description beyond their name."""


def test_the_reference_is_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "model", [*models_of(Study), *models_of(ClusterFile), *models_of(Network)], ids=lambda n: n.__name__
)
def test_every_model_and_field_is_documented(model):
    assert model.__doc__
    assert model.__doc__.strip().endswith(".")
    meanings = meanings_of(model)
    undocumented = [name for name in model.model_fields if not meanings.get(name) and name not in PLAIN]
    assert undocumented == []
