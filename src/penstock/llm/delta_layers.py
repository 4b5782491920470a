"""The kernels of gated DeltaNet layers, except their matrix products.

A prompt is read in chunks: within a chunk of `CHUNK` tokens everything but the forward substitution
is a product of small matrices, and the state is read and written once for the chunk
(shaders/delta_scan.comp). A single token takes the same steps in one launch.

As everywhere in a recorded step, kernels read the position from device memory: it decides which
slots of the layer's memory they read and write (`llm.recurrent_memory`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import penstock as ps
from penstock.llm.compiling import Compiled
from penstock.llm.delta_net import DeltaNet
from penstock.llm.device_state import STATE
from penstock.llm.kernels import MOST_TURNS, Shader
from penstock.llm.layers import VECTOR_KINDS, vector_of
from penstock.llm.recurrent_memory import Sizes
from penstock.llm.traits import Defines, Traits
from penstock.llm.weights import Weight

CHUNK = 16  # tokens; a batch of fewer has a chunk of four
_SMALL_CHUNK = 4
#: Added to the squared length of queries and keys, in every known model.
_LENGTH_EPSILON = 1e-6


class Activations(NamedTuple):
    """What passes between the kernels of a layer: float32, a row for each token."""

    mixed: (
        ps.Array
    )  # queries, keys and values before the convolution; and gates, if these are fused
    gates: ps.Array
    writes: ps.Array
    fades: ps.Array
    qk: ps.Array
    v: ps.Array
    factors: ps.Array
    pairs: ps.Array
    y: ps.Array

    def of_products(self, net: DeltaNet) -> list[tuple[str, ps.Array]]:
        """Return the matrices of a layer that its input is multiplied with, and what they fill."""
        found = [("ssm_in", self.mixed)] if net.fused else [
            ("attn_qkv", self.mixed), ("attn_gate", self.gates)
        ]  # fmt: skip
        if net.fused_factors:
            return [*found, ("ssm_ba", self.writes)]
        return [*found, ("ssm_beta", self.writes), ("ssm_alpha", self.fades)]

    @classmethod
    def new(cls, device: ps.Device, net: DeltaNet, batch: int) -> Activations:
        def scratch(name: str, columns: int) -> ps.Array:
            return device.empty((batch, columns), name=name, role="scratch")

        mixed = scratch("mixed qkv", net.channels + (net.values if net.fused else 0))
        writes = scratch("writes", net.value_heads * (2 if net.fused_factors else 1))
        return cls(
            mixed=mixed,
            gates=mixed if net.fused else scratch("gates", net.values),
            writes=writes,
            fades=writes if net.fused_factors else scratch("fades", net.value_heads),
            qk=scratch("delta qk", 2 * net.keys),
            v=scratch("delta v", net.values),
            factors=scratch("factors", 4 * net.value_heads),
            pairs=scratch("pairs", net.value_heads * 2 * CHUNK),
            y=scratch("delta y", net.values),
        )


class DeltaLayers:
    """Launches the kernels on one device; compiles each on first use."""

    def __init__(
        self, device: ps.Device, net: DeltaNet, traits: Traits, *, compiled: Compiled | None = None
    ) -> None:
        self.net = net
        self.traits = traits
        self._device = device
        self._kernel = compiled or Compiled(device)
        limits: Any = device.info.limits
        has_formats = {"r32f", "rgba32f"} <= set(device.info.texel_formats)
        # Numbers that a texel buffer holds, wherever they begin; 0: there are none.
        self._most_texels: int = 0
        if traits.texels and has_formats:
            self._most_texels = limits["texel_elements"] - limits["texel_alignment"] // 4

    def convolve(
        self, acts: Activations, weight: Weight, memory: ps.Array, state: ps.Array, *, count: int
    ) -> None:
        """Convolve `mixed` into `qk` and `v`; moves the window of the memory on."""
        net = self.net
        words, first = vector_of(weight, net.channels, net.taps)
        bound = self._bound(mixed=acts.mixed, memory=memory, qk=acts.qk, v=acts.v)
        self._kernel(convolve(self.traits, net, weight.kind, texels=bound.texels))(
            **bound.arguments, words=words, state=state, count=count, first=first,
            stride=acts.mixed.shape[-1],
            threads=net.channels,
        )  # fmt: skip

    def scan(
        self, acts: Activations, rates: Weight, bias: Weight, memory: ps.Array, state: ps.Array,
        *, count: int,
    ) -> None:  # fmt: skip
        """Apply the delta rule to `qk` and `v`, into `y`; moves the states of the memory on."""
        net, traits = self.net, self.traits
        rate_words, rate_first = vector_of(rates, 1, net.value_heads)
        bias_words, bias_first = vector_of(bias, 1, net.value_heads)
        vectors = {
            "rate_words": rate_words, "rate_first": rate_first, "bias_words": bias_words,
            "bias_first": bias_first, "writes": acts.writes, "fades": acts.fades,
        }  # fmt: skip
        kinds = rates.kind, bias.kind
        four = ("qk", "memory", "factors", "pairs")
        if count == 1:
            bound = self._bound(four, qk=acts.qk, v=acts.v, memory=memory, y=acts.y)
            kernel = self._kernel(scan_one(traits, net, kinds, texels=bound.texels))
            groups = (-(-net.value_size // kernel.local_size[0]), net.value_heads)
            kernel(**bound.arguments, **vectors, state=state, groups=groups)
            return
        chunk = CHUNK if count > _SMALL_CHUNK else _SMALL_CHUNK
        chunks = -(-count // chunk)
        kernel = self._kernel(factors(traits, net, kinds, chunk))
        kernel(
            **vectors, factors=acts.factors, state=state, count=count, stride=acts.writes.shape[-1],
            groups=(-(-net.value_heads // kernel.local_size[0]), chunks),
        )  # fmt: skip
        self._kernel(normalize(traits, net))(qk=acts.qk, groups=(2 * net.key_heads, count))
        bound = self._bound(four, qk=acts.qk)
        kernel = self._kernel(pairs(traits, net, chunk, texels=bound.texels))
        kernel(
            **bound.arguments, factors=acts.factors, pairs=acts.pairs,
            count=count, groups=(-(-count * chunk // kernel.local_size[0]), net.key_heads),
        )  # fmt: skip
        bound = self._bound(
            four, qk=acts.qk, v=acts.v, memory=memory, y=acts.y, factors=acts.factors,
            pairs=acts.pairs,
        )  # fmt: skip
        kernel = self._kernel(scan(traits, net, chunk, texels=bound.texels))
        groups = (-(-net.value_size // kernel.local_size[0]), net.value_heads)
        most = count
        if traits.most_turns:
            most = max(1, MOST_TURNS // (net.key_size // 2 + 3)) * chunk
        for first in range(0, count, most):
            kernel(
                **bound.arguments, state=state, count=count, first_token=first,
                last_token=min(first + most, count), groups=groups,
            )  # fmt: skip

    def finish(self, acts: Activations, norm: Weight, *, count: int, eps: float) -> None:
        """Normalise each head of `y`, and gate it."""
        net = self.net
        words, first = vector_of(norm, 1, net.value_size)
        self._kernel(output(self.traits, net, norm.kind))(
            y=acts.y, gates=acts.gates, words=words, stride=acts.gates.shape[-1], first=first,
            eps=eps, groups=(net.value_heads, count),
        )  # fmt: skip

    def _bound(self, four: Collection[str] = (), **arrays: ps.Array) -> _Bound:
        """Bind arrays as texels, if these are large enough, else as storage buffers.

        `four` names those that are read four numbers at a time.
        """
        texels = max(array.size for array in arrays.values()) <= self._most_texels
        found: dict[str, Any] = {}
        for name, array in arrays.items():
            found[name], found[f"{name}_first"] = array, 0
            if texels:
                texel = "rgba32f" if name in four else "r32f"
                found[name], found[f"{name}_first"] = array.texels(texel)
        return _Bound(found, texels)


class _Bound(NamedTuple):
    arguments: dict[str, Any]
    texels: bool


# What each kernel is compiled from.


def _defines(net: DeltaNet) -> Defines:
    sizes = Sizes.of(net)
    found: Defines = {
        **STATE, "KEY_HEADS": net.key_heads, "VALUE_HEADS": net.value_heads,
        "KEY_SIZE": net.key_size, "VALUE_SIZE": net.value_size, "TAPS": net.taps,
        "SLOTS": sizes.slots, "SLOT_SIZE": sizes.slot, "WINDOW_AT": sizes.window_at,
    }  # fmt: skip
    for name, on in (
        ("TILED", net.tiled), ("FUSED", net.fused), ("FUSED_FACTORS", net.fused_factors),
        ("LOG_RATES", net.log_rates),
    ):  # fmt: skip
        if on:
            found[name] = 1
    return found


def _lengths(net: DeltaNet) -> Defines:
    return {"LENGTH_EPSILON": _LENGTH_EPSILON, "QUERY_SCALE": net.key_size**-0.5}


def _kinds(kinds: tuple[str, str]) -> Defines:
    rate, bias = kinds
    return {"RATE_KIND": VECTOR_KINDS[rate], "BIAS_KIND": VECTOR_KINDS[bias]}


def _shader(
    name: str, file: str, traits: Traits, size: int, defines: Defines, *, texels: bool = False
) -> Shader:
    """A shader with workgroups of `size` on GPUs."""
    own, constants = traits.group(size)
    return Shader.of(name, file, own | defines | ({"TEXELS": 1} if texels else {}), constants)


def convolve(traits: Traits, net: DeltaNet, kind: str, *, texels: bool) -> Shader:
    defines = _defines(net) | {"KIND": VECTOR_KINDS[kind]}
    return _shader("delta_convolve", "delta_convolve", traits, 64, defines, texels=texels)


def factors(traits: Traits, net: DeltaNet, kinds: tuple[str, str], chunk: int) -> Shader:
    defines = _defines(net) | _kinds(kinds) | {"CHUNK": chunk}
    return _shader("delta_factors", "delta_factors", traits, 32, defines)


def normalize(traits: Traits, net: DeltaNet) -> Shader:
    return _shader("delta_normalize", "delta_normalize", traits, 64, _defines(net) | _lengths(net))


def pairs(traits: Traits, net: DeltaNet, chunk: int, *, texels: bool) -> Shader:
    defines = _defines(net) | {"CHUNK": chunk}
    return _shader("delta_pairs", "delta_pairs", traits, 64, defines, texels=texels)


def scan(traits: Traits, net: DeltaNet, chunk: int, *, texels: bool) -> Shader:
    defines = _defines(net) | {"CHUNK": chunk, "CHUNK_QUADS": chunk // 4}
    return _shader("delta_scan", "delta_scan", traits, 64, defines, texels=texels)


def scan_one(traits: Traits, net: DeltaNet, kinds: tuple[str, str], *, texels: bool) -> Shader:
    defines = _defines(net) | _lengths(net) | _kinds(kinds) | {"CHUNK": 1, "ONE": 1}
    return _shader("delta_step", "delta_scan", traits, 64, defines, texels=texels)


def output(traits: Traits, net: DeltaNet, kind: str) -> Shader:
    defines = _defines(net) | {"KIND": VECTOR_KINDS[kind]}
    return _shader("delta_output", "delta_output", traits, 64, defines)


def delta_kernels(subgroup_size: int = 64) -> list[Shader]:
    """Every variant of every kernel here, in the shapes of Qwen3.5-27B."""
    net = DeltaNet(frozenset({0}), 16, 48, 128, 128, 4, tiled=True)
    kinds = ("F32", "F32")
    found: list[Shader] = []
    for traits in Traits.typical(subgroup_size):
        texels = traits.texels
        found += [convolve(traits, net, "F32", texels=texels), normalize(traits, net)]
        found += [output(traits, net, "F32"), scan_one(traits, net, kinds, texels=texels)]
        for chunk in (_SMALL_CHUNK, CHUNK):
            found.append(factors(traits, net, kinds, chunk))
            found.append(pairs(traits, net, chunk, texels=texels))
            found.append(scan(traits, net, chunk, texels=texels))
    return found
