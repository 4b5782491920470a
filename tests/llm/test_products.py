"""Products with weights of every kind, in every way, on every driver, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock.llm import kernels
from penstock.llm.kinds import KINDS, PLAIN
from penstock.llm.products import Products
from penstock.llm.weights import Piece, Weight
from tests.llm.weight_builders import block_columns, decoded, encoded, extreme, upload

Host = npt.NDArray[Any]
COUNTS = (1, 2, 3, 7, 8, 9, 33)
MOST = max(COUNTS)
TOLERANCE = 2e-6  # of the sum of magnitudes, float32 sums of up to a thousand products

_made: dict[tuple[int, str | None], Products] = {}


def products_of(device: ps.Device, way: str | None = None) -> Products:
    """One for each device and way, so that each kernel is compiled once for all tests."""
    return _made.setdefault((id(device), way), Products(device, way=way))


#: Every way but those of test_gpu_products.py on lavapipe; on SwiftShader, which compiles long code
#: slowly, the one it takes itself.
EVERY_WAY = [
    *(("llvmpipe", way) for way in kernels.WAYS if way not in kernels.GPU_WAYS),
    ("SwiftShader", None),
]
in_every_way = pytest.mark.parametrize(("driver", "way"), EVERY_WAY, indirect=["driver"])

#: Kinds that each test takes in some ways and counts only: compiling takes the time of these tests,
#: and what the ways do with a decoded weight does not depend on its kind.
IN_SOME_WAYS = ("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4")
IN_EVERY_WAY = [kind for kind in KINDS if kind not in IN_SOME_WAYS]


def kinds_and_ways(*ways: tuple[str, str | None]) -> pytest.MarkDecorator:
    """Every kind in every way, but those of `IN_SOME_WAYS` in these."""
    cases = [(kind, *way) for kind in IN_EVERY_WAY for way in EVERY_WAY]
    cases += [(kind, *way) for kind in IN_SOME_WAYS for way in ways]
    return pytest.mark.parametrize(("kind", "driver", "way"), cases, indirect=["driver"])


@pytest.fixture
def products(dev: ps.Device, way: str | None) -> Products:
    return products_of(dev, way)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def activations(device: ps.Device, count: int, columns: int) -> tuple[Host, ps.Array]:
    numbers = random(1).standard_normal((count, columns), dtype=np.float32)
    return numbers, device.array(numbers)


def assert_product(got: Host, matrix: Host, x: Host, plus: Any = 0.0) -> None:
    """What float32 may make of a product: within the tolerance of the sum of magnitudes."""
    wide = matrix.astype(np.float64)
    want = x.astype(np.float64) @ wide.T + plus
    slack = TOLERANCE * (np.abs(x) @ np.abs(wide).T + np.abs(plus))
    worst = np.max(np.abs(got - want) / slack)
    assert worst < 1, f"{worst:.1f} times what is allowed"


@pytest.mark.parametrize("driver", ["SwiftShader"], indirect=True)
@pytest.mark.parametrize("way", ["subgroup", "shared"])
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_other_ways_on_another_driver(products: Products, kind: str) -> None:
    test_products_of_all_counts(products, kind)


def odd_sizes(kind: str, products: Products) -> tuple[int, int, int]:
    """Rows, columns, and bytes behind them: enough for windows where they are what is tested."""
    block = block_columns(kind)
    return 53, 96 * 5 if block <= 32 else 3 * block, 1 << 16 if products.way == "windowed" else 0


def counts_of(kind: str, products: Products) -> tuple[int, ...]:
    if kind not in IN_SOME_WAYS:
        return COUNTS
    return (1, 9) if products.way == "rows" else (9,)


@kinds_and_ways(("llvmpipe", "rows"), ("SwiftShader", None))
def test_products_of_all_counts(products: Products, kind: str) -> None:
    dev = products.device
    rows, columns, behind = odd_sizes(kind, products)
    raw = encoded(kind, rows, columns, random())
    weight = upload(dev, kind, raw, behind=behind)
    x, there = activations(dev, MOST, columns)
    y = dev.full((MOST + 1, rows), np.nan, np.float32)
    for count in counts_of(kind, products):
        y.fill(np.nan)
        products.multiply(weight, there, y, count)
        got = y.numpy()
        assert_product(got[:count], decoded(kind, raw), x[:count])
        assert np.isnan(got[count:]).all(), "rows behind the last token were written"


@kinds_and_ways(("llvmpipe", "windowed"))
def test_pieces_at_odd_places_added_to_wider_rows(products: Products, kind: str) -> None:
    dev = products.device
    rows, columns, behind = odd_sizes(kind, products)
    raw = encoded(kind, rows, columns, random(2))
    weight = upload(dev, kind, raw, first=46, split=(20, 21), behind=behind)
    x, there = activations(dev, 3, columns)
    before = random(3).standard_normal((3, rows + 5), dtype=np.float32)
    y = dev.array(before)
    products.multiply(weight, there, y, 3, add=True)
    got = y.numpy()
    assert_product(got[:, :rows], decoded(kind, raw), x, before[:, :rows])
    assert (got[:, rows:] == before[:, rows:]).all()


@in_every_way
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("columns", [1, 7, 100])
def test_plain_numbers_in_any_number_of_columns(
    products: Products, kind: str, columns: int
) -> None:
    raw = encoded(kind, 9, columns, random())
    weight = upload(products.device, kind, raw, first=2 if kind != "F32" else 4)
    x, there = activations(products.device, 5, columns)
    y = products.device.empty((5, 9))
    products.multiply(weight, there, y, 5)
    assert_product(y.numpy(), decoded(kind, raw), x)


@pytest.mark.parametrize("bias_kind", PLAIN)
def test_bias(dev: ps.Device, bias_kind: str) -> None:
    raw, bias_raw = encoded("Q8_0", 33, 64, random()), encoded(bias_kind, 1, 33, random(4))
    weight, bias = upload(dev, "Q8_0", raw), upload(dev, bias_kind, bias_raw, first=4)
    x, there = activations(dev, 2, 64)
    y = dev.empty((2, 33))
    products_of(dev).multiply(weight, there, y, 2, bias=bias)
    assert_product(y.numpy(), decoded("Q8_0", raw), x, decoded(bias_kind, bias_raw))


def test_windows_reach_the_last_row(dev: ps.Device) -> None:
    """Arrays that end wherever they like: what no window reaches is computed another way."""
    products = products_of(dev)
    for extra in range(4):
        raw = encoded("Q8_0", 2100 + extra, 32, random(extra))
        weight = upload(dev, "Q8_0", raw, first=2 * extra)
        x, there = activations(dev, 1, 32)
        y = dev.full((1, len(raw)), np.nan, np.float32)
        products.multiply(weight, there, y, 1)
        assert_product(y.numpy(), decoded("Q8_0", raw), x)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize("count", [1, 9])
def test_texel_buffers_that_hold_a_part_of_the_matrix(
    dev: ps.Device, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part starts at a multiple of the alignment before its first row."""
    products = Products(dev, way="rows")
    monkeypatch.setattr(products, "_takes_wide", False)
    monkeypatch.setattr(products, "_texel_elements", 500)
    monkeypatch.setattr(products, "_texel_alignment", 64)
    raw = encoded("Q8_0", 53, 96, random())
    weight = upload(dev, "Q8_0", raw, first=46, behind=100)
    x, there = activations(dev, count, 96)
    y = dev.full((count, 53), np.nan, np.float32)
    with ps.trace() as trace:
        products.multiply(weight, there, y, count)
    assert trace.launches == 3, "53 rows of 102 bytes; 18 fit 476 words"
    assert_product(y.numpy(), decoded("Q8_0", raw), x)


def kernels_of(trace: ps.Trace) -> set[str]:
    return {str(event.kernel) for event in trace.events if event.kind == "launch"}


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 6])
def test_16_bytes_are_read_at_a_time(dev: ps.Device, kind: str, first: int) -> None:
    """Wherever rows and blocks begin: at each even byte of 16, and those of MXFP4 at each byte."""
    products = products_of(dev, "rows")
    columns = 3 * max(block_columns(kind), 32)
    raw = encoded(kind, 53, columns, random())
    weight = upload(dev, kind, raw, first=first, behind=16)
    x, there = activations(dev, 4, columns)
    for count in (1, 2, 4):
        y = dev.full((count, 53), np.nan, np.float32)
        with ps.trace() as trace:
            products.multiply(weight, there, y, count)
        assert_product(y.numpy(), decoded(kind, raw), x[:count])
        (kernel,) = kernels_of(trace)
        assert kernel.endswith("wide") or (count > 1 and kind not in PLAIN)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize(("kind", "first"), [("F32", 0), ("F16", 46), ("Q8_0", 6)])
def test_16_bytes_of_a_part_of_the_rows(
    dev: ps.Device, kind: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texel buffers that hold some rows; and one that would not end with the array."""
    raw = encoded(kind, 53, 96, random())
    x, there = activations(dev, 1, 96)
    for behind in (0, 16):
        products = Products(dev, way="rows")
        monkeypatch.setattr(products, "_texel_elements", 250)
        weight = upload(dev, kind, raw, first=first, behind=behind)
        is_wide = -(-(first + raw.nbytes) // 16) * 16 <= weight.pieces[0].words.nbytes
        y = dev.full((1, 53), np.nan, np.float32)
        with ps.trace() as trace:
            products.multiply(weight, there, y, 1)
        assert {name.endswith("wide") for name in kernels_of(trace)} == {is_wide}
        assert trace.launches == {("F32", True): 6, ("F16", True): 3, ("Q8_0", True): 2}.get(
            (kind, is_wide), 6
        )
        assert_product(y.numpy(), decoded(kind, raw), x)


def test_more_rows_than_one_launch_has_windows_for(dev: ps.Device) -> None:
    raw = encoded("F16", 1700, 512, random())
    weight = upload(dev, "F16", raw, split=(900,))
    x, there = activations(dev, 5, 512)
    y = dev.full((5, 1700), np.nan, np.float32)
    products_of(dev).multiply(weight, there, y, 5)
    assert_product(y.numpy(), decoded("F16", raw), x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 6])
def test_rows_are_exactly_those_of_the_reference(dev: ps.Device, kind: str, first: int) -> None:
    columns = 101 if kind in PLAIN else 2 * block_columns(kind)
    raw = encoded(kind, 19, columns, random())
    weight = upload(dev, kind, raw, first=first, split=(7,))
    ids = np.array([18, 0, 6, 7, 19, 3, -1, 3], np.int32)
    y = dev.full((9, columns), np.nan, np.float32)
    products_of(dev).embed(weight, dev.array(ids), y, len(ids))
    want = decoded(kind, raw)[np.where((ids >= 0) & (ids < 19), ids, 0)]
    want[(ids < 0) | (ids >= 19)] = 0  # no such row
    got = y.numpy()
    assert got[:8].tobytes() == want.tobytes()
    assert np.isnan(got[8]).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in PLAIN])
def test_extreme_scales_decode_as_in_the_reference(dev: ps.Device, kind: str) -> None:
    """Drivers may take a scale or weight below the normal float32 as zero; MXFP4 alone has such."""
    raw = extreme(kind, 256, random(9))
    with np.errstate(over="ignore"):  # MXFP4 reaches twelve times the largest power of two
        want = decoded(kind, raw)
    weight = upload(dev, kind, raw, first=2)
    y = dev.full(want.shape, np.nan, np.float32)
    products_of(dev).embed(weight, dev.array(np.arange(256, dtype=np.uint32)), y, 256)
    got = y.numpy()
    least = np.finfo(np.float32).tiny * (12 if kind == "MXFP4" else 0)
    flushed = (np.abs(want) < least) & (got == 0)
    assert np.where(flushed, want, got).tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_extreme_numbers_are_kept(dev: ps.Device, kind: str) -> None:
    """Subnormal, infinite, negative zero: as they are."""
    if kind == "F32":
        numbers: Host = np.array([[1e-40, np.inf, -np.inf, -0.0, 3e38]], np.float32)
        raw = numbers.view(np.uint8)
    else:
        bits = np.array([[0x0001, 0x7C00, 0xFC00, 0x8000, 0x03FF, 0x7F80]], np.uint16)
        raw = (bits[:, :5] if kind == "F16" else bits).view(np.uint8)
    columns = raw.size // (4 if kind == "F32" else 2)
    weight = upload(dev, kind, raw)
    y = dev.empty((1, columns))
    products_of(dev).embed(weight, dev.zeros(1, np.uint32), y, 1)
    assert y.numpy().tobytes() == decoded(kind, raw).tobytes()


@in_every_way
def test_gated(products: Products) -> None:
    dev = products.device
    behind = odd_sizes("Q8_0", products)[2]
    gate_raw, up_raw = (encoded("Q8_0", 37, 96, random(n)) for n in (5, 6))
    gate, up = (upload(dev, "Q8_0", raw, behind=behind) for raw in (gate_raw, up_raw))
    x, there = activations(dev, 3, 96)
    y = dev.full((4, 37), np.nan, np.float32)
    products.gated(gate, up, there, y, 3)
    g, u = (x.astype(np.float64) @ decoded("Q8_0", raw).astype(np.float64).T
            for raw in (gate_raw, up_raw))  # fmt: skip
    np.testing.assert_allclose(y.numpy()[:3], g / (1 + np.exp(-g)) * u, rtol=2e-4, atol=1e-3)
    assert np.isnan(y.numpy()[3]).all()


@in_every_way
def test_everything_can_be_recorded(products: Products) -> None:
    dev = products.device
    behind = odd_sizes("Q8_0", products)[2]
    table_raw, raw = encoded("Q8_0", 11, 64, random(7)), encoded("Q8_0", 64, 64, random(8))
    table, weight = upload(dev, "Q8_0", table_raw), upload(dev, "Q8_0", raw, behind=behind)
    tokens = dev.zeros(2, np.uint32)
    x, y = dev.empty((2, 64)), dev.empty((2, 64))
    with dev.record() as g:
        products.embed(table, tokens, x, 2)
        products.multiply(weight, x, y, 2)
        products.gated(weight, weight, y, x, 2)
        products.multiply(weight, x, y, 2, add=True)
    matrix = decoded("Q8_0", raw).astype(np.float64)
    for ids in ([3, 10], [0, 5]):
        tokens.write(np.array(ids, np.uint32))
        g.replay()
        first = decoded("Q8_0", table_raw)[ids].astype(np.float64) @ matrix.T
        gate = first @ matrix.T
        want = first + (gate / (1 + np.exp(-gate)) * gate) @ matrix.T
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-3 * np.abs(want).max())


def test_what_does_not_fit_is_refused(dev: ps.Device) -> None:
    products = products_of(dev)
    weight = upload(dev, "Q8_0", encoded("Q8_0", 3, 64, random()))
    x, y = dev.zeros((2, 64)), dev.full((2, 3), 7, np.float32)
    with pytest.raises(ps.ShapeMismatch, match=r"x has the shape \(2, 64\); 3 rows of 64"):
        products.multiply(weight, x, y, 3)
    with pytest.raises(ps.ShapeMismatch, match="x has the shape"):
        products.multiply(weight, dev.zeros((2, 65)), y, 2)
    with pytest.raises(ps.ShapeMismatch, match="y has the shape"):
        products.multiply(weight, x, dev.zeros((2, 2)), 2)
    with pytest.raises(ps.DtypeMismatch, match="x must be float32"):
        products.multiply(weight, dev.zeros((2, 64), np.float64), y, 2)
    with pytest.raises(ps.InvalidValue, match="0 tokens"):
        products.multiply(weight, x, y, 0)
    with pytest.raises(ps.ShapeMismatch, match="the bias"):
        products.multiply(weight, x, y, 2, bias=upload(dev, "F32", encoded("F32", 1, 4, random())))
    with pytest.raises(ps.Unsupported, match="kind Q8_0"):
        products.multiply(weight, x, y, 2, bias=weight)
    with pytest.raises(ps.DtypeMismatch, match="tokens must be uint32"):
        products.embed(weight, dev.zeros(2), x, 2)
    with pytest.raises(ps.ShapeMismatch, match="3 tokens of an array that has 2"):
        products.embed(weight, dev.zeros(2, np.uint32), dev.zeros((3, 64)), 3)
    piece: Piece = weight.pieces[0]
    with pytest.raises(ps.Unsupported, match="kind IQ2_XS"):
        products.multiply(Weight("w", "IQ2_XS", 3, 64, (piece,)), x, y, 2)
    with pytest.raises(ps.ShapeMismatch, match="blocks of 256"):
        products.multiply(Weight("w", "Q4_K", 3, 64, (piece,)), x, y, 2)
    with pytest.raises(ps.ShapeMismatch, match="gated"):
        products.gated(weight, upload(dev, "Q8_0", encoded("Q8_0", 4, 64, random())), x, y, 2)
    with pytest.raises(ps.InvalidValue, match="choose one of alone"):
        Products(dev, way="fast")
    assert (y.numpy() == 7).all()
