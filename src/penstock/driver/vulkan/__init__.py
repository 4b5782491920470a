"""The Vulkan driver: real GPUs, and Mesa's lavapipe where there is none."""

from penstock.driver.choosing import choose
from penstock.driver.protocol import OpenOptions
from penstock.driver.vulkan.driver import VulkanDriver
from penstock.driver.vulkan.physical import enumerate_devices

__all__ = ["VulkanDriver", "enumerate_devices", "open_device"]


def open_device(options: OpenOptions) -> VulkanDriver:
    index = choose(options.which, enumerate_devices(options.validate))
    return VulkanDriver(index, options.notify, validate=options.validate)
