"""The stand-in for libamdhip64: built from C when tests first want it, and how they talk to it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import penstock as ps

_HERE = Path(__file__).parent
NAME = "Penstock's stand-in for tests"

OUT_OF_MEMORY, LOST = 2, 719

#: Calls that must not be made by a launch like one before.
ALLOCATIONS = (
    "hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree", "hipHostRegister", "hipHostUnregister",
    "hipEventCreateWithFlags", "hipStreamCreateWithFlags",
)  # fmt: skip
BLOCKING_COPIES = ("(blocking copy)",)
SYNCHRONISATIONS = ("hipDeviceSynchronize",)


def compilers() -> bool:
    """Whether the system has what the stand-in is built with."""
    return bool(shutil.which("cc") and shutil.which("c++"))


def build(directory: Path) -> Path:
    """Compile the library into a directory; where it is."""
    made = directory / "libamdhip64.so"
    command = ["cc", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-w"]
    subprocess.run([*command, _HERE / "standin.c", "-o", made, "-ldl"], check=True)
    return made


class StandIn:
    """The library as tests see it. There is one in a process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lib = ctypes.CDLL(str(path))
        self._lib.standin_call.restype = self._lib.standin_message.restype = ctypes.c_char_p
        self._lib.standin_memory.argtypes = [ctypes.c_size_t]
        self._lib.standin_seed.argtypes = [ctypes.c_ulonglong]
        self._lib.standin_places(str(_HERE).encode(), str(path.parent).encode())

    @contextlib.contextmanager
    def chosen(self, **settings: int) -> Iterator[StandIn]:
        """Let Penstock find it, and nothing else, with everything else as at first."""
        self.reset()
        for name, value in settings.items():
            self.set(name, value)
        before = os.environ.get("PENSTOCK_HIP")
        os.environ["PENSTOCK_HIP"] = str(self.path)
        try:
            yield self
        finally:
            if before is None:
                del os.environ["PENSTOCK_HIP"]
            else:
                os.environ["PENSTOCK_HIP"] = before
            self.reset()

    def reset(self) -> None:
        for name, value in {
            "lose": 0, "devices": 1, "integrated": 0, "prompt": 0, "memory": 1 << 30, "seed": 1,
            "patience": 1500, "drift": 0,
        }.items():  # fmt: skip
            self.set(name, value)
        self.set("architecture", b"gfx906")
        self.fail("", 0, 0)
        self.forget()

    def set(self, name: str, value: int | bytes) -> None:
        getattr(self._lib, f"standin_{name}")(value)

    def fail(self, call: str, number: int, code: int) -> None:
        """Let the n-th call from now of this name, or with "" of any, fail; with -1 every one."""
        self._lib.standin_fail(call.encode(), number, code)

    @property
    def failed(self) -> bool:
        """Whether the call that was to fail was made."""
        return bool(self._lib.standin_failed())

    @property
    def calls(self) -> list[str]:
        lib = self._lib
        return [lib.standin_call(number).decode() for number in range(lib.standin_calls())]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.calls)

    @property
    def messages(self) -> list[str]:
        """What was done wrong."""
        lib = self._lib
        return [lib.standin_message(number).decode() for number in range(lib.standin_messages())]

    @property
    def live(self) -> int:
        """Pieces of memory that were not given back, also by what only the collector finds."""
        gc.collect()
        return int(self._lib.standin_live())

    def forget(self) -> None:
        self._lib.standin_forget_calls()
        self._lib.standin_forget_messages()

    @contextlib.contextmanager
    def device(self, **options: str | bool) -> Iterator[ps.Device]:
        """An open device; at the end nothing may have been done wrong, nor be left behind."""
        live = self.live
        with ps.Device(driver="hip", **options) as device:  # type: ignore[arg-type]
            yield device
        assert not self.messages, self.messages
        assert self.live == live
