"""A model's layers on a device, and the state of one generation over them.

Work that repeats is recorded once as a graph and replayed: prefill of a batch of the prompt, and
the decode step that turns one token into the next. A step is recorded again only when the KV cache
has outgrown the rows that its attention was recorded to read. Nothing in a graph changes between
replays: kernels read the position from device memory, append to the KV cache there, and write the
sampled token where the next step reads its input. The host replays, and reads one token after the
other from a log.

KV cache and log are append-only arrays that every replay advances. So the ledger knows which row
each replay writes, and reading a token waits for the step that sampled it, not for later steps.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.config import Config
from penstock.llm.device_state import STATE_WORDS, DeviceState
from penstock.llm.kernels import Compiled
from penstock.llm.layers import Cache, Layers
from penstock.llm.optimizations import ALL, Mechanisms
from penstock.llm.products import Products
from penstock.llm.sampling import Sampler, Sampling
from penstock.llm.variants import Variants
from penstock.llm.weights import Weight

End: TypeAlias = Literal["nothing", "greedy", "sampled"]
_HISTORY = 1024  # tokens that a repetition penalty can look back at
_GRAPHS = 24  # most that are kept; the least recently used goes first
_SURE = 1024  # steps to record ahead for; graphs for later steps are recorded when they come
_EXACT = 4  # a batch of up to this many tokens may have any size; larger ones are powers of two
_LOGITS = 1 << 24  # bytes of logits computed at a time by `Network.logits`


class Kernels:
    """The kernels that all networks of one device share; each is compiled on first use."""

    def __init__(
        self,
        device: ps.Device,
        variants: Variants | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        self.device = device
        self.variants = variants or Variants.expected(device)
        self.products = Products(
            device, way=self.variants.decode, batch_way=self.variants.batch, compiled=compiled
        )
        self.layers = Layers(device)


class Network:
    """Runs one generation at a time: owns its activations, KV cache, token log and graphs."""

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
        self._chosen = 0  # the last token, where the host samples instead of the device
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
    def variants(self) -> Variants:
        """The ways by which this network computes products."""
        return self._kernels.variants

    @property
    def position(self) -> int:
        """How many tokens the KV cache holds, those of replays in flight included."""
        return self._cache.length

    def restart(self, settings: Sampling) -> None:
        """Empty the KV cache and the log, and sample by these settings. Does not wait."""
        self._cache.reset()
        self._log.reset()
        self._progress.restart()
        self._sampler.set(settings)

    def prepare(self, count: int, steps: int, end: End) -> None:
        """Compile and record the graphs to prefill `count` tokens and decode `steps` more."""
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
        """Split `count` tokens into batches. Few sizes occur, because each needs its own graph."""
        parts = [self.batch] * (count // self.batch)
        left = count % self.batch
        while left > _EXACT:
            parts.append(1 << (left.bit_length() - 1))
            left -= parts[-1]
        return [*parts, left] if left else parts

    def tokens(self, ids: Sequence[int], most: int, end: End) -> Generator[int, None, None]:
        """Prefill a prompt, and yield up to `most` generated tokens as they complete.

        Stays a few steps ahead of the token it yields, so that the device works while the host
        handles that token. If the caller stops early, the results of the steps ahead are dropped.
        """
        if not self.mechanisms.sampling:
            self.read(ids[:-1], "nothing")
            self._chosen = ids[-1]
            yield from self._chosen_by_host(most, end)
        elif most:
            self.read(ids, end)
            yield from self._in_turn(0, 1, most, end)

    def steps(self, count: int, end: End) -> Generator[int, None, None]:
        """Yield `count` more tokens after those generated so far, as `tokens` does."""
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
            raise ps.InvalidValue("sampling on the host is greedy only: use temperature 0")
        for _ in range(count):
            self._chosen = int(self.logits([self._chosen])[0].argmax())
            yield self._chosen

    def read(self, ids: Sequence[int], end: End) -> None:
        """Prefill tokens; with an `end` other than "nothing", sample the next one."""
        start = 0
        for count in self._parts(len(ids)):
            self._write(ids[start : start + count])
            start += count
            self._do(count, True, end if start == len(ids) else "nothing")

    def step(self, end: End) -> None:
        """Issue one decode step: feed the last sampled token, sample the next. Does not wait."""
        self._do(1, False, end)

    def token(self, number: int) -> int:
        """Return generated token `number`; waits for the step that sampled it."""
        self._before_access()
        return int(self._log[number].item())

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Append these tokens, and return the logits after each of them; waits for the device."""
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
        """Release the graphs once replays in flight complete. Safe to call twice."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    # Transfers and replays.

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
        """Return the `reach` of attention for a batch that leaves `rows` rows in the KV cache."""
        return self._kernels.layers.reach(self._turned, self._caches[0], rows, count=count)

    def _graph(self, count: int, prompt: bool, end: str, rows: int) -> ps.Graph:
        reach = self._reach(count, rows)
        key = (count, prompt, end, reach)
        graph = self._graphs.pop(key, None)
        if graph is None:
            if len(self._graphs) >= _GRAPHS:
                self._graphs.pop(next(iter(self._graphs))).close()
            graph = self._record(count, prompt, end, reach)
        self._graphs[key] = graph  # last, as the most recently used
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
        """Run the embedding and all layers; leaves the hidden state in `_x`."""
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
        """Compute the logits of `count` tokens of the batch, from token `first` on."""
        norm = self._weights["output_norm.weight"]
        eps = self.config.norm_epsilon
        self._kernels.layers.rmsnorm(self._x, norm, self._h, count=count, eps=eps, first=first)
        self._kernels.products.multiply(self._output, self._h, logits, count)


class _Block:
    """The weights of one layer, by their GGUF names without the layer prefix."""

    def __init__(self, weights: Mapping[str, Weight], number: int) -> None:
        self._weights = weights
        self._prefix = f"blk.{number}."

    def __getitem__(self, name: str) -> Weight:
        return self._weights[f"{self._prefix}{name}.weight"]

    def get(self, name: str) -> Weight | None:
        return self._weights.get(f"{self._prefix}{name}.weight")

    def bias(self, name: str) -> Weight | None:
        return self._weights.get(f"{self._prefix}{name}.bias")
