"""Ctrl-C in the middle of an operation on arrays: it is done or not done, and leaves nothing.

After each interrupt, the array that the operation changes has the values of before or of after,
another thread can use the device, the operation works, and memory is given back (rule 8).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from tests.interrupts import STRIDE, at_point, chosen, interrupt, points

N = 64
RNG = np.random.default_rng(5)


class Operands(NamedTuple):
    """Arrays of a device, or NumPy's."""

    x: Any
    y: Any
    mask: Any
    index: Any
    some: Any  # as many elements as the mask has True


HOST = Operands(
    RNG.integers(0, 100, N), RNG.integers(0, 100, N), np.arange(N) % 4 == 1, RNG.permutation(N),
    RNG.integers(0, 100, N // 4),
)  # fmt: skip


def _in_place(x: Any, y: Any) -> None:
    x += y


def _shifted(x: Any) -> None:
    x[1:] -= x[:-1]


def _matrix(x: Any) -> Any:
    return x.reshape(8, 8)


#: Each returns a new array, or changes x and returns nothing.
OPERATIONS: dict[str, Callable[[Operands], Any]] = {
    "x + y": lambda o: o.x + o.y,
    "x.sum(axis=0)": lambda o: _matrix(o.x).sum(axis=0),
    "x - x.sum()": lambda o: o.x - o.x.sum(),
    "x[mask]": lambda o: o.x[o.mask],
    "x[index]": lambda o: o.x[o.index],
    "np.sort(x)": lambda o: np.sort(o.x),
    "x @ y": lambda o: _matrix(o.x) @ _matrix(o.y),
    "np.concatenate": lambda o: np.concatenate([o.x, o.y]),
    "x += y": lambda o: _in_place(o.x, o.y),
    "x[1:] -= x[:-1]": lambda o: _shifted(o.x),
    "x[index] = y": lambda o: o.x.__setitem__(o.index, o.y),
    "x[mask] = 5": lambda o: o.x.__setitem__(o.mask, 5),
    "x[mask] = some": lambda o: o.x.__setitem__(o.mask, o.some),
    "x[::4] = some": lambda o: o.x.__setitem__(slice(None, None, 4), o.some),
}


@pytest.fixture(autouse=True)
def cheap_collections() -> Iterator[None]:
    """Have the garbage collector look at nothing that was there before: it is called often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _in_use(dev: ps.Device) -> int:
    for _ in range(2):  # the first time frees what was in use
        gc.collect()
        dev.synchronize()
        memory = dev.memory
    return memory.used + memory.pending


def _used_elsewhere(x: ps.Array) -> Any:
    """What another thread reads of an array; fails if a lock is still taken."""
    read: list[Any] = []
    thread = threading.Thread(target=lambda: read.append(x.numpy()), daemon=True)
    thread.start()
    thread.join(60)
    assert read, "another thread cannot use the device"
    return read[0]


@pytest.mark.parametrize("any_device", ["llvmpipe", "simulator"], indirect=True)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_done_or_not_done(name: str, any_device: ps.Device) -> None:
    dev, operation = any_device, OPERATIONS[name]
    after = HOST._replace(x=HOST.x.copy())
    made = operation(after)
    mine = Operands(*(dev.array(each) for each in HOST))

    def run() -> None:
        found = operation(mine)
        if made is not None:
            np.testing.assert_array_equal(found.numpy(), made)

    for _ in range(2):  # everything is compiled, and memory is there
        run()
        mine.x.write(HOST.x)
    count = points(run)
    assert count > 50
    mine.x.write(HOST.x)
    most = _in_use(dev) + HOST.x.nbytes  # writing x may give it memory of the next size
    for number in chosen(count, 4 * STRIDE):
        kept: list[BaseException] = []
        _, place = at_point(number, interrupt, run, kept)
        at = f"at point {number} of {count}: {place}"
        found = _used_elsewhere(mine.x)
        assert any(np.array_equal(found, each) for each in (HOST.x, after.x)), at
        mine.x.write(HOST.x)
        run()  # while the frames of the interrupted call are kept
        np.testing.assert_array_equal(mine.x.numpy(), after.x, at)
        mine.x.write(HOST.x)
        kept.clear()
        assert _in_use(dev) <= most, at
