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

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

import penstock as ps
from penstock.llm import batches
from penstock.llm.cached_tokens import CachedTokens
from penstock.llm.config import Config
from penstock.llm.delta_layers import Activations, DeltaLayers
from penstock.llm.device_state import NO_TOKEN, STATE_WORDS, DeviceState
from penstock.llm.errors import not_finite
from penstock.llm.feed_forward import Block, FeedForward
from penstock.llm.kv_cache import Cache
from penstock.llm.network_kernels import Kernels
from penstock.llm.network_outputs import Outputs
from penstock.llm.optimizations import ALL, Mechanisms
from penstock.llm.recurrent_memory import Held, RecurrentMemory
from penstock.llm.sampling import ROW, Sampler, ranks_in
from penstock.llm.sampling_settings import Extra, Sampling
from penstock.llm.variants import Variants
from penstock.llm.weights import Weight

End: TypeAlias = Literal["nothing", "greedy", "sampled"]
#: What a graph is recorded for: tokens, whether they are a prompt's, how it ends, rows it may read.
Key: TypeAlias = tuple[int, bool, str, int]
#: Makes a context that is entered while kernels are compiled and graphs recorded.
Apart: TypeAlias = Callable[[], AbstractContextManager[object]]
_HISTORY = 1024  # tokens that a repetition penalty can look back at
_GRAPHS = 24  # most that are kept; the least recently used goes first
_SURE = 1024  # steps to record ahead for; graphs for later steps are recorded when they come
_MOST_BATCH = 1 << 15  # tokens: an invocation of a DeltaNet layer's convolution takes them all


class Network(Outputs):
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
        self.batch = min(batch, self.context, _MOST_BATCH)
        self._kernels = kernels
        self._weights = weights
        self._angles = angles
        self._output = weights.get("output.weight") or weights["token_embd.weight"]
        self._delta: DeltaLayers | None = None
        self._memory: RecurrentMemory | None = None
        if config.delta_net is not None:
            self._delta = DeltaLayers(
                device, config.delta_net, kernels.layers.traits, compiled=kernels.compiled
            )
            self._memory = RecurrentMemory(device, config.delta_net)
        self._make_activations()
        self._chosen = 0  # the last token, where the host samples instead of the device
        with_cache = config.attention_layers
        self._cache, caches = Cache.of_layers(
            device, len(with_cache), self.context, config.kv_heads, config.head_size,
            cache_type=cache_type,
        )  # fmt: skip
        self._caches = dict(zip(with_cache, caches, strict=True))
        self._log = device.empty(self.context + 1, np.uint32, name="tokens", role="append")
        self._progress = DeviceState(
            state=device.zeros(STATE_WORDS, np.uint32, name="state"),
            tokens=device.zeros(self.batch, np.uint32, name="batch"),
            history=device.zeros(_HISTORY, np.uint32, name="history"),
            ring=self._log,
        )
        self._sampler = Sampler(device, config.vocabulary, compiled=kernels.compiled)
        self._cached = CachedTokens()
        self._extras: tuple[Extra, ...] = ()
        self._ranks: ps.Array | None = None  # log-probabilities, a row for each token of the log
        self._graphs: dict[Key, ps.Graph] = {}
        self._recorded_by = kernels.variants
        self._apart: Apart = nullcontext

    def _make_activations(self) -> None:
        config = self.config
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size

        def scratch(name: str, columns: int) -> ps.Array:
            return self.device.empty((self.batch, columns), name=name, role="scratch")

        self._x, self._h = scratch("x", config.hidden), scratch("h", config.hidden)
        self._q = scratch("q", queries * (1 + config.gated))
        self._turned = scratch("q turned", queries)
        self._k, self._v = scratch("k", keys), scratch("v", keys)
        self._mixed = scratch("mixed", queries)
        self._ffn = FeedForward(self.device, config, self.batch)
        self._logits = self.device.empty((1, config.vocabulary), name="logits", role="scratch")
        if config.delta_net is not None:
            self._for_delta = Activations.new(self.device, config.delta_net, self.batch)

    @property
    def variants(self) -> Variants:
        """The ways by which this network computes products."""
        return self._kernels.variants

    @property
    def position(self) -> int:
        """How many tokens the KV cache holds, those of replays in flight included."""
        return self._cache.length

    @property
    def recurrent(self) -> Held | None:
        """What the memory of DeltaNet layers takes; None if there are none."""
        return None if self._memory is None else self._memory.held

    def restart(self, settings: Sampling, keep: int = 0) -> int:
        """Go back to the first `keep` tokens, and sample by these settings. Does not wait.

        Returns how many tokens stay. Fewer than `keep` if the memory of DeltaNet layers has no
        state as of that token any more: then the caller reads the tokens after them again.
        """
        if not 0 <= keep <= self.position:
            raise ps.InvalidValue(f"keep={keep} of the {self.position} tokens that were read")
        self._sampler.set(settings)
        if self._memory is not None:
            keep = self._memory.go_back(keep)
        self._cached.keep(keep)
        self._cache.reset(keep=keep, axis=1)
        self._log.reset()
        self._progress.restart(keep, self._cached.last(_HISTORY))
        self._extras = settings.extras
        if "logprobs" in self._extras:
            if self._ranks is None:
                shape = (self.context + 1, ROW["ROW"])
                self._ranks = self.device.empty(shape, np.uint32, name="logprobs", role="append")
            self._ranks.reset()
        return keep

    def common(self, ids: Sequence[int]) -> int:
        """How many of the first of these tokens the KV cache holds, but not the last of them.

        The last token is always read: its logits are those of the next one.
        """
        return self._cached.common(ids[:-1], self.position)

    @property
    def cached(self) -> int:
        """How many of the tokens in the KV cache the host knows."""
        return len(self._cached)

    def prepare(self, count: int, steps: int, end: End) -> None:
        """Compile and record the graphs to prefill `count` tokens and decode `steps` more."""
        if not self.mechanisms.records_once:
            return
        keys: list[Key] = []
        rows, read = self.position, self.position + count
        for part in batches.split(count, self.batch):
            size = batches.padded(part, min(self.batch, self.context - rows))
            reach = self._reach(size, rows + size)
            rows += part
            way = self._with_extras(end if rows == read else "nothing")
            keys.append((size, True, way, reach))
        rows, last = read + 1, min(read + min(steps, _SURE), self.context)
        while rows <= last:
            keys.append((1, False, self._with_extras(end), self._reach(1, rows)))
            rows = keys[-1][-1] + 1
        self._make(keys)

    def _make(self, keys: Sequence[Key]) -> None:
        """Record the graphs that are missing, after compiling their kernels in parallel."""
        if self._recorded_by != self._kernels.variants:
            self.close()
            self._recorded_by = self._kernels.variants
        missing = [key for key in dict.fromkeys(keys) if key not in self._graphs]
        compiled = self._kernels.compiled
        with compiled.listing() as listed:
            for key in missing:
                self._record(*key).close()
        compiled.compile(listed, show=self._kernels.show_progress)
        for key in missing:
            self._graph(key)

    def tokens(
        self, ids: Sequence[int], most: int, end: End, apart: Apart = nullcontext
    ) -> Generator[int, None, None]:
        """Prefill a prompt, and yield up to `most` generated tokens as they complete.

        Stays a few steps ahead of the token it yields, so that the device works while the host
        handles that token. If the caller stops early, the results of the steps ahead are dropped.
        Where the step is yet to be compiled, the first token comes before that. `apart` encloses
        what is compiled and recorded, so that a caller can leave it out of what it measures.
        """
        self._apart = apart
        if not self.mechanisms.sampling:
            self.read(ids[:-1], "nothing")
            self._chosen = ids[-1]
            yield from self._chosen_by_host(most, end)
        elif most:
            self.read(ids, end)
            self._flush()
            early = most > 1 and self._must_record_step(end)
            if early:
                yield self.token(0)
                with apart():
                    self._kernels.settle()
                    self.prepare(0, most - 1, end)
            yield from self._in_turn(int(early), 1 - early, most - early, end)

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
                self._flush()
                issued += 1
            yield self.token(first + number)

    def _chosen_by_host(self, count: int, end: End) -> Generator[int, None, None]:
        if end != "greedy" or self._extras:
            raise ps.InvalidValue(
                "sampling on the host is greedy only: use temperature 0, no logprobs, no "
                "logit_bias, and no presence or frequency penalty"
            )
        for _ in range(count):
            logits = self.logits([self._chosen])[0]
            if np.isnan(logits).any():
                self._cached.keep(0)
                raise not_finite(self.position)
            self._chosen = int(logits.argmax())
            yield self._chosen

    def read(self, ids: Sequence[int], end: End) -> None:
        """Prefill tokens; with an `end` other than "nothing", sample the next one."""
        start = 0
        for count in batches.split(len(ids), self.batch):
            is_last = start + count == len(ids)
            self._append(ids[start : start + count], end if is_last else "nothing")
            start += count
        if self._memory is not None:
            self._memory.keep(self.position)

    def step(self, end: End) -> None:
        """Issue one decode step: feed the last sampled token, sample the next. Does not wait."""
        self._do(1, False, end)

    def token(self, number: int) -> int:
        """Return generated token `number`; waits for the step that sampled it.

        Raises `ModelError` if its logits are not finite, and then forgets the KV cache, whose rows
        may not be finite, either.
        """
        self._before_access()
        token = int(self._log[number].item())
        position = self.position - self._log.length + 1 + number
        if token == NO_TOKEN:
            self._cached.keep(0)
            raise not_finite(position)
        self._cached.note_sampled(token, position)
        return token

    def logprobs(self, number: int, count: int) -> tuple[float, list[int], list[float]]:
        """The log-probability of generated token `number`, and the `count` likeliest with theirs.

        Waits for the step that sampled it, and for no other.
        """
        if self._ranks is None:
            raise ps.InvalidValue("no log-probabilities: restart with Sampling(logprobs=…)")
        self._before_access()
        return ranks_in(self._ranks[number].numpy(), count)

    def close(self) -> None:
        """Release the graphs once replays in flight complete. Safe to call twice."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    # Transfers and replays.

    def _append(self, ids: Sequence[int], end: str) -> None:
        """Write a batch of tokens, and issue the step that reads them."""
        size = len(ids)
        if end != "every":
            size = batches.padded(size, min(self.batch, self.context - self.position))
        batch = np.full(size, NO_TOKEN, np.uint32)
        batch[: len(ids)] = ids
        self._cached.note_read(ids, self.position)
        self._before_access()
        self._progress.tokens[:size].write(batch)
        self._do(size, True, end, size - len(ids))

    def _before_access(self) -> None:
        if not self.mechanisms.access:
            self.device.synchronize()

    def _do(self, count: int, prompt: bool, end: str, padding: int = 0) -> None:
        rows = self.position + count
        key = (count, prompt, self._with_extras(end), self._reach(count, rows))
        rows -= padding
        if self._memory is not None:
            self._memory.begin(rows)
        if self.mechanisms.records_once:
            with nullcontext() if key in self._graphs else self._apart():
                graph = self._graph(key)
            graph.replay()
        else:
            if not self.mechanisms.scratch:
                self._make_activations()
            with self._record(*key) as graph:
                graph.replay()
        if padding:
            self._cache.reset(keep=rows, axis=1)
        if self._memory is not None:
            self._memory.advance(rows)

    def _flush(self) -> None:
        """Submit what was issued, so that a token does not wait for the steps issued behind it."""
        self.device.default_stream.flush()

    def _must_record_step(self, end: End) -> bool:
        """Whether the next step has no graph yet, and gets one."""
        key = (1, False, self._with_extras(end), self._reach(1, self.position + 1))
        return self.mechanisms.records_once and key not in self._graphs

    # Recording.

    def _with_extras(self, end: str) -> str:
        """How a graph ends that samples by the present settings: their extras included."""
        return "+".join([end, *self._extras]) if end in ("greedy", "sampled") else end

    def _reach(self, count: int, rows: int) -> int:
        """Return the `reach` of attention for a batch that leaves `rows` rows in the KV cache."""
        return self._kernels.layers.reach(self._turned, self._some_cache, rows, count=count)

    @cached_property
    def _some_cache(self) -> Cache:
        return next(iter(self._caches.values()))

    def _graph(self, key: Key) -> ps.Graph:
        graph = self._graphs.pop(key, None)
        if graph is None:
            if len(self._graphs) >= _GRAPHS:
                self._graphs.pop(next(iter(self._graphs))).close()
            graph = self._record(*key)
            graph.encode()
        self._graphs[key] = graph  # last, as the most recently used
        return graph

    def _record(self, count: int, prompt: bool, end: str, reach: int) -> ps.Graph:
        progress, layers = self._progress, self._kernels.layers
        with self.device.record() as graph:
            if prompt:
                layers.remember(progress.tokens, progress.history, progress.state, count=count)
            self._layers(count, reach)
            self._cache.advance(count, axis=1)
            way, *extras = end.split("+")  # `extras` are those of the settings, too
            if way in ("greedy", "sampled"):
                self._head(self._logits, count - 1, 1, padded=count > 1)
                self._sampler.sample(
                    self._logits.ravel(), progress, count=count, greedy=way == "greedy",
                    extras=self._extras, rows=self._ranks,
                )  # fmt: skip
                self._log.advance(1)
                if self._ranks is not None and "logprobs" in extras:
                    self._ranks.advance(1)
            else:
                if end == "hidden":
                    assert self._hidden is not None
                    self._output_norm(self._hidden, 0, count)
                elif end == "every":
                    assert self._every is not None
                    self._head(self._every, 0, count)
                layers.advance(progress.state, count=count)
        return graph

    def _layers(self, count: int, reach: int) -> None:
        """Run the embedding and all layers; leaves the hidden state in `_x`."""
        products, x = self._kernels.products, self._x
        products.embed(self._weights["token_embd.weight"], self._progress.tokens, x, count)
        every = range(self.config.layers)
        for number in self._unlike if self._kernels.compiled.is_listing else every:
            if number in self._caches:
                self._attention(number, count, reach)
            else:
                self._delta_layer(number, count)
            self._feed_forward(number, count)

    @cached_property
    def _unlike(self) -> Collection[int]:
        """One of each sort of layer; layers with weights of the same kinds have the same kernels.

        And the last, whose weights may end the file, where products read them differently.
        """
        found: dict[object, int] = {}
        for number in range(self.config.layers):
            prefix = f"blk.{number}."
            weights = [w for name, w in self._weights.items() if name.startswith(prefix)]
            found.setdefault(tuple((w.kind, w.experts, w.rows, w.columns) for w in weights), number)
        return sorted({*found.values(), self.config.layers - 1})

    def _attention(self, number: int, count: int, reach: int) -> None:
        products, layers, config = self._kernels.products, self._kernels.layers, self.config
        progress, cache = self._progress, self._caches[number]
        weight = Block(self._weights, number)
        self._norm(weight["attn_norm"], count)
        with products.same_input():
            for name, into in (("attn_q", self._q), ("attn_k", self._k), ("attn_v", self._v)):
                products.multiply(weight[name], self._h, into, count, bias=weight.bias(name))
        layers.rope_store(
            self._q, self._k, self._v, self._turned, cache, self._angles, progress.state,
            count=count, layout=config.rope_layout, q_norm=weight.get("attn_q_norm"),
            k_norm=weight.get("attn_k_norm"), eps=config.norm_epsilon, shift=config.norm_shift,
            gated=config.gated,
        )  # fmt: skip
        layers.attention(self._turned, cache, progress.state, self._mixed, count=count, reach=reach)
        if config.gated:
            layers.gate(self._q, self._mixed, head_size=config.head_size, count=count)
        products.multiply(
            weight["attn_output"], self._mixed, self._x, count, bias=weight.bias("attn_output"),
            add=True,
        )  # fmt: skip

    def _delta_layer(self, number: int, count: int) -> None:
        """Run a gated DeltaNet layer, which takes the place of attention."""
        products, delta, acts = self._kernels.products, self._delta, self._for_delta
        assert delta is not None
        assert self._memory is not None
        memory, state = self._memory.of_layer[number], self._progress.state
        weight = Block(self._weights, number)
        self._norm(weight["attn_norm"], count)
        with products.same_input():
            for name, into in acts.of_products(delta.net):
                products.multiply(weight[name], self._h, into, count)
        delta.convolve(acts, weight["ssm_conv1d"], memory, state, count=count)
        rates, bias = (
            self._weights[f"blk.{number}.ssm_a"],
            self._weights[f"blk.{number}.ssm_dt.bias"],
        )
        delta.scan(acts, rates, bias, memory, state, count=count)
        delta.finish(acts, weight["ssm_norm"], count=count, eps=self.config.norm_epsilon)
        products.multiply(weight["ssm_out"], acts.y, self._x, count, add=True)

    def _feed_forward(self, number: int, count: int) -> None:
        weight = Block(self._weights, number)
        self._norm(weight["ffn_norm"], count)
        self._ffn.add(
            self._kernels.products, self._kernels.routing, weight, self._h, self._x, count
        )

    def _head(self, logits: ps.Array, first: int, count: int, *, padded: bool = False) -> None:
        """Compute the logits of `count` tokens of the batch, from token `first` on.

        If it may be `padded`, of tokens that are as many before these as it has padding.
        """
        self._output_norm(self._h, first, count, padded=padded)
        self._kernels.products.multiply(self._output, self._h, logits, count)

    def _output_norm(self, into: ps.Array, first: int, count: int, *, padded: bool = False) -> None:
        """Normalise the final hidden state of `count` tokens of the batch, from `first` on."""
        self._norm(self._weights["output_norm.weight"], count, first, into, padded=padded)

    def _norm(
        self, weight: Weight, count: int, first: int = 0, into: ps.Array | None = None, *,
        padded: bool = False,
    ) -> None:  # fmt: skip
        """Normalise rows of `_x`, from `first` on, into `_h` or another array."""
        config = self.config
        self._kernels.layers.rmsnorm(
            self._x, weight, self._h if into is None else into, count=count, first=first,
            eps=config.norm_epsilon, shift=config.norm_shift,
            padded=self._progress.state if padded else None,
        )  # fmt: skip
