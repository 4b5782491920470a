"""Weights on a device: the file itself where that is possible, and byte for byte the same."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.llm import ModelError, ModelFile, Weight, open_model, place
from penstock.llm import weights as weights_module
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.modelfile import wanted_tensors
from penstock.llm.random_model import TYPES, metadata_of, shape_of
from tests.conftest import OpenDevice
from tests.llm.model_builders import (
    gguf,
    hugging_face,
    hugging_face_tensors,
    miniature,
    shared,
    smollm2,
    write_safetensors,
)


def content(weight: Weight, model: ModelFile) -> bytes:
    """A weight's bytes as kernels find them: `first` bytes into each piece, row after row."""
    pitch = model.tensors[weight.name].nbytes // weight.rows
    parts, row = [], 0
    for piece in weight.pieces:
        assert piece.row == row
        assert piece.words.dtype == np.uint32
        assert piece.words.ndim == 1
        assert piece.words.contiguous
        assert piece.first % (4 if weight.kind == "F32" else 2) == 0
        data = piece.words.numpy().tobytes()
        parts.append(data[piece.first : piece.first + piece.rows * pitch])
        row += piece.rows
    assert row == weight.rows
    return b"".join(parts)


def check(weights: dict[str, Weight], model: ModelFile) -> None:
    assert list(weights) == list(model.tensors)
    for name, tensor in model.tensors.items():
        weight = weights[name]
        assert (weight.name, weight.kind) == (name, tensor.kind)
        assert (weight.rows, weight.columns) == (tensor.rows, tensor.columns)
        assert content(weight, model) == tensor.bytes.tobytes(), name


def imports_only(receipt: ps.Trace) -> bool:
    """Whether no memory was made, and that of the file is used in place."""
    made = {event.reason for event in receipt.of_kind("allocation")}
    return made == {"import of host memory"}


@pytest.mark.parametrize("kind", TYPES)
def test_in_place_nothing_is_copied(any_device: ps.Device, tmp_path: Path, kind: str) -> None:
    model = open_model(gguf(tmp_path, kind=kind))
    with ps.trace() as receipt:
        weights = place(any_device, model)
    receipt.expect(copies=0, waits=0, submissions=0)
    assert imports_only(receipt)
    assert receipt.bytes_copied == 0
    check(weights, model)
    assert weights["output_norm.weight"].rows == 1
    weights.close()


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_K_M"])
def test_copied_once(any_device: ps.Device, tmp_path: Path, kind: str) -> None:
    model = open_model(gguf(tmp_path, kind=kind))
    seen: list[tuple[int, int]] = []
    with ps.trace() as receipt:
        weights = place(
            any_device, model, lambda done, total: seen.append((done, total)), copy=True
        )
    assert receipt.bytes_copied == model.nbytes
    assert seen[-1] == (model.nbytes, model.nbytes)
    assert seen == sorted(seen)
    check(weights, model)
    assert all(piece.first == 0 for one in weights.values() for piece in one.pieces)


def test_where_the_memory_is_not_the_hosts_it_is_copied(
    dev: ps.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(miniature(tmp_path))
    for change in ({"uma": False}, {"can_import": False}):
        monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, **change))
        with ps.trace() as receipt:
            weights = place(dev, model)
        assert receipt.bytes_copied == model.nbytes
        check(weights, model)
        monkeypatch.undo()


@pytest.mark.parametrize("copy", [False, True])
def test_nobody_writes_a_weight(dev: ps.Device, tmp_path: Path, copy: bool) -> None:
    weights = place(dev, open_model(miniature(tmp_path)), copy=copy)
    words = weights["token_embd.weight"].pieces[0].words
    assert words.role == "weight"
    with pytest.raises((ps.RoleViolation, ps.ReadOnly), match=r"embd|gguf"):
        words.fill(0)


SUM = """
    layout(local_size_x = 1) in;
    layout(binding = 0) readonly buffer W { uint w[]; };
    layout(binding = 1) buffer Result { uint sum; };
    layout(push_constant) uniform P { uint first; uint pitch; };
    void main() {
        uint row = first + pitch * gl_GlobalInvocationID.x, own = 0;
        for (uint i = row; i < row + pitch; i++) own += (w[i / 4] >> (8 * (i % 4))) & 255;
        atomicAdd(sum, own);
    }
"""


@pytest.mark.parametrize("limit", [1 << 12, 1 << 14, 1 << 30])
def test_pieces_can_be_bound(
    dev: ps.Device, tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a device that binds little at once: kernels see every row of every piece."""
    real = weights_module._limit
    alignment = real(dev, "binding_alignment")

    def smaller(device: ps.Device, name: str) -> int:
        return min(real(device, name), limit) if name == "binding_range" else real(device, name)

    monkeypatch.setattr(weights_module, "_limit", smaller)
    model = open_model(gguf(tmp_path, kind="Q8_0", layers=1))
    kernel = dev.kernel(SUM, name="sum_bytes")
    for copy in (False, True):
        weights = place(dev, model, copy=copy)
        check(weights, model)
        for name in ("token_embd.weight", "blk.0.attn_k.weight", "output_norm.weight"):
            weight, tensor = weights[name], model.tensors[name]
            pitch = tensor.nbytes // tensor.rows
            assert len(weight.pieces) >= tensor.nbytes / limit
            for piece in weight.pieces:
                assert piece.words.nbytes <= limit
                assert piece.first < max(4, alignment)
                seen = kernel(w=piece.words, first=piece.first, pitch=pitch, groups=piece.rows)
                start, n = piece.row * pitch, piece.rows * pitch
                assert seen == tensor.bytes[start : start + n].sum(dtype=np.uint32)


def test_a_row_that_cannot_be_bound(
    dev: ps.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = weights_module._limit
    monkeypatch.setattr(
        weights_module, "_limit", lambda d, name: 512 if name == "binding_range" else real(d, name)
    )
    with pytest.raises(ModelError, match=r"rows of [\d,]+ bytes, more than .* can bind"):
        place(dev, open_model(gguf(tmp_path)))


@pytest.mark.parametrize("allocation", [1 << 16, 1 << 20])
def test_files_larger_than_one_allocation(
    dev: ps.Device, tmp_path: Path, allocation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = weights_module._limit
    monkeypatch.setattr(
        weights_module,
        "_limit",
        lambda d, name: allocation if name == "allocation" else real(d, name),
    )
    model = open_model(gguf(tmp_path))
    with ps.trace() as receipt:
        weights = place(dev, model)
    assert receipt.bytes_copied == 0
    adopted = [event for event in receipt.events if event.kind == "adopt"]
    assert len(adopted) >= model.nbytes / allocation
    check(weights, model)
    os.truncate(model.path, model.path.stat().st_size - 1)
    with pytest.raises(ModelError, match="has changed since it was opened"):
        place(dev, model)


def test_a_model_of_gigabytes_is_placed_like_a_small_one(dev: ps.Device, tmp_path: Path) -> None:
    """A file with holes, larger than the device allocates at once, and nothing of it is read."""
    path = tmp_path / "large.gguf"
    shape = shape_of("tiny", layers=1, vocabulary=1 << 19, hidden=2048)
    tensors = [NewTensor(n, "F32", s, list) for n, s, must in wanted_tensors(shape) if must]
    with pytest.raises(ModelError, match="was given 0 bytes"):
        write_gguf(path, metadata_of(shape, "F32"), tensors)
    header = -(-path.stat().st_size // 32) * 32
    os.truncate(path, header + sum(-(-one.nbytes // 32) * 32 for one in tensors))
    model = open_model(path)
    assert model.nbytes > 4 << 30
    last = model.tensors["token_embd.weight"]
    with path.open("r+b") as file:
        file.seek(last.offset + last.nbytes - 4)
        file.write(b"\1\2\3\4")
    with ps.trace() as receipt:
        weights = place(dev, model)
    receipt.expect(copies=0, waits=0)
    assert imports_only(receipt)
    pieces = weights["token_embd.weight"].pieces
    assert sum(piece.rows for piece in pieces) == 1 << 19
    assert int(pieces[-1].words[-1]) == 0x04030201
    weights.close()


@pytest.mark.parametrize("copy", [False, True])
def test_the_end_of_a_file_need_not_be_the_end_of_a_word(
    dev: ps.Device, tmp_path: Path, copy: bool
) -> None:
    model = open_model(miniature(tmp_path, kind="F16", hidden=33, ffn=33))
    assert model.path.stat().st_size % 4 == 2
    check(place(dev, model, copy=copy), model)


@pytest.mark.parametrize("shift", range(4))
def test_tensors_at_odd_places(dev: ps.Device, tmp_path: Path, shift: int) -> None:
    """Old safetensors start anywhere: what kernels cannot read in place is copied."""
    directory = hugging_face(tmp_path / "hf")
    tensors = hugging_face_tensors(open_model(directory))
    write_safetensors(directory / "model.safetensors", tensors, shift=shift)
    model = open_model(directory)
    assert all(tensor.offset % 4 == shift for tensor in model.tensors.values())
    with ps.trace() as receipt:
        weights = place(dev, model)
    assert receipt.bytes_copied == (model.nbytes if shift else 0)
    check(weights, model)


def test_shards_are_adopted_each(dev: ps.Device, tmp_path: Path) -> None:
    model = open_model(hugging_face(tmp_path / "hf", shards=3))
    with ps.trace() as receipt:
        weights = place(dev, model)
    assert len([event for event in receipt.events if event.kind == "adopt"]) == 3
    assert receipt.bytes_copied == 0
    check(weights, model)


def test_ends_of_life(open_device: OpenDevice, tmp_path: Path) -> None:
    dev = open_device()
    model = open_model(gguf(tmp_path))
    with place(dev, model) as weights:
        words = weights["token_embd.weight"].pieces[0].words
    assert words.closed
    weights.close()
    again = place(dev, model)
    check(again, model)
    kept = again["output_norm.weight"].pieces[0].words
    expected = kept.numpy()
    del again, weights, model  # nobody keeps the file but the array
    assert np.array_equal(kept.numpy(), expected)


@pytest.mark.parametrize("find", [smollm2, lambda: shared("tiny-random-qwen3"),
                                  lambda: shared("stories260K-qwen3")])  # fmt: skip
def test_files_of_others(dev: ps.Device, find: Any) -> None:
    model = open_model(find())
    with ps.trace() as receipt, place(dev, model) as weights:
        assert receipt.bytes_copied == 0
        check(weights, model)


def test_a_bar_only_on_a_terminal(
    dev: ps.Device,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = open_model(miniature(tmp_path))
    place(dev, model, copy=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    place(dev, model, copy=True)
    assert "copying weights" in capsys.readouterr().err
    place(dev, model, False, copy=True)
    assert capsys.readouterr().err == ""
