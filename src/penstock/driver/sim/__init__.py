"""The simulator: a driver that does everything the protocol allows and nothing it forbids."""

from penstock.driver.protocol import OpenOptions
from penstock.driver.sim.driver import SimDriver

__all__ = ["SimDriver", "open_device"]


def open_device(options: OpenOptions) -> SimDriver:
    return SimDriver(options.seed, options.notify, mapped=options.mapped, fault=options.fault)
