"""Chooses which of a driver's devices to open."""

from __future__ import annotations

from penstock.driver.protocol import DeviceInfo
from penstock.errors import ArgumentError, NoDevice

_BEST_FIRST = ("discrete", "integrated", "virtual", "other", "cpu")


def choose(which: str | int | None, found: list[DeviceInfo]) -> int:
    """The index of the requested device."""
    if not found:
        raise NoDevice(
            "no Vulkan device on this machine. For one that runs on the CPU, on Debian and "
            "Ubuntu: apt install mesa-vulkan-drivers"
        )
    names = ", ".join(f"{info.index}: {info.name}" for info in found)
    if which is None:
        return min(found, key=_place).index
    if isinstance(which, str):
        fitting = [info.index for info in found if which.lower() in info.name.lower()]
        if not fitting:
            raise NoDevice(f"no device has {which!r} in its name; the devices are {names}")
        return fitting[0]
    if isinstance(which, bool) or not isinstance(which, int):
        raise ArgumentError(f"a device is a name or a number, not {which!r}")
    if not 0 <= which < len(found):
        raise NoDevice(f"there is no device number {which}; the devices are {names}")
    return which


def _place(info: DeviceInfo) -> tuple[int, int]:
    """The best first: by kind, then in the system's order; of CPU drivers that with most features.

    CPU drivers differ in the types that they know, and the system's order says nothing of them.
    """
    features = len(info.features) if info.kind == "cpu" else 0
    return _BEST_FIRST.index(info.kind), -features
