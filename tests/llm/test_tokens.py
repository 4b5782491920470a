"""Tokenizers: the ids that the models' own tools give, and text back, piece by piece."""

from __future__ import annotations

import json
import sys
import threading
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.llm import ModelError, Tokenizer, open_model
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.token_bytes import byte_characters
from penstock.llm.tokens import _CUTS
from tests.llm.model_builders import hugging_face, miniature, shared, smollm2

TEXTS = ["", " ", "Hello, world!", "  two  spaces\n\n and\tlines\r\n", "naïve café 你好 🙂🙃",
         "x=12345;", "don't WE'LL I'm", "e\u0301 combined", "\u00a0wide", "\0\x7f"]  # fmt: skip


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.of(open_model(miniature(tmp_path_factory.mktemp("bytes"), tokenizer=True)))


# Against what others say.


@pytest.mark.parametrize("file", ["", "tiny-random-qwen3-F32.gguf", "tiny-random-qwen3-Q4_0.gguf"])
def test_qwen3(file: str) -> None:
    directory = shared("tiny-random-qwen3")
    expected = json.loads((directory / "expected.json").read_text())
    tokenizer = Tokenizer.of(open_model(directory / file))
    assert tokenizer.encode(expected["text"]) == expected["prompt"]
    assert tokenizer.decode(expected["prompt"]) == expected["text"]
    assert (tokenizer.eos, tokenizer.add_bos) == (2047, False)
    assert tokenizer.stop_ids == {2045, 2047}
    assert tokenizer.control_ids == {2045, 2046, 2047}


def test_both_formats_of_qwen3_agree() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    directory = shared("tiny-random-qwen3")
    theirs = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    for file in ("", "tiny-random-qwen3-F32.gguf"):
        ours = Tokenizer.of(open_model(directory / file))
        for text in [*TEXTS, "<|im_start|>user\nhi<|im_end|>"]:
            ids = theirs.encode(text).ids
            assert ours.encode(text) == ids, text
            assert ours.decode(ids) == theirs.decode(ids)
            assert ours.decode(ids, special=True) == theirs.decode(ids, skip_special_tokens=False)


def test_pieces_of_stories() -> None:
    path = shared("stories260K-qwen3/stories260K-qwen3-F32.gguf")
    tokenizer = Tokenizer.of(open_model(path))
    for case in json.loads((path.parent / "expected.json").read_text()):
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        assert tokenizer.decode(case["prompt_ids"] + case["greedy_ids"]) == case["text"]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos) == (1, 2, True)
    assert tokenizer.stop_ids == {2}


def test_pieces_in_tokenizer_json(tmp_path: Path) -> None:
    """The same pieces as Hugging Face stores them, with the decoder that it gives them."""
    decoders = pytest.importorskip("tokenizers").decoders
    stories = Tokenizer.of(open_model(shared("stories260K-qwen3/stories260K-qwen3-F32.gguf")))
    engine = stories._engine
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    directory = hugging_face(tmp_path / "hf", vocabulary=512)
    engine.save(str(directory / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    ours = Tokenizer.of(open_model(directory))
    assert (ours.bos, ours.eos, ours.stop_ids) == (1, 2, {2, 7})
    for text in TEXTS:
        ids = engine.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == engine.decode(ids) == text


def test_smollm2() -> None:
    """Its vocabulary lacks some bytes, so that it cannot say everything; but this it can."""
    tokenizer = Tokenizer.of(open_model(smollm2()))
    ids = tokenizer.encode("<|im_start|>user\nHello 123<|im_end|>\n")
    names = [tokenizer.name_of(one) for one in ids]
    assert names == ["<|im_start|>", "user", "Ċ", "Hello", "Ġ", "1", "2", "3", "<|im_end|>", "Ċ"]
    assert tokenizer.stop_ids == {0, 2}
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


# What holds for every tokenizer.


def every_tokenizer() -> list[Any]:
    return [
        pytest.param(lambda: shared("tiny-random-qwen3"), id="tokenizer.json"),
        pytest.param(lambda: shared("tiny-random-qwen3/tiny-random-qwen3-F32.gguf"), id="bytes"),
        pytest.param(lambda: shared("stories260K-qwen3/stories260K-qwen3-F32.gguf"), id="pieces"),
    ]


@pytest.mark.parametrize("find", every_tokenizer())
def test_text_comes_back_and_in_whole_characters(find: Any) -> None:
    tokenizer = Tokenizer.of(open_model(find()))

    @settings(max_examples=150, deadline=None)
    @given(st.text(max_size=40))
    def comes_back(text: str) -> None:
        ids = tokenizer.encode(text, special=False)
        assert all(0 <= one < tokenizer.vocabulary for one in ids)
        decoder = tokenizer.decoder()
        parts = [decoder.push(one) for one in ids]
        assert "\ufffd" not in "".join(parts) or "\ufffd" in text
        assert not decoder.finish()
        composed = unicodedata.normalize("NFC", text)  # which Qwen asks for
        assert "".join(parts) in (text, composed)
        assert tokenizer.decode(ids) == "".join(parts)

    comes_back()


def test_a_character_comes_with_its_last_byte(byte_tokenizer: Tokenizer) -> None:
    decoder = byte_tokenizer.decoder()
    ids = byte_tokenizer.encode("a🙂é")
    assert len(ids) == 1 + 4 + 2
    assert [decoder.push(one) for one in ids] == ["a", "", "", "", "🙂", "", "é"]
    assert [decoder.push(one) for one in ids[:3]] == ["a", "", ""]
    assert decoder.finish() == "\ufffd"  # the text ends in the middle of one
    assert decoder.push(ids[0]) == "a"  # and the next starts afresh


def test_bytes_that_are_no_text(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.decode([0xFF, 0x41, 0x80]) == "\ufffdA\ufffd"


def test_strangers_cannot_write_control_tokens(byte_tokenizer: Tokenizer) -> None:
    text = "<|im_end|>"
    (control,) = byte_tokenizer.encode(text)
    assert control == byte_tokenizer.id_of(text) == byte_tokenizer.eos
    plain = byte_tokenizer.encode(text, special=False)
    assert plain == list(text.encode())
    assert byte_tokenizer.decode(plain) == text
    assert byte_tokenizer.decode([control]) == ""
    assert byte_tokenizer.decode([control], special=True) == text


def test_both_ways_at_once_from_threads(byte_tokenizer: Tokenizer) -> None:
    wrong: list[list[int]] = []
    text, encode = "<|im_end|>" * 50, byte_tokenizer.encode

    def run(special: bool) -> None:
        expected = [byte_tokenizer.eos] * 50 if special else list(text.encode())
        wrong.extend(ids for _ in range(200) if (ids := encode(text, special)) != expected)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=run, args=(special,)) for special in (True, False) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert not wrong


def test_ids_that_do_not_exist(byte_tokenizer: Tokenizer) -> None:
    for number in (-1, byte_tokenizer.vocabulary, 1 << 40):
        with pytest.raises(ModelError, match=r"token .* is not one of the 288"):
            byte_tokenizer.decode([number])
    assert byte_tokenizer.name_of(1 << 40) == ""


def test_text_that_is_none(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="cannot be encoded"):
        byte_tokenizer.encode("\ud800")
    for wrong in (5, None, b"a"):
        with pytest.raises(ps.ArgumentError, match="takes a text"):
            byte_tokenizer.encode(wrong)  # type: ignore[arg-type]
    for ids in (5, None, ["a"], [1.5]):
        with pytest.raises(ps.ArgumentError, match="takes a list of ids"):
            byte_tokenizer.decode(ids)  # type: ignore[arg-type]


def test_a_model_without_tokenizer_is_for_ids(tmp_path: Path) -> None:
    for path in (miniature(tmp_path), hugging_face(tmp_path / "hf")):
        with pytest.raises(ModelError, match="works on token ids only"):
            Tokenizer.of(open_model(path))


def test_a_folder_names_the_gguf_files_in_it(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path / "hf")
    (directory / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"ids only; this folder has b\.gguf: give that file$"):
        Tokenizer.of(open_model(directory))
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors; this folder has b\.gguf: give that"):
        open_model(directory)
    for name in "acd":
        (directory / f"{name}.gguf").touch()
    with pytest.raises(ModelError, match=r"has a\.gguf, b\.gguf, c\.gguf …: give one of these"):
        open_model(directory)


# From keys.


def with_keys(directory: Path, **changes: Any) -> Tokenizer:
    """The tokenizer of a small model with other keys; None removes one."""
    model = open_model(miniature(directory, tokenizer=True))
    metadata = dict(model.metadata)
    metadata["tokenizer.ggml.tokens"] = list(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.merges"] = []
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    kept = {key: value for key, value in metadata.items() if value is not None}
    tensors = [
        NewTensor(name, one.kind, one.shape, lambda one=one: [one.bytes.tobytes()])
        for name, one in model.tensors.items()
    ]
    path = directory / "changed.gguf"
    write_gguf(path, kept, tensors)
    return Tokenizer.of(open_model(path))


@pytest.mark.parametrize("pre", _CUTS)
def test_words_are_cut_as_the_model_wants(tmp_path: Path, pre: str) -> None:
    tokenizer = with_keys(tmp_path, pre=pre)
    text = "Hello world,   it's 12345!\n\n   你好"
    engine = tokenizer._engine
    alphabet = byte_characters()
    cut = [
        bytes(alphabet[character] for character in word).decode()
        for word, _ in engine.pre_tokenizer.pre_tokenize_str(text)
    ]
    assert "".join(cut) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    if pre == "llama-bpe":
        assert "123" in cut
        assert "45" in cut
    if pre in ("qwen2", "smollm", "deepseek-coder"):
        assert [word for word in cut if word.isdigit()] == list("12345")
    if pre == "gpt-2":
        assert " 12345" in cut
        assert "'s" in cut
    if pre == "deepseek-llm":
        assert "12345" in cut
        assert " world" in cut


def test_merges_and_whole_words(tmp_path: Path) -> None:
    names = [*sorted(byte_characters(), key=lambda one: byte_characters()[one]), "ab", "abc", "cd"]
    keys = {"tokens": names, "token_type": np.ones(len(names), np.int32), "eos_token_id": 0,
            "bos_token_id": 0, "merges": ["a b", "c d"]}  # fmt: skip
    assert with_keys(tmp_path, pre="qwen2", **keys).encode("abc") == [256, ord("c")]
    assert with_keys(tmp_path, pre="llama-bpe", **keys).encode("abc") == [257]
    assert with_keys(tmp_path, pre="qwen2", **keys).encode("abcd") == [256, 258]


def test_beginning_and_end(tmp_path: Path) -> None:
    tokenizer = with_keys(tmp_path, add_bos_token=True)
    assert tokenizer.encode("a") == [tokenizer.bos, ord("a")]
    assert tokenizer.encode("<|endoftext|>a") == [tokenizer.bos, ord("a")]
    assert tokenizer.encode("a", special=False) == [ord("a")]
    assert with_keys(tmp_path, eot_token_id=65).stop_ids == {65, 256, 258}
    assert with_keys(tmp_path, bos_token_id=0xFFFFFFFF, add_bos_token=True).encode("a") == [97]


def test_pieces_take_the_best_score_first(tmp_path: Path) -> None:
    names = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    first = len(names)
    names += ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc"]
    types = np.full(len(names), 1, np.int32)
    types[:3], types[3:first] = (2, 3, 3), 6
    scores = np.zeros(len(names), np.float32)
    scores[first:] = [-9, -9, -9, -9, -2, -1, -3, -4]

    def pieces(**changes: Any) -> Tokenizer:
        return with_keys(tmp_path, model="llama", pre=None, tokens=names, token_type=types,
                         merges=None, bos_token_id=1, eos_token_id=2, unknown_token_id=0,
                         add_bos_token=None, **({"scores": scores} | changes))  # fmt: skip

    def words(tokenizer: Tokenizer, text: str) -> list[str]:
        return [tokenizer.name_of(one) for one in tokenizer.encode(text)]

    assert words(pieces(), "abc") == ["<s>", "▁a", "bc"]
    assert words(pieces(add_space_prefix=False), "abc") == ["<s>", "abc"]
    assert words(pieces(), "aé") == ["<s>", "▁a", "<0xC3>", "<0xA9>"]
    better = scores.copy()
    better[first + 4] = 0  # now "ab" goes first
    assert words(pieces(scores=better), "abc") == ["<s>", "▁", "abc"]
    assert pieces().decode(pieces().encode(" a é")) == " a é"
    with pytest.raises(ModelError, match="scores must be finite"):
        pieces(scores=np.full(len(names), np.nan, np.float32))


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "family": ("'rwkv' is not supported: gpt2 and llama are", {"model": "rwkv"}),
    "pre": ("'who-knows' is not supported; there are default", {"pre": "who-knows"}),
    "no tokens": ("tokens must be an array of strings", {"tokens": None}),
    "tokens are a text": ("tokens must be an array of strings", {"tokens": "abc"}),
    "too many tokens": ("300 tokens do not fit the 288 rows", {"tokens": ["x"] * 300}),
    "types": ("array of 288 numbers", {"token_type": np.ones(5, np.int32)}),
    "types are text": ("array of 288 numbers", {"token_type": ["x"] * 288}),
    "end": (r"eos_token_id 999 is not one of the 288", {"eos_token_id": 999}),
    "merge of one": ("'ab' is not two tokens", {"merges": ["ab"]}),
    "merge of three": ("'a b c' is not two tokens", {"merges": ["a b c"]}),
    "merge of nothing known": ("cannot be used as a tokenizer", {"merges": ["a b"]}),
    "flag": ("must be true or false", {"add_bos_token": 1}),
}


@pytest.mark.parametrize("what", WRONG)
def test_keys_that_are_wrong(tmp_path: Path, what: str) -> None:
    message, changes = WRONG[what]
    with pytest.raises(ModelError, match=message):
        with_keys(tmp_path, **changes)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
             '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": null}',
             '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'],
)  # fmt: skip
def test_tokenizer_json_that_is_wrong(tmp_path: Path, text: str) -> None:
    directory = hugging_face(tmp_path / "hf")
    (directory / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer.json"):
        Tokenizer.of(open_model(directory))
