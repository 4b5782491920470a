"""The Vulkan driver: real GPUs, and Mesa's lavapipe where there is none."""

from penstock.driver.vulkan.driver import VulkanDriver, enumerate_devices

__all__ = ["VulkanDriver", "enumerate_devices"]
