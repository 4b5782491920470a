"""Penstock feeds a GPU from Python: no copy, allocation or wait that the data does not demand."""

from penstock.array import Array
from penstock.device import Device, devices
from penstock.driver.protocol import DeviceInfo
from penstock.elementwise import Elementwise
from penstock.errors import *  # noqa: F403
from penstock.errors import __all__ as _errors
from penstock.event import Event
from penstock.graph import Graph
from penstock.kernel import Kernel
from penstock.memory import MemoryStats
from penstock.pending import Pending
from penstock.result import Result
from penstock.scratch import Scratch
from penstock.stream import Stream
from penstock.tracing import Trace, TraceEvent, trace

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Device",
    "DeviceInfo",
    "Elementwise",
    "Event",
    "Graph",
    "Kernel",
    "MemoryStats",
    "Pending",
    "Result",
    "Scratch",
    "Stream",
    "Trace",
    "TraceEvent",
    "devices",
    "trace",
    *_errors,
]
