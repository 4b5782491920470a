"""The conformance suite over the stand-in: values, then every call failing in turn.

`penstock check --driver hip` runs the same on whatever HIP finds. (Here are fewer random programs;
`PENSTOCK_HIP_PROGRAMS=2000` makes them more.)
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import penstock as ps
from penstock.__main__ import main
from penstock.array.transfer import MODES
from penstock.conformance import CORPUS, Bench, Program, generate
from penstock.conformance.faults import Trying
from penstock.conformance.runner import Running
from tests.hip.standin import LOST, OUT_OF_MEMORY, StandIn
from tests.kernels import new_kernel

_PROGRAMS = os.environ.get("PENSTOCK_HIP_PROGRAMS", "40")
#: Calls by which a device turns out lost.
_LOSING = ("hipModuleLaunchKernel", "hipMemcpyAsync", "hipEventRecord", "hipEventQuery")
_STEP = 11  # calls from one that fails to the next; different ones for each program

#: Some of the corpus, and some random programs: with faults each runs dozens of times.
_CHOSEN = [*CORPUS[::12], *(generate(seed, 12) for seed in range(6))]


def test_named_and_random_programs(hip: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    live = hip.live
    assert main(["check", "--driver", "hip", "--programs", _PROGRAMS]) == 0
    assert "all passed" in capsys.readouterr().out
    assert not hip.messages
    assert hip.live == live


def _ids(program: Program) -> str:
    return program.name.replace(" ", "-")[:40]


@pytest.mark.parametrize("program", _CHOSEN, ids=_ids)
def test_out_of_memory_at_any_call_changes_nothing(program: Program, hip: StandIn) -> None:
    """The program tries again what failed, and comes out right; nothing is left behind."""
    mode = MODES[_CHOSEN.index(program) % len(MODES)]
    number = 1 + _CHOSEN.index(program) % _STEP
    live = hip.live
    while True:
        hip.forget()
        with ps.Device(driver="hip", transfers=mode) as device:
            bench = Bench(device)
            bench.streams(program.streams)
            for name in ("copy", "add", "store", "sparse", "sum", "mix", "total"):
                _ = bench.kernels[name]
            hip.fail("", number, OUT_OF_MEMORY)
            running = Trying(program, bench)
            running.all()
            failed = hip.failed
            hip.fail("", 0, 0)
            running.end_batches()
            del running, bench
        assert not hip.messages, (number, hip.messages)
        assert hip.live == live, number
        if not failed:
            break
        number += _STEP


@pytest.mark.parametrize("call", _LOSING)
@pytest.mark.parametrize("program", _CHOSEN[::5], ids=_ids)
def test_a_loss_at_any_call_is_noticed(program: Program, call: str, hip: StandIn) -> None:
    number, failed = 1, True
    while failed:
        hip.set("lose", 0)
        device = ps.Device(driver="hip")
        hip.fail(call, number, LOST)
        running = None
        try:
            running = Running(program, Bench(device))
            running.all()
        except ps.DeviceLost:
            hip.set("lose", LOST)
            with pytest.raises(ps.DeviceLost):
                device.synchronize()
        failed = hip.failed
        assert not failed or device.scheduler.lost is not None
        hip.fail("", 0, 0)
        del running
        device.close()
        number = 2 * number + 1
    hip.set("lose", 0)


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        ("sum", "float32"), ("sum", "float64"), ("sum", "float16"), ("sum", "int8"),
        ("sum", "uint64"), ("mean", "int64"), ("mean", "float32"), ("mean", "uint16"),
        ("min", "float32"), ("max", "float16"), ("min", "int64"), ("max", "uint8"),
        ("argmin", "float64"), ("argmax", "int16"), ("argmin", "int32"), ("any", "bool"),
        ("all", "float32"), ("all", "uint8"), ("dot", "float32"), ("dot", "int16"),
    ],
)  # fmt: skip
def test_reductions_are_numpys(operation: str, dtype: str, hip_device: ps.Device) -> None:
    rng = np.random.default_rng(7)
    for count in (1, 1000, 20_000):
        given = rng.integers(0, 3 if dtype == "float16" else 100, count + 1).astype(dtype)
        x = hip_device.array(given)[1:]  # from a place that is not aligned to anything
        if operation == "dot":
            made, expected = x.dot(x).result(), np.dot(given[1:], given[1:])
        else:
            made = getattr(x, operation)().result()
            expected = getattr(given[1:], operation)()
        if operation in ("sum", "mean") and dtype == "float16":
            expected = getattr(given[1:].astype(np.float64), operation)().astype(np.float16)
        np.testing.assert_allclose(made, expected, rtol=1e-5)
        assert made.dtype == expected.dtype


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        ("sum", "float32"), ("sum", "int8"), ("std", "complex64"), ("std", "float16"),
        ("all", "bool"), ("argmin", "float32"), ("max", "uint64"), ("cumsum", "int16"),
        ("cumprod", "float16"),
    ],
)  # fmt: skip
def test_reductions_along_axes_are_numpys(
    operation: str, dtype: str, hip_device: ps.Device
) -> None:
    host = np.random.default_rng(8).integers(0, 3, (60, 70)).astype(dtype)
    x = hip_device.array(host)
    wide = host.astype({"f": "f8", "c": "c16"}.get(host.dtype.kind, dtype))
    for seen, made in ((wide, getattr(x, operation)(axis=0)),
                       (wide[:, ::-2].T, getattr(x[:, ::-2].T, operation)(axis=0))):  # fmt: skip
        expected = getattr(seen, operation)(0)
        np.testing.assert_allclose(made.numpy(), expected, rtol=2e-3)
        assert made.dtype == getattr(host, operation)(0).dtype


def test_long_sums_have_parts(hip_device: ps.Device) -> None:
    ones = hip_device.ones(100_000)
    assert ones.sum(axis=0).item() == 100_000
    assert ones.argmax(axis=0).item() == 0
    assert ones.cumsum(axis=0)[-1].item() == 100_000


def test_nan_is_the_extreme(hip_device: ps.Device) -> None:
    x = hip_device.array(np.array([1, np.nan, -5, np.inf], np.float32))
    assert np.isnan(x.max().result())
    assert np.isnan(x.min().result())
    assert x.argmax().result() == 1


def test_elementwise_types(hip_device: ps.Device) -> None:
    for dtype in ("int8", "uint16", "int64", "float64", "bool"):
        parameters = f"in {dtype} x, out {dtype} y, {dtype} a"
        run = hip_device.elementwise("y[i] = a ? x[i] : (x[i] + x[i])", parameters)
        x = np.arange(100).astype(dtype)
        expected = x if np.dtype(dtype).type(1) else x + x
        assert (run(hip_device.array(x), a=np.dtype(dtype).type(1)).numpy() == expected).all()


def test_threads_share_a_device(hip_device: ps.Device) -> None:
    from concurrent.futures import ThreadPoolExecutor

    run = new_kernel(hip_device, "", hip=("inout uint32 x, uint32 a", 64, "x[i] += a;"))

    def work(number: int) -> bool:
        with hip_device.stream() as stream:
            x = hip_device.zeros(256, np.uint32)
            for _ in range(50):
                run(x=x, a=number, threads=256, stream=stream)
            return bool((x.numpy() == 50 * number).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(1, 9)))
