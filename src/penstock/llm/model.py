"""A language model, loaded from its file: generates text, chats, and computes logits."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.answers import AnswerReader
from penstock.llm.attention_choice import Heads
from penstock.llm.chat import ChatTemplate, check_roles, complete
from penstock.llm.config import Config
from penstock.llm.embedding import Pooling, embedded, pooling_of, text_ids
from penstock.llm.errors import ModelError
from penstock.llm.generation import Generation, Run
from penstock.llm.kv_cache import check_cache
from penstock.llm.modelfile import ModelFile, open_model
from penstock.llm.network import Network
from penstock.llm.network_kernels import Kernels
from penstock.llm.optimizations import ALL, Mechanisms
from penstock.llm.requests import (
    as_count,
    bias_of,
    check_options,
    listed_texts,
    stop_ids_of,
    stop_words,
    template_variables,
    token_ids,
)
from penstock.llm.sampling_settings import Sampling
from penstock.llm.text_only import check_text_only
from penstock.llm.tokens import Tokenizer
from penstock.llm.tools import Tool, schemas_of
from penstock.llm.variants import MEASURED, Variants, choose, known
from penstock.llm.weights import OnProgress, place

_CONTEXT = 4096  # default number of positions; less if the model supports fewer
_BATCH = 64  # prompt tokens per prefill batch

CacheType = Literal["f16", "f32", "q8_0"]
Prompt = str | Sequence[int]
Message = Mapping[str, Any]


def load(
    path: str | os.PathLike[str],
    device: ps.Device | str | int | None = None,
    *,
    context: int | None = None,
    batch: int = _BATCH,
    cache: CacheType = "f16",
    progress: OnProgress | Literal[False] | None = None,
    variants: Variants | None = None,
) -> Model:
    """Load a model from a GGUF file, a directory of safetensors, or by a name such as "smollm2".

    On a device that shares the host's memory nothing is copied: kernels read the mapped file.
    `context` is the most tokens that prompt and text may have together, `batch` the number of
    prompt tokens per prefill batch, and `cache` the number format of the KV cache: "f16", "f32", or
    "q8_0" for 8 bits each and a factor for 32 of them, if heads are a multiple of 32. `progress` is
    called with (bytes done, bytes in all) while weights are copied; by default a bar shows that,
    and kernels being compiled, on a terminal. False shows neither. `variants` fixes how products
    and attention are computed, which is measured else: see `llm.Variants`.
    """
    file = open_model(path)
    most = file.config.context
    context = None if context is None else as_count("context", context)
    if context is not None and not 1 <= context <= most:
        raise ps.InvalidValue(f"context={context}; {file.path} was made for up to {most}")
    batch = as_count("batch", batch)
    if batch < 1:
        raise ps.InvalidValue(f"batch={batch}; at least one token is read at a time")
    check_cache(cache, file.config.head_size)
    if not (progress is None or progress is False or callable(progress)):
        raise ps.ArgumentError(
            f"progress={progress!r:.40}: it is called with (bytes done, bytes in all), or False"
        )
    if not isinstance(variants, Variants | None):
        raise ps.ArgumentError(
            f"variants={variants!r} is not llm.Variants, such as llm.Variants(decode='rows')"
        )
    own = device if isinstance(device, ps.Device) else ps.Device(device)
    try:
        weights = place(own, file, progress)
        return Model(
            own, file, weights, context=context or min(most, _CONTEXT), batch=batch, cache=cache,
            owns_device=own is not device, show_progress=progress is not False,
            variants=variants or MEASURED,
        )  # fmt: skip
    except BaseException:
        if own is not device:
            own.close()
        raise


class Model:
    """Made by `load`. Several threads may generate at once, each with a KV cache of its own."""

    def __init__(
        self,
        device: ps.Device,
        file: ModelFile,
        weights: Any,
        *,
        context: int,
        batch: int,
        cache: CacheType,
        owns_device: bool = False,
        show_progress: bool = True,
        variants: Variants = MEASURED,
    ) -> None:
        self.device = device
        self.file = file
        self.context = context
        self._weights = weights
        self._batch = batch
        self._cache = cache
        self._owns_device = owns_device
        self._show_progress = show_progress
        self._wanted = variants
        angles = file.config.angles(context, file.rope_factors)
        self._angles = device.array(angles, role="weight", name="angles")
        # Reentrant: the garbage collector may close a generation, which returns its network, while
        # this thread holds the lock.
        self._lock = threading.RLock()
        self._idle: dict[Mechanisms, list[Network]] = {}
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise ps.ArgumentError("a Model cannot be copied or pickled; load() the file again")

    @property
    def config(self) -> Config:
        return self.file.config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the model's files; raises `ModelError` if there is none."""
        return Tokenizer.of(self.file)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template in the model's files; raises `ModelError` if there is none."""
        return ChatTemplate.of(self.file)

    @cached_property
    def _tool_template(self) -> ChatTemplate | None:
        """The chat template for conversations with tools, where the files have one of its own."""
        return ChatTemplate.for_tools(self.file)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        penalty_last: int = 64,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        stream: bool = False,
        reuse: bool = False,
        mechanisms: Mechanisms = ALL,
        times: bool = False,
        reader: AnswerReader | None = None,
    ) -> Generation:
        """Continue a prompt, text or token ids.

        With temperature 0 every token is the likeliest; else tokens are drawn at random, the same
        ones for the same seed. `max_tokens` is capped by the room left in the context, which is
        also its default. `logit_bias` is added to the logits of tokens, by id, before everything
        else; -inf bans a token. Presence and frequency penalties are OpenAI's, over the generated
        tokens. `logprobs=n` gives the log-probability of each token and of the n likeliest in its
        place, up to 20: see `Generation.logprobs`.

        Ends at a stop token of the model (`stop_ids` replaces these; empty: none) or at a stop
        string. With `stream` the call returns at once: iterate over the result for pieces as they
        arrive. With `reuse` the KV cache of an earlier generation that began with the same tokens
        is used, and only the others are read.

        `mechanisms` disables optimizations, for benchmarks: see `llm.optimizations`. `times` has
        the receipt say how busy the device was, which takes the device's timestamps of every step.
        `reader` takes the text apart, as `chat` does.
        """
        if not isinstance(mechanisms, Mechanisms):
            raise ps.ArgumentError(f"mechanisms={mechanisms!r:.40}: it must be llm.Mechanisms")
        if not isinstance(reader, AnswerReader | None):
            raise ps.ArgumentError(f"reader={reader!r:.40}: it must be an AnswerReader, or None")
        settings = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            penalty=repetition_penalty, last_n=penalty_last, presence=presence_penalty,
            frequency=frequency_penalty, bias=bias_of(logit_bias), logprobs=logprobs,
            seed=secrets.randbits(64) if seed is None else seed,
        )  # fmt: skip
        ids = self._ids(prompt)
        room = self.context - len(ids) + 1
        most = room if max_tokens is None else min(as_count("max_tokens", max_tokens), room)
        words = stop_words(stop)
        tokenizer = self._tokenizer_or_none
        if words and tokenizer is None:
            raise ModelError(f"{self.file.path} has no tokenizer, so that stop= has no meaning")
        usual = frozenset[int]() if tokenizer is None else tokenizer.stop_ids
        ends = usual if stop_ids is None else stop_ids_of(stop_ids)
        decoder = None if tokenizer is None else tokenizer.decoder(shown=_tags(tokenizer, reader))
        network = self._take(mechanisms, ids if reuse else ())
        try:
            reused = network.restart(settings, network.common(ids) if reuse else 0)
        except BaseException:
            self._give_back(network)
            raise
        run = Run(
            network,
            ids,
            most=most,
            end="greedy" if temperature == 0 else "sampled",
            stop_ids=ends,
            stop=words,
            decoder=decoder,
            done=partial(self._give_back, network),
            reader=reader,
            logprobs=logprobs,
            reused=reused,
            times=times,
        )
        made = Generation(run)
        if not stream:
            made._finish_it()
        return made

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        enable_thinking: bool | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """The model's next turn in a conversation: dicts with "role" and "content".

        `tools` are JSON schemas, or functions with type hints and docstrings. They, and
        `enable_thinking` if it is given, are variables of the model's chat template;
        `template_options` are others. `options` are those of `generate`, with `reuse=True`: a next
        turn reads only what is new.

        Of the answer, `.text` is what the model says, `.reasoning` what it thought before, and
        `.tool_calls` are the calls in it, if tools were given; `.message` is all of it, to append
        to the conversation.
        """
        check_options(options, Model.generate)
        messages = complete(messages)
        check_text_only(messages)
        schemas = schemas_of(tools) if tools is not None else []
        variables = template_variables(template_options)
        if schemas:
            variables["tools"] = schemas
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        reserved = variables.keys() & {"messages", "add_generation_prompt", "tokenizer"}
        if reserved:
            raise ps.ArgumentError(f"template_options has {sorted(reserved)}, which chat() sets")
        template = (self._tool_template if schemas else None) or self.template
        check_roles(messages, template)
        ids = template.encode(self.tokenizer, messages, **variables)
        reader = AnswerReader(
            prompt=self.tokenizer.decode(ids[-16:], special=True),
            tools=schemas,
            thinking_tags=template.thinking_tags,
        )
        return self.generate(ids, **{"reuse": True, **options, "reader": reader})

    @overload
    def embed(
        self, texts: str, *, pooling: Pooling | None = None, normalize: bool = True
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
    ) -> npt.NDArray[np.float32]: ...

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
    ) -> npt.NDArray[np.float32]:
        """The embeddings of texts, or of lists of token ids: float32, (texts, hidden size).

        A vector is the "mean" of the final hidden states of the text's tokens, after the output
        norm, or that of the "last" token: `pooling`, by default as the file says, and the mean if
        it does not. With `normalize` its length is 1. A single text gives one vector. Waits.
        """
        if isinstance(texts, str):
            found: npt.NDArray[np.float32] = self.embed(
                [texts], pooling=pooling, normalize=normalize
            )[0]
            return found
        way = pooling_of(self.file, pooling)
        listed = [
            self._ids(text_ids(self.file, self.tokenizer, one) if isinstance(one, str) else one)
            for one in listed_texts(texts)
        ]
        made = np.zeros((len(listed), self.config.hidden), np.float32)
        with self.network() as network:
            for vector, ids in zip(made, listed, strict=True):
                network.restart(Sampling())
                vector[:] = embedded(network, ids, way, normalize)
        return made

    def logits(self, ids: Prompt) -> npt.NDArray[np.float32]:
        """The logits after each token, of a text or of ids: float32, (tokens, vocabulary)."""
        checked = self._ids(ids)
        with self.network() as network:
            return network.logits(checked)

    @contextmanager
    def network(self, mechanisms: Mechanisms = ALL) -> Iterator[Network]:
        """Lend a network for the block, to callers that prefill and step themselves.

        It starts empty, with the default `Sampling` settings; `Network.restart` changes them.
        """
        network = self._take(mechanisms)
        try:
            network.restart(Sampling())
            yield network
        finally:
            self._give_back(network)

    def close(self) -> None:
        """Release all memory, after work in flight completes. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, {}
        for networks in idle.values():
            for network in networks:
                network.close()
        self._weights.close()
        if self._owns_device:
            self.device.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        config = self.config
        size = f"{config.layers} layers of {config.hidden}, vocabulary {config.vocabulary:,}"
        return f"<Model {self.file.path.name}: {config.architecture}, {size}>"

    # Prompts.

    def _ids(self, prompt: Prompt) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise ps.InvalidValue("the prompt has no tokens; give it at least one")
        vocabulary = self.config.vocabulary
        wrong = next((one for one in ids if not 0 <= one < vocabulary), None)
        if wrong is not None:
            raise ps.InvalidValue(f"token {wrong} of the prompt; the model knows 0:{vocabulary}")
        if len(ids) > self.context:
            raise ps.InvalidValue(
                f"the prompt has {len(ids):,} tokens, and the context room for {self.context:,}; "
                f"{self._more_context()}"
            )
        return ids

    def _more_context(self) -> str:
        most = self.config.context
        if self.context >= most:
            return "that is as much as the model was made for: shorten the prompt"
        return f"load the model with a larger context=, up to {most:,} (`-c` of the command)"

    @cached_property
    def _tokenizer_or_none(self) -> Tokenizer | None:
        """The tokenizer, or None; a model without one still takes and returns token ids."""
        try:
            return self.tokenizer
        except ModelError:
            return None

    # Networks.

    @cached_property
    def _kernels(self) -> Kernels:
        """Made on first use, under the lock."""
        config = self.config
        heads = Heads(config.heads, config.kv_heads, config.head_size, self._cache)
        asked = (self.device, self._weights, self._wanted, heads)
        found = known(*asked)
        return Kernels(
            self.device,
            found or self._wanted.filled(Variants.expected(self.device)),
            choose=None if found else partial(choose, *asked),
            show_progress=self._show_progress,
        )

    def _take(self, mechanisms: Mechanisms, ids: Sequence[int] = ()) -> Network:
        """An idle network: one that has read most of these ids, or else the least of others."""
        with self._lock:
            if self._closed:
                raise ps.Closed(f"{self!r} is closed")
            idle = self._idle.get(mechanisms)
            if idle:
                best = max(idle, key=lambda one: (one.common(ids), -one.cached))
                idle.remove(best)
                return best
            kernels = self._kernels
        return Network(
            kernels, self.config, self._weights, self._angles, batch=self._batch,
            cache_type=self._cache, mechanisms=mechanisms,
        )  # fmt: skip

    def _give_back(self, network: Network) -> None:
        with self._lock:
            if not self._closed:
                self._idle.setdefault(network.mechanisms, []).append(network)
                return
        network.close()


def _tags(tokenizer: Tokenizer, reader: AnswerReader | None) -> list[int]:
    """The tokens of tags in an answer, which are shown to its reader even if control tokens."""
    found = [] if reader is None else [tokenizer.id_of(tag) for tag in reader.tags]
    return [token for token in found if token is not None]
