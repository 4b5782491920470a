"""Run the Game of Life as a graph: recorded once, replayed for every frame.

One replay computes several generations, which make a frame. The host reads a frame back while the
device computes the next. With Pillow installed the frames become a GIF, without it a PNG of the
last frame; `--live` shows the frames as they arrive, with matplotlib; `--text` prints the last.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from picture import write_png

import penstock as ps

STEP = """
// One generation on a torus; one invocation per cell.
layout(local_size_x = 8, local_size_y = 8) in;
layout(binding = 0) readonly buffer Now { uint now[]; };
layout(binding = 1) writeonly buffer Later { uint later[]; };
layout(push_constant) uniform Arguments { uint width; uint height; };

void main() {
    uvec2 at = gl_GlobalInvocationID.xy;
    if (at.x >= width || at.y >= height) return;
    uint alive = 0;
    for (uint k = 0; k < 9; ++k) {
        uint x = (at.x + width + k % 3 - 1) % width, y = (at.y + height + k / 3 - 1) % height;
        if (k != 4) alive += now[y * width + x];
    }
    uint cell = at.y * width + at.x;
    later[cell] = uint(alive == 3 || (alive == 2 && now[cell] == 1));
}
"""
Cells = npt.NDArray[np.uint32]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=192, help="cells a side (%(default)s)")
    parser.add_argument("--frames", type=int, default=60, help="(%(default)s)")
    parser.add_argument("--generations", type=int, default=4, help="in a frame (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("life.gif"), help="(%(default)s)")
    parser.add_argument("--live", action="store_true", help="show the frames in a window")
    parser.add_argument("--text", action="store_true", help="print the last frame")
    given = parser.parse_args(argv)
    if given.generations < 2 or given.generations % 2:
        parser.error("--generations must be even: the cells are back in their place then")

    with ps.Device(given.device) as dev:
        first = np.random.default_rng(7).integers(0, 2, (given.size,) * 2, dtype=np.uint32)
        with ps.trace() as receipt:
            frames = list(_shown(play(dev, first, given.frames, given.generations), given.live))
        check(first, frames[0], given.generations)
        print(f"{dev.name}: {len(frames)} frames, {receipt.replays} replays, "
              f"{receipt.submissions} submissions, {receipt.waits} waits")  # fmt: skip
    if given.text:
        print("\n".join("".join(" #"[cell] for cell in row) for row in frames[-1]))
    else:
        print(f"written to {save(given.output, frames)}")


def play(dev: ps.Device, first: Cells, frames: int, generations: int) -> Iterator[Cells]:
    """Yield frames as they arrive, each read while the next is computed."""
    step = dev.kernel(STEP, name="step")
    size = first.shape[0]
    a, b = dev.array(first, name="cells"), dev.empty(first.shape, np.uint32, name="next cells")
    with dev.record() as graph:
        for now, later in [(a, b), (b, a)] * (generations // 2):
            step(now=now, later=later, width=size, height=size, threads=(size, size))
    graph.replay()
    for _ in range(frames - 1):
        shown = a.read()  # the cells as of here; the next replay does not change the value
        graph.replay()
        yield shown.result()
    yield a.numpy()


def check(first: Cells, frame: Cells, generations: int) -> None:
    """Check that the first frame is what NumPy computes from the same start."""
    cells = first
    for _ in range(generations):
        around = [np.roll(cells, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1) if x or y]
        alive = np.sum(around, axis=0)
        cells = ((alive == 3) | ((alive == 2) & (cells == 1))).astype(np.uint32)
    assert np.array_equal(frame, cells)


def save(path: Path, frames: list[Cells]) -> Path:
    """Write a GIF of all frames (Pillow), else a PNG of the last, and return its path."""
    pictures = [np.kron(1 - frame, np.full((3, 3), 255)).astype(np.uint8) for frame in frames]
    try:
        from PIL import Image
    except ImportError:
        path = path.with_suffix(".png")
        write_png(path, pictures[-1])
        return path
    images = [Image.fromarray(picture) for picture in pictures]
    images[0].save(path, save_all=True, append_images=images[1:], duration=80, loop=0)
    return path


def _shown(frames: Iterator[Cells], live: bool) -> Iterator[Cells]:
    if not live:
        yield from frames
        return
    from matplotlib import pyplot

    picture: Any = None
    for frame in frames:
        if picture is None:
            picture = pyplot.imshow(frame, cmap="Greys", interpolation="nearest")
            pyplot.axis("off")
        picture.set_data(frame)
        pyplot.pause(0.01)
        yield frame


if __name__ == "__main__":
    main()
