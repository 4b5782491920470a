"""Sampling on the device: turns logits into one token, the input of the next step.

A bias is added to the logits as the model computed them; then come the penalties: repetition, then
frequency and presence. The filters after that run in the order of Hugging Face's transformers:
temperature, top-k, top-p, min-p. llama.cpp applies the temperature last, so that top-p and min-p do
not depend on it; but the settings that model makers recommend assume the transformers order. Top-p
takes its share of the probability that top-k kept. Of equal logits the lower id comes first: greedy
takes the first, and top-k keeps exactly k.

The same logits, settings, seed and position give the same token on every device: weights are
integers, and the random number depends on seed and position alone. Settings live in device memory,
so that changing them does not require recording a step again.

Nothing is sorted. Logits map to unsigned keys in the same order. A radix search, with a histogram
for each digit of the key from the highest on, finds the last token that is kept; tokens that cannot
be kept are dropped early. Top-k has no limit, and top-p over the whole vocabulary is exact. Tokens
with less than 2^-30 of the highest probability are never drawn.

Log-probabilities are those of the logits as the model computed them, before bias, penalties and
temperature. A bias, frequency and presence penalties and log-probabilities take launches of their
own, which a step has only if its settings ask for them (`Sampling.extras`).

If a logit is NaN, every way of sampling chooses `NO_TOKEN`: weights that are right give none.
Infinite logits are legal, since a bias or a penalty may make them: those of +inf share the draw
among themselves, and those of -inf are drawn only if there are no others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock.llm.compiling import Compiled
from penstock.llm.device_state import NO_TOKEN, STATE, DeviceState
from penstock.llm.kernels import MOST_TURNS, Shader
from penstock.llm.sampling_settings import (
    MOST_RANKS,
    SETTINGS,
    SETTINGS_WORDS,
    Extra,
    Sampling,
)
from penstock.llm.traits import Choice, Defines, Traits

#: The words of a row of log-probabilities, by their names in shaders.
ROW = {"MOST_RANKS": MOST_RANKS, "ROW": 1 + 2 * MOST_RANKS}

#: The words of the control block, and of a cursor in it.
CONTROL = {"PEAK": 0, "FLOOR": 1, "BY_NUMBER": 2, "BY_WEIGHT": 9}
CURSOR = {"DEPTH": 0, "KEY": 1, "LEFT": 2, "ABOVE": 4, "TIES": 6, "CURSOR_WORDS": 7}
_CONTROL_WORDS = 16

#: What takes the place of the highest key, and of the token, if a logit is NaN.
NONE = {"NOT_A_NUMBER": "~0u", "NO_TOKEN": f"{NO_TOKEN:#x}u"}

_BINS = 2048
_MOST_BIAS = 3e38  # larger ones are taken for it, unless they are infinite
_MOST = 1 << 24  # tokens, so that no sum of weights overflows


def _added(bias: float) -> float:
    """A bias as the kernel adds it: a finite one stays finite in float32."""
    return bias if abs(bias) == math.inf else min(max(bias, -_MOST_BIAS), _MOST_BIAS)


def ranks_in(
    row: np.ndarray[Any, np.dtype[np.uint32]], count: int
) -> tuple[float, list[int], list[float]]:
    """The log-probability of a step's token, and the `count` likeliest tokens with theirs."""
    found = np.flatnonzero(row[1 : 1 + count] != NO_TOKEN)
    # Only what the kernel wrote: the rest of the row is anything, signalling NaN too.
    logprobs = row[np.r_[0, 1 + MOST_RANKS + found]].view(np.float32).astype(np.float64)
    logprobs[logprobs < -1e29] = -np.inf  # the lowest that kernels compute with
    return float(logprobs[0]), row[1 + found].tolist(), logprobs[1:].tolist()


class Sampler:
    """Chooses tokens on one device, from logits of one vocabulary."""

    def __init__(
        self,
        device: ps.Device,
        vocabulary: int,
        settings: Sampling | None = None,
        *,
        variant: Choice | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        if not 1 <= vocabulary <= _MOST:
            raise ps.InvalidValue(f"a vocabulary of {vocabulary}; 1 to {_MOST} are supported")
        missing = {"subgroupArithmetic", "subgroupShuffle"} - device.info.features
        if missing:
            raise ps.Unsupported(f"sampling needs what {device.info.name} lacks: {missing}")
        self.device = device
        self.vocabulary = vocabulary
        self._shape = Shape.of(Traits.of(device, variant), vocabulary)
        self._kernel = compiled or Compiled(device)
        blocks, span = self._shape.blocks, self._shape.span
        self._settings = self._words("settings", SETTINGS_WORDS)
        self._control = self._words("control", _CONTROL_WORDS)
        self._marks = self._words("marks", -(-vocabulary // 32))
        self._peaks = self._words("peaks", blocks, 2)
        self._sums = self._words("sums", blocks, 3)
        self._sizes = self._words("sizes", blocks)
        self._keys = self._words("keys", blocks, span)
        self._ids = self._words("ids", blocks, span)
        self._histograms = self._words("histograms", len(_SEARCHES), self._shape.copies, _BINS, 3)
        self.set(settings or Sampling())

    def set(self, settings: Sampling) -> None:
        """Use these settings from the next step on, replays of recorded steps included.

        Frequency and presence penalties count from here.
        """
        if settings.bias:
            self._write_bias(settings.bias)
        if "counts" in settings.extras:
            self._counts.counts.fill(0)
            self._counts.seen.fill(0)
        self.settings = settings
        self._settings.write(settings.words())

    def _write_bias(self, bias: Mapping[int, float]) -> None:
        wrong = next((token for token in bias if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise ps.InvalidValue(f"a bias of token {wrong}; the model knows 0:{self.vocabulary}")
        ids, values = self._bias
        ids[: len(bias)].write(np.fromiter(bias, np.uint32, len(bias)))
        added = [_added(each) for each in bias.values()]
        values[: len(bias)].write(np.array(added, np.float32))

    def sample(
        self,
        logits: ps.Array,
        progress: DeviceState,
        *,
        count: int = 1,
        greedy: bool = False,
        extras: Collection[Extra] = (),
        rows: ps.Array | None = None,
    ) -> None:
        """Sample a token from the logits of the last of `count` tokens, and end the step.

        Writes the token to the history, the ring and token 0 of the next batch, and advances the
        position by `count` and the step by one. If a logit is NaN, the token is `NO_TOKEN`. Bias
        and penalties change the logits in place. With `greedy` the token is the highest whatever
        the temperature, top-k, top-p and min-p, and takes fewer launches. `extras` are those of the
        settings. Log-probabilities go to the step's row of `rows`, uint32 (…, `ROW`).
        """
        if logits.size != self.vocabulary:
            raise ps.ShapeMismatch(f"{logits.size} logits for a vocabulary of {self.vocabulary}")
        if count < 1:
            raise ps.InvalidValue(f"count={count}; a step has at least one token")
        ranks = None
        if "logprobs" in extras:
            if rows is None or rows.shape[1:] != (ROW["ROW"],):
                raise ps.ShapeMismatch(f"log-probabilities need rows of {ROW['ROW']} words")
            ranks = self._ranks
            ranks.raw.copy_from(logits)
            self._launch("sample_peaks", logits=ranks.raw, peaks=ranks.peaks)
            self._launch("sample_masses", logits=ranks.raw, peaks=ranks.peaks, masses=ranks.masses)
        if "bias" in extras:
            ids, values = self._bias
            self._launch(
                "sample_bias", logits=logits, ids=ids, values=values, settings=self._settings
            )
        self._penalise(logits, progress, count)
        if "counts" in extras:
            self._launch(
                "sample_frequency", logits=logits, settings=self._settings,
                **self._counts._asdict(),
            )  # fmt: skip
        self._launch("sample_peaks", logits=logits, peaks=self._peaks)
        finish: dict[str, Any] = {
            "tokens": progress.tokens, "history": progress.history, "ring": progress.ring,
            "state": progress.state, "count": count, "history_size": progress.history.size,
            "ring_size": progress.ring.size,
        }  # fmt: skip
        if greedy:
            self._launch("sample_greedy", peaks=self._peaks, **finish)
        else:
            self._find_cut(logits)
            chosen: dict[str, Any] = {
                "settings": self._settings, "control": self._control, "keys": self._keys,
                "sizes": self._sizes, "sums": self._sums,
            }  # fmt: skip
            self._launch("sample_sums", **chosen)
            self._launch("sample_draw", ids=self._ids, **chosen, **finish)
        if "counts" in extras:
            self._launch("sample_tally", tokens=progress.tokens, **self._counts._asdict())
        if ranks is not None and rows is not None:
            each = self._shape.ranks_each
            for first in range(0, MOST_RANKS, each):
                self._launch(
                    "sample_ranks", tokens=progress.tokens, state=progress.state, rows=rows,
                    settings=self._settings, first=first, each=each, size=len(rows),
                    **ranks._asdict(),
                )  # fmt: skip

    # Memory that only steps with extras need, made when the first of them is set or recorded.

    @cached_property
    def _bias(self) -> tuple[ps.Array, ps.Array]:
        values = self.device.zeros(self.vocabulary, np.float32, name="bias")
        return self._words("biased", self.vocabulary), values

    @cached_property
    def _counts(self) -> _Counts:
        return _Counts(
            self._words("counts", self.vocabulary), self._words("seen", self.vocabulary + 1)
        )

    @cached_property
    def _ranks(self) -> _Ranks:
        blocks = self._shape.blocks
        raw = self.device.empty(self.vocabulary, np.float32, name="raw logits", role="scratch")
        return _Ranks(raw, self._words("highest", blocks, 2), self._words("masses", blocks, 2))

    def _penalise(self, logits: ps.Array, progress: DeviceState, count: int) -> None:
        self._marks.fill(0)
        self._launch(
            "sample_penalise", logits=logits, history=progress.history, marks=self._marks,
            state=progress.state, settings=self._settings, count=count,
            size=progress.history.size, looked_at=progress.history.size,
        )  # fmt: skip

    def _find_cut(self, logits: ps.Array) -> None:
        """Find the last token that is kept, digit by digit of its key; leaves it in `control`."""
        control: dict[str, Any] = {"settings": self._settings, "control": self._control}
        gathered: dict[str, Any] = {"keys": self._keys, "sizes": self._sizes}
        everything: dict[str, Any] = {"control": self._control, "ids": self._ids, **gathered}
        self._launch("sample_begin", peaks=self._peaks, **control)
        self._launch("sample_gather", logits=logits, **everything)
        self._histograms.fill(0)
        for region, (cursor, digit) in enumerate(_SEARCHES):
            if region == _NARROWED:
                self._launch("sample_gather", narrow=True, **everything)
            there: dict[str, Any] = {"histograms": self._histograms, "region": region, **control}
            at = CONTROL[cursor]
            self._launch("sample_recount", cursor=at, digit=digit, **gathered, **there)
            self._launch("sample_seek", by=at, digit=digit, **there)

    def _launch(
        self, file: str, *, narrow: bool = False, looked_at: int = 0, **arguments: Any
    ) -> None:
        kernel = self._kernel(self._shape.make(file, narrow))
        groups = self._shape.groups(file, kernel.local_size[0], looked_at)
        kernel(groups=groups, **arguments)

    def _words(self, name: str, *shape: int) -> ps.Array:
        return self.device.zeros(shape, np.uint32, name=name)


class _Counts(NamedTuple):
    """How often each token was sampled, and which were."""

    counts: ps.Array
    seen: ps.Array


class _Ranks(NamedTuple):
    """The logits as the model computed them, and what the blocks of the vocabulary have of them."""

    raw: ps.Array
    peaks: ps.Array
    masses: ps.Array


#: The search for the last token that is kept, as (cursor, digit of the key) in launch order. The
#: top-p cursor looks for digit 0 twice: early if there is no top-k, late if there is.
_SEARCHES = (
    ("BY_NUMBER", 0), ("BY_WEIGHT", 0), ("BY_NUMBER", 1), ("BY_NUMBER", 2), ("BY_WEIGHT", 0),
    ("BY_WEIGHT", 1), ("BY_WEIGHT", 2),
)  # fmt: skip
_NARROWED = 2  # searches before the gathered tokens are narrowed by the first digit


@dataclass(frozen=True)
class Shape:
    """How the vocabulary is split into blocks, and kernels into workgroups."""

    vocabulary: int
    blocks: int  # of consecutive ids, one for each invocation
    span: int  # ids per block
    copies: int  # of each histogram
    lanes: int  # invocations of a subgroup, and of a workgroup of the kernels in `_LONE`
    size: int  # invocations of a workgroup of all other kernels
    wide: bool  # logits are loaded two at a time

    @classmethod
    def of(cls, traits: Traits, vocabulary: int) -> Shape:
        wide = traits.wide and vocabulary % 2 == 0
        blocks = 1024 if traits.shared else 512
        span = max(16, -(-vocabulary // blocks))
        span += wide and span % 2
        # On a CPU driver one thread runs a workgroup. sample_recount gets one workgroup per copy,
        # so that threads do not contend for a histogram.
        copies = 4 if traits.shared else max(4, min(16, 2 * traits.cores))
        return cls(
            vocabulary=vocabulary,
            blocks=-(-vocabulary // span),
            span=span,
            copies=copies,
            lanes=traits.lanes,
            size=64 if traits.shared else traits.lanes,
            wide=wide,
        )

    def make(self, file: str, narrow: bool = False) -> Shader:
        """Return what a kernel is compiled from."""
        defines: Defines = {
            **STATE, **SETTINGS, **CONTROL, **CURSOR, **ROW, **NONE, "VOCABULARY": self.vocabulary,
            "BLOCKS": self.blocks, "SPAN": self.span, "COPIES": self.copies,
        }  # fmt: skip
        if self.wide:
            defines["WIDE"] = 1
        if narrow:
            defines["NARROW"] = 1
        size = self.lanes if file in _LONE else self.size
        return Shader.of(file, file, defines, {"local_size_x": size})

    @property
    def ranks_each(self) -> int:
        """Return how many ranks a launch of sample_ranks may list within MOST_TURNS iterations."""
        of_blocks, of_span = -(-self.blocks // self.lanes) + 1, -(-self.span // self.lanes) + 1
        return max(1, min(MOST_RANKS, (MOST_TURNS - 2 * of_blocks) // (of_blocks + of_span + 1)))

    def groups(self, file: str, size: int, looked_at: int = 0) -> int:
        """Return how many workgroups keep every invocation within MOST_TURNS iterations."""
        if file in _LONE:
            return 1
        if file in ("sample_bias", "sample_frequency"):
            return max(-(-self.vocabulary // (size * MOST_TURNS)), min(4, -(-self.blocks // size)))
        if file == "sample_penalise":
            return max(1, -(-looked_at // (size * MOST_TURNS)))
        if file == "sample_recount" and self.size == self.lanes:
            each = -(-self.blocks // (self.copies * size))
            if each * (self.span + 2) < MOST_TURNS:
                return self.copies
        return -(-self.blocks // size)


#: Kernels that run as a single subgroup.
_LONE = (
    "sample_greedy", "sample_begin", "sample_seek", "sample_draw", "sample_tally", "sample_ranks"
)  # fmt: skip


def sampling_kernels(subgroup_size: int = 64) -> list[Shader]:
    """Every variant of every kernel here, for the vocabulary of Qwen3 and one of an odd size."""
    found: list[Shader] = []
    for traits in Traits.typical(subgroup_size):
        for vocabulary in (151_936, 50_257):
            shape = Shape.of(traits, vocabulary)
            files = (
                "penalise peaks greedy begin gather recount seek sums draw bias frequency tally "
                "masses ranks"
            )
            found += [shape.make(f"sample_{file}") for file in files.split()]
            found.append(shape.make("sample_gather", narrow=True))
    return found
