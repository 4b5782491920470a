"""The runtime's own work without a model, each piece compared with its floor.

The floor is the same work by bare Vulkan calls, with every structure built beforehand (`Bare`), or
`numpy.copyto` on the same memory. Work and floor alternate, round by round, so that their ratio is
valid on a noisy machine; both are checked. The receipt's counts are from one run after the warm-up.

`noise` rows compare a piece of work with itself: other ratios are uncertain by at least as much.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.bench import machine
from penstock.bench.floors import Bare, Copies, programs
from penstock.bench.jobs import (
    CHAIN,
    JOBS,
    LARGE,
    LAUNCHES,
    PAGE,
    SIZE,
    STRIDE,
    TRIPS,
    A,
    Peer,
    page_aligned,
)
from penstock.bench.measure import SHADERS, expect, interleave, ratio, timed
from penstock.bench.models import OnProgress
from penstock.bench.tracked import Tracked
from penstock.llm.costs import counted

Row = dict[str, Any]
Host = npt.NDArray[Any]

_BATCH = 2 << 20  # bytes: small copies are timed in batches of about this size …
_MOST = 100  # … and of at most this many copies
SIZES = tuple(1 << power for power in range(10, 29, 2))  # 1 KiB to 256 MiB
#: How a write is made to travel: what the device is opened with, and whether the source is lent.
PATHS = {
    "direct": ("auto", False), "rename": ("rename", False), "staged": ("staged", False),
    "ordered": ("ordered", True), "unmapped": ("unmapped", False),
}  # fmt: skip
FILES = tuple(1 << power for power in (16, 20, 24, 26, 28))


@dataclass
class Piece:
    """Something to measure. `run` and `run_floor` check their work and return seconds per unit."""

    test: str
    run: Callable[[], float]
    floor: str
    run_floor: Callable[[], float]
    once: Callable[[], Any]  # for the receipt
    size: int = 0  # what a curve is drawn against
    about: dict[str, Any] = field(default_factory=dict)


def measure(
    device: ps.Device,
    groups: Sequence[str],
    repeat: int,
    progress: OnProgress = lambda what, done, total: None,
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
            **ratio(own, floor, paired=True).columns("ratio"),
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


def _launch(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    own, bare, calls = Tracked(device), Bare(device.name, programs()), "raw driver calls"
    ending.callback(bare.close)

    def piece(job: str, test: str, floor: str, by: Peer, once: Callable[[], Any]) -> Piece:
        run = JOBS[job].run
        return Piece(test, partial(run, own), floor, partial(run, by), once)

    once = partial(own.wait, 1)
    touched = page_aligned(4 * LARGE)
    one = np.ones((1, SIZE), np.float32)
    yield [
        piece("record", "launch, recorded", calls, bare, partial(own.launches, 1)),
        piece(
            "alternate", "launch, recorded, two kernels in turn", calls, bare,
            partial(own.launches_in_turn, 2),
        ),
        _independent(own, bare),
        piece("wait", "launch and wait", calls, bare, once),
        piece("wait", "noise: launch and wait", "itself", own, once),
        piece(
            "result", "launch with result", "raw launch, read the value", bare,
            partial(own.results, [3]),
        ),
        piece(
            "array", "NumPy argument, 4 MiB in place", "copyto there and back", Copies(),
            partial(own.call, touched),
        ),
        piece(
            "trip", "round trip of 4 KiB", "raw: copyto, launch, copy", bare,
            partial(own.trips, one),
        ),
    ]  # fmt: skip
    own.prepare_replay()
    yield [
        piece("chain", f"chain of {CHAIN} launches, issued", calls, bare, own.chain),
        piece("replay", f"chain of {CHAIN} launches, replayed", "raw replay", bare, own.replay),
    ]


def _independent(own: Tracked, bare: Bare) -> Piece:
    """Launches on a y each: no barrier between them, neither tracked nor bare."""
    ys = [own.device.ones(SIZE, name=f"y{number}") for number in range(LAUNCHES)]
    places = range(2, 2 + LAUNCHES)
    bound = [bare.saxpy.bind(0, place) for place in places]

    def work() -> None:
        saxpy, x = own.saxpy, own.x
        for y in ys:
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)

    def run() -> float:
        for y in ys:
            y.fill(1)
        own.stream.synchronize()
        with own.stream.batch():
            seconds = timed(1, work)
        x = own.x.numpy()
        expect(all((y.numpy() == 1 + A * x).all() for y in ys), "independent launches")
        return seconds / LAUNCHES

    def floor() -> float:
        for place in places:
            bare.saxpy.host(place).fill(1)
        seconds = timed(1, partial(bare.saxpy.record, bound, bare.groups, barriers=False))
        bare.finish()
        right = 1 + A * bare.x
        expect(all((bare.saxpy.host(place) == right).all() for place in places), "the floor")
        return seconds / LAUNCHES

    once = partial(own.launches, 1)
    return Piece("launch, recorded, independent", run, "raw calls, no barrier", floor, once)


def _tracing(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    """The same launches under a trace, compared with those without one."""
    own = Tracked(device)
    jobs = {"launch, recorded": ("record", own.launches), "launch and wait": ("wait", own.wait)}
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "traced, without times": partial(ps.trace, times=False),
        "traced": ps.trace,
    }
    yield [
        Piece(
            f"{test}, {way}", partial(_traced, trace, run := partial(JOBS[job].run, own)),
            "untraced", run, partial(work, 1),
        )
        for test, (job, work) in jobs.items()
        for way, trace in ways.items()
    ]  # fmt: skip


def _traced(trace: Callable[[], AbstractContextManager[Any]], run: Callable[[], float]) -> float:
    with trace():
        return run()


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
    return [
        piece
        for path, device in opened.items()
        for piece in _transfers_on(path, device, source, out, elsewhere)
    ]


def _transfers_on(
    path: str, device: ps.Device, source: Host, out: Host, elsewhere: Host
) -> Iterator[Piece]:
    nbytes = source.nbytes
    times = max(1, min(_MOST, _BATCH // nbytes))
    x = device.zeros(nbytes // 4, name="x")

    def piece(test: str, run: Any, floor: Any, once: Any) -> Piece:
        return Piece(test, run, "copyto", floor, once, nbytes, about={"path": path})

    def memory(mode: Any) -> Host:
        """The very same memory, where the host can see it."""
        return elsewhere if path == "unmapped" else x.view(mode)

    def write() -> None:
        x.write(source, borrow=PATHS[path][1]).result()

    def read() -> None:
        x.read(out=out).result()

    def written() -> float:
        source[:: PAGE // 4] += 1  # other content each time, in every page
        seconds = timed(times, write)
        expect(bool((x[:1024].numpy() == source[:1024]).all()), "write()")
        expect(bool(x[x.size - 1].numpy() == source[-1]), "write()")
        return seconds

    def was_read() -> float:
        out[:: PAGE // 4] = -1
        seconds = timed(times, read)
        expect(bool((x[:1024].numpy() == out[:1024]).all()), "read()")
        expect(bool(x[x.size - 1].numpy() == out[-1]), "read()")
        return seconds

    def copied_in() -> float:
        return timed(times, np.copyto, memory("w"), source)

    def copied_out() -> float:
        return timed(times, np.copyto, out, memory("r"))

    yield piece(f"write {human(nbytes)}, {path}", written, copied_in, write)
    if path in ("direct", "unmapped"):
        yield piece(f"read {human(nbytes)}, {path}", was_read, copied_out, read)
    if path == "direct":
        fresh = partial(timed, times, x.numpy)
        yield piece(
            f"numpy() {human(nbytes)}", fresh, lambda: timed(times, memory("r").copy), x.numpy
        )


def _adopt(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    """Memory of the caller's in place: no copy, so the size does not matter."""
    if device.info.can_import:
        touch = device.kernel(SHADERS / "touch.comp")
        yield [_adopted(device, touch, nbytes) for nbytes in FILES]


def _adopted(device: ps.Device, touch: ps.Kernel, nbytes: int) -> Piece:
    source, copy = page_aligned(nbytes), page_aligned(nbytes)

    def run() -> float:
        _ = device.memory  # lets go of the one adopted before, outside of the time taken
        made: list[ps.Array] = []
        before = source[0]
        seconds = timed(1, lambda: made.append(device.adopt(source)))
        touch(x=made[0][:STRIDE], a=A, stride=STRIDE, n=1, threads=1)
        device.synchronize()
        expect(source[0] == before + A, "adopt(): a kernel's result is in the caller's memory")
        return seconds

    floor = partial(timed, 1, np.copyto, copy, source)
    once = partial(device.adopt, source)
    return Piece(f"adopt {human(nbytes)} of NumPy memory", run, "copyto", floor, once, nbytes)


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
            "write 4 bytes while work runs", partial(loaded, put, TRIPS), "copyto",
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


def human(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def _scaling(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    from penstock.bench.scaling import curves

    return curves(device, ending)


def _threads(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    from penstock.bench.threads import pieces

    return pieces(device, ending)


def _small(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    from penstock.bench.small import calls

    return calls(device, ending)


Group = Callable[[ps.Device, ExitStack], Iterator[list[Piece]]]
GROUPS: dict[str, Group] = {
    "launch": _launch,
    "tracing": _tracing,
    "transfer": _transfer,
    "adopt": _adopt,
    "access": _access,
    "load": _load,
    "small": _small,
    "scaling": _scaling,
    "threads": _threads,
}
