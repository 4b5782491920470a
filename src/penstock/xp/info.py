"""What a namespace can do on its device: `xp.__array_namespace_info__()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.dtypes import Dtype
from penstock.errors import ArgumentError
from penstock.xp.dtypes import _KINDS
from penstock.xp.promotion import DEFAULT_COMPLEX, DEFAULT_FLOAT, DEFAULT_INT, NAMED

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.xp.namespace import Namespace

_OF_THE_STANDARD = [name for name in NAMED if name != "float16"]


class Info:
    """Capabilities, devices and dtypes, by the Array API standard."""

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp

    def capabilities(self) -> dict[str, Any]:
        """What is supported beyond the required parts."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """The device of the namespace."""
        return self._xp.device

    def devices(self) -> tuple[Device, ...]:
        """The device of the namespace."""
        return (self._xp.device,)

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, Dtype]:
        """The dtypes of arrays that are made from Python numbers."""
        self._check(device)
        return {
            "real floating": DEFAULT_FLOAT, "complex floating": DEFAULT_COMPLEX,
            "integral": DEFAULT_INT, "indexing": DEFAULT_INT,
        }  # fmt: skip

    def dtypes(self, *, device: Device | None = None, kind: Any = None) -> dict[str, Dtype]:
        """The dtypes that the device computes with, by name."""
        self._check(device)
        double = self._xp.device.operations.abilities.float64
        found = {
            name: NAMED[name]
            for name in _OF_THE_STANDARD
            if double or name not in ("float64", "complex128")
        }
        if kind is None:
            return found
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if unknown := [each for each in kinds if each not in _KINDS]:
            raise ArgumentError(f"dtypes: {unknown[0]!r} is no kind; choose of {', '.join(_KINDS)}")
        wanted = "".join(_KINDS[each] for each in kinds)
        return {name: dtype for name, dtype in found.items() if dtype.kind in wanted}

    def _check(self, device: Device | None) -> None:
        if device is not None and device is not self._xp.device:
            raise ArgumentError(f"{device!r} is another device; ask device.xp of it")
