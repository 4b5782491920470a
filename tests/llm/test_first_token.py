"""What comes before the first token: kernels compiled at once, and no step behind the prompt."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import compiling, progress_bar, variants
from penstock.llm.compiling import Compiled
from penstock.llm.costs import COUNTS
from tests.interrupts import at_point, chosen, interrupt, points
from tests.kernels import SLOW_COPY
from tests.llm.model_builders import miniature

PROMPT = [5, 9, 2, 3, 7, 11, 8, 10, 3, 6]  # batches of 8 and 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return miniature(tmp_path_factory.mktemp("model"))


@pytest.fixture
def fresh(dev: ps.Device, path: Path) -> Iterator[llm.Model]:
    """A model for which no kernel is compiled yet."""
    if "llvmpipe" not in dev.name:
        pytest.skip("slow on SwiftShader")
    chosen = llm.Variants.expected(dev)
    with llm.load(path, dev, progress=False, variants=chosen) as model:
        yield model


def test_a_listed_step_launches_nothing_and_names_its_kernels(fresh: llm.Model) -> None:
    compiled = fresh._kernels.compiled
    with fresh.network() as network, ps.trace() as t:
        with compiled.listing() as listed:
            network._record(2, True, "greedy", network.context).close()
        t.expect(launches=0, replays=0, submissions=0)
        names = {one.shader.name.split()[0] for one in listed.values()}
        assert {"embed", "product", "rmsnorm", "rope_store", "attention"} < names
        assert {"sample_peaks", "sample_greedy"} < names
        assert not compiled._kernels


def test_kernels_are_compiled_by_threads_and_all_of_them(
    fresh: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    make = Compiled._make

    def noted(self: Compiled, *arguments: Any) -> ps.Kernel:
        compiled.append(threading.current_thread().name)
        return make(self, *arguments)

    monkeypatch.setattr(Compiled, "_make", noted)
    text = fresh.generate(PROMPT, max_tokens=4, stop_ids=[])
    assert len(text.ids) == 4
    assert len(compiled) > 10
    assert all(name.startswith("penstock-compile") for name in compiled)
    before = len(compiled)
    assert fresh.generate(PROMPT, max_tokens=4, stop_ids=[]).ids == text.ids
    assert len(compiled) == before


def test_a_cpu_driver_runs_every_new_kernel_without_groups(fresh: llm.Model) -> None:
    with fresh.network() as network, ps.trace(times=False) as t:
        network.prepare(len(PROMPT), 2, "greedy")
        launched = [event.reason.rpartition(" in groups of ") for event in t.of_kind("launch")]
    assert all(groups == "'no groups'" for _, _, groups in launched)
    made = sorted(kernel.name for kernel in fresh._kernels.compiled._kernels.values())
    assert sorted(name for name, _, _ in launched) == made


def test_a_kernel_that_cannot_be_compiled_is_an_error_of_the_generation(
    fresh: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Compiled, *arguments: Any) -> ps.Kernel:
        raise ps.CompileError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "_make", fails)
        with pytest.raises(ps.CompileError, match="not today"):
            fresh.generate(PROMPT, max_tokens=2)
    assert len(fresh.generate(PROMPT, max_tokens=2, stop_ids=[]).ids) == 2


def test_the_first_token_comes_before_the_step_is_compiled(fresh: llm.Model) -> None:
    with fresh.network() as network:
        tokens = network.tokens(PROMPT, 5, "greedy")
        found = [next(tokens)]
        assert [key[:2] for key in network._graphs] == [(16, True)], "ten tokens, padded"
        assert network.position == len(PROMPT)
        found += tokens
        assert any(not prompt for _, prompt, *_ in network._graphs)
    assert fresh.generate(PROMPT, max_tokens=5, stop_ids=[]).ids == found


def test_no_step_is_in_the_submission_of_another(fresh: llm.Model) -> None:
    with ps.trace(times=False) as t:
        for _ in range(2):
            fresh.generate(PROMPT, max_tokens=6, stop_ids=[])
    places = [(event.stream_id, event.submission) for event in t.of_kind("replay")]
    prompt, steps = places[-6:-5], places[-5:]  # of the second, whose steps are issued ahead
    assert len({*steps}) == 5
    assert not {*prompt} & {*steps}


def test_preparation_is_apart_from_prompt_and_generation(fresh: llm.Model) -> None:
    receipts = []
    for _ in range(2):
        fresh.device.synchronize()  # with one batch, no write meets work in flight, and is staged
        receipts.append(fresh.generate(PROMPT[:8], max_tokens=6, stop_ids=[]).receipt)
    first, second = receipts
    assert first.preparation > second.preparation
    assert first.as_dict()["preparation"] == {"seconds": first.preparation}
    assert f"recorded before, in {first.preparation:.2f} s" in str(first)
    whole = [
        {name: getattr(one.prompt, name) + getattr(one.generation, name) for name in COUNTS}
        for one in (first, second)
    ]
    for counts in whole:
        # They also depend on how far the device is when the host looks, and on what is in stock.
        del counts["waits"], counts["barriers"], counts["allocations"]
    assert whole[0] == whole[1]


def test_the_bar_of_what_is_quick_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = [100.0]
    monkeypatch.setattr(progress_bar.sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    quick = progress_bar.Bar("compiling", "kernels", after=0.5)
    quick(1, 2)
    quick(2, 2)
    assert terminal.getvalue() == ""
    long = progress_bar.Bar("compiling", "kernels", after=0.5)
    long(1, 3)
    now[0] += 1
    long(2, 3)
    long(3, 3)
    shown = terminal.getvalue().split("\r")[1:]
    assert ["2 of 3 kernels" in shown[0], "3 of 3 kernels\n" in shown[1]] == [True, True]


def test_an_append_only_array_that_is_written_has_a_stand_in(fresh: llm.Model) -> None:
    device = fresh.device
    trial, copy = compiling.Trial(device), device.kernel(SLOW_COPY)
    for length in (10, 1 << 20):
        log = device.empty(length, np.uint32, role="append")
        other = device.zeros(length, np.uint32)
        for x, y in ((log, other), (other, log)):
            trial.launch(copy, {"x": x, "y": y, "n": length, "spin": 0, "threads": length})
        log[:10].write(np.arange(10, dtype=np.uint32))  # the first write, as far as the role knows
        assert (other.numpy() == 0).all()
    (stand_in,) = trial._stand_ins.values()
    assert stand_in.nbytes == 1 << 16


def test_the_first_token_comes_before_products_are_measured(
    dev: ps.Device, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "llvmpipe" not in dev.name:
        pytest.skip("only one way suits SwiftShader")
    monkeypatch.setattr(variants, "_known", {})
    monkeypatch.setattr(variants, "_read", dict)
    monkeypatch.setattr(variants, "_remember", lambda *_: None)
    measured: list[int] = []

    def measure(
        device: ps.Device, weight: Any, ways: list[str], count: int, *rest: Any
    ) -> variants._Measured:
        measured.append(count)
        return variants._Measured(ways[-1], compared=True, delay=0.0, longest=0.0)

    monkeypatch.setattr(variants, "_measured", measure)
    with llm.load(path, dev, progress=False) as model:
        expected = llm.Variants.expected(dev)
        one = model.generate(PROMPT, max_tokens=1, stop_ids=[])
        assert (measured, one.receipt.variants) == ([], expected)
        first = model.generate(PROMPT, max_tokens=6, stop_ids=[])
        assert measured == [1, 16]
        assert first.receipt.variants == replace(expected, decode="windowed")
        second = model.generate(PROMPT, max_tokens=6, stop_ids=[])
        assert second.receipt.variants == replace(expected, decode="windowed", batch="windowed")
        assert measured == [1, 16]
        assert one.ids == first.ids[:1]
        assert first.ids == second.ids


def test_an_interrupt_while_kernels_are_compiled_leaves_a_model_that_works(
    dev: ps.Device, path: Path
) -> None:
    if "llvmpipe" not in dev.name:
        pytest.skip("slow on SwiftShader")
    with llm.load(path, dev, progress=False) as model:
        count = points(lambda: _list_and_compile(model))
        for number in chosen(count, max(1, count // 12)):
            with llm.load(path, dev, progress=False) as other:
                at_point(number, interrupt, partial(_list_and_compile, other))
                running = [one.name for one in threading.enumerate()]
                assert not [name for name in running if name.startswith("penstock-compile")]
        wanted = model.generate(PROMPT, max_tokens=4, stop_ids=[]).ids
    with llm.load(path, dev, progress=False) as model:
        at_point(count // 2, interrupt, lambda: _list_and_compile(model))
        assert model.generate(PROMPT, max_tokens=4, stop_ids=[]).ids == wanted


def _list_and_compile(model: llm.Model) -> None:
    compiled = model._kernels.compiled
    with model.network() as network, compiled.listing() as listed:
        network._record(2, True, "greedy", network.context).close()
    compiled.compile(listed, show=False)


def test_closing_the_device_while_its_kernels_are_compiled(
    path: Path, monkeypatch: pytest.MonkeyPatch, dev: ps.Device
) -> None:
    if "llvmpipe" not in dev.name:
        pytest.skip("slow on SwiftShader")
    make = Compiled._make
    begun = threading.Event()

    def slow(self: Compiled, *arguments: Any) -> ps.Kernel:
        begun.set()
        return make(self, *arguments)

    monkeypatch.setattr(Compiled, "_make", slow)
    with ps.Device(dev.info.index) as own:
        model = llm.load(path, own, progress=False)
        closer = threading.Thread(target=lambda: (begun.wait(), own.close()))
        closer.start()
        with contextlib.suppress(ps.Closed):
            model.generate(PROMPT, max_tokens=4, stop_ids=[])
        closer.join()
        with pytest.raises(ps.Closed):
            model.generate(PROMPT, max_tokens=4, stop_ids=[])
