"""The namespace beside array-api-strict, function by function: names, signatures, dtypes, errors.

Most calls are with empty arrays on the simulator: dtypes are decided and arguments are checked
before anything is launched.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.ops.arithmetic import FUNCTIONS

strict = pytest.importorskip("array_api_strict", reason="pip install array-api-strict")

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip
#: Names of array-api-strict that are not of the standard.
NOT_OF_THE_STANDARD = {
    "ArrayAPIStrictFlags", "Device", "__version__", "get_array_api_strict_flags",
    "reset_array_api_strict_flags", "set_array_api_strict_flags",
}  # fmt: skip
PARTS = ("", "linalg", "fft")
#: Parameters with a default here that array-api-strict does not have: `expand_dims(x)` is of the
#: standard 2025.12, `permute_dims(x)` is NumPy's transpose.
DEFAULTS = {("expand_dims", "axis"): 0, ("permute_dims", "axes"): None}
ELEMENTWISE = [each for each in FUNCTIONS.values() if hasattr(strict, each.name)]


@pytest.fixture(autouse=True)
def _version() -> Iterator[None]:
    """Newer than the one it has by default, of which it warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strict.set_array_api_strict_flags(api_version="2025.12")
        yield
        strict.reset_array_api_strict_flags()


@pytest.fixture(scope="module")
def xp() -> Iterator[Any]:
    with ps.Device(driver="sim", seed=1) as dev:
        yield dev.xp


def part_of(namespace: Any, part: str) -> Any:
    return getattr(namespace, part) if part else namespace


def names_of(part: str) -> list[str]:
    return sorted({*part_of(strict, part).__all__} - NOT_OF_THE_STANDARD)


NAMES = [(part, name) for part in PARTS for name in names_of(part)]


# Names and signatures.


def test_every_name_is_there(xp: Any) -> None:
    missing = [(p, n) for p, n in NAMES if not hasattr(part_of(xp, p), n)]
    assert not missing
    assert xp.__array_api_version__ == strict.__array_api_version__ == "2025.12"


def test_constants_and_dtypes_are_the_standards(xp: Any) -> None:
    for name in ("e", "pi", "inf", "newaxis"):
        assert getattr(xp, name) == getattr(strict, name)
    assert np.isnan(xp.nan)
    assert {name: np.dtype(name) for name in DTYPES} == xp.__array_namespace_info__().dtypes()


@pytest.mark.parametrize(("part", "name"), NAMES)
def test_signature(part: str, name: str, xp: Any) -> None:
    theirs, ours = getattr(part_of(strict, part), name), getattr(part_of(xp, part), name)
    if not inspect.isfunction(theirs):
        return
    assert parameters(ours, name) == parameters(theirs, name)


def parameters(function: Callable[..., Any], name: str) -> list[tuple[str, Any, Any]]:
    return [
        (each.name, each.kind, default_of(each, name))
        for each in inspect.signature(function).parameters.values()
    ]


def default_of(parameter: inspect.Parameter, name: str) -> Any:
    if type(parameter.default).__name__ == "Undef":  # stands for None
        return None
    if parameter.default is inspect.Parameter.empty:
        return DEFAULTS.get((name, parameter.name), parameter.default)
    return parameter.default


def test_arrays_have_the_methods_of_the_standard(xp: Any) -> None:
    x = strict.zeros(1)
    wanted = {name for name in dir(x) if not name.startswith("_") or name.endswith("__")}
    wanted -= {*dir(object), "__buffer__", "__module__", "__dict__", "__weakref__"}
    missing = [name for name in wanted if name not in dir(xp.zeros(1))]
    assert not missing


# Dtypes.


def outcome(call: Callable[..., Any], *values: Any) -> str:
    """The dtype of a result, or "error"."""
    try:
        return str(call(*values).dtype).removeprefix("array_api_strict.")
    except (TypeError, ValueError):  # Penstock's DtypeMismatch is a TypeError
        return "error"


def empty(namespace: Any, dtype: str) -> Any:
    return namespace.empty((0,), dtype=getattr(namespace, dtype))


@pytest.mark.parametrize("name", [each.name for each in ELEMENTWISE if each.operands == 1])
def test_dtypes_of_functions_of_one_array(name: str, xp: Any) -> None:
    for dtype in DTYPES:
        wanted = outcome(getattr(strict, name), empty(strict, dtype))
        got = outcome(getattr(xp, name), empty(xp, dtype))
        assert got == wanted or may_extend(wanted, got, np.dtype(dtype)), dtype


@pytest.mark.parametrize("name", [each.name for each in ELEMENTWISE if each.operands == 2])
def test_dtypes_of_functions_of_two_arrays(name: str, xp: Any) -> None:
    ours = {dtype: empty(xp, dtype) for dtype in DTYPES}
    theirs = {dtype: empty(strict, dtype) for dtype in DTYPES}
    for one, other in itertools.product(DTYPES, DTYPES):
        wanted = outcome(getattr(strict, name), theirs[one], theirs[other])
        got = outcome(getattr(xp, name), ours[one], ours[other])
        common = np.result_type(one, other)
        assert got == wanted or may_extend(wanted, got, common), (one, other)
        kinds = {np.dtype(one).kind, np.dtype(other).kind}
        if kinds == {"i", "u"} and "uint64" in (one, other):
            assert got == "error", "signed integers and uint64 do not mix"


def may_extend(wanted: str, got: str, common: np.dtype[Any]) -> bool:
    """Where the standard has no result, NumPy's dtype; functions of floats take integers, too."""
    return wanted == "error" and got in ("bool", str(common), "float32")


@pytest.mark.parametrize("name", ["add", "divide", "pow", "equal", "less", "bitwise_and", "atan2"])
@pytest.mark.parametrize("number", [True, 2, 2.5, 2j])
def test_dtypes_with_python_numbers(name: str, number: Any, xp: Any) -> None:
    if name == "less" and isinstance(number, complex):
        pytest.skip("complex numbers have no order, and array-api-strict does not look")
    for dtype in DTYPES:
        wanted = outcome(getattr(strict, name), empty(strict, dtype), number)
        got = outcome(getattr(xp, name), empty(xp, dtype), number)
        turned = outcome(getattr(xp, name), number, empty(xp, dtype))
        assert got == turned
        if wanted != "error":
            assert got == wanted, dtype


@pytest.mark.parametrize(("one", "other"), [*itertools.product(DTYPES, DTYPES)])
def test_result_type(one: str, other: str, xp: Any) -> None:
    pair = [np.dtype(each) for each in (one, other)]
    try:
        wanted = strict.result_type(getattr(strict, one), getattr(strict, other))
    except TypeError:  # the kinds differ
        if {each.kind for each in pair} == {"i", "u"}:
            with pytest.raises(ps.DtypeMismatch, match="no common integer dtype"):
                xp.result_type(*pair)
        else:
            assert xp.result_type(*pair) == np.result_type(*pair)
    else:
        assert str(xp.result_type(*pair)) == str(wanted).removeprefix("array_api_strict.")


REDUCTIONS = (
    "sum", "prod", "mean", "var", "std", "min", "max", "any", "all", "argmin", "argmax",
    "count_nonzero", "cumulative_sum", "cumulative_prod", "sort", "argsort", "unique_values",
    "nonzero", "diff",
)  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_dtypes_of_functions_along_an_axis(name: str, xp: Any) -> None:
    def call(namespace: Any, dtype: str) -> str:
        def first(x: Any) -> Any:
            found = getattr(namespace, name)(x)
            return found[0] if isinstance(found, tuple) else found

        return outcome(first, namespace.ones((2,), dtype=getattr(namespace, dtype)))

    for dtype in ("bool", "int8", "uint16", "int64", "uint64", "float32", "complex64"):
        wanted = call(strict, dtype)
        if wanted != "error":
            assert call(xp, dtype) == wanted, dtype


# Errors: what array-api-strict refuses, and NumPy does not do either.


BAD: dict[str, Callable[[Any, Any], Any]] = {
    "broadcasting": lambda xp, x: x + xp.ones((4,)),
    "in place, larger": lambda xp, x: x.__iadd__(xp.ones((2, 3))),
    "in place, another dtype": lambda xp, x: xp.ones((3,), dtype=xp.int32).__iadd__(x),
    "complex into real": lambda xp, x: xp.astype(xp.ones((2,), dtype=xp.complex64), xp.float32),
    "order of complex": lambda xp, x: xp.ones((2,), dtype=xp.complex64) < 1,
    "an axis too many": lambda xp, x: xp.sum(x, axis=1),
    "an axis twice": lambda xp, x: xp.sum(xp.ones((2, 2)), axis=(0, 0)),
    "sort along nothing": lambda xp, x: xp.sort(x, axis=2),
    "reshape": lambda xp, x: xp.reshape(x, (2, 2)),
    "reshape by two unknowns": lambda xp, x: xp.reshape(x, (-1, -1)),
    "squeeze": lambda xp, x: xp.squeeze(x, axis=0),
    "concat of shapes": lambda xp, x: xp.concat([xp.ones((2, 2)), xp.ones((3, 3))], axis=0),
    "stack of shapes": lambda xp, x: xp.stack([x, xp.ones((2,))]),
    "concat of nothing": lambda xp, x: xp.concat([]),
    "matmul of shapes": lambda xp, x: xp.matmul(x, xp.ones((4,))),
    "matmul of a number": lambda xp, x: xp.matmul(x, 2.0),
    "matmul of 0-d": lambda xp, x: xp.matmul(x, xp.ones(())),
    "transpose of a vector": lambda xp, x: xp.matrix_transpose(x),
    "nonzero of 0-d": lambda xp, x: xp.nonzero(xp.ones(())),
    "truth of several": lambda xp, x: bool(x),
    "float of several": lambda xp, x: float(x),
    "index of a float": lambda xp, x: [1, 2, 3][xp.ones(())],
    "len of 0-d": lambda xp, x: len(xp.ones(())),
    "iteration over 0-d": lambda xp, x: list(xp.ones(())),
    "bits of floats": lambda xp, x: x & x,
    "a number that does not fit": lambda xp, x: xp.ones((2,), dtype=xp.int8) + 300,
    "an index beyond": lambda xp, x: x[5],
    "too many indices": lambda xp, x: x[0, 0],
    "arange by nothing": lambda xp, x: xp.arange(0, 3, 0),
    "a copy that is forbidden": lambda xp, x: xp.asarray([1.0], copy=False),
    "an unknown kind": lambda xp, x: xp.isdtype(xp.float32, "floats"),
    "limits of another kind": lambda xp, x: xp.iinfo(xp.float32),
    "a string": lambda xp, x: xp.add(x, "one"),
    "None": lambda xp, x: xp.add(x, None),
    "a condition of floats": lambda xp, x: xp.where(x, x, x),
    "an unknown version": lambda xp, x: x.__array_namespace__(api_version="1999.12"),
    "cholesky of a vector": lambda xp, x: xp.linalg.cholesky(x),
    "inv of no square": lambda xp, x: xp.linalg.inv(xp.ones((2, 3))),
    "rfft of complex": lambda xp, x: xp.fft.rfft(xp.ones((4,), dtype=xp.complex64)),
    "positional only": lambda xp, x: xp.sin(x=x),
    "one argument too few": lambda xp, x: xp.add(x),
}


@pytest.mark.parametrize("what", BAD)
def test_errors(what: str, xp: Any) -> None:
    theirs = strict.ones((3,), dtype=strict.float32)
    with pytest.raises(Exception):  # noqa: B017, PT011 - of any type, because of NumPy's
        BAD[what](strict, theirs)
    # Of Penstock's own types, but for a call that Python itself refuses.
    with pytest.raises((ps.Error, TypeError)) as caught:
        BAD[what](xp, xp.ones((3,), dtype=xp.float32))
    assert str(caught.value)
