"""Builds Horovod's wheel for one framework, once; later environments install the kept wheel."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.recipes.recipe import Workshop
from paceline.errors import EnvironmentFailed

__all__ = ["BuildHorovod"]

VERSION = "0.28.1"
FLAGS = {"pytorch": "PYTORCH", "tensorflow": "TENSORFLOW", "mxnet": "MXNET"}


@dataclass(frozen=True)
class BuildHorovod:
    """The step that adds Horovod, with Gloo and MPI, to an environment that has its framework."""

    framework: str

    def __call__(self, workshop: Workshop) -> None:
        """Install the wheel, after building it if there is none for these exact versions."""
        wheels = workshop.cache / "wheels"
        wheel = next(iter(wheels.glob("horovod-*.whl")), None)
        if wheel is None:
            wheel = self._build(workshop, wheels)
        workshop.pip("--no-deps", str(wheel))

    def _build(self, workshop: Workshop, wheels: Path) -> Path:
        scratch = workshop.folder / "build"
        source = self._source(workshop, scratch)
        switches = {
            f"HOROVOD_WITH{'' if name == self.framework else 'OUT'}_{flag}": "1" for name, flag in FLAGS.items()
        }
        env = {**switches, "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITH_MPI": "1", "MAKEFLAGS": "-j2"}
        env["PATH"] = f"{workshop.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        workshop.progress(f"building Horovod {VERSION} for {self.framework}; this takes minutes")
        pip = [str(workshop.python), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
        workshop.run([*pip, "-w", str(scratch / "wheels"), str(source)], env=env)
        built = next(iter((scratch / "wheels").glob("horovod-*.whl")))
        wheels.mkdir(parents=True, exist_ok=True)
        kept = Path(shutil.copy2(built, wheels / (built.name + ".part"))).rename(wheels / built.name)
        shutil.rmtree(scratch)
        return kept

    def _source(self, workshop: Workshop, scratch: Path) -> Path:
        scratch.mkdir()
        pip = [str(workshop.python), "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
        workshop.run([*pip, "--no-binary", ":all:", "-d", str(scratch), f"horovod=={VERSION}"])
        with tarfile.open(scratch / f"horovod-{VERSION}.tar.gz") as archive:
            archive.extractall(scratch, filter="data")
        source = scratch / f"horovod-{VERSION}"
        if self.framework == "pytorch":
            for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
                _raise_standard(source / name)
        return source


def _raise_standard(path: Path) -> None:
    """PyTorch 2.13's headers need C++20, Horovod asks for C++14."""
    text = path.read_text(encoding="utf-8")
    if "CMAKE_CXX_STANDARD 14" not in text:
        raise EnvironmentFailed(f"{path.name} of Horovod {VERSION} does not read as expected")
    path.write_text(text.replace("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 20"), encoding="utf-8")
