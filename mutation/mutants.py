"""Every barrier, wait, visibility operation, retirement check and rename, removed or weakened.

A mutant is a piece of source text and its replacement. The text must occur exactly once, so that a
mutant cannot silently stop applying when the code changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mutant:
    """A safeguard removed; `also` has further changes that are needed to remove it entirely."""

    name: str
    module: str
    old: str
    new: str
    also: tuple[Mutant, ...] = ()
    driver: str = "sim"

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """Module, old text and new text of every change."""
        own = [(self.module, self.old, self.new)]
        return own + [change for other in self.also for change in other.changes]


def _late(indent: int) -> str:
    """Statements that hand a write to the copier thread, which waits for nothing."""
    space = " " * indent
    late = "late = _write_ordered(array, data, on, {}, why, what)"
    return f"{space}{late}\n{space}return late\n"


def _put_off(name: str, *, when: str) -> Mutant:
    """A mutant that defers writes to mapped memory until after the call, if `when` holds.

    Covers writes in place and to a fresh backing.
    """
    fresh = Mutant(
        "and so is one to fresh memory",
        "array.transfer",
        "            fill_it()\n            buffer.rename(why, fresh)\n",
        f"            if not {when}:\n                fill_it()\n"
        f"            buffer.rename(why, fresh)\n            if {when}:\n{_late(16)}",
    )
    return Mutant(
        name,
        "array.transfer",
        "    buffer.wrote(array.region)\n    host_copy(",
        f"    if {when}:\n{_late(8)}    host_copy(",
        also=(fresh,),
    )


_SINGLE = [
    # Barriers and visibility.
    Mutant(
        "no barrier between commands",
        "schedule.stream",
        "            recording.barrier()\n",
        "            pass\n",
    ),
    Mutant(
        "results not published to the host",
        "schedule.stream",
        "                batch.recording.publish()\n",
        "",
    ),
    Mutant(
        "host copy not acquired by the device",
        "schedule.stream",
        "                batch.recording.acquire()\n",
        "                pass\n",
    ),
    Mutant(
        "host writes not flushed",
        "array.host_access",
        "        scheduler.driver.flush(",
        "        _nothing() and scheduler.driver.flush(",
    ),
    Mutant(
        "a quick transfer does not mind what is pending",
        "array.host_access",
        "        or ((history.writes or history.reads) and any(in_flight(",
        "        or (False and any(in_flight(",
    ),
    Mutant(
        "host reads not invalidated",
        "array.host_access",
        "        scheduler.driver.invalidate(",
        "        _nothing() and scheduler.driver.invalidate(",
    ),
    # The ledger.
    Mutant(
        "a write does not mind reads",
        "ledger.hazards",
        "            near = self.near(region, write)\n",
        "            near = self.near(region, False)\n",
        also=(
            Mutant(
                "of a command",
                "ledger.hazards",
                "        elif write and history.reads:\n",
                "        elif False:\n",
            ),
        ),
    ),
    Mutant(
        "reads of several lanes count as one",
        "ledger.hazards",
        "if a is new or not ((not lane or a.lane is lane) and region.covers(a.region))",
        "if a is new or not region.covers(a.region)",
    ),
    Mutant(
        "a write covers what it only touches",
        "ledger.hazards",
        "        return self.lo <= other.lo and other.hi <= self.hi\n",
        "        return True\n",
    ),
    Mutant(
        "conflicts of the same lane need no barrier",
        "ledger.hazards",
        "                    behind = access\n",
        "                    behind = None\n",
    ),
    Mutant(
        "conflicts of other lanes need no wait",
        "ledger.hazards",
        "            waits[other] = max(waits.get(other, 0), access.value)\n",
        "            pass\n",
    ),
    Mutant(
        "a conflict of the epoch before last needs no barrier",
        "ledger.hazards",
        "access.epoch >= lane.epoch and",
        "access.epoch > lane.epoch and",
    ),
    Mutant(
        "the host does not wait for the newest conflict",
        "ledger.hazards",
        "            waits[lane] = access.value\n",
        "            waits.setdefault(lane, access.value - 1)\n",
    ),
    Mutant(
        "commands are not written down",
        "schedule.stream",
        "        note_all(uses, lane, batch.value, what)\n",
        "",
    ),
    # Waits on the device.
    Mutant(
        "a submission waits for nothing",
        "schedule.stream",
        "self.queue.submit(batch.recording, waits, self.timeline, value)",
        "self.queue.submit(batch.recording, [], self.timeline, value)",
    ),
    Mutant(
        "Stream.wait does nothing",
        "schedule.stream",
        "            self.wait_for_lanes(points)\n            if events",
        "            if events",
    ),
    Mutant(
        "work waited for is not submitted",
        "schedule.stream",
        "            other.owner.ensure_submitted(value)\n",
        "",
    ),
    # Waits on the host.
    Mutant(
        "a busy array counts as idle",
        "array.host_access",
        "                self.points = needs_of_host(self.pending)\n",
        "                self.points = {}\n",
    ),
    Mutant(
        "an event forgets the stream's own work",
        "schedule.stream",
        "            points[lane] = recorded\n",
        "            pass\n",
    ),
    Mutant(
        "an event forgets host copies",
        "schedule.stream",
        "            points[copies] = copies.submitted\n",
        "            pass\n",
    ),
    Mutant(
        "an event forgets what the stream waits for",
        "schedule.stream",
        "        points = {lane: value for lane, value in self._waits.items() "
        "if value > lane.complete}\n",
        "        points: dict[Lane, int] = {}\n",
    ),
    # Host copies in stream order.
    Mutant(
        "an ordered copy does not wait for its predecessors",
        "schedule.ordered_copies",
        "                scheduler.await_points(task.after, closing=True)\n",
        "                pass\n",
        also=(
            Mutant(
                "nor does an inline driver mind",
                "schedule.ordered_copies",
                "        if self._next is None or not all(\n",
                "        if self._next is None or False and not all(\n",
            ),
        ),
    ),
    Mutant(
        "predecessors of an ordered copy are not submitted",
        "array.transfer",
        "        lane.owner.ensure_submitted(value)\n",
        "        pass\n",
    ),
    Mutant(
        "an ordered copy is not written down",
        "array.transfer",
        "        backing.history.note(array.region, True, copier.lane, value, what)\n",
        "",
    ),
    Mutant(
        "a copy onto itself goes without a temporary",
        "array.copying",
        "        if origin is target and source.region.overlaps(array.region):",
        "        if False:",
    ),
    # Memory.
    Mutant(
        "memory in use by the device is reused",
        "memory.backing",
        "return not (self.holds or self.history.in_flight)",
        "return not self.holds",
    ),
    Mutant(
        "memory shown to the host is reused",
        "memory.backing",
        "return not (self.holds or self.history.in_flight)",
        "return not self.history.in_flight",
    ),
    Mutant(
        "scratch memory handed on without its history",
        "memory.pool",
        "                    handed_on.remove(backing)\n",
        "                    handed_on.remove(backing)\n"
        "                    backing.history = History()\n",
    ),
    Mutant(
        "a rename keeps the busy backing",
        "array.transfer",
        "        fresh = buffer.new_backing()\n        target",
        "        fresh = buffer.backing\n        target",
        also=(
            Mutant(
                "",
                "array.transfer",
                "            buffer.rename(why, fresh)\n            buffer.wrote(array.region)\n"
                "        else",
                "        else",
            ),
        ),
    ),
    Mutant(
        "a snapshot is not taken",
        "array.transfer",
        '    if not case.busy:\n        return "direct"',
        '    if True:\n        return "direct"',
    ),
    Mutant(
        "a held view is written under its holder",
        "array.buffer",
        "        if not write or all(view.writable for view in shown):\n            return\n",
        "        return\n",
    ),
    Mutant(
        "a rename loses what is not overwritten",
        "array.buffer",
        "        if keep:\n",
        "        if False:\n",
    ),
    Mutant(
        "reads share the memory of their results",
        "array.staging",
        "    block = scheduler.host_pool.allocate(array.nbytes)\n    packed =",
        "    block = vars(scheduler).setdefault(\"_shared\", None) or "
        "scheduler.host_pool.allocate(array.nbytes)\n"
        "    block.holds += scheduler._shared is None\n"
        "    scheduler._shared = block\n    packed =",
        also=(
            Mutant(
                "which is not given back",
                "array.staging",
                "write=True)\n    finally:\n        scheduler.host_pool.retire(block)\n",
                "write=True)\n    finally:\n        pass\n",
            ),
        ),
    ),
    Mutant(
        "a strided write counts as one block",
        "array.host_access",
        "        width, starts = row_offsets(layout)\n",
        "        width, starts = row_offsets(layout)\n"
        "        starts, width = starts[:1], int(starts[-1] - starts[0]) + width\n",
    ),
    # Barriers are not waits of the host.
    Mutant(
        "the host takes a barrier for a wait",
        "ledger.hazards",
        "        if access.value > lane.complete and access.value > waits.get(lane, 0):\n",
        "        if access.value > max(lane.complete, waits.get(lane, 0)) and "
        "access.epoch >= lane.epoch:\n",
    ),
    Mutant(
        "a recording with a barrier is not published to the host",
        "schedule.stream",
        "                batch.recording.publish()\n",
        "                if \"barrier\" not in batch.recording.commands:\n"
        "                    batch.recording.publish()\n",
    ),
    # Waits for more work than needed.
    Mutant(
        "the host waits for the newest work of a lane",
        "schedule.scheduler",
        "            return self.await_points(points, timeout)\n",
        "            return self.await_points({lane: lane.recorded for lane in points}, timeout)\n",
    ),
    Mutant(
        "a stream waits for the newest work of another",
        "schedule.stream",
        "self._waits[other] = max(value, self._waits.get(other, 0))",
        "self._waits[other] = other.recorded",
    ),
    Mutant(
        "an ordered copy waits for the newest work of a lane",
        "schedule.ordered_copies",
        "                scheduler.await_points(task.after, closing=True)\n",
        "                newest = {lane: lane.submitted for lane in task.after}\n"
        "                scheduler.await_points(newest, closing=True)\n",
        also=(
            Mutant(
                "and so does an inline driver",
                "schedule.ordered_copies",
                "            value <= (lane.complete if",
                "            lane.submitted <= (lane.complete if",
            ),
        ),
    ),
    Mutant(
        "a host copy waits for the newest copy of a lane",
        "schedule.host_lane",
        "            return self.aborted or self.lane.complete >= value\n",
        "            return self.aborted or self.lane.complete >= self.lane.submitted\n",
        also=(
            Mutant(
                "and so does the copier of an inline driver",
                "schedule.ordered_copies",
                "            value <= (lane.complete if",
                "            (lane.submitted if lane.is_host else value) <= (lane.complete if",
            ),
        ),
    ),
    # Launches, graphs and roles.
    Mutant(
        "what was written through a view is not flushed",
        "array.view",
        "        written = partial(flush, scheduler, backing, array.layout)\n",
        "        written = None\n",
    ),
    Mutant("a graph has no barriers", "graph.encoding", "            commands.barrier()\n", ""),
    Mutant(
        "a graph minds no other work",
        "graph.encoding",
        "        self.uses = [(b.backing.history, region, write) for",
        "        self.uses = [(History(), region, write) for",
    ),
    Mutant(
        "launches share the place of their results",
        "launch.launch_memory",
        "        if free and self._is_idle(slot := free.pop()):\n",
        "        if free and (slot := free[-1]):\n",
    ),
    Mutant(
        "results of kernels are not published",
        "schedule.stream",
        "which is not in its `uses`.\"\"\"\n        self._batch.must_publish = True\n",
        "which is not in its `uses`.\"\"\"\n",
    ),
    Mutant(
        "the host looks at scratch as it is",
        "array.host_access",
        "            published = scheduler.publish_everything()\n",
        "            published = {}\n",
    ),
    Mutant(
        "memory counts as hidden until the first look is over",
        "array.host_access",
        "            backing.history.device_only = False\n",
        "",
        also=(
            Mutant(
                "and from then on as visible",
                "array.host_access",
                "                backing.unpublished = {}\n",
                "                backing.unpublished = {}\n"
                "                backing.history.device_only = False\n",
            ),
        ),
    ),
    Mutant(
        "a view is not tracked",
        "array.view",
        "            backing.views.append(shown)\n",
        "            hold.shown = None\n",
    ),
    Mutant(
        "a role is not asked before a write",
        "array.buffer",
        "        if self.sealed:\n            self.refuse_write(",
        "        if False:\n            self.refuse_write(",
    ),
    Mutant(
        "a role is not asked before a read",
        "array.buffer",
        "        if not self.policy.host_reads:\n",
        "        if False:\n",
    ),
    # Copies deferred, as other systems do, and copies dropped.
    Mutant(
        "an event drops what is recorded",
        "schedule.stream",
        "            self.submit()\n            return Event(",
        "            self._batch.open, self._batch.value = False, self.lane.submitted\n"
        "            return Event(",
    ),
    Mutant(
        "an event drops host copies",
        "schedule.stream",
        "            return Event(self.scheduler, self.points(), self.name)\n",
        "            points = self.points()\n"
        "            self.copier._next = None\n"
        "            while not self.copier._tasks.empty():\n"
        "                self.copier._tasks.get()\n"
        "            return Event(self.scheduler, points, self.name)\n",
    ),
    Mutant(
        "every write counts as borrowed", "array.transfer", "borrowed=borrow,", "borrowed=True,"
    ),
    _put_off("a write is made after the call", when="True"),
    Mutant(
        "a snapshot is taken after the call",
        "array.staging",
        "            staged.fill()\n            value",
        "            taken = stream.copier.add(Task({}, staged.fill))\n"
        "            lane = stream.copier.lane\n"
        "            block.history.note(staged.packed, True, lane, taken, what)\n"
        "            value",
    ),
    Mutant(
        "a read is made after the call",
        "array.transfer",
        "    return _read_direct(array, out, what, why)\n",
        "    result = _result(array) if out is None else out\n"
        "    read = on.copier.add(Task({}, lambda: _read_direct(array, result, what, why)))\n"
        "    return Pending(scheduler, {on.copier.lane: read}, what, value=result)\n",
    ),
    Mutant(
        "what earlier arrays have of unpublished writes is forgotten",
        "memory.pool",
        "        if backing.history.device_only and backing.history.writes:\n",
        "        if False:\n",
    ),
    # Arrays of another device, and closed devices.
    Mutant(
        "a kernel takes arrays of any device that it would fit on its own",
        "launch.arguments",
        'wants = f"{device} {self.dtype} ',
        'wants = f"{self.dtype} ',
    ),
    Mutant(
        "a closed device goes on",
        "schedule.scheduler",
        '        if self.closed:\n            raise Closed(f"{self.name} is closed")\n',
        "",
    ),
]  # fmt: skip


def _single(name: str) -> Mutant:
    return next(mutant for mutant in _SINGLE if mutant.name == name)


def _together(name: str, first: Mutant, *others: str) -> Mutant:
    """A mutant without several safeguards, any one of which would suffice."""
    return replace(first, name=name, also=(*first.also, *map(_single, others)))


#: Correct on its own: a caller that lends its memory must wait until the write is done.
_BORROWED_PUT_OFF = _put_off("a borrowed write is made after the call", when="borrow")

MUTANTS = [
    *_SINGLE,
    _together(
        "a write is made after the call, and an event forgets it",
        _single("a write is made after the call"),
        "an event forgets host copies",
    ),
    _together(
        "a borrowed write is made after the call, and not written down",
        _BORROWED_PUT_OFF,
        "an ordered copy is not written down",
    ),
    _together(
        "a borrowed write is made after the call, not written down, and a rename keeps the backing",
        Mutant(
            "a borrowed write is made after the call, to the busy backing",
            "array.transfer",
            '    if path == "rename":\n',
            f'    if borrow:\n{_late(8)}    if path == "rename":\n',
        ),
        "an ordered copy is not written down",
    ),
]
