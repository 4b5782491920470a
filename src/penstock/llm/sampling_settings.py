"""How a token is chosen: the settings, what each may be, and their words for kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np

import penstock as ps

#: The words of the settings, by their names in shaders.
SETTINGS = {
    "INVERSE_TEMPERATURE": 0, "TOP_K": 1, "TOP_P": 2, "LOG_MIN_P": 3, "PENALTY": 4,
    "INVERSE_PENALTY": 5, "LAST_N": 6, "SEED": 7, "FREQUENCY": 9, "PRESENCE": 10, "BIASED": 11,
    "RANKS": 12,
}  # fmt: skip
SETTINGS_WORDS = 13  # the seed has two

#: Most tokens that log-probabilities are listed for.
MOST_RANKS = 20

_MOST_LOWERED = 1e30  # by a penalty, so that no number of times makes it infinite
#: Factors of logits: 0 and infinite ones stay what they are, and usual ones finite.
_LEAST_FACTOR, _MOST_FACTOR = 1e-30, 1e30

Extra: TypeAlias = Literal["bias", "counts", "logprobs"]


#: What `Model.generate` calls a setting, where that is another name.
_CALLED = {
    "penalty": "repetition_penalty", "last_n": "penalty_last", "frequency": "frequency_penalty",
    "presence": "presence_penalty", "bias": "logit_bias",
}  # fmt: skip


def _named(setting: str) -> str:
    return _CALLED.get(setting, setting)


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    temperature     divides the logits; 0: take the highest
    top_k           keep only the `top_k` highest; 0: keep all
    top_p           keep only the highest that together reach this probability, the one that
                    crosses it included
    min_p           keep only those with at least this share of the highest probability
    penalty         repetition penalty: divides the positive logits of tokens among the last
                    `last_n`, and multiplies their other logits; 1: none
    last_n          how many of the last tokens the penalty looks at, at most the history's size
    frequency       lowers the logit of every token that was sampled, by this for each time
    presence        lowers the logit of every token that was sampled by this, once
    bias            what is added to the logits of tokens, by their ids; -inf bans one
    logprobs        how many of the likeliest tokens are listed with their log-probabilities,
                    besides the sampled one's; None: no log-probabilities at all
    seed            seed of the random numbers, 64 bits

    Frequency and presence are as OpenAI defines them: they count the tokens that were sampled since
    the settings were set, and not those of the prompt.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty: float = 1.0
    last_n: int = 64
    frequency: float = 0.0
    presence: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        most, whole = f"up to {_MOST_LOWERED:g}, positive or negative", "0 or more, below 2**32"
        #: Whether each is right, and what it must be.
        good = {
            "temperature": (0 <= self.temperature < math.inf, "0 or more, and finite"),
            "top_k": (0 <= self.top_k < 1 << 32, whole),
            "top_p": (0 <= self.top_p <= 1, "from 0 to 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "penalty": (0 < self.penalty < math.inf, "finite and above 0"),
            "last_n": (0 <= self.last_n < 1 << 32, whole),
            "frequency": (abs(self.frequency) <= _MOST_LOWERED, most),
            "presence": (abs(self.presence) <= _MOST_LOWERED, most),
            "logprobs": (0 <= (self.logprobs or 0) <= MOST_RANKS, f"from 0 to {MOST_RANKS}"),
            "seed": (0 <= self.seed < 1 << 64, "0 or more, below 2**64"),
        }
        wrong = [
            f"{_named(name)}={getattr(self, name)}: it must be {wanted}"
            for name, (fine, wanted) in good.items()
            if not fine
        ]
        wrong += [
            f"{_named('bias')} of token {token} is {bias}: it must be a number, or infinite"
            for token, bias in self.bias.items()
            if bias != bias
        ]
        if wrong:
            raise ps.InvalidValue("; ".join(wrong[:5]))

    def _check_types(self) -> None:
        whole = ("top_k", "last_n", "seed", "logprobs")
        for name in (*whole, "temperature", "top_p", "min_p", "penalty", "frequency", "presence"):
            value: Any = getattr(self, name)
            if name == "logprobs" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(
                value, Integral if name in whole else Real
            ):
                wanted = "a whole number" if name in whole else "a number"
                raise ps.ArgumentError(f"{_named(name)}={value!r}: it must be {wanted}")
        bias: Any = self.bias
        if not isinstance(bias, Mapping) or not all(
            isinstance(token, Integral) and isinstance(value, Real) for token, value in bias.items()
        ):
            raise ps.ArgumentError(
                f"{_named('bias')} is a dict of token ids and numbers, not {bias!s:.80}"
            )

    @property
    def extras(self) -> tuple[Extra, ...]:
        """What a step needs besides the launches that every step has."""
        wanted: dict[Extra, bool] = {
            "bias": bool(self.bias),
            "counts": self.frequency != 0 or self.presence != 0,
            "logprobs": self.logprobs is not None,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def words(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """Encode the settings for kernels. Divides on the host: device division is not exact."""
        found = np.zeros(SETTINGS_WORDS, np.uint32)
        floats = found.view(np.float32)
        greedy = self.temperature == 0
        floats[SETTINGS["INVERSE_TEMPERATURE"]] = 1 if greedy else _factor(1 / self.temperature)
        found[SETTINGS["TOP_K"]] = 1 if greedy else self.top_k
        found[SETTINGS["TOP_P"]] = min(int(self.top_p * 2**32), 2**32 - 1)
        floats[SETTINGS["LOG_MIN_P"]] = math.log(self.min_p) if self.min_p else -3e38
        floats[SETTINGS["PENALTY"]] = _factor(self.penalty)
        floats[SETTINGS["INVERSE_PENALTY"]] = _factor(1 / self.penalty)
        found[SETTINGS["LAST_N"]] = self.last_n
        found[SETTINGS["SEED"]] = self.seed & 0xFFFFFFFF
        found[SETTINGS["SEED"] + 1] = self.seed >> 32
        floats[SETTINGS["FREQUENCY"]] = self.frequency
        floats[SETTINGS["PRESENCE"]] = self.presence
        found[SETTINGS["BIASED"]] = len(self.bias)
        found[SETTINGS["RANKS"]] = self.logprobs or 0
        return found


def _factor(number: float) -> float:
    return min(max(number, _LEAST_FACTOR), _MOST_FACTOR)
