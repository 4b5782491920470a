"""Arrays as text: the values that `repr` shows, of which it reads no more than it shows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from penstock.array.array import Array

Host = npt.NDArray[Any]


def values_in_text(array: Array) -> str:
    """The values as NumPy's `repr` shows them: all, or of a large array the ends of each axis."""
    content, threshold = _shown(array)
    return np.array2string(content, separator=", ", prefix="Array(", threshold=threshold)


def printed_values(array: Array) -> str:
    """The values as NumPy's `str` shows them, of a large array as many as `repr` does."""
    content, threshold = _shown(array)
    return np.array2string(content, threshold=threshold) if content.ndim else str(content)


def _shown(array: Array) -> tuple[Host, int]:
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
