"""What CPU access costs a loop shaped like decoding, under rules that others use and under ours.

For each of 64 tokens the host writes a token id, looks at a weight, launches a step that reads
both, appends to a cache and writes logits, and looks at an older row of the cache; every eighth
token it reads the logits, which nothing can spare it from waiting for. The first three rules are
kept by hand, with events, on plain arrays.

=================  ============================================================================
everything         any access waits for all work
last use           an access waits for the last work that used the buffer, reads included
read/write split   a read waits for the last write of the buffer, a write for its last use
split + rename     Penstock without roles: by byte range, and writes go to fresh memory
roles              Penstock with roles; logits are an output, so that the next step need not wait
=================  ============================================================================
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np

import penstock as ps
from benchmarks.tables import Row, Section, times
from penstock.bench.measure import Case, expect, interleave

TOKENS = 64
EVERY = 8  # tokens from one look at the logits to the next
WIDTH = 1024
_SPIN = 2000  # rounds of each invocation: a step takes longer than the host's part

_STEP = """
layout(local_size_x = 256) in;
layout(binding = 0) readonly buffer T { uint token[]; };
layout(binding = 1) readonly buffer W { uint weight[]; };
layout(binding = 2) writeonly buffer R { uint row[]; };
layout(binding = 3) writeonly buffer L { uint logits[]; };
layout(push_constant) uniform P { uint n; uint spin; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint h = i;
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    uint value = token[0] + weight[i] + (h == 1u && n == 0u ? 1u : 0u);
    if (i < n) { row[i] = value; logits[i] = 2u * value; }
}
"""


class _Loop:
    """The loop, and when each buffer was last read and written."""

    def __init__(self, device: ps.Device, rule: str) -> None:
        roles = rule == "roles"
        self._rule = rule
        self._device = device
        self._step = device.kernel(_STEP, name="step")
        weight = np.arange(WIDTH, dtype=np.uint32)
        self._weight = device.array(weight, role="weight" if roles else "generic", name="weight")
        self._cache = device.zeros(
            (TOKENS, WIDTH), np.uint32, role="append" if roles else "generic", name="cache"
        )
        self._logits = device.zeros(
            WIDTH, np.uint32, role="output" if roles else "generic", name="logits"
        )
        self._token = device.zeros(1, np.uint32, name="token")
        self._last_read: dict[str, ps.Event] = {}
        self._last_write: dict[str, ps.Event] = {}

    def run(self) -> None:
        if self._rule == "roles":
            self._cache.reset()
        for number in range(TOKENS):
            self._host_access(self._token, write=True)
            self._token.write(np.array([number], np.uint32))
            self._host_access(self._weight)
            expect(self._weight[3].numpy() == 3, "the weight")
            self._launch(number)
            known = (
                number // EVERY * EVERY - 1
            )  # the last row of which the step is known to be done
            if known >= 0:
                self._host_access(self._cache)
                expect(self._cache[known, :4].numpy()[1] == known + 1, "the cache")
            if number % EVERY == EVERY - 1:
                self._host_access(self._logits)
                expect(self._logits.numpy()[2] == 2 * (number + 2), "the logits")

    def _launch(self, number: int) -> None:
        self._step(
            token=self._token, weight=self._weight, row=self._cache[number], logits=self._logits,
            n=WIDTH, spin=_SPIN, threads=WIDTH,
        )  # fmt: skip
        if self._rule in ("last use", "read/write split"):
            done = self._device.default_stream.record()
            self._last_read |= {"token": done, "weight": done}
            self._last_write |= {"cache": done, "logits": done}

    def _host_access(self, array: ps.Array, write: bool = False) -> None:
        """Wait as the rule says; Penstock's own rules wait where the access is made."""
        if self._rule == "everything":
            self._device.synchronize()
        waits = [self._last_write.get(array.name)]
        if write or self._rule == "last use":
            waits.append(self._last_read.get(array.name))
        for event in waits:
            if event is not None:
                event.wait()


RULES = ("everything", "last use", "read/write split", "split + rename", "roles")


def run(device: ps.Device, repeat: int) -> list[Section]:
    loops = {rule: _Loop(device, rule) for rule in RULES}
    cases: dict[str, Case] = {n: partial(_timed, lo) for n, lo in loops.items()}
    samples = interleave(cases, repeat)
    rows: list[Row] = []
    for rule, loop in loops.items():
        device.synchronize()
        with ps.trace() as receipt:
            loop.run()
        device.synchronize()
        rows.append(
            {
                "rule": rule,
                "waits": receipt.waits,
                "seconds_waited": sum(event.seconds for event in receipt.of_kind("wait")),
                "renames": receipt.renames,
                "copies": receipt.copies,
                "submissions": receipt.submissions,
                **times(samples[rule]),
            }
        )
    title = f"{TOKENS} tokens of a decode-shaped loop, one row per rule for CPU access"
    return [Section(title, rows, (f"{repeat} interleaved rounds; every value read is checked",))]


def _timed(loop: _Loop) -> float:
    start = time.perf_counter()
    loop.run()
    loop._device.synchronize()
    return time.perf_counter() - start
