"""Fresh random models of every architecture with experts or states: transformers is the oracle.

A seed draws the shape and the weights of a model, which is read from safetensors and from a GGUF
file that the `gguf` package wrote. transformers and torch are large, so they are in no extra:
without them these tests skip. `pip install torch transformers` in an environment with the extra
`dev` runs them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from penstock import llm
from penstock.llm.sampling_settings import Sampling
from tests.llm import gguf_conversion

torch = pytest.importorskip("torch", reason="pip install torch transformers, to compare with them")
transformers: Any = pytest.importorskip("transformers", reason="pip install transformers")

SEEDS = range(3)
CLASSES = {
    "qwen3moe": "Qwen3MoeConfig", "qwen35": "Qwen3_5TextConfig",
    "qwen35moe": "Qwen3_5MoeTextConfig", "qwen3next": "Qwen3NextConfig",
}  # fmt: skip
VOCABULARY = 400
PROMPT = 37  # tokens: three chunks of a DeltaNet layer, and some of its window
NEW = 12
#: An error of a logit, of up to about 4.4, that float32 makes anywhere.
MOST_ERROR = 2e-5
#: And how many times as much as a rounding of the weights to float32 changes in exact arithmetic: a
#: head of a DeltaNet layer whose result is near 0 is normalised, and with it its error.
ROUNDINGS = 10


def shape(arch: str, seed: int) -> dict[str, Any]:
    """Sizes of a model: odd numbers of heads, few or many experts, tied embeddings or not."""
    random = Random(f"{arch} {seed}")
    kv_heads = random.choice([1, 2, 3, 5])
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "max_position_embeddings": 256,
        "hidden_size": 32 * random.randint(2, 5), "intermediate_size": 32 * random.randint(2, 5),
        "num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * random.randint(1, 3),
        "head_dim": random.choice([24, 32, 64]), "tie_word_embeddings": random.random() < 0.5,
        "num_hidden_layers": 3,
    }  # fmt: skip
    if arch != "qwen35":
        chosen = 1 + (seed + list(CLASSES).index(arch)) % 4
        sizes |= {
            "num_experts": random.randint(chosen, 33), "num_experts_per_tok": chosen,
            "moe_intermediate_size": 16 * random.randint(1, 4),
            "norm_topk_prob": arch != "qwen3moe" or random.random() < 0.5,
        }  # fmt: skip
    if arch in ("qwen35moe", "qwen3next"):
        sizes["shared_expert_intermediate_size"] = 16 * random.randint(1, 4)
    if arch != "qwen3moe":
        key_heads = random.choice([1, 2, 3])
        sizes |= {
            "num_hidden_layers": 4, "linear_conv_kernel_dim": random.choice([2, 3, 4]),
            "linear_num_key_heads": key_heads, "linear_key_head_dim": 4 * random.randint(2, 9),
            "linear_num_value_heads": key_heads * random.randint(1, 3),
            "linear_value_head_dim": 4 * random.randint(2, 9),
        }  # fmt: skip
    return sizes


def made(arch: str, seed: int, folder: Path) -> Any:
    """A model of random weights, exact in float32, saved in both formats, and in float64."""
    torch.manual_seed(seed)
    config = getattr(transformers, CLASSES[arch])(**shape(arch, seed))
    config._experts_implementation = "eager"  # the default takes no float64
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in key or key.endswith(("A_log", "dt_bias")):
                parameter += 0.2 * noise
            else:
                parameter.copy_((0.3 if "conv1d" in key else 0.08) * noise)
    model.save_pretrained(folder)
    gguf_conversion.write(folder / "model.gguf", config, model.state_dict())
    return model.to(torch.float64).eval()


def sensitivity(theirs: Any, ids: Any) -> Any:
    """How much logits of each position change if weights change as by rounding to float32."""
    with torch.no_grad():
        exact, found = theirs(ids).logits[0], torch.zeros(ids.shape[1], dtype=torch.float64)
        kept = [parameter.clone() for parameter in theirs.parameters()]
        for _ in range(4):
            for parameter, own in zip(theirs.parameters(), kept, strict=True):
                parameter.copy_(own * (1 + 6e-8 * torch.randn_like(own)))
            found = torch.maximum(found, (theirs(ids).logits[0] - exact).abs().amax(-1))
        for parameter, own in zip(theirs.parameters(), kept, strict=True):
            parameter.copy_(own)
    return found.numpy()


@pytest.mark.timeout(1800)  # every split of a prompt is two graphs, some with kernels of their own
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arch", CLASSES)
def test_logits_tokens_and_every_split_of_a_prompt(arch: str, seed: int, tmp_path: Path) -> None:
    theirs = made(arch, seed, tmp_path)
    ids = torch.randint(0, VOCABULARY, (1, PROMPT))
    with torch.no_grad():
        wanted = theirs(ids).logits[0].numpy()
        known = theirs.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
        whole = theirs(known).logits[0, PROMPT - 1 : -1].numpy()
    greedy, prompt = known[0, PROMPT:].tolist(), ids[0].tolist()
    most = MOST_ERROR + ROUNDINGS * sensitivity(theirs, known)[:-1]
    second, first = np.sort(whole, axis=-1)[:, -2:].T
    clear = min(*np.flatnonzero(first - second < 2 * most[PROMPT - 1 :]), NEW, NEW)  # of near ties
    for path, every in ((tmp_path / "model.gguf", seed == 0), (tmp_path, False)):
        firsts = range(1, PROMPT) if every else (1, 16, 17)
        with llm.load(path, cache="f32", context=128, progress=False) as model:
            got = model.logits(prompt)
            assert (np.abs(got - wanted).max(-1) <= most[:PROMPT]).all()
            new = model.generate(prompt, max_tokens=NEW, stop_ids=[]).ids
            assert new[:clear] == greedy[:clear]
            with model.network() as network:
                for first_part in firsts:
                    network.restart(Sampling())
                    network.read(prompt[:first_part], "nothing")
                    rest = network.logits(prompt[first_part:])
                    off = np.abs(rest - wanted[first_part:]).max(-1)
                    assert (off <= most[first_part:PROMPT]).all(), first_part


def test_fused_experts_in_a_gguf_file(tmp_path: Path) -> None:
    """llama.cpp can be told to keep gates and ups in one tensor."""
    theirs = made("qwen35moe", 0, tmp_path)
    state = {name: one.float() for name, one in theirs.state_dict().items()}
    gguf_conversion.write(tmp_path / "fused.gguf", theirs.config, state, fused=True)
    prompt = list(range(20))
    logits = []
    for name in ("model.gguf", "fused.gguf"):
        with llm.load(tmp_path / name, cache="f32", context=64, progress=False) as model:
            logits.append(model.logits(prompt))
    np.testing.assert_array_equal(*logits)
