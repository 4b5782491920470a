"""A language model, loaded from its file: generates text, chats, and computes logits."""

from __future__ import annotations

import operator
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.chat import ChatTemplate
from penstock.llm.config import Config
from penstock.llm.errors import ModelError
from penstock.llm.generation import Generation, Run
from penstock.llm.kernels import Compiled
from penstock.llm.modelfile import ModelFile, open_model
from penstock.llm.network import Kernels, Network
from penstock.llm.optimizations import ALL, Mechanisms
from penstock.llm.sampling import Sampling
from penstock.llm.tokens import Tokenizer
from penstock.llm.variants import MEASURED, Variants, choose
from penstock.llm.weights import OnProgress, place

_CONTEXT = 4096  # default number of positions; less if the model supports fewer
_BATCH = 64  # prompt tokens per prefill batch

CacheType = Literal["f16", "f32"]
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
    """Load a model from a GGUF file, or a directory of safetensors.

    On a device that shares the host's memory nothing is copied: kernels read the mapped file.
    `context` is the most tokens that prompt and text may have together, `batch` the number of
    prompt tokens per prefill batch, and `cache` the number format of the KV cache. `variants`
    fixes how products are computed, which is measured else: see `llm.Variants`.
    """
    file = open_model(path)
    most = file.config.context
    if context is not None and not 1 <= context <= most:
        raise ps.InvalidValue(f"context={context}; {file.path} was made for up to {most}")
    if batch < 1:
        raise ps.InvalidValue(f"batch={batch}; at least one token is read at a time")
    own = device if isinstance(device, ps.Device) else ps.Device(device)
    try:
        weights = place(own, file, progress)
        return Model(
            own, file, weights, context=context or min(most, _CONTEXT), batch=batch, cache=cache,
            owns_device=own is not device, variants=variants or MEASURED,
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
        variants: Variants = MEASURED,
    ) -> None:
        self.device = device
        self.file = file
        self.context = context
        self._weights = weights
        self._batch = batch
        self._cache = cache
        self._owns_device = owns_device
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
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        stream: bool = False,
        mechanisms: Mechanisms = ALL,
        times: bool = False,
    ) -> Generation:
        """Continue a prompt, text or token ids.

        With temperature 0 every token is the likeliest; else tokens are drawn at random, the same
        ones for the same seed. `max_tokens` is capped by the room left in the context, which is
        also its default. Ends at a stop token of the model (`stop_ids` replaces these; empty: none)
        or at a stop string. With `stream` the call returns at once: iterate over the result for
        pieces as they arrive. `mechanisms` disables optimizations, for benchmarks: see
        `llm.optimizations`. `times` has the receipt say how busy the device was, which takes the
        device's timestamps of every step.
        """
        settings = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            penalty=repetition_penalty, last_n=penalty_last,
            seed=secrets.randbits(64) if seed is None else seed,
        )  # fmt: skip
        ids = self._ids(prompt)
        room = self.context - len(ids) + 1
        if max_tokens is not None and max_tokens < 0:
            raise ps.InvalidValue(f"max_tokens={max_tokens}")
        words = [stop] if isinstance(stop, str) else list(stop)
        tokenizer = self._tokenizer_or_none
        if words and tokenizer is None:
            raise ModelError(f"{self.file.path} has no tokenizer, so that stop= has no meaning")
        usual = frozenset[int]() if tokenizer is None else tokenizer.stop_ids
        ends = usual if stop_ids is None else frozenset(stop_ids)
        decoder = None if tokenizer is None else tokenizer.decoder()
        network = self._take(mechanisms)
        try:
            network.restart(settings)
        except BaseException:
            self._give_back(network)
            raise
        run = Run(
            network,
            ids,
            most=room if max_tokens is None else min(max_tokens, room),
            end="greedy" if temperature == 0 else "sampled",
            stop_ids=ends,
            stop=words,
            decoder=decoder,
            done=partial(self._give_back, network),
            times=times,
        )
        made = Generation(run)
        if not stream:
            made._finish_it()
        return made

    def chat(self, messages: Sequence[Message], **options: Any) -> Generation:
        """The model's next turn in a conversation: dicts with "role" and "content".

        Takes the options of `generate`.
        """
        text = self.template.render(messages, add_generation_prompt=True)
        return self.generate(self.tokenizer.encode(text), **options)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after each of these tokens: float32, (tokens, vocabulary)."""
        checked = self._ids(list(ids))
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
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _numbers(prompt)
        if not ids:
            raise ps.InvalidValue("the prompt has no tokens; give it at least one")
        vocabulary = self.config.vocabulary
        wrong = next((one for one in ids if not 0 <= one < vocabulary), None)
        if wrong is not None:
            raise ps.InvalidValue(f"token {wrong} of the prompt; the model knows 0:{vocabulary}")
        if len(ids) > self.context:
            raise ps.InvalidValue(
                f"the prompt has {len(ids):,} tokens, and the context room for {self.context:,}; "
                "load the model with a larger context="
            )
        return ids

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
        """Made on first use, under the lock: this is when variants may be measured."""
        compiled = Compiled(self.device)
        variants = choose(self.device, self._weights, self._wanted, compiled)
        return Kernels(self.device, variants, compiled)

    def _take(self, mechanisms: Mechanisms) -> Network:
        with self._lock:
            if self._closed:
                raise ps.Closed(f"{self!r} is closed")
            if self._idle.get(mechanisms):
                return self._idle[mechanisms].pop()
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


def _numbers(prompt: Sequence[int]) -> list[int]:
    try:
        return [operator.index(one) for one in prompt]
    except TypeError as error:
        raise ps.ArgumentError(
            f"a prompt is text or a list of token ids, not {type(prompt).__name__}: {error}"
        ) from error
