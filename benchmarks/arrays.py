"""Operations on arrays beside NumPy's, in one interleaved run: times, ratio, the receipt's counts.

A row is an operation on about that number of elements. `most` is the ratio that it should stay
below on a Vulkan driver for CPUs, where both compute on the same cores; `cpu_ratio` is that of the
processor time, of all threads, which other programs disturb less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from benchmarks.tables import Row, Section

Work = Callable[[], Any]
SIZES = (1_000, 64_000, 1_000_000, 4_000_000, 16_000_000)
_LARGEST_PRODUCT = 1_000_000  # elements of a matrix
_LONG = 1.0  # seconds of all rounds of a row


class Case(NamedTuple):
    """An operation, by NumPy and by Penstock."""

    name: str
    most: float
    numpy: Work
    penstock: Work


def run(device: ps.Device, repeat: int, sizes: tuple[int, ...] = SIZES) -> list[Section]:
    """Measure every operation in each size."""
    sections = []
    for size in sizes:
        rows = [_row(device, case, repeat) for group in GROUPS for case in group(device, size)]
        above = [row for row in rows if float(row["ratio"] or 0) > float(row["most"] or 0)]
        notes = (f"{len(above)} of {len(rows)} above their bound.",) if size >= 1_000_000 else ()
        sections.append(Section(f"{size:,} elements", rows, notes))
    return sections


def _row(device: ps.Device, case: Case, repeat: int) -> Row:
    """The least times of interleaved rounds, after one that is not counted."""

    def ours() -> None:
        case.penstock()
        device.synchronize()

    with np.errstate(all="ignore"):
        case.numpy()
        ours()
        with ps.count() as counts:
            case.penstock()
        device.synchronize()
        times: dict[Work, list[tuple[float, float]]] = {case.numpy: [], ours: []}
        for _ in range(repeat):
            for work, taken in times.items():
                start, used = time.perf_counter(), time.process_time()
                work()
                taken.append((time.perf_counter() - start, time.process_time() - used))
            if len(taken) >= 3 and sum(sum(wall for wall, _ in t) for t in times.values()) > _LONG:
                break
    theirs, mine = ([min(each) for each in zip(*taken, strict=True)] for taken in times.values())
    return {
        "operation": case.name,
        "numpy_ms": 1e3 * theirs[0],
        "penstock_ms": 1e3 * mine[0],
        "ratio": mine[0] / theirs[0],
        "most": case.most,
        "cpu_ratio": mine[1] / max(theirs[1], 1e-9),
        "launches": counts.launches,
        "waits": counts.waits,
        "copies": counts.copies,
        "allocations": counts.allocations,
    }


def _both(device: ps.Device, name: str, most: float, host: Any, work: Callable[..., Any]) -> Case:
    """The same expression of arrays of either kind; `host` are NumPy's arrays."""
    own = [device.array(each) for each in host]
    return Case(name, most, lambda: work(np, *host), lambda: work(device.xp, *own))


def _random(dtype: str, *shape: int) -> Any:
    return (100 * np.random.default_rng(0).random(shape)).astype(dtype)


def elements(device: ps.Device, size: int) -> Iterator[Case]:
    """Arithmetic, comparisons, functions of an element, conversions."""
    side = int(size**0.5)
    for dtype in ("float32", "float64", "int32", "int8"):
        x, y = _random(dtype, size), _random(dtype, size)
        yield _both(device, f"x + y {dtype}", 6, (x, y), lambda xp, x, y: x + y)
    x, y = _random("float32", size), _random("float32", size)[::-1].copy()
    square = _random("float32", side, side)
    row = square[0].copy()
    yield _both(device, "x * 2", 6, (x,), lambda xp, x: x * 2)
    yield _both(device, "x > y", 6, (x, y), lambda xp, x, y: x > y)
    yield _both(device, "x / y", 6, (x, y), lambda xp, x, y: x / y)
    yield _both(device, "x + row", 6, (square, row), lambda xp, x, y: x + y)
    yield _both(device, "x + column", 6, (square, row), lambda xp, x, y: x + y[:, None])
    yield _both(device, "x.T + x", 6, (square,), lambda xp, x: x.T + x)
    yield _both(device, "x[1:] - x[:-1]", 6, (x,), lambda xp, x: x[1:] - x[:-1])
    yield _both(device, "where", 3, (x, y), lambda xp, x, y: xp.where(x > y, x, y))
    for name in ("exp", "log", "sin", "tanh", "sqrt"):
        yield _both(device, name, 3, (x,), lambda xp, x, name=name: getattr(xp, name)(x))
    yield _both(device, "exp float64", 3, (x.astype(float),), lambda xp, x: xp.exp(x))
    yield _both(device, "x ** y", 3, (x, y / 100), lambda xp, x, y: x**y)
    for one, other in (("float32", "float64"), ("float32", "int32"), ("int8", "float32")):
        name = f"astype {one} to {other}"
        yield _both(
            device, name, 3, (_random(one, size),), lambda xp, x, other=other: x.astype(other)
        )


def reductions(device: ps.Device, size: int) -> Iterator[Case]:
    """Reductions along axes, and running sums."""
    side = int(size**0.5)
    square = _random("float32", side, side)
    for operation in ("sum", "mean", "var", "max", "argmax", "any", "cumsum"):
        for axis in (0, 1):
            yield _both(
                device, f"{operation} axis {axis}", 3, (square,),
                lambda xp, x, o=operation, axis=axis: getattr(x, o)(axis=axis),
            )  # fmt: skip
    for dtype in ("int8", "int32", "float64", "complex64"):
        for axis in (0, 1):
            yield _both(
                device, f"sum {dtype} axis {axis}", 3, (_random(dtype, side, side),),
                lambda xp, x, axis=axis: x.sum(axis=axis),
            )  # fmt: skip
    few = _random("float32", size // 4, 4)
    for axis in (0, 1):
        yield _both(
            device, f"sum n/4 x 4 axis {axis}", 3, (few,), lambda xp, x, axis=axis: x.sum(axis=axis)
        )
    flat = _random("float32", size)
    for operation in ("sum", "mean", "max", "argmax"):
        yield _both(
            device, f"x.{operation}()", 3, (flat,), lambda xp, x, o=operation: getattr(x, o)()
        )
    yield _both(device, "(x - x.mean()) / x.std()", 6, (flat,),
                lambda xp, x: (x - x.mean()) / x.std())  # fmt: skip


def order(device: ps.Device, size: int) -> Iterator[Case]:
    """Copies through strides, index arrays, masks, sorting, sets."""
    rng, side = np.random.default_rng(0), int(size**0.5)
    for dtype in ("float32", "float64", "uint8"):
        square = _random(dtype, side, side)
        yield _both(device, f"x.T.copy() {dtype}", 3, (square,), lambda xp, x: x.T.copy())
        yield _both(device, f"x[:, ::2].copy() {dtype}", 3, (square,),
                    lambda xp, x: x[:, ::2].copy())  # fmt: skip
    flat = rng.standard_normal(size).astype(np.float32)
    index, mask = rng.integers(0, size, size), rng.random(size) < 0.5
    yield _both(device, "x[indices]", 3, (flat, index), lambda xp, x, i: x[i])
    yield _both(device, "x[mask]", 3, (flat, mask), lambda xp, x, m: x[m])
    yield _both(device, "nonzero", 3, (mask,), lambda xp, m: m.nonzero())
    yield _both(device, "x[mask] = 0", 3, (flat, mask), lambda xp, x, m: x.__setitem__(m, 0.0))
    flat = rng.standard_normal(size).astype(np.float32)

    def sort(xp: Any, x: Any) -> Any:
        return np.sort(x, kind="stable") if xp is np else xp.sort(x)

    for dtype in ("float32", "int32", "float64", "int16"):
        yield _both(device, f"sort {dtype}", 2, ((3000 * flat).astype(dtype),), sort)
    short = flat[: size // 100 * 100].reshape(-1, 100)
    yield _both(device, "sort rows of 100", 2, (short,), sort)
    yield _both(device, "argsort", 2, (flat,),
                lambda xp, x: x.argsort(kind="stable") if xp is np else xp.argsort(x))  # fmt: skip
    yield _both(device, "searchsorted", 3, (np.sort(flat), flat),
                lambda xp, up, x: xp.searchsorted(up, x))  # fmt: skip
    whole = rng.integers(0, 1000, size).astype(np.int32)
    yield _both(device, "unique_values", 3, (whole,), lambda xp, x: xp.unique_values(x))
    yield _both(device, "concat", 3, (flat, flat), lambda xp, x, y: xp.concat([x, y]))
    yield _both(device, "roll", 3, (flat,), lambda xp, x: xp.roll(x, 7))
    yield _both(device, "repeat 2", 3, (flat,), lambda xp, x: xp.repeat(x, 2))
    yield Case("arange", 3, lambda: np.arange(size), lambda: device.xp.arange(size))


def products(device: ps.Device, size: int) -> Iterator[Case]:
    """Matrix products (NumPy's use one thread if OPENBLAS_NUM_THREADS=1), random numbers."""
    side = int(size**0.5)
    if size <= _LARGEST_PRODUCT:
        for dtype in ("float32", "float64", "complex64"):
            pair = (_random(dtype, side, side), _random(dtype, side, side))
            yield _both(device, f"x @ y {dtype}", 10, pair, lambda xp, x, y: x @ y)
    matrix, vector = _random("float32", side, side), _random("float32", side)
    yield _both(device, "matrix @ vector", 10, (matrix, vector), lambda xp, x, y: x @ y)
    theirs, ours = np.random.default_rng(0), device.random.default_rng(0)
    for name in ("random", "standard_normal"):
        yield Case(
            f"{name} float32", 6,
            lambda name=name: getattr(theirs, name)(size, dtype=np.float32),
            lambda name=name: getattr(ours, name)(size, dtype=np.float32),
        )  # fmt: skip


GROUPS = (elements, reductions, order, products)
