"""Named programs: known bugs with lost or misordered copies, and minimal cases of each rule.

Each was a bug in an earlier system, or is the smallest case of a rule. x is array 0, y is array 1
and z is array 2. Work is on stream 0, and operations after it often on another stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.conformance.program import (
    Ask,
    BeginBatch,
    Change,
    Collect,
    Copy,
    Declared,
    Drop,
    EndBatch,
    EventDone,
    EventWait,
    Fill,
    Flush,
    Launch,
    Length,
    Numpy,
    Operation,
    Part,
    Program,
    Read,
    Record,
    Renew,
    Reset,
    StreamWait,
    Synchronize,
    Touch,
    View,
    Write,
)
from penstock.ledger.roles import Role

_N = 256
_ALIGNED = 64  # elements of 4 bytes: where parts begin that every device can bind
X, Y, Z = Part(0, 0, _N), Part(1, 0, _N), Part(2, 0, _N)
_HALF = Part(0, 64, 192)


def _read_x(stream: int = 0) -> Launch:
    """A long-running kernel that reads x into y."""
    return Launch("copy", (X, Y), 0, stream, slow=True)


def _first_look(others: int = 8) -> Program:
    """Enough threads launch that some do so while the host waits for its first read of x."""
    parts = [Part(0, _ALIGNED * number, _ALIGNED * number + 4) for number in range(others + 1)]
    launches = [Launch("store", (part,), 5, stream) for stream, part in enumerate(parts)]
    return Program(
        (Declared(_ALIGNED * len(parts), "zeros", role="append"),),
        len(parts),
        (*launches, Numpy(parts[0])),
        "a first look beside launches",
        "rows that kernels write while the host waits for its first read are published, too",
        threads=len(parts),
    )


def _add_x(value: int, stream: int = 0) -> Launch:
    """A long-running kernel that changes x."""
    return Launch("add", (X,), value, stream, slow=True)


def _both(
    name: str, about: str, *operations: Operation,
    how: str = "array", borrowed: bool = False, small: bool = False,
    role: Role = "generic", closed_at: int = 0,
) -> list[Program]:  # fmt: skip
    """The program as written, on several streams, and on one; with `borrowed`, also with every
    write borrowed, because only borrowed writes can take the *ordered* path.

    All start with an idle device, so that a failure is due to one of the program's operations.
    """
    arrays = (Declared(_N, how, role=role), Declared(_N), Declared(_N, "adopted"))
    variants = {name: (Synchronize(), *operations)}
    if borrowed:
        variants[f"{name}, borrowed"] = (Synchronize(), *map(_borrowed, operations))
    programs: list[Program] = []
    for called, written in variants.items():
        moved = tuple(map(_on_stream_0, written))
        several = Program(arrays, 3, written, called, about, small, closed_at=closed_at)
        programs.append(several)
        if moved != written:
            name_of_one = f"{called}, one stream"
            programs.append(replace(several, streams=1, operations=moved, name=name_of_one))
    return programs


def _borrowed(operation: Operation) -> Operation:
    return replace(operation, borrow=True) if isinstance(operation, Write) else operation


def _on_stream_0(operation: Operation) -> Operation:
    changed: Any = {"stream": 0}
    return replace(operation, **changed) if hasattr(operation, "stream") else operation


CORPUS: tuple[Program, ...] = tuple(
    program
    for programs in (
        # The litmus programs.
        _both(
            "read, then write",
            "compute reads x; async write x: the compute sees the old x",
            _read_x(), Write(X, 5, 0, 1),
            borrowed=True,
        ),
        _both(
            "write, then write",
            "compute writes x; async write x: x is the host's",
            _read_x(), _add_x(1), Write(X, 5, 0, 1),
            borrowed=True,
        ),
        _both(
            "pinned, then ordinary",
            "async write from pinned memory, then from ordinary memory: the second wins",
            _read_x(), Write(X, 5, 0, 1, borrow=True, pinned=True), Write(X, 900, 1), Collect(0),
        ),
        _both(
            "read, then overwrite",
            "async read x; compute overwrites x: the read is the old x",
            _read_x(), Read(X, 0), Launch("store", (X,), 7, 1), Flush(1), Collect(0),
        ),
        _both(
            "read between writes",
            "compute writes x; async read; compute writes x: the read is the first's",
            _add_x(1), Read(X, 0), _add_x(1, 1), Read(X, 1, 1, out=True), _add_x(1), Collect(0),
        ),
        _both(
            "changed source",
            "host memory reused after an asynchronous write: the device has the old source",
            _read_x(), Write(X, 5, 0), Change(0),
            Write(Y, 600, 1, 1, pinned=True), Change(1),
        ),
        _both(
            "event covers a read",
            "async read; record event; wait for the event only: the bytes have arrived",
            _add_x(1), Read(X, 0, out=True), Record(1), EventWait(1), _add_x(1), Collect(0),
        ),
        _both(
            "event covers a write",
            "compute; async write; record event; wait for the event only: the write is in",
            _read_x(), Write(X, 5, 0, borrow=True), Record(1), EventWait(1),
        ),
        _both(
            "blocking write",
            "compute in flight; a blocking write of what it reads: waits or renames",
            _read_x(), Flush(), Write(X, 5, 0, 1), Collect(0),
            borrowed=True,
        ),
        _both(
            "fill of what is read",
            "a fill of memory that work in flight still reads is ordered behind it",
            _read_x(), Flush(), Fill(X, 5, 1),
        ),
        # More of the field's bugs.
        _both(
            "host writes b0",
            "a kernel reads b0; the host writes a part of b0",
            _read_x(), Write(_HALF, 5, 0),
            borrowed=True,
        ),
        _both(
            "copy dropped at an event",
            "deferred copies must survive events, flushes and submissions",
            _read_x(), Write(_HALF, 5, 0), Record(1), Record(2), Flush(), Read(Y, 3),
            Record(4), Flush(), _add_x(1), EventDone(1), EventWait(4), Collect(3),
            borrowed=True,
        ),
        _both(
            "deferred clear",
            "a clear of a part of what a kernel in flight reads, then more work on it",
            _read_x(), Fill(_HALF, 0, 1), Launch("mix", (X, Z), 1), Fill(X, 3, 1),
        ),
        _both(
            "read after a borrowed write",
            "a kernel, a read and numpy() after a borrowed write all see it",
            _read_x(), Write(X, 5, 0, 1, borrow=True), Launch("copy", (X, Z), 0),
            Read(X, 1), Numpy(X), Collect(0), Change(0),
        ),
        _both(
            "readers on two streams",
            "two streams read one array, a third writes it",
            _add_x(1), _read_x(), Launch("copy", (X, Z), 0, 1, slow=True), _add_x(1, 2),
            Read(X, 0, 2),
        ),
        _both(
            "held view",
            "a view held while a kernel writes does not change",
            View(X, 0), _add_x(1), View(_HALF, 1), Write(_HALF, 5, 2), Drop(0), _add_x(1, 1),
            Numpy(X), Drop(1),
        ),
        _both(
            "results of two streams",
            "two streams read at once: each has its own result",
            _add_x(1), Launch("store", (Y,), 7, 1, slow=True), Read(X, 0), Read(Y, 1, 1),
            _add_x(1), Collect(1), Collect(0),
        ),
        _both(
            "visible to the device, not to the host",
            "a barrier inside a recording is not host visibility",
            BeginBatch(), _add_x(1), _read_x(), Read(Y, 0), EndBatch(), Collect(0), Numpy(Y),
        ),
        _both(
            "a barrier is not a wait",
            "a barrier orders work on the device; the host must still wait for it",
            BeginBatch(), _add_x(1), _read_x(), Numpy(X), EndBatch(),
        ),
        _both(
            "reused memory",
            "memory dropped while in use comes back as another array",
            _read_x(), Renew(0), Write(X, 5, 0, 1), Launch("mix", (X, Y), 0, 1),
            Renew(1, close=True), Launch("mix", (X, Y), 0),
        ),
        _both(
            "a chain through streams",
            "streams ordered by events that wait for events",
            _add_x(1), Write(_HALF, 5, 0, borrow=True), Record(1), StreamWait(1, 1), Record(2, 1),
            StreamWait(2, 2), Launch("store", (Z,), 3, 2), Record(3, 2), EventWait(3),
            EventDone(1), Launch("copy", (X, Y), 0, 2),
        ),
        _both(
            "a stream that only waits",
            "an event on a stream that does nothing but wait covers what it waits for",
            _read_x(), Write(_HALF, 5, 0, borrow=True), Record(1), StreamWait(1, 1), Record(2, 1),
            EventWait(2), Read(X, 3, 2, out=True), Record(4, 2), EventWait(4),
        ),
        _both(
            "overlapping copies",
            "copies within an array are as if through a temporary, and in order",
            _read_x(), Copy(Part(0, 0, 255), Part(0, 1, 256)), _add_x(1, 1),
            Copy(Part(0, 1, 256), Part(0, 0, 255), 1), Copy(X, Z),
        ),
        # A wait for value 1 of a lane must not wait for the work that signals value 2.
        _both(
            "value 1, not value 2",
            "the host waits for an event and a read; later work on the stream is held back",
            _read_x(), Read(Y, 0), Record(1), BeginBatch(), Launch("store", (Z,), 7),
            EventWait(1), Collect(0), EndBatch(),
        ),
        _both(
            "a stream waits for value 1, not value 2",
            "a stream waits for an event of another, whose later work is held back",
            _read_x(), Record(1), BeginBatch(), Launch("store", (Z,), 7), StreamWait(1, 1),
            Launch("store", (Y,), 9, 1), Numpy(Y), EndBatch(),
        )[:1],
        _both(
            "a copy between two launches",
            "a host copy waits for one launch, and the next launch on the stream for the copy",
            _read_x(), Write(X, 5, 0, borrow=True), Launch("copy", (X, Z), 0), Numpy(Z),
        ),
        _both(
            "copies that take turns",
            "a host copy waits for another stream's first copy, and its second for that",
            _read_x(), Write(Part(1, 0, 1), 5, 0, 0, borrow=True),
            Write(Part(1, 0, 1), 9, 1, 1, borrow=True),
            Write(Part(1, 0, 1), 13, 2, 0, borrow=True), Numpy(Y),
        ),
        _both(
            "a copy behind held work",
            "a host copy waits for work that a batch holds back, so that must be submitted",
            BeginBatch(), _read_x(), Write(X, 5, 0, 1, borrow=True), Collect(0), EndBatch(),
        ),
        # Graphs, results, roles.
        _both(
            "a graph in itself",
            "launches of one graph, and its replays, are in order",
            Launch("add", (X,), 1, again=2),
        ),
        _both(
            "a graph among other work",
            "a graph is ordered against what comes before and after it",
            _read_x(), Launch("mix", (Y, X), 1, 1, again=2), Launch("copy", (X, Z), 0), Read(X, 0),
        ),
        _both(
            "deferred clear of what a graph reads",
            "a clear of memory that a graph in flight reads is ordered behind it",
            Launch("copy", (X, Y), 0, slow=True, again=2), Fill(_HALF, 0, 1),
        ),
        _both(
            "results of many launches",
            "each launch has a result of its own",
            Ask(X, 0, slow=True), _add_x(1), Ask(X, 1, 1), _add_x(1), Ask(X, 2), Collect(1),
            Collect(2), Collect(0),
        ),
        _both(
            "a result alone",
            "a kernel that writes nothing but its result",
            Ask(X, 0), Collect(0),
        ),
        _both(
            "a look at scratch",
            "unpublished writes become visible to the host when it forces a read",
            _add_x(1), Flush(), Synchronize(), _read_x(1),
            role="scratch",
        ),
        _both(
            "scratch in memory that is busy",
            "scratch memory is reused while a kernel reads it; the next array's work comes after",
            Launch("store", (X,), 5), _read_x(), Renew(0, close=True),
            Launch("store", (X,), 9, 1, slow=True), Launch("copy", (X, Z), 0, 1),
            Renew(0, close=True), _add_x(1),
            how="zeros", role="scratch",
        ),
        # Found by this suite.
        _both(
            "borrowed writes on two streams",
            "a host copy that waits for another stream's host copy does not deadlock",
            _read_x(), Write(Part(1, 0, 1), 5, 0, 0, borrow=True),
            Write(Part(1, 0, 1), 9, 1, 1, borrow=True), Numpy(Y),
        ),
        _both(
            "strided write beside device writes",
            "a strided host write leaves alone what a kernel wrote between its elements",
            _add_x(1), Record(2), EventDone(2), Write(Part(0, 0, 16, 2), 5, 0),
            Fill(Part(0, 1, 16, 3), 7), Read(Part(0, 1, 16, 2), 1), Launch("sparse", (X,), 3),
            Numpy(Part(0, 0, 32, 3)),
        ),
        _both(
            "adopted memory",
            "the device works in the program's own memory, with writes around it",
            _read_x(), Write(_HALF, 5, 0, 1), Launch("mix", (Y, X), 0, slow=True), Read(X, 1),
            Fill(_HALF, 3, 1), Renew(0),
            how="adopted",
        ),
        _both(
            "write through a view",
            "the device sees what was written through a view once the view is dropped",
            _add_x(1), View(_HALF, 0, "w"), Touch(0, 5), Drop(0), _read_x(),
        ),
        _both(
            "write beside a writable view",
            "a fresh backing would take an array away from the view that still writes it",
            View(Part(0, 64, 128), 0, "w"), View(Part(0, 0, 32), 1), Fill(Part(0, 0, 32), 7, 1),
            Touch(0, 5), Drop(0), Fill(Part(0, 0, 32), 7, 1), Drop(1),
        ),
        _both(
            "append after a reset",
            "what is written after a reset counts as written, also by the same call as before",
            Launch("store", (X,), 5), Length(0), Reset(0), Launch("store", (X,), 7), Length(0),
            Fill(_HALF, 3, 1), Read(X, 0),
            how="zeros", role="append",
        ),
        _both(
            "rows appended in any order",
            "the length counts rows without a gap from the first on, in whatever order they came",
            Fill(Part(0, 192, _N), 3), Length(0), Fill(Part(0, 0, 64), 5, 1), Length(0),
            Write(_HALF, 7, 0, 1), Length(0),
            how="zeros", role="append",
        ),
        _both(
            "host copies without the lock",
            "large direct copies are made on a host lane; a loss there is a loss of the device",
            Write(X, 5, 0), Read(X, 1), Numpy(X), _read_x(), Write(_HALF, 9, 2, borrow=True),
            small=True,
        ),
        _both(
            "memory of an earlier array",
            "a kernel's writes to a dropped array do not land after the host's to the next one",
            Launch("store", (X,), 5, 1, again=2), Synchronize(), Renew(0, close=True),
            Launch("copy", (X, Y), 0), Numpy(Y),
            how="zeros", role="scratch",
        ),
        _both(
            "a closed device",
            "closing completes the work before it, and all work after it is refused",
            _add_x(1), Write(Y, 5, 0), Read(X, 1, out=True),
            Write(X, 7, 2, 1), Numpy(X), Fill(_HALF, 3), Launch("copy", (X, Y), 0), Collect(1),
            closed_at=4,
        ),
        [_first_look()],
    )
    for program in programs
)  # fmt: skip
