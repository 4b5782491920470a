"""NumPy arrays as arguments: moved in, back if the kernel writes them, with one wait at most."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.conftest import faults, simulated
from tests.gate import held_until_waited
from tests.kernels import SAXPY, SLOW_ADD, SLOW_COPY, kernel, new_kernel, saxpy, slow_add

N = 1000
Host = np.ndarray[Any, Any]


def add(dev: ps.Device, x: Any, value: int = 1, spin: int = 0, **options: Any) -> None:
    """x += value"""
    run = kernel(dev, SLOW_ADD, "slow_add")
    run(x=x, n=x.size, spin=spin, add=value, **{"threads": x.size, **options})


def copy(dev: ps.Device, x: Any, y: Any, **options: Any) -> None:
    """y = x"""
    kernel(dev, SLOW_COPY, "slow_copy")(x=x, y=y, n=x.size, spin=0, threads=x.size, **options)


def numbers(*shape: int) -> Host:
    return np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)


@pytest.fixture(params=["auto", "unmapped", "staged"])
def moved(request: pytest.FixtureRequest, any_device: ps.Device) -> Iterator[ps.Device]:
    """A device, with each way for bytes to travel."""
    if request.param == "auto":
        yield any_device
    elif any_device.info.driver == "sim":
        with simulated(7, transfers=request.param) as dev:
            yield dev
    elif any_device.info.driver == "hip":
        with ps.Device(driver="hip", transfers=request.param) as dev:
            yield dev
    else:
        with ps.Device(any_device.name, transfers=request.param) as dev:
            yield dev


# Values.


def test_in_and_back(moved: ps.Device) -> None:
    x, y = np.linspace(0, 1, N, dtype=np.float32), np.ones(N, np.float32)
    for _ in range(3):
        expected = y + 2 * x
        saxpy(moved)(x=x, y=y, a=2.0, n=N, threads=N)
        np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert (x == np.linspace(0, 1, N, dtype=np.float32)).all()


LAYOUTS = {
    "2-D": lambda: numbers(10, 20),
    "0-d": lambda: np.array(5, np.uint32),
    "one column": lambda: numbers(20, 10)[:, 3],
    "every third": lambda: numbers(300)[::3],
    "reversed": lambda: numbers(100)[::-1],
    "transposed": lambda: numbers(10, 20).T,
    "Fortran": lambda: np.asfortranarray(numbers(10, 20)),
    "a slice": lambda: numbers(100)[1:-1],
    "a subclass": lambda: numbers(4, 5).view(np.matrix),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_any_layout(layout: str, any_device: ps.Device) -> None:
    x = LAYOUTS[layout]()
    base = x if x.base is None else x.base
    expected, others = x + 1, base.sum() - x.sum()
    add(any_device, x)
    assert (x == expected).all()
    assert base.sum() - x.sum() == others  # what lies between is as it was


def test_several_mebibytes(moved: ps.Device) -> None:
    count = (1 << 12) if moved.info.driver == "sim" else (3 << 20) + 5
    x, y = numbers(count), np.zeros(count, np.uint32)
    with held_until_waited(moved.default_stream), ps.trace() as t:
        copy(moved, x, y)
    assert (x == y).all()
    assert t.waits == 1


def test_the_caller_may_change_its_array_at_once(moved: ps.Device) -> None:
    busy, y = moved.zeros(1024, np.uint32), moved.zeros(N, np.uint32)
    total = np.zeros(N, np.uint32)
    x = np.zeros(N, np.float32)
    sums = moved.zeros(N)
    slow_add(busy, 1)
    for value in range(20):
        x[:] = value
        saxpy(moved)(x=x, y=sums, a=1.0, n=N, threads=N)
        x[:] = -1
        total[:] += value
    assert (sums.numpy() == total).all()
    assert y[0].item() == 0


def test_the_same_array_twice(any_device: ps.Device) -> None:
    x = numbers(N)
    copy(any_device, x, x)
    assert (x == numbers(N)).all()
    copy(any_device, x[:500], x[500:])  # disjoint
    copy(any_device, x[:100], x[50:150])  # as if x was read before y is written
    expected = np.concatenate([numbers(50), numbers(100), numbers(500)[150:], numbers(500)])
    assert (x == expected).all()


BOTH = """
layout(local_size_x = 1) in;
layout(binding = 0) buffer A { uint a[]; };
layout(binding = 1) buffer B { uint b[]; };
void main() { a[0] += 1; b[0] += 2; }
"""


def _both(a: Host, b: Host, threads: object) -> None:
    a[0] += 1
    b[0] += 2


def test_written_twice_is_refused_unless_disjoint(any_device: ps.Device) -> None:
    run = new_kernel(
        any_device,
        BOTH,
        reference=_both,
        hip=("inout uint32 a, inout uint32 b", 1, "a[0] += 1; b[0] += 2;"),
    )
    x = numbers(10, 2)
    for a, b in ((x, x), (x[:, 0], x), (x[:6], x[5:])):
        with pytest.raises(ps.ArgumentError, match=r"'b'.*share memory"):
            run(a=a, b=b, groups=1)
    assert (x == numbers(10, 2)).all()
    run(a=x[:, 0], b=x[:, 1], groups=1)  # woven into each other, but of no byte in common
    assert x[0].tolist() == [1, 3]
    run(a=x[:5], b=x[5:], groups=1)
    assert (x[0, 0], x[5, 0]) == (2, 12)
    before = x.copy()
    for a, b in ((x[:5], x[:5]), (x[:5], x[4:9])):  # for which there are temporaries now
        with pytest.raises(ps.ArgumentError, match=r"'b'.*share memory"):
            run(a=a, b=b, groups=1)
    assert (x == before).all()


def test_beside_arrays_of_the_device_and_streams(any_device: ps.Device) -> None:
    x, y = numbers(N), any_device.zeros(N, np.uint32)
    with any_device.stream() as stream:
        copy(any_device, x, y, stream=stream)
        add(any_device, y, 1, stream=stream)
        back = np.zeros(N, np.uint32)
        copy(any_device, y, back)
        assert (back == x + 1).all()


def test_groups_decided_by_the_device(any_device: ps.Device) -> None:
    x = numbers(N)
    some, none = any_device.full(3, 1, np.uint32), any_device.zeros(3, np.uint32)
    add(any_device, x, threads=None, groups=some)  # one group of 64
    add(any_device, x, threads=None, groups=none)
    expected = numbers(N)
    expected[: N if any_device.info.driver == "sim" else 64] += 1
    assert (x == expected).all()


def test_no_threads_change_nothing(any_device: ps.Device) -> None:
    x = numbers(N)
    add(any_device, x, threads=0)
    assert (x == numbers(N)).all()


# What it costs.


def test_read_only_inputs_are_not_copied_back_and_not_waited_for(any_device: ps.Device) -> None:
    x, y = np.ones(N, np.float32), any_device.zeros(N)
    x.flags.writeable = False
    run = saxpy(any_device)
    with ps.trace() as t:
        run(x=x, y=y, a=1.0, n=N, threads=N)
    assert (t.copies, t.bytes_copied, t.waits) == (1, 4 * N, 0)
    with ps.trace() as t:
        run(x=x, y=np.zeros(N, np.float32), a=1.0, n=N, threads=N)
    assert (t.copies, t.bytes_copied) == (3, 3 * 4 * N)
    assert t.waits <= 1


def test_every_copy_is_on_the_receipt(
    any_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In and back through staging memory, each a copy by the host and one by the device.

    What the kernel writes, HIP copies in and back itself.
    """
    options: Any = {"driver": any_device.info.driver}
    which = any_device.name if any_device.info.driver == "vulkan" else None
    with ps.Device(which, transfers="unmapped", **options) as dev:
        x, y = np.ones(N, np.float32), np.ones(N, np.float32)
        made: list[int] = []
        copyto = np.copyto

        def counted(target: Host, source: Host) -> None:
            made.append(target.nbytes)
            copyto(target, source)

        run = saxpy(dev)
        monkeypatch.setattr(np, "copyto", counted)
        with ps.trace() as t:
            run(x=x, y=y, a=1.0, n=N, threads=N)
        monkeypatch.undo()
        assert (y == 2).all()
        on_device = [each for each in t.of_kind("copy") if each.path == "device"]
        direct = [each for each in t.of_kind("copy") if each.path == "direct"]
        by_driver = 2 if dev.info.driver == "hip" else 0
        assert (len(made), len(on_device), len(direct)) == (3 - by_driver, 3 - by_driver, by_driver)
        assert (t.copies, t.bytes_copied) == (6 - by_driver, (6 - by_driver) * 4 * N)


def test_memory_of_the_device_is_used_in_place(moved: ps.Device) -> None:
    x, y = moved.host_empty(N, np.uint32), moved.host_empty((20, 50), np.uint32)
    x[:], y[:] = numbers(N), 0
    with ps.trace() as t:
        copy(moved, x, y)
        assert (y.ravel() == x).all()  # it is the caller's again
        x[:] = 0
        copy(moved, x[256:512], y.ravel()[64:320])
        add(moved, y[:, :], 7)
    assert t.copies == 0
    assert t.waits <= 3
    expected = numbers(N)
    expected[64:320] = 0
    assert (y.ravel() == expected + 7).all()


def test_what_cannot_be_used_in_place_is_copied(any_device: ps.Device) -> None:
    x = any_device.host_empty(N, np.uint32)
    x[:] = numbers(N)
    with ps.trace() as t:
        add(any_device, x[1:401])  # not where the device may bind
        add(any_device, x[400:800:2])
    # HIP binds memory wherever it starts.
    assert t.copies == (2 if any_device.info.driver == "hip" else 4)
    expected = numbers(N)
    expected[1:401] += 1
    expected[400:800:2] += 1
    assert (x == expected).all()


def test_adopted_memory_is_used_in_place(any_device: ps.Device) -> None:
    if not any_device.info.can_import:
        pytest.skip(f"{any_device.name} cannot import memory")
    host = np.frombuffer(mmap.mmap(-1, 8192), np.uint32)
    host[:] = 1
    array = any_device.adopt(host)
    slow_add(array, 1)
    with ps.trace() as t:
        add(any_device, host, 2)  # after the work that is already there
    assert t.copies == 0
    assert (host == 4).all()
    assert (array.numpy() == 4).all()
    array.close()
    any_device.synchronize()


UNIFORM = """
layout(local_size_x = 1) in;
layout(binding = 0) uniform U { uvec4 u[4]; };
layout(binding = 1) buffer Y { uint y[]; };
void main() { y[0] = u[3].w; }
"""


def test_adopted_memory_may_lie_right_for_some_kernels_only() -> None:
    """Uniform buffers may have to start at larger multiples than others, as on the simulator."""
    with simulated(1) as dev:
        run = dev.kernel(UNIFORM, reference=lambda u, y, threads: y.__setitem__(0, u[15]))
        y = dev.zeros(1, np.uint32)
        host = np.frombuffer(mmap.mmap(-1, 8192), np.uint32)[4:36]
        host[:] = np.arange(32)
        array = dev.adopt(host)
        for at, path in ((0, "direct"), (12, "")):
            with pytest.raises(ps.InvalidValue) if path else contextlib.nullcontext():
                run(u=array[at : at + 16], y=y, groups=1)
            with ps.trace() as t:
                run(u=host[at : at + 16], y=y, groups=1)
            assert [event.path for event in t.of_kind("copy")] == ([path] if path else [])
            assert y.item() == host[at + 15]


# What is refused leaves nothing behind.


@pytest.mark.parametrize("maker", ["np", "dev"])
def test_what_an_error_advises_works(any_device: ps.Device, maker: str) -> None:
    """The kernel writes y: a converted temporary would take its values, and y not change."""
    run, dev = saxpy(any_device), any_device
    make: Any = np.asarray if maker == "np" else dev.array
    x, y, wrong = (make(np.ones(N, dtype)) for dtype in ("f4", "f4", "i4"))
    with pytest.raises(ps.DtypeMismatch) as caught:
        run(x=wrong, y=y, a=2.0, n=N, threads=N)
    assert str(caught.value).endswith("; pass x=x.astype('float32')")
    with pytest.raises(ps.DtypeMismatch) as caught:
        run(x=x, y=wrong, a=2.0, n=N, threads=N)
    said = str(caught.value)
    assert "pass" not in said
    advice = said.partition("before the call: ")[2]
    empty, _, converted = advice.removesuffix(" to keep its values").partition(", or ")
    names = {"np": np, "dev": dev, "y": wrong}
    exec(empty, names)
    assert (names["y"].shape, names["y"].dtype) == ((N,), np.float32)
    names["y"] = wrong
    exec(converted, names)
    run(x=x, y=names["y"], a=2.0, n=N, threads=N)
    assert (np.asarray(names["y"]) == 3).all()


def test_what_is_refused(any_device: ps.Device) -> None:
    run = saxpy(any_device)
    x, y = np.ones(N, np.float32), np.ones(N, np.float32)
    fixed = np.ones(N, np.float32)
    fixed.flags.writeable = False
    good: dict[str, Any] = {"x": x, "y": y, "a": 1.0, "n": N, "threads": N}
    any_device.synchronize()
    used = any_device.memory.used
    for bad, error, match in (
        ({"y": y.astype(np.float64)}, ps.DtypeMismatch, "'y' must be float32, not float64"),
        ({"y": y.astype(">f4")}, ps.DtypeMismatch, ">f4|float32"),
        ({"y": y.astype(object)}, ps.DtypeMismatch, "object"),
        ({"y": fixed}, ps.ReadOnly, "'y' is written by the kernel"),
        ({"y": np.ones(0, np.float32)}, ps.ShapeMismatch, "'y' has 0 bytes"),
        ({"y": [1.0, 2.0]}, ps.ArgumentError, "'y' must be a penstock or NumPy array, not list"),
        ({"y": np.float32(1)}, ps.ArgumentError, "not float32"),
        ({"a": "1"}, ps.ArgumentError, "'a' must be float32"),
        ({"threads": -1}, ps.InvalidValue, "threads"),
        ({"extra": 1}, ps.ArgumentError, "no argument 'extra'"),
    ):
        with pytest.raises(error, match=match):
            run(**{**good, **bad})
    any_device.synchronize()
    assert any_device.memory.used <= used
    assert (x == 1).all()
    assert (y == 1).all()


@pytest.mark.parametrize("transfers", ["auto", "unmapped"])
def test_running_out_of_memory_leaves_the_array_as_it_was(transfers: str) -> None:
    for number, fault in enumerate(faults(40)):
        with simulated(number, transfers=transfers, fault=fault) as dev:
            run = kernel(dev, SAXPY, "saxpy")
            x, y = np.ones(300_000, np.float32), np.ones(300_000, np.float32)
            fault.armed = True
            try:
                run(x=x, y=y, a=1.0, n=300_000, threads=300_000)
            except ps.OutOfMemory:
                assert (y == 1).all()
                run(x=x, y=y, a=1.0, n=300_000, threads=300_000)
            assert (y == 2).all()


def test_threads(threaded_device: ps.Device) -> None:
    dev = threaded_device
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            stream = dev.stream() if seed % 2 else None
            y = np.zeros(N, np.uint32)
            for i in range(40):
                add(dev, y, seed, stream=stream)
                assert (y == (i + 1) * seed).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_what_is_in_flight_is_bounded(
    any_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.launch.numpy_arguments._ROOM", 0)
    size, rounds = 1 << 16, 100
    dev = any_device
    y = dev.zeros((rounds, size), np.uint32)
    before = dev.memory.used
    peak = 0
    for number in range(rounds):
        copy(dev, np.full(size, number, np.uint32), y[number])
        peak = max(peak, dev.memory.used)
    # Not one for each round; the pool may give blocks that are somewhat larger than asked for.
    assert peak - before <= 20 * 4 * size
    assert (y.numpy() == np.arange(rounds, dtype=np.uint32)[:, None]).all()


# All or nothing.

ADD_TO_BOTH = ("q[i] = q[i] + 1; y[i] = y[i] + 1", "inout float32 q, inout float32 y")


def test_a_call_that_could_not_wait_launches_nothing(dev: ps.Device) -> None:
    """It would have to wait, for work that waits for a view of the caller's own."""
    both = dev.elementwise(*ADD_TO_BOTH, name="both")
    x, q, y = dev.zeros(N), dev.zeros(N), np.zeros(N, np.float32)
    view = x.view("rw")
    thread = threading.Thread(target=lambda: both(x, dev.zeros(N)))
    thread.start()
    thread.join()
    for _ in range(3):
        with pytest.raises(ps.ViewHeld):
            both(q, y)
    del view
    assert (q.numpy() == 0).all()
    assert (y == 0).all()
    both(q, y)
    assert (q.numpy() == 1).all()
    assert (y == 1).all()


def test_an_interrupted_wait_brings_back_what_was_written(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = dev.elementwise(*ADD_TO_BOTH, name="both")
    q, y = dev.zeros(N), np.zeros(N, np.float32)
    wait_for = dev.scheduler.wait_for

    def interrupted(*given: Any, **details: Any) -> bool:
        monkeypatch.setattr(dev.scheduler, "wait_for", wait_for)
        raise KeyboardInterrupt

    monkeypatch.setattr(dev.scheduler, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        both(q, y)
    assert (q.numpy() == 1).all()
    assert (y == 1).all()
