"""Cases that every program of `differential` begins with, because chance would seldom make them.

Each is a small program on arrays of its own, about one check of the native step; its docstring says
what must not happen. It returns what is to be logged.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock as ps

if TYPE_CHECKING:
    from tests.native.differential import Program

N = 64
LARGE = 2 << 18  # floats: half of them are a write that a thread makes in stream order

#: A kernel with numbers of every type, by their names.
WIDE_NUMBERS = ("d", "q", "uq", "f", "i", "ui", "e", "h", "uh", "b", "ub")
WIDE = """
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(push_constant) uniform Numbers {
    float64_t d; int64_t q; uint64_t uq; float f; int i; uint ui;
    float16_t e; int16_t h; uint16_t uh; int8_t b; uint8_t ub;
};
void main() { x[0] += f; }
"""
_TYPES = [np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + "efdg"]
NUMBERS: tuple[Any, ...] = (
    True, 3, -3, 3.5, -(2**63), 2**63, 2**64 - 1, 2**64, 10**400, 1e300,
    *(each(1) for each in _TYPES),
    *(limit for each in _TYPES[1:-4] for limit in (np.iinfo(each).min, np.iinfo(each).max)),
    *(each(limit) for each in _TYPES[1:-4] for limit in (np.iinfo(each).min, np.iinfo(each).max)),
    *(each(value) for each in _TYPES[-4:] for value in (-2.5, "nan", "inf")),
    np.float64(1e300), np.longdouble("1e300"), np.array(3), np.array(3.5), np.array([3]),
    np.str_("3"), np.datetime64(3, "s"), Fraction(3, 2), "3", None,
)  # fmt: skip


def rows_with_a_pitch(program: Program) -> list[Any]:
    """Work beside the columns that a copy in flight writes needs no barrier and no wait."""
    device, step = program.device, program.kernels["step"]
    x, y = device.zeros((8, 2 * N)), device.ones((8, 2 * N))
    beside, inside = x[1, N:], x[1, :N]
    for part in (beside, inside, beside, inside):
        step(x=part, threads=N)
        part.numpy()
    said = []
    program.calls.visible = False
    for part in (beside, inside):
        x[:, :N].copy_from(y[:, :N])
        step(x=part, threads=N)
        said.append(part.numpy()[:2])
        x[:, :N].copy_from(y[:, :N])
        said.append(part.numpy()[:2])
    return said


def work_of_two_streams(program: Program) -> list[Any]:
    """A read waits for all work on its bytes, and submits it in the order of the calls."""
    x = program.device.zeros(2 * N)
    said = [x.numpy()[:: N // 2]]
    parts = [*zip((x[:N], x[N:]), program.streams, strict=True)]
    program.calls.visible = False
    for order, counts in ((parts, (3, 5)), (parts[::-1], (3, 5)), (parts, (5, 3))):
        for (part, stream), count in zip(order, counts, strict=True):
            for _ in range(count):
                program.kernels["step"](x=part, threads=N, stream=stream)
        said.append(x.numpy()[:: N // 2])
    return said


def a_source_in_adopted_memory(program: Program) -> list[Any]:
    """A write refuses a source that the device has yet to write."""
    x = program.device.zeros(N)
    room = np.zeros(2 * 4096, np.uint8)
    start = -int(room.ctypes.data) % 4096
    host = room[start : start + 4 * N].view(np.float32)
    with program.device.adopt(host) as adopted:
        said = [program.attempt(partial(x.write, host)), x.numpy()[:2]]
        program.calls.visible = False
        program.kernels["step"](x=adopted, threads=N)
        said += [program.attempt(partial(x.write, host)), x.numpy()[:2]]
        program.device.synchronize()
        said += [program.attempt(partial(x.write, host)), x.numpy()[:2]]
    return said


def writes_that_are_no_plain_copy(program: Program) -> list[Any]:
    """A view keeps what it shows, a sealed array keeps its content, and no source's code runs."""
    x, asked = program.device.zeros(N), []

    class Asked(np.ndarray[Any, Any]):
        @property
        def dtype(self) -> Any:
            asked.append(self)
            return super().dtype

    said = []

    def write(value: float, source: Any = None) -> None:
        source = np.full(N, value, np.float32) if source is None else source
        program.attempt(partial(x.write, source))
        said.append(x.numpy()[:2].tolist())

    write(1)
    view = x.view("r")
    write(2)
    said.append(view[:2].tolist())
    del view
    view = x.view("rw")
    write(3)
    said.append(view[:2].tolist())
    del view
    write(4, [4.0] * N)
    write(5, np.full(N, 5, np.float32).view(Asked))
    write(6, memoryview(np.full(N, 6, np.float32)))
    x.seal()
    write(7)
    return [*said, len(asked)]


def writes_to_bytes_in_use(program: Program) -> list[Any]:
    """A write while a kernel reads or writes the bytes goes elsewhere, or waits its turn."""
    x, y = program.device.zeros(N), program.device.zeros(N)
    axpy, step = program.kernels["axpy"], program.kernels["step"]
    said = []
    for value in (1, 2, 3):
        program.calls.visible = value == 1
        axpy(x=x, y=y, a=1.0, n=N, threads=N)
        x.write(np.full(N, value, np.float32))
        said.append(y.numpy()[:2])
        step(x=x, threads=N)
        x.write(np.full(N, value, np.float32))
        said.append(x.numpy()[:2])
    return said


def an_array_that_a_kernel_renames(program: Program) -> list[Any]:
    """A kernel that writes what a view shows gives the array other memory, which is read then."""
    x = program.device.zeros(N)
    said = []
    for _ in range(2):
        program.kernels["step"](x=x, threads=N)
        said.append(x.numpy()[:2])
        view = x.view("r")
        program.kernels["step"](x=x, threads=N)
        said.append(view[:2].copy())
        del view
        program.device.synchronize()
        said.append(x.numpy()[:2])
    return said


def a_sealed_array(program: Program) -> list[Any]:
    """A kernel that writes an array is refused once that is sealed; one that reads it is not."""
    x, y = program.device.zeros(N), program.device.zeros(N)
    axpy = partial(program.kernels["axpy"], a=1.0, n=N, threads=N)
    for _ in range(2):
        axpy(x=x, y=y)
        axpy(x=y, y=x)
    y.seal()
    program.attempt(partial(axpy, x=x, y=y))
    axpy(x=y, y=x)
    return [x.numpy()[:2], y.numpy()[:2]]


def counts_of_other_types(program: Program) -> list[Any]:
    """A number of groups that is 0, or only equal to one that a kernel has had before."""
    x = program.device.zeros(N)
    for given in (
        {"threads": 0}, {"groups": 0}, {"threads": N}, {"groups": 1}, {"groups": (1, 1, 1)},
        {"threads": 0}, {"groups": 0}, {"threads": float(N)}, {"groups": 1.0}, {"groups": True},
        {"threads": np.int64(N)}, {"groups": (1.0, 1, 1)}, {"groups": (True, 1, 1)},
    ):  # fmt: skip
        program.attempt(partial(program.kernels["step"], x=x, **given))
    return [x.numpy()[:2]]


def kernels_in_turn(program: Program) -> list[Any]:
    """What is bound for one kernel stays bound for the next only if their layouts are the same."""
    device = program.device
    source = (
        "layout(local_size_x = 64) in;\nlayout(binding = %d) buffer X { float x[]; };\n"
        "layout(push_constant) uniform P { float a; };\n"
        "void main() { x[gl_GlobalInvocationID.x] += a; }\n"
    )
    kernels = [device.kernel(source % binding) for binding in (0, 0, 1)]
    x = device.zeros(N)
    for kernel in kernels:
        kernel(x=x, a=1.0, threads=N)
    device.synchronize()
    with device.default_stream.batch():
        for number in (0, 0, 1, 0, 2, 1, 2, 0):
            kernels[number](x=x, a=1.0, threads=N)
    return [float(x.numpy()[0])]


def a_command_buffer_used_again(program: Program) -> list[Any]:
    """The same launch alone is recorded again only if a handle in it may mean another object."""
    x = program.device.zeros(N)
    for number in range(6):
        program.kernels["step"](x=x, threads=N)
        program.device.synchronize()
        if number == 3:
            program.device.kernel(WIDE).close()
            _ = program.device.memory  # and so release what is done
    return [x.numpy()[:2]]


def the_access_behind_a_barrier(program: Program) -> list[Any]:
    """Of several accesses that one barrier is for, the receipt names the first."""
    x = program.device.zeros(4 * N)
    parts = (x, x[2 * N : 3 * N], x[:N], x)
    said = []
    for _ in range(2):
        with ps.trace(times=False) as t, program.device.default_stream.batch():
            for part in parts:
                program.kernels["step"](x=part, threads=N)
        said += [event.reason for event in t.events if event.path == "device"]
        program.device.synchronize()
    return said


def temporaries_in_flight(program: Program) -> list[Any]:
    """A NumPy array gets a temporary that no launch reads; a read-only one is not written."""
    pick, host = program.kernels["pick"], np.zeros(5 * N, np.float32)
    program.calls.visible = False
    results = []
    for value in (1, 2, 3):
        host[:] = value
        results.append(pick(x=host, i=1, threads=1))
    said = [each.result() for each in results]
    for writeable in (True, True, False):
        host.flags.writeable = writeable
        program.attempt(partial(program.kernels["step"], x=host, threads=N))
    return [*said, host[:2]]


def a_temporary_in_use(program: Program) -> list[Any]:
    """A call that is made while another waits gets a temporary of its own for its NumPy array."""
    step, hosts = program.kernels["step"], [np.full(3 * N, each, np.float32) for each in (10, 20)]
    for host in hosts:
        step(x=host, threads=N)

    def meanwhile() -> None:
        program.calls.visible = True
        step(x=hosts[1], threads=N)

    program.calls.visible = False
    program.calls.at_wait = meanwhile
    step(x=hosts[0], threads=N)
    return [program.calls.at_wait, *(host[:2].tolist() for host in hosts)]


def what_a_result_slot_had(program: Program) -> list[Any]:
    """A kernel that counts in its result finds 0 there, also where another result was."""
    count = program.kernels["count"]
    said = [count(threads=threads).result() for threads in (N, N, 2 * N)]
    results = [count(threads=N) for _ in range(3)]
    return [*said, *(each.result() for each in results)]


def copies_that_a_stream_has_yet_to_make(program: Program) -> list[Any]:
    """`synchronize()` waits for a host copy in stream order, although the device is done."""
    x, source = program.device.zeros(LARGE), np.full(LARGE // 2, 7, np.float32)
    program.calls.visible = False
    said = []
    with program.copies_when_waited_for():
        for _ in range(2):
            program.kernels["step"](x=x, threads=N)
            pending = x[: LARGE // 2].write(source, borrow=True)
            said.append(pending.done)
            program.device.default_stream.synchronize()
            said += [pending.done, x[:2].numpy()]
    return said


def a_view_that_a_wait_would_wait_for(program: Program) -> list[Any]:
    """A wait for work behind a view of this thread's raises, and submits nothing before."""
    device, pick = program.device, program.kernels["pick"]
    x, y = device.ones(N), device.zeros(N)
    view = x.view("rw")
    program.calls.visible = False
    with ThreadPoolExecutor(1) as another:
        first = another.submit(partial(pick, x=x, i=1, threads=1)).result()
    device.default_stream.flush()
    second = pick(x=y, i=1, threads=1)
    said = [program.attempt(second.result)]
    program.kernels["step"](x=y, threads=N)
    said.append(program.attempt(first.result))
    view[:] = 3
    del view
    return [*said, first.result(), second.result(), y.numpy()[:2]]


def numbers_of_every_type(program: Program) -> list[Any]:
    """A number of NumPy's is packed or refused as by `struct`, and the caller's code runs once."""
    x, asked = program.device.zeros(N), []

    class Hashed(type):
        def __hash__(cls) -> int:
            asked.append("hash")
            return 1

    class Own(metaclass=Hashed):
        def __float__(self) -> float:
            asked.append("float")
            return 3.0

        def __index__(self) -> int:
            asked.append("index")
            return 3

    given: dict[str, Any] = dict.fromkeys(WIDE_NUMBERS, 1)
    for name in WIDE_NUMBERS:
        for value in (*NUMBERS, Own(), program.one):
            program.attempt(
                partial(program.kernels["wide"], x=x, threads=1, **given | {name: value})
            )
    return asked


CASES: tuple[Callable[[Program], list[Any]], ...] = (
    rows_with_a_pitch,
    work_of_two_streams,
    a_source_in_adopted_memory,
    writes_that_are_no_plain_copy,
    writes_to_bytes_in_use,
    an_array_that_a_kernel_renames,
    a_sealed_array,
    counts_of_other_types,
    kernels_in_turn,
    a_command_buffer_used_again,
    the_access_behind_a_barrier,
    temporaries_in_flight,
    a_temporary_in_use,
    what_a_result_slot_had,
    copies_that_a_stream_has_yet_to_make,
    a_view_that_a_wait_would_wait_for,
    numbers_of_every_type,
)
