"""The shader library alone: every function of the table, on every driver, against NumPy.

`PENSTOCK_SWEEP=1` adds samples, and the functions of complex numbers that SwiftShader takes seconds
to compile; `python -m tests.ops.accuracy` prints the largest errors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import penstock as ps
from penstock.ops import library
from penstock.ops.arithmetic import (
    COMPUTE_TYPES,
    FUNCTIONS,
    REAL_OF,
    TYPES,
    Compute,
    Function,
    cast,
    compute_type,
)
from tests.ops import sweeps

LONG = bool(os.environ.get("PENSTOCK_SWEEP"))
COUNT = 1 << 20 if LONG else 1 << 12

#: The elementwise functions of the Array API standard 2025.12, and two more.
STANDARD = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert
bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1
floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less less_equal log log1p
log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply
negative nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh
square sqrt subtract tan tanh trunc
"""

#: Functions of complex numbers that between them call the others' parts.
SOME_COMPLEX = {"divide", "exp", "log1p", "sqrt", "tanh", "asinh", "atanh"}

#: Units in the last place. Of complex numbers: of the absolute value.
MOST_ERROR = {"f32": 4.0, "f64": 4.0, "c64": 6.0, "c128": 6.0}


def test_the_table_is_the_standards() -> None:
    assert sorted(FUNCTIONS) == sorted([*STANDARD.split(), "exp2", "where"])


@pytest.mark.parametrize("compute", COMPUTE_TYPES)
def test_every_function_matches_numpy(compute: Compute, dev: ps.Device) -> None:
    if compute not in sweeps.computes(dev):
        pytest.skip(f"{dev.info.name} has no double")
    if not sweeps.precise_enough(compute):
        pytest.skip("this machine's long double is a double")
    _compare(dev, compute)


@pytest.mark.parametrize("compute", ["i64", "u64"])
def test_integers_of_two_words(compute: Compute, dev: ps.Device) -> None:
    if "shaderInt64" not in dev.info.features:
        pytest.skip("the test above is of two words, too")
    _compare(dev, compute, int64=False)


def _compare(dev: ps.Device, compute: Compute, int64: bool | None = None) -> None:
    flushes = sweeps.flushes(dev)
    few = compute == "c64" and flushes and not LONG
    names = SOME_COMPLEX if few else {*FUNCTIONS}
    for bundle, functions in sweeps.bundles(dev, compute, int64, names):
        for function in functions:
            values = sweeps.operands(function, compute, COUNT)
            want = sweeps.wanted(function, compute, values)
            got = bundle(function.name, *values)
            keep = ~sweeps.excused(function, values, want)
            if flushes:
                keep &= sweeps.without_subnormals(values, want)
            _check(function, compute, got[keep], want[keep], [each[keep] for each in values])


def _check(function: Function, compute: Compute, got: Any, want: Any, values: list[Any]) -> None:
    assert got.dtype == sweeps.DTYPES[function.returns(compute)]
    if got.dtype.kind in "biu":
        wrong = got != want
    else:
        most = 0 if sweeps.exact(function, compute) else MOST_ERROR[compute]
        wrong = ~(sweeps.error(function, got, want, values) <= most)
    shown = [
        (*(each[at] for each in values), got[at], want[at]) for at in np.flatnonzero(wrong)[:5]
    ]
    assert not shown, f"{function.name} of {compute}: operands, result, right result: {shown}"


@pytest.mark.parametrize("source", COMPUTE_TYPES)
def test_casts_are_numpys(source: Compute, dev: ps.Device) -> None:
    if source not in sweeps.computes(dev):
        pytest.skip(f"{dev.info.name} has no double")
    values = np.concatenate([sweeps.specials(source), sweeps.samples(source, COUNT, 1)])
    if sweeps.flushes(dev):
        values = values[sweeps.without_subnormals([values], values)]
    for target, bundle in sweeps.casts(dev, source):
        dtype = np.dtype(sweeps.DTYPES[target])
        given = _within(values, dtype)
        with np.errstate(all="ignore"):
            want = (given.real if _loses_imaginary(source, target) else given).astype(dtype)
        got = bundle("cast", given)
        np.testing.assert_array_equal(got, want, f"{source} to {target}")
        if dtype.kind in "fc":
            numbers = ~np.isnan(want)
            signs = [np.signbit(each.real[numbers]) for each in (got, want)]
            np.testing.assert_array_equal(*signs)


def _within(values: Any, target: np.dtype[Any]) -> Any:
    """The values whose cast is defined: floats that an integer type holds once truncated."""
    if values.dtype.kind not in "fc" or target.kind not in "iu":
        return values
    info, real = np.iinfo(target), values.real
    with np.errstate(all="ignore"):
        whole = np.trunc(real.astype(np.longdouble))
        return values[(whole >= info.min) & (whole <= info.max)]


def _loses_imaginary(source: Compute, target: Compute) -> bool:
    return source in REAL_OF and target not in (*REAL_OF, "b")


def test_half_and_bfloat_by_bits(dev: ps.Device) -> None:
    every = np.arange(1 << 16, dtype=np.uint32)
    halves = every[:0x7C00].astype(np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2  # ties
    positive = np.concatenate([halves, middle, np.nextafter(middle, 0), np.nextafter(middle, 1e9)])
    wide = np.concatenate([sweeps.specials("f32"), sweeps.samples("f32", 1 << 16, 2)])
    numbers = np.concatenate([wide, positive, -positive]).astype(np.float32)
    for name, dtype in (("half", np.dtype(np.float16)), ("bfloat", np.dtype(ml_dtypes.bfloat16))):
        unpack = sweeps.Bundle(dev, {"it": f"ps_unpack_{name}(a)"}, ("u32",), "f32")
        pack = sweeps.Bundle(dev, {"it": f"ps_pack_{name}(a)"}, ("f32",), "u32")
        with np.errstate(all="ignore"):
            want = every.astype(np.uint16).view(dtype).astype(np.float32)
            packed = numbers.astype(dtype)
        got = unpack("it", every)
        numeric = ~np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), ~numeric)
        np.testing.assert_array_equal(got.view("u4")[numeric], want.view("u4")[numeric])
        bits = pack("it", numbers).astype(np.uint16)
        numeric = ~np.isnan(numbers)
        np.testing.assert_array_equal(np.isnan(bits.view(dtype).astype("f4")), ~numeric)
        np.testing.assert_array_equal(bits[numeric], packed.view(np.uint16)[numeric])
        unpack.close()
        pack.close()


def test_hard_angles(dev: ps.Device) -> None:
    """The float and double that are closest to a multiple of π/2, whose value is known."""
    cases: list[tuple[Compute, float, float]] = [
        ("f32", 16367173 * 2.0**72, -1.6147697982476211e-9),
        ("f64", 6381956970095103 * 2.0**797, -4.6871659242546277e-19),
    ]
    for compute, angle, cosine in cases:
        if compute in sweeps.computes(dev):
            bundle = sweeps.Bundle(dev, {"cos": "ps_cos(a)"}, (compute,), compute)
            got = bundle("cos", np.array([angle], sweeps.DTYPES[compute]))
            want = np.array([cosine], sweeps.DTYPES[compute])
            assert abs(got[0] - want[0]) <= 2 * np.spacing(abs(want[0]))
            bundle.close()


def test_a_kernel_has_only_what_it_calls() -> None:
    text = library.source("ps_add(a, b)", {"f32"})
    assert "float ps_add(float a, float b)" in text
    assert "ps_exp" not in text
    assert "double" not in text
    assert "ps_log_parts" in library.source("ps_log(a)", {"f32"})
    everything = library.source(
        " ".join(f"ps_{name}" for name in FUNCTIONS), {"f32", "f64", "c64", "i64"}
    )
    assert not re.search(r"\b(REAL|PAIR|COMPLEX|U?INT|WIDTH)\b", everything)


def test_the_library_has_no_loops() -> None:
    """A loop would count towards the 65,535 turns that lavapipe allows an invocation."""
    for path in (Path(library.__file__).parent / "shaders/arithmetic").iterdir():
        code = re.sub(r"//.*", "", path.read_text("utf-8"))
        assert not re.search(r"\b(for|while|do)\b", code), path.name


def test_compute_types() -> None:
    narrow = {"int8": "i32", "uint16": "u32", "float16": "f32", "bool": "b", "complex128": "c128"}
    for name, compute in narrow.items():
        assert compute_type(np.dtype(name)) == compute
    assert compute_type(np.dtype(ml_dtypes.bfloat16)) == "f32"
    with pytest.raises(KeyError, match="no arithmetic in"):
        compute_type(np.dtype(np.longdouble))
    with pytest.raises(KeyError, match="atan2 of c64"):
        FUNCTIONS["atan2"].expression("c64")
    assert FUNCTIONS["abs"].returns("c64") == "f32"
    assert FUNCTIONS["where"].expression("c64") == "a ? b : c"
    assert cast("i32", "i32") == "a"


_HIP_KERNEL = """
extern "C" __global__ void it(const {type} *x, const {type} *y, {result} *out, unsigned int n) {{
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    {type} a = x[i], b = y[i];
    out[i] = {expression};
}}
"""


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("floor_divide", "i64"), ("pow", "i32"), ("bitwise_right_shift", "u64"), ("sin", "f32"),
        ("remainder", "f64"), ("maximum", "f32"), ("nextafter", "f64"), ("log1p", "c64"),
        ("divide", "c128"), ("tanh", "c128"), ("isfinite", "c64"), ("round", "f64"),
    ],
)  # fmt: skip
def test_hip_has_the_same_functions(name: str, compute: Compute, hip_device: ps.Device) -> None:
    function = FUNCTIONS[name]
    result = function.returns(compute)
    expression = function.expression(compute)
    form = _HIP_KERNEL.format(
        type=TYPES[compute], result=TYPES[result], expression=expression
    )  # fmt: skip
    kernel = hip_device.kernel(
        library.hip_source(expression, {compute, result}) + form,
        signature="in bytes x, in bytes y, out bytes out, uint32 n",
        group_size=64,
    )
    values = sweeps.operands(function, compute, 1 << 10)
    want = sweeps.wanted(function, compute, values)
    arrays = [hip_device.array(each.view(np.uint8)) for each in (values[0], values[-1])]
    dtype = np.dtype(sweeps.DTYPES[result])
    out = hip_device.empty(want.size * dtype.itemsize, np.uint8)
    kernel(x=arrays[0], y=arrays[1], out=out, n=want.size, threads=want.size)
    got = out.numpy().copy().view(dtype)
    keep = ~sweeps.excused(function, values, want)
    _check(function, compute, got[keep], want[keep], [each[keep] for each in values])


@pytest.mark.parametrize("compute", COMPUTE_TYPES)
def test_hip_compiles_every_function(compute: Compute, tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("c++ is not installed")
    functions = [each for each in FUNCTIONS.values() if each.takes(compute)]
    texts = [each.expression(compute) for each in functions]
    texts += [cast(compute, target) for target in COMPUTE_TYPES]
    own = TYPES[compute]
    lines = [
        f"auto f{at}({'bool' if '?' in text else own} a, {own} b, {own} c) {{ return {text}; }}"
        for at, text in enumerate(texts)
    ]
    path = tmp_path / "all.cpp"
    path.write_text(library.hip_source(" ".join(texts), set(COMPUTE_TYPES)) + "\n".join(lines))
    command = ["c++", "-w", "-std=c++17", "-include", "cmath", "-fsyntax-only", path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_table_of_errors_takes_a_number_of_samples() -> None:
    command = [sys.executable, "-m", "tests.ops.accuracy"]
    cases = (("--help", 0, "values, besides the special ones"), ("x", 2, "'x'"))
    for word, code, says in cases:
        ended = subprocess.run([*command, word], capture_output=True, text=True, check=False)
        assert ended.returncode == code
        assert says in ended.stdout + ended.stderr
