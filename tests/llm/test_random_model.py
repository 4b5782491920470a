"""Random models: the command writes what it says, again and again the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.llm import ModelError, Tokenizer, open_model
from penstock.llm.config import ARCHITECTURES
from penstock.llm.mixture import Mixture
from penstock.llm.random_model import TYPES, main, shape_of, write_random_model
from tests.llm.model_builders import MINIATURE


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", TYPES)
def test_the_command(
    tmp_path: Path, arch: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "random.gguf"
    words = ["--preset", "tiny", "--arch", arch, "--type", kind, "--out", str(path)]
    assert main([*words, "--layers", "3"]) == 0
    assert f"{path.stat().st_size:,} bytes" in capsys.readouterr().out
    model = open_model(path)
    assert (model.config.architecture, model.config.layers) == (arch, 3)
    kinds = {tensor.kind for tensor in model.tensors.values()}
    assert kinds == {"F32", *(("Q4_K", "Q6_K") if kind == "Q4_K_M" else (kind,))}
    tokenizer = Tokenizer.of(model)
    assert tokenizer.decode(tokenizer.encode("any text, é")) == "any text, é"


def test_the_same_seed_writes_the_same(tmp_path: Path) -> None:
    shape = shape_of("tiny", **MINIATURE)
    written = []
    for number, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"{number}.gguf"
        write_random_model(path, shape, "Q8_0", seed=seed)
        written.append(path.read_bytes())
    assert written[0] == written[1] != written[2]


def test_the_mix_of_q4_k_m(tmp_path: Path) -> None:
    """In 28 layers: more bits in the first and last eighth, and in every third between."""
    path = tmp_path / "mix.gguf"
    shape = shape_of("tiny", layers=28, ffn=256, heads=4, kv_heads=1)
    write_random_model(path, shape, "Q4_K_M")
    tensors = open_model(path).tensors
    more = [*range(3), 5, 8, 11, 14, 17, 20, 23, *range(24, 28)]
    for layer in range(28):
        for part in ("attn_v", "ffn_down"):
            assert tensors[f"blk.{layer}.{part}.weight"].kind == (
                "Q6_K" if layer in more else "Q4_K"
            )
        assert tensors[f"blk.{layer}.ffn_up.weight"].kind == "Q4_K"
    assert tensors["token_embd.weight"].kind == "Q6_K"


def test_the_shape_of_qwen3() -> None:
    shape = shape_of("qwen3-0.6b")
    assert (shape.layers, shape.hidden, shape.ffn, shape.vocabulary) == (28, 1024, 3072, 151_936)
    assert (shape.heads, shape.kv_heads, shape.head_size, shape.tied) == (16, 8, 128, True)


def test_the_experts_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "random.gguf"
    words = ["--preset", "tiny", "--out", str(path), "--experts", "5", "--chosen", "3"]
    assert main([*words, "--arch", "qwen3moe", "--expert-ffn", "32", "--shared-ffn", "8"]) == 0
    mixture = open_model(path).config.mixture
    assert mixture == Mixture(5, 3, 32, normalized=True, shared_ffn=8)
    assert main(words) == 1
    assert "a qwen3 model has no experts" in capsys.readouterr().err
    assert main([*words, "--arch", "qwen3moe", "--chosen", "6"]) == 1
    assert "6 of 5 experts" in capsys.readouterr().err
    large = shape_of("qwen3-30b-a3b")
    assert (large.architecture, large.mixture) == ("qwen3moe", Mixture(128, 8, 768, True))
    assert shape_of("qwen3-30b-a3b", "llama").mixture is None


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "random.gguf"
    words = ["--preset", "tiny", "--out", str(path)]
    assert main([*words, "--type", "Q4_K_M", "--hidden", "100"]) == 1
    assert "does not fit" in capsys.readouterr().err
    assert main([*words, "--vocabulary", "20"]) == 1
    assert "too small" in capsys.readouterr().err
    assert main(["--preset", "tiny", "--out", str(tmp_path / "none" / "x")]) == 1
    with pytest.raises(ModelError, match="there are F32, F16"):
        write_random_model(path, shape_of("tiny"), "Q5_K")
