"""What a kernel returns: a pending value that can be used like the number it will be."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from penstock import accelerator
from penstock.array.array import Array
from penstock.errors import Closed, Error
from penstock.ledger.hazards import Lane
from penstock.schedule.pending import Pending

if TYPE_CHECKING:
    from penstock.launch.launch_memory import ResultMemory
    from penstock.schedule.scheduler import Scheduler


@accelerator.share
class Result(Pending[Any], NDArrayOperatorsMixin):
    """The result of one launch; `result()` waits for that launch only.

    The values are NumPy's. `float(r)`, `int(r)`, comparison and arithmetic wait for the value, so
    `while x.max() > limit:` works. Dropping a result unread waits for nothing.
    """

    __slots__ = ("_memory",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, scheduler: Scheduler, what: str, memory: ResultMemory) -> None:
        # Set here, not by the base classes: every launch with a result makes one.
        self._scheduler = scheduler
        self._points = {}
        self._what = what
        self._finish = self._value = None
        self._memory: ResultMemory | None = memory

    @property
    def memory(self) -> ResultMemory | None:
        """The slot that the launch writes; None once the result is read."""
        return self._memory

    def launched(self, lane: Lane, value: int) -> None:
        """Assign the result to the launch about to be recorded, at this point of its lane."""
        self._points = {lane: value}
        if self._memory is not None:
            self._memory.taken(lane, value)

    def result(self, timeout: float | None = None) -> Any:
        """The value; waits for it at most `timeout` seconds."""
        if self._memory is None:
            return self._value
        if timeout is None and (value := accelerator.native.result(self)) is not None:
            return value
        self.wait(timeout)
        with self._scheduler.lock:
            memory = self._memory
            if memory is not None:  # else another thread has read it
                if self._scheduler.closed:
                    raise Closed(f"{self._scheduler.name} was closed before {self._what} was read")
                self._value = memory.read()
                self._memory = None
                memory.give_back()
        return self._value

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        if memory is not None:
            memory.give_back()

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        return np.array(self.result(), dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(each, Array) for each in inputs):
            return NotImplemented  # the array's, which takes the result as it is
        values = [each.result() if isinstance(each, Result) else each for each in inputs]
        return getattr(ufunc, method)(*values, **options)

    def __bool__(self) -> bool:
        return bool(self.result())

    def __float__(self) -> float:
        return float(self.result())

    def __int__(self) -> int:
        return int(self.result())

    def __index__(self) -> int:
        return operator.index(self.result())

    def __complex__(self) -> complex:
        return complex(self.result())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.result(), digits)

    def item(self) -> Any:
        """The value as a Python number; waits for it."""
        return self.result().item()

    def __len__(self) -> int:
        return len(self.result())

    def __iter__(self) -> Any:
        return iter(self.result())

    def __getitem__(self, index: Any) -> Any:
        return self.result()[index]

    def __format__(self, spec: str) -> str:
        return format(self.result(), spec) if spec else str(self)

    def __str__(self) -> str:
        """The value, as NumPy prints it, so that `print(x.sum())` shows it; waits for it."""
        with contextlib.suppress(Error):  # the device is closed, …
            return str(self.result())
        return repr(self)
