"""What a call returns while a graph is recorded, in place of a pending value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import NotWhileRecording
from penstock.schedule.pending import Pending

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler


class Recorded(Pending[Any]):
    """It has no result, as nothing was executed. `instead` is a call that gives an array."""

    __slots__ = ("_instead",)

    def __init__(self, scheduler: Scheduler, what: str, instead: str = "") -> None:
        super().__init__(scheduler, {}, what)
        self._instead = instead

    def _refuse(self) -> NoReturn:
        advice = f". In the graph, take an array: {self._instead}" if self._instead else ""
        done = "g.replay() does it and returns its result"
        raise NotWhileRecording(f"{self._what} is recorded, not done; {done}{advice}")

    @property
    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> None:
        self._refuse()

    def result(self, timeout: float | None = None) -> Any:
        self._refuse()

    def _compare(self, other: Any) -> Any:
        self._refuse()

    __bool__ = __float__ = __int__ = __index__ = __array__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _compare
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _compare
    __neg__ = __abs__ = _refuse
    __hash__ = None  # type: ignore[assignment]
