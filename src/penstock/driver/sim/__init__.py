"""The simulator: a driver that exhibits any behaviour the protocol allows, and no other."""

from penstock.driver.protocol import OpenOptions
from penstock.driver.sim.driver import SimDriver
from penstock.driver.sim.virtual_time import VirtualTime, virtual_time

__all__ = ["SimDriver", "VirtualTime", "open_device", "virtual_time"]


def open_device(options: OpenOptions) -> SimDriver:
    return SimDriver(options.seed, options.notify, mapped=options.mapped, fault=options.fault)
