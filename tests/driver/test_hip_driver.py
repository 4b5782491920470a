"""The HIP driver by itself, over the stand-in: timelines, what is held back, and failures."""

from __future__ import annotations

import ctypes
import gc
import mmap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.__main__ import main
from penstock.shader.source import KernelSource
from tests.hip.standin import LOST, NAME, OUT_OF_MEMORY, StandIn
from tests.interrupts import at_point, chosen, interrupt, points
from tests.kernels import SAXPY, SLOW_ADD, new_kernel, saxpy, slow_add, slow_copy
from tests.tracing.device_clock import check_bounds

N = 256
LARGE = 1 << 16  # elements: copied at once
SOON = 10**10  # nanoseconds


class Bare:
    """A driver with two queues, and memory to fill."""

    def __init__(self, device: ps.Device) -> None:
        self.driver: Any = device.scheduler.driver
        self.memory = self.driver.allocate(4096, host=True)
        self.queues = [self.driver.queue(number) for number in range(2)]
        self.timelines = [self.driver.timeline() for _ in range(2)]
        self.host = self.driver.timeline()

    def fill(
        self, number: int, word: int, value: int, waits: list[Any], offset: int = 0, nbytes: int = 4
    ) -> None:
        """Submit a fill that raises the queue's timeline to a value."""
        (recording,) = self.queues[number].recordings(1)
        recording.begin()
        recording.fill(self.memory, offset, nbytes, word)
        recording.publish()
        self.queues[number].submit(recording, waits, self.timelines[number], value)

    def reached(self, number: int, value: int) -> bool:
        return bool(self.driver.wait([(self.timelines[number], value)], SOON))

    @property
    def words(self) -> list[int]:
        return list((ctypes.c_uint32 * 4).from_address(self.memory.address))

    def close(self) -> None:
        for part in (*self.queues, *self.timelines, self.host):
            part.close()
        self.driver.free(self.memory)


@pytest.fixture
def bare(hip_device: ps.Device) -> Any:
    made = Bare(hip_device)
    yield made
    made.close()


def x_plus_one(device: ps.Device, x: Any, **options: Any) -> None:
    new_kernel(device, SLOW_ADD)(x=x, n=x.size, spin=0, add=1, threads=x.size, **options)


# Copies from and to the caller's memory.


def test_a_copy_at_once_waits_for_no_work(hip: StandIn, hip_device: ps.Device) -> None:
    """Neither for work on its stream, nor for any other; and that work sees what it saw before."""
    x, y = hip_device.ones(LARGE), hip_device.zeros(LARGE)
    given = np.full(LARGE, 3, np.float32)
    run = saxpy(hip_device)
    run(x=given, y=y, a=1.0, n=LARGE, threads=LARGE)
    hip_device.synchronize()
    hip.set("patience", 10**6)  # nothing happens unasked
    hip.forget()
    run(x=x, y=y, a=1.0, n=LARGE, threads=LARGE)
    for value in (4, 5):
        given[:] = value
        run(x=given, y=y, a=1.0, n=LARGE, threads=LARGE)
        given[:] = 100  # the caller's again at once
    assert hip.counts["hipMemcpyWithStream"] == (0 if hip_device.info.uma else 2)
    assert not hip.counts["(blocking copy)"]
    hip.set("patience", 0)
    assert (y.numpy() == 3 + 1 + 4 + 5).all()


def test_a_copy_at_once_of_pinned_memory_is_made_when_the_call_returns(
    hip: StandIn, hip_device: ps.Device
) -> None:
    """HIP could copy from such memory later. A large result is in it, and is the caller's."""
    count = 1 << 20
    y = hip_device.zeros(count)
    given = hip_device.ones(count).numpy()
    hip.set("patience", 10**6)  # nothing happens unasked
    saxpy(hip_device)(x=given, y=y, a=1.0, n=count, threads=count)
    given[:] = 100
    hip.set("patience", 0)
    assert (y.numpy() == 1).all()


def test_an_array_with_gaps_is_copied_element_by_element(hip_device: ps.Device) -> None:
    whole = np.zeros((N, 2), np.uint32)
    x_plus_one(hip_device, whole[:, 0])
    assert (whole == [1, 0]).all()


def test_a_copy_at_once_leaves_alone_what_is_yet_to_be_cleared(hip: StandIn) -> None:
    with hip.device(clear_memory=True) as device:
        hip.set("patience", 10**6)
        for count in (LARGE, 2 * LARGE):
            x = np.arange(count, dtype=np.uint32)
            x_plus_one(device, x)
            assert (x == np.arange(1, count + 1)).all()
        hip.set("patience", 0)


@pytest.mark.parametrize("number", [1, 2])
def test_a_loss_during_a_copy_at_once_is_noticed(number: int, hip: StandIn) -> None:
    """While the argument is copied in, and back."""
    with ps.Device(driver="hip", transfers="unmapped") as device:
        x = np.zeros(N, np.uint32)
        x_plus_one(device, x)
        hip.fail("hipMemcpyWithStream", number, LOST)
        with pytest.raises(ps.DeviceLost):
            x_plus_one(device, x)
        assert hip.failed
        hip.fail("", 0, 0)
        assert device.scheduler.lost is not None
        assert (x == 1).all()


def test_without_memory_for_a_copy_at_once_nothing_is_launched(hip: StandIn) -> None:
    with hip.device(transfers="unmapped") as device:
        x = np.zeros(N, np.uint32)
        x_plus_one(device, x)
        device.synchronize()
        hip.forget()
        hip.fail("hipMemcpyWithStream", 1, OUT_OF_MEMORY)
        with pytest.raises(ps.OutOfMemory):
            x_plus_one(device, x)
        device.synchronize()
        assert not hip.counts["hipModuleLaunchKernel"]
        assert (x == 1).all()
        x_plus_one(device, x)
        assert (x == 2).all()


def test_an_interrupted_copy_at_once_is_made_or_not(hip: StandIn) -> None:
    """The caller's array has all that the kernel wrote, or is as it was; the next call is right."""
    with hip.device(transfers="unmapped") as device:
        run = new_kernel(device, SLOW_ADD)
        x = np.zeros(N, np.uint32)

        def call() -> None:
            run(x=x, n=N, spin=0, add=1, threads=N)

        call()
        for number in chosen(points(call)):
            before = int(x[0])
            at_point(number, interrupt, call)
            after = int(x[0])
            assert after in (before, before + 1)
            assert (x == after).all()
            call()
            assert (x == after + 1).all()


# Timelines.


def test_a_value_is_not_lost_when_looking_is_interrupted(bare: Bare) -> None:
    timeline = bare.timelines[0]
    for value in range(1, 20):
        bare.fill(0, 1, value, [])
        bare.driver.settle()
        _, place = at_point(value, interrupt, lambda: timeline.value())
        assert timeline.value() == value, place
    assert not place, "all points were passed"


def test_the_host_waits_for_every_value(bare: Bare) -> None:
    driver = bare.driver
    for order in ([0, 1, 2], [2, 1, 0]):
        timelines = [driver.timeline() for _ in range(3)]
        points = [(timelines[number], 5) for number in order]
        for timeline in timelines:
            assert not driver.wait(points, 10**6)
            driver.signal(timeline, 4)
            assert timeline.value() == 4
            assert not driver.wait(points, 0)
            driver.signal(timeline, 5)
            assert timeline.value() == 5
        assert driver.wait(points, 0)


def test_a_value_is_reached_behind_its_work(hip: StandIn, bare: Bare) -> None:
    hip.set("patience", 10**6)
    for value in range(1, 6):
        bare.fill(0, value, value, [])
    assert bare.timelines[0].value() < 5
    assert bare.reached(0, 5)
    assert bare.timelines[0].value() == 5
    assert bare.words[0] == 5


def test_work_waits_for_a_value_of_the_host(bare: Bare) -> None:
    bare.fill(0, 1, 1, [])
    bare.fill(0, 2, 2, [(bare.host, 1)])
    bare.fill(0, 3, 3, [], offset=4)  # behind it on the same queue
    bare.fill(1, 4, 1, [(bare.timelines[0], 3)], offset=8)  # and on another
    assert bare.reached(0, 1)
    assert not bare.driver.wait([(bare.timelines[0], 2)], 3 * 10**6)
    assert not bare.driver.wait([(bare.timelines[1], 1)], 3 * 10**6)
    assert bare.words[0] == 1
    bare.driver.signal(bare.host, 1)
    assert bare.reached(1, 1)
    assert bare.words[:3] == [2, 3, 4]
    assert not bare.driver.backlog.queues


def test_other_work_does_not_wait_with_it(bare: Bare) -> None:
    bare.fill(0, 1, 1, [(bare.host, 7)])
    bare.fill(1, 2, 1, [], offset=4)
    assert bare.reached(1, 1)
    bare.driver.signal(bare.host, 7)
    assert bare.reached(0, 1)


def test_queues_wait_for_each_other(hip: StandIn, bare: Bare) -> None:
    hip.set("patience", 3000)
    for value in range(1, 30):
        waits = [(bare.timelines[1], value - 1)] if value > 1 else []
        bare.fill(0, 2 * value, value, waits)
        bare.fill(1, 2 * value + 1, value, [(bare.timelines[0], value)])
    assert bare.reached(1, 29)
    assert bare.words[0] == 59


def test_a_value_of_the_past_is_not_waited_for(hip: StandIn, bare: Bare) -> None:
    bare.fill(0, 1, 1, [])
    assert bare.reached(0, 1)
    hip.forget()
    bare.fill(1, 2, 1, [(bare.timelines[0], 1)])
    assert bare.reached(1, 1)
    assert hip.counts["hipStreamWaitEvent"] == 0


def test_a_thread_that_signals_lets_another_go(bare: Bare) -> None:
    bare.fill(0, 9, 1, [(bare.host, 1)])
    later = threading.Timer(0.02, bare.driver.signal, (bare.host, 1))
    later.start()
    assert bare.reached(0, 1)
    assert bare.words[0] == 9
    later.join()


@pytest.mark.parametrize("call", ["hipMemsetD32Async", "hipEventRecord", "hipStreamWaitEvent"])
@pytest.mark.parametrize("held", [False, True])
def test_a_submission_that_failed_can_be_made_again(
    call: str, held: bool, hip: StandIn, bare: Bare
) -> None:
    hip.set("patience", 10**5)
    bare.fill(1, 1, 1, [], offset=12)
    (recording,) = bare.queues[0].recordings(1)
    recording.begin()
    for word in range(4):
        recording.fill(bare.memory, 4 * word, 4, 10 + word)
    waits = [(bare.timelines[1], 1)] + ([(bare.host, 1)] if held else [])
    hip.fail(call, 1, OUT_OF_MEMORY)
    if held:
        bare.queues[0].submit(recording, waits, bare.timelines[0], 1)
        bare.driver.signal(bare.host, 1)
    else:
        with pytest.raises(ps.OutOfMemory):
            bare.queues[0].submit(recording, waits, bare.timelines[0], 1)
        bare.queues[0].submit(recording, waits, bare.timelines[0], 1)
    assert hip.failed
    assert bare.reached(0, 1)
    assert bare.words == [10, 11, 12, 13]
    assert hip.counts["hipMemsetD32Async"] == 5 + (call == "hipMemsetD32Async")  # none twice


def test_who_waits_for_held_work_that_never_fits_hears_of_it(hip: StandIn, bare: Bare) -> None:
    bare.fill(0, 9, 1, [(bare.host, 1)])
    hip.fail("hipMemsetD32Async", -1, OUT_OF_MEMORY)
    bare.driver.signal(bare.host, 1)
    with pytest.raises(ps.OutOfMemory, match="cannot be issued: hipMemsetD32Async"):
        bare.driver.wait([(bare.timelines[0], 1)], 10**7)
    assert not bare.driver.wait([(bare.timelines[1], 0), (bare.host, 2)], 0)  # others do not
    hip.fail("", 0, 0)
    assert bare.reached(0, 1)
    assert bare.words[0] == 9


def test_a_signal_lets_work_go_at_once(hip: StandIn, bare: Bare) -> None:
    bare.fill(0, 9, 1, [(bare.host, 1)])
    assert hip.counts["hipMemsetD32Async"] == 0
    bare.driver.signal(bare.host, 1)
    assert hip.counts["hipMemsetD32Async"] == 1
    assert bare.reached(0, 1)


def test_a_stream_waits_for_the_value_it_was_told(hip: StandIn, bare: Bare) -> None:
    """Not for one before, while several are on their way, and not only for the last."""
    hip.set("patience", 10**5)
    driver = bare.driver
    waited: list[int] = []
    original = driver.call.hipStreamWaitEvent
    driver.call.hipStreamWaitEvent = lambda stream, event, flags: (
        waited.append(event) or original(stream, event, flags)
    )
    for value in range(1, 4):
        bare.fill(0, value, value, [])
    on_the_way = dict(bare.timelines[0]._events)
    assert len(set(on_the_way.values())) == 3
    for value in range(1, 4):
        bare.fill(1, 9, value, [(bare.timelines[0], value)], offset=4)
    assert waited == [on_the_way[value] for value in range(1, 4)]
    assert bare.reached(1, 3)


def test_what_is_asked_for(bare: Bare) -> None:
    """Events that show the host what was written, streams of their own, coherent memory."""
    driver = bare.driver
    asked: dict[str, set[int]] = {}

    def listen(name: str) -> None:
        original = getattr(driver.call, name)

        def heard(*arguments: Any) -> Any:
            asked.setdefault(name, set()).add(arguments[-1])
            return original(*arguments)

        setattr(driver.call, name, heard)

    for name in ("hipEventCreateWithFlags", "hipStreamCreateWithFlags", "hipHostMalloc"):
        listen(name)
    driver.events._new()
    driver.queue(0).close()
    driver.free(driver.allocate(64, host=True))
    driver.copy_out(bare.memory, 0, bare.memory.address + 64, 64)
    disable_timing, release_to_system, non_blocking = 0x2, 0x80000000, 0x1
    portable, mapped, coherent = 0x1, 0x2, 0x40000000
    assert asked == {
        "hipEventCreateWithFlags": {disable_timing | release_to_system},
        "hipStreamCreateWithFlags": {non_blocking},
        "hipHostMalloc": {portable | mapped | coherent},
    }


def test_a_graph_does_not_run_twice_at_once(hip: StandIn, bare: Bare) -> None:
    """HIP leaves open what happens then, so the driver has the second wait; the stand-in tells."""
    sequence = bare.driver.replayable()
    sequence.begin()
    sequence.fill(bare.memory, 0, 4096, 7)
    sequence.end()
    for value in range(1, 60):
        for number in range(2):
            (recording,) = bare.queues[number].recordings(1)
            recording.begin()
            recording.execute(sequence, [])
            bare.queues[number].submit(recording, [], bare.timelines[number], value)
    assert bare.reached(0, 59)
    assert bare.reached(1, 59)
    assert bare.words[0] == 7
    assert not hip.messages
    sequence.close()


def test_a_graph_outlives_the_stream_it_ran_on(hip_device: ps.Device) -> None:
    x = hip_device.zeros(N, np.uint32)
    with hip_device.record() as graph:
        slow_add(x, 1, spin=0)
    with hip_device.stream() as stream:
        graph.replay(stream)
    hip_device.synchronize()
    hip_device.trim()  # the stream is really gone now
    hip_device.zeros(1)
    graph.replay()
    assert x[0].item() == 2


def test_launches_get_their_own_arguments(hip_device: ps.Device) -> None:
    x, y = hip_device.zeros(N, np.uint32), hip_device.zeros(N, np.uint32)
    with hip_device.default_stream.batch():
        for add in range(1, 5):
            slow_add(x, add, spin=0)
            slow_add(y, 10 * add, spin=0)
    assert (x[0].item(), y[0].item()) == (10, 100)


def test_timestamps_are_times_of_the_host(hip_device: ps.Device) -> None:
    x = hip_device.zeros(4, np.uint32)
    with ps.trace() as t:
        for _ in range(3):
            x_plus_one(hip_device, x)
            hip_device.synchronize()
    t.wait_for_times()
    assert len(check_bounds(t)) >= 3


def test_events_are_used_again(hip: StandIn, hip_device: ps.Device) -> None:
    x = hip_device.zeros(N, np.uint32)
    for _ in range(300):
        slow_add(x, 1, spin=0)
        hip_device.synchronize()
    assert hip.counts["hipEventCreateWithFlags"] < 20


# Groups that the device decides.


def test_counts_keep_their_place(hip: StandIn, hip_device: ps.Device) -> None:
    hip.set("patience", 3000)
    x, counts = hip_device.zeros(N, np.uint32), hip_device.zeros(3, np.uint32)
    run = new_kernel(hip_device, "", hip=("inout uint32 x", 64, "x[i] += 1;"))
    expected = np.zeros(N, np.uint32)
    for groups in (1, 0, 4, 2):
        counts.write(np.array([groups, 1, 1], np.uint32))
        run(x=x, groups=counts)
        expected[: 64 * groups] += 1
    assert (x.numpy() == expected).all()


def test_no_launch_before_its_counts_have_arrived(hip: StandIn, hip_device: ps.Device) -> None:
    x, counts = hip_device.zeros(N, np.uint32), hip_device.ones(3, np.uint32)
    run = new_kernel(hip_device, "", hip=("inout uint32 x", 64, "x[i] += 1;"))
    hip_device.synchronize()
    call: Any = hip_device.scheduler.driver.call
    query, call.hipEventQuery = call.hipEventQuery, lambda event: 600  # not ready
    hip.forget()
    run(x=x, groups=counts)
    hip_device.default_stream.flush()
    time.sleep(0.01)
    assert hip.counts["hipModuleLaunchKernel"] == 0
    assert hip.counts["hipMemcpyAsync"] == 1, "the counts are fetched once, not at each try"
    call.hipEventQuery = query
    assert x[0].item() == 1


def test_arrays_may_share_pages(hip: StandIn) -> None:
    """HIP registers a page once, whoever asks."""
    words = np.frombuffer(mmap.mmap(-1, 3 * mmap.PAGESIZE), np.uint32)
    words[:] = 1
    page = mmap.PAGESIZE // 4
    with ps.Device(driver="hip") as one, ps.Device(driver="hip") as two:
        hip.forget()
        first = one.adopt(words[: page + 256])
        second = one.adopt(words[page + 512 : 3 * page])  # begins in the last page of the first
        third = two.adopt(words[page + 256 : page + 320])
        for array in (first, second, third):
            slow_add(array, 4, spin=0)
        first.close()
        one.synchronize()
        slow_add(second, 1, spin=0)
        slow_add(third, 2, spin=0)
        assert (second.numpy() == 6).all()
        assert (third.numpy() == 7).all()
        second.close()
        third.close()
    assert hip.counts["hipHostRegister"] == hip.counts["hipHostUnregister"] == 2
    assert (words[: page + 256] == 5).all()
    assert not hip.messages


def test_held_work_goes_on_though_nobody_looks(hip_device: ps.Device) -> None:
    x, counts = hip_device.zeros(N, np.uint32), hip_device.ones(3, np.uint32)
    run = new_kernel(hip_device, "", hip=("inout uint32 x", 64, "x[i] += 1;"))
    scheduler: Any = hip_device.scheduler
    scheduler.idle_submitter.submit_dry_streams = lambda _: False  # nor does that thread
    driver = scheduler.driver
    query, driver.call.hipEventQuery = driver.call.hipEventQuery, lambda event: 600  # not ready
    run(x=x, groups=counts)
    hip_device.default_stream.flush()
    assert driver.backlog.queues
    driver.call.hipEventQuery = query
    until = time.monotonic() + 10
    while driver.backlog.queues and time.monotonic() < until:
        time.sleep(0.001)
    assert not driver.backlog.queues
    assert x[0].item() == 1


# What is found, and what is missing.


def test_the_device_says_what_it_is(hip_device: ps.Device) -> None:
    info = hip_device.info
    assert (info.name, info.driver) == (NAME, "hip")
    assert info.kind == ("integrated" if info.uma else "discrete")
    assert "gfx906" in info.driver_info
    assert ps.devices("hip")[0] == info


def test_no_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PENSTOCK_HIP", "/nowhere/libamdhip64.so")
    with pytest.raises(ps.NoDevice, match=r"/nowhere/libamdhip64\.so.*PENSTOCK_HIP"):
        ps.Device(driver="hip")
    assert main(["check", "--driver", "hip"]) == 1
    assert "/nowhere/libamdhip64.so" in capsys.readouterr().err


def test_no_device(hip: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    hip.set("devices", 0)
    with pytest.raises(ps.NoDevice, match=r"HIP .* is installed.*no device.*hipErrorNoDevice, 100"):
        ps.Device(driver="hip")
    assert main(["devices", "--driver", "hip"]) == 1
    assert "no device" in capsys.readouterr().err


def test_no_such_device(hip: StandIn) -> None:
    with pytest.raises(ps.NoDevice, match=NAME):
        ps.Device("Radeon", driver="hip")
    with pytest.raises(ps.NoDevice, match="number 3"):
        ps.Device(3, driver="hip")


def test_one_of_several_devices(hip: StandIn) -> None:
    hip.set("devices", 2)
    with ps.Device(1, driver="hip") as device:
        slow_add(x := device.zeros(N, np.uint32), 1, spin=0)
        assert x[0].item() == 1
    assert hip.counts["hipSetDevice"] > 1


# Kernels that cannot be.


def test_a_kernel_that_does_not_compile_names_its_line(hip_device: ps.Device) -> None:
    source = '\nextern "C" __global__ void k(float *x) {\n    x[0] = y;\n}\n'
    with pytest.raises(ps.CompileError, match=r"wrong, line 3: .*y.*\n    x\[0\] = y;") as caught:
        hip_device.kernel(source, name="wrong", signature="inout float32 x")
    assert [line for line, _ in caught.value.errors] == [3]


def test_an_operation_that_does_not_compile_names_its_line(hip_device: ps.Device) -> None:
    with pytest.raises(ps.CompileError, match="line 2 of the operation"):
        hip_device.elementwise("y[i] = 1;\ny[i] = nothing;", "inout float32 y")
    with pytest.raises(ps.CompileError, match="line 1 of the preamble"):
        hip_device.elementwise("y[i] = 1;", "inout float32 y", preamble="wrong wrong;")


#: Ways for text to have the compiler read a file, or tell whether it is there.
FILES = [
    '#include "{}"', '#inc\\\nlude "{}"', '#inc\\ \nlude "{}"', '#inc\\\r\nlude "{}"',
    '%:include "{}"', '#/*\n*/ include "{}"', '#import "{}"', '#include_next "{}"', '#embed "{}"',
    '#define FILE "{}"\n#include FILE', '#if __has_include("{}")\n#endif',
    '#if __has_\\\nembed("{}")\n#endif', '#pragma GCC dependency "{}"',
    '_Pragma("GCC dependency \\"{}\\"")',
]  # fmt: skip


@pytest.mark.parametrize("way", FILES)
def test_text_reads_no_file(way: str, hip_device: ps.Device, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("static const float y = 12345;\nsyntax error 12345\n")
    text = way.replace("{}", str(secret))
    source = f'{text}\nextern "C" __global__ void k(float *x) {{ x[0] = 1; }}\n'
    with pytest.raises(ps.CompileError, match="in a kernel from text, which can name no file") as e:
        hip_device.kernel(source, signature="inout float32 x")
    assert "12345" not in str(e.value)
    with pytest.raises(ps.CompileError, match="can name no file"):
        hip_device.elementwise("x[i] = 1;", "inout float32 x", preamble=text)


def test_a_file_includes_what_is_beside_it(hip_device: ps.Device, tmp_path: Path) -> None:
    (tmp_path / "seven.h").write_text("static const float seven = 7;\n")
    kernel = tmp_path / "k.hip"
    kernel.write_text(
        '#include "seven.h"\nextern "C" __global__ void k(float *x) { x[0] = seven; }\n'
    )
    x = hip_device.zeros(4)
    hip_device.kernel(kernel, signature="inout float32 x")(x=x, groups=1)
    assert x.tolist()[0] == 7


def test_code_for_another_device(hip: StandIn, hip_device: ps.Device) -> None:
    driver: Any = hip_device.scheduler.driver
    source = 'extern "C" __global__ void k(float *x) { x[0] = 1; }'
    loaded = driver.load(KernelSource(source, "k", signature="inout float32 x"))
    code = loaded.code
    ready = hip_device.kernel(code, name=loaded.interface.entry, signature="inout float32 x")
    ready(x=hip_device.zeros(4), threads=4)
    with pytest.raises(ps.CompileError, match="no kernel called 'other'"):
        hip_device.kernel(code, name="other", signature="inout float32 x")
    with pytest.raises(ps.Unsupported, match=r"no code for .*gfx906"):
        hip_device.kernel(code.replace(b"gfx906", b"gfx908"), name="k", signature="inout float32 x")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ps.ArgumentError, "signature="),
        ({"signature": "float32"}, ps.InvalidValue, "not a parameter"),
        ({"signature": "in real x"}, ps.InvalidValue, "unknown dtype 'real'"),
        ({"signature": "in float32 x, float32 x"}, ps.InvalidValue, "two parameters"),
        ({"signature": "in float32 x[3]"}, ps.InvalidValue, "length"),
        ({"signature": "in float32 x -> out float32 y"}, ps.InvalidValue, "returns"),
        ({"signature": "in float32 threads"}, ps.InvalidSpirv, "'threads'"),
        ({"signature": "in float32 x", "group_size": 4096}, ps.Unsupported, "4096"),
        ({"signature": "in float32 x", "group_size": "many"}, ps.ArgumentError, "group_size"),
        ({"signature": "in float32 x", "constants": {"c": 1}}, ps.ArgumentError, "constant"),
    ],
)
def test_declarations_that_cannot_be(
    options: dict[str, Any], error: type[ps.Error], words: str, hip_device: ps.Device
) -> None:
    source = '\nextern "C" __global__ void k(const float *x) {}\n'
    with pytest.raises(error, match=words):
        hip_device.kernel(source, **options)


def test_calls_are_checked_by_the_declaration(hip_device: ps.Device) -> None:
    run = saxpy(hip_device)
    x = hip_device.zeros(N)
    with pytest.raises(ps.DtypeMismatch, match="'x' must be float32"):
        run(x=hip_device.zeros(N, np.uint32), y=x, a=1.0, n=N, threads=N)
    with pytest.raises(ps.ArgumentError, match="'b'"):
        run(x=x, y=x, b=1.0, n=N, threads=N)
    with pytest.raises(ps.InvalidValue, match="'n'"):
        run(x=x, y=x, a=1.0, n=-1, threads=N)


def test_signatures_are_for_hip_only() -> None:
    with (
        ps.Device(driver="sim") as device,
        pytest.raises(ps.ArgumentError, match="signature= and group_size="),
    ):
        device.kernel(SAXPY, signature="in float32 x", reference=lambda **_: None)


# Failures.


def test_out_of_memory(hip: StandIn) -> None:
    hip.set("memory", 32 << 20)
    with ps.Device(driver="hip") as device:
        held = device.array(np.arange(1 << 20, dtype=np.uint32))
        with pytest.raises(ps.OutOfMemory, match=r"asked for 67,108,864 bytes"):
            device.zeros(1 << 24)
        assert (held.numpy() == np.arange(1 << 20)).all()
    assert not hip.messages


@pytest.mark.parametrize("keep", [False, True])
def test_scratch_that_cannot_grow_stays_as_it_was(keep: bool, hip: StandIn) -> None:
    """For every call that can fail while it grows; nothing is freed twice, or used afterwards."""
    number, failed = 0, True
    while failed:
        number += 1
        hip.reset()
        with hip.device() as device:
            scratch = device.scratch()
            words = scratch.array(N, np.uint32)
            words.write(np.arange(N, dtype=np.uint32))
            slow_add(words, 1)
            hip.fail("", number, OUT_OF_MEMORY)
            try:
                scratch.reserve(32 << 20, keep=keep)
            except ps.OutOfMemory:
                assert (words.numpy(force=True) == np.arange(N) + 1).all()
                scratch.reserve(32 << 20, keep=keep)
            failed = hip.failed
            hip.fail("", 0, 0)
            if keep:
                moved = scratch.array(N, np.uint32)
                assert (moved.numpy(force=True) == np.arange(N) + 1).all()
                del moved
            del words, scratch
            gc.collect()
    assert number > 1


def _use(x: ps.Array) -> None:
    for _ in range(100):
        x.write(np.zeros(N, np.uint32))
        slow_add(x, 1, spin=0)
        x.numpy()


@pytest.mark.parametrize(
    "call", ["hipModuleLaunchKernel", "hipEventRecord", "hipEventQuery", "hipMemcpyAsync"]
)
def test_a_lost_device_stays_lost(call: str, hip: StandIn) -> None:
    if call == "hipMemcpyAsync":
        hip.set("integrated", 0)
    device = ps.Device(driver="hip")
    x = device.zeros(N, np.uint32)
    slow_add(x, 1, spin=0)
    device.synchronize()
    slow_copy(x, y := device.zeros(N, np.uint32))
    pending = y.read()
    hip.fail(call, 1, LOST)
    with pytest.raises(ps.DeviceLost, match="hipErrorLaunchFailure, 719"):
        _use(x)
    hip.set("lose", LOST)
    for use in (lambda: slow_add(x, 1), device.synchronize, lambda: device.zeros(1)):
        with pytest.raises(ps.DeviceLost):
            use()
    with pytest.raises(ps.DeviceLost):
        y.numpy()
    del pending
    device.close()


def test_nothing_is_left_of_kernels_and_streams(hip: StandIn) -> None:
    with hip.device() as device:
        for _ in range(3):
            with device.stream() as stream, new_kernel(device, SLOW_ADD) as run:
                run(x=device.zeros(N, np.uint32), n=N, spin=0, add=1, threads=N, stream=stream)
    calls = hip.counts
    assert calls["hipStreamCreateWithFlags"] == calls["hipStreamDestroy"]
    assert calls["hipEventCreateWithFlags"] == calls["hipEventDestroy"]
    assert calls["hipModuleLoadData"] == calls["hipModuleUnload"]
