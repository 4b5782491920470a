"""The queue before glslc: what threads ask for at once is compiled by one process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.shader import glslc
from penstock.shader.glslc import Glslc, Rejected
from tests.interrupts import at_point, interrupt, points

# Stands for glslc: "compiles" a text by reversing it, rejects what contains "bad", and does not end
# before the gate is open if it contains "held". It logs how many texts each process got.
PROGRAM = """#!{python}
import os, sys, time
from pathlib import Path
folder = Path({folder!r})
files = [name for name in sys.argv[1:] if name.endswith(".comp")]
texts = [Path(name).read_bytes() for name in files] or [sys.stdin.buffer.read()]
with open(folder / "log", "a") as log:
    log.write(f"{{len(texts)}}\\n")
if any(b"killed" in text for text in texts):
    os.kill(os.getpid(), 9)
while any(b"held" in text for text in texts) and not (folder / "gate").exists():
    time.sleep(0.005)
for name, text in zip(files or [None], texts):
    if b"bad" in text:
        sys.exit("0:1: error: " + text.decode())
    if name is None:
        sys.stdout.buffer.write(text[::-1])
    else:
        Path(name + ".spv").write_bytes(text[::-1])
"""


class Fake:
    """A `Glslc` of one process at a time, over a program whose first process can be held."""

    def __init__(self, folder: Path) -> None:
        program = folder / "glslc"
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o700)
        self.folder = folder
        self.glslc = Glslc(str(program), processes=1)
        self.pool = ThreadPoolExecutor(8)

    def start(self, *sources: bytes) -> list[Future[bytes]]:
        """Compile each in a thread of its own, and wait until all but a held one are queued."""
        before = len(self.glslc._queue)
        found = [self.pool.submit(self.glslc.compile, source) for source in sources]
        until(lambda: len(self.glslc._queue) == before + len(sources))
        return found

    def hold(self) -> Future[bytes]:
        first = self.pool.submit(self.glslc.compile, b"held")
        until(lambda: bool(self.processes))
        return first

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    @property
    def processes(self) -> list[int]:
        """How many texts each process has compiled."""
        log = self.folder / "log"
        return [*map(int, log.read_text().split())] if log.exists() else []


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.002)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    made = Fake(tmp_path)
    yield made
    made.open_gate()
    made.pool.shutdown()


def test_texts_that_come_meanwhile_share_the_next_process(fake: Fake) -> None:
    first = fake.hold()
    others = fake.start(b"one", b"two", b"three")
    fake.open_gate()
    assert [future.result() for future in (first, *others)] == [b"dleh", b"eno", b"owt", b"eerht"]
    assert fake.processes == [1, 3]


def test_a_rejected_text_rejects_no_other(fake: Fake) -> None:
    first = fake.hold()
    good, bad, last = fake.start(b"good", b"a bad one", b"last")
    fake.open_gate()
    assert (first.result(), good.result(), last.result()) == (b"dleh", b"doog", b"tsal")
    with pytest.raises(Rejected, match="0:1: error: a bad one"):
        bad.result()
    assert fake.processes == [1, 3, 1, 1, 1]  # each again alone, to tell whose the error is


def test_a_thread_that_gives_up_leaves_the_others_their_texts(fake: Fake) -> None:
    """As Ctrl-C does: the main thread leaves, in the middle of what it waits for."""
    first = fake.hold()
    others = fake.start(b"one", b"two")
    real = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            fake.glslc.compile(b"three")
    finally:
        signal.signal(signal.SIGALRM, real)
    fake.open_gate()
    assert [future.result() for future in (first, *others)] == [b"dleh", b"eno", b"owt"]
    assert fake.glslc.compile(b"four") == b"ruof"
    until(lambda: fake.glslc._running == 0)


def test_an_interrupt_at_any_point_leaves_nothing_locked(fake: Fake) -> None:
    fake.open_gate()
    for number in range(1, points(lambda: fake.glslc.compile(b"text")) + 1):
        at_point(number, interrupt, lambda: fake.glslc.compile(b"text"))
    assert fake.glslc.compile(b"text") == b"txet"


def test_a_process_that_fails_otherwise_is_an_error_of_each(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fake.hold()
    others = fake.start(b"one", b"two")

    def run(*arguments: Any, **options: Any) -> Any:
        raise MemoryError("no memory for a process")

    monkeypatch.setattr(glslc.subprocess, "run", run)
    fake.open_gate()
    assert first.result() == b"dleh"
    for future in others:
        with pytest.raises(MemoryError):
            future.result()
    monkeypatch.undo()
    assert fake.glslc.compile(b"three") == b"eerht"


def test_without_another_thread_the_text_is_compiled_in_this_one(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert fake.glslc.compile(b"text") == b"txet"
    assert not fake.glslc._queue


def test_a_process_that_ends_by_a_signal_says_so(fake: Fake) -> None:
    with pytest.raises(Rejected, match="glslc ended with status -9"):
        fake.glslc.compile(b"killed")


def test_a_forked_child_compiles_although_its_parent_was_compiling(fake: Fake) -> None:
    first = fake.hold()
    (other,) = fake.start(b"one")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, at a fork
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # a child that hangs ends, and fails the test
        try:
            fake.open_gate()
            os._exit(fake.glslc.compile(b"two") != b"owt")
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (first.result(), other.result()) == (b"dleh", b"eno")


def test_a_program_that_cannot_run_is_an_error_of_each(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no such program"):
        Glslc(str(tmp_path / "no such program")).compile(b"text")
