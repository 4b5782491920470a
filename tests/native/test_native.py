"""The native step does what Python does, or leaves it to Python; and nothing that it is given can
break it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from mutation.native import NATIVE, outcome_of, run_programs
from penstock import accelerator
from tests.kernels import COUNT, SLOW_ADD, new_kernel, saxpy, slow_add
from tools import build_native

N = 64
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
    """What the programs say in Python alone."""
    said = run_programs(PENSTOCK_NATIVE="0")
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


@needs_native
def test_it_is_built_from_these_sources() -> None:
    assert build_native.fingerprint() == accelerator.native.SOURCES, "run scripts/setup"


@needs_native
def test_the_compiler_has_nothing_to_say(tmp_path: Path) -> None:
    try:
        build_native.build(tmp_path, ["-Werror", "-fanalyzer", "-Wshadow", "-Wconversion"])
    except build_native.CannotBuild as error:
        if "unrecognized" in str(error) or "unknown" in str(error):
            pytest.skip("this compiler does not know the options")
        raise


@needs_native
def test_most_launches_are_native(dev: ps.Device) -> None:
    x, y = dev.zeros(N), dev.zeros(N)
    run = saxpy(dev)
    run(x=x, y=y, a=1.0, n=N, threads=N)
    made, _ = accelerator.launches()
    for _ in range(100):
        run(x=x, y=y, a=1.0, n=N, threads=N)
    more, _ = accelerator.launches()
    assert more - made > 80  # not all: a thread of Penstock's own may have the lock


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
        facts = ("kind", "reason", "path", "where", "thread", "stream", "command", "awaited")
        said.append(
            [
                (*(getattr(event, fact) for fact in facts), event.device_seconds is None)
                for event in t.events
                if event.kind == "launch" or event.path == "device"
            ]
        )
        assert native > 3 or call is not kernel  # not all: another thread may have the lock
    assert said[0] == said[1]
    assert len(said[0]) == 9  # five launches, and a barrier between each two
    assert (x.numpy() == 12).all()


# Which of the two is in use.


def test_it_can_be_turned_off() -> None:
    script = "from penstock import accelerator as a; print(a.is_native(), a.status)"
    assert run_script(script, PENSTOCK_NATIVE="0").stdout == "False off (PENSTOCK_NATIVE=0)\n"


def test_a_module_of_another_version_is_refused() -> None:
    script = """
import sys, types, penstock
penstock._native = sys.modules["penstock._native"] = types.SimpleNamespace(VERSION=0)
from penstock import accelerator
print(accelerator.is_native(), accelerator.status)
"""
    done = run_script(script, PENSTOCK_NATIVE="1")
    assert done.stdout == "False refused: it has version 0, and 2 is needed\n"
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
    try:
        while raised < 100:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0007)
                while True:
                    kernel(x=x, n=N, spin=0, add=1, threads=N)
                    launched += 1
                    if launched % 7 == 0:
                        x.device.synchronize()
            except Interrupt:
                raised += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    values = x.numpy()
    assert (values == values[0]).all()
    # A launch that was interrupted after it was made is not counted here.
    assert launched <= values[0] <= launched + raised


def test_nothing_is_left_behind(dev: ps.Device) -> None:
    run, x, y = saxpy(dev), dev.zeros(N), dev.zeros(N)

    def many(count: int) -> None:
        for traced in (contextlib.nullcontext(), ps.trace(), ps.trace(times=False)):
            with traced:
                for _ in range(count):
                    run(x=x, y=y, a=0.5, n=N, threads=N)
                dev.synchronize()

    many(5_000)
    gc.collect()
    before = sys.getallocatedblocks()
    lane = dev.default_stream.lane
    kept = (x, y, run, run.program, run.name, lane, lane.owner, lane.place, lane.name, None, True)
    references = [sys.getrefcount(each) for each in kept]
    many(15_000)
    gc.collect()
    # Not nothing: chance decides how many recordings there are.
    assert sys.getallocatedblocks() - before < 10_000
    after = [sys.getrefcount(each) for each in kept]
    assert all(b - a < 5_000 for a, b in zip(references, after, strict=True))


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
    said = run_programs(
        str(tmp_path),
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0",
        PYTHONMALLOC="malloc",
    )
    assert said is not None
    assert "step 249:" in said
