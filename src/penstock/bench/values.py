"""Values of options as llama-bench takes them: lists, ranges, and several of an option.

`512`, `128,256,512`, `1-4` (1 2 3 4), `16-64+16` (16 32 48 64), `1-8*2` (1 2 4 8).
"""

from __future__ import annotations

import re

from penstock.errors import InvalidValue

_RANGE = re.compile(r"(\d+)-(\d+)(?:([+*])(\d+))?")
_MOST = 1000  # values of one option; more is a slip of the pen


def numbers(option: str, given: str) -> list[int]:
    """The values that a text stands for."""
    found: list[int] = []
    for part in given.split(","):
        if part.isdecimal():
            found.append(int(part))
            continue
        matched = _RANGE.fullmatch(part)
        if not matched:
            raise InvalidValue(
                f"{option} {given!r}: {part!r} is not a number; write 512, or 128,256 or 1-8*2"
            )
        found += _range(option, matched)
    return found


def pairs(option: str, given: str) -> tuple[int, int]:
    """The two numbers of `512,128`."""
    both = numbers(option, given)
    if len(both) != 2:
        raise InvalidValue(f"{option} {given!r}: it takes two numbers, as in 512,128")
    return both[0], both[1]


def _range(option: str, matched: re.Match[str]) -> list[int]:
    first, last = int(matched[1]), int(matched[2])
    sign, step = matched[3] or "+", int(matched[4] or 1)
    if step < (1 if sign == "+" else 2) or last < first or (sign == "*" and first == 0):
        raise InvalidValue(f"{option} {matched[0]!r}: such a range never ends")
    found = []
    while first <= last:
        found.append(first)
        if len(found) > _MOST:
            raise InvalidValue(f"{option} {matched[0]!r} is more than {_MOST} values")
        first = first + step if sign == "+" else first * step
    return found
