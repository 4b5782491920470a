"""Every exception Penstock raises on purpose.

All derive from `Error`, so that a caller can catch all of them. Each is also a subclass of the
built-in exception that fits (`TypeError`, `ValueError`, `MemoryError`, `TimeoutError`, …).
A message says what was asked, what was wrong, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BadIndex",
    "CannotAdopt",
    "CannotRead",
    "Closed",
    "CompileError",
    "CompilerNotFound",
    "DeviceLost",
    "DtypeMismatch",
    "Error",
    "ForkedDevice",
    "InvalidSpirv",
    "InvalidValue",
    "NoDevice",
    "NotWhileRecording",
    "OutOfMemory",
    "ReadOnly",
    "Reentered",
    "RoleViolation",
    "ShapeMismatch",
    "Timeout",
    "Unsupported",
    "ViewHeld",
]


class Error(Exception):
    """Root of all Penstock errors."""


class ArgumentError(Error, TypeError):
    """A call with an unknown, missing or wrongly typed argument."""


class DtypeMismatch(Error, TypeError):
    """An array or value of one dtype where another is wanted; nothing is cast silently."""


class ShapeMismatch(Error, ValueError):
    """An array of the wrong shape or size."""


class InvalidValue(Error, ValueError):
    """A value outside the range that the call or the device allows."""


class BadIndex(InvalidValue, IndexError):
    """An index that the array does not have."""


class ReadOnly(Error, ValueError):
    """A write to memory that must not be written."""


class CannotAdopt(Error, ValueError):
    """Host memory that this device cannot use in place."""


class CannotRead(Error, OSError):
    """A file that is missing or cannot be read."""


class RoleViolation(Error, ValueError):
    """An access that the role of an array does not allow."""


class ViewHeld(Error, BufferError):
    """Work that would change, or race with, bytes that a live zero-copy view still shows."""


class CompileError(Error, ValueError):
    """Kernel source that does not compile; the message carries the compiler's lines.

    `errors` lists the line (from 1) and the message of each error, where they are known.
    """

    errors: list[tuple[int, str]]


class CompilerNotFound(Error, RuntimeError):
    """No GLSL compiler on this machine; the message names what to install."""


class InvalidSpirv(Error, ValueError):
    """Bytes that are not a valid SPIR-V compute kernel."""


class Unsupported(Error, RuntimeError):
    """Something this device or driver cannot do."""


class NoDevice(Error, RuntimeError):
    """No Vulkan loader, no driver, or no device that fits the request."""


class OutOfMemory(Error, MemoryError):
    """An allocation that failed even after unused memory was returned to the driver."""


class DeviceLost(Error, RuntimeError):
    """The device stopped working; everything pending on it raises this."""


class Timeout(Error, TimeoutError):
    """A wait that exceeded its timeout; the work continues."""


class Closed(Error, ValueError):
    """Use of a device, stream or array after `close()`."""


class ForkedDevice(Error, RuntimeError):
    """Use, in a forked child, of a device its parent opened."""


class NotWhileRecording(Error, RuntimeError):
    """Something that cannot be recorded into a graph, or not in this way."""


class Reentered(Error, RuntimeError):
    """Use of a device by a signal handler or finaliser that interrupted another call to it."""
