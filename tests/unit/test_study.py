import json
import os
import subprocess
import sys

import pytest

from paceline.catalog import shipped_catalog
from paceline.errors import InputError
from paceline.spec.strategy import Strategy
from paceline.spec.study import MAX_CASES, Protocol, Script, Study, case_label, expand
from tests.conftest import ROOT


def study(**fields):
    return Study(**{"name": "s", "networks": ("lenet",), "frameworks": ("pytorch",), "batch": (32,), **fields})


def test_expansion_is_the_product_of_the_lists():
    asked = study(networks=("lenet", "resnet20"), devices=(1, 2, 4), batch=(8, 16), input=("resident", "copied"))
    cases = expand(asked, shipped_catalog())
    assert len(cases) == 2 * 3 * 2 * 2
    assert len({case.id for case in cases}) == len(cases)


def test_equal_cases_appear_once():
    assert (
        len(expand(study(networks=("lenet", "lenet"), frameworks=("pytorch", "pytorch/ddp")), shipped_catalog())) == 1
    )


def test_the_framework_gets_its_full_name():
    assert expand(study(), shipped_catalog())[0].framework == "pytorch/ddp"


def test_weak_scaling_gives_every_device_the_batch_and_strong_splits_it():
    weak = expand(study(devices=(1, 2, 4)), shipped_catalog())
    strong = expand(study(devices=(1, 2, 4), scaling="strong"), shipped_catalog())
    assert [case.batch for case in weak] == [32, 32, 32]
    assert [case.batch for case in strong] == [32, 16, 8]


def test_a_batch_that_does_not_split_is_refused():
    with pytest.raises(InputError, match="batch: got 32, expected a multiple of 3 devices"):
        expand(study(devices=(3,), scaling="strong"), shipped_catalog())


def test_more_devices_than_the_cluster_has_are_refused():
    with pytest.raises(InputError, match="devices: got 9, expected at most 8, which cluster 'dgx-1' has"):
        expand(study(devices=(1, 9), clusters=("dgx-1",)), shipped_catalog())


def test_a_slip_that_makes_too_many_cases_is_refused_at_once():
    with pytest.raises(InputError, match=f"at most {MAX_CASES}"):
        expand(study(devices=tuple(range(1, 60)), batch=tuple(range(1, 3000))), shipped_catalog())


def test_ids_ignore_labels_and_scaling_but_not_what_runs():
    plain = expand(study(), shipped_catalog())[0]
    host = plain.cluster.hosts[0]
    full = expand(study(strategy=(Strategy(precision="float32"),)), shipped_catalog())[0]
    assert full.id == plain.id, "float32 is what a framework does by default where no device has TF32"
    tf32 = [expand(study(clusters=("dgx-a100",), strategy=(Strategy(precision=one),)), shipped_catalog())[0].id
            for one in (None, "float32")]  # fmt: skip
    assert len(set(tf32)) == 2
    hungry = host.model_copy(update={"devices": (host.devices[0].model_copy(update={"power": 700.0}),)})
    meters = [plain.cluster.model_copy(update={"hosts": (one.model_copy(update={"devices": one.devices[:1]}),)})
              for one in (host, hungry)]  # fmt: skip
    assert len({plain.model_copy(update={"cluster": one}).id for one in meters}) == 1, "power costs money, not time"
    labelled = expand(study(strategy=(Strategy(name="mine"),)), shipped_catalog())[0]
    bucketed = expand(study(strategy=(Strategy(bucket="1 MiB"),)), shipped_catalog())[0]
    assert plain.id == labelled.id == expand(study(scaling="strong"), shipped_catalog())[0].id
    assert plain.id != bucketed.id
    assert plain.id != plain.model_copy(update={"batch": 33}).id


def test_ids_are_the_same_in_another_process():
    code = (
        "from paceline.catalog import shipped_catalog; from paceline.spec.study import Study, expand; import json;"
        "s = Study(name='s', networks=('lenet',), frameworks=('pytorch',), batch=(32,), devices=(1, 2));"
        "print(json.dumps([case.id for case in expand(s, shipped_catalog())]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        timeout=60,
    )
    assert json.loads(other.stdout) == [case.id for case in expand(study(devices=(1, 2)), shipped_catalog())]


def test_the_label_is_for_people():
    case = expand(study(devices=(2,), strategy=(Strategy(name="mine"),)), shipped_catalog())[0]
    assert case.label == "lenet pytorch/ddp mine, batch 32 x 2 ranks"


def test_the_example_and_the_study_of_the_demo_are_one():
    shipped = ROOT / "src" / "paceline" / "catalog" / "studies" / "demo.toml"
    assert (ROOT / "examples" / "studies" / "demo.toml").read_text() == shipped.read_text()


def test_a_label_names_what_differs():
    assert case_label("lenet", "pytorch/ddp", 8, 1, "local") == "lenet pytorch/ddp, batch 8 x 1 rank"
    assert case_label("lenet", "mxnet", 8, 2, "dgx-1") == "lenet mxnet, batch 8 x 2 ranks, dgx-1"
    assert expand(study(strategy=(Strategy(name="mine"),)), shipped_catalog())[0].label == (
        "lenet pytorch/ddp mine, batch 32 x 1 rank"
    )


def test_cases_of_two_commands_are_two():
    cases = [
        expand(study(frameworks=("script",), script=Script(command=("python", name))), shipped_catalog())[0]
        for name in ("a.py", "b.py", "a.py")
    ]
    assert cases[0].id == cases[2].id != cases[1].id
    assert "script" not in expand(study(), shipped_catalog())[0].canonical, "ids of runs from before there were scripts"


def test_what_is_measured_unless_a_study_says_otherwise():
    asked = Protocol()
    assert (asked.launches, asked.max_launches, asked.warmup, asked.steps, asked.phase_steps) == (5, 20, 10, 100, 20)
    assert (asked.launch_budget, asked.timeout, asked.width, asked.confidence) == (20.0, 600.0, 0.02, 0.95)
    assert (asked.phases, asked.budget, asked.threads, asked.seed) == (True, None, None, 0)


def test_precisions_have_the_names_that_people_use():
    names = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "FP32": "float32", "mixed-precision": "amp"}
    assert {Strategy(precision=given).precision == meant for given, meant in names.items()} == {True}
