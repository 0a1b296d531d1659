"""The commands of docs/how-to/predict.md run as they stand, with the points that the page shows."""

import json
import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "predict.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    paceline (.+)$", PAGE.replace("\\\n", " "), flags=re.MULTILINE)
POINTS = "\n".join(re.findall(r"^    (network,.*|ResNet-50,.*)$", PAGE, flags=re.MULTILINE)) + "\n"

ITERATIONS = "\n".join(re.findall(r"^    (hidden,.*|8192,.*)$", PAGE, flags=re.MULTILINE)) + "\n"


@pytest.mark.parametrize(
    "command",
    [one for one in COMMANDS if one.startswith(("plan", "predict", "whatif", "simulate")) and "my-" not in one],
)
def test_a_command_of_the_page_runs(command, paceline, tmp_path):
    points = tmp_path / "points.csv"
    points.write_text(POINTS, encoding="utf-8")
    words = shlex.split(command.partition(" #")[0].replace("points.csv", str(points)))
    words = [str(tmp_path / word) if word.endswith(".svg") else word for word in words]
    assert "samples/s" in paceline(*words)


def test_iterations_of_the_page_predict_another_model(paceline, tmp_path):
    (path := tmp_path / "iterations.csv").write_text(ITERATIONS, encoding="utf-8")
    (command,) = (one for one in COMMANDS if "iterations.csv" in one)
    found = json.loads(paceline(*shlex.split(command.replace("iterations.csv", str(path))), "--json"))
    low, high = found["interval_90"]
    assert low < 0.8996 < high
    assert found["step_s"] == pytest.approx(0.8996, rel=0.05)


def test_the_page_shows_commands():
    assert len(COMMANDS) >= 6
