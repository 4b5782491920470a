"""What operations cost in counts, which have no noise: none may cost more than it once did.

`counts.json` has the most that each operation may cost. Times are measured elsewhere, and fail
nothing. When an operation has become cheaper, `python -m tests.test_counts` writes what it costs
now; the change to the file is then part of the change that did it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.bench.measure import SHADERS
from penstock.llm.costs import COUNTS, counted
from tests.llm.model_builders import gguf

FILE = Path(__file__).with_name("counts.json")
SIZE = 1024
TOKENS = 16
#: How often the host finds the device still at work is chance: once a token, at most.
CHANCE = {"tokens": {"waits": TOKENS, "submissions": TOKENS, "barriers": TOKENS * 27}}


class Scene:
    """Warm kernels, arrays, a graph and a model, to do things with."""

    def __init__(self, dev: ps.Device, directory: Path) -> None:
        self.dev = dev
        self.stream = dev.default_stream
        self.saxpy = dev.kernel(SHADERS / "saxpy.comp")
        self.pick = dev.kernel(SHADERS / "pick.comp", defines={"AS_RESULT": 1})
        self.touch = dev.kernel(SHADERS / "touch.comp")
        self.x, self.y = dev.ones(SIZE, name="x"), dev.ones(SIZE, name="y")
        self.token = dev.ones(SIZE, name="token")  # in no graph, so that it may be renamed
        self.weight = dev.array(np.ones(SIZE, np.float32), name="weight", role="weight")
        self.source = np.ones(SIZE, np.float32)
        self.array = np.zeros(1 << 18, np.float32)
        with dev.record() as self.graph:
            self.launches(100)
        self.file = directory / "floats.bin"
        self.source.tofile(self.file)
        sizes = {"context": 128, "vocabulary": 288}
        self.model = llm.load(
            gguf(directory, "qwen3", "Q8_0", **sizes), dev, variants=llm.Variants.expected(dev)
        )

    def close(self) -> None:
        self.model.close()
        self.graph.close()

    def launches(self, count: int) -> None:
        for _ in range(count):
            self.saxpy(x=self.x, y=self.y, a=0.5, n=SIZE, threads=SIZE)

    def launch_and_wait(self) -> None:
        self.launches(1)
        self.stream.synchronize()

    def hundred_launches_in_a_batch(self) -> None:
        with self.stream.batch():
            self.launches(100)
        self.stream.synchronize()

    def hundred_launches_replayed(self) -> None:
        self.graph.replay()
        self.stream.synchronize()

    def launch_with_result(self) -> None:
        self.pick(x=self.x, a=0.5, i=3, threads=1).result()

    def numpy_argument(self) -> None:
        self.touch(x=self.array, a=0.5, stride=SIZE, n=256, threads=256)

    def round_trip(self) -> None:
        self.x.write(self.source)
        self.launches(1)
        self.y.numpy()

    def write_what_is_idle(self) -> None:
        self.x.write(self.source)

    def write_what_work_reads(self) -> None:
        with self.stream.batch():
            self.saxpy(x=self.token, y=self.y, a=0.5, n=SIZE, threads=SIZE)
            self.token.write(self.source)

    def write_a_part_of_what_work_reads(self) -> None:
        with self.stream.batch():
            self.launches(1)
            self.x[:8].write(self.source[:8])

    def read_what_is_idle(self) -> None:
        self.x.numpy()

    def look_at_a_weight_that_work_reads(self) -> None:
        with self.stream.batch():
            self.saxpy(x=self.weight, y=self.y, a=0.5, n=SIZE, threads=SIZE)
            self.weight[3].item()

    def view_what_is_idle(self) -> None:
        self.x.view("r")

    def fill(self) -> None:
        self.x.fill(1)

    def open_a_file(self) -> None:
        self.dev.from_file(self.file, np.float32, SIZE)

    def rows_of_one_array(self) -> None:
        wide = self.x.reshape(16, 64)
        with self.stream.batch():
            for row in wide:
                self.saxpy(x=self.y[:64], y=row, a=0.5, n=64, threads=64)
        self.stream.synchronize()

    def prompt(self) -> None:
        self.model.generate([5, 17, 3, 200, 41], max_tokens=1, stop_ids=[])

    def tokens(self) -> None:
        self.model.generate([5], max_tokens=TOKENS, stop_ids=[])


OPERATIONS: dict[str, Callable[[Scene], Any]] = {
    name: member
    for name, member in vars(Scene).items()
    if not name.startswith("_") and name not in ("close", "launches")
}


def cost(scene: Scene, operation: str) -> dict[str, int]:
    """The counts of the third time: the second may still grow what the first made."""
    for _ in range(3):
        scene.dev.synchronize()
        with ps.trace(times=False) as trace:
            OPERATIONS[operation](scene)
    scene.dev.synchronize()
    return counted(trace)


def allowed() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(FILE.read_text())
    return found


@pytest.fixture
def scene(dev: ps.Device, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if id(dev) not in _scenes:
        _scenes[id(dev)] = Scene(dev, tmp_path_factory.mktemp("counts"))
    return _scenes[id(dev)]


_scenes: dict[int, Scene] = {}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_costs_no_more_than_it_did(scene: Scene, operation: str) -> None:
    now, most = cost(scene, operation), allowed()[operation]
    more = {name: f"{most[name]} → {now[name]}" for name in COUNTS if now[name] > most[name]}
    assert not more, f"{operation} costs more than before: {more}"


def test_every_operation_has_its_counts() -> None:
    assert {name: list(most) for name, most in allowed().items()} == {
        name: list(COUNTS) for name in OPERATIONS
    }


def test_a_growing_count_is_noticed(scene: Scene) -> None:
    once = cost(scene, "round_trip")
    with ps.trace(times=False) as trace:
        scene.round_trip()
        scene.round_trip()
    assert counted(trace)["copies"] > once["copies"]


def _write() -> None:
    """Write what everything costs now: the most of several times, on every driver."""
    import tempfile

    most: dict[str, dict[str, int]] = {}
    for info in ps.devices():
        with ps.Device(info.index) as dev, tempfile.TemporaryDirectory() as directory:
            scene = Scene(dev, Path(directory))
            for operation in list(OPERATIONS) * 5:
                for name, number in cost(scene, operation).items():
                    known = most.setdefault(operation, dict.fromkeys(COUNTS, 0))
                    known[name] = max(known[name], number)
            scene.close()
    for operation, counts in CHANCE.items():
        most[operation] |= {name: max(most[operation][name], n) for name, n in counts.items()}
    lines = [f"  {json.dumps(name)}: {json.dumps(counts)}" for name, counts in most.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _write()
