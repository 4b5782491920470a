"""How busy the devices of a trace were, and why not more: `use_of` turns events into a `Use`.

A `Use` has the times of each device and of all together (sums over the devices), every gap with its
cause, the time that each cause took, and the times of each kernel.
"""

from __future__ import annotations

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
    missing: str = ""  #: why there are no times, if there are none

    @property
    def verdict(self) -> str:
        """One line: how busy the devices were, and what most of the rest was."""
        from penstock.tracing.verdict import verdict

        return verdict(self)

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

    def __repr__(self) -> str:
        return f"<Use: {self.verdict}>"


class Used:
    """The parts of `use` as properties."""

    __slots__ = ()

    @property
    def use(self) -> Use:
        raise NotImplementedError

    @property
    def span(self) -> float | None:
        """Seconds from the start of the device's first command to the end of its last one.

        Of several devices, the sum. None without device times; so are `busy` and `idle`.
        """
        return self.use.span

    @property
    def busy(self) -> float | None:
        """Seconds in which the device ran something: commands that overlap count once."""
        return self.use.busy

    @property
    def idle(self) -> float | None:
        """Seconds of `span` in which the device had nothing to run: the sum of all `gaps`."""
        return self.use.idle

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Every interval in which a device had nothing to run, with its cause and your lines."""
        return self.use.gaps

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        """What each kernel took on the device, the longest time first."""
        return self.use.kernels

    @property
    def verdict(self) -> str:
        """One line: how busy the device was, and what most of the rest was."""
        return self.use.verdict


def use_of(events: Sequence[TraceEvent], missing: str = "") -> Use:
    """What the devices did in a trace with these events.

    `missing` says why there are no device times, should there be none.
    """
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
    return Use(tuple(devices), tuple(_kernel_times(events, devices)), untimed, missing)


def between(events: Sequence[TraceEvent], start: float, end: float) -> list[TraceEvent]:
    """The events of a trace without the commands that the device did not run in a time."""

    def is_inside(event: TraceEvent) -> bool:
        begun = event.device_start
        return begun is not None and start <= begun and begun + (event.device_seconds or 0) <= end

    return [event for event in events if not is_command(event) or is_inside(event)]


def _kernel_times(events: Sequence[TraceEvent], devices: Sequence[DeviceTime]) -> list[KernelTime]:
    """The kernels of a trace, the longest time first."""
    busy = {each.device: each.busy for each in devices}
    runs: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    compiled: dict[str, float] = defaultdict(float)
    for event in events:
        if (name := event.kernel) and event.device_seconds is not None:
            runs[name, event.device].append(event)
        elif event.kind == "compile":
            compiled[event.reason.removeprefix("kernel ").rpartition(": ")[0]] += event.seconds
    found = []
    for (name, device), launches in runs.items():
        times = [in_seconds(ticks(event.device_seconds or 0.0)) for event in launches]
        total = sum(times)
        found.append(
            KernelTime(
                name, device, len(times), total, statistics.median(times),
                total / busy[device] if busy.get(device) else 0.0,
                sum(event.nbytes for event in launches) / total if total else 0.0,
                compiled.get(name, 0.0),
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: -each.seconds)
