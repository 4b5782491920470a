"""What the kernels of a decoder layer besides its products cost, in the shapes of Qwen3-0.6B.

Each case is recorded as a graph of several launches of the same kernel, replayed and waited for;
its time is that of one launch. `advance`, which does next to nothing, shows what any launch costs.
Before a case is timed, what it writes is spoiled, and afterwards compared with NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from benchmarks.tables import Row, Section, times
from penstock.bench.measure import Case, expect, interleave
from penstock.llm.device_state import DeviceState
from penstock.llm.layers import Cache, Layers
from penstock.llm.random_model import PRESETS
from penstock.llm.sampling import Sampler
from penstock.llm.sampling_settings import Sampling
from penstock.llm.weights import Piece, Weight

HIDDEN, VOCABULARY = 1024, 151_936
HEADS, KV_HEADS, HEAD_SIZE = 16, 8, 128
CONTEXTS = (128, 1024, 4096)
COUNTS = (1, 64)

Host = npt.NDArray[Any]


def run(device: ps.Device, repeat: int) -> list[Section]:
    bench = _Bench(device)
    variant = "gpu" if bench.layers.traits.shared else "cpu"
    notes = (
        f"{repeat} interleaved rounds; every output is compared with NumPy after each",
        f"variant {variant}; attention at the end of its context, which is also the capacity",
    )
    sections = []
    for title, cases in (
        ("Elementwise kernels, norms and rotation", bench.simple()),
        ("Attention", bench.attention()),
        (f"Sampling from {VOCABULARY:,} logits", bench.sampling()),
    ):
        samples = interleave(cases, repeat)
        rows: list[Row] = [
            {
                "kernel": name,
                **times(taken),
            }
            for name, taken in samples.items()
        ]
        sections.append(Section(f"{title}, per launch", rows, notes))
    return sections


class _Bench:
    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.layers = Layers(device)
        self.random = np.random.default_rng(0)

    def simple(self) -> dict[str, Case]:
        cases: dict[str, Case] = {"advance": self._advance()}
        for count in COUNTS:
            cases[f"rmsnorm, {count} × {HIDDEN}"] = self._rmsnorm(count)
            for kind in ("f32", "f16"):
                cases[f"rope_store, {count} tokens, {kind}"] = self._rope_store(count, kind)
        return cases

    def attention(self) -> dict[str, Case]:
        return {
            f"attention, {count} at {context}, {kind}": self._attention(context, count, kind)
            for count in COUNTS
            for context in CONTEXTS
            for kind in ("f32", "f16")
        }

    def sampling(self) -> dict[str, Case]:
        logits = self.random.standard_normal(VOCABULARY).astype(np.float32) * 3
        logits[1234] = logits.max() + 1
        settings = {
            "greedy": Sampling(temperature=0),
            "greedy, penalty": Sampling(temperature=0, penalty=1.1),
            "temperature": Sampling(temperature=1.0),
            "top-k 40": Sampling(temperature=1.0, top_k=40),
            "top-p 0.95": Sampling(temperature=1.0, top_p=0.95),
            "top-k 40, top-p 0.95, min-p 0.05": Sampling(
                temperature=0.8, top_k=40, top_p=0.95, min_p=0.05
            ),
            "the same, penalty": Sampling(
                temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, penalty=1.1
            ),
        }
        return {name: self._sample(name, logits, chosen) for name, chosen in settings.items()}

    # One case each.

    def _advance(self) -> Case:
        progress = DeviceState.new(self.device)
        return self._case(
            lambda: self.layers.advance(progress.state, count=1),
            50,
            lambda: progress.restart(),
            lambda: int(progress.state.numpy()[0]) == 50,
            "advance",
        )

    def _rmsnorm(self, count: int) -> Case:
        x, w = self._normal(count, HIDDEN), self._normal(HIDDEN)
        there, y = self.device.array(x), self.device.zeros((count, HIDDEN))
        piece = Piece(self.device.array(w.view(np.uint32)), 0, 0, 1)
        weight = Weight("w", "F32", 1, HIDDEN, (piece,))
        expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w
        launch = partial(self.layers.rmsnorm, there, weight, y, count=count, eps=1e-6)
        return self._compared(launch, 40 if count == 1 else 4, y, expected, "rmsnorm")

    def _rope_store(self, count: int, kind: str) -> Case:
        sizes = (HEADS, KV_HEADS, KV_HEADS)
        q, k, v = (self._normal(count, n * HEAD_SIZE) for n in sizes)
        cache = Cache.new(self.device, 128, KV_HEADS, HEAD_SIZE, cache_type=kind)
        angles = PRESETS["qwen3-0.6b"].angles(128)
        arrays = [self.device.array(a) for a in (q, k, v)]
        y = self.device.zeros(q.shape)
        ones = np.ones(HEAD_SIZE, np.float32).view(np.uint32)
        norm = Weight("w", "F32", 1, HEAD_SIZE, (Piece(self.device.array(ones), 0, 0, 1),))
        launch = partial(
            self.layers.rope_store, *arrays, y, cache, self.device.array(angles),
            DeviceState.new(self.device).state, count=count, q_norm=norm, k_norm=norm,
        )  # fmt: skip
        heads = q.reshape(count, HEADS, HEAD_SIZE)
        heads = heads / np.sqrt((heads * heads).mean(-1, keepdims=True) + 1e-6)
        a, b = np.split(heads, 2, -1)
        c, s = (angles[:count, None, :, i] for i in (0, 1))
        expected = np.concatenate([a * c - b * s, b * c + a * s], -1).reshape(q.shape)
        return self._compared(launch, 20 if count == 1 else 2, y, expected, "rope_store")

    def _attention(self, context: int, count: int, kind: str) -> Case:
        shape = (context, KV_HEADS, HEAD_SIZE)
        k, v = (self._normal(*shape).astype(np.float16).astype(np.float32) for _ in "kv")
        cache = Cache.new(self.device, context, KV_HEADS, HEAD_SIZE, cache_type=kind)
        for plane, values in ((cache.keys, k), (cache.values, v)):
            flat = values.reshape(context, -1)
            plane[:context].write(
                flat if kind == "f32" else flat.astype(np.float16).view(np.uint32)
            )
        q = self._normal(count, HEADS * HEAD_SIZE)
        position = context - count
        state = self.device.array(np.array([position, 0, 0, 0], np.uint32))
        y = self.device.zeros(q.shape)
        expected = _attention(q.reshape(count, HEADS, HEAD_SIZE), k, v, position)
        launch = partial(self.layers.attention, self.device.array(q), cache, state, y, count=count)
        times = 10 if count == 1 and context < 4096 else 1
        return self._compared(launch, times, y, expected.reshape(q.shape), "attention")

    def _sample(self, name: str, logits: Host, settings: Sampling) -> Case:
        sampler = Sampler(self.device, VOCABULARY)
        sampler.set(settings)
        progress = DeviceState.new(self.device)
        there = self.device.array(logits)
        best = int(logits.argmax())
        times = 5

        def spoil() -> None:
            there.write(logits)  # a penalty changes them
            progress.restart()
            for array in (progress.ring, progress.history):
                array.fill(VOCABULARY)

        def right() -> bool:
            found = progress.ring.numpy()[:times]
            return bool((found < VOCABULARY).all() and (settings.temperature or found[0] == best))

        return self._case(
            lambda: sampler.sample(there, progress, greedy=not settings.temperature),
            times,
            spoil,
            right,
            name,
        )

    def _compared(
        self, launch: Callable[[], None], times: int, y: ps.Array, expected: Host, name: str
    ) -> Case:
        return self._case(
            launch,
            times,
            lambda: y.fill(np.nan),
            lambda: bool(np.allclose(y.numpy(), expected, atol=1e-4)),
            name,
        )

    def _case(
        self,
        launch: Callable[[], None],
        times: int,
        spoil: Callable[[], Any],
        right: Callable[[], bool],
        name: str,
    ) -> Case:
        with self.device.record() as graph:
            for _ in range(times):
                launch()

        def case() -> float:
            spoil()
            self.device.synchronize()
            start = time.perf_counter()
            graph.replay()
            self.device.synchronize()
            seconds = time.perf_counter() - start
            expect(right(), name)
            return seconds / times

        return case

    def _normal(self, *shape: int) -> npt.NDArray[np.float32]:
        return self.random.standard_normal(shape, np.float32)


def _attention(q: Host, k: Host, v: Host, position: int) -> Host:
    group = HEADS // KV_HEADS
    y = np.zeros_like(q)
    for token in range(len(q)):
        rows = position + token + 1
        for head in range(HEADS):
            scores = k[:rows, head // group] @ q[token, head] / np.sqrt(HEAD_SIZE)
            weights = np.exp(scores - scores.max())
            y[token, head] = weights @ v[:rows, head // group] / weights.sum()
    return y
