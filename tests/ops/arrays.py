"""Arrays of a device beside NumPy's, for tests that compare both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import penstock as ps
from penstock.ops.moves import view
from tests.gate import held_until_waited

DTYPES = (
    "bool", "int8", "uint8", "int16", "float16", "int32", "uint32", "float32", "int64", "uint64",
    "float64", "complex64", "complex128",
)  # fmt: skip


def values(dtype: Any, shape: Any, seed: int = 0, most: int | None = None) -> Any:
    """Numbers of the whole range of a dtype, or below `most`; floats with all that is special."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if most is not None:
        made = rng.integers(0, most, shape).astype(kind)
    elif kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    else:
        made = rng.standard_normal(shape).astype(kind)
    if kind.kind == "c":
        made = made + 1j * rng.integers(0, 3, shape).astype(kind)
    if kind.kind in "fc":
        for step, special in ((5, -0.0), (7, 0.0), (11, np.nan), (13, np.inf), (17, -np.inf)):
            made.reshape(-1)[step::step] = special
    return made.astype(kind)


@st.composite
def layouts(draw: st.DrawFn, most_axes: int = 4) -> tuple[Any, ...]:
    """A shape in memory, and what makes a view of it: an order of the axes, and slices."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=most_axes)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    slices = tuple(
        draw(st.sampled_from([slice(None), slice(None, None, -1), slice(1, None),
                              slice(None, None, 2)])) for _ in shape
    )  # fmt: skip
    return shape, order, slices


def laid_out(x: ps.Array, host: Any, layout: tuple[Any, ...]) -> tuple[ps.Array, Any]:
    """The view of an array that a layout describes, and NumPy's."""
    _, order, slices = layout
    turned = view(x, tuple(x.shape[a] for a in order), tuple(x.strides[a] for a in order))
    return turned[slices], host.transpose(order)[slices]


def waits_of(dev: ps.Device, work: Callable[[], object]) -> list[str]:
    """Why the host waited in some work, when the device does nothing before the host waits."""
    work()  # what is compiled, and allocated, at first
    dev.synchronize()
    with held_until_waited(dev.default_stream), ps.trace() as receipt:
        work()
    return [event.reason for event in receipt.of_kind("wait")]


def assert_same(got: Any, wanted: Any) -> None:
    """Equal shape, dtype and bits, but for the bits of NaN."""
    wanted = np.asarray(wanted)
    found = got.numpy() if isinstance(got, ps.Array) else np.asarray(got)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    if wanted.dtype.kind == "f":
        kept = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found)[kept], np.signbit(wanted)[kept])
