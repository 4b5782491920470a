"""The feed-forward part of a layer: one gated network, or a mixture of experts.

`FeedForward.add` is all that a network calls; which of the two a layer has, its weights tell.
"""

from __future__ import annotations

from collections.abc import Mapping

import penstock as ps
from penstock.llm.config import Config
from penstock.llm.mixture import Mixture
from penstock.llm.products import Products
from penstock.llm.routing import Room, Routing, most_tokens
from penstock.llm.weights import Weight


class Block:
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


class FeedForward:
    """The feed-forward parts of all layers, and the scratch that they use in turn."""

    def __init__(self, device: ps.Device, config: Config, batch: int) -> None:
        dense = any(config.mixture_of(number) is None for number in range(config.layers))
        self._gated = _scratch(device, "gated", batch, config.ffn) if dense else None
        self._experts = None
        if config.mixture is not None:
            tokens = min(batch, most_tokens(config.mixture))
            self._experts = _Experts(device, config.mixture, config.hidden, tokens)

    def add(
        self,
        products: Products,
        routing: Routing,
        block: Block,
        h: ps.Array,
        x: ps.Array,
        count: int,
    ) -> None:
        """Add to x what a layer makes of h, its normalised input, for `count` tokens."""
        if block.get("ffn_gate_inp") is None:
            assert self._gated is not None
            products.gated(block["ffn_gate"], block["ffn_up"], h, self._gated, count)
            products.multiply(block["ffn_down"], self._gated, x, count, add=True)
            return
        assert self._experts is not None
        for first in range(0, count, self._experts.tokens):
            tokens = min(self._experts.tokens, count - first)
            some = slice(first, first + tokens)
            self._experts.add(products, routing, block, h[some], x[some], tokens)


class _Experts:
    """A mixture of experts, for up to `tokens` tokens at a time."""

    def __init__(self, device: ps.Device, mixture: Mixture, hidden: int, tokens: int) -> None:
        rows, shared = tokens * mixture.chosen, mixture.shared_ffn
        self.tokens = tokens
        self._mixture = mixture
        self._room = Room(device, mixture, tokens)
        self._logits = _scratch(device, "router", tokens, mixture.experts)
        self._gated = _scratch(device, "gated by experts", rows, mixture.ffn)
        self._results = _scratch(device, "experts' results", rows, hidden)
        self._common: tuple[ps.Array, ps.Array, ps.Array] | None = None
        if shared:
            self._common = (
                _scratch(device, "gated by all", tokens, shared),
                _scratch(device, "result of all", tokens, hidden),
                _scratch(device, "gates of all", tokens, 1),
            )

    def add(
        self,
        products: Products,
        routing: Routing,
        block: Block,
        h: ps.Array,
        x: ps.Array,
        count: int,
    ) -> None:
        """As `FeedForward.add`."""
        products.multiply(block["ffn_gate_inp"], h, self._logits, count)
        routed = routing.route(self._logits, self._mixture, self._room, count)
        gate, up = block["ffn_gate_exps"], block["ffn_up_exps"]
        products.gated_experts(gate, up, h, self._gated, routed)
        down = block["ffn_down_exps"]
        products.multiply_experts(down, self._gated, self._results, routed, gather=False)
        common = None
        if self._common is not None:
            gated, result, gates = self._common
            products.multiply(block["ffn_gate_inp_shexp"], h, gates, count)
            products.gated(block["ffn_gate_shexp"], block["ffn_up_shexp"], h, gated, count)
            products.multiply(block["ffn_down_shexp"], gated, result, count)
            common = result, gates
        routing.mix(routed, self._results, x, common)


def _scratch(device: ps.Device, name: str, rows: int, columns: int) -> ps.Array:
    return device.empty((rows, columns), name=name, role="scratch")
