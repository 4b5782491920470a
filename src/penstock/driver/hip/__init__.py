"""The HIP driver: AMD GPUs through AMD's own runtime."""

from penstock.driver.choosing import choose
from penstock.driver.hip.driver import HipDriver, enumerate_devices
from penstock.driver.protocol import OpenOptions

__all__ = ["HipDriver", "enumerate_devices", "open_device"]


def open_device(options: OpenOptions) -> HipDriver:
    return HipDriver(choose(options.which, enumerate_devices()), options.notify)
