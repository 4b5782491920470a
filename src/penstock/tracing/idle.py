"""How busy the devices of a trace were, and why not more: `use_of` turns events into a `Use`.

A `Use` has the times of each device and of all together (sums over the devices), every gap with its
cause, the time that each cause took, and the times of each kernel.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.tracing.causes import Events, explain
from penstock.tracing.gaps import Cause, DeviceTime, Gap, busy_times, in_seconds, is_command, ticks

if TYPE_CHECKING:
    from penstock.tracing.receipt import TraceEvent


class KernelTime(NamedTuple):
    """What the launches of one kernel took on the device."""

    name: str
    device: str
    launches: int  #: those with device times
    seconds: float  #: in all
    median: float
    share: float  #: of the device's busy time; launches that overlap count in full
    bytes_per_second: float  #: bytes of the arrays bound, whether or not the kernel reads them all
    compile_seconds: float = 0.0  #: host time in which it was compiled during the trace


class Use(NamedTuple):
    """How the devices of a trace used their time. Seconds; None without timestamps."""

    devices: tuple[DeviceTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    untimed: int = 0  #: commands of which the device's times are not known (yet)

    @property
    def span(self) -> float | None:
        return sum(each.span for each in self.devices) if self.devices else None

    @property
    def busy(self) -> float | None:
        return sum(each.busy for each in self.devices) if self.devices else None

    @property
    def idle(self) -> float | None:
        return sum(each.idle for each in self.devices) if self.devices else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps of all devices, in order of time."""
        found = [gap for each in self.devices for gap in each.gaps]
        return tuple(sorted(found, key=lambda gap: gap.start))

    @property
    def by_cause(self) -> dict[Cause, float]:
        """The idle seconds of each cause, the largest first; they add up to `idle`."""
        seconds: dict[Cause, float] = defaultdict(float)
        for gap in self.gaps:
            for part in gap.parts:
                seconds[part.cause] += part.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def use_of(events: Sequence[TraceEvent]) -> Use:
    """What the devices did in a trace with these events."""
    busy = busy_times(events)
    arranged = Events(events) if any(each.holes for each in busy.values()) else None
    devices = [
        DeviceTime(
            device, in_seconds(found.span), in_seconds(found.busy),
            tuple(explain(device, hole, arranged) for hole in found.holes) if arranged else (),
        )
        for device, found in busy.items()
    ]  # fmt: skip
    commands = [event for event in events if is_command(event)]
    untimed = sum(event.device_start is None for event in commands)
    return Use(tuple(devices), tuple(_kernel_times(events, devices)), untimed)


_LAUNCH = re.compile(r"(?P<name>.*) in (?:\(\d+, \d+, \d+\) groups|groups of .*)", re.S)


def kernel_of(event: TraceEvent) -> str:
    """The name of the kernel that a launch runs; empty for other events."""
    found = _LAUNCH.fullmatch(event.reason) if event.kind in ("launch", "replayed") else None
    return found["name"] if found else ""


def _kernel_times(events: Sequence[TraceEvent], devices: Sequence[DeviceTime]) -> list[KernelTime]:
    """The kernels of a trace, the longest time first."""
    busy = {each.device: each.busy for each in devices}
    runs: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    compiled: dict[str, float] = defaultdict(float)
    for event in events:
        if (name := kernel_of(event)) and event.device_seconds is not None:
            runs[name, event.device].append(event)
        elif event.kind == "compile":
            compiled[event.buffer or event.reason] += event.seconds
    found = []
    for (name, device), launches in runs.items():
        times = [in_seconds(ticks(event.device_seconds or 0.0)) for event in launches]
        total = sum(times)
        found.append(
            KernelTime(
                name, device, len(times), total, statistics.median(times),
                total / busy[device] if busy.get(device) else 0.0,
                sum(event.nbytes for event in launches) / total if total else 0.0,
                sum(seconds for about, seconds in compiled.items() if name in about),
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: -each.seconds)
