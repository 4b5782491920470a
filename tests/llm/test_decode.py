"""Whole models: logits and tokens as they should be, at the cost that the receipt tells."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import random_model
from penstock.llm.network import Network
from penstock.llm.optimizations import AHEAD, Mechanisms
from tests.gate import held_until_waited
from tests.interrupts import at_point, interrupt, points
from tests.llm.model_builders import gguf, hugging_face, shared, smollm2
from tests.llm.reference_model import Reference

IDS = [5, 17, 3, 200, 41, 99, 8, 1, 254, 30, 31, 7]
#: Small, but with an odd number of everything that may be odd.
SMALL = {"layers": 2, "hidden": 96, "ffn": 160, "heads": 6, "kv_heads": 3, "head_size": 32,
         "rope_dimensions": 32, "context": 128, "vocabulary": 288}  # fmt: skip
PARTS = 1  # batches that the prompt is read in
#: What F32 arithmetic may be off by, relative to the largest logit.
TOLERANCE = 2e-5


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def small(load: Any, directory: Path) -> llm.Model:
    path = directory / "qwen3-F32.gguf"
    if not path.exists():
        gguf(directory, "qwen3", "F32", tokenizer=True, **SMALL)
    model: llm.Model = load(path)
    return model


def close_to(got: Any, wanted: Any, tolerance: float) -> None:
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


# Logits.


@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe", "qwen2", "llama"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_logits_of_every_architecture(load: Any, tmp_path: Path, arch: str, kind: str) -> None:
    path = gguf(tmp_path, arch, kind, **SMALL)
    model = load(path)
    wanted = Reference(model.file).logits(IDS)
    close_to(model.logits(IDS), wanted, TOLERANCE)
    greedy = Reference(model.file).greedy(IDS, 8)
    assert model.generate(IDS, max_tokens=8, stop_ids=[]).ids == greedy


@pytest.mark.usefixtures("fast")
def test_logits_of_k_quants(load: Any, tmp_path: Path) -> None:
    sizes = {"hidden": 256, "ffn": 512, "heads": 4, "kv_heads": 2, "head_size": 64,
             "rope_dimensions": 64}  # fmt: skip
    model = load(gguf(tmp_path, "qwen3", "Q4_K_M", **(SMALL | sizes)))
    assert {tensor.kind for tensor in model.file.tensors.values()} >= {"Q4_K", "Q6_K"}
    close_to(model.logits(IDS), Reference(model.file).logits(IDS), TOLERANCE)


@pytest.mark.usefixtures("fast")
def test_logits_of_mixed_kinds_in_place(
    load: Any, dev: ps.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each matrix of another kind, the embedding included, and none is converted or copied."""
    kinds = itertools.cycle(["MXFP4", "IQ4_XS", "Q2_K", "Q3_K", "IQ4_NL", "BF16"])
    monkeypatch.setattr(
        random_model, "_kind_of",
        lambda name, shape, kind, layers: "F32" if len(shape) == 1 else next(kinds),
    )  # fmt: skip
    path = gguf(
        tmp_path,
        "qwen3",
        "MXFP4",
        **(SMALL | {"hidden": 256, "ffn": 512, "heads": 8, "kv_heads": 4}),
    )
    with ps.trace() as receipt:
        model = load(path, batch=1)
    assert receipt.bytes_copied < 1 << 16, "the table of angles, and no weights"
    assert {tensor.kind for tensor in model.file.tensors.values()} >= {"MXFP4", "Q2_K", "BF16"}
    close_to(model.logits(IDS), Reference(model.file).logits(IDS), TOLERANCE)


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_safetensors_give_the_same(load: Any, tmp_path: Path, arch: str) -> None:
    model = load(hugging_face(tmp_path / "hf", arch, vocabulary=288))
    close_to(model.logits(IDS), Reference(model.file).logits(IDS), TOLERANCE)


@pytest.mark.parametrize(("cache", "least", "most"), [("f16", 1e-6, 2e-3), ("q8_0", 1e-4, 2e-2)])
def test_a_smaller_cache_costs_little(
    load: Any, small: llm.Model, cache: str, least: float, most: float
) -> None:
    """In logits, and in how likely the model finds its own text."""
    if cache == "q8_0" and "SwiftShader" in small.device.name:
        pytest.skip("its kernels are tested there")
    model = load(small.file.path, cache=cache)
    exact, near = small.logits(IDS), model.logits(IDS)
    assert least < np.abs(near - exact).max() / np.abs(exact).max() < most
    ids = [*IDS, *small.generate(IDS, max_tokens=24, stop_ids=[]).ids]
    assert abs(unlikeliness(model, ids) - unlikeliness(small, ids)) < most


def unlikeliness(model: llm.Model, ids: list[int]) -> float:
    """The mean negative logarithm of the probability of each token after those before it."""
    logits = model.logits(ids)[:-1].astype(np.float64)
    scale = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return float((scale - logits[np.arange(len(ids) - 1), ids[1:]]).mean())


@pytest.mark.usefixtures("fast")
def test_a_cache_of_bytes_does_not_depend_on_batches(load: Any, small: llm.Model) -> None:
    """Rows are rounded when they are stored, so every split of a prompt reads the same."""
    whole, single = (
        load(small.file.path, cache="q8_0"),
        load(small.file.path, cache="q8_0", batch=1),
    )
    close_to(single.logits(IDS), whole.logits(IDS), 1e-3)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize("arch", ["qwen3moe", "qwen35"])
def test_a_cache_of_bytes_beside_experts_and_states(load: Any, tmp_path: Path, arch: str) -> None:
    """Rounded keys and values reach the router, which chooses as before unless two are close."""
    path = gguf(tmp_path, arch, "F32", **SMALL)
    exact, near = load(path), load(path, cache="q8_0")
    logits = near.logits(IDS)
    assert 1e-5 < np.abs(logits - exact.logits(IDS)).max() / np.abs(logits).max() < 2e-2
    for first in (1, 7):
        with near.network() as network:
            network.read(IDS[:first], "nothing")
            close_to(network.logits(IDS[first:]), logits[first:], 1e-3)
    whole = near.generate(IDS, max_tokens=8, stop_ids=[]).ids
    for kept in (IDS, IDS[:5], [*IDS, *whole[:3]]):  # later, earlier and later again
        again = near.generate(kept, max_tokens=5, stop_ids=[], reuse=True)
        assert again.ids == near.generate(kept, max_tokens=5, stop_ids=[]).ids
    cost = near.generate(IDS, max_tokens=8, stop_ids=[]).receipt.generation
    assert (cost.allocations, cost.bytes_copied) == (0, 4 * cost.tokens)


def test_a_cache_that_cannot_be_made_is_refused_at_once(dev: ps.Device, tmp_path: Path) -> None:
    path = gguf(tmp_path, "qwen3", "F32", **(SMALL | {"head_size": 48, "rope_dimensions": 48}))
    with pytest.raises(ps.Unsupported, match=r"'q8_0' needs heads of a multiple of 32.*48; use"):
        llm.load(path, dev, cache="q8_0")
    with pytest.raises(ps.InvalidValue, match="a cache of 'q4_0'; there are 'f16', 'f32', 'q8_0'"):
        llm.load(path, dev, cache="q4_0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"context": 20.5}, "context=20.5: it must be a whole number"),
        ({"context": "a"}, "context='a': it must be a whole number"),
        ({"batch": 64.0}, "batch=64.0: it must be a whole number"),
        ({"batch": None}, "batch=None: it must be a whole number"),
        ({"progress": 5}, "progress=5: it is called with"),
    ],
    ids=str,
)
def test_arguments_of_load(dev: ps.Device, small: llm.Model, options: Any, says: str) -> None:
    with pytest.raises(ps.ArgumentError, match=says):
        llm.load(small.file.path, dev, **options)


@pytest.mark.parametrize("path", [5, None, b"x"])
def test_a_model_is_a_path(path: Any) -> None:
    with pytest.raises(ps.ArgumentError, match="a model is the path of its file or directory"):
        llm.load(path)


@pytest.mark.usefixtures("fast")
def test_models_and_generations_are_not_copied(small: llm.Model) -> None:
    generation = small.generate(IDS, max_tokens=2, stop_ids=[])
    for handle, advice in ((small, "load"), (generation, "text or ids")):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(ps.ArgumentError, match=f"cannot be copied or pickled.*{advice}"):
                way(handle)  # type: ignore[operator]
    assert len(generation.ids) == 2


@pytest.mark.usefixtures("fast")
def test_batches_do_not_matter(load: Any, small: llm.Model) -> None:
    wanted = small.generate(IDS * 5, max_tokens=12, stop_ids=[]).ids
    for batch in (1, 7, 59):
        model = load(small.file.path, batch=batch)
        close_to(model.logits(IDS), small.logits(IDS), TOLERANCE)
        assert model.generate(IDS * 5, max_tokens=12, stop_ids=[]).ids == wanted


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("transfers", ["direct", "rename", "staged", "ordered", "unmapped"])
def test_transfers_do_not_matter(dev: ps.Device, small: llm.Model, transfers: str) -> None:
    wanted = small.generate(IDS, max_tokens=12, stop_ids=[]).ids
    with (
        ps.Device(dev.name, transfers=transfers) as other,
        llm.load(small.file.path, other, cache="f32", progress=False) as model,
    ):
        assert model.generate(IDS, max_tokens=12, stop_ids=[]).ids == wanted
        np.testing.assert_array_equal(model.logits(IDS), small.logits(IDS))


def test_tracing_does_not_matter(small: llm.Model) -> None:
    wanted = small.generate(IDS, max_tokens=12, stop_ids=[]).ids
    with ps.trace() as t:
        assert small.generate(IDS, max_tokens=12, stop_ids=[]).ids == wanted
    assert t.replays == PARTS + 11


FILES = [
    ("tiny-random-qwen3-F32.gguf", "expected_logits", 1e-5),
    (".", "expected_logits", 1e-5),
    ("tiny-random-qwen3-F16.gguf", "expected_logits", 1e-5),
    ("tiny-random-qwen3-BF16.gguf", "expected_logits", 1e-5),
    ("tiny-random-qwen3-Q8_0.gguf", "expected_logits_Q8_0", 1e-5),
    ("tiny-random-qwen3-Q4_0.gguf", "expected_logits_Q4_0", 1e-5),
]


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("file", "logits", "tolerance"), FILES)
def test_logits_computed_elsewhere(load: Any, file: str, logits: str, tolerance: float) -> None:
    directory = shared("tiny-random-qwen3")
    stored = _safetensors(directory / f"{logits}.safetensors")
    model = load(directory / file)
    close_to(model.logits(stored["ids"].tolist()), stored["logits_f64_as_f32"], tolerance)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("file", [FILES[0][0], FILES[1][0], FILES[2][0], FILES[3][0]])
def test_tokens_computed_elsewhere(load: Any, file: str) -> None:
    directory = shared("tiny-random-qwen3")
    expected = json.loads((directory / "expected.json").read_text())
    made = load(directory / file).generate(expected["prompt"], max_tokens=64, stop_ids=[])
    assert made.ids == expected["greedy"]
    assert made.finish_reason == "length"


def test_a_story(load: Any) -> None:
    directory = shared("stories260K-qwen3")
    first, second = json.loads((directory / "expected.json").read_text())
    model = load(directory / "stories260K-qwen3-F32.gguf")
    count = len(first["greedy_ids"])
    made = model.generate(first["prompt_ids"], max_tokens=count, stop_ids=[])
    assert made.ids == first["greedy_ids"]
    assert made.text.strip() == first["text"].strip()
    made = model.generate(second["prompt"], max_tokens=8)
    assert made.prompt_ids == second["prompt_ids"]
    assert made.ids == second["greedy_ids"][:8]


@pytest.mark.usefixtures("fast")
def test_smollm2_answers(load: Any) -> None:
    model = load(smollm2(), context=256)
    said = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    made = model.chat(said, max_tokens=24)
    assert "Paris" in made.text
    assert made.finish_reason == "stop"
    assert "<|im_end|>" not in made.text


@pytest.mark.usefixtures("fast")
def test_the_demo_gets_the_answer_that_the_readme_shows(load: Any) -> None:
    root = Path(__file__).parent.parent.parent
    asked = re.search(
        r'generate smollm2 --chat --busy -n 64 -p "([^"]+)"', (root / "scripts/demo").read_text()
    )
    assert asked is not None
    question = asked[1].replace("\\\n", "")
    made = load(smollm2(), context=256).chat([{"role": "user", "content": question}], max_tokens=64)
    quoted = [
        line[2:] for line in (root / "README.md").read_text().splitlines() if line[:2] == "> "
    ]
    assert made.text == " ".join(quoted)
    assert made.finish_reason == "stop"


# Generation.


def test_streaming_gives_the_same_text(small: llm.Model) -> None:
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    pieces = small.generate("abc", max_tokens=20, stop_ids=[], stream=True)
    assert "".join(pieces) == whole.text
    assert pieces.ids == whole.ids
    assert len(whole.ids) == 20


def test_a_stop_token_ends_it_and_is_not_shown(small: llm.Model) -> None:
    ids = small.generate(IDS, max_tokens=20, stop_ids=[]).ids
    last = ids[9]
    ends = ids.index(last)
    made = small.generate(IDS, max_tokens=20, stop_ids=[last])
    assert (made.ids, made.finish_reason) == (ids[:ends], "stop")
    assert made.text == small.tokenizer.decode(ids[:ends])


def test_few_steps_are_issued_after_a_stop_token(small: llm.Model) -> None:
    ids = small.generate(IDS, max_tokens=20, stop_ids=[]).ids
    ends = ids.index(ids[5])
    with ps.trace() as t:
        small.generate(IDS, max_tokens=20, stop_ids=[ids[5]])
    assert t.replays <= PARTS + ends + AHEAD


def test_a_stop_string_ends_it_wherever_tokens_end(small: llm.Model) -> None:
    text = small.generate("abc", max_tokens=40, stop_ids=[]).text
    stop = text[7:10]
    made = small.generate("abc", max_tokens=40, stop_ids=[], stop=stop)
    assert made.text == text[: text.index(stop)]
    assert made.finish_reason == "stop"
    unmet = small.generate("abc", max_tokens=40, stop_ids=[], stop=[text[-2:] + "never"])
    assert unmet.text == text


def test_the_same_seed_gives_the_same_text(small: llm.Model) -> None:
    drawn = [
        small.generate(IDS, max_tokens=16, stop_ids=[], temperature=1.5, seed=seed).ids
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    likeliest = small.generate(IDS, max_tokens=16, stop_ids=[]).ids
    assert (
        small.generate(IDS, max_tokens=16, stop_ids=[], temperature=9.0, top_k=1).ids == likeliest
    )


def test_a_penalty_keeps_tokens_from_coming_again(small: llm.Model) -> None:
    made = small.generate(
        IDS, max_tokens=30, stop_ids=[], repetition_penalty=1e6, penalty_last=1024
    )
    assert len({*made.ids, *IDS}) == len(made.ids) + len(IDS)


def test_the_context_is_the_limit(load: Any, small: llm.Model) -> None:
    model = load(small.file.path, context=16)
    made = model.generate(IDS, stop_ids=[])
    assert len(made.ids) == 16 - len(IDS) + 1
    assert made.finish_reason == "length"
    assert len(model.generate(IDS[:1] * 16, stop_ids=[]).ids) == 1
    with pytest.raises(ps.InvalidValue, match=r"17 tokens.*room for 16"):
        model.generate(IDS[:1] * 17)


@pytest.mark.usefixtures("fast")
def test_steps_look_farther_as_the_text_grows(load: Any, tmp_path: Path) -> None:
    shape = {**SMALL, "layers": 1, "heads": 16, "kv_heads": 8, "head_size": 128, "context": 600,
             "rope_dimensions": 128}  # fmt: skip
    model = load(gguf(tmp_path, "qwen3", "F16", **shape), cache="f16")
    with ps.trace() as t:
        ids = model.generate(IDS, max_tokens=450, stop_ids=[]).ids
    logits = model.logits([*IDS, *ids])[len(IDS) - 1 : -1]
    taken = np.take_along_axis(logits, np.array(ids)[:, None], 1)[:, 0]
    assert (taken >= logits.max(1) - 1e-3 * np.abs(logits).max(1)).all()
    assert t.waits <= len(ids)
    with model.network() as network:
        assert len({key[3] for key in network._graphs if key[:2] == (1, False)}) in (1, 3)


def test_it_can_be_left_before_its_end(small: llm.Model) -> None:
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    left = small.generate("abc", max_tokens=20, stop_ids=[], stream=True)
    next(left)
    left.close()
    assert len(left.ids) < 20
    assert small.generate("abc", max_tokens=20, stop_ids=[]).ids == whole.ids


def test_closing_from_another_thread_ends_the_reading(
    small: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` comes while the reader is in the middle of a step."""
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    made = small.generate("abc", max_tokens=20, stop_ids=[], stream=True)
    token = Network.token
    closer = threading.Thread(target=made.close)

    def closed_meanwhile(network: Network, number: int) -> int:
        if number == 3:
            closer.start()
            until = time.monotonic() + 60
            while not made._run.left and time.monotonic() < until:
                time.sleep(0.001)
        return token(network, number)

    with monkeypatch.context() as patch:
        patch.setattr(Network, "token", closed_meanwhile)
        pieces = list(made)
    closer.join()
    assert made.text == "".join(pieces)
    assert made.text == whole.text[: len(made.text)]
    assert (made.ids, made.finish_reason) == (whole.ids[:3], "cancelled")
    assert made.receipt.generation.tokens == 3
    assert_reused(small, whole.ids)


@pytest.mark.parametrize("end", ["closed", "dropped", "closed twice"])
def test_one_that_was_never_read_gives_its_network_back(small: llm.Model, end: str) -> None:
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    made = small.generate("abc", max_tokens=20, stop_ids=[], stream=True)
    if end != "dropped":
        for _ in range(1 + (end == "closed twice")):
            made.close()
        assert (made.text, made.ids, made.finish_reason) == ("", [], "cancelled")
        assert made.receipt.prompt.tokens == made.receipt.generation.tokens == 0
        assert next(made, "nothing") == "nothing"
    del made
    assert_reused(small, whole.ids)
    with small.network() as one, small.network() as other:
        assert one is not other


def test_one_that_is_dropped_in_its_middle_gives_its_network_back(small: llm.Model) -> None:
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    for _ in small.generate("abc", max_tokens=20, stop_ids=[], stream=True):
        break
    assert_reused(small, whole.ids)


def test_ctrl_c_ends_a_generation_and_not_the_model(
    small: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    token, step = Network.token, Network.step
    for name, real in (("token", token), ("step", step)):
        calls = iter(range(100))

        def interrupted(network: Network, argument: Any, real: Any = real) -> Any:
            if next(calls) == 3:  # noqa: B023
                signal.raise_signal(signal.SIGINT)
            return real(network, argument)

        made = small.generate("abc", max_tokens=20, stop_ids=[], stream=True)
        with monkeypatch.context() as patch:
            patch.setattr(Network, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(made)
        assert made.finish_reason == "cancelled"
        assert whole.text.startswith(made.text)
        assert made.receipt.prompt.tokens == 3
        assert small.generate("abc", max_tokens=20, stop_ids=[]).ids == whole.ids


def test_ctrl_c_anywhere_leaves_the_model_as_it_was(small: llm.Model) -> None:
    def generate() -> None:
        small.generate("abc", max_tokens=8, stop_ids=[])

    whole = small.generate("abc", max_tokens=8, stop_ids=[])
    count = points(generate)
    assert count > 1000
    for number in range(1, count, count // 5):
        at_point(number, interrupt, generate)
        assert small.generate("abc", max_tokens=8, stop_ids=[]).ids == whole.ids


def test_a_signal_handler_may_close(small: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small.generate("abc", max_tokens=20, stop_ids=[])
    made = small.generate("abc", max_tokens=20, stop_ids=[], stream=True)
    token = Network.token

    def closed_meanwhile(network: Network, number: int) -> int:
        if number == 3:
            made.close()  # as a handler does that runs in the middle of this call
            with pytest.raises(ps.InvalidValue, match="in the middle of its own step"):
                made.text  # noqa: B018
        return token(network, number)

    with monkeypatch.context() as patch:
        patch.setattr(Network, "token", closed_meanwhile)
        list(made)
    assert (made.ids, made.finish_reason) == (whole.ids[:3], "cancelled")
    assert_reused(small, whole.ids)


def assert_reused(model: llm.Model, ids: list[int]) -> None:
    """The next generation gets the network of the one before, and its tokens are right."""
    with ps.trace() as t:
        assert model.generate("abc", max_tokens=20, stop_ids=[]).ids == ids
    t.expect(allocations=range(2))  # one for staging, if steps of the one before still run


def test_several_at_once(small: llm.Model) -> None:
    prompts = [IDS, IDS[::-1], IDS[3:]]
    wanted = [small.generate(ids, max_tokens=10, stop_ids=[]).ids for ids in prompts]
    both = [small.generate(ids, max_tokens=10, stop_ids=[], stream=True) for ids in prompts]
    for pieces in zip(*both, strict=False):
        assert len(pieces) == len(prompts)
    assert [each.ids for each in both] == wanted


def test_several_threads(threaded_device: ps.Device, small: llm.Model) -> None:
    prompts = [IDS, IDS[::-1], IDS[3:]]
    wanted = [small.generate(ids, max_tokens=10, stop_ids=[]).ids for ids in prompts]
    model = llm.load(small.file.path, threaded_device, cache="f32")
    got: dict[int, list[int]] = {}

    def run(number: int) -> None:
        got[number] = model.generate(prompts[number], max_tokens=10, stop_ids=[]).ids

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[number] for number in range(len(prompts))] == wanted


# What it costs.


def test_a_load_copies_no_weight(dev: ps.Device, small: llm.Model) -> None:
    with ps.trace() as t:
        model = llm.load(small.file.path, dev)
    copied = {event.buffer for event in t.of_kind("copy")}
    assert copied <= {"angles"}
    model.close()


def test_a_token_costs_no_allocation_and_four_bytes(small: llm.Model) -> None:
    for _ in range(2):
        made = small.generate(IDS, max_tokens=40, stop_ids=[])
    cost = made.receipt.generation
    assert cost.tokens == 39
    assert cost.allocations == 0
    assert cost.bytes_copied == 4 * cost.tokens
    assert cost.submissions <= cost.tokens
    assert made.receipt.prompt.tokens == len(IDS)
    assert "tokens per second" in str(made.receipt)


def test_issuing_a_token_waits_for_nothing(dev: ps.Device, small: llm.Model) -> None:
    with small.network() as network:
        network.read(IDS, "greedy")
        network.step("greedy")
        dev.synchronize()
        with ps.trace() as t:
            for _ in range(20):
                network.step("greedy")
            t.expect(waits=0, allocations=0, copies=0, replays=20)
            assert t.submissions <= 20
        assert network.token(21) == small.generate(IDS, max_tokens=22, stop_ids=[]).ids[21]


MECHANISMS = ["scratch", "replay", "access", "sampling"]


@pytest.mark.parametrize("off", [*([name] for name in MECHANISMS), MECHANISMS], ids="+".join)
def test_without_a_mechanism_the_text_is_the_same_and_costs_more(
    small: llm.Model, off: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = Mechanisms(**dict.fromkeys(off, False))
    for _ in range(2):  # the second has nothing left to compile and record
        wanted = small.generate(IDS, max_tokens=12, stop_ids=[])
        made = small.generate(IDS, max_tokens=12, stop_ids=[], mechanisms=without)
    assert made.ids == wanted.ids
    cost, least = made.receipt.generation, wanted.receipt.generation
    assert cost.tokens == least.tokens == 11
    assert cost.launches >= least.launches
    if off != ["access"]:
        assert cost.allocations > 0 or cost.bytes_copied >= 4 * 288 * cost.tokens
        return
    with held_until_waited(small.device.default_stream) as hold_again:
        # A step that is complete already is not waited for: so none is before the host waits.
        step = Network.step
        monkeypatch.setattr(Network, "step", lambda *args: (hold_again(), step(*args)))
        held = small.generate(IDS, max_tokens=12, stop_ids=[], mechanisms=without)
    assert held.ids == wanted.ids
    cost = held.receipt.generation
    assert cost.submissions == cost.tokens == cost.waits == 11


def test_the_host_draws_no_token(small: llm.Model) -> None:
    with pytest.raises(ps.InvalidValue, match="temperature"):
        small.generate(IDS, temperature=1.0, mechanisms=Mechanisms(sampling=False))


# What cannot be.


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([], {}, ps.InvalidValue, "no tokens"),
        ([5, 288], {}, ps.InvalidValue, "token 288"),
        ([-1], {}, ps.InvalidValue, "token -1"),
        ([1.5], {}, ps.ArgumentError, "list of token ids"),
        (3, {}, ps.ArgumentError, "list of token ids"),
        (IDS, {"max_tokens": -1}, ps.InvalidValue, "max_tokens"),
        (IDS, {"temperature": -1.0}, ps.InvalidValue, "temperature"),
        (IDS, {"top_p": 2.0}, ps.InvalidValue, "top_p"),
        (IDS, {"mechanisms": None}, ps.ArgumentError, "mechanisms=None: it must be llm.Mechanisms"),
        (IDS, {"reader": 5}, ps.ArgumentError, "reader=5: it must be an AnswerReader, or"),
    ],
)
def test_bad_requests(
    small: llm.Model, prompt: Any, options: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        small.generate(prompt, **options)
    if not options:
        with pytest.raises(error, match=says):
            small.logits(prompt)
    assert len(small.generate(IDS, max_tokens=2, stop_ids=[]).ids) == 2


def test_without_a_tokenizer_there_are_only_ids(load: Any, tmp_path: Path) -> None:
    model = load(gguf(tmp_path, "qwen3", "F32", **SMALL))
    made = model.generate(IDS, max_tokens=3)
    assert len(made.ids) == 3
    for attempt in (
        lambda: model.generate("abc"),
        lambda: made.text,
        lambda: model.generate(IDS, stop="x"),
        lambda: model.chat([{"role": "user", "content": "x"}]),
    ):
        with pytest.raises(llm.ModelError):
            attempt()


def test_a_closed_model_says_so(dev: ps.Device, small: llm.Model) -> None:
    model = llm.load(small.file.path, dev)
    model.generate(IDS, max_tokens=2)
    model.close()
    model.close()
    with pytest.raises(ps.Closed):
        model.generate(IDS)
    for options in ({"context": 0}, {"context": 1 << 20}, {"batch": 0}, {"cache": "f8"}):
        with pytest.raises(ps.Error):
            llm.load(small.file.path, dev, **options).generate(IDS)  # type: ignore[arg-type]


def _safetensors(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    kinds = {"F32": np.float32, "I64": np.int64}
    return {
        name: np.frombuffer(
            raw[8 + length :][slice(*one["data_offsets"])], kinds[one["dtype"]]
        ).reshape(one["shape"])
        for name, one in json.loads(raw[8 : 8 + length]).items()
        if name != "__metadata__"
    }
