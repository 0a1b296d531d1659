import numpy as np
import pytest

from paceline.errors import InputError, Unsupported
from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.names import link_kind, parameters_of, strategy_kind
from paceline.model.measured.points import read_points
from paceline.model.measured.population import shipped_population

HEAD = "network,strategy,device,link,devices_per_host,devices,batch_per_device,samples_per_s,spread\n"
ROW = "ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,{},64,{},\n"
POINTS = {1: 253.1, 4: 1015, 8: 1796, 16: 3147}


def write(tmp_path, rows, head=HEAD):
    path = tmp_path / "points.csv"
    path.write_text(head + "".join(rows))
    return path


def predict(path, at=(32,)):
    return extrapolate_series(read_points(path), at, population=shipped_population())


def test_names_are_what_people_write():
    assert parameters_of("ResNet-50 v1.5") == pytest.approx(25.6e6, rel=0.01)
    assert parameters_of("BERT_Large") == 340e6
    assert parameters_of("inception3") == pytest.approx(23.8e6, rel=0.02)
    assert parameters_of("MyNet") is None
    assert link_kind("10GbE with TCP/IP").bandwidth == 1.25e9
    assert link_kind("10GbE with TCP/IP").through_kernel
    assert not link_kind("100GbIB with RDMA").through_kernel
    assert link_kind("4x100Gb IB").bandwidth == 50e9
    assert link_kind("carrier pigeon").bandwidth is None
    assert strategy_kind("PyTorch 1.4 WFBP-PS").servers
    assert strategy_kind("PyTorch 1.4 BSP-A2A").overlap is False
    assert strategy_kind("NGC PyTorch").overlap is None
    assert strategy_kind("MG-WFBP").overlap is True


def test_a_larger_count_is_predicted_with_terms_and_intervals(tmp_path):
    (curve,) = predict(write(tmp_path, [ROW.format(n, v) for n, v in POINTS.items()]), (32, 64))
    at32, at64 = curve.predictions
    assert 4000 < at32.samples_per_s.value < 6297
    assert at64.samples_per_s.half_width > at32.samples_per_s.half_width
    assert sum(at32.terms.values()) == pytest.approx(at32.step_s.value)
    assert at32.step_s.value == pytest.approx(64 * 32 / at32.samples_per_s.value)
    assert at32.terms["aggregate"] > 0


def test_measured_points_are_met(tmp_path):
    (curve,) = predict(write(tmp_path, [ROW.format(n, v) for n, v in POINTS.items()]), tuple(POINTS))
    for prediction in curve.predictions:
        assert prediction.samples_per_s.value == pytest.approx(POINTS[prediction.devices], rel=0.03)


def test_order_and_repetition_do_not_matter(tmp_path):
    rows = [ROW.format(n, v) for n, v in POINTS.items()]
    (one,) = predict(write(tmp_path, rows))
    (other,) = predict(write(tmp_path, [*reversed(rows), rows[0], "\n"]))
    assert one.predictions == other.predictions


def test_two_points_are_enough_but_less_sure(tmp_path):
    few = predict(write(tmp_path, [ROW.format(n, POINTS[n]) for n in (1, 4)]))[0].predictions[0]
    many = predict(write(tmp_path, [ROW.format(n, v) for n, v in POINTS.items()]))[0].predictions[0]
    assert few.samples_per_s.half_width > 2 * many.samples_per_s.half_width


def test_unknown_names_are_labels(tmp_path):
    rows = [f"MyNet,my way,my device,my link,4,{n},,{v},\n" for n, v in POINTS.items()]
    (curve,) = predict(write(tmp_path, rows))
    assert curve.predictions[0].samples_per_s.value > POINTS[16]
    assert "label only" in " ".join(curve.basis)


def test_one_point_is_refused_unless_the_file_knows_the_link(tmp_path):
    lonely = "VGG16,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,4,32,400,\n"
    with pytest.raises(Unsupported, match="one point"):
        predict(write(tmp_path, [lonely]))
    rows = [ROW.format(n, v) for n, v in POINTS.items()]
    known, wide = (curve.predictions[0].samples_per_s for curve in predict(write(tmp_path, [*rows, lonely])))
    assert wide.half_width > 2 * known.half_width


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace("devices,", "", 1).replace("samples_per_s", "rate"), "column missing.*samples_per_s"),
        (HEAD.replace("strategy,", ""), "framework or strategy"),
        (HEAD, "holds no points"),
        (HEAD + ROW.format(0, 100), ":2: devices"),
        (HEAD + ROW.format(1.5, 100), "whole number"),
        (HEAD + ROW.format(1, "fast"), ":2: samples_per_s: got 'fast'"),
        (HEAD + ROW.format(1, -3), "samples_per_s"),
        (HEAD + ROW.format(1, ""), "got nothing"),
        ("", "column missing"),
    ],
)
def test_wrong_files_name_the_place(tmp_path, text, words):
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_points(path)


def test_a_stated_spread_widens(tmp_path):
    sure = [f"N,WFBP,D,10GbE,4,{n},64,{v},1\n" for n, v in POINTS.items()]
    unsure = [f"N,WFBP,D,10GbE,4,{n},64,{v},{0.1 * v}\n" for n, v in POINTS.items()]
    widths = [predict(write(tmp_path, rows))[0].predictions[0].samples_per_s.half_width for rows in (sure, unsure)]
    assert widths[1] > 1.3 * widths[0]


def test_the_shipped_prior_is_finite_and_symmetric():
    covariance = shipped_population().covariance
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
