from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InputError, Unsupported
from paceline.model.measured.discrepancy import COEFFICIENTS, PRIOR, WIDEST, Doubt, fit_discrepancy, interval
from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.fit import NUM_DRAWS
from paceline.model.measured.forecast import posteriors
from paceline.model.measured.forms import closed_forms, power_law, slope_of, straight_line
from paceline.model.measured.names import every_pair_linked, link_kind, parameters_of, strategy_kind
from paceline.model.measured.points import read_points
from paceline.model.measured.prior import shipped_population
from paceline.model.validation import origins
from paceline.model.validation.campaigns import published_series

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


def test_repetitions_that_differ_are_a_spread(tmp_path):
    rows = ["1,100,\n", "2,180,3\n", "2,200,3\n", "2,190,3\n", "4,360,\n", "4,370,90\n"]
    (series,) = read_points(write(tmp_path, rows, head="gpus,img/s,spread\n"))
    assert series.samples_per_s.tolist() == [100, 190, 365]
    assert series.spread == pytest.approx([0, 10 / 190, 90 / 365])


@pytest.mark.parametrize(
    ("rows", "hosts", "per_host"),
    [
        (["4,100,1,\n", "8,190,1,\n", "16,370,1,\n"], [1, 1, 1], 16),  # one host held all 16
        (["2,100,2,8\n", "4,190,4,8\n", "8,370,8,8\n"], [2, 4, 8], 8),  # hosts that are not full
        (["1,100,1,\n", "2,190,2,\n", "4,370,4,\n"], [1, 2, 4], 1),
        (["4,100,1,\n", "8,190,,\n", "16,370,,\n"], [1, 1, 2], 8),
    ],
)
def test_hosts_are_those_that_are_stated(tmp_path, rows, hosts, per_host):
    (series,) = read_points(write(tmp_path, rows, head="gpus,img/s,hosts,devices_per_host\n"))
    assert (series.hosts.tolist(), series.per_host) == (hosts, per_host)


def test_one_count_on_different_hosts_is_two_series(tmp_path):
    rows = ["4,100,1\n", "4,90,2\n", "8,150,2\n"]
    with pytest.raises(InputError, match="4 devices ran on 1 and on 2 hosts"):
        read_points(write(tmp_path, rows, head="gpus,img/s,hosts\n"))


def test_two_points_are_enough_but_less_sure(tmp_path):
    few = predict(write(tmp_path, [ROW.format(n, POINTS[n]) for n in (1, 4)]))[0].predictions[0]
    many = predict(write(tmp_path, [ROW.format(n, v) for n, v in POINTS.items()]))[0].predictions[0]
    assert few.samples_per_s.half_width > 1.5 * many.samples_per_s.half_width


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


def test_one_point_goes_on_as_others_over_its_link_do(tmp_path):
    lonely = "VGG16,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,4,32,400,\n"
    rates = []
    for kept in (1.0, 0.25):
        rows = [ROW.format(n, 253 * n * (kept if n > 4 else 1)) for n in POINTS]
        rates.append(predict(write(tmp_path, [*rows, lonely]))[1].predictions[0].samples_per_s.value)
    assert rates[1] < 0.97 * rates[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace("samples_per_s", "speed"), "column missing: samples_per_s"),
        (HEAD.replace(",devices,", ","), "column missing: devices"),
        (HEAD + ROW.format(1, '"350,5"'), "'350,5', expected a number without commas"),
        ("nodes,img/s\n1,100\n2,190\n", "hosts need devices_per_host"),
        ("gpus,step_time_ms\n1,100\n2,190\n", "time of a step needs batch_per_device"),
        ("gpus,batch,step_time_ms\n1,,100\n2,64,190\n", ":2: batch_per_device: got nothing"),
        (HEAD + ROW.format(1, '"2350,5"'), "decimals have a point: 2350.5; thousands have nothing: 23505"),
        (HEAD + ROW.format(1, '"1.350,5"'), r"write 1350\.5\)"),
        ("devices,hosts,devices_per_host,samples_per_s\n16,1,8,100\n", "16 devices ran on 1 hosts"),
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


def test_two_plain_columns_are_enough_and_what_is_assumed_is_named(tmp_path):
    path = write(tmp_path, ["1,100\n", "2,196\n", "4,380\n"], head="gpus,images_per_sec\n")
    (curve,) = predict(path, (8,))
    assert 380 < curve.predictions[0].samples_per_s.value < 800
    said = " ".join(curve.basis)
    assert "devices_per_host not given" in said
    assert "hosts of 8 (" in said
    assert "overlap not known" in said
    assert "add the column `spread`" in said


JUMP = ["1,100,{0}\n", "2,196,{0}\n", "4,384,{0}\n", "8,420,{0}\n", "16,830,{0}\n"]
"""Four devices scale, eight gain nothing, and sixteen double that: hosts of four."""


def test_points_tell_the_size_of_a_host_that_no_column_states(tmp_path):
    head = "devices,samples_per_s,devices_per_host\n"
    (unsaid,) = predict(write(tmp_path, [row.format("") for row in JUMP], head=head), (64,))
    (four,) = predict(write(tmp_path, [row.format(4) for row in JUMP], head=head), (64,))
    assert any("hosts of 4 (" in line and line.index("4 (") < line.index("8 (") for line in unsaid.basis)
    said, known = (curve.predictions[0].samples_per_s for curve in (unsaid, four))
    assert said.value == pytest.approx(known.value, rel=0.1)


def test_a_host_size_that_nothing_tells_is_doubt_and_the_first_advice(tmp_path):
    head, rows = "devices,samples_per_s,network,link\n", ["1,100", "2,196", "4,384"]
    labels = ",resnet50,10gbe\n"
    (unsaid,) = predict(write(tmp_path, [row + labels for row in rows], head=head), (8,))
    said = [row + ",resnet50,10gbe,8\n" for row in rows]
    (eight,) = predict(write(tmp_path, said, head=head.strip() + ",devices_per_host\n"), (8,))
    low, high = unsaid.predictions[0].samples_per_s.interval_90
    assert low < eight.predictions[0].samples_per_s.interval_90[0]
    assert unsaid.detail["measure_next"][0]["kind"] == "devices_per_host"
    assert "state devices_per_host" in unsaid.advice
    assert low < unsaid.predictions[0].samples_per_s.value < high


def test_devices_per_host_is_the_size_of_a_full_host(tmp_path):
    rows = [f"N,DDP,D,10GbE,8,{n},64,{v},\n" for n, v in {1: 100, 2: 198, 4: 390}.items()]
    (series,) = read_points(write(tmp_path, rows))
    assert series.hosts_at(8) == 1
    assert series.hosts_at(16) == 2


@pytest.mark.parametrize("link", ["NVLink", "PCIe", "NVSwitch 900 GB/s"])
def test_a_link_inside_a_host_never_crosses_one(tmp_path, link):
    rows = [f"N,DDP,D,{link},4,{n},64,{v},\n" for n, v in {1: 100, 2: 198, 4: 390}.items()]
    (series,) = read_points(write(tmp_path, rows))
    assert series.hosts_at(16) == 1
    assert link_kind("NVLink inside, InfiniBand between").inside is False


def strong_scaling(tmp_path, per_sample=1e-3, per_step=0.05, wire=0.1):
    """Points of a step that is linear in the batch and pays its other costs once."""
    head = "devices,devices_per_host,global_batch,samples_per_s\n"
    rates = {p: 512 / (per_sample * 512 / p + per_step + wire * 2 * (p - 1) / p) for p in (1, 2, 4, 8, 16, 32)}
    rows = [f"{p},4,512,{rate}\n" for p, rate in rates.items() if p < 32]
    return write(tmp_path, rows, head=head), rates[32]


def test_a_fixed_global_batch_is_one_series_and_is_extrapolated(tmp_path):
    path, truth = strong_scaling(tmp_path)
    (series,) = read_points(path)
    assert series.batches.tolist() == [512, 256, 128, 64, 32]
    (curve,) = extrapolate_series([series], (32,), population=shipped_population(), global_batch=512)
    assert curve.predictions[0].batch_per_device == 16
    assert curve.predictions[0].samples_per_s.value == pytest.approx(truth, rel=0.05)
    (same,) = predict(path)
    assert same.predictions == curve.predictions


def test_a_global_batch_needs_batches(tmp_path):
    path = write(tmp_path, ["1,100\n", "2,196\n"], head="devices,samples_per_s\n")
    with pytest.raises(InputError, match="batch_per_device or global_batch"):
        extrapolate_series(read_points(path), (8,), population=shipped_population(), global_batch=64)


def test_series_that_differ_in_batch_alone_support_each_other(tmp_path):
    rates = {(p, b): p / (1e-3 + 0.02 / b + 0.01 / b * (p - 1) / p) for p in (1, 2, 4) for b in (16, 64)}
    rows = [f"N,DDP,D,10GbE,8,{p},{b},{v},\n" for (p, b), v in rates.items() if (p, b) in rates and (b == 16 or p == 1)]
    small, large = read_points(write(tmp_path, rows))
    assert (small.num_points, large.num_points) == (3, 1)
    curve = extrapolate_series([small, large], (4,), population=shipped_population())[1]
    assert curve.predictions[0].samples_per_s.value == pytest.approx(rates[4, 64], rel=0.05)


def test_far_beyond_the_points_is_refused_with_a_measurement_that_helps(tmp_path):
    path = write(tmp_path, [ROW.format(n, v) for n, v in POINTS.items()])
    with pytest.raises(Unsupported, match=r"refused: 1024 devices are 64 times.*up to 32 times") as refusal:
        predict(path, (1024,))
    assert "measure 512 devices (128 hosts)" in refusal.value.hint
    (curve,) = extrapolate_series(read_points(path), (1024,), population=shipped_population(), force=True)
    assert curve.predictions[0].as_dict()["support"] == "unsupported"
    assert curve.basis[0].startswith("unsupported: 1024 devices")


def test_where_to_measure_next_is_ranked_by_what_it_narrows(tmp_path):
    (curve,) = predict(write(tmp_path, [ROW.format(n, POINTS[n]) for n in (1, 4)]), (32,))
    ranked = curve.detail["measure_next"]
    assert {"devices"} <= {one["kind"] for one in ranked} <= {"devices", "sweep"}
    assert ranked[0]["narrows"] > 0.3
    assert [one["narrows"] for one in ranked] == sorted((one["narrows"] for one in ranked), reverse=True)
    assert curve.advice.startswith(ranked[0]["measurement"])


def advised(tmp_path, spread=""):
    row = ROW.replace(",\n", f",{spread}\n")
    (curve,) = predict(write(tmp_path, [row.format(n, POINTS[n]) for n in (1, 4)]), (32,))
    return {one["kind"]: one for one in curve.detail["measure_next"]}


def test_a_sweep_of_the_link_is_advised_where_no_point_crosses_hosts(tmp_path):
    sweep = advised(tmp_path)["sweep"]
    assert 0.005 < sweep["narrows"] < 1
    assert "all-reduce between two hosts" in sweep["measurement"]
    crossed = predict(write(tmp_path, [ROW.format(n, POINTS[n]) for n in (1, 4, 8)]), (32,))[0].detail["measure_next"]
    assert "sweep" not in {one["kind"] for one in crossed}


def test_repeating_is_advised_by_what_half_the_spread_narrows(tmp_path):
    assert "spread" not in advised(tmp_path)
    little, much = (advised(tmp_path, spread).get("spread", {"narrows": 0.0}) for spread in (2, 200))
    assert little["narrows"] < 0.005 < 0.15 < much["narrows"] < 0.5
    assert much["measurement"] == "repeat 4 devices four times as often"


def test_a_last_point_that_is_faster_per_device_does_not_hide_what_was_lost_before(tmp_path):
    """The two last points alone say that nothing more is lost; all points lose a third with every doubling."""
    rates = {1: 325.0, 2: 325.0, 3: 580.0}
    (series,) = read_points(write(tmp_path, [f"N,DDP,D,NVLink,8,{n},64,{v},\n" for n, v in rates.items()]))
    ln, y = np.log(series.devices), series.log_seconds
    slope = np.polyfit(ln, y, 1)[0]
    straight, power, _ = closed_forms(series, 8.0, 64.0, 0)[:3]
    assert straight == power == pytest.approx(y[-1] + slope * np.log(8 / 3))
    falling = {1: 325.0, 2: 500.0, 3: 580.0}
    (series,) = read_points(write(tmp_path, [f"N,DDP,D,NVLink,8,{n},64,{v},\n" for n, v in falling.items()]))
    assert closed_forms(series, 8.0, 64.0, 0)[0] == straight_line(series, 8.0)
    assert closed_forms(series, 8.0, 64.0, 0)[1] == power_law(series, 8.0)
    rising = {1: 100.0, 2: 220.0, 3: 350.0}
    (series,) = read_points(write(tmp_path, [f"N,DDP,D,NVLink,8,{n},64,{v},\n" for n, v in rising.items()]))
    assert closed_forms(series, 8.0, 64.0, 0)[0] == series.log_seconds[-1]


def test_a_series_that_jumps_is_fitted_as_a_noisy_one(tmp_path):
    """Points that no curve meets speak for more noise; points on a curve for less than most series have."""
    population = shipped_population()
    shares = []
    for jump in (1.0, 0.85):
        rates = [(n, 250 * n * (jump if n in (2, 8) else 1.0) / (1 + 0.002 * n)) for n in (1, 2, 4, 8, 16, 32)]
        (series,) = read_points(write(tmp_path, [f"N,DDP,D,NVLink,64,{n},64,{v},\n" for n, v in rates]))
        (fitted,) = posteriors([series], population)
        assert [sum(each) for each in fitted.shares] == pytest.approx([1.0, 1.0])
        assert all(len(each) == pytest.approx(NUM_DRAWS, rel=0.03) for each in fitted.draws)
        shares.append(np.array(fitted.shares))
    assert (shares[0][:, 0] > population.noise[0]).all()
    assert (shares[1][:, 2] > 0.9).all()


@pytest.mark.parametrize(("network", "rate"), [("BERT-Base", 40_000), ("ResNet-50", 1e9)])
def test_a_rate_that_no_device_has_says_nothing_about_the_link(tmp_path, network, rate):
    """Tokens per second under a batch of texts: the step looks 100 times too short for its exchange."""
    rows = [f"{network},DDP,V100,100Gb IB,8,{n},64,{rate * n},\n" for n in (1, 2, 4, 8)]
    (curve,) = predict(write(tmp_path, rows), at=(16,))
    assert curve.predictions[0].efficiency > 0.7
    unnamed = [row.replace(network, "N") for row in rows]
    (same,) = predict(write(tmp_path, unnamed), at=(16,))
    assert np.log(curve.predictions[0].efficiency / same.predictions[0].efficiency) == pytest.approx(0, abs=0.1)


def test_bounds_stay_finite_whatever_spread_is_stated():
    doubt = Doubt(situation=0, doublings=1, posterior=0.0, disagreement=0.0, hindcast=0.0, spread=1e9, loss=0.0)
    assert interval(PRIOR, doubt, 0.9) == (-WIDEST, WIDEST)


def test_nothing_gets_faster_per_device_nor_slower_in_total(tmp_path):
    rows = [f"N,DDP,D,NVLink,8,{n},64,{v},\n" for n, v in {1: 100, 2: 120, 3: 190}.items()]
    (curve,) = predict(write(tmp_path, rows), (8,))
    assert 190 <= curve.predictions[0].samples_per_s.value <= 8 * 190 / 3


def test_points_that_get_slower_in_total_go_on_so_and_no_faster_than_they_did(tmp_path):
    rows = [f"{n},{v}\n" for n, v in {8: 100, 16: 80, 32: 60}.items()]
    (curve,) = predict(write(tmp_path, rows, head="gpus,img/s\n"), (64, 128))
    rates = [one.samples_per_s.value for one in curve.predictions]
    assert 60 * (60 / 100) ** 0.5 <= rates[0] < 52
    assert 36 <= rates[1] < 0.85 * rates[0]
    (curve,) = predict(write(tmp_path, ["1,100\n", "2,100\n", "4,100\n"], head="gpus,img/s\n"), (8,))
    assert curve.predictions[0].samples_per_s.value == pytest.approx(100, rel=0.02)


def test_the_first_crossing_takes_the_slope_of_all_points_inside_the_host(tmp_path):
    rows = [f"N,DDP,D,10GbE,4,{n},64,{v},\n" for n, v in {1: 100, 2: 180, 4: 350}.items()]
    (series,) = read_points(write(tmp_path, rows))
    line, power = closed_forms(series, 8, 64, 1)[:2]
    assert power == pytest.approx(series.log_seconds[-1] + slope_of(series) * np.log(2))
    assert power != pytest.approx(power_law(series, 8))
    assert line == straight_line(series, 8)
    assert closed_forms(series, 4.5, 64, 0)[1] == power_law(series, 4.5)
    assert slope_of(series.first(1)) == 0.0


@pytest.mark.parametrize(("device", "link", "linked"), [
    ("A100-SXM4-40GB x4", "", 1.0), ("V100", "NVLink inside, InfiniBand", 1.0), ("MI250X", "Slingshot", 1.0),
    ("RTX 2080Ti NVLink", "", 0.0), ("A100 40GB PCIe", "", 0.0), ("P100", "PCIe", 0.0), ("V100", "10GbE", 0.5),
])  # fmt: skip
def test_a_label_says_whether_the_devices_of_a_host_are_all_linked(device, link, linked):
    assert every_pair_linked(device, link) == linked


def test_two_bridged_cards_promise_less_for_eight_than_two_linked_devices(tmp_path):
    rates = []
    for device in ("A100-SXM4-40GB", "RTX A6000"):
        rows = [f"VGG-16,tf_cnn,{device},,8,{n},64,{v},\n" for n, v in {1: 300, 2: 560}.items()]
        rates.append(predict(write(tmp_path, rows), (8,))[0].predictions[0].samples_per_s.value)
    assert rates[0] > 1.005 * rates[1]


def test_no_campaign_is_judged_by_a_prior_that_knows_it(monkeypatch):
    known = [one for one in published_series() if one.campaign in ("nv-dle", "mxnet-p2", "mlperf-Azure", "mlperf-H3C")]
    taught = []
    monkeypatch.setattr(origins, "learn", lambda some: taught.append({one.campaign for one in some}) or "prior")
    monkeypatch.setattr(origins, "tasks_of", lambda some, population: [some[0].campaign, population])
    judged = dict(origins._left_out(known, origins._priors(known)))
    assert set(judged) == {"nv-dle", "mxnet-p2", "mlperf-Azure", "mlperf-H3C"}
    assert len([one for one in known if one.campaign == "nv-dle"]) == len(
        [one for one in known if one.campaign == "mxnet-p2"]
    ), "campaigns of one size must not share a prior"
    assert sorted(map(sorted, taught)) == [["mxnet-p2"], ["mxnet-p2", "nv-dle"], ["nv-dle"]]


def test_intervals_widen_with_distance_and_with_what_went_wrong_before():
    near = Doubt(situation=3, doublings=1, posterior=0.01, disagreement=0.01, hindcast=0.01, spread=0, loss=0.1)
    widths = [interval(PRIOR, one, 0.9) for one in (near, replace(near, doublings=3), replace(near, hindcast=0.1))]
    sizes = [high - low for low, high in widths]
    assert sizes[0] < min(sizes[1:])
    assert widths[0][0] < 0 < -widths[0][0] < widths[0][1]


def test_coefficients_of_the_discrepancy_follow_the_errors():
    rng = np.random.default_rng(0)
    doubt = Doubt(situation=0, doublings=1, posterior=0.0, disagreement=0.0, hindcast=0.0, spread=0, loss=0.0)
    errors = 0.02 * rng.standard_t(3, 300)
    fitted = fit_discrepancy([doubt] * 300, errors.tolist(), [str(k % 30) for k in range(300)])
    low, high = interval(fitted, doubt, 0.9)
    assert 0.85 < np.mean((errors > low) & (errors < high)) < 0.95
    assert np.array_equal(fitted[1:], PRIOR[1:])


def test_what_stated_labels_are_worth_is_learnt_at_the_first_crossing():
    rng = np.random.default_rng(0)
    plain = Doubt(situation=1, doublings=1, posterior=0.2, disagreement=0.0, hindcast=0.0, spread=0, loss=0.0)
    doubts = [replace(plain, stated=bool(place % 2)) for place in range(200)]
    errors = [float(0.1 / (1 + 2 * one.stated) * rng.standard_normal()) for one in doubts]
    fitted = fit_discrepancy(doubts, errors, [str(place // 5) for place in range(200)])
    place = COEFFICIENTS.index("stated")
    assert 0.25 < fitted[1, place] < 0.5
    assert fitted[:, place].tolist() == [1.0, *[fitted[1, place]] * 3, 1.0, 1.0], "later crossings begin with it"


def test_a_fluke_does_not_choose_the_form(tmp_path):
    """Misses of a last point that is faster per device than the one before it weigh no form, and widen all the same."""
    fluke = [f"N,DDP,D,NVLink,8,{n},64,{v},\n" for n, v in {1: 325, 2: 325, 3: 580}.items()]
    (curve,) = predict(write(tmp_path, fluke), (8,))
    forms = next(line for line in curve.basis if line.startswith("forms: "))
    assert "straight line 50%" in forms
    assert curve.predictions[0].samples_per_s.value < 0.85 * 8 * 580 / 3
    assert curve.predictions[0].samples_per_s.half_width > 0.3


@pytest.mark.parametrize(
    "head",
    ["gpus,images_per_sec", "n_gpus,throughput", "# GPUs;img/s", "world_size\ttokens_per_s", "Num Workers,Samples/sec",
     "ranks,samples_per_second"],
)  # fmt: skip
def test_two_columns_as_people_have_them_are_enough(tmp_path, head):
    sign = next(one for one in ",;\t" if one in head)
    path = tmp_path / "points.csv"
    path.write_text("\n".join([head, *(sign.join(row) for row in (("1", "100"), ("2", "190")))]))
    (series,) = read_points(path)
    assert series.devices.tolist() == [1, 2]
    assert series.samples_per_s.tolist() == [100, 190]
    assert any("assumed" in line for line in series.assumed)


def test_facts_stand_for_missing_columns(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("gpus,img/s\n1,100\n4,380\n")
    (series,) = read_points(path, {"model": "resnet50", "gpus_per_node": "4", "link": "25gbe"})
    assert (series.network, series.per_host, series.link) == ("resnet50", 4, "25gbe")
    for wrong in ({"gpus": "3"}, {"colour": "red"}):
        with pytest.raises(InputError):
            read_points(path, wrong)
    path.write_text("gpus,img/s,link\n1,100,10gbe\n4,380,10gbe\n")
    with pytest.raises(InputError, match="states link"):
        read_points(path, {"link": "25gbe"})


def test_the_batch_goes_on_as_the_points_do(tmp_path):
    def series(batches):
        rows = [f"N,DDP,D,NVLink,8,{n},{batch},{100 * n},\n" for n, batch in batches.items()]
        return read_points(write(tmp_path, rows))[0]

    fixed = series({1: 512, 2: 256, 4: 128.5})
    assert fixed.batch_at(8) == pytest.approx(514 / 8), "the last total, divided"
    assert series({1: 64, 2: 64, 4: 64}).batch_at(8) == 64
    assert series({1: 64, 2: 64, 4: 32}).batch_at(8) == 32
    assert fixed.batch_at(8, global_batch=1024) == 128


@pytest.mark.parametrize(("text", "rates"), [
    ("GPUs;Throughput (img/s)\n1;100\n2;196\n", [100, 196]),
    ("# GPUs\tImages/sec\n1\t100\n2\t196\n", [100, 196]),
    ("Num GPUs [count],samples_per_sec_per_gpu\n1,100\n2,98\n", [100, 196]),
    ("world_size,Throughput (tokens/s/GPU)\n1,100\n2,98\n", [100, 196]),
    ('gpus,img/s\n1,"1,100.5"\n2,"1,002,196"\n', [1100.5, 1002196]),
    ("gpus;img/s\n1;1 100\n2;2\u202f196\n", [1100, 2196]),
])  # fmt: skip
def test_headers_with_units_rates_of_one_device_and_thousands(tmp_path, text, rates):
    (tmp_path / "p.csv").write_text(text)
    (series,) = read_points(tmp_path / "p.csv")
    assert series.samples_per_s.tolist() == rates
    assert series.devices.tolist() == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "nodes,gpus_per_node,img/s\n1,4,400\n2,4,760\n",
        "GPUs,Batch per GPU,Step time (ms)\n4,32,320\n8,32,336.8421052631579\n",
        "gpus,global batch size,s/it\n4,128,0.32\n8,256,0.3368421052631579\n",
        "gpus,batch_size,it/s\n4,32,3.125\n8,32,2.96875\n",
        "# my run, on Monday\ngpus,img/s\n4,400\n# slow\n8,760\n",
        "# of GPUs,throughput_img_s\n4,400\n8,760\n",
        "\n\nchips img/s\n4    400\n8    760\n",
        "| cards | Images/sec |\n|---|---:|\n| 4 | 400 |\n| 8 | 760 |\n",
        'gpus,"img/s",x\n4,400,"1,000"\n8,760,"2,000"\n',
        "workers,img/s,gpus\n16,400,4\n16,760,8\n",
    ],
)
def test_tables_as_people_have_them(tmp_path, text):
    (tmp_path / "p.csv").write_text(text)
    (series,) = read_points(tmp_path / "p.csv")
    assert series.devices.tolist() == [4, 8]
    assert series.samples_per_s == pytest.approx([400, 760])


def test_what_a_column_is_taken_for_is_named(tmp_path):
    for text, words in (
        ("workers,gpus,img/s\n16,4,400\n16,8,760\n", "gpus and workers may both be devices: gpus taken"),
        ("gpus,batch_size,img/s\n4,32,400\n8,32,760\n", "batch_size taken as samples per device"),
        (
            "gpus,batch_size,img/s\n4,128,400\n8,256,760\n",
            "batch_size grows as the devices do: taken as samples of all",
        ),
        ("gpus,global_batch,step_time\n4,128,0.32\n8,256,0.33\n", "step_time has no unit: seconds assumed"),
    ):
        (tmp_path / "p.csv").write_text(text)
        (series,) = read_points(tmp_path / "p.csv")
        assert words in series.assumed
        assert set(series.batches[~np.isnan(series.batches)]) <= {32.0}


def test_batches_of_sequences_do_not_tell_a_step_of_tokens(tmp_path):
    head = "nodes,gpus_per_node,batch_size,tokens_per_s\n"
    (tmp_path / "p.csv").write_text(head + "1,8,64,88000\n2,8,128,170000\n4,8,256,330000\n")
    (series,) = read_points(tmp_path / "p.csv")
    assert series.batches.tolist() == [8, 8, 8]
    assert "rate in tokens, batch in samples: a step is one token on each device" in series.assumed
    (found,) = predict(tmp_path / "p.csv", at=(64,))[0].predictions
    assert found.step_s.value == pytest.approx(64 / found.samples_per_s.value)


def test_a_step_may_sum_up_several_batches_but_not_a_part_of_one(tmp_path):
    (tmp_path / "p.csv").write_text("gpus,micro_batch,gbs,tokens_per_s\n8,4,512,88000\n16,4,512,170000\n")
    assert read_points(tmp_path / "p.csv")[0].batches.tolist() == [64, 32]
    (tmp_path / "p.csv").write_text("gpus,batch_per_gpu,global_batch,img/s\n1,64,64,100\n2,64,64,190\n")
    with pytest.raises(InputError, match="64, but 2 devices with 64 each have 128"):
        read_points(tmp_path / "p.csv")


@pytest.mark.parametrize("head", ["gpus,throughput (k img/s)", "gpus,step time (ms)", "gpus,img/s/host", "1,100"])
def test_a_rate_in_another_unit_is_not_taken_for_samples(tmp_path, head):
    (tmp_path / "p.csv").write_text(f"{head}\n1,100\n2,196\n")
    with pytest.raises(InputError, match=r"column missing: (devices, )?samples_per_s"):
        read_points(tmp_path / "p.csv")


def test_a_spread_in_percent_is_a_share_and_of_one_device_counts_for_all(tmp_path):
    (tmp_path / "p.csv").write_text("gpus,img/s,std\n1,100,2%\n4,380,1.5 %\n8,700,7\n")
    assert read_points(tmp_path / "p.csv")[0].spread == pytest.approx([0.02, 0.015, 0.01])
    (tmp_path / "p.csv").write_text("gpus,img/s/gpu,std\n1,100,2\n4,95,1%\n8,90,0.9\n")
    assert read_points(tmp_path / "p.csv")[0].spread == pytest.approx([0.02, 0.01, 0.01])
    (tmp_path / "p.csv").write_text("gpus,batch_per_gpu,step_time_ms,std (ms)\n1,64,160,1.6\n4,64,170,3.4\n")
    assert read_points(tmp_path / "p.csv")[0].spread == pytest.approx([0.01, 0.02])
    (tmp_path / "p.csv").write_text("gpus,img/s,img/s std\n1,100,2\n4,380,3.8\n")
    assert read_points(tmp_path / "p.csv")[0].spread == pytest.approx([0.02, 0.01])


def test_a_batch_in_brackets_says_whose_it_is(tmp_path):
    (tmp_path / "p.csv").write_text("gpus,img/s,Batch size (global)\n1,100,256\n4,350,256\n")
    assert read_points(tmp_path / "p.csv")[0].batches.tolist() == [256, 64]
    (tmp_path / "p.csv").write_text("gpus,img/s,Batch size (per GPU)\n1,100,32\n4,350,32\n")
    assert read_points(tmp_path / "p.csv")[0].batches.tolist() == [32, 32]


def test_a_column_of_words_names_series_and_numbers_or_repetitions_do_not(tmp_path):
    rows = ["A,1,100", "A,2,190", "B,1,50", "B,2,99"]
    for head in ("name,gpus,img/s", "where,gpus,img/s"):
        (tmp_path / "p.csv").write_text("\n".join([head, *rows]))
        assert [(one.label, one.samples_per_s[0]) for one in read_points(tmp_path / "p.csv")] == [("A", 100), ("B", 50)]
    (tmp_path / "p.csv").write_text(
        "\n".join(["seed,gpus,img/s", *(row.replace("A", "1").replace("B", "2") for row in rows)])
    )
    assert [one.samples_per_s[0] for one in read_points(tmp_path / "p.csv")] == [75]
    (tmp_path / "p.csv").write_text("\n".join(["where,gpus,img/s", *rows[:3], "C,2,99"]))
    assert len(read_points(tmp_path / "p.csv")) == 1
