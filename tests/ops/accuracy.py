"""`python -m tests.ops.accuracy [samples]`: the largest error of each function, as a table.

Columns are drivers and dtypes; a number is the largest error in units in the last place (of complex
numbers, of the absolute value) among all special values, their pairs, and `samples` others.
"""

from __future__ import annotations

import argparse

import numpy as np

import penstock as ps
from penstock.ops.arithmetic import FUNCTIONS, Compute
from tests.conftest import DRIVERS
from tests.ops import sweeps

_COMPUTES: tuple[Compute, ...] = ("f32", "f64", "c64", "c128")


def main(count: int) -> None:
    columns = []
    for driver in DRIVERS:
        if any(driver in info.name for info in ps.devices()):
            with ps.Device(driver) as device:
                columns += [
                    (f"{driver} {sweeps.DTYPES[each]}", measure(device, each, count))
                    for each in _COMPUTES
                    if each in sweeps.computes(device) and sweeps.precise_enough(each)
                ]
    print("| function |", " | ".join(title for title, _ in columns), "|")
    print("|---|" + "--:|" * len(columns))
    for name in FUNCTIONS:
        cells = [errors.get(name) for _, errors in columns]
        if any(cells):
            texts = [
                "" if each is None else "exact" if not each else f"{each:.2f}" for each in cells
            ]
            print(f"| `{name}` |", " | ".join(texts), "|")


def measure(device: ps.Device, compute: Compute, count: int) -> dict[str, float]:
    """The largest error of each function that rounds; infinite if a special value is wrong."""
    found = {}
    flushes = sweeps.flushes(device)
    for bundle, functions in sweeps.bundles(device, compute):
        for function in functions:
            values = sweeps.operands(function, compute, count)
            want = sweeps.wanted(function, compute, values)
            got = bundle(function.name, *values)
            if got.dtype.kind == "b":
                continue
            error = sweeps.error(function, got, want, values)
            keep = ~sweeps.excused(function, values, want)
            if flushes:
                keep &= sweeps.without_subnormals(values, want)
            found[function.name] = float(np.max(error[keep], initial=0))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.ops.accuracy",
        description="The largest error of each function, in units in the last place, as a table.",
    )
    parser.add_argument(
        "samples", type=int, nargs="?", default=1 << 16,
        help="values, besides the special ones (%(default)s)",
    )  # fmt: skip
    main(parser.parse_args().samples)
