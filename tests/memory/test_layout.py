"""Indexing is NumPy's basic indexing; rows and regions are the bytes of the elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penstock as ps
from penstock.memory.layout import (
    Layout,
    contiguous_strides,
    index_layout,
    region_of,
    row_offsets,
    rows_of,
)

ITEM = np.dtype(np.uint16)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def base_of(shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], Layout]:
    """The same array as NumPy and as Penstock describe it."""
    return np.empty(shape, ITEM), Layout(
        0, shape, contiguous_strides(shape, ITEM.itemsize), ITEM.itemsize
    )


@st.composite
def selections(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Layout]:
    """An array, what two basic indices in a row make of it, and the same as a layout."""
    base, layout = base_of(draw(shapes))
    part: Any = base
    for _ in range(2):
        index = draw(hnp.basic_indices(part.shape, allow_newaxis=True, allow_ellipsis=True))
        selected = part[index]
        assume(isinstance(selected, np.ndarray))  # NumPy makes scalars of what is left of a 0-d
        part, layout = selected, index_layout(layout, index)
    return base, part, layout


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def bytes_in_order(layout: Layout) -> list[int]:
    """Every byte of every element, in C order."""
    starts = [
        layout.offset + sum(i * stride for i, stride in zip(place, layout.strides, strict=True))
        for place in np.ndindex(layout.shape)
    ]
    return [start + byte for start in starts for byte in range(layout.itemsize)]


@settings(max_examples=300, deadline=None)
@given(selections())
def test_indexing_selects_what_numpy_selects(
    selection: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Layout],
) -> None:
    base, part, layout = selection
    assert layout.shape == part.shape
    if part.size:
        assert layout.offset == address(part) - address(base)
        for n, ours, numpys in zip(part.shape, layout.strides, part.strides, strict=True):
            assert n == 1 or ours == numpys


@pytest.mark.parametrize("step", [2**62, 2**70, -(2**70)])
def test_steps_beyond_the_array(step: int, dev: ps.Device) -> None:
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    for index in ((slice(None, None, step),), (1, slice(None, None, step)), slice(9, None, step)):
        np.testing.assert_array_equal(dev.array(host)[index].numpy(), host[index])


indices = st.one_of(
    st.integers(-5, 5),
    st.slices(5),
    st.none(),
    st.just(Ellipsis),
    st.just(slice(None, None, 0)),
    st.just(slice("a", None)),
    st.just(1.0),
    st.just("a"),
)


@settings(max_examples=300, deadline=None)
@given(shapes, st.lists(indices, max_size=5))
def test_indexing_fails_where_numpy_fails(shape: tuple[int, ...], index: list[Any]) -> None:
    base, layout = base_of(shape)
    try:
        expected = base[tuple(index)]
    except (IndexError, TypeError, ValueError):
        with pytest.raises(ps.Error):
            index_layout(layout, tuple(index))
    else:
        assert index_layout(layout, tuple(index)).shape == np.shape(expected)


@pytest.mark.parametrize(
    ("index", "kind"),
    [
        (4, IndexError),
        (-5, IndexError),
        ((0, 0), IndexError),
        ((Ellipsis, Ellipsis), IndexError),
        (slice(None, None, 0), ValueError),
        (slice("a", None), TypeError),
        ("a", TypeError),
        (1.0, TypeError),
    ],
    ids=str,
)
def test_indexing_fails_as_numpy_fails(index: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        index_layout(base_of((4,))[1], index)
    assert isinstance(caught.value, ps.Error)


@pytest.mark.parametrize("index", [True, np.True_, [0, 1], np.array([0, 1]), np.array([True] * 4)])
def test_fancy_indexing_is_refused(index: Any) -> None:
    _, layout = base_of((4,))
    with pytest.raises(
        ps.ArgumentError, match=r"integers, slices.*masks and arrays of integers, not"
    ):
        index_layout(layout, index)


@settings(max_examples=300, deadline=None)
@given(selections())
def test_rows_are_the_bytes_in_order(
    selection: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Layout],
) -> None:
    layout = selection[2]
    width, starts = row_offsets(layout)
    expected = bytes_in_order(layout)
    assert [start + byte for start in starts for byte in range(width)] == (
        expected if width else []
    )
    assert rows_of(layout)[0] == width
    touched, region = set(expected), region_of(layout)[0]
    if not touched:
        assert region.lo == region.hi
        return
    span = range(region.lo, region.hi)
    pitch, row = region.pitch or len(span), region.width or len(span)
    covered = {byte for byte in span if (byte - region.lo) % pitch < row}
    assert (min(covered), max(covered)) == (min(touched), max(touched))
    assert touched <= covered
    if len(rows_of(layout)[1]) <= 1:
        assert touched == covered
