"""Host memory to device memory and back, against `numpy.copyto` on the very same memory.

The peer gets its memory from `x.view()`, so source, destination and their pages are the same ones
that Penstock copies between, and as warm. Every copy moves other content than the one before it,
and is compared with what should have arrived, outside of the time taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.bench.measure import SHADERS, Case, Samples, expect, interleave, timed
from penstock.bench.tables import Row, Section

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, 1 * MIB, 16 * MIB, 64 * MIB)
PATH_SIZES = (4 * KIB, 1 * MIB, 64 * MIB)
PATHS = ("auto", "rename", "staged", "ordered", "unmapped")

_PAGE = 4096
_BATCH = 2 * MIB  # small copies are timed in batches of about this many bytes …
_MOST = 200  # … and at most so many at a time

Host = npt.NDArray[Any]


def run(device: ps.Device, repeat: int) -> list[Section]:
    return [
        *(_direct(device, nbytes, repeat) for nbytes in SIZES),
        _adopt(device, repeat),
        _paths(device, repeat),
    ]


# Direct copies.


def _direct(device: ps.Device, nbytes: int, repeat: int) -> Section:
    x = device.empty(nbytes // 4, np.float32, name="x")
    out = _page_aligned(nbytes)
    sources = _sources(nbytes)
    times = max(1, min(_MOST, _BATCH // nbytes))

    def write() -> float:
        source = next(sources)
        seconds = timed(times, x.write, source)
        expect(_same(x.view("r"), source), "write()")
        return seconds

    def copyto_in() -> float:
        source, memory = next(sources), x.view("w")
        seconds = timed(times, np.copyto, memory, source)
        expect(_same(memory, source), "copyto")
        return seconds

    def read_once() -> None:
        x.read(out=out).result()

    def read() -> float:
        _spoil(out)
        seconds = timed(times, read_once)
        expect(_same(x.view("r"), out), "read(out=)")
        return seconds

    def copyto_out() -> float:
        _spoil(out)
        memory = x.view("r")
        seconds = timed(times, np.copyto, out, memory)
        expect(_same(memory, out), "copyto")
        return seconds

    def result() -> float:
        seconds = timed(times, x.numpy)
        expect(_same(x.view("r"), x.numpy()), "numpy()")
        return seconds

    def fresh_copy() -> float:
        memory = x.view("r")
        seconds = timed(times, memory.copy)
        expect(_same(memory, memory.copy()), "copy()")
        return seconds

    cases: dict[str, Case] = {
        "numpy.copyto to the device's memory": copyto_in,
        "  write(source)": write,
        "  noise: the same copyto again": copyto_in,
        "numpy.copyto from the device's memory": copyto_out,
        "  read(out=).result()": read,
        "  numpy()": result,
        "  x.view('r').copy(), for comparison": fresh_copy,
    }
    copyto_in()  # there is something to read
    samples = interleave(cases, repeat)
    rows: list[Row] = []
    for name, taken in samples.items():
        if not name.startswith(" "):
            peer_name, peer = name, taken
        rows.append(
            {
                "case": name,
                "relative_to": peer_name,
                "bytes": nbytes,
                "median_us": taken.median * 1e6,
                "min_us": taken.minimum * 1e6,
                "GB/s": nbytes / taken.median / 1e9,
                "ratio_of_medians": peer.median / taken.median,
                "ratio_of_minima": peer.minimum / taken.minimum,
            }
        )
    aim = "; the aim is 0.95 or more" if nbytes == SIZES[-1] else ""
    title = f"Direct transfers of {_human(nbytes)}, speed relative to the copyto above{aim}"
    return Section(title, rows, (_checked(samples),))


# Adopting.


def _adopt(device: ps.Device, repeat: int) -> Section:
    title = "Adopting ordinary NumPy memory: no copy, so the size does not matter"
    if not device.info.can_import:
        return Section(title, [{"case": f"{device.name} cannot import host memory"}])
    kernel = device.kernel(SHADERS / "saxpy.comp")
    sources = {nbytes: _page_aligned(nbytes) for nbytes in SIZES}
    receipts = {n: _check_adopted(device, kernel, source) for n, source in sources.items()}

    def adopt(source: Host) -> float:
        _ = device.memory  # lets go of the one adopted before, outside of the time taken
        made: list[ps.Array] = []
        seconds = timed(1, lambda: made.append(device.adopt(source)))
        expect(_address(made[0].view("r")) == _address(source), "adopt()")
        return seconds

    cases: dict[str, Case] = {_human(n): partial(adopt, source) for n, source in sources.items()}
    samples = interleave(cases, 4 * repeat)
    smallest = next(iter(samples.values()))
    rows: list[Row] = [
        {
            "case": name,
            "bytes": nbytes,
            "median_us": taken.median * 1e6,
            "min_us": taken.minimum * 1e6,
            "ratio_of_medians": taken.median / smallest.median,
            "ratio_of_minima": taken.minimum / smallest.minimum,
            "copies": receipts[nbytes].copies,
            "waits": receipts[nbytes].waits,
        }
        for nbytes, (name, taken) in zip(SIZES, samples.items(), strict=True)
    ]
    note = "time relative to the smallest; checked: the array's address is the caller's, and a"
    return Section(title, rows, (note, "kernel's result is in the caller's memory"))


def _check_adopted(device: ps.Device, kernel: ps.Kernel, source: Host) -> ps.Trace:
    """Prove on one adopted array that the device works in the caller's memory; the receipt."""
    source[:] = 1.0
    with ps.trace() as receipt:
        y = device.adopt(source)
    part = min(y.size, MIB)
    x = device.ones(part)
    kernel(x=x, y=y[:part], a=2.0, n=part, threads=part)
    device.synchronize()
    expect(bool((source[:part] == 3.0).all() and (source[part:] == 1.0).all()), "adopt()")
    return receipt


# The other paths.


def _paths(device: ps.Device, repeat: int) -> Section:
    rows: list[Row] = []
    opened = {path: ps.Device(device.info.index, transfers=path) for path in PATHS}
    try:
        for nbytes in PATH_SIZES:
            rows += _paths_of_size(opened, nbytes, repeat)
    finally:
        for one in opened.values():
            one.close()
    title = "Every path, forced on an idle array, until the bytes have arrived (information)"
    notes = (
        "copies, waits, renames and allocations are from the receipt of one warm transfer;",
        "checked: what arrived is compared with what was sent",
    )
    return Section(title, rows, notes)


def _paths_of_size(opened: dict[str, ps.Device], nbytes: int, repeat: int) -> list[Row]:
    sources = _sources(nbytes)
    out = _page_aligned(nbytes)
    moves: dict[str, _Write | _Read] = {}
    for path, device in opened.items():
        x = device.zeros(nbytes // 4, name="x")
        moves[f"write, transfers={path!r}"] = _Write(x, sources, borrow=path == "ordered")
        if path in ("auto", "unmapped"):
            moves[f"read, transfers={path!r}"] = _Read(x, out)
    samples = interleave({name: partial(_time, move) for name, move in moves.items()}, repeat)
    return [
        {
            "case": name,
            "bytes": nbytes,
            "median_us": samples[name].median * 1e6,
            "min_us": samples[name].minimum * 1e6,
            "GB/s": nbytes / samples[name].median / 1e9,
            **_receipt(move),
        }
        for name, move in moves.items()
    ]


class _Write:
    """A write, until the bytes have arrived."""

    def __init__(self, x: ps.Array, sources: Iterator[Host], *, borrow: bool) -> None:
        self._x = x
        self._sources = sources
        self._borrow = borrow

    def prepare(self) -> None:
        self._source = next(self._sources)

    def move(self) -> None:
        self._x.write(self._source, borrow=self._borrow).result()

    def check(self) -> None:
        expect(_same(self._x.numpy(), self._source), "write()")


class _Read:
    """A read into the caller's array."""

    def __init__(self, x: ps.Array, out: Host) -> None:
        self._x = x
        self._out = out

    def prepare(self) -> None:
        _spoil(self._out)

    def move(self) -> None:
        self._x.read(out=self._out).result()

    def check(self) -> None:
        expect(_same(self._x.numpy(), self._out), "read(out=)")


def _time(move: _Write | _Read) -> float:
    move.prepare()
    seconds = timed(1, move.move)
    move.check()
    return seconds


def _receipt(move: _Write | _Read) -> Row:
    move.prepare()
    with ps.trace() as receipt:
        move.move()
    move.check()
    return {
        "copies": receipt.copies,
        "waits": receipt.waits,
        "renames": receipt.renames,
        "allocations": receipt.allocations,
    }


# Memory and content.


def _sources(nbytes: int) -> Iterator[Host]:
    """Two arrays of different content, in turn, for ever."""
    one, other = _page_aligned(nbytes), _page_aligned(nbytes)
    np.random.default_rng(nbytes).random(dtype=np.float32, out=one)
    np.add(one, 1, out=other)
    return itertools.cycle((one, other))


def _spoil(out: Host) -> None:
    """Put into every page what no source has; no more, or the rest would be in the caches too."""
    out[:: _PAGE // out.itemsize] = -1


def _same(a: Host, b: Host) -> bool:
    """Whether two float arrays are the same bits; looked at as large words, which is quicker."""
    return bool((a.view(np.uint64) == b.view(np.uint64)).all())


def _page_aligned(nbytes: int) -> Host:
    """Ordinary NumPy memory, touched, that starts on a page, as the device's does.

    Where a copy's two sides lie towards each other within a page can make it four times slower.
    """
    room = np.ones(nbytes + _PAGE, np.uint8)
    start = -_address(room) % _PAGE
    return room[start : start + nbytes].view(np.float32)


def _address(array: Host) -> int:
    return int(array.__array_interface__["data"][0])


def _human(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def _checked(samples: dict[str, Samples]) -> str:
    rounds = min(len(taken.seconds) for taken in samples.values())
    return f"{rounds} interleaved rounds; after each, every byte was compared"
