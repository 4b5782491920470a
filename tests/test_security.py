"""What docs/security.md promises, as far as a test can tell."""

from __future__ import annotations

import ast
import importlib.util
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.shader import glsl
from tests.conftest import DRIVERS, OpenDevice, faults, simulated
from tests.kernels import SLOW_ADD

ROOT = Path(__file__).parent.parent
SECRET = 0x5EC2E7
SIZE = 5000


def empty(dev: ps.Device, size: int = SIZE) -> ps.Array:
    return dev.empty(size, np.uint32)


def output(dev: ps.Device, size: int = SIZE) -> ps.Array:
    return dev.empty(size, np.uint32, role="output")


def scratch_array(dev: ps.Device, size: int = SIZE) -> ps.Array:
    return dev.empty(size, np.uint32, role="scratch")


def scratch(dev: ps.Device, size: int = SIZE) -> ps.Array:
    return dev.scratch().array(size, np.uint32)


def adopted(dev: ps.Device, size: int = SIZE) -> ps.Array:
    return dev.adopt(dev.host_empty(size, np.uint32))


MADE: dict[str, Callable[..., ps.Array]] = {
    made.__name__: made for made in (empty, output, scratch_array, scratch, adopted)
}


def leave_secrets(dev: ps.Device) -> None:
    """Memory of every kind that has held a secret is free again."""
    for pooled in (dev.scheduler.pool, dev.scheduler.host_pool):
        with dev.scheduler.lock:
            kept = [pooled.allocate(4 * SIZE) for _ in range(3)]
        for backing in kept:
            if backing.chunk.bytes is not None:
                part = backing.chunk.bytes[backing.offset : backing.offset + backing.nbytes]
                part.view(np.uint32)[:] = SECRET
        with dev.scheduler.lock:
            for backing in kept:
                pooled.retire(backing)
    for _ in range(3):
        x = dev.empty(SIZE, np.uint32)
        x.fill(SECRET)
    held = dev.empty(SIZE, np.uint32, role="scratch")
    held.fill(SECRET)
    del x, held


@pytest.fixture(params=[*DRIVERS, "simulator", "simulator, unmapped"])
def clearing(request: pytest.FixtureRequest) -> Iterator[ps.Device]:
    """A device that clears memory."""
    kind, _, how = request.param.partition(", ")
    transfers = how or "auto"
    if kind == "simulator":
        with simulated(11, clear_memory=True, transfers=transfers) as device:
            yield device
        return
    if not any(kind in info.name for info in ps.devices()):
        pytest.skip(f"{kind} is not installed")
    with ps.Device(kind, clear_memory=True) as device:
        yield device


#: A program of its own, for a driver may crash: kernels with one number changed, made and launched.
HOSTILE = """
import array, random, sys
import numpy as np
import penstock as ps
from penstock.shader.glsl import compile_glsl

VALUES = [0, 1, 2, 3, 7, 16, 33, 255, 65536, 1 << 20, 0x7fffffff, 0x80000000, 0xffffffff]
SOURCE = '''
#version 450
layout(local_size_x_id = 0, local_size_y = 2) in;
layout(constant_id = 3) const uint n = 4;
struct S { vec3 a; mat3 m; };
layout(binding = 0) buffer A { uint count; S s[2]; float x[]; } a;
layout(binding = 1) readonly buffer B { float y[]; };
layout(binding = 2) buffer Result { float sum; vec4 more[3]; };
layout(binding = 3) uniform U { vec4 u[4]; };
layout(push_constant) uniform P { S s[2]; vec3 v; uint w; };
shared float t[16];
void main() {
    uint i = gl_GlobalInvocationID.x;
    t[i % 16] = float(w);
    barrier();
    if (i < n) {
        a.x[i] = y[i] + v.x + s[1].m[1][2] + t[0] + u[w % 4].x;
        sum = a.x[i];
        more[1] = vec4(1);
    }
    atomicAdd(a.count, 1u);
}
'''

def numbers(words):
    # Where numbers stand outside of functions: in decorations, types, constants and modes.
    first = {71: 3, 72: 4, 16: 3, 43: 3, 50: 3, 21: 2, 22: 2, 23: 3, 24: 3, 32: 2, 59: 3, 17: 1}
    last = {32: 3}
    at = 5
    yield from (1, 3)
    while words[at] & 0xffff != 54:
        size, op = words[at] >> 16, words[at] & 0xffff
        yield from range(at + first.get(op, size), at + last.get(op, size))
        at += size

def launch(dev, code):
    kernel = dev.kernel(code)
    given = {}
    for slot in kernel.parameters:
        dtype = slot.dtype or np.dtype(np.uint32)
        count = -(-max(slot.min_size, 4096) // dtype.itemsize)
        if count > 1 << 20:
            return
        given[slot.name] = dev.zeros(count, dtype)
    for member in kernel.interface.push:
        given[member.name] = np.zeros(member.shape, member.dtype) if member.shape else 0
    result = kernel(**given, threads=8)
    dev.synchronize()
    if result is not None:
        result.result()

words = array.array("I", compile_glsl(SOURCE))
cases = [(at, v) for at in numbers(words) for v in VALUES if words[at] != v]
random.Random(0).shuffle(cases)
with ps.Device(sys.argv[1]) as dev:
    launch(dev, words.tobytes())
    for at, value in cases[: int(sys.argv[2])]:
        print("word", at, "is", value, flush=True)
        changed = array.array("I", words)
        changed[at] = value
        try:
            launch(dev, changed.tobytes())
        except (ps.InvalidSpirv, ps.Unsupported, ps.ShapeMismatch):
            pass  # the last: another stride, which the array does not have
print("all done", flush=True)
"""


def test_kernels_with_a_number_changed_do_not_crash_the_driver(driver: str) -> None:
    """What a module says of itself is bounded before a driver sees it; PENSTOCK_SLOW=1: all."""
    share = 1 << 20 if os.environ.get("PENSTOCK_SLOW") else 250
    run = subprocess.run(
        [sys.executable, "-c", HOSTILE, driver, str(share)],
        env={**os.environ, "PYTHONPATH": str(Path(ps.__file__).parents[1])},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    last = run.stdout.splitlines()[-1:]
    assert (run.returncode, last) == (0, ["all done"]), (last, run.stderr[-2000:])


class TestMemoryOfOthers:
    @pytest.mark.parametrize("made", MADE)
    def test_an_array_shows_nothing_of_another(self, clearing: ps.Device, made: str) -> None:
        for _ in range(4):
            leave_secrets(clearing)
            fresh = MADE[made](clearing)
            seen = fresh.read(force=True).result()
            assert not seen.any(), f"{np.count_nonzero(seen)} of {SIZE} words are not zero"
            del fresh

    def test_nor_does_what_takes_the_place_of_a_view(self, clearing: ps.Device) -> None:
        if clearing.scheduler.transfers == "unmapped":
            pytest.skip("there are no views of memory that is not mapped")
        leave_secrets(clearing)
        x = clearing.zeros(SIZE, np.uint32)
        view = x.view()
        x[:10].fill(7)
        assert x.numpy().max() == 7
        assert not view.any()

    def test_without_it_memory_is_handed_on_as_it_is(self, open_device: OpenDevice) -> None:
        """Else the tests above could not fail; and nothing is cleared that nobody asked for."""
        dev = open_device()
        leave_secrets(dev)
        dev.synchronize()
        with ps.trace() as receipt:
            x = empty(dev)
        assert receipt.fills == 0
        assert (x.numpy() == SECRET).all()

    def test_a_fault_while_clearing_changes_nothing(self) -> None:
        for fault in faults(30):
            with simulated(3, clear_memory=True, transfers="unmapped", fault=fault) as dev:
                kept = dev.full(SIZE, 1, np.uint32)
                leave_secrets(dev)
                fault.armed = True
                try:
                    x = empty(dev)
                    assert not x.numpy().any()
                except ps.OutOfMemory:
                    pass
                fault.armed = False
                assert not empty(dev).numpy().any()
                assert (kept.numpy() == 1).all()
            fault.armed = True  # for `faults`, which wants to know whether it was used


class TestKernels:
    BEYOND = """
    layout(local_size_x = 64) in;
    layout(binding = 0) buffer X { uint x[]; };
    layout(push_constant) uniform P { uint far; };
    void main() { x[far + gl_GlobalInvocationID.x] = 1u; }
    """

    BEYOND_TEXELS = """
    layout(local_size_x = 64) in;
    layout(binding = 0) uniform usamplerBuffer w;
    layout(binding = 1, r32ui) uniform writeonly uimageBuffer v;
    layout(binding = 2) buffer Y { uint y[]; };
    layout(push_constant) uniform P { int far; };
    void main() {
        int i = int(gl_GlobalInvocationID.x);
        y[i] = texelFetch(w, far + i).x;
        imageStore(v, far + i, uvec4(7));
    }
    """

    def test_a_kernel_cannot_write_beyond_its_array(self, dev: ps.Device) -> None:
        if "robustBufferAccess" not in dev.info.features:
            pytest.skip(f"{dev.name} has no robust buffer access")
        kernel = dev.kernel(self.BEYOND, name="beyond")
        x, y = dev.zeros(64, np.uint32), dev.zeros(64, np.uint32)
        for far in (64, 128, 1 << 20, (1 << 30) - 64):
            kernel(x=x, far=far, groups=1)
        assert not y.numpy().any()

    def test_a_kernel_cannot_leave_its_texels(self, dev: ps.Device) -> None:
        if "robustBufferAccess" not in dev.info.features:
            pytest.skip(f"{dev.name} has no robust buffer access")
        kernel = dev.kernel(self.BEYOND_TEXELS, name="beyond")
        x, y = dev.full(1024, 5, np.uint32), dev.zeros(64, np.uint32)
        part = x[512:768]
        for far in (-64, 256, 512, 1 << 20, -(1 << 28), 1 << 30):
            kernel(w=part, v=part, y=y, far=far, groups=1)
            assert not y.numpy().any()
        assert set(x.tolist()) == {5}

    def test_a_wait_can_have_an_end(self, dev: ps.Device) -> None:
        slow = dev.kernel(SLOW_ADD, name="slow")
        x = dev.zeros(1 << 12, np.uint32)
        # lavapipe ends a loop after 65,536 rounds, so many invocations make up the time.
        slow(x=x, n=x.size, spin=60_000, add=1, threads=x.size)
        with pytest.raises(ps.Timeout, match="the work continues"):
            x.read().result(timeout=0.001)
        dev.synchronize()

    @pytest.mark.parametrize("code", [b"\x03\x02\x23\x07", b"\x03\x02\x23\x07" + bytes(4000)])
    def test_broken_code_is_refused(self, dev: ps.Device, code: bytes) -> None:
        with pytest.raises(ps.InvalidSpirv):
            dev.kernel(code)


@pytest.mark.parametrize("shape", [-1, (1 << 40, 1 << 40), 1 << 62, (2, -3), 1 << 200])
def test_sizes_that_cannot_be_are_refused(dev: ps.Device, shape: Any) -> None:
    with pytest.raises((ps.InvalidValue, ps.OutOfMemory, ps.Unsupported)):
        dev.empty(shape)


class TestCache:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        if not glsl.compilers():
            pytest.skip("no GLSL compiler")
        monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
        glsl._cache.clear()
        return tmp_path / "cache"

    def test_it_is_private_whatever_the_mask(self, cache: Path) -> None:
        before = os.umask(0)
        try:
            glsl.compile_glsl("layout(local_size_x = 5) in;\nvoid main() {}\n")
        finally:
            os.umask(before)
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()} == {0o600}

    @pytest.mark.parametrize("mode", [0o777, 0o702, 0o770])
    def test_where_others_may_write_it_is_not_used(self, cache: Path, mode: int) -> None:
        cache.mkdir()
        cache.chmod(mode)
        glsl.compile_glsl("layout(local_size_x = 6) in;\nvoid main() {}\n")
        assert not list(cache.iterdir())


def test_nothing_runs_code_from_data() -> None:
    """No pickle, eval and the like in the package; exec only for calls it writes itself."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = path.relative_to(ROOT / "src" / "penstock").as_posix()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("exec", "eval"):
                    found.add((name, node.func.id))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None) or node.names[0].name
                if module.partition(".")[0] in ("pickle", "marshal", "shelve", "yaml"):
                    found.add((name, module))
    assert found == {
        ("conformance/check.py", "exec"),  # a program of its own, shrunk to a script
        ("conformance/runner.py", "eval"),  # a call of the same
        ("ops/elementwise.py", "exec"),  # the call of an operation, from names that are checked
        ("cli/script.py", "exec"),  # the program that the user asked to trace
    }


def test_installed_packages_fit_together() -> None:
    """What an audit can tell without a network. pip-audit, which needs one, is run by hand."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stdout.splitlines() if line.startswith("penstock ")]
    assert not ours
