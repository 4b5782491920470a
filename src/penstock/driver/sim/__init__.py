"""The simulator: a driver that does everything the protocol allows and nothing it forbids."""

from penstock.driver.sim.driver import SimDriver

__all__ = ["SimDriver"]
