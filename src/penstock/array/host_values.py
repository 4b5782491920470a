"""Converts and checks the values that users pass to transfers: none is changed silently."""

from __future__ import annotations

import contextlib
import math
from array import array as packed
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.dtypes import Dtype
from penstock.errors import (
    ArgumentError,
    DtypeMismatch,
    Error,
    InvalidValue,
    ReadOnly,
    ShapeMismatch,
)
from penstock.handle import Handle

if TYPE_CHECKING:
    from penstock.array.array import Array

Host = npt.NDArray[Any]

#: Types of values that NumPy converts without reading memory that the device may use in place.
_WITHOUT_MEMORY = frozenset({int, float, complex, bool, str, bytes, range, type(None)})
_SHOWING = ("__array_struct__", "__array_interface__", "__array__")
_SAFE = 2048  # NumPy's float dtypes hold all integers up to here, and no float up to here overflows

#: By kind (see `_kind`), the kinds whose dtypes may hold the same values.
_MAY_BECOME = {
    "b": "bifcmM", "i": "bifcmM", "f": "fc", "c": "c", "m": "m", "M": "M", "U": "MU",
}  # fmt: skip


def checked_source(array: Array, source: npt.ArrayLike) -> Host:
    """The caller's data, checked. Lists and scalars are converted; arrays are never cast."""
    data = as_source(source, array.dtype)
    if data.dtype != array.dtype:
        raise DtypeMismatch(
            f"array {array.name!r} is {array.dtype}, the source is {data.dtype}; nothing is cast "
            f"silently: pass source.astype({str(array.dtype)!r})"
        )
    if data.shape != array.shape:
        raise ShapeMismatch(
            f"array {array.name!r} has shape {array.shape}, the source has {data.shape}"
        )
    return data


def as_source(source: Any, dtype: Dtype) -> Host:
    """A NumPy array of the source: in its own dtype if it has one, else in `dtype`.

    A NumPy scalar is treated like a Python number, also outside of a list.
    """
    if isinstance(source, np.ndarray):
        return np.asarray(source)  # not a subclass, whose code could run during a copy
    own = _has_dtype(source) and not isinstance(source, np.generic)
    return as_array(source, None if own else dtype)


def as_array(source: npt.ArrayLike, dtype: Dtype | None) -> Host:
    """A NumPy array of anything, in `dtype` if one is given; `_fitted` says what is refused."""
    try:
        if dtype is not None and dtype.names is not None and not hasattr(source, "dtype"):
            return _records(np.asarray(source, _of_objects(dtype)), dtype)
        found = np.asarray(source)
        wanted = found.dtype if dtype is None else dtype
        if found.ndim and found.dtype.kind in "fcmM" and not _has_dtype(source):
            found = _unmixed(source, found, wanted)
        return found if found.dtype == wanted else _fitted(found, wanted)
    except Error:
        raise
    except OverflowError as error:
        raise InvalidValue(f"the source does not fit {dtype}: {error}; {_advice(dtype)}") from error
    except (TypeError, ValueError) as error:
        kind = ShapeMismatch if "inhomogeneous" in str(error) else DtypeMismatch
        raise kind(f"cannot make an array of {dtype or 'one dtype'}: {error}") from error


#: What Python's floats and complex numbers become in an array that is made of them alone.
_DEFAULTS = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


def default_dtype(source: Any) -> Dtype | None:
    """The dtype of values that have none of their own (Python numbers, lists of them), else None.

    Floats become float32 on every device, so that a program computes the same everywhere.
    """
    if not isinstance(source, list | tuple | float | complex) or isinstance(source, np.generic):
        return None
    found = np.asarray(source).dtype if isinstance(source, float | complex) else _of_list(source)
    return None if found is None else _DEFAULTS.get(found)


def _of_list(source: list[Any] | tuple[Any, ...]) -> Dtype | None:
    """The dtype that NumPy gives a list, if only Python's own numbers are in it."""
    kind: type = int
    left = [source]
    while left:
        for each in left.pop():
            if isinstance(each, list | tuple):
                left.append(each)
            elif type(each) in (float, complex):
                kind = complex if complex in (kind, type(each)) else float
            elif type(each) not in (int, bool):
                return None
    return np.dtype(kind)


def memories(source: Any) -> Iterator[Host]:
    """An array over each piece of memory that NumPy reads to convert `source`.

    Like NumPy, it asks an object for its memory first, and for its items only if it has none.
    Handles are left out: reading one waits for the work that writes it.
    """
    if type(source) in _WITHOUT_MEMORY or isinstance(source, np.number | np.bool_ | Handle | type):
        return
    shown = None if isinstance(source, list | tuple) else _shown(source)
    if shown is not None:
        yield shown
        return
    for item in _items(source):
        if type(item) not in _WITHOUT_MEMORY:
            yield from memories(item)


def asked_once(value: Any) -> Any:
    """Convert an object with `__array__` once, so that nothing calls it again; else the value."""
    if isinstance(value, np.ndarray | np.generic | Handle) or not hasattr(value, "__array__"):
        return value
    return np.asarray(value)


def _shown(source: Any) -> Host | None:
    """The memory that an object exposes, if any, as an array."""
    if isinstance(source, np.ndarray):
        return source
    # What the object's own code raises here is raised again when the object is converted.
    with contextlib.suppress(Exception):
        if isinstance(source, np.void):  # a record, whose memory may be part of an array
            return np.frombuffer(source, np.uint8)
        if not any(hasattr(source, name) for name in _SHOWING):
            memoryview(source)  # raises unless it has a buffer
        return np.asarray(source)
    return None


def _items(source: Any) -> Iterable[Any]:
    """The items of anything that NumPy treats as a sequence."""
    if isinstance(source, list | tuple):
        return source
    if hasattr(source, "__getitem__") and not isinstance(source, dict):
        with contextlib.suppress(Exception):
            return list(source)
    return ()


def _has_dtype(source: Any) -> bool:
    """Whether its values have a dtype already, so that NumPy need not choose one."""
    return hasattr(source, "__array__") or isinstance(source, memoryview | packed)


def _unmixed(source: Any, common: Host, wanted: Dtype) -> Host:
    """The original objects of a list, if NumPy's common dtype may not hold each exactly.

    NumPy rounds integers in a list with floats, and lets dates overflow in their finest unit.
    """
    if common.dtype.kind in "fc" and _kind(wanted) in "fc":
        bits = min(_limits(common.dtype).nmant, _limits(wanted).nmant) + 1
        if not (np.abs(common) >= 2.0**bits).any():  # no integer below that is rounded
            return common
    objects = np.asarray(source, object)
    types = set(map(type, objects.reshape(-1).tolist()))
    one = types.pop() if len(types) == 1 else object
    return common if issubclass(one, float | complex | np.inexact) else objects


def _fitted(found: Host, dtype: Dtype) -> Host:
    """Convert to another dtype; raises unless every value stays the same.

    Integers, bools, dates and text must be equal. A float may be rounded to the dtype's nearest,
    but a finite one must stay finite and within the dtype's range; infinity and NaN must be kept.
    """
    if found.dtype.kind == "O":
        return _fitted_objects(found, dtype)
    if not found.size:
        return found.astype(dtype)
    old, new = _kind(found.dtype), _kind(dtype)
    if new not in _MAY_BECOME.get(old, "") or (old == "m" and not _same_calendar(found, dtype)):
        raise DtypeMismatch(
            f"{dtype} cannot hold {_printed(found.flat[0])} ({found.dtype}) without loss; "
            f"{_advice(dtype)}"
        )
    with np.errstate(all="ignore"):
        if old == "U" and new == "M":
            found, old = _dates_in(found), "M"
        made = found.astype(dtype)
        if old in "bi" and new in "fc":
            same = _comes_back(found, _floats(made, complex_too=False))
        elif old in "bi":
            least, most = _bounds(dtype)
            found = found if found.dtype.kind in "iu" else found.astype(np.int64)
            same = (found >= least) & (found <= most)
        elif old in "fc":
            # The common case, tested first: a float too large for NumPy's dtypes becomes infinite.
            if dtype.isbuiltin == 1 and np.isfinite(made).all():
                return made
            same = _is_rounded(found, made)
        else:
            same = _equal(made.astype(found.dtype), found)
    _check_same(found, same, dtype)
    return made


def _check_same(found: Host, same: Any, dtype: Dtype) -> None:
    """Raise an error that names the first value that does not stay the same in the dtype."""
    if not np.all(same):
        value = _printed(found[~np.asarray(same)].flat[0])
        raise InvalidValue(f"{value} does not fit {dtype}; {_advice(dtype)}")


def _kind(dtype: Dtype) -> str:
    """The kind of a dtype: b, i (any integer), f, c, m, M, U (any text), or something else."""
    if dtype.isbuiltin != 2:  # 2: defined by another package, whose kinds are not NumPy's
        return {"u": "i", "S": "U"}.get(dtype.kind, dtype.kind)
    limits = _limits(dtype)
    if not hasattr(limits, "eps"):
        return "" if limits is None else "i"
    return "f" if limits.dtype == dtype else "c"


def _limits(dtype: Dtype) -> Any:
    """`finfo` or `iinfo` of a dtype, including those of ml_dtypes; None if it is not a number."""
    package: Any = np
    if dtype.isbuiltin == 2:
        import ml_dtypes

        package = ml_dtypes
    for info in (package.finfo, package.iinfo):
        with contextlib.suppress(ValueError):
            return info(dtype)
    return None


def _same_calendar(found: Host, dtype: Dtype) -> bool:
    """Whether one unit is a multiple of the other; a month is not a fixed number of days."""
    return np.can_cast(found.dtype, dtype, "same_kind")


def _bounds(dtype: Dtype) -> tuple[int, int]:
    """The least and the largest integer that a dtype holds."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "mM":
        return -(1 << 63) + 1, (1 << 63) - 1  # one less would be NaT
    limits = _limits(dtype)
    return int(limits.min), int(limits.max)


def _floats(values: Host, *, complex_too: bool) -> Host:
    """The values as floats; of complex ones the real part, or with `complex_too` both parts."""
    long = values.dtype.char in "gG"
    if _kind(values.dtype) != "c":
        return values.astype(np.longdouble if long else np.float64)
    parts = values.astype(np.clongdouble if long else np.complex128)
    return np.stack([parts.real, parts.imag], -1) if complex_too else np.asarray(parts.real)


def _comes_back(whole: Host, floats: Host) -> Host:
    """Which integers are equal to the floats they were converted to."""
    if whole.dtype.kind not in "iu":
        whole = whole.astype(np.int64)
    info = np.iinfo(whole.dtype)
    inside = (floats >= float(info.min)) & (floats < float(info.max + 1))
    return np.asarray(inside & (np.where(inside, floats, 0).astype(whole.dtype) == whole))


def _is_rounded(found: Host, made: Host) -> Host:
    """Which floats changed by no more than rounding; a complex number counts as two floats."""
    of_complex = _kind(found.dtype) == "c"
    value, got = (_floats(each, complex_too=of_complex) for each in (found, made))
    too_small, too_large = _range(made.dtype)
    finite = np.isfinite(got) & (value > too_small) & (value < too_large)
    lasting = (got == value) | (np.isnan(got) & np.isnan(value))
    same = np.where(np.isfinite(value), finite, lasting)
    return np.asarray(same.all(-1) if of_complex else same)


def _range(dtype: Dtype) -> tuple[float, float]:
    """The bounds within which floats round to values of the dtype: half a step past its range."""
    limits = _limits(dtype)
    least, largest = float(limits.min), float(limits.max)
    if not math.isfinite(largest):
        return -math.inf, math.inf  # a longdouble
    beyond = largest + math.ldexp(float(limits.eps), math.frexp(largest)[1] - 2)
    return -beyond if least < 0 else least / 2, beyond  # float8_e8m0fnu has no zero and no sign


def _dates_in(text: Host) -> Host:
    """Dates from text, in the finest unit that any of them uses."""
    dates = text.astype("M8")
    seconds = dates.astype("M8[s]")
    for unit in ("M8[s]", "M8[Y]"):  # coarse units with a large range, to detect overflow
        _check_same(text, _equal(seconds.astype(unit), text.astype(unit)), dates.dtype)
    return dates


def _equal(a: Host, b: Host) -> Host:
    return np.asarray((a == b) | (np.isnat(a) & np.isnat(b)) if a.dtype.kind in "mM" else a == b)


def _fitted_objects(found: Host, dtype: Dtype) -> Host:
    """`_fitted` of Python objects, one type at a time."""
    values = [
        np.asarray(value)[()] if hasattr(value, "__array__") else value
        for value in found.reshape(-1).tolist()
    ]
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(_type(value), []).append(place)
    made = np.empty(len(values), dtype)
    for one, here in places.items():
        made[here] = _fitted_list([values[place] for place in here], one, dtype)
    return made.reshape(found.shape)


def _type(value: Any) -> Any:
    """The type under which values share one NumPy dtype; `object` if NumPy has none for it."""
    if isinstance(value, np.generic):
        return value.dtype
    known = (bool, int, float, complex, str, bytes)
    return next((one for one in known if isinstance(value, one)), object)


def _fitted_list(values: list[Any], one: Any, dtype: Dtype) -> Host:
    if one is int:
        return _fitted_integers(values, dtype)
    if one is not object:
        return _fitted(np.array(values, one), dtype)
    if dtype.kind not in "mM":
        raise DtypeMismatch(f"{dtype} cannot hold {values[0]!r} without loss; {_advice(dtype)}")
    return _fitted(np.array(values, object).astype(f"{dtype.kind}8"), dtype)  # of datetime


def _fitted_integers(values: list[int], dtype: Dtype) -> Host:
    """`_fitted` of Python integers, which may exceed every NumPy integer."""
    found = np.array(values)
    if found.dtype.kind in "iu":
        return _fitted(found, dtype)
    found = np.array(values, object)
    if _kind(dtype) not in "fc":
        least, most = _bounds(dtype)
        _check_same(found, [least <= value <= most for value in values], dtype)
        return np.array(values, dtype)
    made = _fitted(found.astype(np.longdouble if dtype.char in "gG" else np.float64), dtype)
    got = _floats(made, complex_too=False).tolist()
    _check_same(found, [value == int(now) for value, now in zip(values, got, strict=True)], dtype)
    return made


def _printed(value: Any) -> str:
    """A value for a message."""
    if not isinstance(value, np.generic):
        return repr(value)
    return str(value) if value.dtype.kind in "mM" else repr(value.item())


def _of_objects(dtype: Dtype) -> Dtype:
    """The same structure with Python objects for numbers, to get the values before any cast.

    `_records` converts them field by field.
    """
    fields = []
    for name in dtype.names or ():
        kind, shape = dtype[name].base, dtype[name].shape
        fields.append((name, _of_objects(kind) if kind.names else np.dtype(object), shape))
    return np.dtype(fields)


def _records(values: Host, dtype: Dtype) -> Host:
    made = np.zeros(values.shape, dtype)
    for name in dtype.names or ():
        kind = dtype[name].base
        part = values[name]
        if kind.names is not None:
            made[name] = _records(part, kind)
        elif kind.kind == "V" and kind.isbuiltin != 2:  # bytes, which NumPy truncates
            made[name] = part
            pairs = zip(made[name].reshape(-1).tolist(), part.reshape(-1).tolist(), strict=True)
            same = [now == bytes(value) for now, value in pairs]
            _check_same(part.reshape(-1), same, kind)
        else:
            made[name] = as_array(part.tolist(), kind).reshape(part.shape)
    return made


def _advice(dtype: Dtype | None) -> str:
    return f"nothing is cast silently: pass np.asarray(source).astype({str(dtype)!r})"


def check_out(array: Array, out: Host) -> None:
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"out= takes a NumPy array, not {type(out).__name__}")
    if out.dtype != array.dtype:
        raise DtypeMismatch(f"array {array.name!r} is {array.dtype}, out is {out.dtype}")
    if out.shape != array.shape:
        raise ShapeMismatch(f"array {array.name!r} has shape {array.shape}, out has {out.shape}")
    if not out.flags.writeable:
        raise ReadOnly("out= is a read-only NumPy array")


def one_element(array: Array, value: Any) -> Host:
    """One element of the array's dtype; refuses a value that would change."""
    # The common case first: a small number, which every NumPy dtype of its kind holds.
    if array.dtype.isbuiltin == 1 and type(value) in (int, float) and -_SAFE <= value <= _SAFE:
        if array.dtype.kind == "f":
            return np.array(value, array.dtype)
        if array.dtype.kind in "iu" and type(value) is int and 0 <= value < 128:
            return np.array(value, array.dtype)
    try:
        element = as_array(value, array.dtype)
    except (InvalidValue, DtypeMismatch) as error:
        raise type(error)(f"cannot fill {array.dtype} with {value!r}: {error}") from error
    if element.shape != ():
        raise ShapeMismatch(f"fill() takes one value, not an array of {element.shape}")
    return element.copy()  # it may be the caller's memory, which the fill itself may overwrite


def fill_word(array: Array, element: Host) -> int | None:
    """The 4-byte word whose repetition fills the array, if the device can fill it that way."""
    if not array.contiguous or array.region.lo % 4 or array.nbytes % 4:
        return None
    pattern = element.tobytes()
    if len(pattern) < 4:
        pattern *= 4 // len(pattern) if 4 % len(pattern) == 0 else 1
    if len(pattern) % 4 or pattern != pattern[:4] * (len(pattern) // 4):
        return None
    return int.from_bytes(pattern[:4], "little")
