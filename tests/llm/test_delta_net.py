"""Gated DeltaNet layers: their kernels, whole models, chunks, and going back to earlier tokens."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import kernels
from penstock.llm.delta_layers import Activations, DeltaLayers
from penstock.llm.delta_net import WITH_DELTA_NET, DeltaNet
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.optimizations import AHEAD
from penstock.llm.recurrent_memory import SLOTS, RecurrentMemory, Sizes
from penstock.llm.sampling_settings import Sampling
from penstock.llm.traits import Traits
from tests.llm.model_builders import (
    gguf,
    hugging_face,
    hugging_face_tensors,
    miniature,
    shared,
    write_safetensors,
)
from tests.llm.reference_model import Reference
from tests.llm.references import stored, vector

Host = npt.NDArray[Any]

FIRST = frozenset({0})
#: Key heads, value heads, their sizes, taps; an odd number of whatever may be odd.
NETS = {
    "grouped": DeltaNet(FIRST, 3, 9, 12, 10, 4),
    "tiled": DeltaNet(FIRST, 2, 6, 8, 5, 3, tiled=True),
    "fused": DeltaNet(FIRST, 2, 4, 16, 8, 4, fused=True, fused_factors=True, log_rates=True),
    "equal heads": DeltaNet(FIRST, 3, 3, 4, 7, 2, fused_factors=True),
}
SMALL = {"layers": 4, "hidden": 96, "ffn": 160, "heads": 6, "kv_heads": 3, "head_size": 32,
         "context": 128, "vocabulary": 288}  # fmt: skip
IDS = [5, 17, 3, 200, 41, 99, 8, 1, 254, 30, 31, 7, 77, 6, 260, 12, 13, 9, 150, 42, 3, 3, 18]
TOLERANCE = 2e-5  # of the largest logit


# Kernels.


class Inputs(NamedTuple):
    """What the products of a layer give, a row for each token."""

    mixed: Host
    gates: Host
    writes: Host
    fades: Host

    @classmethod
    def random(cls, net: DeltaNet, count: int, random: np.random.Generator) -> Inputs:
        mixed = random.standard_normal((count, net.channels + (net.values if net.fused else 0)))
        writes = random.standard_normal((count, net.value_heads * (1 + net.fused_factors)))
        gates = mixed if net.fused else random.standard_normal((count, net.values))
        fades = writes if net.fused_factors else random.standard_normal((count, net.value_heads))
        return cls(*(one.astype(np.float32) for one in (mixed, gates, writes, fades)))

    def part(self, first: int, last: int) -> Inputs:
        return Inputs(*(one[first:last] for one in self))


class Layer:
    """One layer with random weights on a device, and the same in NumPy."""

    def __init__(self, device: ps.Device, net: DeltaNet, variant: str, batch: int = 40) -> None:
        random = np.random.default_rng(7)
        self.device, self.net = device, net
        self.taps = random.standard_normal((net.channels, net.taps)) * 0.5
        rates = random.uniform(0.2, 3, net.value_heads)
        self.rates = np.log(rates) if net.log_rates else -rates
        self.bias = random.standard_normal(net.value_heads) - 1
        self.norm = 1 + 0.1 * random.standard_normal(net.value_size)
        traits = Traits.of(device, variant)  # type: ignore[arg-type]
        self.delta = DeltaLayers(device, net, traits)
        self.memory = RecurrentMemory(device, net)
        self.acts = Activations.new(device, net, batch)
        self.state = device.zeros(4, np.uint32)
        flat = vector(device, self.taps.reshape(-1), "F32", 2)
        self.taps_weight = dataclasses.replace(flat, rows=net.channels, columns=net.taps)

    def run(self, inputs: Inputs, position: int, padding: int = 0) -> Host:
        """Read tokens from that position on; returns the input of the layer's last product.

        The padding after them has numbers, too.
        """
        real, acts = len(inputs.mixed), self.acts
        count = real + padding
        self.state.write(np.array([position, 0, padding, 0], np.uint32))
        for into, values in zip(acts[:4], inputs, strict=True):
            into[:real].write(values)
            into[real:count].fill(2)
        memory = self.memory.of_layer[0]
        self.delta.convolve(acts, self.taps_weight, memory, self.state, count=count)
        rates, bias = (
            vector(self.device, self.rates, "F32"),
            vector(self.device, self.bias, "BF16", 2),
        )
        self.delta.scan(acts, rates, bias, memory, self.state, count=count)
        norm = vector(self.device, self.norm, "F16")
        self.delta.finish(acts, norm, count=count, eps=1e-6)
        return acts.y[:real].numpy(force=True)

    def expected(self, inputs: Inputs) -> Host:
        """The same of all tokens from position 0 on, by the reference of whole models."""
        net = self.net
        names = {
            "ssm_in": inputs.mixed, "attn_qkv": inputs.mixed, "attn_gate": inputs.gates,
            "ssm_ba": inputs.writes, "ssm_beta": inputs.writes, "ssm_alpha": inputs.fades,
        }  # fmt: skip
        model = object.__new__(_LayerAlone)
        model.config = llm.Config(
            "qwen35", 1, 8, 8, 1, 1, 8, 8, 8, 1e-6, 1e4, "halves", 2, delta_net=net
        )
        model.inputs = names
        model.weights = {
            "blk.0.ssm_conv1d.weight": stored(self.taps, "F32"),
            "blk.0.ssm_a": stored(self.rates, "F32"),
            "blk.0.ssm_dt.bias": stored(self.bias, "BF16"),
            "blk.0.ssm_norm.weight": stored(self.norm, "F16"),
        }
        return model._delta(0, inputs.mixed.astype(np.float64))


class _LayerAlone(Reference):
    """A layer whose products are given."""

    inputs: dict[str, Host]

    def _product(self, x: Host, name: str) -> Host:
        given = self.inputs.get(name.removeprefix("blk.0."))
        return x if given is None else given.astype(np.float64)


def close(got: Host, wanted: Host, tolerance: float = 1e-5) -> None:
    assert np.abs(got - wanted).max() <= tolerance * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("net", NETS)
def test_layers(dev: ps.Device, variant: str, net: str) -> None:
    """Batches of every kind: single tokens, part of a chunk, whole chunks, and those not filled."""
    if "SwiftShader" in dev.name and (net, variant) != ("tiled", "gpu"):
        pytest.skip("slow on SwiftShader")
    random = np.random.default_rng(1)
    layer = Layer(dev, NETS[net], variant)
    counts = (3, 1, 1, 16, 17, 1, 2, 40, 5, 1)
    inputs = Inputs.random(layer.net, sum(counts), random)
    expected = layer.expected(inputs)
    position = 0
    for memory in layer.memory.of_layer.values():
        memory.fill(np.nan)  # what was there before must not matter
    for count in counts:
        got = layer.run(inputs.part(position, position + count), position)
        close(got, expected[position : position + count])
        position += count


@pytest.mark.usefixtures("fast")
def test_long_batches_take_several_launches(
    dev: ps.Device, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the loops of an invocation are limited."""
    layer = Layer(dev, NETS["grouped"], variant)
    layer.delta.traits = dataclasses.replace(layer.delta.traits, most_turns=1)
    monkeypatch.setattr("penstock.llm.delta_layers.MOST_TURNS", 1)
    inputs = Inputs.random(layer.net, 40, np.random.default_rng(2))
    close(layer.run(inputs, 0), layer.expected(inputs))


@pytest.mark.usefixtures("fast")
def test_extreme_numbers_stay_finite(dev: ps.Device, variant: str) -> None:
    """A state that fades at once, or never; writes of nothing; keys of length 0."""
    layer = Layer(dev, NETS["tiled"], variant)
    inputs = Inputs.random(layer.net, 20, np.random.default_rng(3))
    inputs.fades[::2], inputs.fades[1::2] = 60, -60
    inputs.writes[5:9] = -200
    inputs.mixed[3:12] = 0
    close(layer.run(inputs, 0), layer.expected(inputs), 1e-4)


# The shaders with a safeguard removed: the test of going back must fail.


def go_back_at_random(layer: Layer, seed: int) -> None:
    """Read batches and go back, and compare everything with NumPy."""
    random = np.random.default_rng(seed)
    every = Inputs.random(layer.net, 200, random)
    position = 0
    for _ in range(20):
        count = int(random.choice([1, 1, 1, 2, 3, 6, 17]))
        # Other tokens than those that were there, if any were.
        for one, new in zip(every, Inputs.random(layer.net, count, random), strict=True):
            one[position : position + count] = new
        layer.memory.begin(position + count)
        padding = int(random.choice([0, 0, 1, 13])) if count > 1 else 0
        got = layer.run(every.part(position, position + count), position, padding)
        position += count
        layer.memory.advance(position)
        if random.random() < 0.3:
            layer.memory.keep(position)
        close(got, layer.expected(every.part(0, position))[position - count :])
        if random.random() < 0.4:
            position = layer.memory.go_back(max(0, position - int(random.integers(0, 9))))


#: File, text and replacement.
MUTANTS = {
    "the window is that of the slot written": (
        "delta_convolve.comp", "uint from = position % ", "uint from = (position + count) % ",
    ),
    "the window is not moved on": (
        "delta_convolve.comp", "store_memory(to + n * CHANNELS, rows[n]);",
        "store_memory(to, 0.0);",
    ),
    "the window is moved on in place": (
        "delta_convolve.comp", "uint to = (position + real) %", "uint to = position %",
    ),
    "a first token sees an old window": (
        "delta_convolve.comp", "position == 0u || n == TAPS - 1", "n == TAPS - 1",
    ),
    "a first token sees an old state": (
        "delta_scan.comp", "bool fresh = position == 0u;", "bool fresh = false;",
    ),
    "a single token changes its state in place": (
        "delta_scan.comp", "uint to = (position + 1u) %", "uint to = position %",
    ),
    "a batch changes its state in place": (
        "delta_scan.comp", "(position + count - state[PADDING]) %", "position %",
    ),
    "every chunk begins with the state before the batch": (
        "delta_scan.comp", "begins == 0u ? from : to;", "from;",
    ),
    "the state does not fade over a chunk": (
        "delta_scan.comp", "four * left;", "four;",
    ),
    "padding moves the window on": ("delta_convolve.comp", "if (token < real) {", "{"),
    "padding fades the state": (
        "delta_factors.comp", "left += token < real ? fade : 0.0;", "left += fade;",
    ),
    "padding writes into the state": (
        "delta_factors.comp", "= token < real ? sigmoid", "= true ? sigmoid",
    ),
    "padding changes which slot is written": (
        "delta_scan.comp", "count - state[PADDING]) %", "count) %",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("fast")
def test_going_back(dev: ps.Device, variant: str) -> None:
    for seed, net in enumerate(NETS.values()):
        go_back_at_random(Layer(dev, net, variant), seed)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_shaders_are_caught(
    dev: ps.Device, tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old, new = MUTANTS[mutant]
    shaders = shutil.copytree(kernels.DIRECTORY, tmp_path / "shaders")
    text = (shaders / file).read_text()
    assert text.count(old) == 1
    (shaders / file).write_text(text.replace(old, new))
    monkeypatch.setattr(kernels, "DIRECTORY", shaders)
    layer = Layer(dev, NETS["tiled"], "cpu")
    layer.memory.of_layer[0].fill(5)
    with pytest.raises(AssertionError):
        go_back_at_random(layer, 0)


# Whole models.


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("delta")


@pytest.fixture
def small(load: Any, directory: Path, fast: None) -> llm.Model:
    path = directory / "qwen35-F32.gguf"
    if not path.exists():
        gguf(directory, "qwen35", "F32", tokenizer=True, **SMALL)
    model: llm.Model = load(path, batch=8)
    return model


def close_to(got: Host, wanted: Host) -> None:
    assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def test_every_split_of_a_prompt_gives_the_same(small: llm.Model, load: Any) -> None:
    wanted = Reference(small.file).logits(IDS)
    close_to(small.logits(IDS), wanted)
    for first in range(1, len(IDS), 3):
        with small.network() as network:
            parts = [network.logits(IDS[:first]), network.logits(IDS[first:])]
        close_to(np.concatenate(parts), wanted)


def test_a_step_costs_what_it_costs_elsewhere(small: llm.Model) -> None:
    made = small.generate(IDS, max_tokens=12, stop_ids=[])
    assert made.ids == Reference(small.file).greedy(IDS, 12)
    cost = small.generate(IDS, max_tokens=12, stop_ids=[]).receipt.generation
    assert (cost.allocations, cost.bytes_copied) == (0, 4 * cost.tokens)
    assert cost.waits <= cost.tokens
    assert cost.copies == cost.tokens


def test_receipts_tell_what_the_states_take(small: llm.Model) -> None:
    for _ in range(2):  # a conversation that starts again reuses the copy
        receipt = small.generate(IDS, max_tokens=3, stop_ids=[]).receipt
        held = receipt.recurrent
        assert held is not None
        assert held.slots == SLOTS
        net = small.config.delta_net
        assert net is not None
        each = 4 * Sizes.of(net).slot * len(net.layers)
        assert held.nbytes == (SLOTS + held.copies) * each
    assert f"{SLOTS} in a ring, {held.copies} copied: {held.nbytes:,} bytes" in str(receipt)
    assert receipt.as_dict()["recurrent"]["copies"] == held.copies


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "video"}, {"image": "x.png"},
     {"type": "input_audio"}],
)  # fmt: skip
def test_images_are_refused(small: llm.Model, part: dict[str, Any]) -> None:
    text = {"type": "text", "text": "What is this?"}
    with pytest.raises(ps.Unsupported, match=r"message 1 has a part of type .* only the text"):
        small.chat([{"role": "system", "content": "Hi"}, {"role": "user", "content": [text, part]}])


@pytest.mark.parametrize("discarded", range(AHEAD + 1))
def test_steps_issued_ahead_are_discarded(small: llm.Model, discarded: int) -> None:
    """Going back by as many steps as are in flight costs nothing, and changes nothing after."""
    with small.network() as network:
        network.read(IDS, "greedy")
        for _ in range(5):
            network.step("greedy")
        text = [*IDS, *(network.token(number) for number in range(5))]
        keep = len(text) - discarded
        with ps.count() as counts:
            assert network.restart(Sampling(), keep) == keep
        assert counts.waits == 0
        more = [9, 8, 7, 6, 5]
        got = network.logits(more)
    close_to(got, Reference(small.file).logits([*text[:keep], *more])[keep:])


def test_conversations_go_back_to_earlier_turns(small: llm.Model) -> None:
    with small.network() as network:
        network.read(IDS, "greedy")  # a turn ends
        ended = network.position
        for _ in range(7):
            network.step("greedy")
        text = [*IDS, *(network.token(number) for number in range(7))]
        assert network.restart(Sampling(), len(text)) == len(text)
        network.read([1, 2, 3, 4, 5, 6, 7, 8, 9], "greedy")  # another
        network.step("greedy")
        # Back to the first turn: what was copied at its end is all that is left of it.
        kept = network.restart(Sampling(), ended + 3)
        assert kept == ended
        got = network.logits([50, 60])
        close_to(got, Reference(small.file).logits([*IDS, 50, 60])[ended:])
        # And to a token of which nothing is left.
        assert network.restart(Sampling(), 5) == 0
        close_to(network.logits(IDS[:4]), Reference(small.file).logits(IDS[:4]))
        with pytest.raises(ps.InvalidValue, match="keep=5 of the 4 tokens"):
            network.restart(Sampling(), 5)


def test_generations_reuse_what_was_read(small: llm.Model) -> None:
    """A next turn, one turn further, and back: as without reuse, and only new tokens are read."""
    first = small.generate(IDS, max_tokens=6, stop_ids=[], reuse=True)
    second = [*IDS, *first.ids, 40, 50, 60]
    third = [*second, 70, 80]
    for prompt, most in ((second, 4), (third, 3), ([*IDS, 9, 8], 3), (second, 4)):
        wanted = Reference(small.file).greedy(prompt, most)
        made = small.generate(prompt, max_tokens=most, stop_ids=[], reuse=True)
        assert made.ids == wanted
        assert made.receipt.reused >= len(IDS)


def test_a_closed_stream_leaves_nothing_behind(small: llm.Model) -> None:
    wanted = small.generate(IDS, max_tokens=6, stop_ids=[]).ids
    for read in range(3):
        stream = small.generate(IDS[3:], max_tokens=20, stop_ids=[], stream=True)
        for _ in range(read):
            next(stream)
        stream.close()
        assert small.generate(IDS, max_tokens=6, stop_ids=[]).ids == wanted


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("arch", WITH_DELTA_NET)
def test_both_formats_give_the_same(load: Any, tmp_path: Path, arch: str) -> None:
    """Safetensors have other orders of heads and rows, norms less 1, and logarithms of rates."""
    sizes = {"layers": 3, "heads": 3, "kv_heads": 3, "head_size": 16, "rope_dimensions": 4}
    path = hugging_face(tmp_path / "hf", arch, vocabulary=288, sizes=sizes)
    file = tmp_path / "hf2"
    file.mkdir()
    ours = load(miniature(file, arch, vocabulary=288, **sizes))
    theirs = load(path)
    assert theirs.config.delta_net != ours.config.delta_net
    wanted = Reference(ours.file).logits(IDS)
    close_to(ours.logits(IDS), wanted)
    close_to(theirs.logits(IDS), wanted)
    close_to(Reference(theirs.file).logits(IDS), wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_key_head_dim": 6}, "key heads of 6; a multiple of 4"),
        ({"linear_num_key_heads": 3, "linear_num_value_heads": 4}, "4 value heads cannot share 3"),
        ({"linear_num_key_heads": 0}, "0 key heads of 8 .* make no sense"),
        ({"linear_conv_kernel_dim": 1}, "a convolution of 1 taps; 2 to 8"),
        ({"linear_value_head_dim": "8"}, "linear_value_head_dim must be a whole number"),
        ({"layer_types": ["linear_attention"]}, "layer_types must name .* each of 2 layers"),
        ({"layer_types": ["linear_attention"] * 2}, "without full attention in any layer"),
        ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"attn_output_gate": False}, "attn_output_gate must be true"),
        ({"model_type": "qwen3_5", "text_config": 3}, "text_config must be an object"),
    ],
)
def test_configurations_that_make_no_sense(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = hugging_face(tmp_path / "hf", "qwen35")
    described = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(described))
    with pytest.raises(llm.ModelError, match=message):
        llm.open_model(path)


def test_only_the_text_of_a_file_is_used(tmp_path: Path) -> None:
    """The encoder of images and layers that predict further tokens may be in it."""
    path = hugging_face(tmp_path / "hf", "qwen35")
    model = llm.open_model(path)
    tensors = {
        name.replace("model.", "model.language_model.", 1): one
        for name, one in hugging_face_tensors(llm.open_model(miniature(tmp_path, "qwen35"))).items()
    }
    others = ("model.visual.patch_embed.proj.weight", "mtp.layers.0.self_attn.q_proj.weight")
    write_safetensors(
        path / "model.safetensors", tensors | dict.fromkeys(others, np.ones((3, 5), np.float32))
    )
    described = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(
        json.dumps({"model_type": "qwen3_5", "text_config": described, "vision_config": {}})
    )
    with_others = llm.open_model(path)
    assert with_others.config == model.config
    assert with_others.tensors.keys() == model.tensors.keys()


def test_layers_that_predict_further_tokens_are_ignored(tmp_path: Path) -> None:
    path = miniature(tmp_path, "qwen35")
    model = llm.open_model(path)
    metadata = dict(model.metadata) | {
        "qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1
    }  # fmt: skip
    tensors = [
        NewTensor(name, one.kind, one.shape, lambda one=one: [one.bytes.tobytes()])  # type: ignore[misc]
        for name, one in model.tensors.items()
    ]
    tensors += [
        NewTensor(name, "F32", (2, 4), lambda: [bytes(32)])
        for name in ("blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight")
    ]
    other = tmp_path / "mtp.gguf"
    write_gguf(other, metadata, tensors)
    opened = llm.open_model(other)
    assert opened.config == model.config
    assert opened.tensors.keys() == model.tensors.keys()


@pytest.mark.usefixtures("fast")
def test_quantized_weights(load: Any, tmp_path: Path) -> None:
    sizes = {"hidden": 64, "heads": 2, "kv_heads": 2, "head_size": 64}
    model = load(gguf(tmp_path, "qwen35", "Q8_0", **(SMALL | sizes)))
    assert model.file.tensors["blk.0.ssm_out.weight"].kind == "Q8_0"
    close_to(model.logits(IDS), Reference(model.file).logits(IDS))


def expected_logits(path: Path) -> Host:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    (described,) = (
        one for name, one in json.loads(data[8 : 8 + length]).items() if "__" not in name
    )
    first, last = described["data_offsets"]
    numbers = np.frombuffer(data[8 + length :][first:last], np.float32)
    return numbers.reshape(described["shape"])


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "qwen3next"])
@pytest.mark.parametrize("format", ["safetensors", "gguf"])
def test_shared_models(load: Any, name: str, format: str) -> None:
    """As transformers computes them: logits within 2e-4, and the same greedy tokens."""
    where = shared(f"tiny-random-{name}")
    model = load(where if format == "safetensors" else next(where.glob("*.gguf")), context=128)
    told = json.loads((where / "expected.json").read_text())
    got = model.logits(told["prompt_ids"])
    assert np.abs(got - expected_logits(where / "expected_logits.safetensors")).max() < 2e-4
    count = len(told["greedy_ids"])
    made = model.generate(told["prompt_ids"], max_tokens=count, stop_ids=[])
    assert made.ids == told["greedy_ids"]
