"""Chooses how a device computes products: by its limits, then by measurement, once per driver.

The limits leave a few ways (`products.ways_for`), the one expected to be fastest first. If there
are several, the first model that is used on a device measures them on rows of its own weights; the
choice is kept in the cache directory for the device, its driver and this version of Penstock.
`llm.load(variants=…)` fixes it instead. Every way gives the same results up to float32 rounding.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import penstock as ps
from penstock.llm import kernels
from penstock.llm.products import Products, ways_for
from penstock.llm.weights import Piece, Weight

#: Seconds that the other ways may take, for one token and for several. The first way's kernels are
#: those that the model needs if it wins, so its time is no delay. It tells what another would take.
BUDGET = 0.1
_TOKENS = {"decode": 1, "batch": 16}
_ROWS = 512  # of a matrix, to measure with
_REPEAT = 3


@dataclass(frozen=True)
class Variants:
    """The ways to compute products, of `penstock.llm.kernels.WAYS`; None: chosen by measurement.

    `decode` is for one token at a time, `batch` for several.
    """

    decode: str | None = None
    batch: str | None = None

    def __post_init__(self) -> None:
        for name in (self.decode, self.batch):
            if name is not None and name not in kernels.WAYS:
                raise ps.InvalidValue(
                    f"variants: {name!r} is no way to compute products; choose one of "
                    f"{', '.join(kernels.WAYS)}"
                )

    @classmethod
    def expected(cls, device: ps.Device) -> Variants:
        """The ways that a device's limits suggest, without measuring."""
        way = ways_for(device)[0]
        return cls(way, way)


#: Nothing is fixed.
MEASURED = Variants()


def choose(
    device: ps.Device,
    weights: Mapping[str, Weight],
    fixed: Variants,
    compiled: kernels.Compiled | None = None,
) -> Variants:
    """Fill in what `fixed` leaves open. Measuring leaves its kernels in `compiled`."""
    if fixed.decode is not None and fixed.batch is not None:
        return fixed
    ways = ways_for(device)
    if len(ways) == 1:
        found = Variants(ways[0], ways[0])
    else:
        with _lock:
            found = _remembered(device, ways) or _measured(
                device, weights, ways, compiled or kernels.Compiled(device)
            )
    return Variants(fixed.decode or found.decode, fixed.batch or found.batch)


_lock = threading.Lock()
_known: dict[str, Variants] = {}


# Measuring.


def _measured(
    device: ps.Device,
    weights: Mapping[str, Weight],
    ways: list[str],
    compiled: kernels.Compiled,
) -> Variants:
    weight = _sample(weights)
    if weight is None:
        return Variants(ways[0], ways[0])
    found = Variants(
        *(_fastest(device, weight, ways, count, compiled) for count in _TOKENS.values())
    )
    _known[_key(device)] = found
    _write(device, found)
    return found


def _sample(weights: Mapping[str, Weight]) -> Weight | None:
    """Return some rows of a matrix of the model that has as many as possible of `_ROWS`."""
    matrices = [one for one in weights.values() if one.rows > 1]
    if not matrices:
        return None
    weight = max(matrices, key=lambda one: min(one.pieces[0].rows, _ROWS))
    whole = weight.pieces[0]
    rows = min(_ROWS, whole.rows)
    piece = Piece(whole.words, whole.first, 0, rows)
    return Weight(weight.name, weight.kind, rows, weight.columns, (piece,))


def _fastest(
    device: ps.Device, weight: Weight, ways: list[str], count: int, compiled: kernels.Compiled
) -> str:
    """Measure the ways in turn until the time is up."""
    x, y = device.zeros((count, weight.columns)), device.empty((count, weight.rows))
    taken: dict[str, float] = {}
    longest = others = 0.0  # seconds, compilation included
    for way in ways:
        if taken and others + longest > BUDGET:
            break
        begun = time.perf_counter()
        products = Products(device, way=way, compiled=compiled)
        found = _time(device, products, weight, x, y, count)
        spent = time.perf_counter() - begun
        longest = max(longest, spent)
        others += spent if taken else 0.0
        taken[way] = found
    return min(taken, key=lambda way: taken[way])


def _time(
    device: ps.Device, products: Products, weight: Weight, x: ps.Array, y: ps.Array, count: int
) -> float:
    products.multiply(weight, x, y, count)  # compiles
    device.synchronize()
    times = []
    for _ in range(_REPEAT):
        begun = time.perf_counter()
        products.multiply(weight, x, y, count)
        device.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times)


# Remembering.


def _key(device: ps.Device) -> str:
    info = device.info
    return f"{info.name}; {info.driver_info}; penstock {ps.__version__}"


def _file() -> Path | None:
    """The file beside the compiled kernels; None if its path would be relative.

    A program that can write the file can at most choose another way, which computes the same.
    """
    chosen = os.environ.get("PENSTOCK_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(chosen).absolute() if chosen else Path(home) / "penstock"
    return directory / "variants.json" if directory.is_absolute() else None


def _remembered(device: ps.Device, ways: list[str]) -> Variants | None:
    key = _key(device)
    if key not in _known:
        entry = _read().get(key)
        if not isinstance(entry, dict):
            return None
        decode, batch = entry.get("decode"), entry.get("batch")
        if decode not in ways or batch not in ways:
            return None
        _known[key] = Variants(decode, batch)
    return _known[key]


def _read() -> dict[str, object]:
    path = _file()
    try:
        found = {} if path is None else json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(device: ps.Device, found: Variants) -> None:
    """Add an entry. A directory that cannot be written only means measuring again."""
    path = _file()
    if path is None:
        return
    try:
        content = json.dumps({**_read(), _key(device): asdict(found)}, indent=1)
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        pass
