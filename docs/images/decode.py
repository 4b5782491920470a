"""A program to look at: steps of launches that each end in a read, and uploads meanwhile.

penstock trace docs/images/decode.py
"""

from __future__ import annotations

import threading
import time

import numpy as np

import penstock as ps

SIZE = 1 << 15
LAYER = """
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer W { float w[]; };
layout(binding = 1) buffer H { float h[]; };
layout(push_constant) uniform Arguments { float a; uint n; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    float sum = h[i];
    for (uint k = 0; k < 40; ++k) sum = 0.5 * sum + a * w[(i + k) % n];
    h[i] = sum;
}
"""

dev = ps.Device()
layer = dev.kernel(LAYER, name="layer")
weights = dev.array(np.random.default_rng(0).random(SIZE, np.float32), name="weights")
hidden, pages = dev.zeros(SIZE, name="hidden"), dev.zeros(SIZE, name="pages")
embedding = np.ones(SIZE, np.float32)
uploads = dev.stream(name="uploads")


def run(target: ps.Array, times: int, stream: ps.Stream | None = None) -> None:
    for _ in range(times):
        layer(w=weights, h=target, a=0.1, n=SIZE, threads=SIZE, stream=stream)


def prefetch() -> None:
    for _ in range(5):
        pages.write(embedding, stream=uploads)
        run(pages, 1, uploads)
        uploads.flush()
        time.sleep(0.03)
    pages[:16].numpy()


def decode(steps: int) -> None:
    for _ in range(steps):
        hidden.write(embedding)
        run(hidden, 6)
        value = hidden[-1].item()  # the host wants a value, so it waits
        choose(value)


def choose(value: float) -> None:
    """Work of the host's, in which the device has nothing to run."""
    time.sleep(0.02 + 0.001 * (value > 0))


worker = threading.Thread(target=prefetch, name="prefetch")
worker.start()
decode(6)
worker.join()
