"""Checkpoints: verified, kept, replaced by the one before if damaged; a full disk does not end a training."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from paceline.bench.environments import worker_path
from tests.conftest import ROOT

CHECKS = Path(__file__).with_name("checkpoint_checks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def found(torch_python: Path, folder: Path) -> Any:
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    done = subprocess.run([torch_python, CHECKS, folder], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_saved_is_loaded_bit_for_bit(found: Any) -> None:
    assert found["round_trip"] is True
    assert found["only_before"] == [True, None]


def test_what_a_killed_process_left_half_written_goes_with_the_next_start(found: Any) -> None:
    assert found["killed"] == ["a", "a.tmp-", "b.tmp-"]


def test_a_checkpoint_is_on_disk_before_its_name_appears_and_its_folder_after(found: Any) -> None:
    assert found["synchronised"] == [["a", False], ["synchronised", True]]


def test_no_flipped_bit_is_loaded_without_a_word(found: Any) -> None:
    assert found["flips"] == 0


def test_a_damaged_checkpoint_is_replaced_by_the_one_before_with_a_warning(found: Any) -> None:
    *facts, said = found["falls_back"]
    assert facts == [True, True, True, True]
    assert len(said) == 1
    assert "does not match its checksum" in said[0]
    assert "a.damaged" in said[0]
    assert found["name_taken"] == [True, True]


@pytest.mark.parametrize(
    "name",
    ["torch.pt", "empty", "text", "deep", "long", "cut", *(f"{name}.safetensors" for name in (
        "plain", "other", "index", "shape", "hollow", "beyond", "list", "offset", "type", "kind"))],
)  # fmt: skip
def test_a_foreign_file_is_one_clear_error_and_stays(found: Any, name: str) -> None:
    error, is_there = found["foreign"][name]
    assert "not a sound checkpoint of Paceline" in error
    assert "hint:" in error
    assert is_there


@pytest.mark.parametrize("name", ["folder", "pipe", "nowhere"])
def test_what_is_no_file_is_refused_without_waiting(found: Any, name: str) -> None:
    assert found["foreign"][name][0].startswith("StoreError: cannot read the checkpoint")


def test_a_newer_checkpoint_is_refused_and_stays(found: Any) -> None:
    error, is_there = found["newer"]
    assert "newer Paceline (schema 99, this one reads 1)" in error
    assert is_there


def test_a_full_disk_is_a_warning_and_tried_again(found: Any) -> None:
    tried, kept, files, saved, said = found["full_disk"]
    assert tried == [8, 9, 11, 12, 16]
    assert kept == 4
    assert files == ["a"]
    assert saved is True
    assert len(said) == 2
    assert "File too large; training continues, and a later step tries again" in said[0]
    assert "could be written again" in said[1]


def test_a_checkpoint_of_another_model_is_one_clear_error(found: Any) -> None:
    error, step, equal = found["does_not_fit"]
    assert error.startswith("InputError: the checkpoint")
    assert "does not fit" in error
    assert (step, equal) == (7, True)


def test_the_safetensors_package_reads_a_checkpoint(found: Any, folder: Path) -> None:
    tensors = load_file(folder / "for_others" / "a.safetensors")
    read = {name[6:]: tensor.flatten().tolist() for name, tensor in tensors.items() if name.startswith("model.")}
    assert read == found["for_others"]


def test_plain_pytorch_goes_on_from_a_checkpoint(found: Any) -> None:
    assert found["by_torch_alone"] == [True, True, True]
    script = (ROOT / "examples" / "training" / "plain_resume.py").read_text(encoding="utf-8")
    assert "import paceline" not in script
    assert "from paceline" not in script


def test_a_checkpoint_is_written_while_training_goes_on(found: Any) -> None:
    assert found["beside"] == [True, True, True]
