"""Penstock feeds a GPU from Python: no copy, allocation or wait that the data does not demand.

    import numpy as np
    import penstock as ps

    with ps.Device() as dev:  # the best there is; ps.devices() lists all
        scale = dev.elementwise("y[i] = a * x[i]", "in float32 x, out float32 y, float32 a")
        x = dev.array(np.arange(1024, dtype=np.float32))
        y = dev.empty_like(x)
        with ps.trace() as receipt:
            scale(x=x, y=y, a=2.0)  # on its way; nothing waits
            print(y.numpy())  # waits for the bytes that are read
        print(receipt)  # what it cost, and why

A `Device` makes arrays (`array`, `zeros`, `from_file`, …), kernels (`kernel`, `elementwise`),
`stream`s, `scratch` memory and recorded graphs (`record`). What the calls return are an `Array`, a
`Kernel`, a `Pending` value and so on; each class says in its docstring what waits. Everything that
goes wrong is an `Error`. `penstock.llm` runs language models.
"""

from typing import TYPE_CHECKING

from penstock.errors import *  # noqa: F403
from penstock.errors import __all__ as _errors

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.device import Device, devices
    from penstock.driver.protocol import DeviceInfo
    from penstock.graph.graph import Graph
    from penstock.launch.kernel import Kernel
    from penstock.launch.result import Result
    from penstock.launch.scratch import Scratch
    from penstock.ledger.roles import Role
    from penstock.memory.pool import MemoryStats
    from penstock.ops.elementwise import Elementwise
    from penstock.schedule.event import Event
    from penstock.schedule.pending import Pending
    from penstock.schedule.stream import Stream
    from penstock.tracing.counting import Counts, count
    from penstock.tracing.gaps import Cause, Gap
    from penstock.tracing.receipt import Point, Trace, TraceEvent, trace

__version__ = "0.2.0"

__all__ = [
    "Array",
    "Cause",
    "Counts",
    "Device",
    "DeviceInfo",
    "Elementwise",
    "Event",
    "Gap",
    "Graph",
    "Kernel",
    "MemoryStats",
    "Pending",
    "Point",
    "Result",
    "Role",
    "Scratch",
    "Stream",
    "Trace",
    "TraceEvent",
    "count",
    "devices",
    "trace",
    *_errors,
]

# Loaded when first used, as the imports above say: the pytest plugin is part of this package, and
# a test suite that has nothing to do with a GPU must not load NumPy on its account.
_HOMES = {
    "Array": "array.array",
    "Cause": "tracing.gaps",
    "Counts": "tracing.counting",
    "Device": "device",
    "DeviceInfo": "driver.protocol",
    "Elementwise": "ops.elementwise",
    "Event": "schedule.event",
    "Gap": "tracing.gaps",
    "Graph": "graph.graph",
    "Kernel": "launch.kernel",
    "MemoryStats": "memory.pool",
    "Pending": "schedule.pending",
    "Point": "tracing.receipt",
    "Result": "launch.result",
    "Role": "ledger.roles",
    "Scratch": "launch.scratch",
    "Stream": "schedule.stream",
    "Trace": "tracing.receipt",
    "TraceEvent": "tracing.receipt",
    "count": "tracing.counting",
    "devices": "device",
    "trace": "tracing.receipt",
}


# Type checkers believe the imports above: to them, a `__getattr__` would be any name that is asked
# for, `ps.Aray` included.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*__all__, "__doc__", "__version__"} | ({"llm"} & globals().keys()))
