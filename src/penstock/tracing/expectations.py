"""What a receipt is expected to say: numbers, ranges and functions that judge a number."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real  # NumPy's numbers are among them
from typing import Any

from penstock.errors import ArgumentError

Expected = int | float | range | Callable[[Any], bool]

#: What a number limits from above, rather than equals.
LIMITED = ("idle",)


def fits(name: str, value: int | float | None, wanted: Expected) -> bool:
    """Whether a value is as expected; one that is not known never is."""
    given: Any = wanted
    if not (callable(given) or isinstance(given, Real | range)):
        raise ArgumentError(
            f"expect({name}={wanted!r}): give a number, a range, or a function that judges it"
        )
    if value is None:
        return False
    if callable(wanted):
        return bool(wanted(value))
    if isinstance(wanted, range):
        return value in wanted
    return value <= wanted if name in LIMITED else value == wanted


def in_words(name: str, wanted: Expected) -> str:
    if callable(wanted):
        return f"something for which {getattr(wanted, '__name__', wanted)} holds"
    return f"at most {wanted}" if name in LIMITED else str(wanted)
