"""The analysis of idle time, with a cause swapped, a gap dropped, clocks misaligned."""

from __future__ import annotations

from mutation.mutants import Mutant


def _mutant(name: str, module: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"tracing.{module}", old, new, driver="tracing")


TRACING = [
    # Gaps.
    _mutant(
        "all gaps but the last are dropped",
        "gaps",
        "holes.append(Hole(reached, start, before, command))",
        "holes[:] = [Hole(reached, start, before, command)]",
    ),
    _mutant(
        "commands that overlap count twice",
        "gaps",
        "        if end >= reached:\n",
        "        busy += max(0, min(end, reached) - start)\n        if end >= reached:\n",
    ),
    _mutant(
        "the device counts as idle where a command has no times",
        "gaps",
        "if last is not None and untimed is not None and last[1] < start:",
        "if last is not None and untimed is not None and last[1] > start:",
    ),
    # Clocks.
    _mutant(
        "the device's clock is ahead of the host's",
        "device_times",
        "events.device_times(at, times[start], ",
        "events.device_times(at, times[start] + 1e-3, ",
    ),
    _mutant(
        "the device's clock is behind the host's",
        "device_times",
        "events.device_times(at, times[start], ",
        "events.device_times(at, times[start] - 1e-3, ",
    ),
    # Causes.
    _mutant(
        "a wait is blamed on the caller",
        "causes",
        '    "wait": Cause.WAITED,\n',
        '    "wait": Cause.CALLER,\n',
    ),
    _mutant(
        "a copy is blamed on the launches",
        "causes",
        '    "copy": Cause.COPY,\n',
        '    "copy": Cause.ISSUING,\n',
    ),
    _mutant(
        "a compilation is blamed on the launches",
        "causes",
        '    "compile": Cause.COMPILE,\n',
        '    "compile": Cause.ISSUING,\n',
    ),
    _mutant(
        "a run-ahead bound is blamed on the wait",
        "causes",
        "            return Cause.BOUND\n",
        "            return Cause.WAITED\n",
    ),
    _mutant(
        "a view is blamed on a copy",
        "causes",
        "return Cause.VIEW if held else Cause.COPY",
        "return Cause.COPY",
    ),
    _mutant(
        "what is not submitted is blamed on the driver",
        "causes",
        "self._back_to(recorded, Cause.UNSUBMITTED, where, (command, submission), why)",
        "self._back_to(recorded, Cause.LATENCY, where, (command, submission), why)",
    ),
    _mutant(
        "an event is blamed where the bytes are needed",
        "causes",
        "None if point.what else self._events.order(point, command)",
        "self._events.order(point, command)",
    ),
    _mutant(
        "a wait is not blamed for what it exposed",
        "causes",
        "left = 0 if wait is None else ticks(wait.seconds)",
        "left = 0",
    ),
    _mutant(
        "a wait is blamed for more than it exposed",
        "causes",
        "left = 0 if wait is None else ticks(wait.seconds)",
        "left = 1 << 60",
    ),
    _mutant(
        "the smallest share is the gap's cause",
        "causes",
        "cause = max(shares, key=lambda each: shares[each])",
        "cause = min(shares, key=lambda each: shares[each])",
    ),
    _mutant(
        "of events inside each other, the outermost counts",
        "causes",
        "            open_.append((end, event))\n",
        "            open_.insert(0, (end, event))\n",
    ),
    # Advice.
    _mutant(
        "advice to read later what the next work is given",
        "advice",
        "return any(not is_read(event) for event in self._transfers(command, start))",
        "return False",
    ),
    _mutant(
        "advice to take later a value that decides",
        "advice",
        "        elif self._steers(wait):\n",
        "        elif False:\n",
    ),
    _mutant(
        "advice to leave in the loop code that uses the value",
        "advice",
        "            if not self._only_keeps(event, part.lines):\n",
        "            if False:\n",
    ),
    _mutant(
        "advice to leave code to a device that has less to do",
        "advice",
        "            if part.seconds <= 2 * hidden or not movable:\n",
        "            if True:\n",
    ),
    _mutant(
        "advice to record a graph of what does not repeat",
        "advice",
        "now - self._turns[key][0] if key in self._turns else 0",
        "now - self._turns[key][0] if key in self._turns else 2",
    ),
    _mutant(
        "advice that undoes other advice",
        "advice",
        'self.act == other.act != ""',
        "False",
    ),
]
