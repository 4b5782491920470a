"""Texel buffers: what is bound, in which format, how it is ordered, and when views come and go."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock import accelerator
from penstock.conformance.check import check
from penstock.conformance.lab import Lab
from penstock.memory import texel_views
from penstock.shader.texels import FORMATS, TexelFormat, default_format
from tests.conftest import HAS_VALIDATION, OpenDevice, _installed, _silence, faults, simulated
from tests.gate import held
from tests.hip.standin import StandIn
from tests.kernels import ADD_TEXELS, HEAD, new_kernel, slow_add

Host = npt.NDArray[Any]

N = 256
PREFIX = {"float": "", "int": "i", "uint": "u"}
DTYPE = {"float": np.float32, "int": np.int32, "uint": np.uint32}

#: y[i] = the first of texel `first + i` of w.
FIRST_OF = (
    HEAD
    + """
layout(binding = 0) uniform usamplerBuffer w;
layout(binding = 1) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform P { uint n; uint first; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = texelFetch(w, int(first + i)).x;
}
"""
)
HIP_CODE = 'extern "C" __global__ void look(const float *x) { (void)x; }'


def first_of(w: Host, y: Host, n: int, first: int, threads: object) -> None:
    y[:n] = w.reshape(len(w), -1)[first : first + n, 0]


def first_kernel(dev: ps.Device, texel: str | None = None) -> ps.Kernel:
    formats = {} if texel is None else {"w": texel}
    return dev.kernel(FIRST_OF, name="first_of", reference=first_of, formats=formats)


def add_kernel(dev: ps.Device) -> ps.Kernel:
    return new_kernel(dev, ADD_TEXELS, "add")


@pytest.fixture(params=("llvmpipe", "SwiftShader", "simulator"))
def device(request: pytest.FixtureRequest) -> Iterator[ps.Device]:
    """Every Vulkan driver, validated, and the simulator."""
    if request.param == "simulator":
        with simulated(3) as opened:
            yield opened
        return
    with _silence(), ps.Device(_installed(request.param), validate=HAS_VALIDATION) as opened:
        yield opened


# Values.


def fetched(texel: TexelFormat, content: Host) -> Host:
    """What a shader gets from texels: rows of four."""
    rows = np.zeros((content.size // texel.count, 4), DTYPE[texel.fetched])
    rows[:, 3] = 1
    if texel.name.startswith("rgb10_a2"):
        parts = [content >> shift & mask for shift, mask in _TEN_TEN_TEN_TWO]
        full = [mask for _, mask in _TEN_TEN_TEN_TWO] if texel.fetched == "float" else [1] * 4
        for at, (part, scale) in enumerate(zip(parts, full, strict=True)):
            rows[:, at] = part / np.float32(scale) if texel.fetched == "float" else part
        return rows
    values = content.reshape(-1, texel.count).astype(rows.dtype)
    if texel.fetched == "float" and texel.dtype.kind != "f":
        values = np.maximum(values / np.float32(np.iinfo(texel.dtype).max), np.float32(-1))
    rows[:, : texel.count] = values
    return rows


_TEN_TEN_TEN_TWO = ((0, 1023), (10, 1023), (20, 1023), (30, 3))

FETCH = (
    HEAD
    + """
layout(binding = 0{format}) uniform {declared} w;
layout(binding = 1) writeonly buffer Y {{ {vector} y[]; }};
layout(push_constant) uniform P {{ uint n; }};
void main() {{ uint i = gl_GlobalInvocationID.x; if (i < n) y[i] = {fetch}(w, int(i)); }}
"""
)


def content_of(texel: TexelFormat) -> Host:
    chance = np.random.default_rng(7)
    if texel.dtype.kind == "f":
        return chance.standard_normal(N * texel.count).astype(texel.dtype)
    info = np.iinfo(texel.dtype)
    made = chance.integers(info.min, info.max, N * texel.count, texel.dtype, endpoint=True)
    made[:2] = info.min, info.max
    return made


@pytest.mark.parametrize("way", ["sampler", "image"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "r11f_g11f_b10f"])
def test_values_of_every_format(dev: ps.Device, name: str, way: str) -> None:
    texel, sampled = FORMATS[name], way == "sampler"
    prefix = PREFIX[texel.fetched]
    source = FETCH.format(
        format="" if sampled else f", {name}",
        declared=f"{prefix}samplerBuffer" if sampled else f"readonly {prefix}imageBuffer",
        vector=f"{prefix}vec4",
        fetch="texelFetch" if sampled else "imageLoad",
    )
    formats = {"w": name} if sampled else {}
    if name not in dev.info.texel_formats:
        with pytest.raises(ps.Unsupported, match=f"'w' has texels of {name}; .* supports .*r32f"):
            dev.kernel(source, formats=formats)
        return
    content = content_of(texel)
    y = dev.zeros((N, 4), DTYPE[texel.fetched])
    dev.kernel(source, formats=formats)(w=dev.array(content), y=y, n=N, threads=N)
    expected = fetched(texel, content)
    if texel.fetched == "float" and texel.dtype.kind != "f":
        assert np.allclose(y.numpy(), expected, rtol=0, atol=1e-6)
    else:
        assert (y.numpy() == expected).all()


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "r32f"), ("float16", "r16f"), ("uint32", "r32ui"), ("int32", "r32i"),
        ("uint16", "r16ui"), ("int16", "r16i"), ("uint8", "r8ui"), ("int8", "r8i"),
        ("bool", "r8ui"), ("complex64", "rg32f"),
    ],
)  # fmt: skip
def test_without_a_format_an_element_is_a_texel(dev: ps.Device, dtype: str, name: str) -> None:
    texel = default_format(np.dtype(dtype))
    assert texel is not None
    assert texel.name == name
    prefix = PREFIX[texel.fetched]
    source = FETCH.format(
        format="", declared=f"{prefix}samplerBuffer", vector=f"{prefix}vec4", fetch="texelFetch"
    )
    content = (np.arange(N) % 2 if dtype == "bool" else np.arange(N) % 100).astype(dtype)
    y = dev.zeros((N, 4), DTYPE[texel.fetched])
    dev.kernel(source)(w=dev.array(content), y=y, n=N, threads=N)
    assert (y.numpy() == fetched(texel, content.view(texel.dtype))).all()


def test_an_image_declares_its_format(dev: ps.Device) -> None:
    with pytest.raises(ps.Unsupported, match=r"image 'w' declares no format.*binding = 0, r32ui"):
        dev.kernel(
            ADD_TEXELS.replace(", r32ui", "")
            .replace("imageLoad(w, i) + add", "uvec4(add)")
            .replace("uniform uimage", "uniform writeonly uimage")
        )


def test_numpy_arguments(device: ps.Device) -> None:
    w, y = np.arange(4 * N, dtype=np.uint32), np.zeros(N, np.uint32)
    for step in range(3):
        first_kernel(device, "rgba32ui")(w=w + np.uint32(step), y=y, n=N, first=0, threads=N)
        assert (y == w[::4] + step).all()
    add_kernel(device)(w=y, n=N, add=5, threads=N)
    assert (y == w[::4] + 7).all()


def test_atomics_on_texels(dev: ps.Device) -> None:
    count = dev.kernel(
        HEAD + "layout(binding = 0, r32ui) uniform uimageBuffer w;\n"
        "void main() { imageAtomicAdd(w, int(gl_GlobalInvocationID.x % 4), 1u); }"
    )
    w = dev.zeros(4, np.uint32)
    count(w=w, threads=N)
    assert w.tolist() == [N // 4] * 4


# What is refused, and what the message says to do.


def test_the_signature_names_formats(dev: ps.Device) -> None:
    assert "w: r texels of uint[]" in first_kernel(dev).signature
    assert "w: r rgba32ui[]" in first_kernel(dev, "rgba32ui").signature
    assert "w: rw r32ui[]" in add_kernel(dev).signature


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ({"w": "rgba32"}, "no texel format 'rgba32'; GLSL's image formats are .*rgba32ui"),
        ({"w": 5}, "no texel format 5"),
        ({"w": "rgba32f"}, "gives the kernel uint, and format rgba32f has float"),
        ({"y": "rgba32ui"}, "no texel buffer 'y' to give a format to; it has w"),
        ("rgba32ui", "formats= is a dict"),
    ],
)
def test_formats_that_do_not_fit_the_kernel(dev: ps.Device, formats: Any, message: str) -> None:
    with pytest.raises((ps.ArgumentError, ps.InvalidValue), match=message):
        dev.kernel(FIRST_OF, formats=formats)


def test_a_declared_format_stays(dev: ps.Device) -> None:
    dev.kernel(ADD_TEXELS, formats={"w": "r32ui"})
    with pytest.raises(ps.ArgumentError, match="declared as r32ui, and formats= says rgba32ui"):
        dev.kernel(ADD_TEXELS, formats={"w": "rgba32ui"})


def test_an_array_of_another_dtype(device: ps.Device) -> None:
    y = device.zeros(N, np.uint32)
    x = device.ones(4 * N)
    wide = first_kernel(device, "rgba32ui")
    with pytest.raises(ps.DtypeMismatch, match=r"must be uint32, for texels .*x\.reinterpret\('ui"):
        wide(w=x, y=y, n=N, first=0, threads=N)
    wide(w=x.reinterpret(np.uint32), y=y, n=N, first=0, threads=N)
    assert set(y.tolist()) == {0x3F800000}
    with pytest.raises(ps.DtypeMismatch, match=r"texel buffer of uint.*float32.*formats={'w': 'rg"):
        first_kernel(device)(w=x, y=y, n=N, first=0, threads=N)
    with pytest.raises(ps.DtypeMismatch, match=r"int64.*does not fit"):
        first_kernel(device)(w=device.zeros(N, np.int64), y=y, n=N, first=0, threads=N)


def test_an_array_that_is_not_whole_texels(device: ps.Device) -> None:
    y = device.zeros(N, np.uint32)
    with pytest.raises(ps.ShapeMismatch, match=r"1,020 bytes, .* not whole texels of 16 .*rgba32u"):
        first_kernel(device, "rgba32ui")(
            w=device.zeros(255, np.uint32), y=y, n=N, first=0, threads=N
        )
    with pytest.raises(ps.ShapeMismatch, match="not whole texels"):
        device.zeros(255, np.uint32).texels("rgba32ui")


def test_a_written_array_must_be_writable(device: ps.Device) -> None:
    w = device.array(np.arange(N, dtype=np.uint32), role="weight")
    with pytest.raises(ps.RoleViolation, match="kernel add writes"):
        add_kernel(device)(w=w, n=N, add=1, threads=N)
    y = device.zeros(N, np.uint32)
    first_kernel(device)(w=w, y=y, n=N, first=0, threads=N)
    assert (y.numpy() == np.arange(N)).all()


def test_more_texels_than_the_device_views(device: ps.Device) -> None:
    most: Any = device.info.limits["texel_elements"]
    if most > 1 << 20:
        pytest.skip(f"{device.name} views {most:,} texels")
    x = device.array(np.arange(most + 64, dtype=np.uint32) ** 2 // 7)
    y, kernel = device.zeros(N, np.uint32), first_kernel(device)
    with pytest.raises(ps.Unsupported, match=rf"{most + 64:,} texels .* at most {most:,} .*slices"):
        kernel(w=x, y=y, n=N, first=0, threads=N)
    kernel(w=x[64:], y=y, n=N, first=most - N, threads=N)
    assert (y.numpy() == x.numpy()[-N:]).all()
    wide = first_kernel(device, "rgba32ui")
    wide(w=x, y=y, n=16, first=most // 4, threads=16)
    assert (y.numpy()[:16] == x.numpy()[most::4]).all()


def test_an_array_at_any_offset(device: ps.Device) -> None:
    alignment: Any = device.info.limits["texel_alignment"]
    content = np.arange(4 * N, dtype=np.uint32)
    x, y, kernel = device.array(content), device.zeros(N, np.uint32), first_kernel(device)
    for start in (0, 1, 3, alignment // 4, alignment // 4 + 1, 99):
        part = x[start : start + N]
        if 4 * start % alignment:
            with pytest.raises(ps.InvalidValue, match=rf"{alignment} .*x\.texels\('r32ui'\)"):
                kernel(w=part, y=y, n=N, first=0, threads=N)
        w, first = part.texels("r32ui")
        assert (4 * first, w.dtype, w.shape) == (4 * start % alignment, np.uint32, (N,))
        kernel(w=w, y=y, n=N, first=first, threads=N)
        assert (y.numpy() == content[start : start + N]).all()
        assert (w.numpy() == content[start : start + N]).all()  # it is that part, no more


def test_texels_of_another_dtype_and_shape(device: ps.Device) -> None:
    x = device.array(np.arange(8 * N, dtype=np.float32).reshape(N, 8))
    y = device.zeros(N, np.uint32)
    w, first = x[2:].texels("rgba32ui")
    assert w.dtype == np.uint32
    first_kernel(device, "rgba32ui")(w=w, y=y, n=N - 2, first=first, threads=N)
    assert (y.numpy()[: N - 2] == x.numpy()[2:].reshape(-1, 4)[: N - 2, 0].view(np.uint32)).all()
    for wrong in (lambda: x[:, 1:].texels("r32f"), lambda: x.texels("r33f")):
        with pytest.raises((ps.ShapeMismatch, ps.InvalidValue), match=r"contiguous|format 'r33f'"):
            wrong()
    with pytest.raises(ps.ShapeMismatch, match="not whole texels of 16 bytes"):
        x.ravel()[1:-3].texels("rgba32ui")
    x.close()
    with pytest.raises(ps.Closed):
        x.texels("r32f")


def test_hip_has_no_texel_buffers(standin_library: StandIn) -> None:
    with standin_library.chosen(), standin_library.device() as dev:
        with pytest.raises(ps.ArgumentError, match="formats= is for texel buffers, which HIP"):
            dev.kernel(HIP_CODE, signature="in float32 x", formats={"x": "r32f"})
        with pytest.raises(ps.Unsupported, match="no texel buffers"):
            dev.zeros(64).texels("r32f")


# Ordering, and other memory.


def test_reads_and_writes_of_texels_are_ordered(device: ps.Device) -> None:
    x, y = device.zeros(N, np.uint32), device.zeros(N, np.uint32)
    add, first = add_kernel(device), first_kernel(device)
    device.synchronize()
    with ps.trace() as receipt, device.default_stream.batch():
        for _ in range(4):
            slow_add(x, 1, spin=20)
            add(w=x, n=N, add=10, threads=N)
            first(w=x, y=y, n=N, first=0, threads=N)
    assert receipt.barriers >= 11
    assert set(y.tolist()) == {44}
    other = device.stream()
    add(w=x, n=N, add=100, threads=N)
    first(w=x, y=y, n=N, first=0, threads=N, stream=other)
    assert set(y.tolist()) == {144}


def test_only_the_bytes_of_the_array_are_ordered(device: ps.Device) -> None:
    """A view may start before its array; work on the bytes in between does not concern it."""
    x, y = device.zeros(2 * N, np.uint32), device.zeros(N, np.uint32)
    alignment: Any = device.info.limits["texel_alignment"]
    if alignment < 8:
        pytest.skip("a view starts where its array does")
    w, lead = x[1 : N + 1].texels("r32ui")
    assert lead == 1
    kernel = first_kernel(device)
    with device.default_stream.batch(), ps.trace() as receipt:
        x[:1].fill(5)
        kernel(w=w, y=y, n=N, first=lead, threads=N)
    assert receipt.barriers == 0
    assert set(y.tolist()) == {0}


def test_a_renamed_buffer_is_viewed_anew(open_device: OpenDevice) -> None:
    dev = open_device(transfers="rename")
    x, y = dev.zeros(N, np.uint32), dev.zeros((8, N), np.uint32)
    kernel = first_kernel(dev)

    def step() -> None:
        with held(dev.default_stream):
            for value in range(4):
                x.write(np.full(N, value, np.uint32))
                kernel(w=x, y=y[value], n=N, first=0, threads=N)
        assert y.numpy()[:4, 0].tolist() == [0, 1, 2, 3]

    step(), step()
    with ps.trace() as receipt:
        step()
    assert receipt.renames
    assert not receipt.allocations, receipt


@pytest.mark.parametrize("way", ["adopt", "host_empty", "from_file", "inside"])
def test_memory_of_the_caller(device: ps.Device, way: str, tmp_path: Path) -> None:
    content = np.arange(4096, dtype=np.uint32)
    if way == "host_empty":
        host = device.host_empty(4096, np.uint32)
        host[:] = content
        x = device.adopt(host)
    elif way == "from_file":
        content.tofile(tmp_path / "x")
        x = device.from_file(tmp_path / "x", np.uint32, 4096 - 4, 16)  # misaligned on purpose
        content = content[4:]
    else:
        pages = mmap.mmap(-1, 4 * 4096)
        host = np.frombuffer(pages, np.uint32)
        host[:] = content
        start = 12 if way == "inside" else 0
        if not device.info.can_import:
            with pytest.raises(ps.CannotAdopt):
                device.adopt(host[start:])
            return
        try:
            x, content = device.adopt(host[start:]), content[start:]
        except ps.CannotAdopt:  # misaligned even for a storage buffer
            x, content = device.adopt(host), content
    y = device.zeros(N, np.uint32)
    for start in (0, 8, 1000):
        w, first = x[start : start + N].texels("r32ui")
        first_kernel(device)(w=w, y=y, n=N, first=first, threads=N)
        assert (y.numpy() == content[start : start + N]).all()
    if way == "adopt":
        whole, first = x.texels("r32ui")
        if first == 0 and whole.size <= device.info.limits["texel_elements"]:  # type: ignore
            add_kernel(device)(w=whole, n=N, add=1, threads=N)
            assert (x.numpy()[:N] == content[:N] + 1).all()
            assert (x.numpy()[N:] == content[N:]).all()
    x.close()
    device.synchronize()


def test_without_push_descriptors(driver: str) -> None:
    with _silence(), ps.Device(driver, validate=HAS_VALIDATION) as dev:
        own: Any = dev.scheduler.driver
        own.push_descriptors = 0
        x = dev.array(np.arange(4 * N, dtype=np.uint32))
        y = dev.zeros(N, np.uint32)
        add, first = add_kernel(dev), first_kernel(dev, "rgba32ui")
        expected = np.arange(4 * N, dtype=np.uint32)
        for step in range(1, 4):
            add(w=x, n=4 * N, add=step, threads=4 * N)
            first(w=x, y=y, n=N, first=0, threads=N)
            expected += np.uint32(step)
            assert (y.numpy() == expected[::4]).all()
            if step == 2:
                dev.trim()


# Views: made once, kept, and destroyed after their last use.


def reasons(receipt: ps.Trace) -> list[str]:
    return [each.reason for each in receipt.of_kind("allocation")]


def test_a_repeated_launch_makes_no_view(device: ps.Device) -> None:
    x, y, kernel = device.zeros(N, np.uint32), device.zeros(N, np.uint32), first_kernel(device)
    with ps.trace() as receipt:
        kernel(w=x, y=y, n=N, first=0, threads=N)
        device.synchronize()
    assert reasons(receipt).count("view of texels (r32ui)") == 1
    assert receipt.allocations == len(reasons(receipt))
    made, _ = accelerator.launches()
    with ps.trace() as receipt:
        for _ in range(10):
            kernel(w=x, y=y, n=N, first=0, threads=N)
        device.synchronize()
    assert not receipt.allocations
    if accelerator.is_native() and device.info.driver == "vulkan":
        assert accelerator.launches()[0] - made == 10
    with ps.trace() as receipt:  # the same bytes through arrays that are made anew
        for _ in range(10):
            kernel(w=x[:], y=y, n=N, first=0, threads=N)
        first_kernel(device)(w=x, y=y, n=N, first=0, threads=N)
        device.synchronize()
    assert "view of texels (r32ui)" not in reasons(receipt)


def count_views(device: ps.Device) -> Callable[[], int]:
    """Counts the driver's views that are there."""
    driver: Any = device.scheduler.driver
    if device.info.driver == "sim":
        return lambda: len(driver.views)
    return lambda: sum(handle.what == "BufferView" for handle in driver.handles)


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texel_views, "_KEPT", 2)


@pytest.mark.usefixtures("few_kept")
def test_a_view_goes_after_its_last_use(device: ps.Device) -> None:
    views, kernel = count_views(device), first_kernel(device)
    x, y = device.array(np.arange(64 * N, dtype=np.uint32)), device.zeros((8, N), np.uint32)
    with held(device.default_stream):
        for part in range(8):
            lo = part * 1024
            kernel(w=x[lo : lo + N], y=y[part], n=N, first=0, threads=N)
            device.default_stream.flush()
        gc.collect()
        with device.scheduler.lock:
            device.scheduler.drain()
        assert views() == 8
    assert (y.numpy() == np.arange(8)[:, None] * 1024 + np.arange(N)).all()
    device.synchronize()
    with device.scheduler.lock:
        device.scheduler.drain()
    assert views() == 2


@pytest.mark.usefixtures("few_kept")
def test_an_array_keeps_its_view(device: ps.Device) -> None:
    views, kernel = count_views(device), first_kernel(device)
    x, y = device.array(np.arange(64 * N, dtype=np.uint32)), device.zeros(N, np.uint32)
    parts = [x[1024 * part :][:N] for part in range(8)]
    for _ in range(2):
        for number, part in enumerate(parts):
            kernel(w=part, y=y, n=N, first=0, threads=N)
            assert y.numpy()[0] == 1024 * number
        assert views() == 8
    parts.clear()
    device.synchronize()
    with device.scheduler.lock:
        device.scheduler.drain()
        device.scheduler.drain()
    assert views() == 2


@pytest.mark.usefixtures("few_kept")
def test_a_graph_keeps_its_views(device: ps.Device) -> None:
    views, kernel = count_views(device), first_kernel(device)
    x = device.array(np.arange(64 * N, dtype=np.uint32))
    y = device.zeros((8, N), np.uint32)
    with device.record(y=y) as graph:
        for part in range(8):
            kernel(w=x[1024 * part :][:N], y=y[part], n=N, first=0, threads=N)
    graph.replay()
    for part in range(8):  # other views take the place of those that are kept
        kernel(w=x[1024 * part + 512 :][:N], y=y[part], n=N, first=0, threads=N)
    other = device.zeros((8, N), np.uint32)
    for _ in range(2):
        y.fill(0)
        graph.replay()
        assert (y.numpy()[:, 0] == np.arange(8) * 1024).all()
        graph.replay(y=other)
        assert (other.numpy()[:, 0] == np.arange(8) * 1024).all()
    assert views() >= 8
    graph.close()
    del graph
    device.synchronize()
    gc.collect()
    with device.scheduler.lock:
        device.scheduler.drain()
        device.scheduler.drain()
    assert views() == 2


@pytest.mark.usefixtures("few_kept")
def test_a_graph_keeps_the_views_of_other_arrays(device: ps.Device) -> None:
    """A replay with another array makes arrays of its own, which are gone when it is encoded."""
    kernel = first_kernel(device)
    x, y = device.array(np.arange(64 * N, dtype=np.uint32)), device.zeros(N, np.uint32)
    parts = [x[1024 * part :][:N] for part in range(3)]
    with device.record(w=parts[0]) as graph:
        kernel(w=parts[0], y=y, n=N, first=0, threads=N)
    for _ in range(2):
        for number, part in enumerate(parts):
            graph.replay(w=part)
            assert (y.numpy() == 1024 * number + np.arange(N)).all()
        for part in range(8):  # other views take the place of those that are kept
            kernel(w=x[1024 * part + 512 :][:N], y=y, n=N, first=0, threads=N)
        device.synchronize()
        with device.scheduler.lock:
            device.scheduler.drain()
            device.scheduler.drain()


def test_freed_memory_whose_handle_comes_again() -> None:
    made: list[Any] = []

    class Driver:
        def texel_view(self, *given: Any) -> Any:
            made.append(given)
            return SimpleNamespace(handle=len(made))

    views = texel_views.TexelViews(Driver(), lambda end: None)  # type: ignore[arg-type]
    one, other = SimpleNamespace(handle=7), SimpleNamespace(handle=7)
    assert views.view(one, 0, 64, "r32f") is views.view(one, 0, 64, "r32f")
    assert views.view(other, 0, 64, "r32f").handle == 2
    assert views.view(other, 0, 64, "r32ui").handle == 3
    assert [given[0] for given in made] == [one, other, other]


def test_a_graph_with_another_array(device: ps.Device) -> None:
    alignment: Any = device.info.limits["texel_alignment"]
    x = device.array(np.arange(8 * N, dtype=np.uint32))
    y, kernel = device.zeros(N, np.uint32), first_kernel(device)
    start = alignment // 4 + 2
    w, first = x[start : start + N].texels("r32ui")
    with device.record(w=w) as graph:
        kernel(w=w, y=y, n=N, first=first, threads=N)
    graph.replay()
    assert y.numpy()[0] == start
    like, _ = x[4 * start - 6 : 4 * start - 6 + N].texels("r32ui")
    graph.replay(w=like)
    assert y.numpy()[0] == 4 * start - 6
    if alignment > 4:
        with pytest.raises(ps.InvalidValue, match=r"a texel buffer .* at a multiple of"):
            graph.replay(w=x[start + 1 : start + 1 + N])
    graph.replay()
    assert y.numpy()[0] == start


def test_freed_memory_takes_its_views_with_it(device: ps.Device) -> None:
    views, kernel = count_views(device), first_kernel(device)
    y = device.zeros(N, np.uint32)
    for round_ in range(3):
        x = device.full(8 << 20, round_ + 1, np.uint32)  # in an allocation of its own
        kernel(w=x[: 4 * N], y=y, n=N, first=0, threads=N)
        assert set(y.tolist()) == {round_ + 1}
        x.close()
        del x
        device.synchronize()
        assert device.trim()
        if device.info.driver == "vulkan":
            assert views() == 0


@pytest.mark.parametrize("order", ["device first", "array first", "graph last"])
def test_closing_in_any_order(driver: str, order: str) -> None:
    with _silence():
        dev = ps.Device(driver, validate=HAS_VALIDATION)
        x, y, kernel = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32), first_kernel(dev)
        with dev.record() as graph:
            kernel(w=x[:64], y=y, n=64, first=0, threads=N)
        graph.replay()
        kernel(w=x, y=y, n=N, first=0, threads=N)
        if order == "array first":
            x.close()
            kernel.close()
            graph.close()
        elif order == "graph last":
            kernel.close()
        dev.close()
        del x, y, kernel
        gc.collect()
        del graph
        gc.collect()


def test_a_view_that_cannot_be_made_changes_nothing() -> None:
    for fault in faults(100):
        fault.CALLS = (*fault.CALLS, "texel_view")  # type: ignore[misc]
        with simulated(5, fault=fault) as dev:
            x, y = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
            add, first = add_kernel(dev), first_kernel(dev)
            dev.synchronize()
            fault.armed = True
            add_one = partial(add, w=x, n=N, add=1, threads=N)
            look = partial(first, w=x, y=y, n=N, first=0, threads=N)
            calls: list[Callable[[], Any]] = [add_one, look, add_one, dev.synchronize]
            for call in calls:
                for _ in range(3):
                    try:
                        call()
                        break
                    except ps.OutOfMemory:
                        pass
            dev.synchronize()
            assert (x.tolist(), y.tolist()) == ([2] * N, [1] * N)


@pytest.mark.parametrize("kept", [0, 3])
def test_random_programs_that_keep_few_views(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texel_views, "_KEPT", kept)
    with Lab("sim") as lab:
        report = check(lab, 40, 1000 + kept, ("auto", "rename"))
    assert report.failure is None, report
