"""Arrays as text: what `repr`, `str` and `format` return. They read no more than they show."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ArgumentError, Error

if TYPE_CHECKING:
    from penstock.array.array import Array

Host = npt.NDArray[Any]


def shown(array: Array) -> str:
    """Its `repr`: the values as NumPy's shows them; of a large array, the ends of each axis."""
    if _has_values(array):
        with contextlib.suppress(Error):  # another thread writes it through a view, …
            content, threshold = _content(array)
            values = np.array2string(content, separator=", ", prefix="Array(", threshold=threshold)
            shape = f", shape={array.shape}" if not array.size and array.ndim != 1 else ""
            return f"Array({values}{shape}, dtype={array.dtype}, device={array.device.name!r})"
    state = ", closed" if array.buffer.closed else ""
    return f"<Array {array.name!r} {array.shape} {array.dtype} on {array.device.name}{state}>"


def printed(array: Array) -> str:
    """Its `str`: the values as NumPy's shows them, of a large array as many as `repr` does."""
    if not _has_values(array):
        return repr(array)
    content, threshold = _content(array)
    return np.array2string(content, threshold=threshold) if content.ndim else str(content)


def formatted(array: Array, spec: str) -> str:
    """The text in a format, which only an element without dimensions has."""
    if not spec:
        return str(array)
    if array.shape:
        raise ArgumentError(
            f"format {spec!r} is for one number; the array has shape {array.shape}. Format its "
            "elements, or np.array2string(x.numpy(), …)"
        )
    return format(array.item(), spec)


def _has_values(array: Array) -> bool:
    """Whether text shows its values: not those of scratch, nor of what is closed or lost."""
    scheduler = array.buffer.scheduler
    return (
        array.buffer.policy.host_reads
        and not array.closed
        and not scheduler.closed
        and scheduler.lost is None
        and not scheduler.captures
    )


def _content(array: Array) -> tuple[Host, int]:
    """What text shows of an array, and the number of elements above which NumPy leaves some out."""
    options = np.get_printoptions()
    edge, threshold = options["edgeitems"], options["threshold"]
    whole = array.size <= threshold
    return array.numpy() if whole else _ends(array, edge), threshold if whole else 0


def _ends(array: Array, edge: int) -> Host:
    """A small array that NumPy shows like the whole: its middle, which is not shown, is empty."""
    sizes = [min(n, 2 * edge + 1) for n in array.shape]
    made = np.zeros(sizes, array.dtype)
    for ends in itertools.product(*(_slices(n, edge) for n in array.shape)):
        index = tuple(here for here, _ in ends)
        made[index] = array[tuple(there for _, there in ends)].numpy()
    return made


def _slices(n: int, edge: int) -> list[tuple[slice, slice]]:
    """The ends of an axis: where they go in the small array, and where they are."""
    if n <= 2 * edge + 1:
        return [(slice(0, n), slice(0, n))]
    return [(slice(0, edge), slice(0, edge)), (slice(edge + 1, None), slice(n - edge, n))]
