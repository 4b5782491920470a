"""The tensors of DeltaNet layers as transformers stores them, made from those of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.llm import Config, ModelFile

Host = npt.NDArray[Any]

JSON_NAMES = {
    "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text", "qwen3next": "qwen3_next",
}  # fmt: skip


def delta_config(config: Config) -> dict[str, Any]:
    """What a config.json says of them."""
    net = config.delta_net
    if net is None:
        return {}
    kinds = [
        "linear_attention" if n in net.layers else "full_attention" for n in range(config.layers)
    ]
    portion = config.rope_dimensions / config.head_size
    return {
        "model_type": JSON_NAMES[config.architecture],
        "layer_types": kinds,
        "linear_num_key_heads": net.key_heads,
        "linear_num_value_heads": net.value_heads,
        "linear_key_head_dim": net.key_size,
        "linear_value_head_dim": net.value_size,
        "linear_conv_kernel_dim": net.taps,
        "rope_parameters": {
            "rope_theta": config.rope_base, "rope_type": "default",
            "partial_rotary_factor": portion,
        },
    }  # fmt: skip


def is_of_delta(name: str) -> bool:
    return ".ssm_" in name or ".attn_qkv." in name or ".attn_gate." in name


def delta_tensors(model: ModelFile) -> dict[str, Host]:
    """The tensors of all DeltaNet layers under the names that transformers gives them."""
    made: dict[str, Host] = {}
    net = model.config.delta_net
    for layer in net.layers if net else ():
        made |= {
            f"model.layers.{layer}.linear_attn.{name}": one
            for name, one in _of_layer(model, layer).items()
        }
    return made


def _of_layer(model: ModelFile, layer: int) -> dict[str, Host]:
    net = model.config.delta_net
    assert net is not None
    share = net.value_heads // net.key_heads

    def array(name: str) -> Host:
        tensor = model.tensors[f"blk.{layer}.{name}"]
        return tensor.bytes.view(np.float32).reshape(tensor.shape)

    def grouped(rows: Host, size: int) -> Host:
        """Rows of value heads, with those that share a key head side by side."""
        if not net.tiled:
            return rows
        apart = rows.reshape(share, net.key_heads, size, -1).transpose(1, 0, 2, 3)
        return np.ascontiguousarray(apart).reshape(rows.shape)

    def with_values(rows: Host) -> Host:
        keys = 2 * net.keys
        return np.concatenate([rows[:keys], grouped(rows[keys:], net.value_size)])

    mixed, gates = with_values(array("attn_qkv.weight")), array("attn_gate.weight")
    gates = grouped(gates, net.value_size)
    made = {
        "A_log": grouped(np.log(-array("ssm_a")), 1),
        "dt_bias": grouped(array("ssm_dt.bias"), 1),
        "conv1d.weight": with_values(array("ssm_conv1d.weight"))[:, None],
        "norm.weight": array("ssm_norm.weight"),
        "out_proj.weight": grouped(array("ssm_out.weight").T.copy(), net.value_size).T.copy(),
    }
    if model.config.architecture == "qwen3next":
        heads = [
            part.reshape(net.key_heads, -1, part.shape[-1])
            for part in (*np.split(mixed, [net.keys, 2 * net.keys]), gates)
        ]
        fused = np.concatenate(heads, 1).reshape(-1, mixed.shape[-1])
        return made | {"in_proj_qkvz.weight": fused, "in_proj_ba.weight": array("ssm_ba.weight")}
    return made | {
        "in_proj_qkv.weight": mixed,
        "in_proj_z.weight": gates,
        "in_proj_b.weight": grouped(array("ssm_beta.weight"), 1),
        "in_proj_a.weight": grouped(array("ssm_alpha.weight"), 1),
    }
