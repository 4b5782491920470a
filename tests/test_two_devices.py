"""Two open devices: what belongs to one is refused by the other, and copies across are right.

The devices may be of the same driver, and then alike in everything but who they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from tests.conftest import HAS_VALIDATION, simulated
from tests.gate import held
from tests.kernels import FIRST, SAXPY, SLOW_ADD, SLOW_COPY, kernel, slow_add, slow_copy

Host = npt.NDArray[Any]
N = 256

PAIRS = {
    "lavapipe twice": ("llvmpipe", "llvmpipe"),
    "lavapipe and SwiftShader": ("llvmpipe", "SwiftShader"),
    "SwiftShader twice": ("SwiftShader", "SwiftShader"),
    "simulator twice": ("", ""),
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[ps.Device, ps.Device]]:
    """Two devices, neither of which was used before."""
    names = PAIRS[request.param]
    if not names[0]:
        with ps.Device(driver="sim", seed=1) as a, ps.Device(driver="sim", seed=2) as b:
            yield a, b
        assert not a.messages + b.messages
        return
    for name in names:
        if not any(name in info.name for info in ps.devices()):
            pytest.skip(f"{name} is not installed")
    first, second = (ps.Device(name, validate=HAS_VALIDATION) for name in names)
    with first, second:
        yield first, second


def counted() -> Host:
    return np.arange(N, dtype=np.uint32)


def pages(count: int = 1) -> Host:
    """Memory of whole pages, which a device can adopt if it can adopt any."""
    return np.frombuffer(mmap.mmap(-1, count * mmap.PAGESIZE), np.uint32)


def number_of(device: ps.Device) -> str:
    return f"#{device.number} "


def refused(a: ps.Device, b: ps.Device, attempt: Callable[[], object]) -> None:
    """The attempt raises an error that tells the two devices apart."""
    with pytest.raises(ps.ArgumentError) as info:
        attempt()
    assert number_of(a) in str(info.value)
    assert number_of(b) in str(info.value)


def add(device: ps.Device, x: Any, **options: Any) -> None:
    kernel(device, SLOW_ADD, "slow_add")(
        x=x, n=N, spin=0, **{"add": 1, "threads": N, **options}
    )  # fmt: skip


# Launches.


def test_a_kernel_refuses_what_one_of_another_device_takes(
    pair: tuple[ps.Device, ps.Device],
) -> None:
    a, b = pair
    x, y = a.array(counted()), b.array(counted())
    for _ in range(2):  # the second time each array is known to fit its own device's kernel
        refused(a, b, lambda: add(b, x))
        refused(a, b, lambda: add(a, y))
        add(a, x)
        add(b, y)
    assert (x.numpy() == counted() + 2).all()
    assert (y.numpy() == counted() + 2).all()
    x.close()
    y.close()


def test_a_kernel_of_several_arrays_refuses_any_of_them(
    pair: tuple[ps.Device, ps.Device],
) -> None:
    a, b = pair
    mine, theirs = [a.ones(N), a.ones(N)], [b.ones(N), b.ones(N)]
    for device, (x, y) in ((a, mine), (b, theirs)):
        kernel(device, SAXPY, "saxpy")(x=x, y=y, a=1.0, n=N, threads=N)
    run = kernel(b, SAXPY, "saxpy")
    for x, y in ((mine[0], theirs[1]), (theirs[0], mine[1]), (mine[0], mine[1])):
        refused(a, b, lambda x=x, y=y: run(x=x, y=y, a=1.0, n=N, threads=N))  # type: ignore[misc]
    numpy_input = np.ones(N, np.float32)
    refused(a, b, lambda: run(x=numpy_input, y=mine[1], a=1.0, n=N, threads=N))
    assert [x.numpy()[0] for x in (*mine, *theirs)] == [1, 2, 1, 2]


def test_device_numbers_are_not_used_again() -> None:
    numbers = []
    for _ in range(3):
        with simulated(1) as device:
            numbers.append(device.number)
            assert number_of(device) in repr(device)
    assert len({*numbers}) == 3


def test_group_counts_of_another_device(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, groups = b.array(counted()), a.full(3, 1, np.uint32)
    add(a, a.zeros(N, np.uint32), threads=None, groups=groups)
    refused(a, b, lambda: add(b, x, threads=None, groups=groups))
    with b.record() as graph:
        refused(a, b, lambda: add(b, x, threads=None, groups=groups))
    graph.replay()
    assert (x.numpy() == counted()).all()


def test_reductions_and_elementwise(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.ones(N), b.ones(N)
    assert (float(x.dot(x)), float(y.dot(y))) == (N, N)
    refused(a, b, lambda: x.dot(y))
    refused(a, b, lambda: x[:0].dot(y[:0]))

    def reference(x: Host, y: Host) -> None:
        y[:] = 2 * x

    double = b.elementwise("y[i] = 2 * x[i]", "in float32 x, out float32 y", reference=reference)
    refused(a, b, lambda: double(x))
    refused(a, b, lambda: double(y, x))
    refused(a, b, lambda: double(x[:0], y[:0]))
    assert (x.numpy() == 1).all()
    assert (double(y).numpy() == 2).all()


def test_functions_of_arrays(pair: tuple[ps.Device, ps.Device]) -> None:
    """None moves an array silently, not even one that could be read where it is."""
    a, b = pair
    x, y = a.ones((2, 2)), b.ones((2, 2))
    for attempt in (
        lambda: a.xp.concat([x, y]), lambda: np.concatenate([y, x]), lambda: a.xp.stack([y, y]),
        lambda: a.xp.tile(y, (2,)), lambda: a.xp.repeat(y, 2), lambda: a.xp.roll(y, 1),
        lambda: a.xp.sum(y), lambda: a.xp.astype(y, a.xp.int32), lambda: a.xp.zeros_like(y),
        lambda: a.xp.linalg.inv(y), lambda: a.xp.fft.fft(y), lambda: a.xp.meshgrid(x[0], y[0]),
        lambda: x + y, lambda: x @ y, lambda: x[y > 0], lambda: x.__iadd__(y),
        lambda: a.xp.where(y > 0, x, x), lambda: np.add(x, x, out=y),
    ):  # fmt: skip
        refused(a, b, attempt)
    assert (x - y.sum()).tolist() == [[-3, -3], [-3, -3]]  # a number, which is read


# Streams and events.


def test_streams_of_another_device(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.array(counted()), a.zeros(N, np.uint32)
    other = b.stream()
    with a.record() as graph:
        add(a, x)
    for attempt in (
        lambda: add(a, x, stream=other),
        lambda: add(a, x, stream=other, threads=None, groups=a.full(3, 1, np.uint32)),
        lambda: x.write(counted() + 9, stream=other),
        lambda: x.read(stream=other),
        lambda: x.fill(9, stream=other),
        lambda: x.copy_from(y, stream=other),
        lambda: x.copy_from(b.ones(N, np.uint32), stream=other),
        lambda: x.sum(stream=other),
        lambda: a.scratch(other),
        lambda: graph.replay(stream=other),
    ):
        refused(a, b, attempt)
    a.synchronize()
    assert (x.numpy() == counted()).all()


def test_events_of_another_device(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x = a.array(counted())
    with held(a.default_stream):
        add(a, x)
        event = a.default_stream.record()
        refused(a, b, lambda: b.default_stream.wait(event))
    event.wait()
    assert (x.numpy() == counted() + 1).all()


# Graphs.


def test_graphs_of_one_device(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.array(counted()), b.array(counted())
    add(a, x)
    add(b, y)
    refused(a, b, lambda: b.record(x=x))
    with a.record(x=x) as graph:
        add(a, x)
        refused(a, b, lambda: add(a, y))
        refused(a, b, lambda: add(b, x))
    for _ in range(2):
        graph.replay()
        refused(a, b, lambda: graph.replay(x=y))
    assert (x.numpy() == counted() + 3).all()
    assert (y.numpy() == counted() + 1).all()


def test_two_graphs_are_recorded_at_once(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.array(counted()), b.array(counted())
    with a.record() as ga, b.record() as gb:
        add(a, x)
        add(b, y)
        add(b, y)
    assert (len(ga), len(gb)) == (1, 2)
    ga.replay()
    gb.replay()
    assert (x.numpy() == counted() + 1).all()
    assert (y.numpy() == counted() + 2).all()


def test_a_graph_has_a_copy_of_what_another_device_held(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.zeros(N, np.uint32), b.array(counted())
    with held(a.default_stream):
        add(b, y)
        with a.record() as graph:
            x.copy_from(y)
        y.fill(0)
        graph.replay()
    assert (x.numpy() == counted() + 1).all()


# Transfers.


ACROSS: dict[str, Callable[[ps.Array, ps.Array], object]] = {
    "copy_from": lambda x, y: x.copy_from(y),
    "write": lambda x, y: x.write(y),  # type: ignore[arg-type]
    "setitem": lambda x, y: x.__setitem__(slice(None), y),
    "asarray": lambda x, y: x.copy_from(x.device.asarray(y)),
    "array": lambda x, y: x.copy_from(x.device.array(y)),
    "from_dlpack": lambda x, y: x.copy_from(x.device.from_dlpack(y)),
}


@pytest.mark.parametrize("way", ACROSS)
def test_a_copy_across_is_of_its_place_in_both_programs(
    way: str, pair: tuple[ps.Device, ps.Device]
) -> None:
    a, b = pair
    x, y = a.zeros(N, np.uint32), b.array(counted())
    seen = a.zeros(N, np.uint32)
    with held(a.default_stream):  # the target is in use, and the source is still written
        slow_copy(x, seen, spin=0)
        slow_add(y, 1)
        ACROSS[way](x, y)
        slow_add(y, 100)
    assert (seen.numpy() == 0).all()
    assert (x.numpy() == counted() + 1).all()
    assert (y.numpy() == counted() + 101).all()


def test_what_cannot_be_copied_across(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    weight = a.array(counted(), role="weight")
    log = a.zeros(N, np.uint32, role="append")
    output = a.zeros(N, np.uint32, role="output")
    y = b.ones(N, np.uint32)
    log.copy_from(y)
    for target in (weight, log):
        with pytest.raises(ps.RoleViolation):
            target.copy_from(y)
    with pytest.raises(ps.RoleViolation, match="written by the device only"):
        output.copy_from(y)  # it goes through the host
    with pytest.raises(ps.DtypeMismatch):
        weight.copy_from(y.reinterpret(np.float32))
    assert (weight.numpy() == counted()).all()
    assert (log.numpy() == 1).all()
    assert (output.numpy() == 0).all()


def test_results_of_another_device_are_numbers(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.array(counted() + 5), b.array(counted())
    first = kernel(a, FIRST, "first")(x=x, n=1, spin=0, add=2, groups=1)
    add(b, y, add=int(first))
    assert y.numpy()[0] == 7
    counter = a.zeros(N, np.uint32, role="append").counter
    refused(a, b, lambda: add(b, counter))


# Host memory.


@pytest.fixture
def importing(pair: tuple[ps.Device, ps.Device]) -> tuple[ps.Device, ps.Device]:
    for device in pair:
        if not device.info.can_import:
            pytest.skip(f"{device.name} cannot import host memory")
    return pair


def test_one_host_array_adopted_by_both(importing: tuple[ps.Device, ps.Device]) -> None:
    a, b = importing
    memory = pages()[:N]
    memory[:] = counted()
    x, y = a.adopt(memory), b.adopt(memory)
    add(a, x)
    refused(a, b, lambda: add(b, x))
    a.synchronize()  # each device knows of its own work only
    add(b, y)
    b.synchronize()
    assert (memory == counted() + 2).all()
    assert (x.numpy() == memory).all()
    x.close()
    a.synchronize()
    add(b, memory)  # in place, though the other device has let go of it
    assert (memory == counted() + 3).all()
    y.close()
    b.synchronize()


def test_memory_of_one_device_is_an_argument_of_the_other(
    pair: tuple[ps.Device, ps.Device],
) -> None:
    a, b = pair
    memory = a.host_empty(N, np.uint32)
    memory[:] = counted()
    add(a, memory)
    add(b, memory)
    out = b.zeros(N, np.uint32)
    kernel(b, SLOW_COPY, "slow_copy")(x=memory[::2], y=out, n=N // 2, spin=0, threads=N // 2)
    assert (memory == counted() + 2).all()
    assert (out.numpy()[: N // 2] == memory[::2]).all()


def test_an_array_shared_by_dlpack_is_stable(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    y = b.array(counted())
    x = a.from_dlpack(y)
    add(b, y)  # goes to other memory while the other device has it
    assert (x.numpy() == counted()).all()
    assert (y.numpy() == counted() + 1).all()
    try:
        add(a, x)
    except ps.ReadOnly:  # in place; where it is a copy, it is the device's own
        assert (x.numpy() == counted()).all()
    x.close()
    a.synchronize()


# Ends.


def test_the_other_device_goes_on_when_one_is_closed(pair: tuple[ps.Device, ps.Device]) -> None:
    a, b = pair
    x, y = a.array(counted()), b.array(counted())
    add(a, x)
    add(b, y)
    a.close()
    for attempt in (lambda: add(b, x), lambda: y.copy_from(x), lambda: y.dot(x)):
        with pytest.raises((ps.ArgumentError, ps.Closed)):
            attempt()
    add(b, y)
    assert (y.numpy() == counted() + 2).all()
