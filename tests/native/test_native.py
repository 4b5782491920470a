"""The native step does what Python does, or leaves it to Python; and nothing that it is given can
break it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from mutation.native import NATIVE, outcome_of, run_programs
from penstock import accelerator
from penstock.schedule.idle_submission import IdleSubmitter
from penstock.tracing import events
from tests.kernels import COUNT, FIRST, SAXPY, SLOW, SLOW_ADD, new_kernel, saxpy, slow_add
from tools import build_native

N = 64
LAUNCHES = int(os.environ.get("PENSTOCK_LAUNCHES", "100_000"))  # of the test for leaks
needs_native = pytest.mark.skipif(not accelerator.is_native(), reason=accelerator.status)


def run_script(script: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **settings},
    )


@pytest.fixture(scope="module")
def expected() -> str:
    """What the programs say in Python alone.

    In this run the C library fills new memory with large numbers (1.5e13 as float32), so that what
    the programs say cannot depend on what memory held before.
    """
    said = run_programs(PENSTOCK_NATIVE="0", MALLOC_PERTURB_="170")
    assert said is not None
    return said


@pytest.fixture
def step(dev: ps.Device) -> Iterator[tuple[ps.Kernel, ps.Array]]:
    """A kernel that adds, and an array that it has had."""
    with new_kernel(dev, SLOW_ADD, "slow_add") as kernel:
        x = dev.zeros(N, np.uint32)
        for _ in range(3):
            kernel(x=x, n=N, spin=0, add=1, threads=N)
        dev.synchronize()
        x.fill(0)
        yield kernel, x


@needs_native
def test_every_call_of_the_driver_is_the_one_that_python_makes(expected: str) -> None:
    assert run_programs() == expected


@needs_native
@pytest.mark.parametrize("name", ["the barrier", "an array that has moved"])
def test_a_fault_in_it_would_be_seen(name: str, expected: str, tmp_path: Path) -> None:
    """`python -m mutation native` runs them all."""
    (mutant,) = (each for each in NATIVE if each.name == name)
    assert outcome_of(mutant, tmp_path) != expected


def test_every_mutant_fits_the_source() -> None:
    for mutant in NATIVE:
        for file, old, _ in ((mutant.file, mutant.old, mutant.new), *mutant.also):
            assert (build_native.SOURCES / file).read_text().count(old) == 1, (mutant.name, old)


#: Functions of the C code without a mutant: they check nothing that a launch or a wait relies on
#: (objects and setting up), or call a function that has one.
WITHOUT_MUTANT = {
    "call.c": "leave find_needs launch_arrays launch_carrying bring_back call "
    "native_launches native_left callable_traverse callable_clear callable_dealloc callable_new "
    "has_core_classes get_ready retire call_natively call_setup",
    "carry.c": "is_done is_writeable copied",
    "host.c": "submitted host_waits leave scheduler_of",
    "lock.c": "is_own acquire enter leave_block is_owned lock_new lock_dealloc",
    "module.c": "share natively PyInit__native",
    "recorder.c": "handles_new HANDLES now moment_from_now rest native_commands "
    "same_numbers record_barrier is_native_program is_native_launch timeline_reached has_backlog "
    "recording_ends",
    "result.c": "give_back result_new content native_result",
    "stream.c": "note_state failed stream_submits is_traced stream_batch is_plain native_start "
    "native_submit native_poll native_reach native_wait guest_enters guest_leaves",
    "trace.c": "is_counting native_note_counting native_counts of_events trace_time since emit "
    "emit_now place trace_barrier trace_done trace_is_ready trace_setup native_share_events "
    "native_note_traces",
}


def test_every_step_has_a_mutant() -> None:
    found: dict[str, str] = {}
    for path in sorted(build_native.SOURCES.glob("*.c")):
        functions = re.finditer(
            r"^(\w+)\([^;{]*\)\n\{\n.*?^\}", path.read_text(), re.MULTILINE | re.DOTALL
        )
        changed = [
            old
            for mutant in NATIVE
            for file, old, _ in ((mutant.file, mutant.old, mutant.new), *mutant.also)
            if file == path.name
        ]
        without = [each[1] for each in functions if not any(old in each[0] for old in changed)]
        if without:
            found[path.name] = " ".join(without)
    for file, names in found.items():
        assert set(names.split()) <= set(WITHOUT_MUTANT.get(file, "").split()), file


@needs_native
def test_it_is_built_from_these_sources() -> None:
    assert build_native.fingerprint() == accelerator.native.SOURCES, "run scripts/setup"


@needs_native
def test_code_that_does_not_compile_is_a_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.build_native", "--into", str(tmp_path), "-DPyObject=+"]
    done = subprocess.run(
        command, cwd=build_native.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is not built: the compiler failed" in done.stdout


@needs_native
def test_the_compiler_has_nothing_to_say(tmp_path: Path) -> None:
    try:
        build_native.build(tmp_path, ["-Werror", "-fanalyzer", "-Wshadow", "-Wconversion"])
    except build_native.CannotBuild as error:
        if "unrecognized" in str(error) or "unknown" in str(error):
            pytest.skip("this compiler does not know the options")
        raise


@needs_native
@pytest.mark.parametrize(
    "given",
    [
        {"threads": N}, {"threads": (N, 1)}, {"groups": 1}, {"groups": (1, 1, 1)},
        {"threads": N, "a": np.float32(1), "n": np.uint32(N)},
        {"threads": N, "a": np.float64(1), "n": np.int64(N)},
        {"threads": N, "a": np.bool_(True), "n": True},
    ],
)  # fmt: skip
def test_most_launches_are_native(dev: ps.Device, given: dict[str, Any]) -> None:
    x, y = dev.zeros(N), dev.zeros(N)
    run = saxpy(dev)
    given = {"x": x, "y": y, "a": 1.0, "n": N, **given}
    run(**given)
    made, _ = accelerator.launches()
    for _ in range(100):
        run(**given)
    more, _ = accelerator.launches()
    assert more - made > 80  # not all: a thread of Penstock's own may have the lock


@needs_native
def test_launches_with_an_output_of_their_own_are_native(dev: ps.Device) -> None:
    x = dev.ones(N)
    with dev.elementwise("y[i] = 2 * x[i]", "in float32 x, out float32 y") as twice:
        twice(x)
        made, _ = accelerator.launches()
        doubled = [twice(x) for _ in range(100)]
        more, _ = accelerator.launches()
        assert more - made > 80
        assert all((each.numpy() == 2).all() for each in doubled)


@needs_native
def test_what_is_left_to_python_is_counted_by_reason(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    usual: dict[str, Any] = {"x": x, "n": N, "spin": 0, "add": 1, "threads": N}
    for reason, unusual in (
        ("names of arguments", {"nothing": 1}),
        ("an argument that is no array of the device", {"x": np.zeros(N, np.uint32)}),
        ("a number that is not a plain one", {"add": np.array(1)}),
        ("a number of threads or groups that is new", {"threads": 3 * N - 1}),
        ("an array that is new, moved, shown, guarded or closed", {"x": x[: N // 2]}),
    ):
        before, (_, left) = accelerator.left_to_python(), accelerator.launches()
        with contextlib.suppress(ps.ArgumentError):
            kernel(**{**usual, **unusual})
        after = accelerator.left_to_python()
        assert after == {**before, reason: before[reason] + 1}
        assert accelerator.launches()[1] == left + 1


@needs_native
@pytest.mark.parametrize("times", [True, False])
def test_a_traced_launch_is_on_the_receipt(step: tuple[ps.Kernel, ps.Array], times: bool) -> None:
    """With what Python says of it. `differential` compares more of it, on one driver."""
    kernel, x = step
    stream = x.device.default_stream
    said: list[list[Any]] = []
    for call in (kernel, partial(ps.Kernel.__call__, kernel)):
        kernel(x=x, n=N, spin=0, add=1, threads=N)
        stream.synchronize()
        made, _ = accelerator.launches()
        with ps.trace(times=times) as t, stream.batch():
            for _ in range(5):
                call(x=x, n=N, spin=0, add=1, threads=N)
        native = accelerator.launches()[0] - made
        t.wait_for_times()
        facts = (
            "kind", "reason", "nbytes", "path", "where", "thread", "stream", "command", "awaited",
        )  # fmt: skip
        said.append(
            [
                (
                    *(getattr(event, fact) for fact in facts),
                    event.seconds > 0,
                    event.device_seconds is None,
                )
                for event in t.events
                if event.kind == "launch" or event.path == "device"
            ]
        )
        assert native > 3 or call is not kernel  # not all: another thread may have the lock
    assert said[0] == said[1]
    assert len(said[0]) == 9  # five launches, and a barrier between each two
    assert (x.numpy() == 12).all()


# Which of the two is in use.


def test_an_interrupt_while_it_is_put_on_the_receipt_is_raised(
    step: tuple[ps.Kernel, ps.Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x = step
    stream = x.device.default_stream
    emit, seen = events.emit, []

    def launch() -> None:
        kernel(x=x, n=N, spin=0, add=1, threads=N)

    def interrupted(kind: str, *args: Any, **options: Any) -> None:
        seen.append(kind)
        if seen == ["done"]:
            raise KeyboardInterrupt
        emit(kind, *args, **options)

    monkeypatch.setattr(IdleSubmitter, "wake", lambda self: None)
    with ps.trace():
        launch()
        stream.flush()
        stream.host_waits()
        while stream.timeline.value() < stream.lane.submitted:
            pass
        # The next launch polls the stream, from code that the receipt has not seen.
        monkeypatch.setattr(events, "emit", interrupted)
        events._is_user.clear()
        with pytest.raises(KeyboardInterrupt):
            launch()
    assert seen == ["done"]
    launch()
    assert (x.numpy() == 2).all()


def test_it_can_be_turned_off() -> None:
    script = "from penstock import accelerator as a; print(a.is_native(), a.status)"
    assert run_script(script, PENSTOCK_NATIVE="0").stdout == "False off (PENSTOCK_NATIVE=0)\n"


def test_the_receipt_says_which_it_was() -> None:
    with ps.trace() as t:
        pass
    assert f"\n  native step: {accelerator.status}" in str(t)
    script = "import penstock as ps\nwith ps.trace() as t: pass\nprint(t)"
    off = run_script(script, PENSTOCK_NATIVE="0").stdout
    assert "\n  native step: off (PENSTOCK_NATIVE=0)\n" in off


def test_setup_tries_until_it_is_built_and_then_when_a_source_changes(tmp_path: Path) -> None:
    (step,) = re.findall(
        r"^native_step\(\) \{\n.*?^\}", (build_native.ROOT / "scripts" / "setup").read_text(),
        re.MULTILINE | re.DOTALL,
    )  # fmt: skip
    for folder in ("native", "tools", "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    source, answer, python = (tmp_path / p for p in ("native/a.c", "answer", "venv/bin/python"))
    (tmp_path / "tools" / "build_native.py").touch()
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 3 || cat answer\n')
    python.chmod(0o755)
    said = []
    for code, outcome in (
        ("1", "is not built"), ("1", "built 1"), ("1", "again"), ("2", "built 2"), ("2", "again"),
    ):  # fmt: skip
        source.write_text(code)
        answer.write_text(outcome)
        script = f'venv=venv native=marker\nsay() {{ echo "$1"; }}\n{step}\nnative_step'
        run = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        said.append(run.stdout.strip())
    assert said == ["is not built", "built 1", "", "built 2", ""]


def test_a_module_of_another_version_is_refused() -> None:
    script = """
import sys, types, penstock
penstock._native = sys.modules["penstock._native"] = types.SimpleNamespace(VERSION=0)
from penstock import accelerator
print(accelerator.is_native(), accelerator.status)
"""
    done = run_script(script, PENSTOCK_NATIVE="1")
    assert done.stdout == f"False refused: it has version 0, and {accelerator._VERSION} is needed\n"
    assert "build it again with scripts/setup" in done.stderr


@needs_native
def test_a_class_that_does_not_fit_is_refused() -> None:
    script = """
import penstock as ps
from penstock import accelerator
@accelerator.share
class Lane:
    __slots__ = ("owner",)
print(accelerator.is_native(), accelerator.status)
with ps.Device() as dev:
    print(float(dev.ones(5).sum()))
"""
    done = run_script(script)
    assert "False refused: <class '__main__.Lane'> has no slot appended" in done.stdout
    assert done.stdout.endswith("5.0\n")


def test_without_the_module_all_is_done_in_python() -> None:
    script = """
import sys
class Hidden:
    def find_spec(self, name, path, target=None):
        if name == "penstock._native":
            raise ImportError("cannot import name '_native'")
sys.meta_path.insert(0, Hidden())
import penstock as ps
from penstock import accelerator
assert not accelerator.is_native()
print(accelerator.status)
with ps.Device() as dev:
    print(float(dev.ones(5).sum()))
"""
    done = run_script(script, PENSTOCK_NATIVE="1")
    assert done.stdout == "not built; launches are made in Python\n5.0\n", done.stderr
    assert not done.stderr


# What cannot break it.


def test_arguments_of_any_kind(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    good: dict[str, Any] = {"x": x, "n": N, "spin": 0, "add": 1, "threads": N}
    empty = ps.Array.__new__(ps.Array)
    for wrong in (empty, None, 1, "x", object(), kernel, x.buffer, np.zeros(N, np.float32)):
        with pytest.raises((ps.Error, AttributeError)):
            kernel(**{**good, "x": wrong})
    for wrong in (2**40, -1, "1", None, 1.5, object(), x, 10**400):
        with pytest.raises((ps.Error, TypeError)):
            kernel(**{**good, "add": wrong})
    for wrong in ("x", 5, x, object()):
        with pytest.raises(ps.ArgumentError):
            kernel(**{**good, "stream": wrong})
    with pytest.raises(ps.ArgumentError, match="have no name"):
        kernel(x, N, 0, 1)
    with pytest.raises(ps.ArgumentError, match="no argument"):
        kernel(**good, **{f"other_{number}": number for number in range(200)})
    with pytest.raises(ps.ArgumentError, match="is missing"):
        kernel()
    odd = {"".join(["a", "dd"]): 1, **good}  # a name that is equal, not the same object
    kernel(**odd)
    assert (x.numpy() == 1).all()


def test_an_argument_that_is_no_array_is_not_asked(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, _ = step
    kernel(x=np.zeros(N, np.uint32), n=N, spin=0, add=1, threads=N)
    asked = []

    class Asked:
        @property
        def flags(self) -> None:
            asked.append(self)
            raise KeyboardInterrupt  # as a signal handler may

    class Derived(np.ndarray[Any, Any]):
        flags = Asked.flags  # type: ignore[assignment]

    with pytest.raises(ps.ArgumentError, match="not Asked"):
        kernel(x=Asked(), n=N, spin=0, add=1, threads=N)
    derived = np.zeros(N, np.uint32).view(Derived)
    kernel(x=derived, n=N, spin=0, add=1, threads=N)
    assert derived.tolist() == [1] * N
    assert not asked


def test_a_temporary_is_given_back_under_the_lock(dev: ps.Device) -> None:
    """Another thread may be looking through the temporaries of the parameter."""
    count = 2048
    with new_kernel(dev, SLOW_ADD, "slow_add") as kernel:
        host = np.zeros(count, np.uint32)
        (parameter,) = kernel.parameters
        for _ in range(2):
            kernel(x=host, n=count, spin=0, add=1, threads=count)
        lane = dev.default_stream.lane
        before, returned = lane.submitted, threading.Event()
        held: list[Any] = []

        def call() -> None:
            kernel(x=host, n=count, spin=SLOW, add=1, threads=count)
            returned.set()

        def hold() -> None:
            while lane.submitted == before:
                pass
            with dev.scheduler.lock:
                assert lane.complete < lane.submitted, "it holds the lock before the call is done"
                returned.wait(0.5)
                held.extend(parameter.spare)

        at_once(call, hold)
        assert not held
        assert (host == 3).all()
        assert len(parameter.spare) == 1


def test_a_closed_kernel_stays_closed(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    kernel.close()
    for _ in range(2):
        with pytest.raises(ps.Closed):
            kernel(x=x, n=N, spin=0, add=1, threads=N)


def test_a_kernel_of_another_device(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    with ps.Device(x.device.info.index) as other:
        y = other.zeros(N, np.uint32)
        for _ in range(3):
            slow_add(y, 1, spin=0)
        with pytest.raises(ps.ArgumentError, match="copy it to that device"):
            kernel(x=y, n=N, spin=0, add=1, threads=N)
        with pytest.raises(ps.ArgumentError, match="is not a stream of"):
            kernel(x=x, n=N, spin=0, add=1, threads=N, stream=other.default_stream)
        assert (y.numpy() == 3).all()


def test_threads_that_launch_at_once(dev: ps.Device) -> None:
    with new_kernel(dev, SLOW_ADD, "slow_add") as kernel, new_kernel(dev, COUNT, "count") as count:
        arrays = [dev.zeros(N, np.uint32) for _ in range(3)]
        shared = dev.zeros(N, np.uint32)
        wrong: list[Any] = []

        def work(x: ps.Array) -> None:
            with dev.stream() as stream:
                for number in range(300):
                    kernel(x=x, n=N, spin=0, add=1, threads=N, stream=stream)
                    kernel(x=shared, n=N, spin=0, add=1, threads=N)
                    if number % 50 == 49:
                        found = count(x=x, n=N, limit=number, threads=N, stream=stream).result()
                        if found.above != N:
                            wrong.append((number, found))

        def trace_now_and_then() -> None:
            while not over.wait(0.002):
                with ps.trace(times=len(receipts) % 2 == 0) as t:
                    over.wait(0.002)
                receipts.append(t)

        threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
        over, receipts = threading.Event(), list[ps.Trace]()
        tracing = threading.Thread(target=trace_now_and_then)
        tracing.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        tracing.join()
        assert not wrong
        assert any(t.launches for t in receipts)
        for t in receipts:
            t.wait_for_times()
            placed = [(e.stream_id, e.submission, e.command) for e in t.of_kind("launch")]
            assert len(placed) == len({*placed})
        assert (shared.numpy() == 900).all()
        assert all((x.numpy() == 300).all() for x in arrays)


def at_once(*works: Callable[[], None]) -> None:
    """Run each in a thread of its own, and raise what the first that failed has raised."""
    raised: list[BaseException] = []
    together = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            together.wait()
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_threads_that_name_arguments_in_other_orders(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    dev = x.device
    arrays = [dev.zeros(N, np.uint32) for _ in range(3)]

    def forwards() -> None:
        for _ in range(1000):
            kernel(x=arrays[0], n=N, spin=0, add=1, threads=N)

    def backwards() -> None:
        with dev.stream() as stream:
            for _ in range(1000):
                kernel(stream=stream, threads=N, add=2, spin=0, n=N, x=arrays[1])

    def by_groups() -> None:
        with dev.stream() as stream:
            for _ in range(1000):
                kernel(groups=N, spin=0, stream=stream, x=arrays[2], add=3, n=N)

    at_once(forwards, backwards, by_groups)
    assert [int(each.numpy()[0]) for each in arrays] == [1000, 2000, 3000]


@pytest.mark.parametrize("which", ["kernel", "stream", "array"])
def test_something_is_closed_while_threads_launch(dev: ps.Device, which: str) -> None:
    for _ in range(5):
        kernel, stream = new_kernel(dev, SLOW_ADD, "slow_add"), dev.stream()
        x, y = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
        closing = {"kernel": kernel, "stream": stream, "array": y}[which]
        made = [0, 0]
        busy = threading.Barrier(3)

        def launch(
            number: int, made: list[int], busy: threading.Barrier, kernel: ps.Kernel, **given: Any
        ) -> None:
            kernel(**given, n=N, spin=0, add=1, threads=N)
            busy.wait()
            try:
                for _ in range(20_000):
                    kernel(**given, n=N, spin=0, add=1, threads=N)
                    made[number] += 1
            except ps.Closed:
                pass

        def close(busy: threading.Barrier, closing: Any) -> None:
            busy.wait()
            closing.close()

        at_once(
            partial(launch, 0, made, busy, kernel, x=x, stream=stream),
            partial(launch, 1, made, busy, kernel, x=y),
            partial(close, busy, closing),
        )
        dev.synchronize()
        if which != "stream":
            stream.close()
        assert (x.numpy() == 1 + made[0]).all()
        if which != "array":
            assert (y.numpy() == 1 + made[1]).all()


@needs_native
def test_a_launch_waits_for_another_threads_lock(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with x.device.scheduler.lock:
            taken.set()
            release.wait()

    def launch() -> None:
        taken.wait()
        threading.Timer(0.05, release.set).start()
        made, left = accelerator.launches()
        kernel(x=x, n=N, spin=0, add=1, threads=N)
        assert accelerator.launches() == (made + 1, left)

    at_once(hold, launch)
    assert (x.numpy() == 1).all()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_ends_the_wait_for_the_lock(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    taken, release = threading.Event(), threading.Event()

    class Interrupt(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupt

    def hold() -> None:
        with x.device.scheduler.lock:
            taken.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupt):
            kernel(x=x, n=N, spin=0, add=1, threads=N)
    finally:
        signal.signal(signal.SIGALRM, before)
        release.set()
        holder.join()
    assert (x.numpy() == 0).all()
    kernel(x=x, n=N, spin=0, add=1, threads=N)
    assert (x.numpy() == 1).all()


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_it_leaves_the_gil_off() -> None:
    script = """
import sys, cffi, ml_dtypes, numpy, vulkan
before = sys._is_gil_enabled()
from penstock import accelerator
print(before, sys._is_gil_enabled())
"""
    before, after = run_script(script, PENSTOCK_NATIVE="1").stdout.split()
    assert before == after


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_traces_begin_and_end_while_threads_launch() -> None:
    script = """
import threading
import time
import numpy as np
import penstock as ps
from penstock.tracing import events
from tests.kernels import SLOW_ADD, new_kernel

def launch():
    x = device.zeros(64, np.uint32)
    while time.monotonic() < over:
        for _ in range(100):
            kernel(x=x, n=64, spin=0, add=1, threads=64)
        trace.records.clear()

with ps.Device() as device, ps.trace(times=False) as trace:
    kernel = new_kernel(device, SLOW_ADD)
    active, over = events.active, time.monotonic() + 1.5
    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() < over:
        for _ in range(1000):
            events.active = (*active,)
            events.active = (*active, *active)
            events.active = (*active, *active, *active)
    events.active = active
    for thread in threads:
        thread.join()
"""
    done = run_script(script, PENSTOCK_NATIVE="1", LP_NUM_THREADS="0", VK_ADD_DRIVER_FILES="")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_signals_while_it_launches(step: tuple[ps.Kernel, ps.Array]) -> None:
    kernel, x = step
    raised = 0

    class Interrupt(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    launched = 0

    def launch() -> None:  # not in the `try` itself, whose jumps Python 3.14 does not protect
        nonlocal launched
        for _ in range(10_000):  # not for ever: a finaliser may swallow what the handler raises
            kernel(x=x, n=N, spin=0, add=1, threads=N)
            launched += 1
            if launched % 7 == 0:
                x.device.synchronize()

    try:
        while raised < 100:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0007)
                launch()
            except Interrupt:
                raised += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    values = x.numpy()
    assert (values == values[0]).all()
    # A launch that was interrupted after it was made is not counted here.
    assert launched <= values[0] <= launched + raised


def test_nothing_is_left_behind(threaded_device: ps.Device) -> None:
    dev = threaded_device
    run, add, first = (new_kernel(dev, source) for source in (SAXPY, SLOW_ADD, FIRST))
    x, y, z = dev.zeros(N), dev.zeros(N), dev.zeros(N, np.uint32)
    stream = dev.stream()
    kept = (
        x, y, z, run, run.program, run.what, first.results, stream, stream.lane, dev.default_stream,
        dev.default_stream.lane, z.buffer.backing.history, None, True, False, 0, 1,
    )  # fmt: skip

    def many(count: int) -> None:
        for number in range(count // 10):
            for _ in range(5):
                run(x=x, y=y, a=0.5, n=N, threads=N)
            run(x=y, y=x, a=np.float32(number * 1e-9), n=N, threads=N)
            add(x=z, n=N, spin=0, add=np.int64(number + 1000), threads=N)
            add(x=z, n=N, spin=0, add=1, threads=N, stream=None if number % 50 else stream)
            result = first(x=z, n=1, spin=0, add=3, groups=1)
            add(x=z, n=N, spin=0, add=1, threads=N)
            if number % 10 == 0:
                assert int(result) >= 0
            if number % 100 == 0:
                dev.synchronize()
        del result
        for times in (True, False):
            with ps.trace(times=times):
                for _ in range(count // 10):
                    run(x=x, y=y, a=0.5, n=N, threads=N)
                dev.synchronize()
        gc.collect()

    def growth() -> int:
        blocks, counts = sys.getallocatedblocks(), [sys.getrefcount(each) for each in kept]
        many(LAUNCHES)
        more = [sys.getrefcount(each) - count for each, count in zip(kept, counts, strict=True)]
        return max(sys.getallocatedblocks() - blocks, *more)

    many(20_000)
    # Chance decides how many recordings there are; but what leaks grows every time.
    assert any(growth() < 200 for _ in range(8))


_WITHOUT_MEMORY = """
import _testcapi, contextlib, sys
import numpy as np
import penstock as ps
from tests.kernels import FIRST, SLOW_ADD, new_kernel

with ps.Device(sys.argv[1]) as dev:
    add, first = new_kernel(dev, SLOW_ADD), new_kernel(dev, FIRST)
    x = dev.zeros(64, np.uint32)
    made = failed = 0
    for number in range(300):
        given = {"x": x, "n": 64, "spin": 0, "add": 1, "threads": 64}
        kernel = first if number % 3 == 2 else add
        for _ in range(2):
            add(**given)
            made += 1
        if number % 2:
            dev.synchronize()
        done = False
        with ps.trace(times=number % 2 == 0) if number % 5 < 2 else contextlib.nullcontext():
            try:
                _testcapi.set_nomemory(number // 6, number // 6 + 1)
                kernel(**given)
                done = True
                _testcapi.remove_mem_hooks()
            except (MemoryError, SystemError):  # the latter from Python 3.11's `frame.f_back`
                _testcapi.remove_mem_hooks()
        made += done and kernel is add
        failed += not done and kernel is add
    values = x.numpy()
    assert (values == values[0]).all(), values
    assert made <= values[0] <= made + failed, (made, failed, values[0])
    assert not dev.messages
    print("failed", failed)
"""


def test_every_allocation_may_fail(driver: str) -> None:
    pytest.importorskip("_testcapi")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MEMORY, driver],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 10


@needs_native
def test_it_uses_memory_as_it_should(tmp_path: Path) -> None:
    """The programs once more, with the sanitizers for addresses and undefined behaviour."""
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    try:
        build_native.build(tmp_path, flags)
    except build_native.CannotBuild as error:
        pytest.skip(f"no sanitizers: {str(error).splitlines()[0]}")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    settings = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):  # which has an allocator of its own
        settings["PYTHONMALLOC"] = "malloc"
    said = run_programs(str(tmp_path), **settings)
    assert said is not None
    assert "step 249:" in said
