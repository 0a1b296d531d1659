"""What frameworks share, without any of them: graphs, refusals, recipes, data sets, the judge of the proof."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.bench import environments, verify
from paceline.bench.adapters import ADAPTERS, availability, environments_of
from paceline.bench.collect import Ending, explain_failure, read_report
from paceline.bench.environments import RECIPES
from paceline.bench.frameworks.arrays import initial_tensors, shard, synthetic_batch
from paceline.bench.frameworks.caffe.prototxt import train_prototxt
from paceline.bench.frameworks.datasets import FileSet, decode_png, encode_png, read_ahead
from paceline.bench.frameworks.graph import flattened_images, layer_keys, pool_padding, pool_shares, tensor_shapes
from paceline.bench.frameworks.script.worker import command_of, reading_of
from paceline.bench.launch import data_set
from paceline.bench.sites.site import Process
from paceline.bench.verify import PROOF_NETWORKS, network_family
from paceline.catalog.clusters import cluster
from paceline.catalog.frameworks import framework, framework_names
from paceline.catalog.networks import network
from paceline.errors import Unsupported
from paceline.spec.network import layer_costs, plain_network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case
from tests.conftest import Command


def case(name: str, net: str = "lenet", **fields: object) -> Case:
    strategy = Strategy(**{key: fields.pop(key) for key in list(fields) if key in Strategy.model_fields})
    given = {"ranks": 2, "batch": 4, "input": "resident", "threads": 1, **fields}
    return Case(
        network=PROOF_NETWORKS.get(net) or network(net), cluster=cluster("local"), framework=framework(name),
        strategy=strategy, scaling="weak", placement="packed", **given,
    )  # fmt: skip


def test_every_framework_of_the_catalog_has_an_adapter_and_environments() -> None:
    names = {name.split("/")[0] for name in framework_names()}
    assert names == set(ADAPTERS)
    assert all(environment in RECIPES for name in framework_names() for environment in environments_of(name))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_everything_that_is_installed_is_pinned(recipe: object) -> None:
    for line in recipe.lock.read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!]+", line), line
    for path in recipe.files:
        assert all(re.fullmatch(r"[0-9a-f]{64}  pool/main/\S+\.deb", line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("caffe", {}, "one rank"),
        ("mxnet/local", {}, "one process"),
        ("cntk", {"net": "transformer"}, "images only"),
        ("singa", {"net": "grouped"}, "W.shape(1)"),
        ("keras/tensorflow", {"net": "grouped"}, "grouped convolutions"),
        ("caffe-mpi", {"net": "transformer"}, "images only"),
        ("jax", {"precision": "bfloat16"}, "float32"),
        ("chainer", {"compression": "powersgd"}, "compression"),
        ("horovod", {"transport": "zmq"}, "transport"),
        ("deepspeed/zero2", {"shard_stage": 3}, "shard_stage"),
        ("paddle", {"accumulate": 2}, "accumulation"),
        ("pytorch/fsdp2", {"aggregation": "allreduce"}, "shards"),
        ("script", {}, "[script]"),
    ],
)
def test_what_a_framework_cannot_do_is_refused(name: str, fields: dict[str, str], words: str) -> None:
    asked = case(name, **fields)
    assert words in (ADAPTERS[name.split("/")[0]].refusal(asked) or "")


@pytest.mark.parametrize("name", [name for name in framework_names() if name != "script/command"])
def test_the_network_of_the_comparison_is_refused_by_none(name: str) -> None:
    assert ADAPTERS[name.split("/")[0]].refusal(case(name, ranks=1)) is None


def test_a_flattened_image_is_followed_to_the_matrix_that_reads_it() -> None:
    assert flattened_images(plain_network(PROOF_NETWORKS["plain"])) == ({"fc1": (12, 3, 3)}, set())


@pytest.mark.parametrize(
    ("name", "images", "moving"),
    [
        ("add-after-flatten", {"out": (8, 8, 8)}, set()),
        ("concat-after-flatten", {}, {"flatconv", "flatsecond"}),
        ("layer-norm-after-flatten", {}, {"flatconv"}),
    ],
)
def test_a_flatten_whose_order_another_layer_notices_moves_the_channels(
    name: str, images: dict[str, object], moving: set[str]
) -> None:
    plain = plain_network(network_family()[name])
    assert flattened_images(plain) == (images, moving)


def test_a_mean_leaves_out_what_lies_beyond_the_padding() -> None:
    pool = {"kernel": (3, 2), "stride": (2, 3), "padding": (1, 0), "shape": (8, 4, 3)}
    rows, columns = pool_shares(pool, (8, 6, 7)) or ([], [])
    assert rows == [1, 1, 1, 1.5]
    assert columns == [1, 1, 2]
    assert pool_shares({**pool, "shape": (8, 3, 2)}, (8, 6, 7)) is None


def test_every_layer_has_a_key_of_its_own() -> None:
    plain = plain_network(network_family()["names"])
    keys = layer_keys(plain)
    assert len(set(keys.values())) == len(plain["layers"])
    assert all(key.isascii() and key.isidentifier() for key in keys.values())


def test_names_cannot_break_caffes_text() -> None:
    text = train_prototxt(plain_network(network_family()["names"]), batch=2)
    assert "say" not in text
    assert text.count('top: "label"') == 1


def test_caffe_takes_every_second_pixel_of_an_even_image() -> None:
    """Caffe rounds up: a 1x1 window of stride 2 on 16 pixels would give nine."""
    text = train_prototxt(plain_network(network("resnet20")), batch=2)
    assert "slice_point: 16" in text
    assert "slice_point: 8" in text


@pytest.mark.parametrize(
    ("name", "family", "words"),
    [
        ("mxnet/dist_sync", "lrn-4", "(lrn): MXNet's windows are symmetric"),
        ("caffe/single", "lrn-4", "odd values"),
        ("caffe/single", "linear-on-image", "(rows): Caffe's InnerProduct reads the whole image"),
        ("singa/allreduce", "layer-norm-after-flatten", "(norm): SINGA 3.0.0.dev1's autograd has no layer norm"),
        ("singa/allreduce", "add-of-three", "(sum): SINGA's autograd adds gradients in place"),
    ],
)
def test_what_a_builder_cannot_do_is_refused_before_the_launch(name: str, family: str, words: str) -> None:
    asked = case(name, ranks=1).model_copy(update={"network": network_family()[family]})
    assert words in (ADAPTERS[name.split("/")[0]].refusal(asked) or "")


IN_A_CASE = (
    "jax/data_parallel",
    "mxnet/dist_sync",
    "tensorflow/multiworker",
    "keras/jax",
    "caffe/single",
    "horovod/pytorch",
)


@pytest.mark.parametrize("name", IN_A_CASE)
def test_a_network_that_ends_in_an_image_is_refused_before_the_launch(name: str) -> None:
    """The loss is taken over the last axis: with channels last, that is another one than in the reference."""
    flat = case(name, "lenet", ranks=1)
    image = flat.network.model_copy(update={"layers": flat.network.layers[:2]})
    assert len(layer_costs(image)[-1].shape) == 3
    refused = ADAPTERS[name.split("/")[0]].refusal(flat.model_copy(update={"network": image}))
    assert refused is not None
    assert f"lenet ends in an image ({image.layers[-1].name})" in refused
    assert ADAPTERS[name.split("/")[0]].refusal(flat) is None


def test_windows_that_are_rounded_up_get_padding_after() -> None:
    layer = next(item for item in plain_network(PROOF_NETWORKS["inception"])["layers"] if item["name"] == "pool1")
    assert pool_padding(layer, (8, 14, 14)) == ((0, 1), (0, 1))


def test_caffe_cuts_what_its_rounding_up_adds() -> None:
    text = train_prototxt(plain_network(PROOF_NETWORKS["residual"]), batch=2)
    assert "slice_point: 7" in text
    assert text.count('type: "Scale"') == 2


def test_weights_and_batches_depend_on_the_seed_alone() -> None:
    job = {"network": plain_network(network("lenet")), "batch": 3, "seed": 5}
    first, again = synthetic_batch(job, 1), synthetic_batch(job, 1)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not (synthetic_batch(job, 2)[0] == first[0]).all()
    tensors = initial_tensors(job["network"], 5)
    assert {name: value.shape for name, value in tensors.items()} == tensor_shapes(job["network"])
    assert shard(np.arange(8), 1, 2).tolist() == [4, 5, 6, 7]


def test_images_survive_png() -> None:
    pixels = np.random.default_rng(1).integers(256, size=(5, 7, 3), dtype=np.uint8)
    assert (decode_png(encode_png(pixels)) == pixels).all()
    with pytest.raises(ValueError, match="PNG"):
        decode_png(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)


@pytest.mark.parametrize(("name", "kind"), [("resnet20", "cifar"), ("lenet", "folder")])
def test_data_sets_are_made_once_and_read(
    name: str, kind: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    found = data_set(network(name))
    assert found == data_set(network(name))
    assert found["kind"] == kind
    job = {"network": plain_network(network(name)), "data": found, "batch": 6, "ranks": 2, "seed": 0}
    image, label = FileSet(job)[3]
    assert image.shape == network(name).input.shape
    assert image.dtype == np.float32
    assert -1 <= image.min() < image.max() <= 1
    assert 0 <= label < 4
    images, labels = next(read_ahead(job, 1))
    assert images.shape == (6, *network(name).input.shape)
    assert labels.shape == (6,)


def test_text_is_not_read_from_files() -> None:
    with pytest.raises(Unsupported):
        data_set(network("gpt2-tiny"))


SCRIPT = {"command": ["{bin}/run", "-n", "{ranks}", "--batch={batch}"], "pattern": r"(?P<per_rank>[0-9.]+) img/s"}


def test_an_own_script_is_filled_in_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_BIN", "/env/bin")
    monkeypatch.setenv("PACELINE_HERE", "/work")
    job = {"ranks": 2, "batch": 32, "threads": 1, "script": SCRIPT}
    assert command_of(job) == ["/env/bin/run", "-n", "2", "--batch=32"]
    assert reading_of("Iter 1: 320.0 img/s", job) == pytest.approx(0.1)
    assert reading_of("warming up", job) is None
    own = {**job, "script": {"command": ["x"], "pattern": None}}
    assert reading_of('paceline: {"seconds": 0.25}', own) == 0.25
    assert reading_of('paceline: {"throughput": 640}', own) == pytest.approx(0.1)


def test_a_script_without_a_readable_pattern_is_refused() -> None:
    script = {"command": ["true"], "pattern": "("}
    asked = Case.model_validate_json(json.dumps({**case("script").model_dump(mode="json"), "script": script}))
    assert "regular expression" in (ADAPTERS["script"].refusal(asked) or "")


def test_the_judge_names_the_layer_that_differs() -> None:
    expected = {"logits": np.ones(4), "loss": np.ones(()), "g/conv.weight": np.ones(3), "w/conv.weight": np.ones(3)}
    good = verify._judge("x/y", "plain", [expected], expected)
    assert good.status == "equal"
    summed = {**expected, "g/conv.weight": 2 * np.ones(3)}
    bad = verify._judge("x/y", "plain", [summed], expected)
    assert verify._judge("x/y", "plain", [expected, summed], expected).status == "different", "every rank is judged"
    assert bad.status == "different"
    assert "layer 'conv': gradient of weight" in bad.reason
    lacking = verify._judge("x/y", "plain", [{"logits": np.ones(4), "loss": np.ones(())}], expected)
    assert lacking.status == "different"
    undefined = verify._judge("x/y", "plain", [{**expected, "logits": np.full(4, np.nan)}], expected)
    assert undefined.status == "different"


@pytest.mark.parametrize(
    ("key", "error", "status"),
    [
        ("g/conv.bias", 3.9e-6, "equal"),  # its terms cancel: the rounding of gradients of norm 4 is all there is
        ("g/conv.bias", 4.1e-6, "different"),
        ("g/out.bias", 9e-8, "equal"),
        ("g/out.bias", 1.1e-7, "different"),  # another layer's gradients do not count
        ("w/conv.bias", 1.1e-7, "different"),
    ],
)
def test_a_gradient_that_cancels_out_is_judged_beside_those_of_its_layer(key: str, error: float, status: str) -> None:
    expected = {"g/conv.weight": np.full(4, 2.0), "w/conv.weight": np.full(4, 2.0)}
    expected |= {name: np.zeros(1) for name in ("g/conv.bias", "g/out.bias", "w/conv.bias")}
    assert verify._judge("x/y", "plain", [expected | {key: np.array([error])}], expected).status == status


def test_summed_gradients_would_be_noticed(pytorch: object) -> None:
    """The steps of the proof are large enough to tell averaged from summed gradients."""
    net = PROOF_NETWORKS["plain"]
    verify._compute_references([net])
    expected, given = verify._known[net.digest], verify._given(net)
    moved = {key: expected[key] - given[key] for key in expected if key.startswith("w/")}
    summed = {key: given[key] + 2 * step for key, step in moved.items()}
    assert verify._judge("x/y", "plain", [summed, summed], expected).status == "different"


def test_the_list_has_every_framework_and_a_status(paceline: Command) -> None:
    rows = paceline.json("frameworks")["frameworks"]
    assert {row["name"] for row in rows} == set(ADAPTERS)
    assert {row["status"] for row in rows} <= {"ready", "installable", "unavailable"}
    assert [row.name for row in availability()] == [row["name"] for row in rows]


def test_a_wrong_name_is_one_clear_error(paceline: Command) -> None:
    assert "did you mean 'tensorflow'" in paceline("frameworks", "install", "tensorflov", code=2)
    assert "no framework" in paceline("frameworks", "verify", "nothing", code=2)


def test_modes_that_are_not_installed_are_skipped_and_named(
    paceline: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    assert "not installed: paceline frameworks install" in (verify._refusal(case("horovod/pytorch")) or "")
    (tmp_path / "environments").mkdir()
    for name in environments_of("horovod/pytorch"):
        environments._folder(environments.recipe_of(name)).mkdir()
    assert verify._refusal(case("horovod/pytorch")) is None
    assert "horovod/tensorflow" in (verify._refusal(case("horovod/tensorflow")) or "")
    paceline.env["PACELINE_HOME"] = str(tmp_path)
    error = paceline("frameworks", "verify", "mxnet", code=1)
    assert "mxnet is not installed" in error
    assert "paceline frameworks install mxnet" in error


def test_modes_that_no_proof_fits_are_proved_on_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "missing_environments", lambda name: [])
    for name, why in verify.UNPROVABLE.items():
        assert verify._refusal(case(name, "plain", ranks=1)) is None
        assert verify._refusal(case(name, "plain", ranks=2)) == why
    assert verify._refusal(case("mxnet/dist_sync", "plain", ranks=2)) is None
    assert verify._refusal(case("mxnet/dist_sync", "residual", ranks=2)) == "each rank normalises its own batch"


@pytest.mark.parametrize(("dies", "code", "said"), [
    ("import os; os.write(2, b'F1117 00:01:02.3  1 a.cpp:1] Check failed: 16 == 17\\n'); os.abort()", 134,
     "rank 0 was ended by SIGABRT in measure: a.cpp:1: Check failed: 16 == 17"),
    ("raise SystemExit('the data set is missing')", 1, "rank 0: exit code 1; its last line: the data set is missing"),
    ("raise OSError(28, 'No space left')", 1, "rank 0: OSError: [Errno 28] No space left"),
    ("pass", 1, "rank 0: Script: no line of its output could be read as a speed"),
])  # fmt: skip
def test_a_command_that_dies_names_its_reason(tmp_path: Path, dies: str, code: int, said: str) -> None:
    job = {"ranks": 1, "batch": 8, "threads": 1, "script": {"command": ["{python}", "-c", dies], "pattern": None}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    env = {**os.environ, "PACELINE_JOB": str(tmp_path / "job.json"), "PACELINE_EVENTS": str(tmp_path / "rank-0.jsonl")}
    process = Process("rank 0", host=0, argv=(), env={}, rank=0, log=tmp_path / "log")
    with process.log.open("wb") as log:
        argv = [sys.executable, "-m", "paceline.bench.frameworks.script.worker"]
        done = subprocess.run(argv, env={**env, "PACELINE_HERE": "."}, stdout=log, stderr=log, check=False)
    assert done.returncode == code
    report = read_report(tmp_path / "rank-0.jsonl", 0)
    failure = explain_failure([process], [report], Ending({"rank 0": code}, ("rank 0",)))
    assert failure is not None
    assert failure.message == said
