"""Bad input, no device, no memory, a lost device: each says what was wrong, and harms nothing."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.shader.glsl import compile_glsl
from tests.conftest import OpenDevice, leave_to_python
from tests.kernels import HEAD, SAXPY, saxpy, slow_add, slow_copy

N = 64
MIB = 1 << 20


def test_every_error_is_also_of_a_built_in_kind() -> None:
    kinds: dict[type[Exception], str] = {
        TypeError: "ArgumentError DtypeMismatch",
        ValueError: "ShapeMismatch InvalidValue ReadOnly CannotAdopt CompileError "
        "InvalidSpirv Closed",
        RuntimeError: "CompilerNotFound Unsupported NoDevice DeviceLost ForkedDevice",
        BufferError: "ViewHeld",
        MemoryError: "OutOfMemory",
        TimeoutError: "Timeout",
    }
    for kind, names in kinds.items():
        for name in names.split():
            assert issubclass(getattr(ps, name), ps.Error)
            assert issubclass(getattr(ps, name), kind)


# Bad input. Each case is: who says no, what the message must say, and the call.


class Tensor:
    """As another library has them: with a shape, and to be shared through DLPack."""

    shape = (N,)
    dtype = "library.float32"
    requires_grad = False

    def __init__(self, error: Exception | None = None, **attributes: Any) -> None:
        self._error = error
        vars(self).update(attributes)

    def __dlpack__(self, **_: Any) -> Any:
        raise self._error or AssertionError("not asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Bench:
    """Things to misuse."""

    def __init__(self, dev: ps.Device, other: ps.Device) -> None:
        self.dev, self.other = dev, other
        self.x, self.y = dev.ones(N, name="x"), dev.ones(N, name="y")
        self.grid = self.x.reshape(8, 8)
        self.ints, self.bytes = dev.zeros(N, np.int32), dev.zeros(N, np.uint8)
        self.closed = dev.ones(N, name="gone")
        self.closed.close()
        self.stream = dev.stream(name="ended")
        self.stream.close()

    def run(self, **changes: Any) -> None:
        arguments = {"x": self.x, "y": self.y, "a": 1.0, "n": N, "threads": N} | changes
        saxpy(self.dev)(**{k: v for k, v in arguments.items() if v is not None})


Case = tuple[Any, str, Callable[[Bench], Any]]
UNLIKE = (ps.DtypeMismatch, ps.InvalidValue)
WRITES: dict[str, Case] = {
    "dtype": (
        ps.DtypeMismatch, r"'x' is float32.*float64.*astype", lambda b: b.x.write(np.ones(N))
    ),
    "shape": (
        ps.ShapeMismatch,
        r"'x' has shape \(64,\).*\(8, 8\)",
        lambda b: b.x.write(np.ones((8, 8), np.float32)),
    ),
    "list too long": (ps.ShapeMismatch, r"\(64,\).*\(65,\)", lambda b: b.x.write([1.0] * 65)),
    "list of text": (UNLIKE, "float32", lambda b: b.x.write(["one"] * N)),
    "list of too large": (UNLIKE, "uint8", lambda b: b.bytes.write([300] * N)),
    "list of NumPy's too large": (
        ps.InvalidValue, r"300 does not fit uint8.*astype\('uint8'\)",
        lambda b: b.bytes.write([np.int64(300)] * N),
    ),
    "list of negative": (
        ps.InvalidValue, "-1 does not fit uint8.*astype", lambda b: b.bytes.write([0, -1] * 32)
    ),
    "list of fractions": (
        ps.DtypeMismatch, r"int32 cannot hold 1\.5.*astype", lambda b: b.ints.write([1.5] * N)
    ),
    "list to infinity": (
        ps.InvalidValue, r"1e\+300 does not fit float32.*astype", lambda b: b.x.write([1e300] * N)
    ),
    "list of inexact": (
        ps.InvalidValue, "16777217 does not fit float32.*astype",
        lambda b: b.x.write([16777217] * N),
    ),
    "list of digits": (ps.DtypeMismatch, "float32 cannot hold", lambda b: b.x.write(["1"] * N)),
    "memoryview of other dtype": (
        ps.DtypeMismatch, "float32.*float64.*astype", lambda b: b.x.write(memoryview(np.ones(N)))
    ),
    "new of too large": (
        ps.InvalidValue, "300 does not fit uint8.*astype",
        lambda b: b.dev.array(np.array([300, -1]), "uint8"),
    ),
    "new to infinity": (
        ps.InvalidValue, r"1e\+300 does not fit float32.*astype",
        lambda b: b.dev.array(np.array([1e300]), "float32"),
    ),
    "new of fractions": (
        ps.DtypeMismatch, r"int32 cannot hold 1\.5 \(float64\).*astype",
        lambda b: b.dev.array(np.array([1.5]), "int32"),
    ),
    "new flags": (
        ps.InvalidValue, "2 does not fit bool.*astype", lambda b: b.dev.array([0, 2], bool)
    ),
    "new time": (
        ps.InvalidValue, "does not fit datetime64.*astype",
        lambda b: b.dev.array([np.datetime64("2024-01-01T12")], "M8[D]"),
    ),
    "new time in text": (
        ps.InvalidValue, "2020-01-01T12:30 does not fit datetime64.D.*astype",
        lambda b: b.dev.array(["2020-01-01T12:30"], "M8[D]"),
    ),
    "new time in text of years to come": (
        ps.InvalidValue, "does not fit datetime64.ns.*astype",
        lambda b: b.dev.array(["9999999-01-01"], "M8[ns]"),
    ),
    "new time of Python's": (
        ps.InvalidValue, "1500000 microseconds does not fit timedelta64.s.*astype",
        lambda b: b.dev.array([timedelta(milliseconds=1500)], "m8[s]"),
    ),
    "new time in a record": (
        ps.InvalidValue, "does not fit datetime64.D.*astype",
        lambda b: b.dev.array([("2020-01-01T12:30",)], [("a", "M8[D]")]),
    ),
    "new time of a fraction": (
        ps.DtypeMismatch, r"timedelta64.s. cannot hold 1\.7.*astype",
        lambda b: b.dev.array(np.array([1.7]), "m8[s]"),
    ),
    "new time of a number that is none": (
        ps.InvalidValue, "-9223372036854775808 does not fit timedelta64.*astype",
        lambda b: b.dev.array([-(2**63)], "m8[s]"),
    ),
    "new days of years": (
        ps.DtypeMismatch, "timedelta64.D. cannot hold 400 years.*astype",
        lambda b: b.dev.array(np.array([400], "m8[Y]"), "m8[D]"),
    ),
    "new text in a record": (
        ps.InvalidValue, "'abcdef' does not fit .S3.*astype",
        lambda b: b.dev.array([("abcdef",)], [("a", "S3")]),
    ),
    "new bytes in a record": (
        ps.InvalidValue, "b'abcdef' does not fit .V4.*astype",
        lambda b: b.dev.array([(b"abcdef",)], [("a", "V4")]),
    ),
    "new of inexact beside a fraction, of any dtype": (
        ps.InvalidValue, "9007199254740993 does not fit float32.*astype",
        lambda b: b.dev.array([2**53 + 1, 0.5]),
    ),
    "new record": (
        ps.InvalidValue, "300 does not fit uint8.*astype",
        lambda b: b.dev.array([(np.int64(300), 1.0)], [("a", "u1"), ("b", "f4")]),
    ),
    "new record of a fraction": (
        ps.DtypeMismatch, r"int32 cannot hold 1\.5.*astype",
        lambda b: b.dev.array([(1.5, 1.0)], [("a", "i4"), ("b", "f4")]),
    ),
    "item too large": (
        ps.InvalidValue, "300 does not fit uint8.*astype",
        lambda b: b.bytes.__setitem__(slice(2), [np.int64(300)]),
    ),
    "item of other dtype in a memoryview": (
        ps.DtypeMismatch, "float32.*float64.*astype",
        lambda b: b.x.__setitem__(slice(2), memoryview(np.ones(2))),
    ),
    "ragged list": (
        (*UNLIKE, ps.ShapeMismatch), "float32|shape", lambda b: b.x.write([[1], [2, 3]])
    ),
    "array of other dtype": (
        ps.DtypeMismatch, "float32.*int32|int32.*float32", lambda b: b.x.write(b.ints)
    ),
    "closed": (ps.Closed, "'gone' is closed", lambda b: b.closed.write(np.ones(N, np.float32))),
    "stream": (ps.ArgumentError, "stream='main'", lambda b: b.x.write([1.0] * N, stream="main")),
    "stream of another device": (
        ps.ArgumentError,
        "not a stream of",
        lambda b: b.x.write([1.0] * N, stream=b.other.default_stream),
    ),
    "closed stream": (
        ps.Closed, "ended is closed", lambda b: b.x.write([1.0] * N, stream=b.stream)
    ),
    "item dtype": (ps.DtypeMismatch, "float64", lambda b: b.x.__setitem__(slice(2), np.ones(2))),
    "item shape": (
        ps.ShapeMismatch,
        r"\(3,\).*\(2,\)",
        lambda b: b.x.__setitem__(slice(2), [1, 2, 3]),
    ),
    "item text": (UNLIKE, "float32", lambda b: b.x.__setitem__(slice(2), ["a", "b"])),
    "item ragged": (
        ps.ShapeMismatch, "shape", lambda b: b.x.__setitem__(slice(2), [[1], [2, 3]])
    ),
    "item out of bounds": (ps.InvalidValue, "64.*axis 0", lambda b: b.x.__setitem__(64, 1)),
    "fill with text": (ps.DtypeMismatch, "'one'", lambda b: b.x.fill("one")),
    "fill with many": (ps.ShapeMismatch, r"one value.*\(2,\)", lambda b: b.x.fill([1, 2])),
    "fill with a fraction": (ps.DtypeMismatch, r"int32.*1\.5", lambda b: b.ints.fill(1.5)),
    "fill with too much": (ps.InvalidValue, "300.*uint8", lambda b: b.bytes.fill(300)),
    "fill with NumPy's too much": (
        ps.InvalidValue, "300.*int8", lambda b: b.bytes.reinterpret(np.int8).fill(np.int64(300))
    ),
    "fill with too large a fraction": (
        ps.InvalidValue, r"1e\+300.*float32", lambda b: b.x.fill(1e300)
    ),
    "fill with NumPy's too large a fraction": (
        ps.InvalidValue, r"1e\+300.*float32.*astype", lambda b: b.x.fill(np.float64(1e300))
    ),
    "fill with neither": (ps.InvalidValue, "2 does not fit bool", lambda b: b.dev.full(2, 2, bool)),
    "fill with infinity": (ps.Error, "int32", lambda b: b.ints.fill(float("inf"))),
    "fill of closed": (ps.Closed, "'gone'", lambda b: b.closed.fill(1)),
    "copy of NumPy's": (
        ps.ArgumentError, r"not ndarray.*write\(\)", lambda b: b.x.copy_from(np.ones(N))
    ),
    "copy of other dtype": (ps.DtypeMismatch, "int32.*float32", lambda b: b.x.copy_from(b.ints)),
    "copy of other shape": (
        ps.ShapeMismatch, r"\(8, 8\).*\(64,\)", lambda b: b.x.copy_from(b.grid)
    ),
    "copy of closed": (ps.Closed, "'gone'", lambda b: b.x.copy_from(b.closed)),
}  # fmt: skip
READS: dict[str, Case] = {
    "out of other dtype": (
        ps.DtypeMismatch, "float32.*float64", lambda b: b.x.read(out=np.ones(N))
    ),
    "out of other shape": (
        ps.ShapeMismatch, r"\(64,\).*\(2,\)", lambda b: b.x.read(out=np.ones(2, np.float32))
    ),
    "out is a list": (ps.ArgumentError, "not list", lambda b: b.x.read(out=[0] * N)),
    "out is read-only": (
        ps.ReadOnly,
        "out=",
        lambda b: b.x.read(out=np.broadcast_to(np.float32(1), N)),
    ),
    "closed": (ps.Closed, "'gone'", lambda b: b.closed.read()),
    "numpy of closed": (ps.Closed, "'gone'", lambda b: b.closed.numpy()),
    "slice of closed": (ps.Closed, "'gone'", lambda b: b.closed[1:]),
    "view of closed": (ps.Closed, "'gone'", lambda b: b.closed.view()),
    "view mode": (ps.InvalidValue, "'x'.*'rw'", lambda b: b.x.view("x")),
    "view backwards": (ps.Unsupported, "reversed", lambda b: b.x[::-1].view()),
    "no copy": (
        ps.InvalidValue, "float64.*copy=False", lambda b: np.array(b.x, np.float64, copy=False)
    ),
    "equal to None": (ps.ArgumentError, "None.*'x is None'", lambda b: b.x == None),  # noqa: E711
    "equal to an array of the host": (
        ps.ArgumentError, r"not ndarray.*dev\.asarray\(a\)$", lambda b: b.x == np.ones(64)
    ),
    "item of many": (ps.ShapeMismatch, "64", lambda b: b.x.item()),
    "length of none": (ps.ArgumentError, "0-d", lambda b: len(b.x[0])),
    "index": (ps.ArgumentError, "masks and arrays of integers, not str", lambda b: b.x["a"]),
    "too many indices": (ps.InvalidValue, "1 dimension.*2", lambda b: b.x[0, 0]),
}  # fmt: skip
SHAPES: dict[str, Case] = {
    "text": (ps.ArgumentError, "'3'", lambda b: b.dev.empty("3")),
    "fraction": (ps.ArgumentError, r"2\.5", lambda b: b.dev.empty((2.5, 1))),
    "negative": (ps.InvalidValue, "negative", lambda b: b.dev.zeros((3, -1))),
    "too many dimensions": (ps.InvalidValue, "64|dimensions", lambda b: b.dev.zeros((1,) * 65)),
    "ragged": (ps.Error, "inhomogeneous|ragged|shape", lambda b: b.dev.array([[1], [2, 3]])),
    "objects": (ps.DtypeMismatch, "object.*number", lambda b: b.dev.array([None, "a"])),
    "strings": (ps.DtypeMismatch, "U3.*number", lambda b: b.dev.array("abc")),
    "unknown dtype": (ps.DtypeMismatch, "'float33'", lambda b: b.dev.empty(3, "float33")),
    "dtype of no text": (ps.DtypeMismatch, "ud800", lambda b: b.dev.empty(3, "\ud800")),
    "byte order": (ps.DtypeMismatch, ">f4.*newbyteorder", lambda b: b.dev.empty(3, ">f4")),
    "empty dtype": (ps.DtypeMismatch, "V0|void", lambda b: b.dev.empty(3, "V0")),
    "reshape": (ps.ShapeMismatch, r"\(64,\), 64.*\(3, -1\)", lambda b: b.x.reshape(3, -1)),
    "reshape to an array": (ps.Error, "shape", lambda b: b.x.reshape(np.array([3, 5]))),
    "reshape twice unknown": (ps.ShapeMismatch, "-1, -1", lambda b: b.x.reshape(-1, -1)),
    "reshape of a slice": (
        ps.InvalidValue, "takes a copy.*copy=False",
        lambda b: b.dev.xp.reshape(b.grid[:, 1:], -1, copy=False),
    ),
    "reinterpret": (ps.ShapeMismatch, "12.*float64", lambda b: b.x[:3].reinterpret(np.float64)),
    "pitched too far": (
        ps.InvalidValue, "pitch 64.*256 bytes.*'x'", lambda b: b.x.pitched(5, 4, 64)
    ),
    "pitched too narrow": (ps.InvalidValue, "pitch 2", lambda b: b.x.pitched(2, 4, 2)),
    "adopt a list": (ps.ArgumentError, "NumPy array, not list", lambda b: b.dev.adopt([1, 2])),
    "gradients": (
        ps.ArgumentError, r"Tensor cannot be shared.*use tensor\.detach.*pass x\.detach\(\)",
        lambda b: b.dev.from_dlpack(
            Tensor(BufferError("requires gradient, use tensor.detach()"), requires_grad=True)
        ),
    ),
    "bfloat16": (
        ps.ArgumentError, r"not import bfloat16.*x\.view\(uint16\).*reinterpret\('bfloat16'\)",
        lambda b: b.dev.from_dlpack(Tensor(BufferError("dtype"), dtype="library.bfloat16")),
    ),
    "other tensor": (
        ps.ArgumentError, r"Tensor cannot be shared.*dev\.array",
        lambda b: b.dev.from_dlpack(Tensor(ValueError("sparse"))),
    ),
    "adopt objects": (ps.DtypeMismatch, "object", lambda b: b.dev.adopt(np.array([None]))),
}  # fmt: skip
CALLS: dict[str, Case] = {
    "unknown argument": (
        ps.ArgumentError, r"no argument 'z'.*signature.*saxpy\(x", lambda b: b.run(z=1)
    ),
    "missing array": (ps.ArgumentError, "'x' is missing.*signature", lambda b: b.run(x=None)),
    "missing scalar": (ps.ArgumentError, "'n' is missing", lambda b: b.run(n=None)),
    "a list for an array": (
        ps.ArgumentError, "'x'.*NumPy array, not list", lambda b: b.run(x=[1.0])
    ),
    "NumPy array of the wrong dtype": (
        ps.DtypeMismatch, "'x' must be float32, not float64", lambda b: b.run(x=np.ones(N))
    ),
    "read-only NumPy array that is written": (
        ps.ReadOnly, "'y' is written by the kernel",
        lambda b: b.run(y=np.broadcast_to(np.float32(0), N)),
    ),
    "a tensor of another library": (
        ps.ArgumentError, r"'x'.*not Tensor; dev\.from_dlpack\(x\)", lambda b: b.run(x=Tensor())
    ),
    "no names": (
        ps.ArgumentError, r"2 of the arguments have no name.*saxpy\(x=.*, y=.*signature",
        lambda b: saxpy(b.dev)(b.x, b.y, a=1, n=N, threads=N),
    ),
    "a tensor without a name": (
        ps.ArgumentError, "1 of the arguments have no name", lambda b: saxpy(b.dev)(Tensor())
    ),
    "a tensor for one element each": (
        ps.ArgumentError, r"not Tensor.*dev\.from_dlpack",
        lambda b: b.dev.elementwise("x[i] += 1", "inout float32 x")(Tensor()),
    ),
    "number for array": (ps.ArgumentError, "'x'.*not float", lambda b: b.run(x=1.5)),
    "array for number": (ps.Error, "'a'", lambda b: b.run(a=b.x)),
    "wrong dtype": (ps.DtypeMismatch, "'x' must be float32, not int32", lambda b: b.run(x=b.ints)),
    "no elements": (ps.ShapeMismatch, "'x' has 0 bytes.*4", lambda b: b.run(x=b.x[:0])),
    "not contiguous": (
        ps.ShapeMismatch, r"'x' is not contiguous.*copy\(\)", lambda b: b.run(x=b.x[::2])
    ),
    "not aligned": (
        ps.InvalidValue, r"'x' starts at byte.*multiples of.*copy\(\)", lambda b: b.run(x=b.x[1:])
    ),
    "another device": (
        ps.ArgumentError, "'x' is on .*copy it to that device", lambda b: b.run(x=b.other.ones(N))
    ),
    "closed array": (ps.Closed, "'gone' is closed", lambda b: b.run(x=b.closed)),
    "closed stream": (ps.Closed, "ended is closed", lambda b: b.run(stream=b.stream)),
    "stream of another device": (
        ps.ArgumentError, "not a stream", lambda b: b.run(stream=b.other.default_stream)
    ),
    "no amount": (ps.ArgumentError, "threads=.*groups=", lambda b: b.run(threads=None)),
    "two amounts": (ps.ArgumentError, "threads=.*groups=", lambda b: b.run(groups=1)),
    "negative amount": (ps.InvalidValue, "threads=-1", lambda b: b.run(threads=-1)),
    "fraction": (ps.ArgumentError, r"threads=.*1\.5", lambda b: b.run(threads=1.5)),
    "four dimensions": (ps.InvalidValue, "one to three", lambda b: b.run(threads=(1, 1, 1, 1))),
    "too many groups": (
        ps.InvalidValue, "at most", lambda b: b.run(threads=None, groups=(1, 1 << 30))
    ),
}  # fmt: skip
SPIRV = compile_glsl(SAXPY)
KERNELS: dict[str, Case] = {
    "no source": (ps.ArgumentError, "SPIR-V bytes or a path, not int", lambda b: b.dev.kernel(3)),
    "no such file": (ps.CompileError, r"missing\.comp", lambda b: b.dev.kernel("missing.comp")),
    "no such path": (ps.CompileError, "missing", lambda b: b.dev.kernel(Path("/missing/kernel"))),
    "no such file, short": (
        ps.CompileError, r"^there is no file 'saxpi\.comp'; a kernel is GLSL text, SPIR-V bytes or",
        lambda b: b.dev.kernel("saxpi.comp"),
    ),
    "a folder": (ps.CompileError, "neither GLSL text nor a file", lambda b: b.dev.kernel("/")),
    "CUDA": (
        ps.CompileError, r"^add is CUDA or HIP C\+\+.*GLSL compute shaders with void main\(\)",
        lambda b: b.dev.kernel("__global__ void f() {}", name="add"),
    ),
    "GLSL without semicolons": (
        ps.CompileError, "x:1: .*undeclared", lambda b: b.dev.kernel("void main(){y}", name="x")
    ),
    "half of GLSL": (
        ps.CompileError, "x:2: .*syntax error", lambda b: b.dev.kernel("void  main(", name="x")
    ),
    "null byte": (ps.Error, "null|neither GLSL", lambda b: b.dev.kernel("a\0b")),
    "empty text": (ps.CompileError, "GLSL|entry point", lambda b: b.dev.kernel("")),
    "GLSL": (
        ps.CompileError,
        r"bad:3: .*undeclared[\s\S]*y = 1;",
        lambda b: b.dev.kernel(HEAD + "void main() {\n  y = 1;\n}\n", name="bad"),
    ),
    "GLSL in one line": (
        ps.CompileError, r"bad:1: .*undeclared",
        lambda b: b.dev.kernel("layout(local_size_x = 1) in; void main() { y = 1; }", name="bad"),
    ),
    "GLSL after defines": (
        ps.CompileError,
        "bad:2: ",
        lambda b: b.dev.kernel(
            HEAD + "void main() { int i = SIZE; }", name="bad", defines={"SIZE": "1.5"}
        ),
    ),
    "empty SPIR-V": (ps.InvalidSpirv, "SPIR-V", lambda b: b.dev.kernel(b"")),
    "noise": (ps.InvalidSpirv, "SPIR-V", lambda b: b.dev.kernel(b"not a kernel at all!")),
    "cut short": (ps.InvalidSpirv, "SPIR-V", lambda b: b.dev.kernel(SPIRV[:-100])),
    "cut in a word": (ps.InvalidSpirv, "SPIR-V", lambda b: b.dev.kernel(SPIRV[:-3])),
    "only a header": (ps.InvalidSpirv, "SPIR-V.*entry", lambda b: b.dev.kernel(SPIRV[:20])),
    "defines for SPIR-V": (
        ps.ArgumentError, "defines=.*constants=", lambda b: b.dev.kernel(SPIRV, defines={"A": 1})
    ),
    "unknown constant": (
        ps.ArgumentError, "'SIZE'.*none", lambda b: b.dev.kernel(SPIRV, constants={"SIZE": 1})
    ),
    "constant by its number": (
        ps.ArgumentError, "constants=.*3 is no name",
        lambda b: b.dev.kernel(SPIRV, constants={3: 1}),
    ),
}  # fmt: skip
STREAMS: dict[str, Case] = {
    "wait for nothing": (ps.ArgumentError, "Event, not str", lambda b: b.dev.stream().wait("e")),
    "event of another device": (
        ps.ArgumentError,
        r"event\.wait\(\)",
        lambda b: b.dev.default_stream.wait(b.other.default_stream.record()),
    ),
    "record on closed": (ps.Closed, "ended is closed", lambda b: b.stream.record()),
    "flush of closed": (ps.Closed, "ended is closed", lambda b: b.stream.flush()),
    "synchronize closed": (ps.Closed, "ended is closed", lambda b: b.stream.synchronize()),
}
CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "write": WRITES,
        "read": READS,
        "shape": SHAPES,
        "call": CALLS,
        "kernel": KERNELS,
        "stream": STREAMS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.filterwarnings("ignore")  # an error is wanted, not a warning made into one
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_named_and_harms_nothing(case: Case, shared_device: OpenDevice) -> None:
    kind, words, call = case
    dev = shared_device()
    bench = Bench(dev, shared_device(transfers="unmapped"))
    used = dev.memory.used
    with pytest.raises(kind, match=words) as caught:
        call(bench)
    assert isinstance(caught.value, ps.Error)
    del caught
    if dev.memory.used != used:
        gc.collect()  # of what the traceback held
        assert dev.memory.used == used
    bench.run(a=2.0)
    assert (bench.y.numpy() == 3).all()
    assert (bench.x.numpy() == 1).all()
    assert not bench.ints.numpy().any()
    assert not bench.bytes.numpy().any()


# Numbers, flags and arrays of the caller's own classes, whose code may use the device.


class Asks:
    """Four, as far as anyone asks; which takes the device."""

    def __init__(self, dev: ps.Device) -> None:
        self.dev = dev
        self.asked = 0

    def __index__(self) -> int:
        self.asked += 1
        assert self.dev.memory.used
        return 4

    def __float__(self) -> float:
        return float(self.__index__())

    def __bool__(self) -> bool:
        return bool(self.__index__())

    def __repr__(self) -> str:
        return f"four{self.__index__()}"


class Watched(np.ndarray[Any, Any]):
    """An array that uses the device whenever NumPy works on it."""

    dev: ps.Device

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        assert self.dev.memory.used
        return super().__array_function__(function, types, args, kwargs)


def watched(dev: ps.Device, n: int = N) -> Any:
    made = np.full(n, 3, np.float32).view(Watched)
    made.dev = dev
    return made


def recorded(b: Bench, four: Any) -> list[float]:
    with b.dev.record() as g:
        b.run(a=four, n=four, threads=(four, 1))
    asked = four.asked
    g.replay()
    g.replay()
    assert four.asked == asked  # a replay is of what was recorded
    return b.y[:5].tolist()


def replayed(b: Bench, **changes: Any) -> None:
    with b.dev.record(a=1.0) as g:
        b.run(a=g["a"])
    g.replay(**changes)


def written(b: Bench, put: Callable[[Any], object]) -> list[float]:
    put(watched(b.dev))
    return b.y[:2].tolist()


ASKED: dict[str, tuple[Callable[[Bench, Any], Any], Any]] = {
    "size": (lambda b, four: b.dev.empty(four).shape, (4,)),
    "sizes": (lambda b, four: b.dev.zeros((four, 3)).tolist(), [[0] * 3] * 4),
    "size of full": (lambda b, four: b.dev.full((four,), 2.5).tolist(), [2.5] * 4),
    "size of host_empty": (lambda b, four: b.dev.host_empty(four).shape, (4,)),
    "size of scratch": (lambda b, four: b.dev.scratch().array(four, keep=four).shape, (4,)),
    "bytes of scratch": (lambda b, four: b.dev.scratch().reserve(four, keep=four), None),
    "index": (lambda b, four: b.x[four].item(), 1),
    "slice": (lambda b, four: b.x[:four].shape, (4,)),
    "borrow": (lambda b, four: b.x.write([1.0] * N, borrow=four).result(), None),
    "launch": (lambda b, four: b.run(a=four, n=four, threads=four), None),
    "groups": (lambda b, four: b.run(a=four, n=four, threads=None, groups=(four, 1)), None),
    "recorded launch": (recorded, [9, 9, 9, 9, 1]),
    "write": (lambda b, _: written(b, b.y.write), [3, 3]),
    "item": (lambda b, _: written(b, lambda host: b.y.__setitem__(..., host)), [3, 3]),
    "NumPy argument": (lambda b, _: written(b, lambda host: b.run(x=host)), [4, 4]),
    "out": (lambda b, _: b.x.read(out=watched(b.dev)).result()[:2].tolist(), [1, 1]),
}


@pytest.mark.parametrize("case", ASKED.values(), ids=ASKED)
def test_the_callers_code_runs_without_the_lock(case: Any, shared_device: OpenDevice) -> None:
    """What a call has to ask its arguments, it asks before it takes the device's lock."""
    call, expected = case
    dev = shared_device()
    bench = Bench(dev, dev)
    assert call(bench, Asks(dev)) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda dev, n: dev.empty(n),
        lambda dev, n: dev.zeros((n, 2))[:, 0],
        lambda dev, n: dev.full((n,), 1.0),
        lambda dev, n: dev.scratch().array(n),
        lambda dev, n: dev.ones(N)[:n],
    ],
)
def test_sizes_may_be_results_and_arrays(make: Any, dev: ps.Device) -> None:
    three = dev.full(1, 3, np.int32)
    slow_add(dev.zeros(N, np.uint32), 1, spin=8_000)  # what the size is, is known later
    assert make(dev, dev.ones(3, np.int32).sum()).shape == (3,)
    assert make(dev, three[0]).shape == (3,)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("name= is text, not four4", lambda b, four: b.dev.empty(3, name=four)),
        ("name= is text", lambda b, four: b.dev.stream(name=four)),
        ("name= is text", lambda b, four: b.dev.scratch(name=four)),
        ("name= is text", lambda b, four: b.x.copy(name=four)),
        ("'a' must be a number or several, not four4", lambda b, four: replayed(b, a=four)),
        ("'a' must be a number or several, not .four4", lambda b, four: replayed(b, a=[four])),
        ("stream=four4", lambda b, four: replayed(b, stream=four)),
        ("stream=four4", lambda b, four: b.dev.scratch(four)),
        ("stream=four4", lambda b, four: b.x.write([1.0] * N, stream=four)),
        ("stream=four4", lambda b, four: b.x.fill(1, stream=four)),
        ("stream=four4", lambda b, four: b.x.read(stream=four)),
        ("stream=four4", lambda b, four: b.dev.empty(4, role="append").reset(stream=four)),
        ("stream=four4", lambda b, four: b.dev.empty(4, role="append").advance(stream=four)),
    ],
)
def test_what_is_no_name_or_stream_is_shown_without_the_lock(
    words: str, call: Any, shared_device: OpenDevice
) -> None:
    dev = shared_device()
    with pytest.raises(ps.ArgumentError, match=words):
        call(Bench(dev, dev), Asks(dev))


def test_arrays_of_no_elements_are_refused_by_name_only_when_they_are_needed(
    dev: ps.Device,
) -> None:
    nothing = dev.empty(0)
    with pytest.raises(ps.ShapeMismatch, match=r"'x' has 0 bytes; the kernel needs at least 4"):
        saxpy(dev)(x=nothing, y=dev.ones(1), a=1, n=0, threads=1)


def test_a_buffer_shorter_than_its_block_is_refused(dev: ps.Device) -> None:
    k = dev.kernel(
        HEAD
        + """layout(binding = 0) buffer Table { float row[16]; } table;
        void main() { table.row[gl_LocalInvocationID.x % 16] = 1; }""",
        name="fixed",
    )
    with pytest.raises(ps.ShapeMismatch, match=r"fixed.*'table' has 60 bytes.*at least 64"):
        k(table=dev.zeros(15), threads=16)
    table = dev.zeros(16)
    k(table=table, threads=64)
    assert (table.numpy() == 1).all()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"which": "no such GPU"}, ps.NoDevice, "'no such GPU'.*the devices are 0: "),
        ({"which": 99}, ps.NoDevice, "number 99.*the devices are 0: "),
        ({"which": -1}, ps.NoDevice, "number -1"),
        ({"which": 1.5}, ps.ArgumentError, r"name or a number, not 1\.5"),
        ({"which": True}, ps.ArgumentError, "not True"),
        ({"transfers": "teleport"}, ps.InvalidValue, "'teleport'.*auto, direct"),
        ({"driver": "abacus"}, ps.InvalidValue, "'abacus'.*'vulkan'"),
    ],
    ids=str,
)
def test_devices_that_cannot_be_opened(
    options: dict[str, Any], kind: type[ps.Error], words: str
) -> None:
    if not ps.devices():
        pytest.skip("no device at all")
    with pytest.raises(kind, match=words):
        ps.Device(**options)


# After the end.


def test_a_closed_device_says_so(open_device: OpenDevice) -> None:
    dev = open_device()
    bench = Bench(dev, dev)
    k, stream, event = dev.kernel(SAXPY), dev.stream(), dev.default_stream.record()
    pending = bench.x.read()
    dev.close()
    dev.close()
    assert dev.closed
    assert "closed" in repr(dev)
    for call in (
        lambda: dev.empty(1), lambda: dev.array([1.0]), lambda: dev.zeros(3), lambda: dev.memory,
        lambda: dev.host_empty(3), lambda: dev.adopt(np.ones(3)), lambda: dev.kernel(SAXPY),
        lambda: dev.stream(), lambda: dev.synchronize(), lambda: dev.trim(),
        lambda: bench.x.numpy(), lambda: bench.x.read(), lambda: bench.x.fill(1),
        lambda: bench.x.write([1.0] * N), lambda: bench.x.copy(), lambda: bench.x.view(),
        lambda: np.asarray(bench.x), lambda: bench.x.copy_from(bench.y), lambda: bench.x[0].item(),
        lambda: k(x=bench.x, y=bench.y, a=1, n=N, threads=N), lambda: stream.record(),
        lambda: stream.flush(), lambda: stream.synchronize(),
    ):  # fmt: skip
        with pytest.raises(ps.Closed, match="is closed"):
            call()
    assert (pending.result() == 1).all()
    assert event.done
    event.wait(0)
    for closable in (bench.x, k, stream, dev):
        closable.close()
        closable.close()


# No Vulkan.

_OPEN = """
import penstock as ps
assert ps.devices() == []
for attempt in (ps.Device, lambda: ps.Device("llvmpipe"), lambda: ps.Device(0)):
    try:
        attempt()
    except ps.NoDevice as error:
        assert isinstance(error, RuntimeError)
        print(error)
"""


@pytest.mark.parametrize("missing", ["loader", "driver files", "driver library", "drivers"])
def test_a_machine_without_vulkan_is_told_what_to_install(missing: str, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VK_")}
    environment["PYTHONPATH"] = str(Path(ps.__file__).parents[1])
    if missing == "loader":
        (tmp_path / "libvulkan.so.1").write_bytes(b"not a library" * 100)
        environment["LD_LIBRARY_PATH"] = str(tmp_path)
    elif missing == "driver files":
        environment["VK_DRIVER_FILES"] = str(tmp_path / "missing.json")
    elif missing == "driver library":
        manifest = tmp_path / "driver.json"
        library = {"library_path": "/missing.so", "api_version": "1.3.0"}
        manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": library}))
        environment["VK_DRIVER_FILES"] = str(manifest)
    else:
        environment["VK_DRIVER_FILES"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _OPEN], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 3
    for line in told:
        assert "apt install" in line
        assert ("libvulkan" if missing == "loader" else "driver") in line


# No memory.


@pytest.mark.parametrize("shape", [1 << 45, 1 << 62, (1 << 32, 1 << 32), 1 << 200], ids=str)
def test_more_than_there_is(shape: Any, dev: ps.Device) -> None:
    before = dev.memory
    asked = f"{4 * int(np.prod(shape, dtype=object)):,}"
    for make in (dev.empty, dev.zeros, dev.host_empty):
        with pytest.raises(ps.OutOfMemory, match=rf"asked for {asked} bytes.* in use.* free"):
            make(shape)
    assert dev.memory.used == before.used
    assert dev.memory.reserved <= before.reserved
    assert dev.ones(3).tolist() == [1, 1, 1]


BIG = 3 * MIB + 5
ALLOCATING: dict[str, Callable[[ps.Array], Any]] = {
    "empty": lambda x: x.device.empty(BIG, np.uint8),
    "array": lambda x: x.device.array(np.zeros(BIG, np.uint8)),
    "host_empty": lambda x: x.device.host_empty(BIG, np.uint8),
    "copy": lambda x: x.copy(),
    "write": lambda x: x.write(np.zeros(BIG, np.uint8)),
    "write in part": lambda x: x[1:].write(np.zeros(BIG - 1, np.uint8)),
    "fill in part": lambda x: x[1:].fill(3),
    "copy within": lambda x: x[1:].copy_from(x[:-1]),
    "read": lambda x: x.read(),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("mode", ["auto", "rename", "unmapped"])
@pytest.mark.parametrize("name", ALLOCATING)
def test_a_driver_out_of_memory_changes_nothing(
    name: str, mode: str, open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device(transfers=mode)
    source = np.arange(BIG).astype(np.uint8)
    x, other, spin = dev.array(source, name="x"), dev.array(source), dev.zeros(N, np.uint32)
    dev.synchronize()
    dev.trim()
    used = dev.memory.used
    slow_add(spin, 1)
    x.copy_from(other)  # pending behind the slow kernel: x is busy

    def allocate(nbytes: int, *, host: bool) -> Any:
        raise ps.OutOfMemory("vkAllocateMemory: the driver is out of memory (test)")

    with monkeypatch.context() as patch:
        patch.setattr(dev.scheduler.driver, "allocate", allocate)
        failed = None
        try:
            done = ALLOCATING[name](x)
        except ps.OutOfMemory as error:
            failed = str(error)
    if failed is None:  # there was room, or another way
        if isinstance(done, ps.Pending):
            done.result()
        return
    for part in ("asked for", "in use", "(test)"):
        assert part in failed
    assert (x.numpy() == source).all()
    dev.synchronize()
    gc.collect()
    assert dev.memory.used == used
    ALLOCATING[name](x)
    slow_add(spin, 1)
    assert (spin.numpy() == 2).all()


# A lost device.


def idle(dev: ps.Device) -> None:
    """Let the device, which is not lost in truth, come to rest."""
    dev.scheduler.driver.call.vkDeviceWaitIdle(dev.scheduler.driver.handle)


def submit(x: ps.Array) -> None:
    slow_add(x, 1, spin=1)
    x.device.default_stream.flush()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("at", ["wait", "submit", "poll"])
def test_a_lost_device_ends_everything_and_hangs_nothing(
    at: str, threaded_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = threaded_device
    x, y = dev.zeros(MIB, np.uint32), dev.zeros(MIB, np.uint32)
    k, stream, view = dev.kernel(SAXPY), dev.stream(), dev.ones(N).view()
    slow_copy(x, y, spin=100)
    event, read = dev.default_stream.record(), y.read()
    into = y.read(out=np.empty(MIB, np.uint32))
    write = y[1:].write(np.ones(MIB - 1, np.uint32), stream=stream, borrow=True)

    def lose(*_: Any) -> Any:
        raise ps.DeviceLost("vkTest: the device was lost (VK_ERROR_DEVICE_LOST)")

    leave_to_python(dev)
    monkeypatch.setattr(dev.scheduler.driver, "wait", lose)
    if at == "submit":
        monkeypatch.setattr(type(dev.default_stream.queue), "submit", lose)
        with pytest.raises(ps.DeviceLost):
            submit(x)
    elif at == "poll":
        monkeypatch.setattr(type(dev.default_stream.timeline), "value", lose)
        with pytest.raises(ps.DeviceLost):
            assert event.done
    for call in (
        lambda: event.wait(), lambda: read.result(), lambda: into.result(), lambda: write.result(),
        lambda: event.done, lambda: read.done, lambda: dev.synchronize(), lambda: x.numpy(),
        lambda: y.numpy(), lambda: y.view("w"), lambda: slow_add(x, 1), lambda: dev.empty(3),
        lambda: x.write(np.zeros(MIB, np.uint32)), lambda: x.fill(1), lambda: stream.record(),
        lambda: stream.flush(), lambda: stream.synchronize(), lambda: dev.kernel(SAXPY),
    ):  # fmt: skip
        with pytest.raises(ps.DeviceLost, match="vkTest"):
            call()
    monkeypatch.undo()
    idle(dev)
    for closable in (x, k, stream, dev):
        closable.close()
    assert dev.closed
    assert (view == 1).all()
