"""Parts of arrays, a slice and a reinterpretation of it: on the host, on a device, and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps

Host = npt.NDArray[Any]

#: Reinterpretations of a slice. "rows" are pitched rows of `_WIDTH` bytes, `_PITCH` apart.
WAYS = ("", "transposed", "flat", "bytes", "words", "rows")
_WIDTH, _PITCH = 5, 12


class Raises(Exception):
    """The operation must raise this error, and change nothing."""

    def __init__(self, error: type[ps.Error]) -> None:
        super().__init__(error.__name__)
        self.error = error


@dataclass(frozen=True)
class Part:
    """A slice of an array, and a reinterpretation of it (one of `WAYS`).

    Along the first dimension it goes from lo to hi, or from hi down to lo if the step is negative;
    along the second it is `across`, a slice of the same form, or all if None.
    """

    array: int
    lo: int
    hi: int
    step: int = 1
    across: tuple[int, int, int] | None = None
    way: str = ""

    def overlaps(self, other: Part) -> bool:
        """Whether the two share elements."""
        everything = (0, 1 << 62, 1)
        return (
            self.array == other.array
            and _meet((self.lo, self.hi, self.step), (other.lo, other.hi, other.step))
            and _meet(self.across or everything, other.across or everything)
        )

    def lengths(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the slice, before it is reinterpreted."""
        rows = len(range(self.lo, self.hi, abs(self.step)))
        if len(shape) == 1:
            return (rows,)
        lo, hi, step = self.across or (0, shape[1], 1)
        return rows, len(range(lo, hi, abs(step)))

    @property
    def index(self) -> slice | tuple[slice, slice]:
        rows = _slice(self.lo, self.hi, self.step)
        return rows if self.across is None else (rows, _slice(*self.across))

    def is_all_of(self, length: int) -> bool:
        return (self.lo, self.hi, self.step, self.across) == (0, length, 1, None)

    def on_host(self, whole: Host) -> Host:
        """The part of a NumPy array: always a view of its bytes, never a copy."""
        found = whole[self.index]
        match self.way:
            case "":
                return found
            case "transposed":
                return found.T
        if not found.flags.c_contiguous:
            raise Raises(ps.ShapeMismatch)
        match self.way:
            case "flat":
                return found.reshape(-1)
            case "bytes":
                return found.view(np.uint8)
            case "words":
                if found.shape[-1] * found.itemsize % 4:
                    raise Raises(ps.ShapeMismatch)
                return found.view(np.uint32)
        rows = _rows(found.nbytes)
        if not rows:
            raise Raises(ps.InvalidValue)
        return np.lib.stride_tricks.as_strided(
            found.reshape(-1).view(np.uint8), (rows, _WIDTH), (_PITCH, 1)
        )

    def on_device(self, whole: ps.Array) -> ps.Array:
        """The same part of a device's array."""
        found = whole if self.is_all_of(len(whole)) else whole[self.index]
        match self.way:
            case "":
                return found
            case "transposed":
                return found.T
            case "flat":  # reshape alone would copy what is not contiguous
                return found.reinterpret(found.dtype).reshape(-1)
            case "bytes":
                return found.reinterpret(np.uint8)
            case "words":
                return found.reinterpret(np.uint32)
        return found.pitched(_rows(found.nbytes), _WIDTH, _PITCH)

    def text(self, name: str, length: int) -> str:
        """The same part as a Python expression."""
        if not self.is_all_of(length):
            across = f", {_text(*self.across)}" if self.across else ""
            name = f"{name}[{_text(self.lo, self.hi, self.step)}{across}]"
        endings = {
            "": "", "transposed": ".T", "flat": f".reinterpret({name}.dtype).reshape(-1)",
            "bytes": ".reinterpret(np.uint8)", "words": ".reinterpret(np.uint32)",
        }  # fmt: skip
        if self.way in endings:
            return name + endings[self.way]
        return (
            f"{name}.pitched(({name}.nbytes + {_PITCH - _WIDTH}) // {_PITCH}, {_WIDTH}, {_PITCH})"
        )


def _rows(nbytes: int) -> int:
    return (nbytes + _PITCH - _WIDTH) // _PITCH


def _meet(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Whether two slices share an index."""
    near = a[0] < b[1] and b[0] < a[1]
    if not near or {abs(a[2]), abs(b[2])} == {1} or max(a[1], b[1]) >= 1 << 62:
        return near
    return not set(range(a[1])[_slice(*a)]).isdisjoint(range(b[1])[_slice(*b)])


def _slice(lo: int, hi: int, step: int) -> slice:
    return (
        slice(lo, hi, step) if step > 0 or lo == hi else slice(hi - 1, lo - 1 if lo else None, step)
    )


def _text(lo: int, hi: int, step: int) -> str:
    found = _slice(lo, hi, step)
    stop = "" if found.stop is None else found.stop
    return f"{found.start}:{stop}" + ("" if step == 1 else f":{step}")
