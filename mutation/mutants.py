"""Every barrier, wait, visibility operation, retirement check and rename, removed or weakened.

A mutant is a piece of source text and what stands there instead. The text must occur exactly once,
so that a mutant cannot silently miss when the code changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    module: str
    old: str
    new: str


MUTANTS = [
    # Barriers and visibility.
    Mutant("no barrier between commands", "stream", "            recording.barrier()\n", ""),
    Mutant(
        "results not published to the host", "stream", "            recording.publish()\n", ""
    ),
    Mutant(
        "host copy not acquired by the device",
        "stream",
        "                recording.acquire()\n",
        "                pass\n",
    ),
    Mutant(
        "host writes not flushed",
        "access",
        "        scheduler.driver.flush(",
        "        _nothing() and scheduler.driver.flush(",
    ),
    Mutant(
        "host reads not invalidated",
        "access",
        "        scheduler.driver.invalidate(",
        "        _nothing() and scheduler.driver.invalidate(",
    ),
    # The ledger.
    Mutant(
        "a write does not mind reads",
        "hazards",
        "        if write and self.reads:\n            found +=",
        "        if False:\n            found +=",
    ),
    Mutant(
        "reads of several lanes count as one",
        "hazards",
        "if not ((write or a.lane is lane) and region.covers(a.region))",
        "if not region.covers(a.region)",
    ),
    Mutant(
        "a write covers what it only touches",
        "hazards",
        "        return self.lo <= other.lo and other.hi <= self.hi\n",
        "        return True\n",
    ),
    Mutant(
        "conflicts of the same lane need no barrier",
        "hazards",
        "                barrier = True\n",
        "                barrier = False\n",
    ),
    Mutant(
        "conflicts of other lanes need no wait",
        "hazards",
        "            waits[other] = max(waits.get(other, 0), access.value)\n",
        "            pass\n",
    ),
    Mutant(
        "a conflict of the epoch before last needs no barrier",
        "hazards",
        "access.epoch >= lane.epoch and",
        "access.epoch > lane.epoch and",
    ),
    Mutant(
        "the host does not wait for the newest conflict",
        "hazards",
        "            waits[lane] = access.value\n",
        "            waits.setdefault(lane, access.value - 1)\n",
    ),
    Mutant(
        "commands are not written down", "stream", "        note_all(uses, lane, value, what)\n", ""
    ),
    # Waits on the device.
    Mutant(
        "a submission waits for nothing",
        "stream",
        "self.queue.submit(recording, waits, self.timeline, value)",
        "self.queue.submit(recording, [], self.timeline, value)",
    ),
    Mutant(
        "Stream.wait does nothing",
        "stream",
        "                self.wait_for_lanes(event._points)",
        "                pass",
    ),
    Mutant(
        "work waited for is not submitted",
        "stream",
        "            other.owner.ensure_submitted(value)\n",
        "",
    ),
    # Waits on the host.
    Mutant(
        "a busy array counts as idle",
        "access",
        "    return needs_of_host(found)\n",
        "    return {}\n",
    ),
    Mutant(
        "an event forgets the stream's own work",
        "stream",
        "            points[self.lane] = self.lane.recorded\n",
        "            pass\n",
    ),
    Mutant(
        "an event forgets host copies",
        "stream",
        "            points[copies] = copies.submitted\n",
        "            pass\n",
    ),
    Mutant(
        "an event forgets what the stream waits for",
        "stream",
        "        points = {lane: value for lane, value in self._waits.items() "
        "if value > lane.complete}\n",
        "        points: dict[Lane, int] = {}\n",
    ),
    # Host copies in stream order.
    Mutant(
        "an ordered copy does not wait for its predecessors",
        "copier",
        "            scheduler.await_points(after)\n",
        "",
    ),
    Mutant(
        "an ordered copy is not written down",
        "transfer",
        "    backing.history.note(array.region, True, copier.lane, value, what)\n",
        "",
    ),
    Mutant(
        "a copy onto itself goes without a temporary",
        "transfer",
        "        if origin is target and source.region.overlaps(array.region):",
        "        if False:",
    ),
    # Memory.
    Mutant(
        "memory in use by the device is reused",
        "memory",
        "return not self.holds and not self.history.pending()",
        "return not self.holds",
    ),
    Mutant(
        "memory shown to the host is reused",
        "memory",
        "return not self.holds and not self.history.pending()",
        "return not self.history.pending()",
    ),
    Mutant(
        "a rename keeps the busy backing",
        "transfer",
        "            buffer.rename(why)\n",
        "            pass\n",
    ),
    Mutant(
        "a snapshot is not taken",
        "transfer",
        "    if not case.busy:\n        return \"direct\"",
        "    if True:\n        return \"direct\"",
    ),
    Mutant(
        "a held view is written under its holder",
        "buffer",
        "        if not write or not shown:\n            return\n",
        "        return\n",
    ),
    Mutant(
        "a rename loses what is not overwritten",
        "buffer",
        "        if not overwrite or region.pitch",
        "        if False and region.pitch",
    ),
]  # fmt: skip
