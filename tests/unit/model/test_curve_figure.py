"""The picture of a prediction from measured points shows what was measured, and does not call the prediction so."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import api
from paceline.report.figures.predictions import term_bars, throughput_curves


def test_points_stand_beside_their_prediction(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("gpus,images_per_sec\n1,360\n2,700\n4,1380\n8,2650\n")
    curves = api.extrapolate(points, at=[16, 32]).curves
    figure = throughput_curves(curves, ["measured points"])
    lines = {trace["name"]: trace for trace in figure["data"] if "name" in trace}
    assert list(lines) == ["ideal", "predicted", "measured"]
    assert (lines["measured"]["x"], lines["measured"]["y"]) == ([1, 2, 4, 8], [360, 700, 1380, 2650])
    assert lines["predicted"]["x"] == [16, 32]
    assert lines["ideal"]["x"] == [1, 2, 4, 8, 16, 32]
    first, *_, last = curves[0].predictions
    assert lines["ideal"]["y"][-1] == pytest.approx(last.samples_per_s.value / last.efficiency)
    each = first.samples_per_s.value / first.efficiency / 16
    assert lines["ideal"]["y"][:4] == pytest.approx([each * count for count in (1, 2, 4, 8)])


def test_without_points_the_curve_keeps_its_name() -> None:
    curves = api.predict("resnet50", cluster="dgx-1", batch=64, devices=[1, 8]).curves
    names = [trace["name"] for trace in throughput_curves(curves, ["pytorch/ddp"])["data"] if "name" in trace]
    assert names == ["ideal", "pytorch/ddp"]


@pytest.mark.parametrize(("count", "shown"), [(3, 3), (8, 8), (20, 2)])
def test_times_over_bars_do_not_overlap(count: int, shown: int) -> None:
    answer = api.predict("lenet", cluster="t4 over 10gbe x 32", batch=64, devices=range(1, count + 1))
    texts = term_bars(answer.curves, ["pytorch"])["data"][-1]["text"]
    assert len([text for text in texts if text]) == shown
    assert max(len(line) for text in texts for line in text.split("<br>")) <= (7 if count <= 5 else 4)
