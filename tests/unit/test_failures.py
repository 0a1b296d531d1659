# ruff: noqa: E501
"""Logs as processes leave them: the line that explains is found, and consequences are not taken for causes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.measurements.failures import exit_description, explain_log, signal_of

CAFFE = """I1117 00:01:02.345678  4321 net.cpp:84] Creating Layer join
I1117 00:01:02.345701  4321 net.cpp:406] join <- conv_a
F1117 00:01:02.345712  4321 concat_layer.cpp:42] Check failed: top_shape[j] == bottom[i]->shape(j) (16 vs. 17) All inputs must have the same shape
*** Check failure stack trace: ***
    @     0x7f0f0d4a0b3c  google::LogMessage::Fail()
Aborted (core dumped)
"""
TENSORFLOW = """2026-11-17 00:01:02.345678: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary
2026-11-17 00:01:03.000001: F tensorflow/core/framework/tensor_shape.cc:607] Check failed: size >= 0 (-4 vs. 0)
Aborted
"""
ABSL = "F0000 00:00:1719854321.123456   12345 pjrt_client.cc:12] Check failed: device != nullptr \n"
MXNET = """[00:01:02] src/storage/storage.cc:196: Using Pooled (Naive) StorageManager for CPU
[00:01:02] ../src/operator/tensor/la_op.h:12: Check failed: a == b (3 vs. 4) : shapes differ
terminate called after throwing an instance of 'dmlc::Error'
  what():  [00:01:02] ../src/operator/tensor/la_op.h:12: Check failed: a == b (3 vs. 4) : shapes differ
"""
CPP = """setting up
terminate called after throwing an instance of 'c10::Error'
  what():  Expected all tensors to be on the same device, but found at least two devices
Exception raised from check at ../aten/src/ATen/native.cpp:12 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation)
"""
CLANG = "libc++abi: terminating due to uncaught exception of type std::runtime_error: no such blob\n"
CHAINED = """Traceback (most recent call last):
  File "worker.py", line 3, in <module>
    int("x")
ValueError: invalid literal for int() with base 10: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 5, in <module>
    raise RuntimeError("cannot read the batch")
RuntimeError: cannot read the batch
"""
TWO = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
OSError: this one was caught and logged
some other line
Traceback (most recent call last):
  File "a.py", line 9, in <module>
KeyError: 'conv1'
"""
ABORT = """MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 5.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""
MPI_ERROR = """[node1:12345] *** An error occurred in MPI_Allreduce
[node1:12345] *** reported by process [123,1]
[node1:12345] *** on communicator MPI_COMM_WORLD
[node1:12345] *** MPI_ERR_TRUNCATE: message truncated
[node1:12345] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
"""
TAGGED = """[1,0]<stderr>:Traceback (most recent call last):
[1,0]<stderr>:  File "train.py", line 1, in <module>
[1,0]<stderr>:ModuleNotFoundError: No module named 'horovod'
--------------------------------------------------------------------------
mpirun noticed that process rank 0 with PID 12 on node a exited on signal 6 (Aborted).
"""
RANKED = TAGGED.replace("[1,0]<stderr>:", "[rank0]: ")
SRUN = TAGGED.replace("[1,0]<stderr>:", "0: ")

LOGS = {
    "glog": (CAFFE, "concat_layer.cpp:42: Check failed: top_shape[j] == bottom[i]->shape(j) (16 vs. 17)"),
    "glog of TensorFlow": (TENSORFLOW, "tensorflow/core/framework/tensor_shape.cc:607: Check failed: size >= 0 (-4 vs. 0)"),
    "absl": (ABSL, "pjrt_client.cc:12: Check failed: device != nullptr"),
    "dmlc": (MXNET, "../src/operator/tensor/la_op.h:12: Check failed: a == b (3 vs. 4) : shapes differ"),
    "C++": (CPP, "c10::Error: Expected all tensors to be on the same device, but found at least two devices"),
    "clang": (CLANG, "std::runtime_error: no such blob"),
    "C++ of no kind": ("terminate called after throwing an instance of 'int'\nAborted\n", "int"),
    "C++ thread": ("terminate called without an active exception\n", "terminate called without an active exception"),
    "chained": (CHAINED, "RuntimeError: cannot read the batch (after ValueError: invalid literal for int() with base 10: 'x')"),
    "last of two": (TWO, "KeyError: 'conv1'"),
    "loader": ("Traceback (most recent call last):\n  File \"a\"\nValueError: Caught ValueError in DataLoader worker process 0.\n"
               "Original Traceback (most recent call last):\n  File \"b\"\nValueError: cannot decode 17.jpg\n\n",
               "ValueError: cannot decode 17.jpg"),
    "mpirun": (TAGGED, "ModuleNotFoundError: No module named 'horovod'"),
    "torchrun": (RANKED, "ModuleNotFoundError: No module named 'horovod'"),
    "srun": (SRUN, "ModuleNotFoundError: No module named 'horovod'"),
    "module": ("/usr/bin/python3: No module named paceline\n", "/usr/bin/python3: No module named paceline"),
    "library": ("./a: error while loading shared libraries: libmpi.so.40: cannot open shared object file\n",
                "./a: error while loading shared libraries: libmpi.so.40: cannot open shared object file"),
    "assertion": ("a: b.c:12: main: Assertion `x > 0' failed.\nAborted\n", "a: b.c:12: main: Assertion `x > 0' failed."),
    "cuda": ("step 3\nRuntimeError: CUDA error: device-side assert triggered\n", "RuntimeError: CUDA error: device-side assert"),
    "nccl": ("node1:12 [0] NCCL error : unhandled system error\n", "NCCL error : unhandled system error"),
    "MPI abort": (ABORT, "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD with errorcode 5"),
    "MPI error": (MPI_ERROR, "MPI_Allreduce: MPI_ERR_TRUNCATE: message truncated"),
    "MPICH": ("Fatal error in PMPI_Send: Invalid rank, error stack:\n", "Fatal error in PMPI_Send: Invalid rank, error stack:"),
    "MPICH abort": ("application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0\n", "application called MPI_Abort("),
    "interpreter": ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n", "Fatal Python error: Segmentation fault"),
    "C library": ("free(): invalid pointer\nAborted\n", "free(): invalid pointer"),
    "colours": ("\x1b[31mF1117 00:01:02.3  1 a.cpp:1] Check failed: x\x1b[0m\r\n", "a.cpp:1: Check failed: x"),
}  # fmt: skip
MEMORY = {
    "torch": "Traceback (most recent call last):\n  File \"a\"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
    "torch on the host": "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory\n",
    "numpy": "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 TiB for an array with shape\n",
    "Python": "Traceback (most recent call last):\n  File \"a\"\nMemoryError\n",
    "C++": "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
    "XLA": "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.\n",
    "Slurm": "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n",
    "kernel": "[12.3] Out of memory: Killed process 12 (python) total-vm:1kB\n",
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_the_line_that_explains_is_found(name: str) -> None:
    log, expected = LOGS[name]
    for around in (log, "I1117 00:00:00.0  1 a.cpp:1] fine\n" + log + "\nbye\n"):
        found = explain_log(around)
        assert found is not None
        assert expected in found.line
        assert not found.out_of_memory


@pytest.mark.parametrize("name", MEMORY)
def test_out_of_memory_is_known_by_every_way_to_say_it(name: str) -> None:
    found = explain_log("step 1\n" + MEMORY[name])
    assert found is not None
    assert found.out_of_memory
    assert found.line in MEMORY[name].replace("\n", " ")


@pytest.mark.parametrize(
    "log", ["", "step 1\nstep 2\n", "WARNING: retrying\nI1117 00:01:02.3 1 a.cpp:1] ok\n", "\x00\xff" * 99]
)
def test_an_innocent_log_explains_nothing(log: str) -> None:
    assert explain_log(log) is None


def test_a_line_is_short_enough_for_a_table() -> None:
    found = explain_log("F1117 00:01:02.3  1 a.cpp:1] Check failed: " + "x" * 10_000)
    assert found is not None
    assert len(found.line) == 300


@pytest.mark.parametrize(("code", "name", "death"), [
    (-6, "SIGABRT", "crash"), (134, "SIGABRT", "crash"), (-9, "SIGKILL", "killed"), (137, "SIGKILL", "killed"),
    (-11, "SIGSEGV", "crash"), (139, "SIGSEGV", "crash"), (143, "SIGTERM", "killed"), (-40, "signal 40", "killed"),
    (1, None, None), (0, None, None), (None, None, None), (128, None, None), (255, None, None),
    (129, "SIGHUP", "killed"), (-1, "SIGHUP", "killed"), (192, "SIGRTMAX", "killed"), (193, None, None),
])  # fmt: skip
def test_signals_have_names(code: int | None, name: str | None, death: str | None) -> None:
    assert (signal_of(code), exit_description(code)) == (name, death)


DYING = {
    "raise SystemExit(__import__('nothing_there'))": "ModuleNotFoundError: No module named 'nothing_there'",
    "import os; os.write(2, b'F1117 00:01:02.3  1 a.cpp:1] Check failed: 16 == 17\\n'); os.abort()": "Check failed: 16 == 17",
    "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)": "Fatal Python error: Segmentation fault",
    "import ctypes; ctypes.CDLL(None).__assert_fail(b'x > 0', b'b.c', 12, b'main')": "Assertion `x > 0' failed",
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29)); bytearray(2**30)": "MemoryError",
    "try:\n 1/0\nexcept ZeroDivisionError as error:\n raise OSError('no batch') from error": "OSError: no batch (after ZeroDivision",
    "raise ExceptionGroup('two failed', [ValueError('shard 3 is empty'), OSError('b')])": "ExceptionGroup: ValueError: shard 3 is empty",
    "import ctypes; ctypes.CDLL(None).free(ctypes.c_void_p(0x1234568))": None,
}  # fmt: skip


@pytest.mark.parametrize("code", DYING)
def test_processes_that_really_die_explain_themselves(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = explain_log(done.stdout + done.stderr)
    if DYING[code] is None:
        assert exit_description(done.returncode) == "crash"
    else:
        assert done.returncode != 0
        assert found is not None
        assert DYING[code] in found.line


def test_an_uncaught_cpp_exception_explains_itself(tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "a.cpp"
    source.write_text('#include <stdexcept>\nint main() { throw std::runtime_error("no such blob"); }\n')
    made = subprocess.run(["g++", "-o", str(tmp_path / "a"), str(source)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no C++ compiler")
    done = subprocess.run([str(tmp_path / "a")], capture_output=True, text=True, check=False)
    found = explain_log(done.stderr)
    assert found is not None
    assert found.line == "std::runtime_error: no such blob"
    assert signal_of(done.returncode) == "SIGABRT"


def test_of_a_chain_the_first_exception_is_named_and_none_before_the_chain() -> None:
    def raised(what: str) -> str:
        return f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{what}\n'

    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    one, two, three = (raised(f"{name}Error: {name}") for name in ("One", "Two", "Three"))
    for log, line in (
        (one + cause + two + handling + three, "ThreeError: Three (after OneError: One)"),
        (one + "warned\n" + two + cause + three, "ThreeError: Three (after TwoError: Two)"),
        (one + cause + two + "warned\n" + three, "ThreeError: Three"),
        (three + handling + three, "ThreeError: Three"),
    ):
        found = explain_log(log)
        assert found is not None
        assert found.line == line


def test_colours_of_a_terminal_do_not_hide_the_cause() -> None:
    found = explain_log("\x1b[1m\x1b[31mSegmentation fault\x1b[0m (core dumped)\n")
    assert found is not None
    assert (found.sign, found.line) == ("segmentation fault", "Segmentation fault")
