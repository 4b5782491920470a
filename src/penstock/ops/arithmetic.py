"""The elementwise functions: one table, from which kernels and the simulator take them.

A row of `FUNCTIONS` has the name of the Array API standard, the kinds of dtype that the function
takes, the kind that it returns, and the NumPy function that the simulator calls. A kernel computes
it with one call of the shader library (`shaders/arithmetic`), in which every function is overloaded
for every type that it takes: `ps_add(a, b)` adds floats, 64-bit integers or complex numbers.

A kernel loads an element as its *compute type*, computes, and rounds when it stores:

| compute type | GLSL and HIP C++ | dtypes |
|---|---|---|
| `b` | `bool` | bool |
| `i32`, `u32` | `int`, `uint` | int8 to int32, uint8 to uint32 |
| `i64`, `u64` | `ps_i64`, `ps_u64` | int64, uint64 |
| `f32` | `float` | float16, bfloat16, float32 |
| `f64` | `double` | float64 |
| `c64`, `c128` | `vec2`, `dvec2` | complex64, complex128 |

Integers of less than 32 bits are computed in 32 and stored by their low bits, which is what NumPy's
arithmetic in the narrow type gives. Shifts are the exception: the sign or zero that fills a shifted
value is that of 32 bits, so a shift count of at least the narrow width needs no care.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from penstock.dtypes import Dtype

Compute: TypeAlias = Literal["b", "i32", "u32", "i64", "u64", "f32", "f64", "c64", "c128"]
Reference: TypeAlias = Callable[..., Any]
COMPUTE_TYPES: tuple[Compute, ...] = get_args(Compute)

#: The type of a value of each compute type, in GLSL and in HIP C++.
TYPES: dict[Compute, str] = {
    "b": "bool", "i32": "int", "u32": "uint", "i64": "ps_i64", "u64": "ps_u64",
    "f32": "float", "f64": "double", "c64": "vec2", "c128": "dvec2",
}  # fmt: skip

#: The kind of each compute type, one of "biufc" as in NumPy.
KINDS: dict[Compute, str] = {
    "b": "b", "i32": "i", "u32": "u", "i64": "i", "u64": "u",
    "f32": "f", "f64": "f", "c64": "c", "c128": "c",
}  # fmt: skip

#: The compute type of the real and imaginary parts of complex numbers.
REAL_OF: dict[Compute, Compute] = {"c64": "f32", "c128": "f64"}


def compute_type(dtype: Dtype) -> Compute:
    """The type in which elements of a dtype are computed."""
    if dtype.name == "bfloat16":
        return "f32"
    bits = 8 * dtype.itemsize
    match dtype.kind:
        case "b":
            return "b"
        case "i":
            return "i64" if bits == 64 else "i32"
        case "u":
            return "u64" if bits == 64 else "u32"
        case "f" if bits <= 64:
            return "f64" if bits == 64 else "f32"
        case "c" if bits <= 128:
            return "c128" if bits == 128 else "c64"
    raise KeyError(f"no arithmetic in {dtype}")


@dataclass(frozen=True, slots=True)
class Function:
    """One elementwise function; its operands are `a`, `b` and `c`, all of one compute type."""

    name: str
    operands: int
    kinds: str  # of dtype, as in NumPy: some of "biufc"
    result: Literal["same", "bool", "real"]  # "real": the real part's type of a complex number's
    reference: Reference  # of NumPy arrays
    condition: bool = False  # the first operand is a bool, whatever the others are

    def takes(self, compute: Compute) -> bool:
        """Whether the function is defined for a compute type."""
        return KINDS[compute] in self.kinds

    def returns(self, compute: Compute) -> Compute:
        """The compute type of its result."""
        if self.result == "bool":
            return "b"
        return REAL_OF.get(compute, compute) if self.result == "real" else compute

    def expression(self, compute: Compute) -> str:
        """The call that computes it, in GLSL and in HIP C++ alike."""
        if not self.takes(compute):
            raise KeyError(f"{self.name} of {compute}")
        if self.condition:
            return "a ? b : c"
        return f"ps_{self.name}({', '.join('abc'[: self.operands])})"


def cast(source: Compute, target: Compute) -> str:
    """The expression that converts `a` from one compute type to another, as `astype` does.

    A float outside the range of an integer type gives an unspecified integer, and NaN is True.
    """
    if source == target:
        return "a"
    if target in REAL_OF:
        real = REAL_OF[target]
        parts = ("a.x", "a.y") if source in REAL_OF else ("a", "false")
        return f"{TYPES[target]}({', '.join(f'ps_{_CAST[real]}({part})' for part in parts)})"
    part = "a.x" if source in REAL_OF and target != "b" else "a"
    return f"ps_{_CAST[target]}({part})"


_CAST: dict[Compute, str] = {
    "b": "bool", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
    "f32": "float32", "f64": "float64",
}  # fmt: skip


# References: NumPy's functions, but for what the standard or the library defines otherwise.


def _whole(function: Reference) -> Reference:
    """Leave integers as they are; NumPy 2.0 makes floats of them."""
    return lambda x: x.copy() if x.dtype.kind in "iu" else function(x)


def _clip(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _real(x: Any) -> Any:
    return np.real(x).copy()


def _imag(x: Any) -> Any:
    return np.imag(x).copy()


def _floor_divide(a: Any, b: Any) -> Any:
    """The standard's quotients of and by infinities are infinite or zero, where NumPy's are not."""
    quotient = np.floor_divide(a, b)
    if a.dtype.kind in "iub":
        return quotient
    return np.where(np.isinf(a) | np.isinf(b), np.divide(a, b), quotient)


def _pow(a: Any, b: Any) -> Any:
    """NumPy raises if an integer has a negative power; a kernel truncates it."""
    if a.dtype.kind != "i":
        return np.power(a, b)
    one, zero = a.dtype.type(1), a.dtype.type(0)
    down = np.where(a == 1, one, np.where(a == -1, np.where(b & 1, a, one), zero))
    return np.where(b < 0, down, np.power(a, np.maximum(b, zero)))


def _sign(x: Any) -> Any:
    """NumPy knows the direction of a complex number with NaN; the standard does not."""
    if x.dtype.kind != "c":
        return np.sign(x)
    return np.where(np.isnan(x), x.dtype.type(complex(np.nan, np.nan)), np.sign(x))


def _reciprocal(x: Any) -> Any:
    return np.divide(x.dtype.type(1), x)


def _expm1(x: Any) -> Any:
    """NumPy loses the special values of complex numbers."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    powers = np.exp(x)
    half_sine = np.sin(x.imag / 2)
    real = np.expm1(x.real) - 2 * np.exp(x.real) * half_sine**2
    right = np.expm1(x.real) * np.cos(x.imag) - 2 * half_sine**2
    real = np.where(x.real > 0, np.where(x.real > 40, powers.real, right), real)
    real = np.where(x.real == -np.inf, -1, np.where(x.imag == 0, np.expm1(x.real), real))
    return _joined(np.where(real == 0, 0, real), powers.imag, x)


def _log1p(x: Any) -> Any:
    """NumPy loses a small real part of complex numbers."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    near = np.log1p(2 * x.real + x.real**2 + x.imag**2) / 2
    far = np.log(np.hypot(1 + x.real, x.imag))
    real = np.where((abs(x.real) < 0.25) & (abs(x.imag) < 0.25), near, far)
    return _joined(real, np.arctan2(x.imag, 1 + x.real), x)


def _tanh(x: Any) -> Any:
    """The standard's imaginary part at infinity is zero with the sign of the argument's."""
    made = np.tanh(x)
    if x.dtype.kind != "c":
        return made
    zero = np.copysign(0, x.imag)
    return _joined(made.real, np.where(np.isinf(x.real), zero, made.imag), x)


def _tan(x: Any) -> Any:
    if x.dtype.kind != "c":
        return np.tan(x)
    turned = _tanh(_joined(-x.imag, x.real, x))
    return _joined(turned.imag, -turned.real, x)


def _joined(real: Any, imag: Any, like: Any) -> Any:
    made = np.empty(np.shape(like), like.dtype)
    made.real, made.imag = real, imag
    return made


def _quiet(function: Reference) -> Reference:
    """Without NumPy's warnings of overflow and the like: kernels have none."""

    def reference(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*operands)

    return reference


def _unary(name: str, kinds: str, result: Any, reference: Reference) -> Function:
    return Function(name, 1, kinds, result, _quiet(reference))


def _binary(name: str, kinds: str, result: Any, reference: Reference) -> Function:
    return Function(name, 2, kinds, result, _quiet(reference))


# fmt: off
_TABLE = (
    #       name                   kinds    result  reference
    _unary("abs",                  "iufc",  "real", np.abs),
    _unary("acos",                 "fc",    "same", np.arccos),
    _unary("acosh",                "fc",    "same", np.arccosh),
    _binary("add",                 "biufc", "same", np.add),
    _unary("asin",                 "fc",    "same", np.arcsin),
    _unary("asinh",                "fc",    "same", np.arcsinh),
    _unary("atan",                 "fc",    "same", np.arctan),
    _binary("atan2",               "f",     "same", np.arctan2),
    _unary("atanh",                "fc",    "same", np.arctanh),
    _binary("bitwise_and",         "biu",   "same", np.bitwise_and),
    _binary("bitwise_left_shift",  "iu",    "same", np.left_shift),
    _unary("bitwise_invert",       "biu",   "same", np.invert),
    _binary("bitwise_or",          "biu",   "same", np.bitwise_or),
    _binary("bitwise_right_shift", "iu",    "same", np.right_shift),
    _binary("bitwise_xor",         "biu",   "same", np.bitwise_xor),
    _unary("ceil",                 "iuf",   "same", _whole(np.ceil)),
    Function("clip", 3,            "iuf",   "same", _clip),
    _unary("conj",                 "iufc",  "same", np.conj),
    _binary("copysign",            "f",     "same", np.copysign),
    _unary("cos",                  "fc",    "same", np.cos),
    _unary("cosh",                 "fc",    "same", np.cosh),
    _binary("divide",              "fc",    "same", np.divide),
    _binary("equal",               "biufc", "bool", np.equal),
    _unary("exp",                  "fc",    "same", np.exp),
    _unary("exp2",                 "f",     "same", np.exp2),
    _unary("expm1",                "fc",    "same", _expm1),
    _unary("floor",                "iuf",   "same", _whole(np.floor)),
    _binary("floor_divide",        "iuf",   "same", _floor_divide),
    _binary("greater",             "biuf",  "bool", np.greater),
    _binary("greater_equal",       "biuf",  "bool", np.greater_equal),
    _binary("hypot",               "f",     "same", np.hypot),
    _unary("imag",                 "iufc",  "real", _imag),
    _unary("isfinite",             "iufc",  "bool", np.isfinite),
    _unary("isinf",                "iufc",  "bool", np.isinf),
    _unary("isnan",                "iufc",  "bool", np.isnan),
    _binary("less",                "biuf",  "bool", np.less),
    _binary("less_equal",          "biuf",  "bool", np.less_equal),
    _unary("log",                  "fc",    "same", np.log),
    _unary("log1p",                "fc",    "same", _log1p),
    _unary("log2",                 "fc",    "same", np.log2),
    _unary("log10",                "fc",    "same", np.log10),
    _binary("logaddexp",           "f",     "same", np.logaddexp),
    _binary("logical_and",         "biufc", "bool", np.logical_and),
    _unary("logical_not",          "biufc", "bool", np.logical_not),
    _binary("logical_or",          "biufc", "bool", np.logical_or),
    _binary("logical_xor",         "biufc", "bool", np.logical_xor),
    _binary("maximum",             "biuf",  "same", np.maximum),
    _binary("minimum",             "biuf",  "same", np.minimum),
    _binary("multiply",            "biufc", "same", np.multiply),
    _unary("negative",             "iufc",  "same", np.negative),
    _binary("nextafter",           "f",     "same", np.nextafter),
    _binary("not_equal",           "biufc", "bool", np.not_equal),
    _unary("positive",             "iufc",  "same", np.positive),
    _binary("pow",                 "iufc",  "same", _pow),
    _unary("real",                 "iufc",  "real", _real),
    _unary("reciprocal",           "fc",    "same", _reciprocal),
    _binary("remainder",           "iuf",   "same", np.remainder),
    _unary("round",                "iufc",  "same", _whole(np.round)),
    _unary("sign",                 "iufc",  "same", _sign),
    _unary("signbit",              "f",     "bool", np.signbit),
    _unary("sin",                  "fc",    "same", np.sin),
    _unary("sinh",                 "fc",    "same", np.sinh),
    _unary("square",               "iufc",  "same", np.square),
    _unary("sqrt",                 "fc",    "same", np.sqrt),
    _binary("subtract",            "iufc",  "same", np.subtract),
    _unary("tan",                  "fc",    "same", _tan),
    _unary("tanh",                 "fc",    "same", _tanh),
    _unary("trunc",                "iuf",   "same", _whole(np.trunc)),
    Function("where", 3,           "biufc", "same", np.where, condition=True),
)
# fmt: on

#: Every elementwise function, by name.
FUNCTIONS: dict[str, Function] = {each.name: each for each in _TABLE}
