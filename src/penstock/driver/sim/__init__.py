"""The simulator: a driver that exhibits any behaviour the protocol allows, and no other."""

from penstock.driver.protocol import OpenOptions
from penstock.driver.sim.driver import SimDriver

__all__ = ["SimDriver", "open_device"]


def open_device(options: OpenOptions) -> SimDriver:
    return SimDriver(options.seed, options.notify, mapped=options.mapped, fault=options.fault)
