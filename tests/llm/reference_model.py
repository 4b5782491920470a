"""The decoder in NumPy, in float64: what the kernels together should give."""

from __future__ import annotations

from collections.abc import Sequence

import gguf
import numpy as np
import numpy.typing as npt

from penstock.llm import ModelFile, Tensor
from tests.llm.references import rotate

Numbers = npt.NDArray[np.float64]


class Reference:
    """A model with its weights decoded by the `gguf` package."""

    def __init__(self, model: ModelFile) -> None:
        self.config = model.config
        self.factors = model.rope_factors
        self.weights = {name: _numbers(tensor) for name, tensor in model.tensors.items()}

    def logits(self, ids: Sequence[int]) -> Numbers:
        config = self.config
        x = self.weights["token_embd.weight"][list(ids)]
        angles = config.angles(len(ids), self.factors).astype(np.float64)
        for number in range(config.layers):
            x = x + self._attention(number, self._norm(x, f"blk.{number}.attn_norm"), angles)
            x = x + self._feed_forward(number, self._norm(x, f"blk.{number}.ffn_norm"))
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return np.asarray(self._norm(x, "output_norm") @ output.T)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        known = list(ids)
        for _ in range(count):
            known.append(int(self.logits(known)[-1].argmax()))
        return known[len(ids) :]

    def _norm(self, x: Numbers, name: str) -> Numbers:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_epsilon)
        return np.asarray(x / scale * self.weights[f"{name}.weight"])

    def _product(self, x: Numbers, name: str) -> Numbers:
        y = x @ self.weights[f"{name}.weight"].T
        return np.asarray(y + self.weights.get(f"{name}.bias", 0.0))

    def _feed_forward(self, number: int, x: Numbers) -> Numbers:
        gate = self._product(x, f"blk.{number}.ffn_gate")
        up = self._product(x, f"blk.{number}.ffn_up")
        return self._product(gate / (1 + np.exp(-gate)) * up, f"blk.{number}.ffn_down")

    def _attention(self, number: int, x: Numbers, angles: Numbers) -> Numbers:
        config, block = self.config, f"blk.{number}."
        count = len(x)
        q, k, v = (
            self._product(x, f"{block}attn_{name}").reshape(count, -1, config.head_size)
            for name in "qkv"
        )
        if config.qk_norm:
            q, k = self._norm(q, f"{block}attn_q_norm"), self._norm(k, f"{block}attn_k_norm")
        q, k = (rotate(each, angles, config.rope_layout) for each in (q, k))
        shared = config.heads // config.kv_heads
        k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(config.head_size)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1)
        return self._product(mixed, f"{block}attn_output")


def _numbers(tensor: Tensor) -> Numbers:
    raw = np.ascontiguousarray(tensor.bytes).reshape(tensor.rows, -1)
    kind = gguf.GGMLQuantizationType[tensor.kind]
    decoded = gguf.quants.dequantize(raw, kind).astype(np.float64)
    return np.asarray(decoded.reshape(tensor.shape))
