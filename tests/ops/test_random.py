"""Random numbers: Philox's published values, equal bits on every driver, and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.ops import random_references as references
from penstock.ops.quantiles import DEGREES, tables
from penstock.ops.random import Generator
from penstock.xp.namespace import Namespace
from tests.conftest import OpenDevice, simulated

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)

can_take = pytest.mark.skipif(not hasattr(Namespace, "take"), reason="the namespace has no take")


def has_float64(dev: ps.Device) -> bool:
    return dev.info.driver != "vulkan" or "shaderFloat64" in dev.info.features


@pytest.mark.parametrize(
    ("counter", "key", "published"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_published_values_of_philox(
    counter: tuple[int, ...], key: tuple[int, int], published: tuple[int, ...]
) -> None:
    """Those that come with Random123, by its authors."""
    assert references.philox(np.array(counter, np.uint32), key).tolist() == list(published)


def test_the_kernel_makes_the_published_values(dev: ps.Device) -> None:
    """Block 0 with the key 0, and the block whose low word is that of the vector of ones."""
    rng = dev.random.default_rng(0)
    rng._key = (0, 0)
    assert rng.bits(4).numpy().tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    rng._used = (1 << 32) - 2  # a carry into the second word
    wanted = references.drawn((1 << 32) - 2, 4, (0, 0)).reshape(-1)
    np.testing.assert_array_equal(rng.bits(16).numpy(), wanted)


#: Numbers of every kind, each from a generator of its own.
DRAWS: dict[str, Callable[[Generator], ps.Array]] = {
    "bits": lambda rng: rng.bits(1003),
    "random": lambda rng: rng.random((17, 33)),
    "uniform": lambda rng: rng.uniform(-3, 5, 1001),
    "standard_normal": lambda rng: rng.standard_normal(5001),
    "normal": lambda rng: rng.normal(2, 3, 777),
    "exponential": lambda rng: rng.exponential(2.5, 3001),
    "integers": lambda rng: rng.integers(0, 10, 1001),
    "int8": lambda rng: rng.integers(-128, 127, 1003, "int8", endpoint=True),
    "uint16": lambda rng: rng.integers(1000, size=1001, dtype="uint16"),
    "uint32": lambda rng: rng.integers(3, (1 << 31) + 4, 99, "uint32"),
    "uint64": lambda rng: rng.integers(0, 2**63 + 5, 501, "uint64"),
    "int64": lambda rng: rng.integers(-(2**63), 2**63 - 1, 501, endpoint=True),
    "bool": lambda rng: rng.integers(0, 2, 101, "bool"),
    "permutation": lambda rng: rng.permutation(1000),
    "choice": lambda rng: rng.choice(50, (4, 5), replace=False),
    "scalar": lambda rng: rng.random(),
    "nothing": lambda rng: rng.random((3, 0)),
    "random64": lambda rng: rng.random(1001, "float64"),
    "normal64": lambda rng: rng.normal(1, 2, 3001, "float64"),
    "exponential64": lambda rng: rng.standard_exponential(3001, "float64"),
}
#: Compiling each for HIP takes half a second.
ON_HIP = ("uniform", "normal", "int8", "uint64", "permutation", "normal64")


def draws(dev: ps.Device) -> dict[str, Any]:
    names = [name for name in DRAWS if has_float64(dev) or "64" not in name or "int" in name]
    if dev.info.driver == "hip":
        names = [*ON_HIP]
    made = {name: DRAWS[name](dev.random.default_rng(len(name))) for name in names}
    return {name: array.numpy() for name, array in made.items()}


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with simulated(1) as device:
        return draws(device)


def test_every_driver_makes_the_same_bits(any_device: ps.Device, reference: dict[str, Any]) -> None:
    for name, made in draws(any_device).items():
        assert made.dtype == reference[name].dtype
        assert made.shape == reference[name].shape
        assert made.tobytes() == reference[name].tobytes(), name


def test_values_stay_within_their_bounds(reference: dict[str, Any]) -> None:
    for name, low, high in (("random", 0, 1 - 2.0**-24), ("uniform", -3, 5)):
        assert reference[name].min() >= low
        assert reference[name].max() <= high
    assert reference["exponential"].min() >= 0
    assert sorted(set(reference["integers"].tolist())) == list(range(10))
    assert reference["uint64"].max() < 2**63 + 5
    assert reference["int64"].min() < 0 < reference["int64"].max()
    assert sorted(reference["permutation"].tolist()) == list(range(1000))
    assert len(set(reference["choice"].reshape(-1).tolist())) == 20
    assert set(reference["bool"].tolist()) == {False, True}


def cumulated(name: str, x: float) -> float:
    if name == "uniform":
        return x
    return NormalDist().cdf(x) if name == "normal" else 1 - math.exp(-x)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["uniform", "normal", "exponential"])
def test_distributions(name: str, wide: bool, dev: ps.Device) -> None:
    """The largest distance from the distribution, as Kolmogorov and Smirnov measure it."""
    if wide and not has_float64(dev):
        with pytest.raises(ps.Unsupported, match="float64"):
            dev.random.default_rng(1).random(3, "float64")
        return
    rng, count = dev.random.default_rng(11), 20_000
    function = {"uniform": rng.random, "normal": rng.standard_normal}.get(
        name, rng.standard_exponential
    )
    x = np.sort(function(count, dtype="float64" if wide else "float32").numpy().astype(float))
    exact = np.array([cumulated(name, each) for each in x.tolist()])
    steps = np.arange(count + 1) / count
    distance = max(np.abs(exact - steps[:-1]).max(), np.abs(exact - steps[1:]).max())
    assert distance < 1.63 / math.sqrt(count)  # exceeded by one seed in a hundred
    pairs = np.corrcoef(function(count).numpy()[:-1], function(count).numpy()[1:])[0, 1]
    assert abs(pairs) < 4 / math.sqrt(count)


@pytest.mark.parametrize(
    ("name", "bits"), [("normal", 32), ("normal", 64), ("exponential", 32), ("exponential", 64)]
)
def test_quantiles_are_accurate(name: str, bits: int) -> None:
    """At the ends of every polynomial, and between."""
    table = tables()[f"{name}{bits}"]
    rng = np.random.default_rng(3)
    shape = (table.shape[0], 8, 9)
    fraction = rng.integers(0, 1 << 60, shape, np.uint64) >> np.uint64(60 - bits + 4)
    fraction[..., 0], fraction[..., 1] = 0, (1 << (bits - 4)) - 1
    octave, part = np.arange(shape[0], dtype=np.uint64), np.arange(8, dtype=np.uint64)
    n = (np.uint64(8) + part)[None, :, None] << np.uint64(bits - 4) | fraction
    m = n >> (np.uint64(bits - 1) - octave)[:, None, None] | np.uint64(1)
    unsigned: Any = np.uint64 if bits == 64 else np.uint32
    got = references.quantiles(m.astype(unsigned), table, name == "normal")
    p = [each / 2**bits for each in m.reshape(-1).tolist()]
    inverse = NormalDist().inv_cdf
    wanted = np.array([inverse(each) if name == "normal" else -math.log(each) for each in p])
    assert table.shape[-1] == DEGREES[bits // 8] + 1
    error = np.abs(got.reshape(-1).astype(float) - wanted)
    assert error.max() < (1e-13 if bits == 64 else 2e-6)


def test_integers_are_unbiased(dev: ps.Device) -> None:
    """A range that is no power of two, by chi-square."""
    made = dev.random.default_rng(2).integers(0, 7, 70_000, "int32").numpy()
    counts = np.bincount(made, minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # one seed in a thousand


def test_permutations_are_unbiased() -> None:
    """All orders of four elements, of which powers of two are the hardest case, by chi-square."""
    counts: dict[tuple[int, ...], int] = {}
    runs = 1200
    keys = references.drawn(0, 3 * runs, (7, 9)).reshape(runs, references.ROUNDS).tolist()
    for each in keys:
        order = tuple(references.permuted(np.arange(4), 4, tuple(each)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((n - 50) ** 2 / 50 for n in counts.values()) < 49.7  # one seed in a thousand


def test_large_permutations(dev: ps.Device) -> None:
    rng = dev.random.default_rng(4)
    made = rng.permutation(100_003).numpy()
    np.testing.assert_array_equal(np.sort(made), np.arange(100_003))
    assert abs(np.corrcoef(made, np.arange(made.size))[0, 1]) < 0.02
    assert (rng.permutation(100_003).numpy() != made).any()


def test_arrays_larger_than_a_binding(dev: ps.Device) -> None:
    rng, other = dev.random.default_rng(4), dev.random.default_rng(4)
    other._bits = type(rng._bits)(dev)
    other._bits._range = 1024
    np.testing.assert_array_equal(rng.random(1111).numpy(), other.random(1111).numpy())
    np.testing.assert_array_equal(rng.permutation(999).numpy(), other.permutation(999).numpy())
    size = {"size": 1000, "dtype": "int8"}
    one, two = rng.integers(0, 100, **size), other.integers(0, 100, **size)  # type: ignore[arg-type]
    np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_a_call_is_one_launch_without_a_wait(dev: ps.Device) -> None:
    rng = dev.random.default_rng(1)
    rng.normal(size=10)
    dev.synchronize()
    with ps.trace() as trace:
        rng.normal(size=1000)
    trace.expect(launches=1, waits=0, copies=0)


def test_seeds(dev: ps.Device) -> None:
    def first(rng: Generator) -> bytes:
        return rng.bits(4).numpy().tobytes()

    default_rng = dev.random.default_rng
    assert first(default_rng(3)) == first(default_rng(3))
    different = [default_rng(3), default_rng(4), default_rng([3, 4]), default_rng(2**200)]
    different += [*default_rng(3).spawn(2), default_rng(), default_rng()]
    assert len({first(each) for each in different}) == len(different)
    with pytest.raises(ps.InvalidValue, match="seed=-1"):
        default_rng(-1)


@can_take
def test_rows_of_arrays(dev: ps.Device) -> None:
    host = np.arange(40, dtype=np.float32).reshape(10, 4)
    rng = dev.random.default_rng(8)
    x = dev.array(host)
    made = rng.permutation(x).numpy()
    np.testing.assert_array_equal(made[np.argsort(made[:, 0])], host)
    assert (made != host).any()
    made = rng.permutation(x, axis=1).numpy()
    np.testing.assert_array_equal(np.sort(made, axis=1), host)
    rng.shuffle(x)
    shuffled = x.numpy()
    np.testing.assert_array_equal(shuffled[np.argsort(shuffled[:, 0])], host)
    chosen = rng.choice(dev.array(host[0]), (3, 2)).numpy()
    assert chosen.shape == (3, 2)
    assert set(chosen.reshape(-1).tolist()) <= {0.0, 1.0, 2.0, 3.0}


def test_errors(dev: ps.Device) -> None:
    rng = dev.random.default_rng(1)
    with pytest.raises(ps.DtypeMismatch, match="float16"):
        rng.random(3, "float16")
    with pytest.raises(ps.InvalidValue, match="none between"):
        rng.integers(5, 5)
    with pytest.raises(ps.InvalidValue, match="do not fit int8"):
        rng.integers(0, 200, dtype="int8")
    with pytest.raises(ps.InvalidValue, match="scale=-1"):
        rng.normal(0, -1)
    with pytest.raises(ps.ArgumentError, match="standard_normal"):
        rng.normal(np.zeros(3), 1)  # type: ignore[arg-type]
    with pytest.raises(ps.InvalidValue, match="choice of 5 without replacement, of 4"):
        rng.choice(4, 5, replace=False)
    with pytest.raises(ps.Unsupported, match="searchsorted"):
        rng.choice(4, 5, p=[0.25] * 4)  # type: ignore[arg-type]
    with pytest.raises(ps.ArgumentError, match="not an integer"):
        rng.integers("5")  # type: ignore[arg-type]


def test_a_graph_does_not_keep_the_tables_to_itself(open_device: OpenDevice) -> None:
    dev, fresh = open_device(), open_device()
    made = dev.zeros(8)
    with dev.record() as graph:
        made[...] = dev.random.default_rng(1).normal(size=8)
    wanted = fresh.random.default_rng(1).normal(size=8).tolist()
    assert dev.random.default_rng(1).normal(size=8).tolist() == wanted
    graph.replay()
    assert made.tolist() == wanted
