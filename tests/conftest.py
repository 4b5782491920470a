"""Devices for tests: every Vulkan driver on this machine, with validation where it is installed.

Devices are opened once per (driver, options) and shared, because opening one costs more than most
tests. After every test the validation layer must have said nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
if _SWIFTSHADER.exists():
    os.environ.setdefault("VK_ADD_DRIVER_FILES", str(_SWIFTSHADER))
os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")

import penstock as ps  # noqa: E402
from penstock import accelerator  # noqa: E402
from penstock.driver.vulkan import api  # noqa: E402
from tests.hip import standin  # noqa: E402
from tests.hip.standin import StandIn  # noqa: E402

# A process that was started in the background may ignore Ctrl-C, which tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)

DRIVERS = ("llvmpipe", "SwiftShader")
#: Tests of long kernels, of which SwiftShader takes seconds to compile one: a sample runs.
_SAMPLED = ("tests/ops/", "tests/xp/", "tests/llm/")
_SAMPLE = 10
_MUCH = 1 << 27  # bytes that a shared device keeps, at most, after a test
#: By the name of a test: one in n of its mutants runs, since each takes seconds.
_MUTANTS = {
    "test_mutant_is_caught": 4,
    "test_programs_fail_without_their_safeguard": 6,
    "test_mutant_of_the_hip_driver_is_caught": 12,
    "test_mutant_of_the_driver_is_caught": 12,
    "test_mutant_of_a_trace_is_caught": 12,
    "test_mutant_of_recurrence_is_caught": 8,
    "test_mutant_of_reuse_is_caught": 8,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole", action="store_true", help="also the tests and mutants of which a sample runs"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole") or len(items) < 50:
        return

    def runs(item: pytest.Item) -> bool:
        number = zlib.crc32(item.nodeid.encode())
        if sample := _MUTANTS.get(getattr(item, "originalname", "")):
            return number % sample == 0
        if "SwiftShader" not in item.nodeid or not item.nodeid.startswith(_SAMPLED):
            return True
        if item.get_closest_marker("many_kernels"):
            return False
        return number % _SAMPLE == 0

    left_out = [item for item in items if not runs(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if runs(item)]


def pytest_collection_finish() -> None:
    _freeze()


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    yield
    _freeze()


def _freeze() -> None:
    """Keep the collector from visiting all that is there already, at each of many collections."""
    gc.collect()
    gc.freeze()


def _has_validation() -> bool:
    try:
        _, lib = api.load()
        layers = api.listing(lib.vkEnumerateInstanceLayerProperties, "VkLayerProperties")
    except ps.NoDevice:
        return False
    return api.VALIDATION_LAYER in [api.text(layer.layerName) for layer in layers]


HAS_VALIDATION = _has_validation()
OpenDevice = Callable[..., ps.Device]


@pytest.fixture(scope="session")
def _shared_devices() -> Iterator[dict[object, ps.Device]]:
    opened: dict[object, ps.Device] = {}
    yield opened
    for device in opened.values():
        device.close()


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """The name of a Vulkan driver that is installed here."""
    return _installed(request.param)


def _installed(name: str) -> str:
    if not any(name in info.name for info in ps.devices()):
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def open_device(driver: str) -> Iterator[OpenDevice]:
    """Opens devices of the driver under test, closed at the end; validation stays silent."""
    opened: list[ps.Device] = []

    def open_one(**options: object) -> ps.Device:
        opened.append(ps.Device(driver, validate=HAS_VALIDATION, **options))  # type: ignore[arg-type]
        return opened[-1]

    with _silence():
        yield open_one
        for device in opened:
            device.close()


@pytest.fixture
def shared_device(driver: str, _shared_devices: dict[object, ps.Device]) -> Iterator[OpenDevice]:
    """A device of the driver under test with the given options, shared between tests."""

    def find(**options: object) -> ps.Device:
        key = (driver, *sorted(options.items()))
        if key not in _shared_devices:
            _shared_devices[key] = ps.Device(
                driver,
                validate=HAS_VALIDATION,
                **options,  # type: ignore[arg-type]
            )
        return _shared_devices[key]

    with _silence():
        yield find
        for device in _shared_devices.values():
            if device.memory.free > _MUCH:
                device.trim()


@pytest.fixture
def threaded_device(driver: str) -> Iterator[ps.Device]:
    """A device without validation, whose layer stalls for 10 s when threads wait and signal."""
    with ps.Device(driver) as device:
        yield device


@pytest.fixture
def dev(shared_device: OpenDevice) -> ps.Device:
    """The device under test, with everything at its default."""
    return shared_device()


@pytest.fixture(autouse=True)
def _collector_stays_on() -> Iterator[None]:
    """Fails the test that leaves the garbage collector off, so that later ones keep memory."""
    yield
    if not gc.isenabled():
        gc.enable()
        pytest.fail("the test left Python's garbage collector off")


def leave_to_python(device: ps.Device) -> None:
    """Have submissions and polls made by Python, for a test that replaces what it calls."""
    for stream in device.scheduler.all_streams():
        for part in (stream.queue, stream.timeline):
            if hasattr(part, "native"):
                part.native = None


@contextlib.contextmanager
def simulated(seed: int, **options: object) -> Iterator[ps.Device]:
    """A simulated device; at the end it must not have seen a race."""
    with ps.Device(driver="sim", seed=seed, **options) as device:  # type: ignore[arg-type]
        yield device
        device.synchronize()
        assert not device.messages, f"seed {seed}: {device.messages[0]}"


class Fault:
    """While armed, lets the n-th of the simulator's calls that can fail run out of memory.

    And the next: an allocation that fails is tried once more.
    """

    CALLS = ("allocate", "begin", "end", "copy", "fill", "dispatch", "dispatch_indirect", "execute",
             "recordings", "replayable", "submit")  # fmt: skip

    def __init__(self, number: int) -> None:
        self.armed = False
        self._number = number
        self._count = 0

    def __call__(self, name: str, _: int) -> BaseException | None:
        if not self.armed or name not in self.CALLS:
            return None
        self._count += 1
        failing = self._count in (self._number, self._number + 1)
        return ps.OutOfMemory(f"fault at {name}") if failing else None

    @property
    def reached(self) -> bool:
        return self._count >= self._number


def faults(most: int) -> Iterator[Fault]:
    """A fault at every N, until one is not reached any more."""
    for number in range(1, most):
        fault = Fault(number)
        yield fault
        assert fault.armed
        if not fault.reached:
            return
    pytest.fail("the faults never ended")


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The stand-in for HIP's library, built for this session."""
    if not standin.compilers():
        pytest.skip("no C and C++ compiler to build the stand-in for HIP with")
    return StandIn(standin.build(tmp_path_factory.mktemp("hip")))


@pytest.fixture(params=("discrete", "integrated"))
def hip(request: pytest.FixtureRequest, standin_library: StandIn) -> Iterator[StandIn]:
    """The stand-in as what HIP finds, with memory of its own or the host's."""
    integrated = int(request.param == "integrated")
    with standin_library.chosen(integrated=integrated) as chosen:
        yield chosen


@pytest.fixture
def hip_device(hip: StandIn) -> Iterator[ps.Device]:
    """A device of the stand-in, that in the end was used as it should be."""
    with hip.device() as device:
        yield device


@pytest.fixture(params=(*DRIVERS, "simulator", "HIP"))
def any_device(
    request: pytest.FixtureRequest, _shared_devices: dict[object, ps.Device]
) -> Iterator[ps.Device]:
    """Every Vulkan driver, the simulator with a seed that depends on the test, and HIP's stand-in.

    Tests that need what the stand-in has not say so with `not_hip`.
    """
    if request.param == "HIP":
        library: StandIn = request.getfixturevalue("standin_library")
        seed = zlib.crc32(request.node.name.encode())
        with library.chosen(integrated=1, seed=seed), library.device() as device:
            yield device
        return
    if request.param == "simulator":
        with simulated(zlib.crc32(request.node.name.encode())) as device:
            yield device
        return
    name = _installed(request.param)
    with _silence():
        if (name,) not in _shared_devices:
            _shared_devices[name,] = ps.Device(name, validate=HAS_VALIDATION)
        yield _shared_devices[name,]


class _silence:  # noqa: N801
    """Fails the test if the validation layer says anything."""

    def __enter__(self) -> None:
        self._messages = api.instance(validate=True).messages if HAS_VALIDATION else []
        self._messages.clear()

    def __exit__(self, *_: object) -> None:
        messages = list(self._messages)
        self._messages.clear()
        assert not messages, "\n\n".join(messages[:5])


# Which part of the suite's launches were native.

_launches: Counter[str] = Counter()


def pytest_sessionfinish(session: pytest.Session) -> None:
    made, left = accelerator.launches()
    counts = {"made": made, "left": left, **accelerator.left_to_python()}
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["launches"] = counts
    else:
        _launches.update(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of a process of pytest-xdist."""
    _launches.update(getattr(node, "workeroutput", {}).get("launches", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    made, left = _launches.pop("made", 0), _launches.pop("left", 0)
    if made + left:
        share = 100 * made / (made + left)
        say = terminalreporter.write_line
        say(f"{made:,} of {made + left:,} launches were native ({share:.0f} %); {left:,} were not:")
        for reason, count in _launches.most_common():
            say(f"{count:9,}  {reason}")
    _tell_the_longest_modules(terminalreporter)


def _tell_the_longest_modules(terminalreporter: Any) -> None:
    """Say where the time of a long run went: by module, since few tests are long on their own."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += round(1000 * report.duration)
    whole = seconds.total() / 1000
    if whole > 60:
        terminalreporter.write_line(f"{whole:,.0f} s in tests, of which:")
        for module, spent in seconds.most_common(16):
            terminalreporter.write_line(f"{spent / 1000:9,.0f}  {module}")
