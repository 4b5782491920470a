"""Compiles GLSL with glslc, the texts of several threads in one process of it.

Of the 80 ms that a compilation takes, 70 are the start of the process. So only as many processes
run at a time as there are cores. Texts that come meanwhile stay in a queue, and whichever process
starts next takes its share of them.

Threads of this module run the processes, and only they take its lock: a signal handler that raises
in a thread that waits for its text leaves nothing locked, and no other text without a process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import tempfile
import threading
import weakref
from collections import deque
from pathlib import Path

_OPTIONS = ("-O0", "--target-env=vulkan1.2", "-fshader-stage=compute")

_all: weakref.WeakSet[Glslc] = weakref.WeakSet()


class Rejected(Exception):
    """The compiler rejected the source; carries its output."""


class _Request:
    """One text to compile, and its outcome."""

    __slots__ = ("outcome", "source")

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.outcome: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()


class Glslc:
    """The program glslc. Any number of threads may call `compile`."""

    def __init__(self, program: str, processes: int | None = None) -> None:
        self._command = (program, *_OPTIONS)
        self._most = processes or os.cpu_count() or 1
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Have no text, and no process. Also in a forked child, which has none of the threads."""
        self._lock = threading.Lock()  # for `_running`, and for what a process takes of the queue
        self._running = 0
        self._queue: deque[_Request] = deque()  # oldest first

    def compile(self, source: bytes) -> bytes:
        """Return the SPIR-V of a text; raises `Rejected`."""
        own = _Request(source)
        self._queue.append(own)
        # A thread for every text: it ends at once if enough others are running, of which each looks
        # into the queue again before it ends.
        worker = threading.Thread(target=self._work, name="penstock-glslc", daemon=True)
        try:
            worker.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            own.outcome.put(self._compile_one(source))
            with contextlib.suppress(ValueError):
                self._queue.remove(own)
        outcome = own.outcome.get()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _work(self) -> None:
        """Run processes until the queue is empty, unless enough threads are doing that."""
        with self._lock:
            if self._running == self._most:
                return
            self._running += 1
        while share := self._next_share():
            made: list[bytes | Exception] = []
            try:
                made = self._compile_all([one.source for one in share])
            except Exception as error:  # such as no memory: not to leave a text without an outcome
                made = [error] * len(share)
            for one, outcome in zip(share, made, strict=True):
                one.outcome.put(outcome)

    def _next_share(self) -> list[_Request]:
        """Take a share of the queue; or end the calling thread's work, if there is nothing."""
        with self._lock:
            count = -(-len(self._queue) // (self._most - self._running + 1))
            if not count:
                self._running -= 1
            return [self._queue.popleft() for _ in range(count)]

    def _compile_all(self, sources: list[bytes]) -> list[bytes | Exception]:
        together = self._compile_together(sources) if len(sources) > 1 else None
        # If one of several was rejected, each is compiled alone, to tell the outputs apart.
        return [*together] if together else [*map(self._compile_one, sources)]

    def _compile_one(self, source: bytes) -> bytes | Exception:
        try:
            command = [*self._command, "-o", "-", "-"]
            run = subprocess.run(command, input=source, capture_output=True, check=False)
        except OSError as error:
            return error
        if run.returncode == 0:
            return run.stdout
        said = run.stderr.decode(errors="replace")
        return Rejected(said or f"error: glslc ended with status {run.returncode}")

    def _compile_together(self, sources: list[bytes]) -> list[bytes] | None:
        """Compile all in one process; None if that fails."""
        try:
            with tempfile.TemporaryDirectory(prefix="penstock-glslc-") as name:
                folder = Path(name)
                files = [f"{number}.comp" for number in range(len(sources))]
                for file, source in zip(files, sources, strict=True):
                    (folder / file).write_bytes(source)
                command = [*self._command, "-c", *files]
                run = subprocess.run(command, cwd=folder, capture_output=True, check=False)
                if run.returncode:
                    return None
                return [(folder / f"{file}.spv").read_bytes() for file in files]
        except OSError:
            return None


def _after_fork() -> None:
    for each in list(_all):
        each._begin()


os.register_at_fork(after_in_child=_after_fork)
