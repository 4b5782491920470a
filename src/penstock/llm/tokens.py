"""The model's tokenizer: text to token ids and back.

A tokenizer is read from tokenizer.json or from the keys of a GGUF file, and runs on the package
`tokenizers`. Two families are supported. *Byte-level* tokens (GPT-2, Llama 3, Qwen) are bytes
written as printable characters. *SentencePiece* tokens (Llama 2) are text in which ▁ is a space,
with one token per byte for characters that the vocabulary lacks. In both families a token may end
in the middle of a character, so decoding goes through bytes: `Decoder` holds back incomplete
characters.
"""

from __future__ import annotations

import codecs
import json
import operator
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.keys import Keys
from penstock.llm.modelfile import ModelFile
from penstock.llm.safetensors_file import gguf_beside, read_json
from penstock.llm.token_bytes import SPACE, ByteTable

if TYPE_CHECKING:
    import tokenizers

_T = TypeVar("_T")
_LONGEST_JSON = 1 << 28
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_ENDS = re.compile(
    r"<\|(im_end|eot_id|endoftext|end_of_text|eom_id|eot|end|eos)\|>|<end_of_turn>|<EOT>"
    "|<\uff5cend\u2581of\u2581sentence\uff5c>"  # DeepSeek's, with fullwidth bars
)
# By tokenizer.ggml.pre, the expressions that split text into words before bytes are merged. Each
# splits the pieces that the one before left.
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (_WORD + r"\p{N}{1,3}" + _REST,)
_QWEN2 = (_WORD + r"\p{N}" + _REST,)
_DIGITS = (r"\p{N}", _GPT2)
_EAST = "[一-龥ࠀ-一가-퟿]+"
_CUTS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,), "mpt": (_GPT2,), "olmo": (_GPT2,), "phi-2": (_GPT2,),
    "llama3": _LLAMA3, "llama-v3": _LLAMA3, "llama-bpe": _LLAMA3, "falcon3": _LLAMA3,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "stablelm2": _QWEN2, "megrez": _QWEN2,
    "smollm": _DIGITS, "starcoder": _DIGITS, "refact": _DIGITS, "command-r": _DIGITS,
    "codeshell": _DIGITS, "exaone": _DIGITS, "minerva-7b": _DIGITS,
    "deepseek-llm": (
        r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$", _EAST, r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, r"\p{N}"),
}  # fmt: skip
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3")  # words that are tokens stay whole
_COMPOSED = ("qwen2", "deepseek-r1-qwen")  # their tokenizer.json normalizes to NFC first


@dataclass(frozen=True)
class Tokenizer:
    """Made by `Tokenizer.of(model)`.

    `stop_ids` are the tokens that end an answer; `control_ids` those that are not text.
    """

    vocabulary: int
    bos: int | None
    eos: int | None
    add_bos: bool
    stop_ids: frozenset[int]
    control_ids: frozenset[int]
    _engine: tokenizers.Tokenizer = field(repr=False)
    _bytes: ByteTable = field(repr=False)
    _strips_space: bool  # the tokenizer prepends a space to text, which decoding removes
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, model: ModelFile) -> Tokenizer:
        """The tokenizer that is stored with the model."""
        if model.format == "gguf":
            return _from_gguf(str(model.path), model.metadata, model.config.vocabulary)
        return _from_directory(model.directory, model.config.vocabulary)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text.

        With `special`, names of control tokens in the text become those tokens, and the BOS token
        comes first if the model wants one. Without, everything is plain text: use that for
        untrusted text.
        """
        if not isinstance(text, str):
            raise ps.ArgumentError(f"encode() takes a text, not {text!r:.40}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(f"text cannot be encoded: {error}") from error
        ids = self._encode_text(text, special)
        if special and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def _encode_text(self, text: str, special: bool) -> list[int]:
        engine = self._engine
        with self._lock:  # the flag is state of the shared engine
            engine.encode_special_tokens = not special
            encoded = _guarded("the text", lambda: engine.encode(text, add_special_tokens=False))
        return list(encoded.ids)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of these ids; control tokens are shown only with `special`."""
        decoder = self.decoder(special)
        try:
            numbers = [operator.index(one) for one in ids]
        except TypeError:
            raise ps.ArgumentError(f"decode() takes a list of ids, not {ids!r:.40}") from None
        return "".join([*map(decoder.push, numbers), decoder.finish()])

    def decoder(self, special: bool = False, shown: Collection[int] = ()) -> Decoder:
        """Return a decoder that takes one id at a time; `shown` are control tokens to show."""
        return Decoder(self, special, shown)

    def id_of(self, token: str) -> int | None:
        """The id of a token by its name, such as `<|im_end|>`."""
        try:
            found = self._engine.token_to_id(token)
        except UnicodeEncodeError:  # no token name has a lone surrogate
            return None
        return None if found is None else int(found)

    def name_of(self, token: int) -> str:
        """The token as the vocabulary writes it; empty if it has none."""
        return self._engine.id_to_token(token) or "" if 0 <= token < 1 << 32 else ""

    def bytes_of(self, token: int) -> bytes:
        """The bytes of the token; empty for ids that only pad the vocabulary."""
        if not 0 <= token < self.vocabulary:
            raise ModelError(f"token {token} is not one of the {self.vocabulary:,} there are")
        return self._bytes.get(token, b"")


class Decoder:
    """Decodes ids one at a time: `push` returns completed characters, `finish` the rest.

    Invalid UTF-8 decodes to U+FFFD.
    """

    def __init__(
        self, tokenizer: Tokenizer, special: bool = False, shown: Collection[int] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self._skipped = frozenset() if special else tokenizer.control_ids.difference(shown)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer._strips_space

    def push(self, token: int) -> str:
        """The text that this token completes."""
        data = self.tokenizer.bytes_of(token)
        if token in self._skipped:
            return ""
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """Return what was held back, and reset the decoder for another text."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._strip = self.tokenizer._strips_space
        return rest


# From tokenizer.json.


def _from_directory(directory: Path, vocabulary: int) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelError(
            f"{directory} has no tokenizer.json: the model works on token ids only"
            f"{gguf_beside(directory)}"
        )
    described = read_json(path, _LONGEST_JSON)
    engine_of = _package().Tokenizer.from_str
    engine = _guarded(str(path), lambda: engine_of(json.dumps(described)))
    engine.no_truncation()
    engine.no_padding()
    decoders = set(_types(described.get("decoder")))
    if "ByteLevel" not in decoders and not decoders & {"ByteFallback", "Metaspace"}:
        raise ModelError(f"{path}: decoder {sorted(decoders)} is neither byte-level nor of pieces")
    names = {number: name for name, number in engine.get_vocab().items() if number < vocabulary}
    added = engine.get_added_tokens_decoder()
    settings = _optional_json(directory / "tokenizer_config.json")
    generation = _optional_json(directory / "generation_config.json")
    beginning = settings.get("bos_token")
    if isinstance(beginning, dict):
        beginning = beginning.get("content")
    ending = settings.get("eos_token")
    if isinstance(ending, dict):
        ending = ending.get("content")
    bos = engine.token_to_id(beginning) if isinstance(beginning, str) else None
    eos = engine.token_to_id(ending) if isinstance(ending, str) else None
    config = _optional_json(directory / "config.json")
    if eos is None:
        eos = next(iter(_ids(generation.get("eos_token_id"), config.get("eos_token_id"))), None)
    control = frozenset(number for number, token in added.items() if token.special)
    literal = {number: token.content for number, token in added.items()}
    stops = {*_ids(generation.get("eos_token_id"), config.get("eos_token_id"), eos)}
    byte_level = "ByteLevel" in decoders
    begun = _guarded(str(path), lambda: engine.encode(""))
    return Tokenizer(
        vocabulary=vocabulary,
        bos=bos,
        eos=eos,
        add_bos=bos is not None and begun.ids[:1] == [bos],
        stop_ids=frozenset(
            number for number in stops | _ending(literal, control) if 0 <= number < vocabulary
        ),
        control_ids=control,
        _engine=engine,
        _bytes=ByteTable(names, literal, byte_level),
        _strips_space=not byte_level and bool(decoders & {"Strip", "Metaspace"}),
    )


def _types(part: Any) -> Iterable[str]:
    """The types of a component of tokenizer.json and of all components inside it."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        for inner in part.get("decoders", []):
            yield from _types(inner)


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _ids(*values: Any) -> list[int]:
    """Return the token ids in values that are an id, a list of ids, or neither."""
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return [one for one in flat if isinstance(one, int) and not isinstance(one, bool)]


# From GGUF.


def _from_gguf(where: str, metadata: Mapping[str, Any], vocabulary: int) -> Tokenizer:
    keys = Keys(where, metadata)
    if not keys.has("tokenizer.ggml.model"):
        raise ModelError(f"{where} has no tokenizer: the model works on token ids only")
    family = keys.text("tokenizer.ggml.model")
    names = _strings(where, metadata, "tokenizer.ggml.tokens")
    if not 0 < len(names) <= vocabulary:
        raise ModelError(
            f"{where}: {len(names):,} tokens do not fit the {vocabulary:,} rows of token_embd"
        )
    types = _numbers(where, metadata, "tokenizer.ggml.token_type", len(names), 1)
    if family == "gpt2":
        engine = _byte_level(where, keys, names, _strings(where, metadata, "tokenizer.ggml.merges"))
    elif family == "llama":
        engine = _pieces(where, keys, names, _numbers(
            where, metadata, "tokenizer.ggml.scores", len(names), None
        ))  # fmt: skip
    else:
        raise ModelError(f"{where}: tokenizer {family[:40]!r} is not supported: gpt2 and llama are")
    control = frozenset(np.flatnonzero(types == _CONTROL).tolist())
    added = np.flatnonzero(np.isin(types, (_CONTROL, _USER_DEFINED))).tolist()
    literal: dict[int, str] = {number: names[number] for number in added}
    _add_tokens(where, engine, literal, control)
    bos, eos = _id(keys, "bos", len(names)), _id(keys, "eos", len(names))
    ends = [_id(keys, name, len(names)) for name in ("eot", "eom")]
    pieces = family == "llama"
    return Tokenizer(
        vocabulary=vocabulary,
        bos=bos,
        eos=eos,
        add_bos=keys.flag("tokenizer.ggml.add_bos_token", pieces) and bos is not None,
        stop_ids=frozenset({*_ids(eos, ends), *_ending(literal, control)}),
        control_ids=control,
        _engine=engine,
        _bytes=ByteTable(dict(enumerate(names)), literal, not pieces),
        _strips_space=pieces and keys.flag("tokenizer.ggml.add_space_prefix", True),
    )


def _byte_level(
    where: str, keys: Keys, names: list[str], merges: list[str]
) -> tokenizers.Tokenizer:
    package = _package()
    pre = keys.text("tokenizer.ggml.pre", "default")
    if pre not in _CUTS:
        raise ModelError(
            f"{where}: tokenizer.ggml.pre {pre[:40]!r} is not supported; there are "
            f"{', '.join(_CUTS)}"
        )
    pairs = _pairs(where, merges)
    numbers = _numbered(names)

    def build() -> tokenizers.Tokenizer:
        model = package.models.BPE(numbers, pairs, ignore_merges=pre in _WHOLE_WORDS)
        engine: tokenizers.Tokenizer = package.Tokenizer(model)
        if pre in _COMPOSED:
            engine.normalizer = package.normalizers.NFC()
        cuts = package.pre_tokenizers
        engine.pre_tokenizer = cuts.Sequence(
            [cuts.Split(package.Regex(one), "isolated") for one in _CUTS[pre]]
            + [cuts.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        return engine

    return _guarded(f"{where}: tokenizer.ggml", build)


def _pairs(where: str, merges: list[str]) -> list[tuple[str, ...]]:
    # A space separates the two, and spaces within tokens are written as another character.
    pairs = [tuple(merge.split(" ")) for merge in merges]
    for merge, pair in zip(merges, pairs, strict=True):
        if len(pair) != 2 or "" in pair:
            raise ModelError(
                f"{where}: merge {merge[:80]!r} is not two tokens with a space between"
            )
    return pairs


def _numbered(names: list[str]) -> dict[str, int]:
    """The id of each name; of names that are there twice, the first."""
    return dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))


def _pieces(
    where: str, keys: Keys, names: list[str], scores: np.ndarray[Any, Any]
) -> tokenizers.Tokenizer:
    """A SentencePiece tokenizer: of all pairs that form a token, merges the best score first."""
    package = _package()
    if not np.isfinite(scores).all():
        raise ModelError(f"{where}: tokenizer.ggml.scores must be finite")
    numbers = _numbered(names)
    unknown = _id(keys, "unknown", len(names))
    prefix = keys.flag("tokenizer.ggml.add_space_prefix", True)
    merges = _merges_by_score(where, numbers, scores)

    def build() -> tokenizers.Tokenizer:
        model = package.models.BPE(
            numbers,
            merges,
            unk_token=None if unknown is None else names[unknown],
            byte_fallback=True,
            fuse_unk=True,
        )
        engine: tokenizers.Tokenizer = package.Tokenizer(model)
        spaces: list[Any] = [package.normalizers.Replace(" ", SPACE)]
        if prefix:
            spaces.insert(0, package.normalizers.Prepend(SPACE))
        engine.normalizer = package.normalizers.Sequence(spaces)
        return engine

    return _guarded(f"{where}: tokenizer.ggml", build)


def _merges_by_score(
    where: str, numbers: dict[str, int], scores: np.ndarray[Any, Any]
) -> list[tuple[str, str]]:
    if sum(map(len, numbers)) > 1 << 25:
        raise ModelError(f"{where}: the tokens are too long to be a vocabulary")
    found: list[tuple[float, int, int, str, str]] = []
    for name, number in numbers.items():
        if len(name) > 1 << 10:
            continue  # absurdly long: leave it out of merging
        for cut in range(1, len(name)):
            left, right = name[:cut], name[cut:]
            if left in numbers and right in numbers:
                score = -float(scores[number])
                found.append((score, number, numbers[left], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _add_tokens(
    where: str, engine: tokenizers.Tokenizer, literal: dict[int, str], control: frozenset[int]
) -> None:
    package = _package()
    if any(not name for name in literal.values()):
        raise ModelError(f"{where}: a control token without a name")

    def add() -> None:
        for special, add in ((True, engine.add_special_tokens), (False, engine.add_tokens)):
            names = [name for number, name in literal.items() if (number in control) == special]
            add([package.AddedToken(name, special=special, normalized=False) for name in names])

    _guarded(f"{where}: tokenizer.ggml.tokens", add)


def _strings(where: str, metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ModelError(f"{where}: {key} must be an array of strings")
    return list(value)


def _numbers(
    where: str, metadata: Mapping[str, Any], key: str, count: int, default: int | None
) -> np.ndarray[Any, Any]:
    """One number per token."""
    value = metadata.get(key)
    if value is None and default is not None:
        return np.full(count, default)
    if not isinstance(value, np.ndarray) or len(value) != count:
        raise ModelError(f"{where}: {key} must be an array of {count:,} numbers, one per token")
    return value


def _id(keys: Keys, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if not keys.has(key):
        return None
    number = keys.integer(key)
    if number in (0xFFFFFFFF, -1):  # some files store these for "none"
        return None
    if not 0 <= number < count:
        raise ModelError(f"{keys.where}: {key} {number} is not one of the {count:,} tokens")
    return number


# Both.


def _ending(literal: Mapping[int, str], control: frozenset[int]) -> set[int]:
    """Control tokens whose names mark the end of an answer, whether or not the file lists them."""
    return {n for n, name in literal.items() if n in control and _ENDS.fullmatch(name)}


def _package() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ModelError(
            "text needs the package tokenizers: pip install 'penstock-gpu[llm]'"
        ) from error
    return tokenizers


def _guarded(where: str, action: Callable[[], _T]) -> _T:
    """Run `action` on untrusted input; turn any exception, Rust panics too, into `ModelError`."""
    try:
        return action()
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ModelError(f"{where} cannot be used as a tokenizer: {error}") from error
        raise
