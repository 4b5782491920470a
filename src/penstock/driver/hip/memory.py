"""Device memory: the GPU's own, pinned memory of the host's, or the caller's pages.

All of it is what HIP calls coherent, so no flush is ever needed. The GPU's own memory is not
mapped; on a GPU that shares the host's memory there is no such thing as the GPU's own, and
everything is pinned host memory that both use in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.hip.api import ffi
from penstock.errors import CannotAdopt, Error

if TYPE_CHECKING:
    from penstock.driver.hip.driver import HipDriver

_PORTABLE, _MAPPED, _COHERENT = 0x1, 0x2, 0x40000000


class HipMemory:
    """Lives until `close`; nothing may be using it then. Its handle is the device's address."""

    __slots__ = ("_driver", "address", "cached", "coherent", "handle", "imported", "nbytes")

    def __init__(
        self, driver: HipDriver, nbytes: int, *, host: bool = False, imported: int | None = None
    ) -> None:
        self._driver = driver
        self.nbytes = nbytes
        self.cached = self.coherent = True
        self.address = imported
        self.imported = imported is not None
        out = ffi.new("handle *")
        call, check = driver.call, driver.hip.check
        if imported is not None:
            result = call.hipHostRegister(imported, nbytes, _PORTABLE | _MAPPED)
            if result:
                _refuse(driver, imported, result)
        elif host:
            flags = _PORTABLE | _MAPPED | _COHERENT
            check(call.hipHostMalloc(out, nbytes, flags), "hipHostMalloc")
            self.address = int(out[0])
        else:
            check(call.hipMalloc(out, nbytes), "hipMalloc")
            self.handle = int(out[0])
            return
        try:
            result = call.hipHostGetDevicePointer(out, self.address, 0)
            check(result, "hipHostGetDevicePointer")
        except BaseException:
            self.close()
            raise
        self.handle = int(out[0])

    def close(self) -> None:
        """What the library says is not heard: the memory is gone, or the device is."""
        call = self._driver.call
        if self.imported:
            call.hipHostUnregister(self.address)
        elif self.address is not None:
            call.hipHostFree(self.address)
        else:
            call.hipFree(self.handle)


def _refuse(driver: HipDriver, address: int, result: int) -> None:
    try:
        driver.hip.check(result, "hipHostRegister")
    except Error as error:
        if type(error) is not Error:
            raise
        raise CannotAdopt(
            f"HIP refuses to use the host memory at {address:#x} in place ({error}); use an array "
            "from dev.host_empty, or dev.array to copy"
        ) from None
