"""The runtime's own work without a model, each piece beside its floor.

The floor is the same work by the bare Vulkan calls, every structure built beforehand (`Raw`), or
`numpy.copyto` on the very same memory. Work and floor run in turn, round by round, and both are
checked, so that their ratio holds on a noisy machine. The receipt's counts are of one warm run.

`noise` rows are a piece of work beside itself: how far from 1 their ratio is, others may be, too.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.bench import machine
from penstock.bench.measure import SHADERS, expect, interleave, ratio, timed
from penstock.bench.models import OnProgress
from penstock.bench.raw import Raw
from penstock.llm.generation import counted
from penstock.shader.glsl import compile_glsl

Row = dict[str, Any]
Host = npt.NDArray[Any]

SIZE = 1024  # floats of the small arrays
LAUNCHES = 100  # recorded at a time; fewer than Penstock submits on its own account
CHAIN = 300  # launches, each needing the one before
TRIPS = 10  # what waits is timed so many at a time
LARGE = 1 << 20  # floats of a NumPy argument
A = 0.5
_GROUP = 256  # invocations of the kernels
_PAGE = 4096
_BATCH = 2 << 20  # small copies are timed in batches of about so many bytes …
_MOST = 100  # … and at most so many at a time
SIZES = tuple(1 << power for power in range(10, 29, 2))  # 1 KiB to 256 MiB
#: How a write is made to travel: what the device is opened with, and whether the source is lent.
PATHS = {
    "direct": ("auto", False), "rename": ("rename", False), "staged": ("staged", False),
    "ordered": ("ordered", True), "unmapped": ("unmapped", False),
}  # fmt: skip
FILES = tuple(1 << power for power in (16, 20, 24, 26, 28))


@dataclass
class Piece:
    """Something that is measured: returns the seconds of one of it, after checking what it did."""

    test: str
    run: Callable[[], float]
    floor: str
    run_floor: Callable[[], float]
    once: Callable[[], Any]  # for the receipt
    size: int = 0  # what a curve is drawn against
    group: str = ""
    about: dict[str, Any] = field(default_factory=dict)


def measure(
    device: ps.Device, groups: Sequence[str], repeat: int, progress: OnProgress
) -> Iterator[Row]:
    """The rows of each group, as soon as it is measured."""
    for group in groups:
        with ExitStack() as ending:
            for pieces in GROUPS[group](device, ending):
                yield from _measured(device, group, pieces, repeat, progress)


def _measured(
    device: ps.Device, group: str, pieces: Sequence[Piece], repeat: int, progress: OnProgress
) -> Iterator[Row]:
    started = machine.now()
    cases: dict[str, Callable[[], float]] = {}
    for number, piece in enumerate(pieces):
        cases[f"{number}"] = piece.run
        cases[f"{number} floor"] = piece.run_floor
    what = f"{group}: {pieces[0].test}"
    samples = interleave(cases, repeat, warm_up=2, progress=partial(progress, what))
    progress(what, repeat + 2, repeat + 2)
    for number, piece in enumerate(pieces):
        own, floor = samples[f"{number}"].seconds, samples[f"{number} floor"].seconds
        compared = ratio(own, floor, paired=True)
        yield {
            "benchmark": "runtime",
            "group": group,
            **machine.build(),
            **machine.environment(device),
            "test_time": started,
            "test": piece.test,
            "size": piece.size,
            **_times("", own),
            "floor": piece.floor,
            **_times("floor_", floor),
            "ratio": compared.value,
            "ratio_low": compared.low,
            "ratio_high": compared.high,
            **_counts(device, piece.once),
            **piece.about,
        }


def _times(prefix: str, seconds: Sequence[float]) -> Row:
    whole = [one * 1e9 for one in seconds]
    return {
        f"{prefix}median_ns": statistics.median(whole),
        f"{prefix}min_ns": min(whole),
        f"{prefix}avg_ns": statistics.mean(whole),
        f"{prefix}stddev_ns": statistics.stdev(whole) if len(whole) > 1 else 0.0,
        f"{prefix}samples_ns": [round(one, 1) for one in whole],
    }


def _counts(device: ps.Device, once: Callable[[], Any]) -> Row:
    device.synchronize()
    with ps.trace(times=False) as trace:
        once()
    device.synchronize()
    return counted(trace)


# Launches.


class Bare:
    """saxpy on small arrays as bare Vulkan calls."""

    def __init__(self, device: ps.Device) -> None:
        code = compile_glsl((SHADERS / "saxpy.comp").read_text(), name="saxpy")
        constants = struct.pack("<fI", A, SIZE)
        self.raw = Raw(device.name, code, constants, bindings=2, arrays=2, nbytes=4 * SIZE)
        self.bound = self.raw.bind(0, 1)
        self.x, self.y = self.raw.host(0), self.raw.host(1)
        self.x[:] = 1

    def record(self, times: int, *, barriers: bool = True) -> None:
        self.raw.record([self.bound] * times, SIZE // _GROUP, barriers=barriers)

    def run(self) -> None:
        self.raw.end()
        self.raw.submit_and_wait()

    def once(self) -> None:
        self.record(1)
        self.run()

    def checked(self, launches: int, work: Callable[[], float]) -> float:
        self.y[:] = 1
        seconds = work()
        expect(bool((self.y == 1 + launches * A).all()), "the floor's launches")
        return seconds

    def close(self) -> None:
        del self.x, self.y
        self.raw.close()


class Tracked:
    """The same launches through Penstock."""

    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.stream = device.default_stream
        self.saxpy = device.kernel(SHADERS / "saxpy.comp")
        self.x = device.ones(SIZE, name="x")
        self.y = device.ones(SIZE, name="y")

    def launch(self) -> None:
        self.saxpy(x=self.x, y=self.y, a=A, n=SIZE, threads=SIZE)

    def launches(self, count: int) -> None:
        saxpy, x, y = self.saxpy, self.x, self.y
        for _ in range(count):
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)

    def once(self) -> None:
        self.launch()
        self.stream.synchronize()

    def checked(self, launches: int, work: Callable[[], float]) -> float:
        self.y.fill(1)
        self.stream.synchronize()
        seconds = work()
        expect(bool((self.y.numpy() == 1 + launches * A).all()), "launches")
        return seconds


def _launch(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    bare, own = Bare(device), Tracked(device)
    ending.callback(bare.close)

    def recorded() -> float:
        with own.stream.batch():
            seconds = timed(1, own.launches, LAUNCHES) / LAUNCHES
        own.stream.synchronize()
        return seconds

    def recorded_bare() -> float:
        seconds = timed(1, bare.record, LAUNCHES) / LAUNCHES
        bare.run()
        return seconds

    waits = partial(timed, TRIPS, own.once)
    waited = partial(own.checked, TRIPS, waits)
    calls = "raw driver calls"
    yield [
        Piece(
            "launch, recorded", partial(own.checked, LAUNCHES, recorded),
            calls, partial(bare.checked, LAUNCHES, recorded_bare), own.launch,
        ),
        Piece(
            "launch and wait", waited,
            calls, partial(bare.checked, TRIPS, partial(timed, TRIPS, bare.once)), own.once,
        ),
        Piece("noise: launch and wait", waited, "itself", waited, own.once),
        _result(own, bare),
        _argument(own),
        _round_trip(own, bare),
    ]  # fmt: skip
    yield _chain(own, bare)


def _result(own: Tracked, bare: Bare) -> Piece:
    pick = own.device.kernel(SHADERS / "pick.comp", defines={"AS_RESULT": 1})

    def launch() -> float:
        return float(pick(x=own.x, a=A, i=3, threads=1).result())

    def checked() -> float:
        expect(launch() == A, "a launch with a result")
        return timed(TRIPS, launch)

    def floor() -> float:
        bare.once()
        return float(bare.y[3])

    return Piece(
        "launch with result", checked, "raw launch, look at the value",
        partial(timed, TRIPS, floor), launch,
    )  # fmt: skip


def _argument(own: Tracked) -> Piece:
    touch = own.device.kernel(SHADERS / "touch.comp")
    stride = _PAGE // 4
    count = LARGE // stride
    array, copy = page_aligned(4 * LARGE), page_aligned(4 * LARGE)
    array[:] = 0

    def launch() -> None:
        touch(x=array, a=A, stride=stride, n=count, threads=count)

    def checked() -> float:
        before = float(array[stride])
        seconds = timed(1, launch)
        expect(array[stride] == before + A and array[1] == 0, "a launch on a NumPy array")
        return seconds

    def floor() -> float:
        def work() -> None:
            np.copyto(copy, array)
            copy[::stride] += np.float32(0)
            np.copyto(array, copy)

        return timed(1, work)

    return Piece("NumPy argument, 4 MiB in place", checked, "copyto there and back", floor, launch)


def _round_trip(own: Tracked, bare: Bare) -> Piece:
    source = np.full(SIZE, 1, np.float32)

    def trip() -> Host:
        own.x.write(source)
        own.launch()
        return own.y.numpy()

    def floor() -> Host:
        np.copyto(bare.x, source)
        bare.once()
        return bare.y.copy()

    return Piece(
        "round trip of 4 KiB", partial(own.checked, TRIPS, partial(timed, TRIPS, trip)),
        "raw: copyto, launch, copy", partial(bare.checked, TRIPS, partial(timed, TRIPS, floor)),
        trip,
    )  # fmt: skip


def _chain(own: Tracked, bare: Bare) -> list[Piece]:
    with own.device.record() as graph:
        own.launches(CHAIN)

    def eager() -> None:
        own.launches(CHAIN)
        own.stream.synchronize()

    def replay() -> None:
        graph.replay()
        own.stream.synchronize()

    def issue() -> None:
        bare.record(CHAIN)
        bare.run()

    def replay_bare() -> float:
        bare.record(CHAIN)
        bare.raw.end()
        return timed(1, bare.raw.submit_and_wait)

    def checked(work: Callable[[], None]) -> float:
        return own.checked(CHAIN, partial(timed, 1, work))

    return [
        Piece(
            f"chain of {CHAIN} launches, issued", partial(checked, eager),
            "raw driver calls", partial(bare.checked, CHAIN, partial(timed, 1, issue)), eager,
        ),
        Piece(
            f"chain of {CHAIN} launches, replayed", partial(checked, replay),
            "raw replay", partial(bare.checked, CHAIN, replay_bare), replay,
        ),
    ]  # fmt: skip


# Transfers.


def _transfer(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    opened = {
        path: ending.enter_context(ps.Device(device.info.index, transfers=mode))
        for path, (mode, _) in PATHS.items()
    }
    largest = min(SIZES[-1], device.info.memory // 8)  # each path has one, the host three
    for nbytes in SIZES:
        if nbytes <= largest:
            yield _transfers_of(opened, nbytes)


def _transfers_of(opened: dict[str, ps.Device], nbytes: int) -> list[Piece]:
    source, out, elsewhere = (page_aligned(nbytes) for _ in range(3))
    source[:] = 2
    times = max(1, min(_MOST, _BATCH // nbytes))
    pieces = []
    for path, device in opened.items():
        x = device.zeros(nbytes // 4, name="x")
        # On the very same memory, where the host can see it.
        memory: Callable[[Any], Host] = x.view
        if path == "unmapped":
            memory = partial(_hidden, elsewhere)
        write = partial(_write, x, source, PATHS[path][1])
        run = partial(_checked_write, x, source, times, write)
        floor = partial(_copied_in, memory, source, times)
        pieces.append(_moved(f"write {human(nbytes)}, {path}", run, floor, write, nbytes, path))
        if path in ("direct", "unmapped"):
            read = partial(_read, x, out)
            floor = partial(_copied_out, memory, out, times)
            run = partial(_checked_read, x, out, times, read)
            pieces.append(_moved(f"read {human(nbytes)}, {path}", run, floor, read, nbytes, path))
    return pieces


Seen = Callable[[Any], Host]


def _hidden(instead: Host, _: str) -> Host:
    return instead


def _copied_in(memory: Seen, source: Host, times: int) -> float:
    target = memory("w")
    return timed(times, np.copyto, target, source)


def _copied_out(memory: Seen, out: Host, times: int) -> float:
    source = memory("r")
    return timed(times, np.copyto, out, source)


def _moved(test: str, run: Any, floor: Any, once: Any, nbytes: int, path: str) -> Piece:
    return Piece(test, run, "copyto", floor, once, nbytes, about={"path": path})


def _write(x: ps.Array, source: Host, borrow: bool) -> None:
    x.write(source, borrow=borrow).result()


def _read(x: ps.Array, out: Host) -> None:
    x.read(out=out).result()


def _checked_write(x: ps.Array, source: Host, times: int, write: Callable[[], None]) -> float:
    source[:: _PAGE // 4] += 1  # other content each time, in every page
    seconds = timed(times, write)
    expect(bool((x[:1024].numpy() == source[:1024]).all()), "write()")
    expect(bool(x[x.size - 1].numpy() == source[-1]), "write()")
    return seconds


def _checked_read(x: ps.Array, out: Host, times: int, read: Callable[[], None]) -> float:
    out[:: _PAGE // 4] = -1
    seconds = timed(times, read)
    expect(
        bool((x[:1024].numpy() == out[:1024]).all() and out[-1] == x[x.size - 1].numpy()), "read()"
    )
    return seconds


# Access of the CPU while the device works.

_BUSY = """
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer W { uint weight[]; };
layout(binding = 1) buffer Y { uint y[]; };
layout(push_constant) uniform P { uint spin; };
void main() {
    uint i = gl_GlobalInvocationID.x, h = weight[i];
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    y[i] = h;
}
"""


def _access(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    busy = device.kernel(_BUSY, name="busy")
    numbers = np.arange(SIZE, dtype=np.uint32)
    weight = device.array(numbers, name="weight", role="weight")
    y = device.zeros(SIZE, np.uint32, name="y")
    token = device.zeros(1, np.uint32, name="token")
    one = np.ones(1, np.uint32)

    def loaded(work: Callable[[], Any], times: int) -> float:
        device.synchronize()
        busy(weight=weight, y=y, spin=50_000, threads=SIZE)
        device.default_stream.flush()
        seconds = timed(times, work)
        device.synchronize()
        return seconds

    def look() -> int:
        return int(weight[3].item())

    def put() -> None:
        token.write(one)

    def look_bare() -> int:
        return int(numbers[3])

    def put_bare() -> None:
        np.copyto(into, one)

    into = np.zeros(1, np.uint32)
    expect(look() == 3, "the weight")
    yield [
        Piece(
            "read a weight that work reads", partial(loaded, look, TRIPS), "NumPy's own item",
            partial(loaded, look_bare, TRIPS), look,
        ),
        Piece(
            "write 4 bytes beside work", partial(loaded, put, TRIPS), "copyto",
            partial(loaded, put_bare, TRIPS), put,
        ),
    ]  # fmt: skip


# Loading.


def _load(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    directory = Path(ending.enter_context(tempfile.TemporaryDirectory()))
    pieces = []
    for nbytes in FILES:
        path = directory / f"{nbytes}.bin"
        content = np.arange(nbytes // 4, dtype=np.uint32)
        content.tofile(path)
        pieces.append(
            Piece(
                f"open a file of {human(nbytes)} in place",
                partial(_opened, device, path, nbytes),
                "numpy.fromfile",
                partial(timed, 1, np.fromfile, path, np.uint32),
                partial(device.from_file, path, np.uint32, nbytes // 4),
                nbytes,
            )
        )
    yield pieces


def _opened(device: ps.Device, path: Path, nbytes: int) -> float:
    start = time.perf_counter()
    array = device.from_file(path, np.uint32, nbytes // 4)
    last = int(array[array.size - 1].item())
    seconds = time.perf_counter() - start
    expect(last == nbytes // 4 - 1, "from_file()")
    return seconds


def page_aligned(nbytes: int) -> Host:
    """Ordinary NumPy memory, touched, that starts on a page, as the device's does."""
    room = np.ones(nbytes + _PAGE, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % _PAGE
    return room[start : start + nbytes].view(np.float32)


def human(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def _scaling(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    from penstock.bench.scaling import curves

    return curves(device, ending)


Group = Callable[[ps.Device, ExitStack], Iterator[list[Piece]]]
GROUPS: dict[str, Group] = {
    "launch": _launch,
    "transfer": _transfer,
    "access": _access,
    "load": _load,
    "scaling": _scaling,
}
