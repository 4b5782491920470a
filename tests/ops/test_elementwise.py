"""Elementwise kernels: every dtype and size, what a call makes and returns, and what it refuses."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.conftest import OpenDevice
from tests.launch.test_kernel import SCALARS

SAXPY = ("y[i] = a * x[i] + y[i]", "in float32 x, inout float32 y, float32 a")
ADD = ("z[i] = x[i] + y[i]", "in float32 x, in float32 y, out float32 z")
NAMES = {str(np.dtype(dtype)): needs for dtype, needs in SCALARS.values()}


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [0, 1, 3, 255, 256, 257, 1000, 16_384, 16_385, (1 << 20) + 3])
def test_every_size(n: int, dev: ps.Device) -> None:
    x, y = floats(n), floats(n + 1)[1:]
    result = dev.array(y)
    saxpy = dev.elementwise(*SAXPY, name="saxpy")
    assert saxpy(dev.array(x), result, 2.0) is None
    np.testing.assert_allclose(result.numpy(), 2 * x + y, rtol=1e-6, atol=1e-6)


def test_more_elements_than_groups_can_take_at_once(open_device: OpenDevice) -> None:
    dev = open_device()
    limits = {**dev.info.limits, "group_count": (1, 1, 1), "group_size": (8, 1, 1)}
    dev.info = replace(dev.info, limits=limits, kind="discrete")
    add = dev.elementwise(*ADD)
    x = floats(1001)
    with ps.trace() as t:
        z = add(dev.array(x), dev.array(x))
    assert any("(1, 1, 1) groups" in event.reason for event in t.events)
    assert add.kernel.local_size == (8, 1, 1)
    assert (z.numpy() == x + x).all()


@pytest.mark.parametrize("name", ["bool", *NAMES])
def test_every_dtype_as_array_and_as_number(name: str, dev: ps.Device) -> None:
    dtype: Any = np.dtype(name)
    arrays, numbers = f"in {name} x, out {name} y", f", {name} a"
    operation = "y[i] = x[i] * uint8_t(a)" if name == "bool" else "y[i] = x[i] + a"
    needs = NAMES["uint8" if name == "bool" else name]
    if name == "bool":
        needs = needs - {"storagePushConstant8"}  # a number that is a bool takes a word
    if missing := needs - dev.info.features:
        with pytest.raises(ps.Unsupported, match="|".join(missing)):
            dev.elementwise(operation, arrays + numbers)
        return
    x = (np.arange(100) % 3).astype(dtype)
    add = dev.elementwise(operation, arrays + numbers)
    for a in (dtype.type(1), dtype.type(1).item()):
        y = add(dev.array(x), a=a)
        assert (y.dtype, y.shape) == (dtype, x.shape)
        assert (y.numpy() == (x & a if name == "bool" else x + a)).all()


def test_only_what_is_used_is_asked_of_the_device(dev: ps.Device) -> None:
    assert not dev.elementwise(*SAXPY).kernel.interface.capabilities


def test_arguments_in_order_or_by_name(dev: ps.Device) -> None:
    saxpy = dev.elementwise(*SAXPY)
    x, y = dev.ones(10), dev.zeros(10)
    saxpy(x, y, 1.0)
    saxpy(x=x, y=y, a=2.0)
    saxpy(x, a=3.0, y=y)
    assert (y.numpy() == 6).all()


def test_out_arrays_are_made_or_given_and_returned(dev: ps.Device) -> None:
    x = floats(3, 5)
    both = dev.elementwise(
        "s[i] = sin(x[i]); k[i] = int(i)", "in float32 x, out float32 s, out int32 k"
    )
    s, k = both(dev.array(x))
    assert (s.shape, s.dtype, k.shape, k.dtype) == ((3, 5), np.float32, (3, 5), np.int32)
    np.testing.assert_allclose(s.numpy(), np.sin(x), atol=1e-3)
    assert (k.numpy().ravel() == np.arange(15)).all()
    mine = dev.zeros((3, 5), np.int32)
    _, given = both(dev.array(x), k=mine)
    assert given is mine
    assert (mine.numpy() == k.numpy()).all()
    two = dev.elementwise("p[i] = i; q[i] = n", "out uint32 p, out uint32 q")
    p, q = two(q=dev.empty(4, np.uint32))
    assert (p.tolist(), q.tolist()) == ([0, 1, 2, 3], [4] * 4)
    assert dev.elementwise(*ADD)(dev.ones(()), dev.ones(())).item() == 2


def test_numpy_arrays_are_carried(dev: ps.Device) -> None:
    x, y = floats(100)[::2], floats(50)
    expected = 2 * x + y
    dev.elementwise(*SAXPY)(x, y, 2.0)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    made = dev.elementwise(*ADD)(x, y)
    assert isinstance(made, ps.Array)
    assert (made.numpy() == x + y).all()


def test_statements_functions_and_early_ends(dev: ps.Device) -> None:
    clamp = dev.elementwise(
        """
        float v = softsign(x[i]);  // a comment
        if (v < 0) { y[i] = 0; return; }
        y[i] = v""",
        "in float32 x, out float32 y",
        preamble="float softsign(float v) { return v / (1 + abs(v)); }",
    )
    x = floats(3000)
    expected = np.maximum(0, x / (1 + abs(x)))
    np.testing.assert_allclose(clamp(dev.array(x)).numpy(), expected, rtol=1e-6)


def test_streams_and_threads(threaded_device: ps.Device) -> None:
    dev = threaded_device
    saxpy = dev.elementwise(*SAXPY)
    x = dev.ones(1000)
    ys = [dev.zeros(1000) for _ in range(4)]

    def work(y: ps.Array) -> None:
        stream = dev.stream()
        for _ in range(50):
            saxpy(x, y, 1.0, stream=stream)

    threads = [threading.Thread(target=work, args=(y,)) for y in ys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((y.numpy() == 50).all() for y in ys)


def test_recording(dev: ps.Device) -> None:
    add, saxpy = dev.elementwise(*ADD), dev.elementwise(*SAXPY)
    x = dev.array(floats(100))
    with dev.record(a=2.0) as g:
        z = add(x, x)
        saxpy(x, z, a=g["a"])
    for a in (2.0, 3.0):
        g.replay(a=a)
        np.testing.assert_allclose(z.numpy(), (2 + a) * x.numpy(), rtol=1e-6)


def test_the_simulator_runs_the_reference() -> None:
    def mask(x: Any, y: Any, flag: Any) -> None:
        y[:] = x if flag else 0

    for seed in range(5):
        dev = ps.Device(driver="sim", seed=seed)
        keep = dev.elementwise(
            "y[i] = x[i] & uint8_t(flag)", "in bool x, out bool y, bool flag", reference=mask
        )
        x = np.arange(12).reshape(3, 4) % 3 == 0
        assert (keep(dev.array(x), flag=np.True_).numpy() == x).all()
        assert not keep(dev.array(x), flag=False).numpy().any()
        assert not dev.messages
        dev.close()


def test_steady_state_is_free(dev: ps.Device) -> None:
    saxpy = dev.elementwise(*SAXPY)
    x, y = dev.ones(5000), dev.zeros(5000)
    saxpy(x, y, 1.0)
    dev.synchronize()
    with ps.trace() as t:
        saxpy(x, y, 1.0)
    assert (t.launches, t.allocations, t.copies, t.waits) == (1, 0, 0, 0)


def test_it_tells_its_signature(dev: ps.Device) -> None:
    saxpy = dev.elementwise(*SAXPY, name="saxpy")
    for text in (repr(saxpy), saxpy.__doc__ or ""):
        assert "saxpy(in float32 x, inout float32 y, float32 a)" in text
        assert SAXPY[0] in text
    saxpy.close()
    assert saxpy.closed
    with pytest.raises(ps.Closed, match="kernel saxpy is closed"):
        saxpy(dev.ones(1), dev.ones(1), 1.0)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("", "'' is not a parameter.*in float32 x"),
        ("in float32 x,", "'' is not a parameter"),
        ("in float32", "'in float32' is not a parameter"),
        ("const in float32 x", "'const in float32 x' is not a parameter"),
        ("in float x", "unknown dtype 'float'.*float32"),
        ("in complex64 x", "unknown dtype 'complex64'"),
        ("float32 a", "no array among the parameters 'float32 a'"),
        ("in float32 x, out float32 x", "two parameters are called 'x'"),
        ("in float32 i", "'i', which is the index"),
        ("in float32 n", "'n', which is the number of elements"),
        ("in float32 x, int32 stream", "'stream', which a call uses"),
        ("in float32 vec3", "'vec3', which is a word of GLSL"),
        ("in float32 lambda", "'lambda', which is a word of Python"),
        ("in float32 gl_x", "'gl_x', which"),
        ("in float32 x-y", "'in float32 x-y' is not a parameter"),
    ],
)
def test_bad_parameters(parameters: str, words: str, dev: ps.Device) -> None:
    with pytest.raises(ps.InvalidValue, match=f"mine: .*{words}"):
        dev.elementwise("", parameters, name="mine")


def test_what_is_not_text(dev: ps.Device) -> None:
    for texts in (("", ["in float32 x"]), (3, "in float32 x")):
        with pytest.raises(ps.ArgumentError, match=r"is text, not (list|int)"):
            dev.elementwise(*texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "preamble", "words"),
    [
        ("y[i] = 1;\ny[i] = b;", "", r"line 2 of the operation: 'b'.*undeclared.*\n +y\[i\] = b;"),
        ("y[i] = x[i]", "", r"line 1 of the operation: .*read.*\n +y\[i\] = x\[i\]"),
        ("y[i] = {", "", "line 1 of the operation"),
        ("if (true) {", "", "line 1 of the operation"),
        ("y[i] = f()", "\nfloat f() { return z; }", r"line 2 of the preamble: 'z'.*\n +float f"),
    ],
)
def test_compile_errors_tell_the_users_line(
    operation: str, preamble: str, words: str, dev: ps.Device
) -> None:
    with pytest.raises(ps.CompileError, match=f"mine, {words}"):
        dev.elementwise(operation, "out float32 x, out float32 y", name="mine", preamble=preamble)


def test_bad_calls(dev: ps.Device) -> None:
    saxpy = dev.elementwise(*SAXPY, name="saxpy")
    x, y = dev.ones(4), dev.ones(4)
    bad: list[tuple[tuple[Any, ...], dict[str, Any], Any, str]] = [
        ((x, dev.ones((2, 2)), 1.0), {}, ps.ShapeMismatch, r"x \(4,\), y \(2, 2\)"),
        ((x, dev.ones(8)[::2], 1.0), {}, ps.ShapeMismatch, "'y' is not contiguous"),
        ((x,), {}, ps.ArgumentError, r"'y' is missing.*saxpy\(in"),
        ((), {"a": 1.0}, ps.ArgumentError, "'x', 'y' is missing"),
        ((x, y), {}, ps.ArgumentError, "'a' is missing"),
        ((x, [1.0] * 4, 1.0), {}, ps.ArgumentError, "'y' must be a penstock or NumPy array"),
        ((x, y, 1.0, 2.0), {}, ps.ArgumentError, "1 too many arguments"),
        ((x, y, 1.0), {"b": 2}, ps.ArgumentError, "no argument 'b'"),
        ((x, dev.ones(4, np.int32), 1.0), {}, ps.DtypeMismatch, "'y' must be float32, not int32"),
        ((x, y, "1"), {}, ps.ArgumentError, "'a' must be float32"),
        ((x[:0], dev.ones(0, np.int8), 1.0), {}, ps.DtypeMismatch, "'y' must be float32"),
    ]
    for arguments, named, kind, words in bad:
        with pytest.raises(kind, match=f"saxpy: .*{words}"):
            saxpy(*arguments, **named)
    with pytest.raises(ps.ArgumentError, match="every array"):
        dev.elementwise("z[i] = 1", "out float32 z")()
    assert (y.numpy() == 1).all()
