"""Chooses how a device computes products and attention: by its limits, then by measuring, once.

The limits leave a few ways (`products.ways_for`, `layers.attention_ways`), the one expected to be
fastest first. If there are several, a model measures them on a few rows of its own weights, of the
kind that most of them have; the choice is kept in the cache directory for the device, its driver,
that kind and this version of Penstock. Compiling takes most of the time, so a model measures only
what fits into `BUDGET`, and leaves the rest to the next one; until then the expected way is taken.
`llm.load(variants=…)` fixes it instead. Every way gives the same results up to float32 rounding,
except "packed", which rounds activations to 8 bits and so is taken only if the caller names it.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import penstock as ps
from penstock.llm import attention_choice, kernels
from penstock.llm.attention import ATTENTION_WAYS, attention_ways
from penstock.llm.attention_choice import Heads
from penstock.llm.compiling import Compiled
from penstock.llm.processor import cpu_name
from penstock.llm.products import Products, ways_for
from penstock.llm.weights import Piece, Weight

#: Seconds that choosing the ways of products may take. The kernels of the way that wins are those
#: that the model needs, so they do not count. The time of one way tells what another would take.
BUDGET = 0.15
_TOKENS = {"decode": 1, "batch": 16}
_ROWS = 512  # of a matrix, to measure with
_REPEAT = 3


@dataclass(frozen=True)
class Variants:
    """The ways to compute products and attention; None: chosen by measurement.

    `decode` is for products of one token at a time, `batch` for those of several, both of
    `penstock.llm.kernels.WAYS`. `attention` is for attention of several tokens, of
    `penstock.llm.attention.ATTENTION_WAYS`. `seconds` is how long choosing them took, with nothing
    remembered or fixed.
    """

    decode: str | None = None
    batch: str | None = None
    attention: str | None = None
    seconds: float = field(default=0.0, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in (self.decode, self.batch):
            if name is not None and name not in kernels.WAYS:
                raise ps.InvalidValue(
                    f"variants: {name!r} is no way to compute products; choose one of "
                    f"{', '.join(kernels.WAYS)}"
                )
        if self.attention not in (None, *ATTENTION_WAYS):
            raise ps.InvalidValue(
                f"variants: {self.attention!r} is no way to compute attention; choose one of "
                f"{', '.join(ATTENTION_WAYS)}"
            )

    @classmethod
    def expected(cls, device: ps.Device) -> Variants:
        """The ways that a device's limits suggest, without measuring."""
        decode, batch = (ways_for(device, count)[0] for count in _TOKENS.values())
        return cls(decode, batch, attention_ways(device)[0])

    def filled(self, others: Variants) -> Variants:
        """These, and where they leave something open, the others."""
        return Variants(
            self.decode or others.decode,
            self.batch or others.batch,
            self.attention or others.attention,
            seconds=self.seconds or others.seconds,
        )


#: Nothing is fixed.
MEASURED = Variants()


def choose(
    device: ps.Device,
    weights: Mapping[str, Weight],
    fixed: Variants,
    heads: Heads | None = None,
    compiled: Compiled | None = None,
) -> Variants:
    """Fill in what `fixed` leaves open. Measuring leaves its kernels in `compiled`.

    Without `heads`, attention is computed in the way expected to be fastest.
    """
    with _lock:
        found = _settled(device, weights, fixed, heads)
        if not found.is_open:
            return found.variants()
        compiled = compiled or Compiled(device)
        spent, longest = 0.0, 0.0
        for name, count in _TOKENS.items():
            if found.chosen[name] is None:
                assert found.weight is not None
                ways = ways_for(device, count)
                taken = _measured(
                    device, found.weight, ways, count, compiled, BUDGET - spent, longest
                )
                found.chosen[name] = taken.fastest
                spent, longest = spent + taken.delay, taken.longest
                if taken.compared:
                    _remember(_key(device, _named(found.weight)), name, taken.fastest)
        if found.chosen["attention"] is None:
            assert heads is not None
            begun = time.perf_counter()
            way = attention_choice.fastest(device, heads, attention_ways(device), compiled)
            spent += time.perf_counter() - begun
            found.chosen["attention"] = way
            _remember(_key(device, str(heads)), "attention", way)
        return found.variants(spent)


def known(
    device: ps.Device, weights: Mapping[str, Weight], fixed: Variants, heads: Heads | None = None
) -> Variants | None:
    """What `choose` returns without measuring; None if something is yet to be measured."""
    found = _settled(device, weights, fixed, heads)
    return None if found.is_open else found.variants()


_lock = threading.RLock()  # reentrant: a signal handler may load a model, too
_known: dict[tuple[str, str], str] = {}


class _Settled(NamedTuple):
    """What is known without measuring; None if it must be measured, with rows of `weight`."""

    chosen: dict[str, str | None]
    weight: Weight | None

    @property
    def is_open(self) -> bool:
        return None in self.chosen.values()

    def variants(self, seconds: float = 0.0) -> Variants:
        return Variants(**self.chosen, seconds=seconds)


def _settled(
    device: ps.Device, weights: Mapping[str, Weight], fixed: Variants, heads: Heads | None
) -> _Settled:
    weight = _sample(weights)
    chosen: dict[str, str | None] = {"decode": fixed.decode, "batch": fixed.batch}
    for name, count in _TOKENS.items():
        if chosen[name] is None:
            ways = ways_for(device, count)
            chosen[name] = (
                ways[0]
                if len(ways) == 1 or weight is None
                else _remembered(_key(device, _named(weight)), name, ways)
            )
    chosen["attention"] = fixed.attention
    if fixed.attention is None:
        ways = attention_ways(device)
        chosen["attention"] = (
            ways[0]
            if len(ways) == 1 or heads is None
            else _remembered(_key(device, str(heads)), "attention", ways)
        )
    return _Settled(chosen, weight)


# Measuring.


class _Measured(NamedTuple):
    fastest: str
    compared: bool  # all ways were measured
    delay: float  # seconds, without the time to compile the fastest
    longest: float  # seconds that any way took, compilation included


def _sample(weights: Mapping[str, Weight]) -> Weight | None:
    """Return some rows of a matrix, of the kind that has most weights in the model."""
    matrices = [one for one in weights.values() if one.rows > 1]
    if not matrices:
        return None
    counts: Counter[str] = Counter()
    for one in matrices:
        counts[one.kind] += one.rows * one.columns * max(1, one.experts)
    kind = counts.most_common(1)[0][0]
    weight = max(
        (one for one in matrices if one.kind == kind),
        key=lambda one: min(one.pieces[0].rows, _ROWS),
    )
    whole = weight.pieces[0]
    rows = min(_ROWS, whole.rows)
    piece = Piece(whole.words, whole.first, 0, rows)
    return Weight(weight.name, weight.kind, rows, weight.columns, (piece,))


def _measured(
    device: ps.Device,
    weight: Weight,
    ways: list[str],
    count: int,
    compiled: Compiled,
    budget: float,
    longest: float,
) -> _Measured:
    """Measure the ways in turn, as long as another one is likely to fit into the budget.

    `longest` is how long any way took before: perhaps the first is compiled, and others are not.
    """
    x, y = device.zeros((count, weight.columns)), device.empty((count, weight.rows))
    taken: dict[str, _Time] = {}
    others = 0.0
    for way in ways:
        if taken and others + longest > budget:
            break
        products = Products(device, way=way, compiled=compiled)
        taken[way] = found = _time(device, products, weight, x, y, count)
        longest = max(longest, found.first + found.rest)
        others += found.rest + (found.first if len(taken) > 1 else 0.0)
    fastest = min(taken, key=lambda way: taken[way].best)
    everything = sum(one.first + one.rest for one in taken.values())
    delay = everything - taken[fastest].first
    return _Measured(fastest, len(taken) == len(ways), delay, longest)


class _Time(NamedTuple):
    first: float  # seconds of the first product, which compiles
    rest: float  # of all others
    best: float  # of the fastest


def _time(
    device: ps.Device, products: Products, weight: Weight, x: ps.Array, y: ps.Array, count: int
) -> _Time:
    times = []
    for _ in range(1 + _REPEAT):
        begun = time.perf_counter()
        products.multiply(weight, x, y, count)
        device.synchronize()
        times.append(time.perf_counter() - begun)
    return _Time(times[0], sum(times[1:]), min(times[1:]))


# Remembering.


def _named(weight: Weight) -> str:
    """What a choice holds for: another way may be the fastest for matrices of another size."""
    return f"{weight.kind} of {weight.rows} × {weight.columns}"


def _key(device: ps.Device, what: str) -> str:
    info = device.info
    # A driver for CPUs has the same name on each of them.
    name = f"{info.name} on {cpu_name()}" if info.kind == "cpu" else info.name
    return f"{name}; {info.driver_info}; penstock {ps.__version__}; {what}"


def _file() -> Path | None:
    """The file beside the compiled kernels; None if its path would be relative.

    A program that can write the file can at most choose another way, which computes the same.
    """
    chosen = os.environ.get("PENSTOCK_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(chosen).absolute() if chosen else Path(home) / "penstock"
    return directory / "variants.json" if directory.is_absolute() else None


def _remembered(key: str, name: str, ways: list[str]) -> str | None:
    if (key, name) not in _known:
        entry = _read().get(key)
        found = entry.get(name) if isinstance(entry, dict) else None
        if found not in ways:
            return None
        _known[key, name] = found
    return _known[key, name]


def _read() -> dict[str, object]:
    path = _file()
    try:
        found = {} if path is None else json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(key: str, name: str, way: str) -> None:
    """Add an entry. A directory that cannot be written only means measuring again."""
    _known[key, name] = way
    path = _file()
    if path is None:
        return
    try:
        entries = _read()
        entry = entries.get(key)
        entries[key] = {**(entry if isinstance(entry, dict) else {}), name: way}
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(json.dumps(entries, indent=1))
        os.replace(file.name, path)
    except OSError:
        pass
