"""Drivers: the thin layer that talks to a GPU. `protocol` defines what a driver must provide.

To add one, add its name to `DRIVERS` and a package of that name here, with `open_device(options)`;
if there are devices to list, also to `LISTING`, with `enumerate_devices()`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import InvalidValue

if TYPE_CHECKING:
    from penstock.driver.protocol import DeviceInfo, Driver, OpenOptions

#: All drivers, and those that can list their devices. Loaded when first used.
DRIVERS = ("vulkan", "hip", "sim")
LISTING = ("vulkan", "hip")


def open_device(driver: str, options: OpenOptions) -> Driver:
    """Open a device of the named driver."""
    if driver not in DRIVERS:
        raise InvalidValue(f"unknown driver {driver!r}; there are {', '.join(map(repr, DRIVERS))}")
    opened: Driver = import_module(f"penstock.driver.{driver}").open_device(options)
    return opened


def list_devices(driver: str) -> list[DeviceInfo]:
    """List the devices of the named driver; raises `NoDevice`, naming what is missing, if none."""
    if driver not in LISTING:
        known = " and ".join(map(repr, LISTING))
        raise InvalidValue(f"there is no list of devices of {driver!r}; of {known} is")
    found: list[DeviceInfo] = import_module(f"penstock.driver.{driver}").enumerate_devices()
    return found
