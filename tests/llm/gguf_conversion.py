"""Writes a model of transformers as a GGUF file, with the `gguf` package, as llama.cpp converts it.

Penstock's own writer and reader are not used, so that a file differs from theirs where they are
wrong. Norms get the 1 that transformers adds, rates are no logarithms, the experts' fused matrices
are taken apart, and value heads are in the order of the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Host = npt.NDArray[np.float32]

ARCHITECTURES = {
    "qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
}  # fmt: skip
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip
_INSIDE = {
    "input_layernorm.weight": "attn_norm.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight", "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}  # fmt: skip


def write(path: Path, config: Any, state: Mapping[str, Any], *, fused: bool = False) -> None:
    """Write the weights of `model.state_dict()`; `fused`: an expert's gates and ups together."""
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    _describe(writer, arch, config)
    for name, tensor in state.items():
        array = tensor.numpy().astype(np.float32)
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for theirs, one in _converted(arch, config, name, array, fused).items():
            writer.add_tensor(theirs, np.ascontiguousarray(one))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, arch: str, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_weights_norm(getattr(config, "norm_topk_prob", True))
    if arch == "qwen3moe":
        return
    if arch != "qwen35":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_rope_dimension_count(int(config.head_dim * rope["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    interval = config.layer_types.index("full_attention") + 1
    writer.add_uint32(f"{arch}.full_attention_interval", interval)


def _converted(
    arch: str, config: Any, name: str, array: Host, fused: bool
) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a GGUF file that one of transformers becomes."""
    if arch != "qwen3moe" and name.endswith("norm.weight") and "linear_attn" not in name:
        array = array + 1
    if name in _OUTSIDE:
        return {_OUTSIDE[name]: array}
    _, _, layer, inside = name.split(".", 3)
    block = f"blk.{layer}."
    if inside == "post_attention_layernorm.weight":
        return {f"{block}{'ffn' if arch == 'qwen3moe' else 'post_attention'}_norm.weight": array}
    if inside == "mlp.experts.gate_up_proj":
        if fused:
            return {f"{block}ffn_gate_up_exps.weight": array}
        gate, up = np.split(array, 2, axis=1)
        return {f"{block}ffn_gate_exps.weight": gate, f"{block}ffn_up_exps.weight": up}
    if inside.startswith("linear_attn."):
        part = inside.removeprefix("linear_attn.")
        made = _of_next(config, part, array) if arch == "qwen3next" else _tiled(config, part, array)
        return {block + theirs: one for theirs, one in made.items()}
    return {block + _INSIDE[inside]: array}


def _of_next(config: Any, part: str, array: Host) -> dict[str, Host]:
    """Tensors of a DeltaNet layer of Qwen3-Next; neighbouring value heads share a key head."""
    if part == "in_proj_qkvz.weight":  # transformers has all of a key head together
        keys, size = config.linear_num_key_heads, config.linear_key_head_dim
        values = config.linear_num_value_heads // keys * config.linear_value_head_dim
        heads = array.reshape(keys, -1, array.shape[-1])
        q, k, v, z = (
            one.reshape(-1, array.shape[-1])
            for one in np.split(heads, np.cumsum([size, size, values]), axis=1)
        )
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    if part == "in_proj_ba.weight":
        return {"ssm_ba.weight": array}
    return _common(part, array)


def _tiled(config: Any, part: str, array: Host) -> dict[str, Host]:
    """The same of Qwen3.5, with value heads in another order: every n-th shares a key head."""
    keys, size = config.linear_num_key_heads, config.linear_value_head_dim

    def reordered(rows: Host, each: int) -> Host:
        apart = rows.reshape(keys, -1, each, *rows.shape[1:])
        return apart.swapaxes(0, 1).reshape(rows.shape)

    first = 2 * keys * config.linear_key_head_dim
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        array = np.concatenate([array[:first], reordered(array[first:], size)])
        return {"attn_qkv.weight": array} if part[0] == "i" else _common(part, array)
    if part == "out_proj.weight":
        return _common(part, reordered(array.T, size).T)
    if part == "norm.weight":
        return _common(part, array)
    array = reordered(array, size if part == "in_proj_z.weight" else 1)
    names = {"in_proj_z": "attn_gate", "in_proj_b": "ssm_beta", "in_proj_a": "ssm_alpha"}
    own = names.get(part.removesuffix(".weight"))
    return {f"{own}.weight": array} if own else _common(part, array)


def _common(part: str, array: Host) -> dict[str, Host]:
    if part == "A_log":
        return {"ssm_a": -np.exp(array)}
    names = {
        "dt_bias": "ssm_dt.bias", "conv1d.weight": "ssm_conv1d.weight",
        "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight",
    }  # fmt: skip
    return {names[part]: array.reshape(array.shape[0], -1).squeeze()}
