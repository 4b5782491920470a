"""Compiles the kernels of a device: each on first use, or those of a step all at once.

A step is a few dozen kernels, and compiling one takes about as long as running it on a prompt. So
before a step is recorded, it is listed (`Compiled.listing`): its code runs as if it recorded, and
only the kernels that it asks for are noted. Those that are missing are then compiled by several
threads; the compilers of GLSL and of the driver both run without the GIL.

A CPU driver compiles a program again when it first runs, to machine code. There every new kernel is
launched once with no groups, while others are still being compiled, so that the first step does not
pay for it.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

import penstock as ps
from penstock.llm.kernels import Shader
from penstock.llm.progress_bar import Bar

Key: TypeAlias = tuple[Any, ...]

#: Bytes of an array that stands for another in a launch with no groups: any uniform block fits.
_STAND_IN = 1 << 16
#: Kernels that are compiled at a time: more than most machines have cores, because glslc compiles
#: several texts in one process, if it gets them at once.
_THREADS = 8


class Listed:
    """Stands for a kernel while a step is listed: takes every call, and launches nothing."""

    def __init__(self, shader: Shader) -> None:
        self.shader = shader
        self.local_size = (shader.constants.get("local_size_x", 1), 1, 1)
        self.arguments: Mapping[str, Any] = {}  # of the last call

    def __call__(self, **arguments: Any) -> None:
        self.arguments = arguments


class Compiled:
    """The kernels of a device; compiles each on first use and keeps it. Any thread may use it."""

    def __init__(self, device: ps.Device) -> None:
        self._device = device
        self._kernels: dict[Key, ps.Kernel] = {}
        self._here = threading.local()

    def __call__(self, shader: Shader) -> Any:
        """Return the kernel, or what stands for it within `listing`."""
        key = (shader.path, *shader.defines.items(), *shader.constants.items())
        listed: dict[Key, Listed] | None = getattr(self._here, "listed", None)
        if listed is not None:
            return listed.setdefault(key, Listed(shader))
        found = self._kernels.get(key)
        return self._make(key, shader) if found is None else found

    @property
    def is_listing(self) -> bool:
        """Whether the calling thread is in a block of `listing`."""
        return getattr(self._here, "listed", None) is not None

    @contextmanager
    def listing(self) -> Iterator[dict[Key, Listed]]:
        """Note the kernels that the calling thread asks for in the block, and launch none."""
        self._here.listed = found = dict[Key, Listed]()
        try:
            yield found
        finally:
            self._here.listed = None

    def compile(self, listed: Mapping[Key, Listed], *, show: bool) -> None:
        """Compile what is missing of the listed kernels, in parallel. `show` the progress."""
        missing = {key: one for key, one in listed.items() if key not in self._kernels}
        if not missing:
            return
        progress = Bar("compiling", "kernels", after=0.5) if show else None
        runs_empty = self._device.info.kind == "cpu"
        trial = Trial(self._device)
        with _Threads(self._make, missing) as threads:
            for done, (one, kernel) in enumerate(threads.outcomes(), 1):
                if runs_empty:
                    trial.launch(kernel, one.arguments)
                if progress is not None:
                    progress(done, len(missing))
        if runs_empty:
            self._device.default_stream.synchronize()

    def _make(self, key: Key, shader: Shader) -> ps.Kernel:
        made = self._device.kernel(
            shader.path, name=shader.name, defines=shader.defines, constants=shader.constants
        )
        return self._kernels.setdefault(key, made)  # another thread may have made it meanwhile


class _Threads:
    """Threads that make kernels, until all are made or the block ends.

    Everything that the threads and the caller share changes in one step of the interpreter, so that
    a signal handler that raises in the caller leaves nothing locked. The end of the block waits for
    the kernels being made, and no others are begun.
    """

    def __init__(
        self, make: Callable[[Key, Shader], ps.Kernel], wanted: Mapping[Key, Listed]
    ) -> None:
        self._make = make
        self._wanted = deque(wanted.items())
        self._count = len(wanted)
        self._made: SimpleQueue[tuple[Listed, ps.Kernel | BaseException]] = SimpleQueue()
        # The interpreter does not end before they do: a compiler must not run while it ends.
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-compile-{number}", daemon=False)
            for number in range(min(self._count, _THREADS))
        ]

    def outcomes(self) -> Iterator[tuple[Listed, ps.Kernel]]:
        """Each kernel as it is made, and what asked for it; raises what a thread raised."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:  # no more threads
            self._work()
        for _ in range(self._count):
            one, outcome = self._made.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield one, outcome

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.clear()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        while True:
            try:
                key, one = self._wanted.popleft()
            except IndexError:
                return
            try:
                self._made.put((one, self._make(key, one.shader)))
            except BaseException as error:
                self._made.put((one, error))


class Trial:
    """Launches kernels with no groups: the driver compiles them, and nothing is computed."""

    def __init__(self, device: ps.Device) -> None:
        self._device = device
        self._stand_ins: dict[np.dtype[Any], ps.Array] = {}
        self._no_groups: ps.Array | None = None

    def launch(self, kernel: Any, arguments: Mapping[str, Any]) -> None:
        """Launch it with these arguments. Submits the launch, and does not wait.

        The arrays are those of the step, because what lavapipe compiles depends on the memory that
        is bound. Another array stands in only for an append-only one that the kernel writes: its
        bytes would count as written.
        """
        if self._no_groups is None:
            self._no_groups = self._device.zeros(3, np.uint32, name="no groups")
        given = {name: value for name, value in arguments.items() if name != "threads"}
        for name, value in given.items():
            appends = isinstance(value, ps.Array) and value.role == "append"
            if appends and not re.search(rf"\b{name}: r ", kernel.signature):
                given[name] = self._like(value)
        with suppress(ps.ArgumentError):  # one that no stand-in fits is compiled when it first runs
            # An array: of a number, the host would see that there is nothing to do.
            kernel(**{**given, "groups": self._no_groups})
            self._device.default_stream.flush()

    def _like(self, array: ps.Array) -> ps.Array:
        most = _STAND_IN // array.itemsize
        if array.dtype not in self._stand_ins:
            made = self._device.empty(most, array.dtype, name="stand-in")
            self._stand_ins[array.dtype] = made
        return self._stand_ins[array.dtype][: min(array.size, most)]
