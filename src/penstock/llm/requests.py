"""What callers pass to a `Model`: each argument is checked, and errors name it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

import penstock as ps


def as_count(name: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ps.ArgumentError(f"{name}={value!r:.40}: it must be a whole number") from None
    if count < 0:
        raise ps.InvalidValue(f"{name}={count}: it must be 0 or more")
    return count


def stop_words(stop: Any) -> list[str]:
    words = [stop] if isinstance(stop, str) else stop
    if not isinstance(words, Iterable) or isinstance(words, bytes):
        words = [words]
    words = list(words)
    if not all(isinstance(word, str) for word in words):
        raise ps.ArgumentError(f"stop= is a text, or a list of texts, not {stop!r:.80}")
    return words


def stop_ids_of(stop_ids: Any) -> frozenset[int]:
    try:
        return frozenset(operator.index(one) for one in stop_ids)
    except TypeError:
        raise ps.ArgumentError(f"stop_ids= is a list of token ids, not {stop_ids!r:.80}") from None


def check_options(options: Mapping[str, Any], generate: Callable[..., Any]) -> None:
    """Refuse options of `chat` that `generate` does not have, or that `chat` sets itself."""
    known = inspect.signature(generate).parameters.keys() - {"self", "prompt", "reader"}
    for name in options.keys() - known:
        meant = get_close_matches(name, known, n=1)
        raise ps.ArgumentError(
            f"chat() has no option {name!r}"
            f"{f'; did you mean {meant[0]!r}?' if meant else ', and neither has generate()'}"
        )


def template_variables(options: Any) -> dict[str, Any]:
    given = {} if options is None else options
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ps.ArgumentError(
            f"template_options= is a dict of names and values, not {options!r:.80}"
        )
    return dict(given)


def bias_of(bias: Any) -> dict[int, float]:
    """A bias by token ids; JSON has them as text."""
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise ps.ArgumentError(f"logit_bias is a dict of token ids and numbers, not {bias!s:.80}")
    return {
        int(token) if isinstance(token, str) and token.isdecimal() else token: value
        for token, value in bias.items()
    }


def listed_texts(texts: object) -> list[Any]:
    if not isinstance(texts, Sequence | np.ndarray) or isinstance(texts, bytes):
        raise ps.ArgumentError(f"embed() takes texts, or lists of ids, not {type(texts).__name__}")
    return list(texts)


def token_ids(prompt: Sequence[int]) -> list[int]:
    try:
        return [operator.index(one) for one in prompt]
    except TypeError as error:
        raise ps.ArgumentError(
            f"a prompt is text or a list of token ids, not {type(prompt).__name__}: {error}"
        ) from error
