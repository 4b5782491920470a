"""Model files: both formats say the same, and every way to be wrong is a `ModelError`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.llm import ModelError, open_model
from penstock.llm.config import ARCHITECTURES, from_json
from penstock.llm.delta_net import WITH_DELTA_NET
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.mixture import WITH_EXPERTS, Mixture
from penstock.llm.modelfile import wanted_tensors
from penstock.llm.random_model import TYPES, metadata_of, shape_of
from tests.llm.model_builders import (
    Change,
    gguf,
    hugging_face,
    hugging_face_config,
    hugging_face_tensors,
    miniature,
    rewritten,
    shared,
    smollm2,
    write_safetensors,
    zeros,
)
from tests.llm.refusals import REFUSALS, Refusal, row


def test_an_error_of_models_is_an_error_of_penstock_and_a_value_error() -> None:
    assert issubclass(ModelError, ps.Error)
    assert issubclass(ModelError, ValueError)


def test_penstock_alone_loads_nothing_of_it() -> None:
    code = "import sys, penstock; penstock.Device; print([m for m in sys.modules if 'llm' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The same model in both formats.


@pytest.mark.parametrize("which", ["tiny-random-qwen3", "stories260K-qwen3"])
def test_shared_models_are_the_same_in_both_formats(which: str) -> None:
    ours, theirs = open_model(shared(f"{which}/{which}-F32.gguf")), open_model(shared(which))
    assert (ours.format, theirs.format) == ("gguf", "safetensors")
    assert theirs.config.norm_epsilon == pytest.approx(ours.config.norm_epsilon)
    same = dataclasses.replace(theirs.config, norm_epsilon=ours.config.norm_epsilon)
    assert same == ours.config
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        other = theirs.tensors[name]
        assert (tensor.shape, tensor.kind) == (other.shape, other.kind)
        assert np.array_equal(tensor.bytes, other.bytes), name


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("shards", [1, 3])
def test_directories_and_shards(tmp_path: Path, arch: str, shards: int) -> None:
    ours = open_model(miniature(tmp_path, arch))
    directory = hugging_face(tmp_path / "hf", arch, shards)
    theirs = open_model(directory)
    assert theirs.config.rope_layout == "halves"
    assert ours.config.rope_layout == ("adjacent" if arch == "llama" else "halves")
    assert ours.config.qk_norm == theirs.config.qk_norm == arch.startswith("qwen3")
    assert ours.config.biases == theirs.config.biases == (arch == "qwen2")
    assert ours.config.tied == theirs.config.tied == (arch in ("qwen3", "qwen2"))
    assert ours.config.mixture == theirs.config.mixture
    assert (ours.config.mixture is not None) == (arch in WITH_EXPERTS)
    assert (ours.config.delta_net is not None) == (arch in WITH_DELTA_NET)
    assert ours.config.gated == theirs.config.gated == (arch in WITH_DELTA_NET)
    if ours.config.delta_net is not None:  # their files differ: see test_delta_net.py
        assert theirs.config.delta_net is not None
        assert ours.config.delta_net.layers == theirs.config.delta_net.layers == {0}
    else:
        assert ours.tensors.keys() == theirs.tensors.keys()
        for name, tensor in ours.tensors.items():
            assert np.array_equal(tensor.bytes, theirs.tensors[name].bytes), name
    if shards == 1:
        alone = open_model(directory / "model.safetensors")
        assert alone.config == theirs.config
        assert alone.directory == directory


@pytest.mark.parametrize("kind", TYPES)
def test_the_gguf_package_agrees(tmp_path: Path, kind: str) -> None:
    package = pytest.importorskip("gguf")
    path = gguf(tmp_path, kind=kind, tokenizer=True)
    ours, theirs = open_model(path), package.GGUFReader(path)
    assert len(theirs.tensors) == len(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.kind == tensor.tensor_type.name
        assert mine.shape == tuple(tensor.shape.tolist()[::-1])
        assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
        values = package.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        if "norm" not in tensor.name:
            assert values.mean() == pytest.approx(0, abs=0.001)
            assert values.std() == pytest.approx(0.02, rel=0.15)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value = ours.metadata[key]
            if isinstance(value, float | int | str):
                assert field.contents() == value
            else:
                assert field.contents() == list(value)


def test_strings_are_a_sequence(tmp_path: Path) -> None:
    tokens = open_model(miniature(tmp_path, tokenizer=True)).metadata["tokenizer.ggml.tokens"]
    listed = list(tokens)
    assert len(tokens) == len(listed) == 288
    assert [tokens[0], tokens[65], tokens[-1]] == [listed[0], "A", listed[-1]]
    assert tokens[64:67] == ["@", "A", "B"]
    assert "<|im_end|>" in tokens
    with pytest.raises(IndexError):
        tokens[288]


def test_files_of_others_open() -> None:
    model = open_model(smollm2())
    config = model.config
    assert (config.architecture, config.layers, config.hidden) == ("llama", 30, 576)
    assert (config.heads, config.kv_heads, config.head_size) == (9, 3, 64)
    assert config.tied
    assert {tensor.kind for tensor in model.tensors.values()} == {"F32", "Q4_1", "Q8_0"}


def test_head_size_is_independent_of_hidden(tmp_path: Path) -> None:
    model = open_model(miniature(tmp_path, heads=8, kv_heads=2, head_size=8, rope_dimensions=4))
    assert model.tensors["blk.0.attn_q.weight"].shape == (64, 32)
    assert model.tensors["blk.0.attn_output.weight"].shape == (32, 64)
    assert model.config.angles(10).shape == (10, 2, 2)


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    """A file of 64 GiB of nothing: whoever read it would still be reading."""
    path = tmp_path / "large.gguf"
    shape = shape_of("tiny", layers=1, vocabulary=1 << 22, hidden=4096)
    tensors = [NewTensor(n, "F32", s, list) for n, s, must in wanted_tensors(shape) if must]
    with pytest.raises(ModelError, match="was given 0 bytes"):
        write_gguf(path, metadata_of(shape, "F32"), tensors)
    with pytest.raises(ModelError, match="its download did not end"):
        open_model(path)
    end = sum(-(-tensor.nbytes // 32) * 32 for tensor in tensors)
    os.truncate(path, path.stat().st_size // 32 * 32 + end)
    model = open_model(path)
    assert model.nbytes > 1 << 36


# What is wrong with a file is said.


ARCH = "general.architecture"
Q = "blk.0.attn_q.weight"
NORM = "output_norm.weight"
UP = "blk.0.ffn_up_exps.weight"
WRONG: dict[str, tuple[str, dict[str, Any] | Change]] = {
    "architecture": (r"'gemma' is not supported; there are qwen3, qwen3moe, qwen35, qwen35moe, "
        "qwen3next, qwen2, llama",
                     {ARCH: "gemma"}),
    "no architecture": (r"general.architecture is missing", lambda m, t: m.pop(ARCH)),
    "architecture is a number": (r"must be a string, not 3", {ARCH: 3}),
    "tensor is missing": (f"tensor '{Q}' is missing", lambda m, t: t.pop(Q)),
    "no embedding": ("'token_embd.weight' is missing", lambda m, t: t.pop("token_embd.weight")),
    "shape": (r"has shape \(32, 16\); the config asks for \(32, 32\)",
              lambda m, t: t.update({Q: zeros(Q, (32, 16))})),
    "dimensions": (r"has shape \(2, 16, 32\)", lambda m, t: t.update({Q: zeros(Q, (2, 16, 32))})),
    "tensor too many": ("'blk.0.attn_sinks.weight' is not part of a qwen3 model of 1 layers",
                        lambda m, t: t.update(x=zeros("blk.0.attn_sinks.weight", (16,)))),
    "layer too many": ("'blk.1.attn_q.weight' is not part of",
                       lambda m, t: t.update(x=zeros("blk.1.attn_q.weight", (32, 32)))),
    "quantised norm": ("vectors must be F32, F16, BF16",
                       lambda m, t: t.update({NORM: zeros(NORM, (32,), "Q8_0")})),
    "layers": ("layers is 4294967295; it must be", {"qwen3.block_count": 0xFFFFFFFF}),
    "no heads": ("heads is 0", {"qwen3.attention.head_count": 0}),
    "uneven heads": ("2 heads cannot share 3",
                     {"qwen3.attention.head_count_kv": 3}),
    "epsilon": ("makes no sense",
                {"qwen3.attention.layer_norm_rms_epsilon": 7.0}),
    "epsilon is no number": ("must be a finite number",
                {"qwen3.attention.layer_norm_rms_epsilon": float("nan")}),
    "odd rotation": ("15 rotated values", {"qwen3.rope.dimension_count": 15}),
    "scaling": ("'longrope' is not supported; there are none, linear, llama3 and yarn",
                {"qwen3.rope.scaling.type": "longrope"}),
    "experts": ("a qwen3 model with a mixture of experts is not supported.*qwen3moe",
                {"qwen3.expert_count": 8}),
    "window": ("sliding-window", {"qwen3.attention.sliding_window": 8}),
    "values": ("different head sizes", {"qwen3.attention.value_length": 8}),
    "by layer": ("differs from layer to layer",
                 {"qwen3.feed_forward_length": np.array([64, 32], np.uint32)}),
    "split": (r"one of 2 parts.*must end in -00001-of-00002\.gguf", {"split.count": 2}),
    "split into a list": ("split.count is array", {"split.count": np.array([2, 3], np.int16)}),
    "split into text": ("split.count is 'two'", {"split.count": "two"}),
    "split into too many": ("split.count is 4294967295", {"split.count": 0xFFFFFFFF}),
    "alignment": ("must be a power of two", {"general.alignment": 24}),
    "rope factors": (r"rope_freqs.weight' has shape \(9,\)",
                     lambda m, t: t.update(x=zeros("rope_freqs.weight", (9,)))),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, what: str) -> None:
    message, change = WRONG[what]
    path = rewritten(miniature(tmp_path), change)
    with pytest.raises(ModelError, match=message) as caught:
        open_model(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_tensor_may_be_missing(tmp_path: Path, arch: str) -> None:
    """Nor of another shape; without an output matrix, embeddings are tied."""
    path = miniature(tmp_path, arch)
    for name, tensor in open_model(path).tensors.items():
        with contextlib.nullcontext() if name == "output.weight" else pytest.raises(ModelError):
            open_model(rewritten(path, lambda keys, tensors, name=name: tensors.pop(name)))
        for shape in ((*tensor.shape[:-1], tensor.columns + 1), (1, *tensor.shape)):
            wrong = {name: zeros(name, shape)}
            with pytest.raises(ModelError, match=f"{re.escape(name)}.*has shape|asks for"):
                open_model(rewritten(path, lambda keys, tensors, own=wrong: tensors.update(own)))


MOE: dict[str, tuple[str, dict[str, Any] | Change]] = {
    "no experts": ("expert_count is missing or 0", {"qwen3moe.expert_count": 0}),
    "too many": ("make no sense; up to 1024", {"qwen3moe.expert_count": 100_000}),
    "more chosen than there are": ("9 of 8 experts", {"qwen3moe.expert_used_count": 9}),
    "none chosen": ("0 of 8 experts", {"qwen3moe.expert_used_count": 0}),
    "sigmoid": ("expert_gating_func other than 1", {"qwen3moe.expert_gating_func": 2}),
    "groups": ("expert_group_count other than 1", {"qwen3moe.expert_group_count": 4}),
    "scale": ("expert_weights_scale", {"qwen3moe.expert_weights_scale": 2.5}),
    "fewer matrices": (r"ffn_up_exps.weight' has shape \(7, 32, 32\); the config asks for \(8, ",
                       lambda m, t: t.update({UP: zeros(UP, (7, 32, 32))})),
    "no stack": (r"ffn_up_exps.weight' has shape \(256, 32\)",
                 lambda m, t: t.update({UP: zeros(UP, (256, 32))})),
    "a shared one too many": ("ffn_up_shexp.weight' is not part of a qwen3moe model",
                              lambda m, t: t.update(x=zeros("blk.0.ffn_up_shexp.weight", (4, 4)))),
}  # fmt: skip


@pytest.mark.parametrize("what", MOE)
def test_what_is_wrong_with_experts_is_said(tmp_path: Path, what: str) -> None:
    message, change = MOE[what]
    path = rewritten(miniature(tmp_path, "qwen3moe"), change)
    with pytest.raises(ModelError, match=message) as caught:
        open_model(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("part", ["ffn_gate", "ffn_down"])
def test_biases_that_would_not_be_added_are_refused(tmp_path: Path, part: str) -> None:
    name = f"blk.0.{part}.bias"
    path = rewritten(miniature(tmp_path), lambda m, t: t.update(x=zeros(name, (32,))))
    with pytest.raises(ModelError, match=f"{name}' is not part of a qwen3 model"):
        open_model(path)


def test_types_that_are_not_supported_are_named(tmp_path: Path) -> None:
    path = miniature(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(Q.encode()) + len(Q) + 4 + 16
    assert struct.unpack_from("<I", data, at) == (0,)
    for number, name in ((16, "IQ2_XXS"), (34, "TQ1_0"), (999, "unknown type 999")):
        struct.pack_into("<I", data, at, number)
        path.write_bytes(data)
        with pytest.raises(ModelError, match=f"{Q}.*{name}.*one of these: F32, F16.*Q6_K"):
            open_model(path)


@pytest.mark.parametrize(
    ("version", "message"), [(1, "2 and 3"), (3 << 24, "big-endian"), (4, "4")]
)
def test_versions(tmp_path: Path, version: int, message: str) -> None:
    path = miniature(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 4, version)
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        open_model(path)


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    path = miniature(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(Q.encode()) + len(Q) + 4 + 16 + 4
    struct.pack_into("<Q", data, at, 0)
    path.write_bytes(data)
    with pytest.raises(ModelError, match=f"'token_embd.weight' and '{Q}' share bytes"):
        open_model(path)
    struct.pack_into("<Q", data, at, 8)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="starts at byte 8, not a multiple of 32"):
        open_model(path)


def test_what_is_not_a_model_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, message in {
        "empty.gguf": "empty", "text.gguf": "does not start with 'GGUF'", "none.gguf": "not exist",
        "directory": "no \\*.safetensors", "pipe.gguf": "not a file", "a\0b.gguf": "cannot|exist",
        "none.safetensors": "config.json cannot be read",
    }.items():  # fmt: skip
        with pytest.raises(ModelError, match=message):
            open_model(tmp_path / name)


# Files that were split.


def split(path: Path, shares: list[list[str]]) -> list[Path]:
    """Write the tensors of a model to several files: the first has the keys."""
    model = open_model(path)
    paths = []
    for number, names in enumerate(shares):
        keys: dict[str, Any] = {
            "split.no": number,
            "split.count": len(shares),
            "split.tensors.count": len(model.tensors),
        }
        made = path.with_name(f"m-{number + 1:05}-of-{len(shares):05}.gguf")
        tensors = [
            NewTensor(name, one.kind, one.shape, lambda one=one: [one.bytes.tobytes()])
            for name, one in model.tensors.items()
            if name in names
        ]
        write_gguf(made, keys | (dict(model.metadata) if number == 0 else {}), tensors)
        paths.append(made)
    return paths


@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe"])
def test_parts_of_a_split_model(tmp_path: Path, arch: str) -> None:
    whole = open_model(miniature(tmp_path, arch))
    names = list(whole.tensors)
    paths = split(whole.path, [[], names[::2], names[1::2]])  # the first may hold no tensors
    for path in paths:
        model = open_model(path)
        assert model.config == whole.config
        assert model.tensors.keys() == whole.tensors.keys()
        assert model.metadata.keys() >= whole.metadata.keys()
        for name, tensor in whole.tensors.items():
            assert np.array_equal(model.tensors[name].bytes, tensor.bytes)
    alone = open_model(split(whole.path, [names])[0])
    assert alone.tensors.keys() == whole.tensors.keys()


def test_parts_that_are_wrong(tmp_path: Path) -> None:
    whole = open_model(miniature(tmp_path))
    names = list(whole.tensors)
    paths = split(whole.path, [names[:3], names[3:6], names[6:]])
    contents = [path.read_bytes() for path in paths]
    renamed = paths[0].with_name("model.gguf")
    renamed.write_bytes(contents[0])
    with pytest.raises(ModelError, match=r"one of 3 parts.*must end in -00001-of-00003\.gguf"):
        open_model(renamed)
    paths[1].write_bytes(contents[2])
    with pytest.raises(ModelError, match="part 3 of 3; its name says 2 of 3"):
        open_model(paths[0])
    paths[1].write_bytes(whole.path.read_bytes())
    with pytest.raises(ModelError, match="part 1 of 0; its name says 2 of 3"):
        open_model(paths[0])
    paths[2].unlink()
    with pytest.raises(ModelError, match=f"lacks {paths[2].name}: download all parts"):
        open_model(paths[0])
    paths[1].unlink()
    with pytest.raises(ModelError, match=f"lacks {paths[1].name}, {paths[2].name}:"):
        open_model(paths[0])
    for path, part in zip(paths, contents, strict=True):
        path.write_bytes(part)
    again = split(whole.path, [names[:3], names[2:6], names[6:]])
    with pytest.raises(ModelError, match=f"'{names[2]}' is in another part, too"):
        open_model(again[0])
    split(whole.path, [names[:3], names[3:5], names[6:]])
    with pytest.raises(ModelError, match=f"have {len(names) - 1} tensors; it says {len(names)}"):
        open_model(again[0])


# The same for directories.

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "architecture": ("'mamba' is not supported; there are", {"model_type": "mamba"}),
    "sizes": (r"'blk.0.ffn_gate.weight' has shape \(64, 32\); the config asks for \(65, 32\)",
              {"intermediate_size": 65}),
    "not a number": ("hidden_size must be a whole number, not 'x'", {"hidden_size": "x"}),
    "absurd number": ("layers is 1000000000000000000000", {"num_hidden_layers": 10**21}),
    "infinite": ("rope_theta must be a finite", {"rope_parameters": {"rope_theta": float("inf")}}),
    "activation": ("hidden_act 'gelu'", {"hidden_act": "gelu"}),
    "window": ("only full attention", {"layer_types": ["sliding_attention"]}),
    "window as flag": ("only full attention", {"use_sliding_window": True}),
    "scaling": ("'dynamic' is not supported", {"rope_scaling": {"type": "dynamic", "factor": 2.0},
                                               "rope_parameters": None}),
    "scaling without factor": ("factor is missing", {"rope_parameters": {"rope_type": "linear"}}),
    "scaling is a list": ("must be an object", {"rope_parameters": [1]}),
    "senseless yarn": ("RoPE scaling makes no sense",
                       {"rope_parameters": {"rope_type": "yarn", "beta_slow": 1e-300}}),
    "no output matrix": ("'output.weight' is missing", {"tie_word_embeddings": False}),
}  # fmt: skip


@pytest.mark.parametrize("what", CONFIGS)
def test_configs_that_are_wrong(tmp_path: Path, what: str) -> None:
    message, changes = CONFIGS[what]
    with pytest.raises(ModelError, match=message):
        open_model(hugging_face(tmp_path / "hf", **changes))


@pytest.mark.parametrize("fused", [False, True])
def test_experts_of_directories(tmp_path: Path, fused: bool) -> None:
    """Twelve experts, in the order of their names: 10 and 11 come before 2."""
    sizes = {"mixture": Mixture(12, 3, 16, normalized=False, shared_ffn=8), "layers": 3}
    ours = open_model(miniature(tmp_path, "qwen3moe", **sizes))
    for shards in (1, 3):
        directory = hugging_face(
            tmp_path / f"hf{shards}", "qwen3moe", shards, fused=fused, sizes=sizes,
            norm_topk_prob=None,
        )  # fmt: skip
        theirs = open_model(directory)
        assert theirs.config.mixture == ours.config.mixture
        assert theirs.tensors.keys() == ours.tensors.keys()
        for name, tensor in ours.tensors.items():
            assert theirs.tensors[name].shape == tensor.shape
            assert np.array_equal(theirs.tensors[name].bytes, tensor.bytes), name


def test_gates_and_ups_of_a_gguf_file_in_one_tensor(tmp_path: Path) -> None:
    path = miniature(tmp_path, "qwen3moe", mixture=Mixture(5, 2, 32, True))
    apart = open_model(path)
    both = [f"blk.0.ffn_{one}_exps.weight" for one in ("gate", "up")]
    name = "blk.0.ffn_gate_up_exps.weight"

    def fuse(metadata: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
        stacks = [apart.tensors[one] for one in both]
        rows = np.concatenate([one.bytes.reshape(5, -1) for one in stacks], 1)
        tensors[name] = NewTensor(name, "F32", (5, 64, 32), lambda: [rows.tobytes()])
        for one in both:
            del tensors[one]

    fused = open_model(rewritten(path, fuse))
    assert fused.tensors.keys() == apart.tensors.keys()
    for one in both:
        assert np.array_equal(fused.tensors[one].bytes, apart.tensors[one].bytes)
    with pytest.raises(ModelError, match=r"ffn_gate_exps\.weight' is there twice"):
        open_model(
            rewritten(path, lambda _, tensors: tensors.update({name: zeros(name, (5, 64, 32))}))
        )
    with pytest.raises(ModelError, match=r"ffn_gate_up_exps\.weight' is not part of a qwen3moe"):
        open_model(
            rewritten(path, lambda _, tensors: tensors.update({name: zeros(name, (5, 63, 32))}))
        )


def test_layers_without_experts(tmp_path: Path) -> None:
    changes = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_gate\.weight' is missing"):
        open_model(hugging_face(tmp_path / "hf", "qwen3moe", **changes))
    described = hugging_face_config(shape_of("tiny", "qwen3moe"), **changes)
    mixture = from_json("x", described).mixture
    assert mixture is not None
    assert mixture.dense_layers == {0, 2, 3, 4}
    for wrong in ({"decoder_sparse_step": 0}, {"mlp_only_layers": ["1"]}, {"mlp_only_layers": 1}):
        with pytest.raises(ModelError, match="decoder_sparse_step must be"):
            from_json("x", described | wrong)
    with pytest.raises(ModelError, match="a llama model with a mixture of experts"):
        from_json("x", described | {"model_type": "llama"})
    with pytest.raises(ModelError, match="'jamba' is not supported; there are qwen3, qwen3_moe"):
        from_json("x", described | {"model_type": "jamba"})


EXPERT = "model.layers.0.mlp.experts"
EXPERTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "missing": ("has 7 experts, but number 3 is missing",
                lambda t: t.pop(f"{EXPERT}.3.up_proj.weight")),
    "another shape": ("one is F32 .*, another F32",
                      lambda t: t.update({f"{EXPERT}.3.up_proj.weight": np.zeros((5, 32), "f4")})),
    "a vector": ("one is F32 .*, another F32",
                 lambda t: t.update({f"{EXPERT}.3.up_proj.weight": np.zeros(32, "f4")})),
    "twice": ("'blk.0.ffn_down_exps.weight' is there twice",
              lambda t: t.update({f"{EXPERT}.down_proj": np.zeros((8, 32, 32), "f4")})),
    "odd halves": ("'blk.0.ffn_gate_up_exps.weight' is not part of",
                   lambda t: t.update({f"{EXPERT}.gate_up_proj": np.zeros((8, 3, 32), "f4")})),
    "unknown": ("belongs to no supported",
                lambda t: t.update({f"{EXPERT}.1.x": np.zeros(1, "f4")})),
}  # fmt: skip


@pytest.mark.parametrize("what", EXPERTS)
def test_experts_that_are_wrong(tmp_path: Path, what: str) -> None:
    message, change = EXPERTS[what]
    directory = hugging_face(tmp_path / "hf", "qwen3moe")
    tensors = hugging_face_tensors(open_model(miniature(tmp_path, "qwen3moe")))
    change(tensors)
    write_safetensors(directory / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=message):
        open_model(directory)


def test_a_tied_model_may_carry_its_output_matrix(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path / "hf", "llama", tie_word_embeddings=True)
    assert "output.weight" not in open_model(directory).tensors


def test_shards_that_are_wrong(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path / "hf", shards=2)
    second = directory / "model-00002-of-00002.safetensors"
    index = directory / "model.safetensors.index.json"
    listed = index.read_text()
    index.write_text(listed.replace(second.name, "../elsewhere.safetensors"))
    with pytest.raises(ModelError, match="is not the name of a safetensors file"):
        open_model(directory)
    index.write_text('{"weight_map": []}')
    with pytest.raises(ModelError, match="weight_map"):
        open_model(directory)
    index.write_text(listed)
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(ModelError, match=f"{second.name} cannot be read"):
        open_model(directory)
    shutil.copy(directory / "model-00001-of-00002.safetensors", second)
    with pytest.raises(ModelError, match="is in another file, too"):
        open_model(directory)
    second.write_bytes(content)
    index.unlink()
    with pytest.raises(ModelError, match="several"):
        open_model(directory)


HEADERS: dict[str, tuple[str, str]] = {
    "not JSON": ("not valid JSON", "{"),
    "not an object": ("must be a JSON object", "[]"),
    "deep": ("not valid JSON", "[" * 100_000),
    "key twice": ("'a' is there twice", '{"a": 1, "a": 2}'),
    "no description": ("not described by an object", '{"model.norm.weight": 3}'),
    "no shape": ("needs a shape", '{"model.norm.weight": {"dtype": "F32"}}'),
    "unknown tensor": ("'a.b' belongs to no supported", '{"a.b": {"dtype": "F32", "shape": [1], '
                       '"data_offsets": [0, 4]}}'),
    "dtype": ("is F8_E4M3; of safe", '{"model.norm.weight": {"dtype": "F8_E4M3", "shape": '
              '[32], "data_offsets": [0, 32]}}'),
    "negative": ("natural numbers", '{"model.norm.weight": {"dtype": "F32", "shape": [-32], '
                 '"data_offsets": [0, 4]}}'),
    "truth for a number": ("natural numbers", '{"model.norm.weight": {"dtype": "F32", "shape": '
                           '[true], "data_offsets": [0, 4]}}'),
    "other size": ("has 4 bytes; its shape needs 128", '{"model.norm.weight": {"dtype": "F32", '
                   '"shape": [32], "data_offsets": [0, 4]}}'),
    "beyond the end": ("the file has", '{"model.norm.weight": {"dtype": "F32", "shape": [32], '
                       '"data_offsets": [4000000000, 4000000128]}}'),
    "overflow": ("impossible shape", '{"model.norm.weight": {"dtype": "F32", "shape": '
                 '[4294967296, 4294967296], "data_offsets": [0, 0]}}'),
    "no elements": ("impossible shape", '{"model.norm.weight": {"dtype": "F32", "shape": [], '
                    '"data_offsets": [0, 4]}}'),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_safetensors_headers_that_are_wrong(tmp_path: Path, what: str) -> None:
    message, header = HEADERS[what]
    directory = hugging_face(tmp_path / "hf")
    text = header.encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(256))
    with pytest.raises(ModelError, match=message):
        open_model(directory)


def test_config_json_that_is_not_there_or_not_json(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path / "hf")
    config = directory / "config.json"
    described = config.read_text()
    for text in ("", "[1]", described[:-5], described.replace('"silu"', "1" * 5000)):
        config.write_text(text)
        with pytest.raises(ModelError, match=r"config.json"):
            open_model(directory)
    config.unlink()
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        open_model(directory)
    assert json.loads(described)["model_type"] == "qwen3"
    assert hugging_face_config(shape_of("tiny"))["hidden_size"] == 256


# What is refused.


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.what)
def test_the_documentation_lists_what_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    """With the error as it is: `python -m tests.llm.shown refused` prints the list."""
    documented = Path(__file__).parents[2] / "docs" / "llm.md"
    assert row(refusal, tmp_path / "model") in documented.read_text()
