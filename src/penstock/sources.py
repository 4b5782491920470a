"""What users hand to transfers, checked: nothing is cast, cut or bent silently."""

from __future__ import annotations

import contextlib
from array import array as packed
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.closing import Handle
from penstock.dtypes import Dtype
from penstock.errors import (
    ArgumentError,
    DtypeMismatch,
    Error,
    InvalidValue,
    ReadOnly,
    ShapeMismatch,
)

if TYPE_CHECKING:
    from penstock.array import Array

Host = npt.NDArray[Any]

_MOST_EXACT = 1 << 53  # float64 holds the integers up to here
#: Types of values that NumPy converts without a look at memory that the device may use in place.
_WITHOUT_MEMORY = frozenset({int, float, complex, bool, str, bytes, range, type(None)})
_SHOWING = ("__array_struct__", "__array_interface__", "__array__")
_SAFE = 2048  # every float dtype of NumPy's holds the integers up to here, and no float overflows


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
    """NumPy's array of whatever has a dtype of its own, as it is; of the rest, an array of `dtype`.

    A NumPy scalar is taken as the Python number that it is, as it is in a list.
    """
    if isinstance(source, np.ndarray):
        return source
    typed = hasattr(source, "__array__") or isinstance(source, memoryview | packed)
    return as_array(source, None if typed and not isinstance(source, np.generic) else dtype)


def as_array(source: npt.ArrayLike, dtype: Dtype | None) -> Host:
    """NumPy's array of anything. No value is changed, but that a float is rounded to `dtype`."""
    try:
        if dtype is not None and dtype.names is not None and not hasattr(source, "dtype"):
            return _records(np.asarray(source, _of_objects(dtype)), dtype)
        found = np.asarray(source)
        if dtype is None or found.dtype == dtype:
            return found
        if dtype.kind in "mM" and found.dtype.kind not in "mM":
            return np.asarray(source, dtype)
        if found.dtype == np.float64 and not hasattr(source, "dtype"):  # noqa: SIM102
            # Of integers whose common dtype is float64: look at them one by one.
            if dtype.kind in "iu" or (np.abs(found) >= _MOST_EXACT).any():
                found = np.asarray(source, object)
        return _fitted(found, dtype)
    except Error:
        raise
    except OverflowError as error:
        raise InvalidValue(f"the source does not fit {dtype}: {error}; {_advice(dtype)}") from error
    except (TypeError, ValueError) as error:
        kind = ShapeMismatch if "inhomogeneous" in str(error) else DtypeMismatch
        raise kind(f"cannot make an array of {dtype or 'one dtype'} from it: {error}") from error


def memories(source: Any) -> Iterator[Host]:
    """An array over each piece of memory that NumPy reads to make an array of this.

    As NumPy does it: an object is asked for its memory first, and for its items only if it has
    none. Handles are left out: reading one waits for the work that writes it.
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


def _shown(source: Any) -> Host | None:
    """The memory that an object shows, if it does."""
    if isinstance(source, np.ndarray):
        return source
    # Whatever the caller's code raises, it raises again when its object is converted.
    with contextlib.suppress(Exception):
        if isinstance(source, np.void):  # a record, which may be one of an array's
            return np.frombuffer(source, np.uint8)
        if not any(hasattr(source, name) for name in _SHOWING):
            memoryview(source)  # raises unless it has a buffer
        return np.asarray(source)
    return None


def _items(source: Any) -> Iterable[Any]:
    """The items of what NumPy takes for a sequence."""
    if isinstance(source, list | tuple):
        return source
    if hasattr(source, "__getitem__") and not isinstance(source, dict):
        with contextlib.suppress(Exception):
            return list(source)
    return ()


def _fitted(found: Host, dtype: Dtype) -> Host:
    """The same values in another dtype; only floats are rounded, and none to infinity."""
    if found.dtype.kind == "O":
        return _fitted_objects(found, dtype)
    if not found.size:
        return found.astype(dtype)
    if found.dtype.kind == "f" and dtype.kind in "fc":  # most often so
        with np.errstate(over="ignore"):
            made = found.astype(dtype)
        if np.isfinite(made).all():
            return made
    whole, other = found.dtype.kind in "iub", dtype.isbuiltin == 2  # 2: of another package
    possible = {
        "b": whole,
        "i": whole,
        "u": whole,
        "f": whole or found.dtype.kind == "f" or found.dtype.isbuiltin == 2,
        "c": whole or found.dtype.kind in "fc" or found.dtype.isbuiltin == 2,
        "m": found.dtype.kind == "m",
        "M": found.dtype.kind == "M",
    }
    if not possible.get("f" if other else dtype.kind, False):
        raise DtypeMismatch(
            f"{dtype} cannot hold {found.dtype} without loss, such as {found.flat[0].item()!r}; "
            f"{_advice(dtype)}"
        )
    with np.errstate(all="ignore"):
        made = found.astype(dtype)
        if dtype.kind in "biu":
            least, most = (0, 1) if dtype.kind == "b" else _bounds(dtype)
            fits = (found >= least) & (found <= most)
        elif dtype.kind in "mM":
            fits = (made == found) | np.isnat(found)
        else:
            fits = np.isfinite(made) | ~np.isfinite(found)
            if whole:
                fits &= _exact(found, dtype)
    if not np.all(fits):
        value = found[~np.asarray(fits)].flat[0].item()
        raise InvalidValue(f"{value!r} does not fit {dtype}; {_advice(dtype)}")
    return made


def _bounds(dtype: Dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return info.min, info.max


def _fitted_objects(found: Host, dtype: Dtype) -> Host:
    """The same of Python's numbers: integers may be larger than any dtype of NumPy's."""
    numbers = found.reshape(-1).tolist()
    kinds: Any = bool | np.bool_ | int | np.integer
    if dtype.kind in "fc" or dtype.isbuiltin == 2:
        kinds |= float | np.floating
    wrong = [value for value in numbers if not isinstance(value, kinds)]
    if wrong:
        raise DtypeMismatch(f"{dtype} cannot hold {wrong[0]!r} without loss; {_advice(dtype)}")
    exact = [int(value) if isinstance(value, int | np.integer) else value for value in numbers]
    if dtype.kind in "iu":
        made = np.array(exact, dtype)  # refuses what does not fit
    else:
        made = np.array([float(value) for value in exact], np.float64)
        changed = [value for value, got in zip(exact, made.tolist(), strict=True) if value != got]
        if any(value == value for value in changed):  # not NaN
            raise InvalidValue(f"{changed[0]!r} does not fit {dtype}; {_advice(dtype)}")
        made = _fitted(made, dtype)
    return made.reshape(found.shape)


def _exact(whole: Host, dtype: Dtype) -> Host:
    """Which integers a float dtype can hold: those with few enough bits up to the lowest set."""
    if dtype.isbuiltin == 2:
        import ml_dtypes

        kinds: Any = ml_dtypes
    else:
        kinds = np
    try:
        bits = kinds.finfo(dtype).nmant + 1
    except ValueError:  # an integer of another package
        return np.asarray(whole.astype(dtype).astype(np.int64) == whole)
    size = np.abs(whole.astype(np.int64)) if whole.dtype.kind == "i" else whole
    size = size.astype(np.uint64)  # the lowest int64 is its own absolute value
    lowest = size & (~size + np.uint64(1))
    return np.asarray((size == 0) | (size >> np.uint64(min(bits, 63)) < lowest))


def _of_objects(dtype: Dtype) -> Dtype:
    """The same structure with Python objects for numbers, to have the values before they are cast.

    As `_records` takes them apart.
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
        elif kind.kind in "biufc" or kind.isbuiltin == 2:
            made[name] = as_array(part.tolist(), kind).reshape(part.shape)
        else:
            made[name] = part
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
    """One element of the array's dtype; refuses what NumPy would have to bend."""
    # The common case first: a small number, which every dtype of its kind in NumPy holds.
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
    return element.copy()  # it may be memory of the caller's, which the fill itself may change


def fill_word(array: Array, element: Host) -> int | None:
    """The 4-byte word whose repetition fills the array, if the device can fill it so."""
    if not array.contiguous or array.region.lo % 4 or array.nbytes % 4:
        return None
    pattern = element.tobytes()
    if len(pattern) < 4:
        pattern *= 4 // len(pattern) if 4 % len(pattern) == 0 else 1
    if len(pattern) % 4 or pattern != pattern[:4] * (len(pattern) // 4):
        return None
    return int.from_bytes(pattern[:4], "little")
