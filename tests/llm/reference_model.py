"""The decoder in NumPy, in float64: what the kernels together should give."""

from __future__ import annotations

from collections.abc import Sequence

import gguf
import numpy as np
import numpy.typing as npt

from penstock.llm import ModelFile, Tensor
from tests.llm.references import rotate

Numbers = npt.NDArray[np.float64]
_GATED = ("gate", "up", "down")


class Reference:
    """A model with its weights decoded by the `gguf` package."""

    def __init__(self, model: ModelFile) -> None:
        self.config = model.config
        self.factors = model.rope_factors
        self.weights = {name: _numbers(tensor) for name, tensor in model.tensors.items()}

    def logits(self, ids: Sequence[int]) -> Numbers:
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return np.asarray(self.hidden(ids) @ output.T)

    def hidden(self, ids: Sequence[int]) -> Numbers:
        """The final hidden states, normalised."""
        config = self.config
        x = self.weights["token_embd.weight"][list(ids)]
        angles = config.angles(len(ids), self.factors).astype(np.float64)
        net = config.delta_net
        for number in range(config.layers):
            h = self._norm(x, f"blk.{number}.attn_norm")
            if net is not None and number in net.layers:
                x = x + self._delta(number, h)
            else:
                x = x + self._attention(number, h, angles)
            x = x + self._feed_forward(number, self._norm(x, f"blk.{number}.ffn_norm"))
        return self._norm(x, "output_norm")

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        known = list(ids)
        for _ in range(count):
            known.append(int(self.logits(known)[-1].argmax()))
        return known[len(ids) :]

    def _norm(self, x: Numbers, name: str) -> Numbers:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_epsilon)
        return np.asarray(x / scale * (self.weights[f"{name}.weight"] + self.config.norm_shift))

    def _product(self, x: Numbers, name: str) -> Numbers:
        y = x @ self.weights[f"{name}.weight"].T
        return np.asarray(y + self.weights.get(f"{name}.bias", 0.0))

    def _feed_forward(self, number: int, x: Numbers) -> Numbers:
        block, mixture = f"blk.{number}.ffn_", self.config.mixture_of(number)
        if mixture is None:
            return self._gated(x, *(self.weights[f"{block}{n}.weight"] for n in _GATED))
        routes = self._product(x, f"{block}gate_inp")
        chosen = np.argsort(-routes, -1, kind="stable")[:, : mixture.chosen]
        shares = np.exp(routes - routes.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        shares = np.take_along_axis(shares, chosen, -1)
        if mixture.normalized:
            shares /= shares.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        stacks = [self.weights[f"{block}{name}_exps.weight"] for name in _GATED]
        for token, experts in enumerate(chosen):
            for share, expert in zip(shares[token], experts, strict=True):
                y[token] += share * self._gated(x[token], *(one[expert] for one in stacks))
        if mixture.shared_ffn:
            common = (self.weights[f"{block}{name}_shexp.weight"] for name in _GATED)
            gates = 1 / (1 + np.exp(-self._product(x, f"{block}gate_inp_shexp")))
            y += gates * self._gated(x, *common)
        return y

    @staticmethod
    def _gated(x: Numbers, gate: Numbers, up: Numbers, down: Numbers) -> Numbers:
        g = x @ gate.T
        return np.asarray((g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T)

    def _attention(self, number: int, x: Numbers, angles: Numbers) -> Numbers:
        config, block = self.config, f"blk.{number}."
        count = len(x)
        q, k, v = (
            self._product(x, f"{block}attn_{name}").reshape(count, -1, config.head_size)
            for name in "qkv"
        )
        gates = q[:, 1::2] if config.gated else np.full_like(q, np.inf)
        q = q[:, ::2] if config.gated else q
        if config.qk_norm:
            q, k = self._norm(q, f"{block}attn_q_norm"), self._norm(k, f"{block}attn_k_norm")
        q, k = (rotate(each, angles, config.rope_layout) for each in (q, k))
        shared = config.heads // config.kv_heads
        k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(config.head_size)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (np.einsum("hqk,khd->qhd", shares, v) * _sigmoid(gates)).reshape(count, -1)
        return self._product(mixed, f"{block}attn_output")

    def _delta(self, number: int, x: Numbers) -> Numbers:
        """A gated DeltaNet layer, one token after the other."""
        net, block, count = self.config.delta_net, f"blk.{number}.", len(x)
        assert net is not None
        per = net.value_heads // net.key_heads
        if net.fused:
            parts = self._product(x, f"{block}ssm_in").reshape(count, net.key_heads, -1)
            ends = np.cumsum([net.key_size, net.key_size, per * net.value_size])
            q, k, v, z = (part.reshape(count, -1) for part in np.split(parts, ends, -1))
            mixed = np.concatenate([q, k, v], -1)
        else:
            mixed = self._product(x, f"{block}attn_qkv")
            z = self._product(x, f"{block}attn_gate")
        if net.fused_factors:
            parts = self._product(x, f"{block}ssm_ba").reshape(count, net.key_heads, 2, per)
            write, fade = (parts[:, :, n].reshape(count, -1) for n in (0, 1))
        else:
            write = self._product(x, f"{block}ssm_beta")
            fade = self._product(x, f"{block}ssm_alpha")
        taps = self.weights[f"{block}ssm_conv1d.weight"]
        padded = np.concatenate([np.zeros((net.taps - 1, net.channels)), mixed])
        mixed = sum(padded[n : n + count] * taps[:, n] for n in range(net.taps))
        mixed = mixed * _sigmoid(mixed)
        q, k, v = np.split(mixed, [net.keys, 2 * net.keys], -1)
        q, k = (each.reshape(count, net.key_heads, net.key_size) for each in (q, k))
        q, k = (each / np.sqrt((each * each).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
        heads = np.arange(net.value_heads)
        of_head = heads % net.key_heads if net.tiled else heads // per
        q, k = q[:, of_head] / np.sqrt(net.key_size), k[:, of_head]
        v, z = (each.reshape(count, net.value_heads, net.value_size) for each in (v, z))
        rates = self.weights[f"{block}ssm_a"]
        rates = -np.exp(rates) if net.log_rates else rates
        fade = np.exp(rates * np.logaddexp(0, fade + self.weights[f"{block}ssm_dt.bias"]))
        write = _sigmoid(write)
        state = np.zeros((net.value_heads, net.key_size, net.value_size))
        y = np.empty_like(v)
        for t in range(count):
            state *= fade[t, :, None, None]
            change = write[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t, :, :, None] * change[:, None]
            y[t] = np.einsum("hkv,hk->hv", state, q[t])
        y /= np.sqrt((y * y).mean(-1, keepdims=True) + self.config.norm_epsilon)
        y *= self.weights[f"{block}ssm_norm.weight"] * z * _sigmoid(z)
        return self._product(y.reshape(count, -1), f"{block}ssm_out")


def _sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-x)))


def _numbers(tensor: Tensor) -> Numbers:
    raw = np.ascontiguousarray(tensor.bytes).reshape(tensor.rows, -1)
    kind = gguf.GGMLQuantizationType[tensor.kind]
    decoded = gguf.quants.dequantize(raw, kind).astype(np.float64)
    return np.asarray(decoded.reshape(tensor.shape))
