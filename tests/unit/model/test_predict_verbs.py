import re
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from paceline import api, catalog
from paceline.cli import program
from paceline.cli.questions import _facts_of
from paceline.errors import UnknownName
from tests.unit.model.clusters import V100, cluster

POINTS = """network,framework,device,link,devices_per_host,devices,batch_per_device,samples_per_s
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,1,64,253
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,4,64,1015
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,8,64,1796
"""
ASK = ("--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--batch", "64")


def test_predict_prints_a_table_a_plot_and_advice(paceline):
    text = paceline("predict", *ASK, "--devices", "1,8,32")
    for words in ("samples/s", "terms of a step", "knee", "rests on", "to narrow the interval", "|"):
        assert words in text


def test_predict_json_is_versioned_and_complete(paceline):
    found = paceline.json("predict", *ASK, "--devices", "1,8")
    assert found["schema"] == "paceline.predict/1"
    one, eight = found["predictions"]
    assert set(one) >= {"devices", "samples_per_s", "interval_50", "interval_90", "terms", "efficiency", "series"}
    assert sum(eight["terms"].values()) == pytest.approx(eight["step_s"])
    assert found["curves"][0]["policy"]["overlap"] is True


def test_predict_from_measured_points(paceline, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    found = paceline.json("predict", "--measured", str(path), "--at", "16,32")
    assert [one["devices"] for one in found["predictions"]] == [16, 32]
    assert 2000 < found["predictions"][0]["samples_per_s"] < 4048
    assert found["curves"][0]["precision"] == "that of the measured points, which do not state it"
    told = paceline("predict", "--measured", str(path), "--at", "16", "--fact", "precision=fp32")
    assert "precision: that of the measured points, fp32" in told


def test_frameworks_are_compared_with_reasons_and_drawn(paceline, tmp_path):
    path = tmp_path / "curves.svg"
    text = paceline("predict", *ASK, "--devices", "8,32", "--framework", "pytorch,cntk,mxnet", "--plot", str(path))
    assert "cntk: exchanges after the backward pass" in text
    assert "mxnet: sends gradients to parameter servers" in text
    drawn = ElementTree.parse(path).getroot()
    assert drawn.tag.endswith("svg")
    words = [text.strip() for text in drawn.itertext()]
    assert words.count("mxnet") == 2, "in the legend, and below its bar"
    assert "waiting" in words


def test_whatif_shows_the_gain(paceline):
    found = paceline.json("whatif", *ASK, "--devices", "32", "--set", "link.bandwidth=100Gb/s")
    assert found["schema"] == "paceline.whatif/1"
    assert found["after"]["predictions"][0]["samples_per_s"] > found["before"]["predictions"][0]["samples_per_s"]
    assert "gain" in paceline("whatif", *ASK, "--set", "strategy.bucket=1MiB")


@pytest.mark.parametrize(
    ("where", "counts"),
    [("a100", [1]), ("3x a100", [1, 2, 3]), ("5x a100", [1, 2, 4, 5]), ("dgx-2", [1, 2, 4, 8, 16]), ("m2-ultra", [1])],
)
def test_without_numbers_of_devices_the_answer_is_for_those_that_there_are(paceline, where, counts):
    ask = ("--network", "resnet18", "--cluster", where, "--batch", "8")
    found = paceline.json("predict", *ask)
    assert [one["devices"] for one in found["predictions"]] == counts
    changed = paceline.json("whatif", *ask, "--set", "batch=16")
    assert [one["devices"] for one in changed["after"]["predictions"]] == counts
    assert [one["devices"] for one in paceline.json("simulate", *ask, "--steps", "5")["runs"]] == counts
    assert [one.devices for one in api.predict("resnet18", cluster=where, batch=8).curve.predictions] == counts


def test_a_link_or_a_device_is_changed_by_its_name(paceline):
    ask = ("--network", "resnet50", "--batch", "64", "--devices", "8")
    slow, fast = "4x rtx-3090 over 10gbe x 2", "4x rtx-3090 over 100gbe x 2"
    wanted = paceline.json("predict", *ask, "--cluster", fast)["predictions"][0]["step_s"]
    found = paceline.json("whatif", *ask, "--cluster", slow, "--set", "link=100gbe")
    assert found["after"]["predictions"][0]["step_s"] == pytest.approx(wanted)
    found = paceline.json("whatif", *ask, "--cluster", slow, "--set", "device=A100")
    assert found["reasons"]
    assert "roofline of a100-40gb" in found["after"]["basis"][0]
    assert "100gbe" in paceline("whatif", *ask, "--cluster", slow, "--set", "link=100gbx", code=2)
    assert "device" in paceline("whatif", *ask, "--cluster", slow, "--set", "device=a1000", code=2)


@pytest.mark.parametrize("change", ["link.bandwidth=10", "link.latency=30", "strategy.bucket=25", "device.memory=80"])
def test_a_changed_quantity_needs_its_unit(paceline, change):
    said = paceline("predict", "--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--set", change, code=2)
    assert f"error: {change}: '{change.partition('=')[2]}' is not a " in said
    assert "units: " in said


def test_nothing_is_nothing_in_every_unit(paceline):
    ask = ("predict", "--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--batch", "64", "--devices", "8")
    assert paceline(*ask, "--set", "link.latency=0") == paceline(*ask, "--set", "link.latency=0 us")


def test_many_gpus_exchange_as_nccl_would_and_a_named_algorithm_is_taken(paceline):
    ask = ("--network", "resnet50", "--batch", "64", "--precision", "amp", "--cluster", "8x h100 over 400gbe x 64")
    many = (*ask, "--devices", "512")
    steps, said = {}, {}
    for name in ("", "ring", "double_tree"):
        asked = ("--set", f"strategy.algorithm={name}") if name else ()
        found = paceline.json("predict", *many, *asked)
        steps[name], said[name] = found["predictions"][0]["step_s"], found["curves"][0]["exchange"]
    assert steps[""] == steps["double_tree"] < steps["ring"]
    assert said[""].startswith("double binary tree at 512 devices: what NCCL expects")
    assert said["ring"] == "ring at 512 devices"
    gloo = paceline.json("predict", *many, "--set", "strategy.transport=gloo")
    assert gloo["curves"][0]["exchange"] == "ring at 512 devices"
    assert gloo["predictions"][0]["step_s"] > steps["ring"]


def test_every_verb_says_how_gradients_are_exchanged(paceline):
    ask = ("--network", "resnet50", "--cluster", "dgx-h100 x 16")
    wanted = "exchange: double binary tree at 128 devices: what NCCL expects to end first"
    for verb, *more in (("predict", "--devices", "128"), ("plan",), ("simulate", "--devices", "128", "--steps", "10"),
                        ("whatif", "--devices", "128", "--set", "batch=32")):  # fmt: skip
        assert wanted in paceline(verb, *ask, *more), verb
    assert "exchange:" not in paceline("predict", *ask, "--devices", "1")


def test_a_plan_says_how_its_best_strategy_exchanges(paceline):
    ask = ("plan", "--network", "resnet50", "--cluster", "mixed-lab", "--global-batch")
    alone = paceline(*ask, "3")
    assert "best: synchronous, because one device alone" in alone
    assert "exchange:" not in alone
    groups = paceline.json(*ask, "2048", "--set", "link=1gbe")["exchange"]
    assert re.match(r"\d groups through the syncer every \d+ steps; inside a group ring at 2 devices", groups)


def test_lines_that_differ_say_whose_they_are(paceline):
    ask = ("--network", "resnet50", "--cluster", "dgx-h100", "--devices", "8")
    both = paceline("predict", *ask, "--framework", "pytorch,mxnet")
    assert "\nexchange of mxnet: parameter servers at 8 devices" in both
    assert "\nprecision of pytorch: " in both
    change = paceline("whatif", *ask, "--set", "algorithm=ring")
    assert "\nexchange of the step after: ring at 8 devices\n" in change
    assert "\nprecision: TF32" in change


def test_settings_have_short_names_and_do_not_contradict_options(paceline):
    ask = ("predict", "--network", "resnet50", "--cluster", "dgx-1 x 2", "--devices", "16")
    long = paceline.json(*ask, "--set", "strategy.algorithm=ring", "--set", "link.latency=1ms")["predictions"]
    assert paceline.json(*ask, "--set", "algorithm=ring", "--set", "host.link.latency=1ms")["predictions"] == long
    assert "did you mean 'algorithm'" in paceline(*ask, "--set", "algoritm=ring", code=2)
    for verb in ("predict", "simulate"):
        text = paceline(verb, *ask[1:], "--precision", "fp16", "--set", "precision=amp", code=2)
        assert "--precision fp16 and --set precision=amp" in text
    text = paceline("plan", *ask[1:5], "--precision", "fp16", "--set", "strategy.precision=amp", code=2)
    assert "expected one of them" in text


def test_stages_of_sharding_are_told_apart(paceline):
    modes = "pytorch,deepspeed/zero1,deepspeed/zero2,deepspeed/zero3"
    text = paceline("predict", "--network", "resnet50", "--cluster", "dgx-a100", "--batch", "64", "--devices", "8",
                    "--framework", modes)  # fmt: skip
    said = {
        line.partition(":")[0]: line for line in text.splitlines() if line.startswith("deepspeed/zero") and ":" in line
    }
    assert "zero1: shards the state of the optimizer" in said["deepspeed/zero1"]
    assert "zero2: shards gradients and the state" in said["deepspeed/zero2"]
    assert "zero3: shards weights" in said["deepspeed/zero3"]


@pytest.mark.parametrize(
    "written", ["1000000", "1e6", "1,000,000", "1.0E+6", "1M", "1000k", "0.001B", "0.001G", "0.000001T"]
)
def test_large_numbers_are_written_as_people_write_them(paceline, written):
    found = paceline.json("predict", *ASK, "--devices", "1", "--samples", written, "--epochs", "2")
    one = found["predictions"][0]
    assert one["samples"] == 1_000_000
    assert (one["epochs"], one["run_s"]) == (2.0, pytest.approx(2 * one["epoch_s"]))


@pytest.mark.parametrize("written", ["1,5", "1e-3", "1.5e0", "many", "0", "1e99"])
def test_what_is_no_whole_number_is_refused(paceline, written):
    assert "--samples" in paceline("predict", *ASK, "--samples", written, code=2)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("predict", *ASK, "--epochs", "3"), "--samples"),
        (("predict", *ASK, "--devices", "0"), "numbers of devices"),
        (("predict", *ASK, "--devices", "64"), "has 32"),
        (("predict", "--network", "resnet50", "--batch", "64"), "no cluster"),
        (("predict", "--network", "resnet5", "--cluster", "dgx-1", "--batch", "64"), "resnet"),
        (("predict", *ASK[:-1], "5000"), "too much"),
        (("predict", *ASK, "--framework", "caffe3"), "caffe"),
        (("predict", "--cluster", "dgx-1"), "one of --network"),
        (("predict", *ASK, "--profile", "a.profile"), "one of --network"),
        (("predict", *ASK[:-1], "0"), "--batch"),
        (("evaluate", "unequal-devices", "--predict-only", "--measured", "m.json"), "expected one of them"),
        (("predict", "--measured", "nowhere.csv", "--at", "3"), "nowhere.csv"),
        (("predict", "--profile", "nowhere.profile", "--cluster", "dgx-1"), "nowhere.profile"),
        (("whatif", *ASK, "--set", "link.bandwidth=-3 Gb/s"), "greater than"),
        (("whatif", *ASK), "nothing to change"),
        (("predict", *ASK, "--measured", "points.csv", "--at", "3"), "--measured together with"),
        (("predict", *ASK, "--plot", "nowhere/curve.svg"), "nowhere/curve.svg"),
        (("predict", *ASK, "--plot", "curve.docx"), "curve.svg"),
        (("predict", *ASK[:-2], "--devices", "0,4"), "--devices 0,4: expected numbers of devices"),
        (("predict", *ASK[:-2], "--devices", "1000001"), "--devices 1000001: expected numbers of devices"),
        (
            ("plan", "--network", "lenet", "--profile", "a.profile", "--cluster", "dgx-1"),
            "either --network or --profile",
        ),
        (("plan", "--cluster", "dgx-1"), "either --network or --profile"),
        (("simulate", *ASK, "--mtbf", "bla"), "--mtbf"),
        (("simulate", *ASK, "--calibration", "nowhere.json"), "nowhere.json"),
        (("whatif", *ASK, "--buckets", "--calibration", "nowhere.json"), "nowhere.json"),
        (("simulate", *ASK, "--mtbf", "0 s"), "mean time between failures: got 0 s"),
        (("simulate", *ASK, "--restart", "-5 s"), "restart: got -5 s"),
        (("validate", "--data", "nowhere.csv"), "nowhere.csv"),
        (("calibrate",), "neither a sweep nor a one-rank run"),
    ],
)
def test_wrong_input_is_one_clear_error(paceline, args, words):
    text = paceline(*args, code=2)
    assert text.startswith("error:")
    assert words in text


def test_a_measured_curve_of_one_point_is_refused(paceline, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("".join(POINTS.splitlines(keepends=True)[:2]))
    assert "one point" in paceline("predict", "--measured", str(path), "--at", "8", code=2)


def test_validate_reads_other_files(paceline, tmp_path):
    path = tmp_path / "t.csv"
    head = (
        "source_id,framework,comm,model,data,precision,hardware,interconnect,nodes,devices,batch_per_device,value,unit"
    )
    rows = [
        f"mine,PyTorch,DDP,ResNet-50,synthetic,fp32,V100,NVLink,1,{n},64,{360 * n * 0.98**n},img/s" for n in (1, 2, 4)
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    found = paceline.json("validate", "--data", str(path))
    (mine,) = [row for row in found["rows"] if row["name"] == "mine"]
    assert mine["mean_error"] < 0.1
    assert {"power law", "straight line", "Amdahl"} == set(mine["laws"])
    assert found["failures"] == []


def test_a_transformer_is_predicted_or_does_not_fit(paceline):
    small = ("transformer", "--tensor", "2", "--pipeline", "2", "--data", "2", "--global-batch", "64")
    found = paceline.json(*small)
    assert found["schema"] == "paceline.transformer/1"
    assert found["interval_90"][0] < found["step_s"] < found["interval_90"][1]
    assert found["memory_bytes"]["total"] < 80e9
    assert "tokens/s" in paceline(*small)
    assert "too much" in paceline(*small, "--memory", "4 GB", code=2)
    assert "global batch" in paceline(*small[:-1], "63", code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--framework", ","), "no framework given"),
        (("--global-batch", "512"), "batch 8 per device and global batch 512: expected one of them"),
        (("--force",), "--fact and --force belong to --measured"),
        (("--fact", "link=25gbe"), "--fact and --force belong to --measured"),
    ],
)
def test_options_that_would_be_ignored_are_refused(paceline, options, message):
    said = paceline("predict", "--network", "lenet", "--cluster", "dgx-1", "--batch", "8", *options, code=2)
    assert message in said


def test_without_a_batch_the_usual_one_is_assumed_and_named(paceline):
    where = {"network": "resnet50", "cluster": "v100-10gbe-8x4", "devices": 8}
    found, stated = api.predict(**where).curve, api.predict(**where, batch=64).curve
    assert found.predictions[0].samples_per_s == stated.predictions[0].samples_per_s
    assert "batch 64 (assumed) per device" in found.label
    assert "batch 64 per device: assumed, as none was given (--batch)" in found.basis
    assert "assumed" not in stated.label + " ".join(stated.basis)
    assert "(assumed)" not in api.predict(**where, changes={"batch": "32"}).curve.label
    made = api.plan("resnet50", cluster="mixed-lab").plan
    assert made.global_batch % 6 == 0
    assert any("on each of 6 devices, assumed" in line for line in made.basis)
    asked = ("--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--devices", "8")
    assert "batch 64 (assumed) per device" in paceline("whatif", *asked, "--set", "link.bandwidth=1Gb/s")


def test_a_simulation_without_a_batch_is_that_of_the_usual_one(paceline):
    asked = ("simulate", "--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--devices", "8", "--steps", "20")
    assumed, stated, other = (paceline.json(*asked, *batch) for batch in ((), ("--batch", "64"), ("--batch", "32")))
    assert assumed["runs"] == stated["runs"] != other["runs"]
    assert "batch 64 (assumed) per device" in assumed["question"]
    assert "assumed" not in stated["question"]
    assert "batch 64 (assumed) per device" in paceline(*asked)


def test_frameworks_are_compared_at_one_assumed_batch_that_fits_all():
    small = V100.model_copy(update={"memory": 1.5e9})
    where, ways = cluster(2, 2, device=small), ["pytorch/fsdp2", "pytorch/ddp"]
    alone = [api.predict("resnet50", cluster=where, devices=4, framework=way).curve.predictions[0] for way in ways]
    both = [curve.predictions[0] for curve in api.predict("resnet50", cluster=where, devices=4, framework=ways).curves]
    assert alone[0].batch_per_device > alone[1].batch_per_device
    assert [one.batch_per_device for one in both] == [alone[1].batch_per_device] * 2


def test_an_unknown_network_is_answered_with_how_to_bring_ones_own_even_if_a_name_is_near():
    with pytest.raises(UnknownName) as refused:
        catalog.network("densenet121")
    assert refused.value.hint is not None
    assert re.fullmatch("did you mean 'resnet152'[?] .*paceline.capture.*", refused.value.hint)


def test_the_fusion_of_gradients_is_said_in_words():
    asked = ["predict", "--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--batch", "64", "--devices", "32"]
    said = CliRunner().invoke(program, asked).output
    assert "as the framework does it" in said
    assert "mgwfbp" not in said


def test_an_answer_names_the_memory_and_a_utilisation_above_the_peak(paceline):
    said = paceline("predict", "--network", "vgg16", "--cluster", "v100", "--batch", "32")
    assert re.search(r"memory of v100-sxm2: \d\.\d\d GiB of 16\.0 GiB with momentum SGD; Adam needs \d\.\d\d GiB", said)
    assert "MFU above 100 %: Winograd's algorithm" in said
    assert "MFU above" not in paceline("predict", "--network", "resnet50", "--cluster", "v100", "--batch", "32")


def test_a_change_that_changes_little_is_said_to(paceline):
    """It changes the step by less than 1 %, which is not "nothing differs but the name"."""
    asked = ("--network", "resnet50", "--cluster", "8x v100 over 10gbe x 4", "--batch", "64", "--devices", "32")
    assert "no term of the step changes by 1 %" in paceline("whatif", *asked, "--set", "link.latency=100us")


def test_a_bucket_of_gigabytes_is_written_so(paceline):
    asked = ("--network", "bert-large", "--cluster", "2x v100", "--batch", "8", "--framework", "deepspeed")
    assert "buckets of 1.86 GiB" in paceline("predict", *asked)


def test_links_that_a_text_does_not_state_are_named_as_assumed(paceline):
    asked = ("predict", "--network", "lenet", "--batch", "64", "--devices", "16", "--cluster")
    said = paceline(*asked, "8x h100 over ndr x 2")
    assert (
        'assumed links: nvlink4 inside a host, 1 port of infiniband-ndr for each host; "over 2x infiniband-ndr"' in said
    )
    assert "8 ports of infiniband-ndr for each host" in paceline(*asked, "8x h100 over 8x ndr x 2")
    assert "assumed links" not in paceline(*asked, "p4d.24xlarge x 2")


def test_a_simulation_says_how_slow_stragglers_are(paceline):
    asked = ("simulate", "--network", "lenet", "--cluster", "dgx-1", "--devices", "8", "--batch", "64", "--steps", "50")
    assert "stragglers: 0.02 of a device's steps compute 5 times as long" in paceline(*asked, "--straggle", "0.02")


def test_points_are_extrapolated_to_what_at_says(paceline, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    found = paceline.json("predict", "--measured", str(path), "--at", "16", "--devices", "32")
    assert [one["devices"] for one in found["predictions"]] == [16]


def test_facts_are_those_of_the_options_and_of_the_command():
    asked = {"profile": None, "run": None, "cluster": None, "network": "lenet", "batch": 8, "precision": None}
    assert _facts_of(asked, ("link=25gbe", "devices_per_host=4")) == {
        "network": "lenet", "batch_per_device": "8", "link": "25gbe", "devices_per_host": "4"
    }  # fmt: skip
