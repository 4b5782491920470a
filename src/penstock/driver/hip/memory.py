"""Device memory: the GPU's own, pinned host memory, or the caller's pages.

All of it is coherent, so no flush is needed. The GPU's own memory is not mapped. On an integrated
GPU, which has no memory of its own, all memory is pinned host memory that both use in place.

HIP can register a page of the caller's memory only once per process, but two arrays may share one.
So registered pages are reference-counted, for all devices together (`Pages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.hip.api import ffi
from penstock.errors import CannotAdopt, Error
from penstock.locks import RLock

if TYPE_CHECKING:
    from penstock.driver.hip.driver import HipDriver

_PORTABLE, _MAPPED, _COHERENT = 0x1, 0x2, 0x40000000


class Pages:
    """The caller's pages that are registered with HIP, as reference-counted runs."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._runs: dict[int, tuple[int, int]] = {}  # by start: end, and number of users

    def take(self, driver: HipDriver, lo: int, hi: int) -> list[int]:
        """Register these addresses; returns the starts of all runs that cover them, in order."""
        taken: list[int] = []
        with self._lock:
            known = sorted((start, end) for start, (end, _) in self._runs.items())
            known = [(start, end) for start, end in known if start < hi and lo < end]
            at = lo
            try:
                for start, end in [*known, (hi, hi)]:
                    if at < start:
                        self._register(driver, at, start)
                        taken.append(at)
                    if start < hi:
                        self._runs[start] = (end, self._runs[start][1] + 1)
                        taken.append(start)
                    at = end
            except BaseException:
                self._give_back(driver, taken)
                raise
        return taken

    def give_back(self, driver: HipDriver, taken: list[int]) -> None:
        with self._lock:
            self._give_back(driver, taken)

    def _register(self, driver: HipDriver, lo: int, hi: int) -> None:
        result = driver.call.hipHostRegister(lo, hi - lo, _PORTABLE | _MAPPED)
        if result:
            _refuse(driver, lo, result)
        self._runs[lo] = (hi, 1)

    def _give_back(self, driver: HipDriver, taken: list[int]) -> None:
        for start in taken:
            end, users = self._runs[start]
            if users > 1:
                self._runs[start] = (end, users - 1)
            else:
                del self._runs[start]
                driver.call.hipHostUnregister(start)


_pages = Pages()  # one per process


class HipMemory:
    """Lives until `close`; no work may use it by then. Its handle is the device address."""

    __slots__ = (
        "_driver", "_freed", "_runs", "address", "cached", "coherent", "handle", "imported",
        "nbytes",
    )  # fmt: skip

    def __init__(
        self, driver: HipDriver, nbytes: int, *, host: bool = False, imported: int | None = None
    ) -> None:
        self._driver = driver
        self._freed: list[int] = []  # the result of freeing it, if that was called
        self.nbytes = nbytes
        self.cached = self.coherent = True
        self.address = imported
        self.imported = imported is not None
        out = ffi.new("handle *")
        call, check = driver.call, driver.hip.check
        self._runs: list[int] = []
        if imported is not None:
            self._runs = _pages.take(driver, imported, imported + nbytes)
        elif host:
            flags = _PORTABLE | _MAPPED | _COHERENT
            check(call.hipHostMalloc(out, nbytes, flags), "hipHostMalloc")
            self.address = int(out[0])
        else:
            check(call.hipMalloc(out, nbytes), "hipMalloc")
            self.handle = int(out[0])
            return
        try:
            first = self.address or 0
            self.handle = self._seen_by_device(first)
            for start in self._runs[1:]:
                if self._seen_by_device(start) - start != self.handle - first:
                    raise CannotAdopt(
                        f"to the GPU the pages from {start:#x} on do not follow those before them, "
                        "which another array uses; use an array from dev.host_empty, or dev.array "
                        "to copy"
                    )
        except BaseException:
            self.close()
            raise

    def _seen_by_device(self, address: int) -> int:
        driver, out = self._driver, ffi.new("handle *")
        result = driver.call.hipHostGetDevicePointer(out, address, 0)
        driver.hip.check(result, "hipHostGetDevicePointer")
        return int(out[0])

    def close(self) -> None:
        """Free the memory. Errors are ignored: either the memory is freed or the device is lost."""
        call = self._driver.call
        if self.imported:
            runs, self._runs = self._runs, []
            _pages.give_back(self._driver, runs)
        elif not self._freed:
            # One interpreter step: the call is made, and that is noted.
            if self.address is not None:
                self._freed.extend(map(call.hipHostFree, (self.address,)))
            else:
                self._freed.extend(map(call.hipFree, (self.handle,)))


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
