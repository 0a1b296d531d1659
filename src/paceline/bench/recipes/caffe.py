"""The environment of Caffe 1.0 from pinned packages of Debian 11, without root and without chroot.

ENV/rootfs              the packages, unpacked; Python 3.9, Caffe and every library they need
ENV/bin/caffe-python    starts that Python with Debian 11's own loader and libraries
ENV/lib                 OpenMPI, shared by mpirun and the ranks
"""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.bench.recipes.recipe import Workshop
from paceline.bench.recipes.transplant import fetch_wheel, unpack
from paceline.errors import EnvironmentFailed

__all__ = ["fetch_mpi4py", "unpack_debian_caffe"]

LOCK = Path(__file__).parents[1] / "frameworks" / "caffe" / "debian-packages.txt"
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


def unpack_debian_caffe(workshop: Workshop) -> None:
    """Download every pinned package, check its digest, unpack it."""
    wanted = [line.split() for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
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
    part = kept.with_suffix(f".part-{id(data)}")
    part.write_bytes(data)
    return part.rename(kept)


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


def fetch_mpi4py(workshop: Workshop) -> None:
    """mpi4py for Debian 11's Python, linked to this environment's OpenMPI."""
    wheel = fetch_wheel(workshop, "mpi4py==4.1.2", python="3.9", sha256=MPI4PY_SHA256)
    target = workshop.folder / "rootfs" / "usr" / "local" / "lib" / "python3.9" / "dist-packages"
    target.mkdir(parents=True, exist_ok=True)
    unpack(wheel, target)
