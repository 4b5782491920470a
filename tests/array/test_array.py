"""Arrays behave as NumPy's do: every dtype, shape, slice, fill, copy and view.

NumPy itself is the reference: what is done to an array is done to a NumPy array too.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import re
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penstock as ps
from tests.conftest import OpenDevice
from tests.gate import held
from tests.kernels import saxpy, slow_add, slow_copy

Host = np.ndarray[Any, Any]
N = 1024
MIB = 1 << 20
PAIR = np.dtype([("a", "i4"), ("b", "f4"), ("c", "u1", (4,))])
ODD = np.dtype([("a", "u1"), ("b", "u1"), ("c", "u1")])
DTYPES = [
    *map(np.dtype, "?bBhHiIlLqQefdgFDG"),
    *map(np.dtype, ("M8[s]", "m8[ms]")),
    *map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)),
    PAIR,
    ODD,
]
both_modes = pytest.mark.parametrize("mode", ["auto", "unmapped"])


def sample(dtype: Any, n: int = 24) -> Host:
    """Elements with all their bytes different from each other where the dtype allows it."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.arange(n) % 3 == 0
    return (np.arange(n * kind.itemsize) % 113).astype(np.uint8).view(kind)


def numbers(n: int = N) -> Host:
    return np.arange(n, dtype=np.uint32)


def same(array: Any, expected: Host) -> bool:
    """Whether shape, dtype and every bit are the same."""
    got = np.asarray(array)
    return (got.shape, got.dtype, got.tobytes()) == (
        expected.shape, expected.dtype, expected.tobytes(),
    )  # fmt: skip


def keep_busy(x: ps.Array) -> None:
    """Put work that writes `x`, without changing it, behind a slow kernel."""
    slow_add(x.device.zeros(N, np.uint32), 1, spin=8_000)
    x.copy_from(x.copy())


# What there is: dtypes, shapes, makers.


@both_modes
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_makes_the_round_trip(
    dtype: np.dtype[Any], mode: str, shared_device: OpenDevice
) -> None:
    source = sample(dtype)
    x = shared_device(transfers=mode).array(source)
    assert (x.dtype, x.shape, x.size, x.nbytes) == (dtype, (24,), 24, source.nbytes)
    assert same(x.numpy(), source)
    assert same(x, source)
    assert same(x.read().result(), source)
    assert same(x[3:20:2], source[3:20:2])
    assert repr(x[5].item()) == repr(source[5].item())
    assert repr(x.tolist()) == repr(source.tolist())


def test_makers(dev: ps.Device) -> None:
    x = dev.array([[1, 2, 3], [4, 5, 6]], np.int16)
    assert same(x, np.array([[1, 2, 3], [4, 5, 6]], np.int16))
    assert same(dev.zeros((2, 3)), np.zeros((2, 3), np.float32))
    assert same(dev.ones(5, np.complex64), np.ones(5, np.complex64))
    assert same(dev.ones(5, None), np.ones(5, None))
    assert same(dev.ones(3, "bfloat16"), np.ones(3, ml_dtypes.bfloat16))
    assert same(dev.zeros(3, PAIR), np.zeros(3, PAIR))
    assert same(
        dev.zeros(3, [("a", "S3"), ("b", "M8[D]")]), np.zeros(3, [("a", "S3"), ("b", "M8[D]")])
    )
    assert same(dev.full((2, 2), 7, np.uint8), np.full((2, 2), 7, np.uint8))
    assert same(dev.full(3, True), np.full(3, True))
    assert same(dev.full(3, np.datetime64("2024-02-29")), np.full(3, np.datetime64("2024-02-29")))
    assert same(dev.full((), 2.5), np.full((), 2.5, np.float32))
    assert same(dev.array(3.5, "float16"), np.array(3.5, np.float16))
    for like in (x, x.numpy()):
        empty = dev.empty_like(like)
        assert (empty.shape, empty.dtype) == ((2, 3), np.int16)
        assert same(dev.zeros_like(like), np.zeros((2, 3), np.int16))
        assert same(dev.ones_like(like), np.ones((2, 3), np.int16))
        assert same(dev.full_like(like, -1), np.full((2, 3), -1, np.int16))
    assert dev.asarray(x) is x
    assert same(dev.asarray(x.numpy()), x.numpy())
    assert same(dev.array(x), x.numpy())


@both_modes
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 0)])
def test_arrays_of_no_elements(
    shape: tuple[int, ...], mode: str, shared_device: OpenDevice
) -> None:
    dev = shared_device(transfers=mode)
    source = np.zeros(shape, np.float32)
    x = dev.array(source)
    x.fill(3)
    x.write(source).result()
    x.copy_from(dev.zeros(shape)).result()
    x[...] = 1
    x[...] = source
    out = np.empty(shape, np.float32)
    assert x.read(out=out).result() is out
    assert (x.size, x.nbytes, len(x), x.tolist()) == (0, 0, shape[0], source.tolist())
    for array in (x, x.read().result(), x.copy(), x[..., ::-1], x.reshape(*shape[::-1]).ravel()):
        assert np.asarray(array).size == 0
    assert x.ravel().shape == x.reshape(-1).shape == (0,)
    assert x.reinterpret(np.uint8).size == 0
    assert dev.adopt(source).shape == dev.adopt(dev.host_empty(shape)).shape == shape


def test_names_and_descriptions(dev: ps.Device) -> None:
    x = dev.zeros((2, 3), np.uint8, name="pixels")
    assert x.name == x[1].name == x.reshape(6).name == "pixels"
    assert dev.zeros(1).name != dev.zeros(1).name
    assert repr(x) == f"Array([[0, 0, 0],\n       [0, 0, 0]], dtype=uint8, device={dev.name!r})"
    assert "closed" not in repr(x)
    assert (len(x), x.ndim, x.itemsize, x.strides, x.device) == (2, 2, 1, (3, 1), dev)
    assert [row.tolist() for row in x] == [[0, 0, 0], [0, 0, 0]]
    with x:
        assert not x.closed
    assert x.closed
    assert repr(x) == f"<Array 'pixels' (2, 3) uint8 on {dev.name}, closed>"


def test_repr_reads_the_ends_of_a_large_array_only(dev: ps.Device) -> None:
    content = np.arange(300 * 200, dtype=np.float32).reshape(300, 200)
    x = dev.array(content)
    with ps.trace() as t:
        shown = repr(x)
    with np.printoptions(threshold=0):
        assert shown.startswith(
            f"Array({np.array2string(content, separator=', ', prefix='Array(')}"
        )
    assert sum(event.nbytes for event in t.events if event.kind == "copy") == 4 * 36


def test_values_at_once(dev: ps.Device) -> None:
    x = dev.array([1.5, 2.5, -3.0], np.float32)
    assert (x[0].item(), float(x[1]), int(x[2])) == (1.5, 2.5, -3)
    assert same(np.asarray(x, dtype=np.int64), np.array([1, 2, -3]))
    assert np.array(x, copy=True).flags.owndata or np.array(x).flags.writeable
    assert np.add(x, 1).tolist() == [2.5, 3.5, -2.0]
    assert (np.float32(2) * x.numpy()).tolist() == [3, 5, -6]


# Slices and other sights of the same bytes.


@pytest.mark.parametrize(
    "index",
    [
        np.s_[:], np.s_[2], np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[:, 1:], np.s_[:, :, ::2],
        np.s_[1, :, 2], np.s_[None], np.s_[:, None], np.s_[..., None], np.s_[1:2], np.s_[0:1:2],
        np.s_[:, 2:3, :], np.s_[1, 1, 1], np.s_[::4, 1], np.s_[3:1], np.s_[::4, ::3, ::2],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_contiguous_to_numpy_is_contiguous(index: Any, dev: ps.Device) -> None:
    mirror = numbers(4 * 3 * 4).reshape(4, 3, 4)
    x = dev.array(mirror)[index]
    part = np.asarray(mirror[index])
    assert same(x, part)
    assert x.contiguous == part.flags.c_contiguous
    if x.contiguous:
        assert same(x.reshape(-1), part.ravel())
        assert same(x.ravel()[::-1], part.ravel()[::-1])
        assert same(x.reinterpret(np.uint32), part)


def test_reshapes_share_the_bytes(dev: ps.Device) -> None:
    x = dev.array(numbers(24))
    for shape in [(4, 6), (2, 3, -1), (-1, 1, 8), (24,), (1, 24)]:
        assert same(x.reshape(shape), numbers(24).reshape(shape))
        assert same(x.reshape(*shape), numbers(24).reshape(shape))
    x.reshape(4, 6)[1, 2:4] = 99
    assert x[8:10].tolist() == [99, 99]
    assert same(x[3].reshape(()), np.array(3, np.uint32))


def test_shapes_may_be_of_results_and_arrays(dev: ps.Device) -> None:
    x = dev.array(numbers(12))
    four = dev.full(1, 4, np.int32)
    for rows in (four[0], four.sum(), np.int64(4)):
        assert same(x.reshape(rows, 3), numbers(12).reshape(4, 3))
        assert same(x.reshape((rows, -1)), numbers(12).reshape(4, 3))
        assert same(x[:4].reshape(rows), numbers(4))
        assert x[:3].broadcast_to((rows, 3)).shape == (4, 3)
        bytes_of = numbers(12).view(np.uint8).reshape(12, 4)
        assert same(x.pitched(rows, 2, rows, rows), bytes_of[1:5, :2].copy())
    with pytest.raises(ps.ArgumentError, match=r"int.*2\.5"):
        x.reshape(2.5, -1)
    with pytest.raises(ps.ArgumentError, match=r"int.*2\.5"):
        x.pitched(1, 2, 2.5)  # type: ignore[arg-type]


def test_reinterpreting_shows_the_same_bytes(dev: ps.Device) -> None:
    source = sample(np.uint32).reshape(4, 6)
    x = dev.array(source)
    for dtype in (np.uint8, np.float16, np.int32, np.float64, np.complex64, PAIR):
        assert same(x.reinterpret(dtype), source.view(dtype))
    x.reinterpret(np.uint8)[0, :4] = [1, 0, 0, 0]
    assert x[0, 0].item() == 1
    assert same(x[1, 2].reinterpret(np.float32), source[1, 2:3].view(np.float32).reshape(()))


@both_modes
@pytest.mark.parametrize("busy", [False, True])
def test_pitched_rows(busy: bool, mode: str, shared_device: OpenDevice) -> None:
    mirror = sample(np.float32, 64)
    x = shared_device(transfers=mode).array(mirror)
    raw = mirror.view(np.uint8)
    if busy:
        keep_busy(x)
    rows = x.pitched(rows=5, width=13, pitch=40, offset=3)
    expected = np.lib.stride_tricks.as_strided(raw[3:], (5, 13), (40, 1))
    assert same(rows.read().result(), expected)
    source = np.zeros((5, 64), np.uint8)[:, 7:20] + np.arange(13, dtype=np.uint8)
    rows.write(source)
    expected[...] = source
    assert same(x, mirror)
    out = np.zeros((5, 30), np.uint8)
    rows.read(out=out[:, 2:15]).result()
    assert same(out[:, 2:15], expected)
    assert not out[:, :2].any()
    assert not out[:, 15:].any()


def test_a_thread_that_waits_for_a_read_makes_its_copy(
    shared_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = shared_device(transfers="unmapped")
    x, out = dev.zeros(N, np.uint32), np.zeros(N, np.uint32)
    with dev.stream() as stream, contextlib.ExitStack() as after:
        after.callback(stream.copier.hand_over)
        monkeypatch.setattr(stream.copier, "hand_over", lambda: None)  # its thread gets no copies
        for count in range(1, 4):
            slow_add(x, 1, stream)
            read = x.read(stream, out=out)
            with held(stream), pytest.raises(ps.Timeout):
                x.read(stream, out=np.zeros(N, np.uint32)).result(timeout=0.01)
            assert (read.result(timeout=60) == count).all()
        stream.synchronize(timeout=60)


def test_a_read_that_nothing_waits_for_is_made(shared_device: OpenDevice) -> None:
    dev = shared_device(transfers="unmapped")
    x, out = dev.full(N, 7, np.uint32), np.zeros(N, np.uint32)
    slow_add(x, 1)
    x.read(out=out)
    until = time.monotonic() + 60
    while not (out == 8).all():
        assert time.monotonic() < until
        time.sleep(0.001)


# Changes: whatever is assigned, to whatever slice, idle or busy.


class Change:
    """An assignment to a slice, done alike to an array and to its mirror."""

    def __init__(self, index: Any, kind: str, value: int, busy: bool) -> None:
        self.index, self.kind, self.value, self.busy = index, kind, value, busy

    def __repr__(self) -> str:
        return f"{self.kind} x[{self.index}], {self.value}{', busy' * self.busy}"

    def apply(self, x: ps.Array, mirror: Host) -> None:
        part, target = x[self.index], np.asarray(mirror[self.index])
        values = (np.arange(target.size) + self.value).astype(mirror.dtype).reshape(target.shape)
        if self.busy:
            keep_busy(x)
        match self.kind:
            case "scalar":
                x[self.index] = mirror[self.index] = self.value
            case "fill":
                part.fill(self.value)
                mirror[self.index] = self.value
            case "list":
                x[self.index] = values.tolist() if values.size else values
                mirror[self.index] = values
            case "broadcast":
                row = values[:1] if values.ndim else values
                x[self.index] = row
                mirror[self.index] = row
            case "strided source":
                part.write(np.repeat(values[..., None], 3, axis=-1)[..., 1])
                mirror[self.index] = values
            case "borrowed":
                part.write(values, borrow=True)
                mirror[self.index] = values
            case "other array":
                x[self.index] = x.device.array(values)
                mirror[self.index] = values
            case "itself reversed":
                backwards = np.s_[::-1] if target.ndim else np.s_[...]
                part.copy_from(part[backwards])
                mirror[self.index] = target[backwards].copy()


KINDS = (
    "scalar", "fill", "list", "broadcast", "strided source", "borrowed", "other array",
    "itself reversed",
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> tuple[Host, list[Change]]:
    shape = draw(hnp.array_shapes(max_dims=3, max_side=6))
    dtype = draw(st.sampled_from([np.uint32, np.uint8]))
    mirror = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    change = st.builds(
        Change,
        hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True),
        st.sampled_from(KINDS),
        st.integers(0, 99),
        st.booleans(),
    )
    return mirror, draw(st.lists(change, min_size=1, max_size=4))


@both_modes
def test_assignments_are_those_of_numpy(mode: str, shared_device: OpenDevice) -> None:
    dev = shared_device(transfers=mode)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def check(program: tuple[Host, list[Change]]) -> None:
        mirror, changes = program[0].copy(), program[1]
        x = dev.array(mirror)
        for change in changes:
            change.apply(x, mirror)
            read = x[change.index].read()
            assert same(read.result(), np.asarray(mirror[change.index]))
        assert same(x, mirror)

    check()


FILLS = [
    (np.bool_, True), (np.int8, -2), (np.uint16, 0xABCD), (np.float16, 1.5), (ODD, None),
    (np.uint32, 0xDEADBEEF), (np.float32, -0.0), (np.float32, np.nan), (np.uint64, 0xABCD),
    (np.int64, -1), (np.float64, 0.1), (np.complex64, 1 - 2j), (np.complex128, 3j), (PAIR, None),
    (ml_dtypes.bfloat16, 1.5), ("M8[s]", np.datetime64("2024-02-29")),
]  # fmt: skip


@both_modes
@pytest.mark.parametrize("state", ["idle", "busy", "large"])
@pytest.mark.parametrize(("dtype", "value"), FILLS, ids=str)
def test_fill(dtype: Any, value: Any, state: str, mode: str, shared_device: OpenDevice) -> None:
    mirror = sample(dtype, 300_000 // np.dtype(dtype).itemsize if state == "large" else 64)
    element = sample(dtype)[7] if value is None else value
    x = shared_device(transfers=mode).array(mirror)
    parts = [np.s_[:], np.s_[1:-1], np.s_[4:9], np.s_[2:3], np.s_[8:-8:4], np.s_[::-7]]
    for part in parts[:2] if state == "large" else parts:
        if state == "busy":
            keep_busy(x)
        x[part].fill(element)
        mirror[part] = np.array(element, dtype)
        assert same(x, mirror)
        x[1:-3].write(sample(dtype, x.size)[1:-3])
        mirror[1:-3] = sample(dtype, x.size)[1:-3]


ML_DTYPES = [
    np.dtype(each)
    for each in vars(ml_dtypes).values()
    if isinstance(each, type) and issubclass(each, np.generic)
]
NUMBERS = st.one_of(
    st.integers(-(2**66), 2**66), st.integers(-20, 20), st.floats(), st.floats(-600, 600),
    st.integers(2**63, 2**64 - 1), st.booleans(), st.complex_numbers(),
    st.sampled_from([1e-40, 2**63, 2**100, -(2**63), 2**24 + 1, 2**53 + 1, 9, 100.0, 65519.0, 7.0]),
    st.integers(-130, 260).map(np.int64), st.floats(width=32).map(np.float32),
)  # fmt: skip


@functools.cache
def floats_of(real: np.dtype[Any]) -> tuple[list[Fraction], set[str]]:
    """What a small float dtype has: finite numbers, between the next two that it lacks; others."""
    with np.errstate(invalid="ignore"):
        every = np.arange(256**real.itemsize).astype(f"u{real.itemsize}").view(real).astype("f8")
    other = {str(each) for each in every[~np.isfinite(every)].tolist()}
    has = [Fraction(each) for each in sorted(set(every[np.isfinite(every)].tolist()))]
    return [2 * has[0] - has[1], *has, 2 * has[-1] - has[-2]], other


def kept(value: Any, kind: np.dtype[Any]) -> Any:
    """What a dtype holds of a number, by Python's arithmetic: the nearest; None if nothing is."""
    whole = isinstance(value, int | np.integer)
    if kind.kind == "b" or "int" in kind.name:
        limits: Any = ml_dtypes.iinfo(np.uint8 if kind.kind == "b" else kind)  # type: ignore[no-untyped-call]
        most = 1 if kind.kind == "b" else limits.max
        return value if whole and limits.min <= value <= most else None
    if isinstance(value, complex):
        parts = [kept(part, kind) for part in (value.real, value.imag)]
        return parts if "complex" in kind.name and None not in parts else None
    real = ml_dtypes.finfo(kind).dtype
    if real.itemsize > 2:
        with np.errstate(over="ignore"):
            nearest = np.array(value).astype(real)[()]
        if not np.isfinite(nearest):
            return None if whole or np.isfinite(value) else nearest
        return None if whole and exact(nearest) != exact(value) else nearest
    numbers, other = floats_of(real)
    if not whole and not np.isfinite(value):
        return float(value) if str(float(value)) in other else None
    if not numbers[0] < exact(value) < numbers[-1]:
        return None
    place = bisect.bisect_left(numbers, exact(value))
    below, above = (abs(each - exact(value)) for each in numbers[place - 1 : place + 1])
    beyond = (place == 1 and below <= above) or (place == len(numbers) - 1 and above <= below)
    nearest = numbers[place - 1 if below < above else place]
    return None if beyond or (whole and nearest != exact(value)) else nearest


def is_as_near(now: Any, nearest: Any, value: Any) -> bool:
    """Whether a number is as near to a value as can be, but for what rounding twice may add."""
    if isinstance(nearest, list):
        parts = zip((now.real, now.imag), nearest, (value.real, value.imag), strict=True)
        return all(is_as_near(*part) for part in parts)
    if not np.isfinite(float(value)):
        return str(float(now.real)) == str(float(value))
    return abs(exact(now.real) - exact(value)) <= abs(exact(nearest) - exact(value)) * FUZZY


FUZZY = Fraction(1025, 1024)


def exact(number: Any) -> Fraction:
    whole = isinstance(number, int | np.integer | np.bool_)
    return Fraction(int(number)) if whole else Fraction(*number.as_integer_ratio())


@settings(deadline=None, max_examples=400)
@given(
    st.lists(NUMBERS, min_size=1, max_size=3),
    st.sampled_from([*map(np.dtype, "?bBhHiIlLqQefdgFDG"), *ML_DTYPES]),
)
def test_no_value_is_changed_but_floats_are_rounded(values: list[Any], dtype: Any) -> None:
    """Whatever way it comes, a number is in the array as it is, or refused if it cannot be."""
    with ps.Device(driver="sim") as dev:
        for put, count in (
            (lambda: dev.array(values, dtype), len(values)),
            (lambda: put_in(dev.empty(len(values), dtype), lambda x: x.write(values)), len(values)),
            (
                lambda: put_in(dev.empty(len(values), dtype), lambda x: x.__setitem__(..., values)),
                len(values),
            ),
            (lambda: put_in(dev.empty(1, dtype), lambda x: x.fill(values[0])), 1),
            (lambda: dev.array(np.asarray(values[0]), dtype), 1),
        ):
            expected = [kept(value, dtype) for value in values[:count]]
            if None in expected:
                with pytest.raises((ps.InvalidValue, ps.DtypeMismatch), match="astype"):
                    put()
                continue
            got = put().numpy().reshape(-1)
            if dtype.isbuiltin == 2:  # 2: not NumPy's
                got = got.astype(np.complex128 if "complex" in dtype.name else np.float64)
            for now, nearest, value in zip(got, expected, values, strict=False):
                assert is_as_near(now, nearest, value)


UNITS = {  # in nanoseconds
    "W": 604_800 * 10**9, "D": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9,
    "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1,
}  # fmt: skip
TIMES = st.tuples(
    st.one_of(st.integers(-(2**63) + 1, 2**63 - 1), st.integers(-(10**6), 10**6)),
    st.sampled_from(list(UNITS)),
)


@settings(deadline=None)
@given(
    st.lists(TIMES, min_size=1, max_size=3),
    st.sampled_from(list(UNITS)),
    st.sampled_from([np.datetime64, np.timedelta64]),
)
def test_dates_are_exact_or_refused(
    times: list[tuple[int, str]], unit: str, kind: Callable[[int, str], Any]
) -> None:
    dtype = np.array(kind(0, unit)).dtype
    nanoseconds = [count * UNITS[given_] for count, given_ in times]
    exact = [value // UNITS[unit] for value in nanoseconds if value % UNITS[unit] == 0]
    possible = len(exact) == len(times) and all(-(2**63) < count < 2**63 for count in exact)
    with ps.Device(driver="sim") as dev:
        makers = [lambda: dev.array([kind(*time) for time in times], dtype)]
        if len(times) == 1:
            makers.append(lambda: dev.array(np.array([kind(*times[0])]), dtype))
            makers.append(lambda: dev.full(1, kind(*times[0]), dtype))
        for make in makers:
            if possible:
                assert make().numpy().view(np.int64).tolist() == exact
            else:
                with pytest.raises(ps.InvalidValue, match="astype"):
                    make()


def put_in(x: ps.Array, put: Callable[[ps.Array], object]) -> ps.Array:
    put(x)
    return x


FIRST_DAYS = [date(2020, 1, 1), date(2020, 1, 2)]


def test_numbers_that_fit_are_taken(dev: ps.Device) -> None:
    for dtype, values, expected in (
        ("u1", [np.int64(3), 255, True], [3, 255, 1]),
        ("u8", [1, 2**63], [1, 2**63]),
        ("f4", [0.1, np.float64(0.1), 2**100], np.array([0.1, 0.1, 2.0**100], "f4").tolist()),
        ("f4", [np.inf, -np.inf, 1e-40], np.array([np.inf, -np.inf, 1e-40], "f4").tolist()),
        ("?", [0, 1, True], [False, True, True]),
        ("f4", range(3), [0, 1, 2]),
        ("f4", [2**24, 0.5, dev.ones(3).sum()], [2**24, 0.5, 3]),
        ("M8[m]", ["2020-01-01T12:30", "NaT"], [datetime(2020, 1, 1, 12, 30), None]),
        ("M8[D]", [date(2020, 1, 1), np.datetime64("2020-01-02T00")], FIRST_DAYS),
        ("m8[ms]", [timedelta(seconds=1.5), 3], [timedelta(seconds=1.5), timedelta(seconds=0.003)]),
    ):
        x = dev.array(values, dtype)
        y = dev.empty(x.shape, dtype)
        y[:] = values
        assert x.tolist() == y.tolist() == expected
    pair = [("a", "u1"), ("b", "f4", (2,))]
    records: Any = [(3, (0.5, 1)), (4, (2, 3))]
    assert same(dev.array(records, pair), np.array(records, pair))
    x = dev.zeros(2)
    x.fill(np.float64(1e-40))
    assert same(x, np.full(2, 1e-40, np.float32))


# Copies, from and to whatever.


@both_modes
@pytest.mark.parametrize(
    "strided",
    [
        lambda a: a[::2, ::2],
        lambda a: a[::-1, 32:],
        lambda a: a.T[:32],
        lambda a: np.asfortranarray(a[:32]),
        lambda a: np.broadcast_to(a[0], (32, 64)),
    ],
    ids=["steps", "reversed", "transposed", "Fortran", "broadcast"],
)
def test_sources_and_results_need_not_be_contiguous(
    strided: Callable[[Host], Host], mode: str, shared_device: OpenDevice
) -> None:
    source = strided(numbers(64 * 64).reshape(64, 64))
    dev = shared_device(transfers=mode)
    x = dev.array(source)
    assert same(x, source)
    keep_busy(x)
    y = dev.zeros(source.shape, np.uint32)
    y.write(source, borrow=True)
    assert same(y, source)
    out = strided(np.zeros((64, 64), np.uint32))
    if out.flags.writeable:
        assert x.read(out=out).result() is out
        assert same(out, source)


def test_copies_are_arrays_of_their_own(dev: ps.Device) -> None:
    x = dev.array(numbers(64).reshape(8, 8))
    y = x[::2, 1:5].copy(name="part")
    assert (y.name, y.contiguous, y.shape) == ("part", True, (4, 4))
    x.fill(0)
    assert same(y, numbers(64).reshape(8, 8)[::2, 1:5])
    x[::-2, 4:].copy_from(y)
    expected = np.zeros((8, 8), np.uint32)
    expected[::-2, 4:] = y.numpy()
    assert same(x, expected)


def test_copies_between_devices(shared_device: OpenDevice) -> None:
    here, there = shared_device(), shared_device(transfers="unmapped")
    x, y = here.array(numbers()), there.zeros(N, np.uint32)
    slow_add(x, 1)
    y[1:].copy_from(x[:-1])
    x.fill(0)
    y[0] = 7
    assert y[:3].tolist() == [7, 1, 2]
    x[5:] = y[5:]
    assert x[4:7].tolist() == [0, 5, 6]
    assert same(here.asarray(y), y.numpy())


@both_modes
@pytest.mark.parametrize("mib", [20, 70])
def test_large_arrays(mib: int, mode: str, shared_device: OpenDevice) -> None:
    source = numbers(mib * MIB // 4).reshape(-1, MIB // 4)
    x = shared_device(transfers=mode).array(source)
    assert np.array_equal(x.read().result(), source)
    keep_busy(x)
    x[1:, :1000].write(source[:-1, 24:1024])
    read = x.read()
    x.write(source[::-1], borrow=True)
    expected = source.copy()
    expected[1:, :1000] = source[:-1, 24:1024]
    assert np.array_equal(read.result(), expected)
    assert np.array_equal(x.numpy(), source[::-1])


# Views.


def by_kernel(x: ps.Array, mirror: Host) -> None:
    slow_add(x, 5)
    mirror += 5


def by_kernel_in_part(x: ps.Array, mirror: Host) -> None:
    slow_add(x[64:128], 5)
    mirror[64:128] += 5


def by_kernel_that_writes_only_some(x: ps.Array, mirror: Host) -> None:
    slow_copy(x.device.full(100, 6, np.uint32), x)
    mirror[:100] = 6


def by_write(x: ps.Array, mirror: Host) -> None:
    x.write(numbers()[::-1])
    mirror[:] = numbers()[::-1]


def by_borrowed_write(x: ps.Array, mirror: Host) -> None:
    x.write(numbers()[::-1].copy(), borrow=True).result()
    mirror[:] = numbers()[::-1]


def by_write_in_part(x: ps.Array, mirror: Host) -> None:
    x[5:15] = mirror[5:15] = np.full(10, 9, np.uint32)


def by_fill(x: ps.Array, mirror: Host) -> None:
    x.fill(3)
    mirror[:] = 3


def by_fill_in_part(x: ps.Array, mirror: Host) -> None:
    x[5:15] = mirror[5:15] = 9


def by_copy(x: ps.Array, mirror: Host) -> None:
    x.copy_from(x.device.full(N, 8, np.uint32))
    mirror[:] = 8


def by_copy_of_its_own_part(x: ps.Array, mirror: Host) -> None:
    x[:512].copy_from(x[512:])
    mirror[:512] = mirror[512:]


def by_copy_of_itself(x: ps.Array, mirror: Host) -> None:
    x.copy_from(x[::-1])
    mirror[:] = mirror[::-1].copy()


def by_write_with_gaps(x: ps.Array, mirror: Host) -> None:
    source = np.full((8, 2, 16), 6, np.uint32)
    x.reshape(8, 8, 16)[:, ::7].write(source)  # from the first byte to the last
    mirror.reshape(8, 8, 16)[:, ::7] = source


def by_copy_with_gaps(x: ps.Array, mirror: Host) -> None:
    x.reshape(8, 8, 16)[:, ::7].copy_from(x.device.full((8, 2, 16), 6, np.uint32))
    mirror.reshape(8, 8, 16)[:, ::7] = 6


CHANGES = [
    by_kernel, by_kernel_in_part, by_kernel_that_writes_only_some, by_write, by_borrowed_write,
    by_write_in_part, by_fill, by_fill_in_part, by_copy, by_copy_of_its_own_part,
    by_copy_of_itself, by_write_with_gaps, by_copy_with_gaps,
]  # fmt: skip
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@each_change
@pytest.mark.parametrize("index", [np.s_[:], np.s_[8:70], np.s_[::2]], ids=str)
def test_a_held_view_does_not_change(
    change: Callable[[ps.Array, Host], None], index: Any, dev: ps.Device
) -> None:
    x, mirror = dev.array(numbers()), numbers()
    view = x[index].view("r")
    assert not view.flags.writeable
    change(x, mirror)
    dev.synchronize()
    assert same(view, numbers()[index])
    assert same(x, mirror)
    del view
    change(x, mirror)
    assert same(x, mirror)


@each_change
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_what_a_view_cannot_be_moved_out_of_the_way_of_is_refused(
    mode: Any, change: Callable[[ps.Array, Host], None], dev: ps.Device
) -> None:
    x, mirror = dev.adopt(dev.host_empty(N, np.uint32)), numbers()
    x.write(mirror)
    view = x[10:500].view(mode)
    part = view[60:62][::-1]
    del view
    with pytest.raises(ps.ViewHeld, match="view"):
        change(x, mirror.copy())
    assert same(x, mirror)
    del part
    change(x, mirror)
    assert same(x, mirror)


@each_change
def test_a_writable_view_keeps_the_device_out(
    change: Callable[[ps.Array, Host], None], dev: ps.Device
) -> None:
    x, mirror = dev.array(numbers()), numbers()
    view = x.view("rw")
    for use in (
        lambda: change(x, mirror.copy()),
        lambda: slow_copy(x, dev.empty_like(x)),
        lambda: x[1:3].view("w"),
    ):
        with pytest.raises(ps.ViewHeld, match="drop"):
            use()
    view += 1
    mirror += 1
    assert same(x, mirror)
    part = view[1:3]
    del view
    with pytest.raises(ps.ViewHeld):
        change(x, mirror.copy())
    del part
    change(x, mirror)
    assert same(x, mirror)


@pytest.mark.parametrize("mode", ["r", "w", "rw"])
def test_a_view_of_no_bytes_holds_nothing(mode: Any, any_device: ps.Device) -> None:
    x = any_device.adopt(any_device.host_empty(N, np.uint32), name="x")
    x.fill(1)
    with any_device.record() as graph:
        slow_add(x, 1, spin=0)
    graph.replay()
    views = [part.view(mode) for part in (x[:0], x[8:8], x[N:], x.reshape(32, 32)[3:3])]
    assert [view.shape for view in views] == [(0,), (0,), (0,), (0, 32)]
    assert {view.flags.writeable for view in views} == {mode != "r"}
    whole = x.view("rw")  # no other view is in the way of it
    assert x[8:8].view(mode).size == 0  # nor it of them
    del whole
    graph.replay()
    slow_add(x, 1, spin=0)
    x[0].fill(9)
    x.seal()
    assert x.numpy()[:2].tolist() == [9, 4]
    graph.close()
    x.close()


def test_views_come_after_the_work_they_depend_on(dev: ps.Device) -> None:
    x, y = dev.array(numbers()), dev.empty(N, np.uint32)
    slow_add(x, 1)
    assert same(x.view("r"), numbers() + 1)
    slow_copy(x, y)
    x.view("w")[:] = 0
    assert same(y, numbers() + 1)
    slow_add(x, 3)
    grid = x.reshape(32, 32)[4:8, ::2]
    view = grid.view("rw")
    view *= np.arange(16, dtype=np.uint32)
    del view
    expected = np.full((32, 32), 3, np.uint32)
    expected[4:8, ::2] = 3 * np.arange(16)
    slow_add(x, 1)
    assert same(x.reshape(32, 32), expected + 1)


def test_a_view_outlives_its_array(open_device: OpenDevice) -> None:
    dev = open_device()
    view = dev.array(numbers()).view("r")
    closed = dev.array(numbers(), name="closed")
    other = closed.view("rw")
    closed.close()
    for _ in range(4):
        dev.zeros(N, np.uint32)
    dev.close()
    assert same(view, numbers())
    assert same(other, numbers())


def test_memory_that_is_not_mapped_has_no_views(shared_device: OpenDevice) -> None:
    with pytest.raises(ps.Unsupported, match=r"not mapped.*numpy"):
        shared_device(transfers="unmapped").zeros(3).view()


# What NumPy's users try first.


def test_arrays_behave_as_operands_and_in_conditions(dev: ps.Device) -> None:
    x = dev.array(np.arange(4, dtype=np.float32))
    assert (np.float32(2) * np.ones(4, np.float32) * x.numpy() == [0, 2, 4, 6]).all()
    with pytest.raises(ps.ArgumentError, match=r"not ndarray; .*dev\.asarray"):
        np.ones(4, np.float32) * x
    assert bool(x[1])
    assert not x[0]
    with pytest.raises(ps.ShapeMismatch, match="ambiguous"):
        bool(x)
    assert [float(part) for part in x] == [0, 1, 2, 3]
    with pytest.raises(TypeError):
        iter(x[0])
    assert complex(x[2]) == 2
    assert [10, 20][dev.array(np.int32(1))] == 20
    assert x.item(3) == 3


def test_arrays_are_kept_by_identity(dev: ps.Device) -> None:
    """They compare their elements, and are keys all the same."""
    x, y = dev.ones(2), dev.ones(2)
    assert len({x, y, x}) == 2
    assert {x: 1, y: 2}[x] == 1
    assert x in [x]
    with pytest.raises(ps.ArgumentError, match="not ndarray"):
        np.ones(2, np.float32) == x  # noqa: B015


def test_arrays_broadcast_and_transpose(dev: ps.Device) -> None:
    x, row = dev.zeros((3, 4)), dev.array(np.arange(4, dtype=np.float32))
    x[...] = row
    x[1] = row[3]
    x[2, :2] = row[1:2]
    expected = np.array([[0, 1, 2, 3], [3, 3, 3, 3], [1, 1, 2, 3]], np.float32)
    assert (x.numpy() == expected).all()
    assert (x.T.numpy() == expected.T).all()
    with pytest.raises(ps.ShapeMismatch, match="broadcast"):
        x[0] = row[:3]


WRITES: dict[str, Callable[[ps.Array], Any]] = {
    "write()": lambda x: x.write(np.zeros(x.shape, np.float32)),
    "fill()": lambda x: x.fill(1),
    "copy_from()": lambda x: x.copy_from(x.device.zeros(x.shape)),
    "view('w')": lambda x: x.view("w"),
    "view('rw')": lambda x: x.view("rw"),
    "'y'": lambda x: saxpy(x.device)(
        x=x.copy(), y=x.ravel() if x.contiguous else x[0], a=1, n=1, threads=1
    ),
}


@pytest.mark.parametrize("way", WRITES)
def test_what_is_broadcast_is_not_written(way: str, dev: ps.Device) -> None:
    x = dev.array(np.arange(4, dtype=np.float32), name="x")
    repeated = x.broadcast_to((3, 4))
    for part in (repeated, repeated[1], repeated.T, x.broadcast_to(4), repeated[2].reshape(2, 2)):
        words = rf"{re.escape(way)}.*'x' through broadcast_to.*copy\(\)"
        with pytest.raises(ps.ReadOnly, match=words):
            WRITES[way](part)
    with pytest.raises(ps.ReadOnly):
        repeated[0] = 5
    assert (repeated.numpy() == np.broadcast_to(np.arange(4), (3, 4))).all()
    WRITES[way](repeated.copy())
    assert (x.numpy() == np.arange(4)).all()
    x.fill(7)
    assert (repeated.numpy() == 7).all()


def test_memory_that_work_in_flight_uses_is_no_source_or_target(dev: ps.Device) -> None:
    mine = dev.host_empty(N, np.uint32)
    mine[:] = 1
    x, y, z = dev.adopt(mine), dev.zeros(N, np.uint32), dev.full(N, 9, np.uint32)
    with held(dev.default_stream):
        slow_copy(x, y, spin=0)
        with pytest.raises(ps.InvalidValue, match=r"work in flight.*copy_from"):
            z.read(out=mine)
        slow_add(x, 1, spin=0)
        with pytest.raises(ps.InvalidValue, match=r"work in flight.*copy_from"):
            z.write(mine)
        z.copy_from(x)
    assert (z.numpy() == 2).all()
    assert (y.numpy() == 1).all()
    z.write(mine)
    assert (z.read(out=mine).result() == 2).all()
