"""NumPy's own functions called with arrays of a device: `np.sin(x)`, `np.add(x, y)`, `np.sum(x)`.

They run on the device, as the function of the same meaning in `dev.xp`, or raise an error that
names the explicit call. No array is moved to or from the device on the way.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

#: NumPy's names that differ from the standard's.
_NAMES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "conjugate": "conj",
    "invert": "bitwise_invert", "bitwise_not": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "power": "pow", "true_divide": "divide", "mod": "remainder", "rint": "round",
    "concatenate": "concat", "transpose": "permute_dims", "amin": "min", "amax": "max",
}  # fmt: skip
#: Functions that are the array's own methods and attributes, with NumPy's arguments.
_METHODS = {
    name: name
    for name in (
        "copy", "cumprod", "cumsum", "diagonal", "ndim", "nonzero", "ravel", "repeat", "round",
        "searchsorted", "shape", "size", "squeeze", "swapaxes", "take", "trace",
    )
} | {"around": "round"}  # fmt: skip
#: NumPy's keywords that differ from the standard's.
_KEYWORDS = {"ddof": "correction", "a_min": "min", "a_max": "max"}
#: What has another form on a device.
_INSTEAD = {
    "np.allclose": "xp.all(xp.abs(x - y) <= tolerance)",
    "np.array_equal": "xp.all(x == y)",
    "np.diag": "x.diagonal()",
    "np.dot": "x @ y",
    "np.einsum": "xp.tensordot or x @ y",
    "np.hstack": "xp.concat",
    "np.inner": "x @ y",
    "np.linalg.norm": "xp.linalg.vector_norm or xp.linalg.matrix_norm",
    "np.outer": "xp.linalg.outer",
    "np.unique": "xp.unique_values, unique_counts, unique_inverse or unique_all",
    "np.vstack": "xp.concat",
}
_PARTS = ("linalg", "fft")
#: What to use for more of NumPy's names, as attributes of `dev.xp` and `dev.xp.linalg`.
_HERE = {
    "argwhere": "xp.nonzero(x)", "array": "xp.asarray", "bool_": "xp.bool", "copy": "x.copy()",
    "cross": "xp.linalg.cross", "cumprod": "xp.cumulative_prod", "cumsum": "xp.cumulative_sum",
    "identity": "xp.eye", "lstsq": "xp.linalg.pinv(x) @ y",
    "norm": "xp.linalg.vector_norm or xp.linalg.matrix_norm",
    "random": "dev.random.default_rng(seed)", "ravel": "x.ravel()", "swapaxes": "x.swapaxes",
    "trace": "xp.linalg.trace",
}  # fmt: skip


def no_attribute(what: str, name: str, of: object) -> AttributeError:
    """The error for a name that the standard does not have: NumPy's names lead to what has.

    With the name and the object that lacks it, Python's traceback adds the closest name there is.
    """
    advice = _HERE.get(name) or _INSTEAD.get(f"np.{name}", "")
    if name in _NAMES:
        advice = f"xp.{_NAMES[name]}"
    return AttributeError(
        f"{what} has no {name!r}; its names are those of the Array API standard"
        f"{f'. Use {advice}' if advice else ''}",
        name=name, obj=of,
    )  # fmt: skip


def call_ufunc(
    xp: Namespace, ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """`Array.__array_ufunc__`: a ufunc of NumPy called with an array among its inputs."""
    name = _NAMES.get(ufunc.__name__, ufunc.__name__)
    function = getattr(xp, name, None)
    if function is None or method != "__call__":
        part = f".{method}" if method != "__call__" else ""
        raise Unsupported(
            f"np.{ufunc.__name__}{part} does not run on a device; call it on the host: "
            f"np.{ufunc.__name__}{part}(x.numpy(), …)"
        )
    given = dict(options)
    out = given.pop("out", None)
    if given:
        raise Unsupported(
            f"np.{ufunc.__name__} with {', '.join(given)}= does not run on a device; use "
            f"dev.xp.{name}"
        )
    if out is None:
        return function(*inputs)
    (target,) = out
    if not isinstance(target, Array):
        raise ArgumentError(
            f"np.{ufunc.__name__}: out= is a NumPy array, the operands are on a device; read the "
            f"result: target[...] = dev.xp.{name}(…).numpy()"
        )
    return xp.operate(name, inputs, out=target)


def call_function(
    xp: Namespace, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """`Array.__array_function__`: another function of NumPy called with an array."""
    kept = {key: value for key, value in options.items() if value is not np._NoValue}
    name, module = function.__name__, getattr(function, "__module__", "")
    part = next((each for each in _PARTS if module.startswith(f"numpy.{each}")), "")
    called = f"np.{part}.{name}" if part else f"np.{name}"
    if not part and name in _METHODS and arguments and isinstance(arguments[0], Array):
        found, rest = getattr(arguments[0], _METHODS[name]), arguments[1:]
        if not callable(found):  # np.shape(x)
            return found
        _check_call(found, called, rest, kept)
        return found(*rest, **kept)
    if called == "np.where" and len(arguments) == 1 and not kept:
        return arguments[0].nonzero()
    name = _NAMES.get(name, name)
    found = getattr(getattr(xp, part) if part else xp, name, None)
    if found is None:
        advice = _INSTEAD.get(called, "")
        raise Unsupported(
            f"{called} does not run on a device; {f'use {advice}, or ' if advice else ''}call it "
            f"on the host: {called}(x.numpy(), …)"
        )
    rest, kept = _by_keyword(function, found, arguments, kept)
    _check_call(found, f"{called}, here dev.xp.{f'{part}.' if part else ''}{name},", rest, kept)
    return found(*rest, **kept)


def _by_keyword(
    function: Any, found: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for the standard's function, which takes most of them by keyword only."""
    taken = inspect.signature(found).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in taken):
        return arguments, options
    count = sum(each.kind is not each.KEYWORD_ONLY for each in taken)
    names = [*inspect.signature(function).parameters][count : len(arguments)]
    given = dict(zip(names, arguments[count:], strict=False)) | options
    named = {_KEYWORDS.get(key, key): value for key, value in given.items()}
    if named.get("out", 0) is None:
        del named["out"]
    return arguments[:count], named


def _check_call(
    found: Any, called: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Raise, naming what the device's function takes, if the arguments do not fit it."""
    signature = inspect.signature(found)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise Unsupported(f"{called} takes ({names}) on a device: {error}") from error
