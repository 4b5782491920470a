"""Zero-copy transfers: a pipeline of camera frames in, results out, in place or through staging.

Three frames are in flight. The camera has delivered each into host memory, with its number in the
first pixel; the device adds up every 16 pixels; the host looks at a few of the sums. On: the
frames are memory that the device uses in place, and results are looked at in device memory. Off:
device memory is not mapped, so a frame is copied into a staging buffer and from there by the
device, and a result the same way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.bench.measure import expect
from penstock.bench.mechanisms.comparison import Comparison, Mechanism, Plan, Row, Side
from penstock.bench.mechanisms.public_figures import BUS_NAME, over_bus

Host = npt.NDArray[np.uint32]

_SIZES = {"640 × 480": 640 * 480, "1280 × 720": 1280 * 720, "1920 × 1080": 1920 * 1080,
          "3840 × 2160": 3840 * 2160}  # fmt: skip
_IN_FLIGHT = 3
_LOOKED_AT = 16  # sums of a result that the host looks at

_SHRINK = """
layout(local_size_x = 256) in;
layout(binding = 0) uniform usamplerBuffer x;
layout(binding = 1) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform P { uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    uvec4 sum = uvec4(0);
    for (int k = 0; k < 4; ++k) sum += texelFetch(x, int(4u * i) + k);
    y[i] = sum.x + sum.y + sum.z + sum.w;
}
"""


class _Pipeline:
    """What both ways share: the kernel, the numbers of frames, and the check."""

    def __init__(self, device: ps.Device, pixels: int, frames: int) -> None:
        self.device = device
        self.count = frames
        self.shrink = device.kernel(_SHRINK, name="shrink", formats={"x": "rgba32ui"})
        self.sums = pixels // 16
        self.step = self.sums // _LOOKED_AT
        self.content = np.arange(pixels, dtype=np.uint32)
        self.expected = self.content.reshape(-1, 16).sum(axis=1, dtype=np.uint32)
        self.seen: list[Host] = []

    def run(self) -> None:
        waiting: list[Callable[[], Host]] = []
        for number in range(self.count):
            waiting.append(self.issue(number))
            if len(waiting) == _IN_FLIGHT:
                self.seen.append(waiting.pop(0)())
        self.seen += [look() for look in waiting]

    def issue(self, number: int) -> Callable[[], Host]:
        """Send a frame on its way; what is returned looks at the result, and waits for it."""
        raise NotImplementedError

    def launch(self, x: ps.Array, y: ps.Array) -> None:
        self.shrink(x=x, y=y, n=self.sums, threads=self.sums)

    def check(self) -> None:
        expected = self.expected[:: self.step]
        expect(len(self.seen) == self.count, "the pipeline")
        for number, seen in enumerate(self.seen):
            expect(bool(seen[0] == expected[0] + number), "a frame")
            expect(bool((seen[1:] == expected[1:]).all()), "a frame")
        self.seen.clear()

    def side(self) -> Side:
        return Side(self.run, self.check)


class _InPlace(_Pipeline):
    def __init__(self, device: ps.Device, pixels: int, frames: int) -> None:
        super().__init__(device, pixels, frames)
        self.frames: list[Host] = [device.host_empty(pixels, np.uint32) for _ in range(_IN_FLIGHT)]
        for frame in self.frames:
            frame[:] = self.content
        self.x = [device.adopt(frame, name="frame") for frame in self.frames]
        self.y = [
            device.empty(self.sums, np.uint32, name="result", role="output") for _ in self.frames
        ]

    def issue(self, number: int) -> Callable[[], Host]:
        slot = number % _IN_FLIGHT
        self.frames[slot][0] = number
        self.launch(self.x[slot], self.y[slot])
        return lambda: self.y[slot].view()[:: self.step].copy()


class _Staged(_Pipeline):
    def __init__(self, device: ps.Device, pixels: int, frames: int) -> None:
        super().__init__(device, pixels, frames)
        self.frames = [self.content.copy() for _ in range(_IN_FLIGHT)]
        self.x = [device.empty(pixels, np.uint32, name="frame") for _ in self.frames]
        self.y = [device.empty(self.sums, np.uint32, name="result") for _ in self.frames]

    def issue(self, number: int) -> Callable[[], Host]:
        slot = number % _IN_FLIGHT
        self.frames[slot][0] = number
        self.x[slot].write(self.frames[slot])
        self.launch(self.x[slot], self.y[slot])
        pending: Any = self.y[slot].read()
        return lambda: pending.result()[:: self.step].copy()


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    unmapped = ending.enter_context(ps.Device(plan.device.info.index, transfers="unmapped"))
    sizes = {"64 × 48": 64 * 48} if plan.quick else _SIZES
    for name, pixels in sizes.items():
        frames = 6 if plan.quick else max(6, min(16, 16_000_000 // pixels))
        on, off = _InPlace(plan.device, pixels, frames), _Staged(unmapped, pixels, frames)
        yield Comparison(
            f"frames of {name}", on.side(), off.side(), "frame", frames, 4 * pixels, unmapped
        )  # fmt: skip


def _elsewhere(rows: Sequence[Row]) -> str:
    row = max(rows, key=lambda one: one["size"])
    name = row["test"].removeprefix("frames of ")
    staging = 2 * row["size"]
    return (
        f"a frame of {name} takes {over_bus(row['size']) * 1e3:.2f} ms across {BUS_NAME}, "
        "whichever way is taken: in place the kernel's own loads cross it, with staging a device "
        f"copy does. Staging adds the copy in the host's memory ({staging / 1e6:.0f} MB read and "
        "written), as measured here. A kernel that reads a frame several times is better off with "
        "a copy in the device's memory."
    )


MECHANISM = Mechanism(
    "transfers", "zero-copy transfers",
    "frames and results stay in memory that host and device share",
    "each frame and each result goes through a staging buffer",
    compare,
    "Adding up the pixels takes most of the time of a frame: a driver on the CPU does not compute "
    "much faster than it copies.",
    _elsewhere,
)  # fmt: skip
