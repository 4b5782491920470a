"""The ordering programs on the simulator, and that the simulator would tell if they were wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps
from penstock.array.host_access import host_array
from penstock.array.transfer import MODES
from penstock.conformance.scripting import ordinary_memory
from penstock.driver.sim.driver import SimDriver, SimRecording
from penstock.memory.backing import Backing
from tests.conformance.test_ordering import PROGRAMS, Program
from tests.kernels import slow_add, slow_copy

SEEDS = range(4)
Check = Callable[[Program], None]


def run(program: Check, streams: str, mode: str, seed: int) -> list[str]:
    """Run a program under one schedule; what the simulator has to say of it."""
    with ps.Device(driver="sim", seed=seed, transfers=mode) as device:
        p = Program(device, streams)
        program(p)
        p.close()
        return device.messages


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("streams", ["one", "two"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_order_is_kept_under_any_schedule(program: Check, streams: str, mode: str) -> None:
    for seed in SEEDS:
        assert run(program, streams, mode, seed) == [], f"seed {seed}"


@pytest.mark.parametrize("mode", ["w", "rw"])
def test_what_was_written_through_a_view_counts_when_the_view_ends(mode: str) -> None:
    """On memory that is not coherent, which the simulator's is, it has to be flushed."""
    for seed in SEEDS:
        with ps.Device(driver="sim", seed=seed) as device:
            x, y = device.full(64, 1, np.uint32), device.zeros(64, np.uint32)
            slow_add(x, 1)
            part = x.reshape(8, 8)[:, 2:6].view(mode)  # type: ignore[arg-type]
            part[:] = 5
            del part
            slow_copy(x, y)
            expected = np.full((8, 8), 2)
            expected[:, 2:6] = 5
            assert (y.numpy() == expected.ravel()).all()
            assert device.messages == []


def chain(device: ps.Device) -> list[str]:
    x, y = device.zeros(64, np.uint32), device.zeros(64, np.uint32)
    with device.default_stream.batch():
        slow_add(x, 1)
        slow_copy(x, y)
        slow_add(x, 1)
    y.numpy()
    return device.messages


@pytest.mark.parametrize("missing", ["barrier", "publish"])
def test_what_is_missing_is_reported(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.Device(driver="sim") as device:
        assert chain(device) == []
    monkeypatch.setattr(SimRecording, missing, lambda self: None)
    with ps.Device(driver="sim") as device:
        reports = chain(device)
    assert reports
    assert "race" in reports[0]
    assert "bytes" in reports[0]
    assert "kernels.py" in reports[0]


def test_a_seed_replays_exactly() -> None:
    def calls(seed: int) -> tuple[dict[str, int], list[int]]:
        with ps.Device(driver="sim", seed=seed, transfers="staged") as device:
            x, y = device.zeros(64, np.uint32), device.ones(64, np.uint32)
            for value in range(20):
                slow_add(x, value)
                y.copy_from(x)
                x.write(np.full(64, value, np.uint32))
            y.numpy()
            driver = device.scheduler.driver
            return dict(driver.calls), [driver.machine.chance.randrange(1 << 30)]  # type: ignore[attr-defined]

    assert calls(7) == calls(7)
    assert any(calls(7) != calls(seed) for seed in range(8, 12))


def test_with_every_fourth_seed_memory_is_coherent(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.Device(driver="sim", seed=3, transfers="direct") as device:
        x = device.zeros(64, np.uint32)
        assert x.buffer.backing.memory.coherent
        monkeypatch.setattr(SimDriver, "flush", None)  # nobody calls them
        monkeypatch.setattr(SimDriver, "invalidate", None)
        for value in range(10):
            x.write(np.full(64, value, np.uint32))
            slow_add(x, 1)
            assert (x.numpy() == value + 1).all()
        assert device.messages == []
        slow_add(x, 1)
        device.default_stream.flush()
        host_array(x, x.buffer.backing)[:] = 5  # too early
        slow_add(x, 1)
        device.synchronize()
        assert "the host writes" in "".join(device.messages)


def test_adopted_memory_given_back_too_early_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def reports(seed: int) -> list[str]:
        with ps.Device(driver="sim", seed=seed) as device:
            x, y = device.adopt(ordinary_memory((64,), np.uint32)), device.empty(64, np.uint32)
            slow_copy(x, y)
            x.close()
            device.trim()
            y.numpy()
            return device.messages

    assert not any(reports(seed) for seed in range(8))
    monkeypatch.setattr(Backing, "idle", True)
    assert any("use after free: a kernel" in "".join(reports(seed)) for seed in range(8))


def test_kernels_need_a_reference() -> None:
    with ps.Device(driver="sim") as device, pytest.raises(ps.Unsupported, match="reference="):
        device.kernel("layout(local_size_x = 1) in;\nvoid main() {}")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_a_reference_that_raises_leaves_the_device_usable(
    seed: int, raised: type[BaseException]
) -> None:
    """An error is told once, and the array stays as it was; an interrupted kernel begins again."""
    raising = [True]

    def reference(x: np.ndarray) -> None:
        if raising.pop():
            raising.append(False)
            raise raised("of the reference")
        raising.append(False)
        x *= 2

    with ps.Device(driver="sim", seed=seed) as device:
        x = device.ones(100)
        x.numpy()
        double = device.elementwise("x[i] *= 2", "inout float32 x", reference=reference)

        def doubled() -> np.ndarray:
            double(x)
            return x.numpy()

        with pytest.raises(raised, match="of the reference"):
            doubled()
        expected = 1 if raised is ValueError else 2
        assert (x.numpy() == expected).all()
        assert ((x + 1).numpy() == expected + 1).all()


@pytest.mark.parametrize("call", ["allocate", "submit", "queue", "timeline", "recordings", "begin"])
def test_a_call_that_fails_changes_nothing(call: str) -> None:
    """Fail each call at its n-th occurrence; the program goes on and comes out right."""
    for failing in range(1, 40):
        seen = [0]

        def fault(name: str, count: int, failing: int = failing, seen: list[int] = seen) -> object:
            seen[0] += name == call
            return ps.OutOfMemory("fault") if name == call and count == failing else None

        try:
            device = ps.Device(driver="sim", transfers="staged", fault=fault)  # type: ignore[arg-type]
        except ps.OutOfMemory:
            continue
        with device:
            x = _again(lambda device=device: device.zeros(64, np.uint32))
            for _ in range(6):
                _again(lambda x=x: slow_add(x, 1))
                _again(lambda x=x: x[:32].write(np.full(32, 5, np.uint32)))
                stream = _again(device.stream)
                _again(lambda x=x, stream=stream: slow_add(x, 1, stream))
                _again(stream.close)
            assert _again(x.tolist) == [6] * 32 + [12] * 32
            assert device.messages == []
        if seen[0] < failing:
            return


def _again(call: Callable[[], object]) -> object:
    """What a program does that catches the error and tries once more."""
    try:
        return call()
    except ps.OutOfMemory:
        return call()
