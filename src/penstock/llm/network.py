"""A model's layers on a device, and where a generation over them stands.

Everything that is done more than once is recorded once: a batch of the prompt, and the step that
makes one token of the one before; the latter again when the cache has outgrown what attention was
recorded to look at. Nothing in them changes from one replay to the next. Kernels read
the position from device memory, append to the cache where it says, and leave the chosen token where
the next step looks for its own; the host replays, and reads token after token from a log.

Cache and log are append-only arrays that every replay advances. So the ledger knows which row each
replay writes, and reading a token waits for the step that made it, not for those behind it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.config import Config
from penstock.llm.device_state import STATE_WORDS, DeviceState
from penstock.llm.layers import Cache, Layers
from penstock.llm.optimizations import ALL, Mechanisms
from penstock.llm.products import Products
from penstock.llm.sampling import Sampler, Sampling
from penstock.llm.weights import Weight

End: TypeAlias = Literal["nothing", "greedy", "sampled"]
_HISTORY = 1024  # tokens that a repetition penalty can look back at
_GRAPHS = 24  # kept
_SURE = 1024  # steps that may well come; what those behind them need is recorded when they do
_EXACT = 4  # tokens up to which a batch may have any size
_LOGITS = 1 << 24  # bytes of logits that are made at a time, where all are wanted


class Kernels:
    """The kernels of all networks on one device; each is compiled when first needed."""

    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.products = Products(device)
        self.layers = Layers(device)


class Network:
    """One generation at a time: activations, cache, log, and the recorded steps."""

    def __init__(
        self,
        kernels: Kernels,
        config: Config,
        weights: Mapping[str, Weight],
        angles: ps.Array,
        *,
        batch: int,
        cache_type: str,
        mechanisms: Mechanisms = ALL,
    ) -> None:
        device = kernels.device
        self.device = device
        self.mechanisms = mechanisms
        self.config = config
        self.context = angles.shape[0]
        self.batch = min(batch, self.context)
        self._kernels = kernels
        self._weights = weights
        self._angles = angles
        self._output = weights.get("output.weight") or weights["token_embd.weight"]
        self._make_activations()
        self._every: ps.Array | None = None
        self._chosen = 0  # by the host, where it chooses
        self._cache, self._caches = Cache.of_layers(
            device, config.layers, self.context, config.kv_heads, config.head_size,
            cache_type=cache_type,
        )  # fmt: skip
        self._log = device.empty(self.context + 1, np.uint32, name="tokens", role="append")
        self._progress = DeviceState(
            state=device.zeros(STATE_WORDS, np.uint32, name="state"),
            tokens=device.zeros(self.batch, np.uint32, name="batch"),
            history=device.zeros(_HISTORY, np.uint32, name="history"),
            ring=self._log,
        )
        self._sampler = Sampler(device, config.vocabulary)
        self._graphs: dict[tuple[int, bool, str, int], ps.Graph] = {}

    def _make_activations(self) -> None:
        config = self.config
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size

        def scratch(name: str, columns: int) -> ps.Array:
            return self.device.empty((self.batch, columns), name=name, role="scratch")

        self._x, self._h = scratch("x", config.hidden), scratch("h", config.hidden)
        self._q, self._turned = scratch("q", queries), scratch("q turned", queries)
        self._k, self._v = scratch("k", keys), scratch("v", keys)
        self._mixed, self._gated = scratch("mixed", queries), scratch("gated", config.ffn)
        self._logits = self.device.empty((1, config.vocabulary), name="logits", role="scratch")

    @property
    def position(self) -> int:
        """How many tokens are in the cache, or on their way there."""
        return self._cache.length

    def restart(self, settings: Sampling) -> None:
        """Forget everything, and choose tokens by these settings from now on. Waits for nothing."""
        self._cache.reset()
        self._log.reset()
        self._progress.restart()
        self._sampler.set(settings)

    def prepare(self, count: int, steps: int, end: End) -> None:
        """Record, and compile, what reading so many tokens and so many steps after them need."""
        if not self.mechanisms.records_once:
            return
        rows, read = self.position, self.position + count
        for part in self._parts(count):
            rows += part
            self._graph(part, True, end if rows == read else "nothing", rows)
        rows, last = read + 1, min(read + min(steps, _SURE), self.context)
        while rows <= last:
            self._graph(1, False, end, rows)
            rows = self._reach(1, rows) + 1

    def _parts(self, count: int) -> list[int]:
        """So many tokens as sizes of batches. Few sizes occur, since each is recorded."""
        parts = [self.batch] * (count // self.batch)
        left = count % self.batch
        while left > _EXACT:
            parts.append(1 << (left.bit_length() - 1))
            left -= parts[-1]
        return [*parts, left] if left else parts

    def tokens(self, ids: Sequence[int], most: int, end: End) -> Generator[int, None, None]:
        """Take in a prompt, and yield up to so many tokens that come next, as they are there.

        Issues a few steps before the token is read that comes before them, so that the device is
        at work while the host deals with the token. What was issued and is not asked for any more
        is never seen.
        """
        if not self.mechanisms.sampling:
            self.read(ids[:-1], "nothing")
            self._chosen = ids[-1]
            yield from self._chosen_by_host(most, end)
        elif most:
            self.read(ids, end)
            yield from self._in_turn(0, 1, most, end)

    def steps(self, count: int, end: End) -> Generator[int, None, None]:
        """Yield so many tokens after those that there are, as `tokens` does."""
        if not self.mechanisms.sampling:
            yield from self._chosen_by_host(count, end)
        else:
            yield from self._in_turn(self._log.length, 0, count, end)

    def _in_turn(self, first: int, issued: int, count: int, end: End) -> Generator[int, None, None]:
        for number in range(count):
            while issued < min(number + 1 + self.mechanisms.ahead, count):
                self.step(end)
                issued += 1
            yield self.token(first + number)

    def _chosen_by_host(self, count: int, end: End) -> Generator[int, None, None]:
        if end != "greedy":
            raise ps.InvalidValue("the host takes the likeliest token, and draws none: temperature")
        for _ in range(count):
            self._chosen = int(self.logits([self._chosen])[0].argmax())
            yield self._chosen

    def read(self, ids: Sequence[int], end: End) -> None:
        """Take in tokens; with an end other than "nothing", choose the one that comes next."""
        start = 0
        for count in self._parts(len(ids)):
            self._write(ids[start : start + count])
            start += count
            self._do(count, True, end if start == len(ids) else "nothing")

    def step(self, end: End) -> None:
        """Take in the token that was chosen last, and choose the next, on the device."""
        self._do(1, False, end)

    def token(self, number: int) -> int:
        """The token that was chosen as number so and so; waits for the step that chose it."""
        self._before_access()
        return int(self._log[number].item())

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after each of these tokens, which come next; waits for them."""
        vocabulary = self.config.vocabulary
        if self._every is None:
            rows = max(1, min(self.batch, _LOGITS // (4 * vocabulary)))
            self._every = self.device.empty((rows, vocabulary), name="all logits", role="output")
        rows = len(self._every)
        found = np.empty((len(ids), vocabulary), np.float32)
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
            self._write(part)
            self._do(len(part), True, "every")
            self._before_access()
            found[start : start + len(part)] = self._every[: len(part)].numpy()
        return found

    def close(self) -> None:
        """Give the memory back once work in flight is done with it. Safe to call twice."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    # The host's part.

    def _write(self, ids: Sequence[int]) -> None:
        self._before_access()
        self._progress.tokens[: len(ids)].write(np.array(ids, np.uint32))

    def _before_access(self) -> None:
        if not self.mechanisms.access:
            self.device.synchronize()

    def _do(self, count: int, prompt: bool, end: str) -> None:
        rows = self.position + count
        if self.mechanisms.records_once:
            self._graph(count, prompt, end, rows).replay()
            return
        if not self.mechanisms.scratch:
            self._make_activations()
        with self._record(count, prompt, end, self._reach(count, rows)) as graph:
            graph.replay()

    # Recording.

    def _reach(self, count: int, rows: int) -> int:
        """How far a batch must look that ends with so many rows in the cache, or a bit farther."""
        return self._kernels.layers.reach(self._turned, self._caches[0], rows, count=count)

    def _graph(self, count: int, prompt: bool, end: str, rows: int) -> ps.Graph:
        reach = self._reach(count, rows)
        key = (count, prompt, end, reach)
        graph = self._graphs.pop(key, None)
        if graph is None:
            if len(self._graphs) >= _GRAPHS:
                self._graphs.pop(next(iter(self._graphs))).close()
            graph = self._record(count, prompt, end, reach)
        self._graphs[key] = graph  # at the end, as the one used last
        return graph

    def _record(self, count: int, prompt: bool, end: str, reach: int) -> ps.Graph:
        progress, layers = self._progress, self._kernels.layers
        with self.device.record() as graph:
            if prompt:
                layers.remember(progress.tokens, progress.history, progress.state, count=count)
            self._layers(count, reach)
            self._cache.advance(count, axis=1)
            if end in ("greedy", "sampled"):
                self._head(self._logits, count - 1, 1)
                self._sampler.sample(
                    self._logits.ravel(), progress, count=count, greedy=end == "greedy"
                )
                self._log.advance(1)
            else:
                if end == "every":
                    assert self._every is not None
                    self._head(self._every, 0, count)
                layers.advance(progress.state, count=count)
        return graph

    def _layers(self, count: int, reach: int) -> None:
        """The embedding, and all layers: the last is in x."""
        products, x = self._kernels.products, self._x
        products.embed(self._weights["token_embd.weight"], self._progress.tokens, x, count)
        for number in range(self.config.layers):
            self._attention(number, count, reach)
            self._feed_forward(number, count)

    def _attention(self, number: int, count: int, reach: int) -> None:
        products, layers, config = self._kernels.products, self._kernels.layers, self.config
        progress, cache = self._progress, self._caches[number]
        weight = _Block(self._weights, number)
        layers.rmsnorm(self._x, weight["attn_norm"], self._h, count=count, eps=config.norm_epsilon)
        for name, into in (("attn_q", self._q), ("attn_k", self._k), ("attn_v", self._v)):
            products.multiply(weight[name], self._h, into, count, bias=weight.bias(name))
        layers.rope_store(
            self._q, self._k, self._v, self._turned, cache, self._angles, progress.state,
            count=count, layout=config.rope_layout, q_norm=weight.get("attn_q_norm"),
            k_norm=weight.get("attn_k_norm"), eps=config.norm_epsilon,
        )  # fmt: skip
        layers.attention(self._turned, cache, progress.state, self._mixed, count=count, reach=reach)
        products.multiply(
            weight["attn_output"], self._mixed, self._x, count, bias=weight.bias("attn_output"),
            add=True,
        )  # fmt: skip

    def _feed_forward(self, number: int, count: int) -> None:
        products, layers, config = self._kernels.products, self._kernels.layers, self.config
        weight = _Block(self._weights, number)
        layers.rmsnorm(self._x, weight["ffn_norm"], self._h, count=count, eps=config.norm_epsilon)
        products.gated(weight["ffn_gate"], weight["ffn_up"], self._h, self._gated, count)
        products.multiply(weight["ffn_down"], self._gated, self._x, count, add=True)

    def _head(self, logits: ps.Array, first: int, count: int) -> None:
        """The logits of some tokens of the batch."""
        norm = self._weights["output_norm.weight"]
        eps = self.config.norm_epsilon
        self._kernels.layers.rmsnorm(self._x, norm, self._h, count=count, eps=eps, first=first)
        self._kernels.products.multiply(self._output, self._h, logits, count)


class _Block:
    """The weights of one layer, by what they do in it."""

    def __init__(self, weights: Mapping[str, Weight], number: int) -> None:
        self._weights = weights
        self._prefix = f"blk.{number}."

    def __getitem__(self, name: str) -> Weight:
        return self._weights[f"{self._prefix}{name}.weight"]

    def get(self, name: str) -> Weight | None:
        return self._weights.get(f"{self._prefix}{name}.weight")

    def bias(self, name: str) -> Weight | None:
        return self._weights.get(f"{self._prefix}{name}.bias")
