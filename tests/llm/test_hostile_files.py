"""Damaged and hostile files: whatever the bytes, `ModelError` or a model, and little memory."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.llm import ChatTemplate, ModelError, Tokenizer, open_model
from penstock.llm.safetensors_file import INDEX
from penstock.llm.token_bytes import byte_characters
from tests.llm.model_builders import hugging_face, miniature, shared

ENOUGH = 32 << 20  # bytes of memory; what is asked for below would be gigabytes
EASY = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < ENOUGH
    finally:
        tracemalloc.stop()


def survives(path: Path) -> bool:
    """Whether a file opens, tokenizer and all; if not, it must be by a `ModelError`."""
    try:
        model = open_model(path)
        for tensor in model.tensors.values():
            assert tensor.offset + tensor.nbytes <= tensor.file.size
            assert tensor.bytes.size == tensor.nbytes
        for part in (Tokenizer, ChatTemplate):
            with contextlib.suppress(ModelError):
                part.of(model)
    except ModelError:
        return False
    return True


@pytest.fixture(scope="module")
def good_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return miniature(tmp_path_factory.mktemp("good"), tokenizer=True).read_bytes()


@pytest.fixture(scope="module")
def header_end(good_gguf: bytes) -> int:
    return good_gguf.index(b"output_norm.weight") + 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hugging_face(tmp_path_factory.mktemp("good"))


def test_truncated_gguf(tmp_path: Path, good_gguf: bytes, header_end: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(good_gguf)
    assert survives(path)
    lengths = [*range(200), *range(200, header_end, 13), *range(header_end, len(good_gguf), 997)]
    for length in [*lengths, len(good_gguf) - 1]:
        path.write_bytes(good_gguf[:length])
        assert not survives(path), length


def test_truncated_safetensors(tmp_path: Path, directory: Path) -> None:
    path = directory / "model.safetensors"
    good = path.read_bytes()
    header = struct.unpack_from("<Q", good)[0]
    try:
        for length in [*range(0, header, 11), *range(header, len(good), 997), len(good) - 1]:
            path.write_bytes(good[:length])
            assert not survives(path), length
    finally:
        path.write_bytes(good)
    assert survives(path)


def test_flipped_bits_in_a_gguf_header(tmp_path: Path, good_gguf: bytes, header_end: int) -> None:
    path = tmp_path / "flipped.gguf"
    random = np.random.default_rng(1)
    flips = [(at, random.integers(8)) for at in range(4, 400)]
    flips += [(at, random.integers(8)) for at in range(400, header_end, 17)]
    outcomes = []
    with little_memory():
        for at, bit in flips:
            data = bytearray(good_gguf)
            data[at] ^= 1 << int(bit)
            path.write_bytes(data)
            outcomes.append(survives(path))
    assert not all(outcomes)
    assert any(outcomes)  # a letter of a name harms nobody


def test_flipped_bits_in_a_safetensors_header(directory: Path) -> None:
    path = directory / "model.safetensors"
    good = path.read_bytes()
    random = np.random.default_rng(2)
    try:
        with little_memory():
            for at in range(8 + struct.unpack_from("<Q", good)[0]):
                data = bytearray(good)
                data[at] ^= 1 << int(random.integers(8))
                path.write_bytes(data)
                survives(path)
    finally:
        path.write_bytes(good)


@EASY
@given(data=st.data())
def test_spliced_gguf(
    tmp_path: Path, good_gguf: bytes, header_end: int, data: st.DataObject
) -> None:
    """Bytes of the header replaced, repeated, moved and removed."""
    made = bytearray(good_gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, header_end))
        length = data.draw(st.integers(0, 64))
        content = data.draw(
            st.one_of(
                st.binary(max_size=64),
                st.integers(0, 2**64 - 1).map(lambda n: struct.pack("<Q", n)),
                st.sampled_from([2**63, 2**64 - 1, 2**32, 2**31, 2**40]).map(
                    lambda n: struct.pack("<Q", n)
                ),
                st.integers(4, header_end).map(lambda at: good_gguf[at : at + 64]),
            )
        )
        made[at : at + length] = content
    path = tmp_path / "spliced.gguf"
    path.write_bytes(made)
    survives(path)


@EASY
@given(rest=st.binary(max_size=400))
def test_anything_after_the_magic(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "anything.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + rest)
    assert not survives(path)


@EASY
@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["model.norm.weight", "dtype", "shape", "data_offsets", "lm_head.weight", "F32"]
                ),
                inner | st.just("F32") | st.just([32]) | st.just([0, 128]),
                max_size=4,
            )
        ),
    )
)
def test_any_json_as_header(directory: Path, header: object) -> None:
    path = directory / "model.safetensors"
    good = path.read_bytes()
    text = json.dumps(header).encode()
    try:
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(256))
        assert not survives(path)
    finally:
        path.write_bytes(good)


#: Files beside the weights that are JSON. In JSON, a string may hold half of a character.
DESCRIBING = [
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", INDEX,
]  # fmt: skip


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all the files there may be."""
    made = hugging_face(tmp_path_factory.mktemp("talkative"), vocabulary=288)
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(byte_characters(), []))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = tokenizers.decoders.ByteLevel()
    engine.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    engine.save(str(made / "tokenizer.json"))
    added = {
        "tokenizer_config.json": {
            "bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>",
            "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        },
        "generation_config.json": {"eos_token_id": [1]},
        INDEX: {"weight_map": {"model.norm.weight": "model.safetensors"}},
    }  # fmt: skip
    for name, content in added.items():
        (made / name).write_text(json.dumps(content))
    assert use(made) == "<|im_start|>hi<|im_end|>"
    return made


@EASY
@given(data=st.data())
def test_half_a_character_anywhere_in_json(talkative: Path, data: st.DataObject) -> None:
    """Whatever uses the string later (a tokenizer, a template, a file system) could not."""
    path = talkative / data.draw(st.sampled_from([*DESCRIBING, "model.safetensors"]))
    good = path.read_bytes()
    start = 8 if path.suffix == ".safetensors" else 0
    end = start + struct.unpack_from("<Q", good)[0] if start else len(good)
    quotes = [at for at in range(start, end) if good[at : at + 1] == b'"']
    at = data.draw(st.sampled_from(quotes)) + data.draw(st.integers(0, 1))
    half = data.draw(st.sampled_from([b"\\ud800", b"\\uDFFF", b"\\ude00\\ud83d", b"\\ud83dx"]))
    header = good[start:at] + half + good[at:end]
    try:
        length = struct.pack("<Q", len(header)) if start else b""
        path.write_bytes(length + header + good[end:])
        with pytest.raises(ModelError, match="not valid"):
            use(talkative)
    finally:
        path.write_bytes(good)


def use(path: Path) -> str:
    """Open a model and both of what deals with text, and put a conversation into words."""
    model = open_model(path)
    tokenizer, template = Tokenizer.of(model), ChatTemplate.of(model)
    return tokenizer.decode(tokenizer.encode(template.render([{"content": "hi"}])), special=True)


def test_a_whole_character_in_two_halves_is_one(talkative: Path) -> None:
    path = talkative / "tokenizer_config.json"
    good = path.read_bytes()
    try:
        path.write_bytes(good.replace(b"{{ messages", b"\\ud83d\\ude00{{ messages"))
        assert use(talkative) == "<|im_start|>\U0001f600hi<|im_end|>"
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("template", [r"{{ '\ud800' }}", "{{ messages[0].content }}"])
def test_half_a_character_from_a_template(template: str) -> None:
    with pytest.raises(ModelError, match="half of a character"):
        ChatTemplate(template).render([{"role": "user", "content": "a\udfff"}])


def test_half_a_character_in_a_text(good_gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(good_gguf)
    tokenizer = Tokenizer.of(open_model(path))
    with pytest.raises(ModelError, match="text cannot be encoded"):
        tokenizer.encode("a\ud800")
    assert tokenizer.id_of("a\ud800") is None


# Hostile on purpose.


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def file_of(*parts: bytes, tensors: int = 0, keys: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + b"".join(parts)


U64 = 2**64 - 1
ARRAY = struct.pack("<I", 9)


def array(kind: int, count: int) -> bytes:
    return ARRAY + struct.pack("<IQ", kind, count)


HOSTILE = {
    "all tensors": (file_of(tensors=U64, keys=0), "tensors cannot be right"),
    "all keys": (file_of(keys=U64), "metadata keys cannot be right"),
    "many tensors": (file_of(tensors=60_000, keys=0), "ends at"),
    "long key": (file_of(struct.pack("<Q", U64)), "too long"),
    "key past the end": (file_of(struct.pack("<Q", 1 << 20)), "the file ends at"),
    "long text": (file_of(text("k"), struct.pack("<IQ", 8, 1 << 62)), "too long"),
    "long array": (file_of(text("k"), array(0, U64)), "the file ends at"),
    "array of overflowing size": (file_of(text("k"), array(10, 1 << 61)), "the file ends at"),
    "many strings": (file_of(text("k"), array(8, 1 << 60)), "strings cannot be right"),
    "string in array past the end": (
        file_of(text("k"), array(8, 2), text("a"), struct.pack("<Q", U64)), "past the end",
    ),
    "array ends in a length": (
        file_of(text("k"), array(8, 2), text("a" * 32), b"\1\0\0\0"), "past the end",
    ),
    "array of arrays": (file_of(text("k"), array(9, 1), array(9, 1) * 50), "array of arrays"),
    "array of nothing known": (file_of(text("k"), array(77, 1)), "unknown type 77"),
    "key of nothing known": (file_of(text("k"), struct.pack("<I", 13)), "unknown type 13"),
    "not UTF-8": (file_of(text(b"\xff\xfe")), "not UTF-8"),
    "neither true nor false": (file_of(text("k"), struct.pack("<IB", 7, 2)), "neither true"),
    "key twice": (
        file_of(*[text("k") + struct.pack("<II", 4, 1)] * 2, keys=2), "'k' is there twice",
    ),
    "tensor twice": (
        file_of(*[text("t") + struct.pack("<IQIQ", 1, 1, 0, 0)] * 2, bytes(64), tensors=2, keys=0),
        "'t' is there twice",
    ),
    "no dimensions": (
        file_of(text("t"), struct.pack("<IIQ", 0, 0, 0), tensors=1, keys=0), "0 dimensions",
    ),
    "many dimensions": (
        file_of(text("t"), struct.pack("<I", 1 << 31), tensors=1, keys=0), "dimensions; there are",
    ),
    "overflowing dimensions": (
        file_of(text("t"), struct.pack("<IQQIQ", 2, 1 << 33, 1 << 33, 0, 0), tensors=1, keys=0),
        "impossible shape",
    ),
    "no columns": (
        file_of(text("t"), struct.pack("<IQQIQ", 2, 0, 8, 0, 0), tensors=1, keys=0),
        "impossible shape",
    ),
    "offset that wraps": (
        file_of(text("t"), struct.pack("<IQIQ", 1, 8, 0, (1 << 64) - 32), tensors=1, keys=0),
        "did not end",
    ),
    "part of a block": (
        file_of(text("t"), struct.pack("<IQIQ", 1, 33, 8, 0), tensors=1, keys=0),
        "needs a multiple of 32",
    ),
    "long tensor name": (
        file_of(text("t" * 300), struct.pack("<IQIQ", 1, 1, 0, 0), tensors=1, keys=0), "too long",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_gguf(tmp_path: Path, what: str) -> None:
    data, message = HOSTILE[what]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    with little_memory(), pytest.raises(ModelError, match=message):
        open_model(path)


def test_a_vocabulary_of_nothing_costs_little(tmp_path: Path) -> None:
    """Eight million empty strings, in a file that really has them."""
    path = tmp_path / "hollow.gguf"
    path.write_bytes(file_of(text("k"), array(8, (1 << 23) + 1), bytes((8 << 23) + 64)))
    with little_memory(), pytest.raises(ModelError, match="strings cannot be right"):
        open_model(path)


def test_millions_of_layers_without_experts_cost_little(tmp_path: Path) -> None:
    """A list that is searched for each of a thousand layers would take minutes."""
    directory = hugging_face(
        tmp_path / "hf", "qwen3moe", mlp_only_layers=[7] * (1 << 21), num_hidden_layers=1000
    )
    with pytest.raises(ModelError, match="is missing"):
        open_model(directory)


def test_the_shared_models_survive_what_the_small_one_does(tmp_path: Path) -> None:
    good = shared("stories260K-qwen3/stories260K-qwen3-F32.gguf").read_bytes()
    path = tmp_path / "flipped.gguf"
    random = np.random.default_rng(3)
    for at in range(4, 14_000, 97):
        data = bytearray(good)
        data[at] ^= 1 << int(random.integers(8))
        path.write_bytes(data)
        survives(path)
