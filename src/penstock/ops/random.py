"""Random numbers made on the device, with the names of NumPy's `Generator`.

`rng = dev.random.default_rng(7)`, then `rng.normal(size=(1000, 3))`. A generator is a key, made
from the seed, and a count of the blocks of random bits that it has used. Every call is one launch,
which makes its numbers from the key and the numbers of its blocks (Philox4x32-10): there is no
state on the device, and nothing waits. The same seed and calls give the same numbers, to the bit,
on every driver and on the simulator. They are not NumPy's numbers.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Shape, as_dtype, as_float, as_shape
from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue, ShapeMismatch, Unsupported
from penstock.launch.kernel import Kernel
from penstock.ops import random_references as references
from penstock.ops.elements import Abilities
from penstock.ops.quantiles import tables
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.scheduler import Scheduler

_SHADER = Path(__file__).with_name("shaders") / "random.comp"
_MODES = {"BITS": 0, "UNIFORM": 1, "INTEGER": 2, "QUANTILE": 3, "PERMUTATION": 4}
_MOST_EACH = 1024  # blocks of an invocation: each may take several turns of a loop
_MOST_PERMUTED = 1 << 30
_MOST_SPAWNED = 1 << 20
_NO_KEYS = (0,) * references.ROUNDS
_KEYS = tuple(sys.intern(f"keys_{n}") for n in range(references.ROUNDS))
_LANE = 1 << 63  # blocks from here on make keys of permutations

Seed = int | Sequence[int] | np.random.SeedSequence | None


class Random:
    """`dev.random`: makes generators."""

    def __init__(self, device: Device) -> None:
        self._bits = RandomBits(device)

    def default_rng(self, seed: Seed = None) -> Generator:
        """A generator; without a seed, one that no other run of the program has."""
        return Generator(self._bits, seed)


class Generator:
    """Random numbers on a device. Floats are float32 unless `dtype` says float64.

    Threads may share a generator; which numbers each gets then depends on their order. While a
    graph is recorded, a call is recorded with its numbers: each replay makes the same.
    """

    def __init__(self, bits: RandomBits, seed: Seed) -> None:
        try:
            made = (
                seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
            )
        except (TypeError, ValueError) as error:
            raise InvalidValue(
                f"seed={seed!r}: a seed is integers that are not negative"
            ) from error
        self._seed = made
        first, second = made.generate_state(2).tolist()
        self._key: tuple[int, int] = (first, second)
        self._bits = bits
        self._used = 0
        self._permutations = 0
        self._lock = threading.Lock()

    @property
    def device(self) -> Device:
        return self._bits.device

    def spawn(self, n_children: int) -> list[Generator]:
        """Generators whose numbers are independent of this one's and each other's."""
        count = _integer("n_children", n_children)
        if not 0 <= count <= _MOST_SPAWNED:
            raise InvalidValue(f"spawn of {count} generators; 0 to {_MOST_SPAWNED:,}")
        return [Generator(self._bits, each) for each in self._seed.spawn(count)]

    # Floats.

    def random(self, size: Shape | None = None, dtype: npt.DTypeLike = np.float32) -> Array:
        """Uniform in [0, 1): multiples of 2**-24, or for float64 of 2**-53."""
        return self._floats("UNIFORM", "", size, dtype, 0.0, 1.0)

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: Shape | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        """Uniform in [low, high); by rounding, `high` itself may occur."""
        low, high = _number("low", low), _number("high", high)
        if not math.isfinite(high - low):
            raise InvalidValue(f"uniform(low={low}, high={high}): the range is not finite")
        return self._floats("UNIFORM", "", size, dtype, low, high - low)

    def standard_normal(
        self, size: Shape | None = None, dtype: npt.DTypeLike = np.float32
    ) -> Array:
        """Normal, with mean 0 and standard deviation 1."""
        return self._floats("QUANTILE", "normal", size, dtype, 0.0, 1.0)

    def normal(
        self, loc: float = 0.0, scale: float = 1.0, size: Shape | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        """Normal, with mean `loc` and standard deviation `scale`."""
        loc, scale = _number("loc", loc), _not_negative("scale", scale)
        return self._floats("QUANTILE", "normal", size, dtype, loc, scale)

    def standard_exponential(
        self, size: Shape | None = None, dtype: npt.DTypeLike = np.float32
    ) -> Array:
        """Exponential, with mean 1."""
        return self._floats("QUANTILE", "exponential", size, dtype, 0.0, 1.0)

    def exponential(
        self, scale: float = 1.0, size: Shape | None = None, dtype: npt.DTypeLike = np.float32
    ) -> Array:
        """Exponential, with mean `scale`."""
        scale = _not_negative("scale", scale)
        return self._floats("QUANTILE", "exponential", size, dtype, 0.0, scale)

    def _floats(
        self, mode: str, table: str, size: Shape | None, dtype: npt.DTypeLike, offset: float,
        factor: float,
    ) -> Array:  # fmt: skip
        kind = as_dtype(dtype)
        if kind not in (np.float32, np.float64):
            raise DtypeMismatch(f"random numbers of {kind}; there are float32 and float64")
        out = self._bits.device.new_result(_shape(size), kind)
        a, b = (int(x) for x in np.array([offset, factor], kind).view(f"u{kind.itemsize}"))
        self._fill(out, Draw(mode, kind.itemsize, table), a, b)
        return out

    # Integers.

    def integers(
        self, low: int, high: int | None = None, size: Shape | None = None,
        dtype: npt.DTypeLike = np.int64, endpoint: bool = False,
    ) -> Array:  # fmt: skip
        """Integers from `low` to `high`, which is excluded unless `endpoint`; all are as likely."""
        kind = as_dtype(dtype)
        if kind.kind not in "iub":
            raise DtypeMismatch(f"integers of {kind}; dtype is one of integers, or bool")
        if high is None:
            low, high = 0, low
        first, last = _integer("low", low), _integer("high", high) - (not endpoint)
        bounds = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if last < first:
            raise InvalidValue(f"integers(low={low}, high={high}): there is none between them")
        if first < bounds[0] or last > bounds[1]:
            raise InvalidValue(f"integers from {first} to {last} do not fit {kind}")
        out = self._bits.device.new_result(_shape(size), kind)
        self._fill(out, Draw("INTEGER", kind.itemsize), first & _MASK[kind.itemsize], last - first)
        return out

    def permutation(self, x: int | Array, axis: int = 0) -> Array:
        """The integers below x in random order; of an array, a copy with its rows in one."""
        if isinstance(x, Array):
            return self._taken(x, self._permuted(x.shape[_axis(x, axis)]), axis)
        return self._permuted(_integer("x", x))

    def shuffle(self, x: Array, axis: int = 0) -> None:
        """Put the rows of an array in random order."""
        if not isinstance(x, Array):
            raise ArgumentError(f"shuffle takes an array of a device, not {type(x).__name__}")
        x.copy_from(self.permutation(x, axis))

    def choice(
        self, a: int | Array, size: Shape | None = None, replace: bool = True, p: None = None,
        axis: int = 0,
    ) -> Array:  # fmt: skip
        """Elements of `a`, or integers below it, at random; without `replace`, none twice."""
        if p is not None:
            raise Unsupported(
                "choice with p=: a device chooses all alike; take "
                "xp.searchsorted(xp.cumulative_sum(p), rng.random(size))"
            )
        count = a.shape[_axis(a, axis)] if isinstance(a, Array) else _integer("a", a)
        shape = _shape(size)
        wanted = math.prod(shape)
        if count < 1 and wanted:
            raise InvalidValue("choice of nothing: a has no elements")
        if replace:
            chosen = self.integers(0, max(1, count), size)
        elif wanted > count:
            raise InvalidValue(f"choice of {wanted} without replacement, of {count} elements")
        else:
            chosen = self._permuted(count, wanted).reshape(shape)
        if not isinstance(a, Array):
            return chosen
        if chosen.ndim > 1 and a.ndim > 1:
            raise ShapeMismatch(
                f"choice of size {shape} from an array of {a.ndim} dimensions; choose indices: "
                "rng.choice(len(a), size), and take them"
            )
        if chosen.ndim == 1:
            return self._taken(a, chosen, axis)
        found = self._taken(a, chosen.reshape(-1), axis)
        kept = list(a.shape)
        kept[_axis(a, axis) : _axis(a, axis) + 1] = shape
        return found.reshape(kept)

    def _permuted(self, count: int, wanted: int | None = None) -> Array:
        """The first `wanted` elements of a random permutation."""
        if not 0 <= count <= _MOST_PERMUTED:
            raise InvalidValue(f"a permutation of {count} elements; up to {_MOST_PERMUTED:,}")
        out = self._bits.device.new_result(count if wanted is None else wanted, np.int64)
        with self._lock:
            number, self._permutations = self._permutations, self._permutations + 1
        # Three blocks of a lane of their own are the keys of the rounds.
        keys = references.drawn(_LANE + 3 * number, 3, self._key).reshape(-1).tolist()
        if out.size:
            self._bits.fill(out, Draw("PERMUTATION", 8), self._key, 0, count, 0, tuple(keys))
        return out

    def _taken(self, x: Array, indices: Array, axis: int) -> Array:
        found: Array = x.device.xp.take(x, indices, axis=axis)
        return found

    def bits(self, count: int) -> Array:
        """Random words (uint32): what all other numbers are made from."""
        out = self._bits.device.new_result(_integer("count", count), np.uint32)
        self._fill(out, Draw("BITS", 4), 0, 0)
        return out

    def _fill(self, out: Array, draw: Draw, a: int, b: int) -> None:
        blocks = draw.blocks(out.size)
        with self._lock:
            first, self._used = self._used, self._used + blocks
        if out.size:
            self._bits.fill(out, draw, self._key, first, a, b)

    def __repr__(self) -> str:
        seed, used = self._seed.entropy, self._used
        return f"<Generator of seed {seed} on {self.device.name}, {used} blocks used>"


class Draw(NamedTuple):
    """What a launch makes."""

    mode: str
    size: int  # bytes of an element
    table: str = ""  # the distribution, of quantiles

    def blocks(self, count: int) -> int:
        """Blocks of 16 bytes that make some elements."""
        return -(-count // (2 if self.size == 8 else 4))

    @property
    def wide(self) -> bool:
        return self.size == 8 and self.mode in ("UNIFORM", "QUANTILE")


class RandomBits:
    """The kernels that make random numbers on one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        limits: Any = device.info.limits
        cpu = device.info.kind == "cpu"
        self._group: int = limits["subgroup_size"] if cpu else min(256, limits["group_invocations"])
        self._most_groups: int = limits["group_count"][0]
        self._range: int = limits["binding_range"]
        self._least = 64 if cpu else 4  # blocks of an invocation, before there is another group
        self._kernels: dict[Draw, Kernel] = {}
        self._tables: dict[str, Array] = {}

    def fill(
        self, out: Array, draw: Draw, key: tuple[int, int], first: int, a: int, b: int,
        keys: tuple[int, ...] = _NO_KEYS,
    ) -> None:  # fmt: skip
        """Fill a new array, from block `first` on; in parts, if a binding cannot hold it."""
        flat = out.reshape(-1)
        most = self._range // (16 * draw.size) * 16
        for start in range(0, flat.size, most):
            part = flat[start : start + most]
            at = first + draw.blocks(start)
            begin = start if draw.mode == "PERMUTATION" else b
            self._launch(part, draw, key, at, a, begin, keys)

    def _launch(
        self, out: Array, draw: Draw, key: tuple[int, int], first: int, a: int, b: int,
        keys: tuple[int, ...],
    ) -> None:  # fmt: skip
        kernel = self._kernels.get(draw)
        if kernel is None:
            # Another thread may have made the same kernel meanwhile.
            kernel = self._kernels.setdefault(draw, self._make(draw))
        words, at = out.words()
        blocks = out.size if draw.mode == "PERMUTATION" else draw.blocks(out.size)
        each = max(self._least, min(-(-blocks // (512 * self._group)), _MOST_EACH))
        groups = -(-blocks // (each * self._group))
        across = min(groups, self._most_groups)
        rounds: dict[str, Any] = dict(zip(_KEYS, keys, strict=True))
        kernel(
            made=words, table=self._table(draw), made_at=at // 4, count=out.size,
            span=each * self._group, block_low=first & _WORD, block_high=first >> 32 & _WORD,
            key_0=key[0], key_1=key[1], a_low=a & _WORD, a_high=a >> 32, b_low=b & _WORD,
            b_high=b >> 32, **rounds,
            groups=(across, -(-groups // across)),
        )  # fmt: skip

    def _table(self, draw: Draw) -> Array:
        """The table of a distribution; kernels that need none get one, too."""
        name = f"{draw.table}{8 * draw.size}" if draw.table else "normal32"
        found = self._tables.get(name)
        if found is None:
            # Later calls use it, too: a graph that is being recorded must not be what writes it.
            with _executing(self.device.scheduler):
                made = self.device.array(tables()[name], name=f"quantiles {name}", role="weight")
            found = self._tables.setdefault(name, made)
        return found

    def _make(self, draw: Draw) -> Kernel:
        if draw.wide:
            Abilities.of(self.device.info).check("float64", self.device.info)
        table = tables()[f"{draw.table}{8 * draw.size}"] if draw.table else None
        signed = draw.table == "normal"
        constants = {
            "local_size_x": self._group, "MODE": _MODES[draw.mode], "SIZE": draw.size,
            "SIGNED": signed,
        }  # fmt: skip
        name = f"random {draw.table or draw.mode.lower()} of {8 * draw.size} bits"
        return Kernel.of_forms(
            self.device,
            partial(references.fill, draw.mode, draw.size, table, signed, draw.wide),
            spirv=KernelSource(_SHADER, name, _defines(draw.wide), constants),
            hip=KernelSource(
                _SHADER.with_suffix(".hip"), name,
                {**_defines(draw.wide), **{key: int(value) for key, value in constants.items()}},
                signature=_SIGNATURE, group_size=self._group,
            ),
        )  # fmt: skip


_SIGNATURE = "out bytes made, in bytes table, " + ", ".join(
    f"uint32 {name}"
    for name in (
        "made_at", "count", "span", "block_low", "block_high", "key_0", "key_1", "a_low", "a_high",
        "b_low", "b_high", *_KEYS,
    )
)  # fmt: skip


def every_variant() -> Iterator[dict[str, str | int | float]]:
    """The defines of every module of random.comp."""
    for wide in (False, True):
        yield _defines(wide)


def _defines(wide: bool) -> dict[str, str | int | float]:
    return {"WIDE": 1} if wide else {}


_WORD = 0xFFFFFFFF
_MASK = {1: _WORD, 2: _WORD, 4: _WORD, 8: (1 << 64) - 1}


def _shape(size: Shape | None) -> tuple[int, ...]:
    return () if size is None else as_shape(size)


def _axis(x: Array, axis: int) -> int:
    if not x.ndim or not -x.ndim <= axis < x.ndim:
        raise ShapeMismatch(f"axis {axis} of an array of {x.ndim} dimensions")
    return axis % x.ndim


@contextlib.contextmanager
def _executing(scheduler: Scheduler) -> Iterator[None]:
    """Execute what the calling thread does within, even while it records a graph."""
    thread = threading.get_ident()
    held = scheduler.captures.pop(thread, None)
    scheduler.note_state()
    try:
        yield
    finally:
        if held is not None:
            scheduler.captures[thread] = held
            scheduler.note_state()


def _number(name: str, value: Any) -> float:
    if isinstance(value, Array | np.ndarray) and value.ndim:
        raise ArgumentError(
            f"{name}= is an array; draw standard numbers and scale them: "
            "loc + scale * rng.standard_normal(size)"
        )
    return as_float(value, f"{name}=")


def _not_negative(name: str, value: Any) -> float:
    number = _number(name, value)
    if not number >= 0:
        raise InvalidValue(f"{name}={value}: it must not be negative")
    return number


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        advice = "; dev.array(a) brings it to the device" if isinstance(value, np.ndarray) else ""
        raise ArgumentError(f"{name}={value!r} is not an integer{advice}") from None
