"""The HIP driver: AMD GPUs through AMD's own runtime."""

from penstock.driver.hip.driver import HipDriver, enumerate_devices

__all__ = ["HipDriver", "enumerate_devices"]
