"""Every mutated points file is read, or refused with a PacelineError."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import PacelineError
from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.points import read_points
from paceline.model.measured.prior import shipped_population

GOOD = """network,strategy,device,link,devices_per_host,devices,batch_per_device,samples_per_s,spread
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,1,64,253.1,1.2
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,4,64,1015,
"My, net",BSP-PS,,,,8,,1796,
"My, net",BSP-PS,,,,2,,500,3
"""
PIECES = st.sampled_from(["", ",", "\n", '"', "0", "-1", "1e308", "nan", "inf", "é", "\x00", "devices", "64", "1e-300"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 6), PIECES), min_size=1, max_size=4))
def test_any_points_file_is_read_or_refused(tmp_path, edits):
    text = GOOD
    for place, cut, piece in edits:
        text = text[:place] + piece + text[place + cut :]
    path = tmp_path / "points.csv"
    path.write_text(text, encoding="utf-8")
    try:
        curves = extrapolate_series(read_points(path), (1, 16), population=shipped_population())
    except PacelineError:
        return
    for curve in curves:
        for prediction in curve.predictions:
            low, high = prediction.samples_per_s.interval_90
            assert 0 < low <= prediction.samples_per_s.value <= high
