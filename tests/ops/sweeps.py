"""Runs functions of the shader library on numbers that are hard for them, and measures the errors.

Every function of one compute type, with as many operands and the same kind of result, is in one
kernel, which a push constant switches: few kernels are compiled. Values travel as 32-bit words,
which every device can store.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.ops import library
from penstock.ops.arithmetic import FUNCTIONS, REAL_OF, TYPES, Compute, Function, cast

Values = npt.NDArray[Any]

DTYPES: dict[Compute, str] = {
    "b": "bool", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
    "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
}  # fmt: skip
_WORDS: dict[Compute, int] = {
    "b": 1, "i32": 1, "u32": 1, "f32": 1, "i64": 2, "u64": 2, "f64": 2, "c64": 2, "c128": 4,
}  # fmt: skip
_LOAD: dict[Compute, str] = {
    "b": "{0} != 0u", "i32": "int({0})", "u32": "{0}", "f32": "uintBitsToFloat({0})",
    "i64": "ps_i64_of(uvec2({0}, {1}))", "u64": "ps_u64_of(uvec2({0}, {1}))",
    "f64": "packDouble2x32(uvec2({0}, {1}))",
    "c64": "vec2(uintBitsToFloat({0}), uintBitsToFloat({1}))",
    "c128": "dvec2(packDouble2x32(uvec2({0}, {1})), packDouble2x32(uvec2({2}, {3})))",
}  # fmt: skip
_STORE: dict[Compute, list[str]] = {
    "b": ["{} ? 1u : 0u"], "i32": ["uint({})"], "u32": ["{}"], "f32": ["floatBitsToUint({})"],
    "i64": ["ps_words({}).x", "ps_words({}).y"], "u64": ["ps_words({}).x", "ps_words({}).y"],
    "f64": ["unpackDouble2x32({}).x", "unpackDouble2x32({}).y"],
    "c64": ["floatBitsToUint({}.x)", "floatBitsToUint({}.y)"],
    "c128": [
        f"unpackDouble2x32({{}}.{part}).{word}" for part in "xy" for word in "xy"
    ],
}  # fmt: skip


class Bundle:
    """One kernel with several expressions of the operands a, b and c; `int64` is that of `source`.

    `operands` and `result` are compute types.
    """

    def __init__(
        self,
        device: ps.Device,
        expressions: dict[str, str],
        operands: tuple[Compute, ...],
        result: Compute,
        int64: bool | None = None,
    ) -> None:
        self._device, self._operands, self._result = device, operands, result
        self._numbers = {name: number for number, name in enumerate(expressions)}
        features = device.info.features
        native = "shaderInt64" in features if int64 is None else int64
        types: set[Compute] = {*operands, result}
        loads = [_load(name, each) for name, each in zip("abc", operands, strict=False)]
        stores = [store.format("r") for store in _STORE[result]]
        needed = " ".join([*expressions.values(), *loads, *stores])
        cases = [
            f"case {self._numbers[name]}: r = {text}; break;" for name, text in expressions.items()
        ]
        arrays = [
            f"layout(binding = {at}) readonly buffer Of{name} {{ uint {name}_words[]; }};"
            for at, name in enumerate("abc"[: len(operands)])
        ]
        source = "\n".join([
            "#version 460",
            library.source(needed, types, int64=native, preserve=widths(features)),
            "layout(local_size_x = 64) in;",
            "layout(push_constant) uniform Numbers { uint n; uint which; };",
            *arrays,
            f"layout(binding = {len(operands)}) writeonly buffer Out {{ uint out_words[]; }};",
            "void main() {",
            "    uint i = gl_GlobalInvocationID.x;",
            "    if (i >= n) return;",
            *(f"    {line}" for line in loads),
            f"    {TYPES[result]} r;",
            "    switch (which) {",
            *(f"    {line}" for line in cases),
            "    }",
            *(
                f"    out_words[i * {len(stores)}u + {at}u] = {store};"
                for at, store in enumerate(stores)
            ),
            "}",
        ])  # fmt: skip
        self._kernel = device.kernel(source)

    def __call__(self, name: str, *operands: Values) -> Values:
        """The values of one expression, as NumPy's dtype of the result."""
        count = operands[0].size
        arrays = {
            f"{letter}_words": self._device.array(_words_of(values, compute))
            for letter, values, compute in zip("abc", operands, self._operands, strict=False)
        }
        words = _WORDS[self._result]
        out = self._device.empty(count * words, "uint32")
        self._kernel(
            **arrays, out_words=out, n=count, which=self._numbers[name], threads=count
        )  # fmt: skip
        made = out.numpy().copy()
        return made != 0 if self._result == "b" else made.view(DTYPES[self._result])

    def close(self) -> None:
        self._kernel.close()


def _load(name: str, compute: Compute) -> str:
    count = _WORDS[compute]
    words = [f"{name}_words[i * {count}u + {at}u]" for at in range(count)]
    return f"{TYPES[compute]} {name} = {_LOAD[compute].format(*words)};"


def _words_of(values: Values, compute: Compute) -> Values:
    exact = np.ascontiguousarray(values, DTYPES[compute])
    return exact.astype("uint32") if compute == "b" else exact.view("uint32")


def widths(features: Iterable[str]) -> list[int]:
    """The widths of floats of which a device can keep NaN, infinities and signed zeros."""
    return [w for w in (32, 64) if f"shaderSignedZeroInfNanPreserveFloat{w}" in features]


def computes(device: ps.Device) -> list[Compute]:
    """The compute types of a device."""
    has_double = "shaderFloat64" in device.info.features
    return [each for each in DTYPES if has_double or each not in ("f64", "c128")]


def bundles(
    device: ps.Device,
    compute: Compute,
    int64: bool | None = None,
    names: Iterable[str] = FUNCTIONS,
) -> Iterable[tuple[Bundle, list[Function]]]:
    """Kernels of functions of a compute type, a few in each. Closes each before the next."""
    groups: dict[tuple[int, Compute], list[Function]] = {}
    for function in (each for name, each in FUNCTIONS.items() if name in names):
        if function.takes(compute) and not function.condition:
            groups.setdefault((function.operands, function.returns(compute)), []).append(function)
    most = 4 if compute in REAL_OF else 100  # compiling takes longer than in proportion to the size
    shares = [
        (key, functions[at : at + most])
        for key, functions in groups.items()
        for at in range(0, len(functions), most)
    ]
    for (count, result), functions in shares:
        expressions = {each.name: each.expression(compute) for each in functions}
        bundle = Bundle(device, expressions, (compute,) * count, result, int64)
        yield bundle, functions
        bundle.close()


def casts(device: ps.Device, source: Compute) -> Iterable[tuple[Compute, Bundle]]:
    """Kernels of the casts from a compute type, and their targets; of both forms of 64 bits."""
    forms = [True, False] if "shaderInt64" in device.info.features else [False]
    for target in computes(device):
        wide = {"i64", "u64"} & {source, target}
        for int64 in forms if wide else forms[:1]:
            bundle = Bundle(device, {"cast": cast(source, target)}, (source,), target, int64)
            yield target, bundle
            bundle.close()


# Numbers.


@cache
def specials(compute: Compute) -> Values:
    """Zeros, infinities, NaN, limits, and numbers where functions change their behaviour."""
    dtype = np.dtype(DTYPES[compute])
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 100, 255, 256, 65535, 65537]
        ends = [info.max, info.max - 1, info.max // 2, info.max // 3, info.min, info.min // 2 + 1]
        powers = [1 << k for k in range(0, info.bits - 1, 5)]
        every = {*near, *ends, *powers, *(-each for each in [*near, *powers] if info.min < 0)}
        return np.array(sorted(every), dtype)
    if dtype.kind == "c":
        few = [0.0, -0.0, 1, -1, 0.5, -2, 3, 100, -90, 1e-30, 1e30, np.inf, -np.inf, np.nan]
        made = np.empty(len(few) ** 2, dtype)
        made.real, made.imag = np.repeat(few, len(few)), np.tile(few, len(few))
        return made
    finfo = np.finfo(dtype)
    edges = [finfo.tiny, finfo.max, finfo.smallest_subnormal, finfo.tiny / 4, finfo.eps]
    near_one = [1 - finfo.epsneg, 1 + finfo.eps]
    plain = [
        0, 0.25, 0.4142, 0.5, 0.7, np.pi / 4, 1, 1.5, np.pi / 2, 2, 2.4142, 2.5, 3, np.pi, 10, 22,
        88.7, 89.5, 100, 103.9, 709.7, 710.4, 745.1, 1000, 1e-8, 1e-20, 2.0**23 + 0.5,
        2.0**52 - 0.5, 1e10, 1e30, np.inf,
    ]  # fmt: skip
    positive = np.array([*plain, *edges, *near_one], dtype)
    return np.concatenate([positive, -positive, np.array([np.nan], dtype)])


def samples(compute: Compute, count: int, seed: int) -> Values:
    """Random bit patterns, and numbers close to where functions are hard to compute."""
    rng, dtype = np.random.default_rng([seed, count]), np.dtype(DTYPES[compute])
    if dtype.kind == "b":
        return rng.random(count) < 0.5
    if dtype.kind in "iu":
        bits = rng.integers(0, 1 << 64, count, np.uint64) >> rng.integers(0, 64, count, np.uint64)
        made = bits.astype(np.dtype(f"u{dtype.itemsize}"), casting="unsafe").view(dtype)
        return made * rng.choice([1, -1], count).astype(dtype) if dtype.kind == "i" else made
    if dtype.kind == "c":
        quarter = count // 4
        angle, size = rng.uniform(-np.pi, np.pi, quarter), 1 + rng.standard_normal(quarter) * 1e-4
        made = np.empty(4 * quarter, dtype)
        made.real[:quarter], made.imag[:quarter] = size * np.cos(angle), size * np.sin(angle)
        for part in (made.real, made.imag):
            scale = np.concatenate([rng.uniform(-8, 5, 2 * quarter), rng.uniform(-30, 30, quarter)])
            part[quarter:] = rng.standard_normal(3 * quarter) * 2.0**scale
        return made
    bits = rng.integers(0, 1 << 8 * dtype.itemsize, count // 2, f"uint{8 * dtype.itemsize}")
    n = count // 12
    dense = [
        rng.uniform(-1, 1, n), rng.uniform(-100, 100, n), 1 + rng.standard_normal(n) * 1e-3,
        rng.standard_normal(n) * 1e-2, np.round(rng.uniform(0, 1e5, n)) * (np.pi / 2),
        2.0 ** rng.uniform(-60, 60, n),
    ]  # fmt: skip
    return np.concatenate([bits.view(dtype), *(each.astype(dtype) for each in dense)])


def operands(function: Function, compute: Compute, count: int, seed: int = 0) -> list[Values]:
    """All special values, and all pairs of them for two operands, then `count` samples."""
    some = specials(compute)
    drawn = [samples(compute, count, 3 * seed + k) for k in range(function.operands)]
    if function.operands == 1:
        return [np.concatenate([some, drawn[0]])]
    few = some if some.size < 120 else some[:: some.size // 60]
    pairs = [np.repeat(few, few.size), np.tile(few, few.size), np.tile(few, few.size)[::-1]]
    return [np.concatenate([pairs[k], drawn[k]]) for k in range(function.operands)]


def flushes(device: ps.Device) -> bool:
    """Whether the device takes subnormal numbers for zero, and makes zeros of them."""
    bundle = Bundle(device, {"multiply": "ps_multiply(a, b)"}, ("f32", "f32"), "f32")
    product = bundle("multiply", np.float32([1e-40]), np.float32([1]))
    bundle.close()
    return bool(product[0] == 0)


def without_subnormals(values: list[Values], want: Values) -> npt.NDArray[np.bool_]:
    """Where no operand, result or step between them is subnormal."""
    keep = np.ones(want.shape, bool)
    for each in (*values, want):
        if each.dtype.kind in "fc":
            parts = (each.real, each.imag) if each.dtype.kind == "c" else (each,)
            for part in parts:
                keep &= (part == 0) | ~(np.abs(part) < 1e-30)
    return keep


# Errors.

#: The type in which a compute type's references are computed. (A long double of 64 bits would not
#: do; `precise_enough` says so.)
_WIDER = {
    "float32": np.float64, "float64": np.longdouble,
    "complex64": np.complex128, "complex128": np.clongdouble,
}  # fmt: skip


def precise_enough(compute: Compute) -> bool:
    """Whether NumPy has a type that is wider than the compute type."""
    return compute not in ("f64", "c128") or np.finfo(np.longdouble).nmant > 60


def wanted(function: Function, compute: Compute, values: list[Values]) -> Values:
    """The right values, in a wider type where they are rounded."""
    dtype = np.dtype(DTYPES[compute])
    with np.errstate(all="ignore"):
        if dtype.kind not in "fc" or exact(function, compute):
            return np.asarray(function.reference(*values))
        return np.asarray(function.reference(*(each.astype(_WIDER[dtype.name]) for each in values)))


def exact(function: Function, compute: Compute) -> bool:
    """Whether NumPy's result in the same type is the only right one."""
    of_complex = DTYPES[compute].startswith("complex") and function.name in ("abs", "sign")
    return function.name in _EXACT and not of_complex


_EXACT = {
    "abs", "ceil", "clip", "conj", "copysign", "floor", "floor_divide", "imag", "maximum",
    "minimum", "negative", "nextafter", "positive", "real", "remainder", "round", "sign", "trunc",
} | {each.name for each in FUNCTIONS.values() if each.result == "bool"}  # fmt: skip


def ulps(got: Values, want: Values, values: list[Values]) -> npt.NDArray[np.float64]:
    """The error of each value in units in the last place; infinite where kinds of value differ.

    Of complex values it is the distance, in units of the last place of the absolute value.
    """
    if got.dtype.kind == "c":
        return _complex_ulps(got, want, values)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        error = np.abs(got.astype(want.dtype) - want) / _unit(np.abs(want), got.dtype)
    ordinary = np.isfinite(got) & np.isfinite(rounded)
    agree = (got == rounded) & (np.signbit(got) == np.signbit(rounded))
    agree |= np.isnan(got) & np.isnan(want)
    wrong_zero = ordinary & (want == 0) & ~agree
    return np.asarray(
        np.where(ordinary & ~wrong_zero, error, np.where(agree, 0, np.inf)), np.float64
    )


def _complex_ulps(got: Values, want: Values, values: list[Values]) -> npt.NDArray[np.float64]:
    dtype = got.real.dtype
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(want.dtype) - want) / _unit(np.abs(want), dtype)
        rounded = want.astype(got.dtype)
    # Annex G leaves signs open where a part is NaN, and those of zeros at infinity.
    open_ = np.isnan(rounded) | np.any([np.isnan(each) for each in values], axis=0)
    infinite = np.any([np.isinf(each) for each in values], axis=0)
    agree = np.ones(got.shape, bool)
    for mine, other in ((got.real, rounded.real), (got.imag, rounded.imag)):
        same_sign = np.signbit(mine) == np.signbit(other)
        same_sign |= open_ | infinite & (mine == 0)
        close = np.isclose(np.abs(mine), np.abs(other), rtol=1e-5, atol=0) & same_sign
        agree &= close | np.isnan(mine) & np.isnan(other)
    ordinary = np.isfinite(got) & np.isfinite(rounded)
    return np.asarray(np.where(ordinary, error, np.where(agree, 0, np.inf)), np.float64)


def _unit(size: Values, dtype: np.dtype[Any]) -> Values:
    info = np.finfo(dtype)
    _, exponent = np.frexp(np.where((size == 0) | ~np.isfinite(size), 1, size))
    least = int(info.minexp)
    return np.ldexp(size.dtype.type(1), np.clip(exponent - 1, least, None) - info.nmant)


def error(
    function: Function, got: Values, want: Values, values: list[Values]
) -> npt.NDArray[np.float64]:
    """As `ulps`; of `logaddexp`, whose terms may cancel, in units of the larger operand's place."""
    found = ulps(got, want, values)
    if function.name != "logaddexp":
        return found
    size = np.maximum(np.maximum(*(np.abs(each) for each in values)), np.abs(got))
    with np.errstate(all="ignore"):
        of_operand = np.abs(got.astype(want.dtype) - want) / _unit(
            size.astype(want.dtype), got.dtype
        )
    return np.where(np.isfinite(found), np.fmin(found, of_operand), found)


def excused(function: Function, values: list[Values], want: Values) -> npt.NDArray[np.bool_]:
    """Where a result is not defined, or its error not bounded.

    The order of -0 and +0; complex powers, whose error grows with the exponent; complex products
    and quotients of infinities and NaN, and by zero; results that only NumPy's wider type holds.
    """
    out = np.zeros(want.shape, bool)
    if function.name in ("minimum", "maximum", "clip"):
        out |= want == 0
    if values[0].dtype.kind != "c":
        return out
    if function.name == "pow":
        base, exponent = values
        with np.errstate(all="ignore"):
            out |= ~(np.abs(exponent * np.log(base)) < 4) | (base == 0)
    if function.name in ("multiply", "divide", "square", "reciprocal", "sign", "pow"):
        out |= ~np.all([np.isfinite(each) for each in values], axis=0)
        out |= values[-1] == 0
    limit = np.finfo(values[0].real.dtype).max
    with np.errstate(all="ignore"):
        for part in (want.real, want.imag) if want.dtype.kind == "c" else (want,):
            out |= np.isfinite(part) & (np.abs(part) > limit / 4)
    return out
