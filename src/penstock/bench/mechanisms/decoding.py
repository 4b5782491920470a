"""A model that decodes, for comparisons: the same tokens from the same start, again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from penstock.bench.measure import expect
from penstock.bench.mechanisms import model_files
from penstock.bench.mechanisms.comparison import Plan
from penstock.llm.model import Model, load
from penstock.llm.network import Network
from penstock.llm.optimizations import ALL, Mechanisms
from penstock.llm.sampling_settings import Sampling
from penstock.llm.variants import Variants

_START = 3  # any token


class Decoding:
    """A model, and the tokens that every run of it must make: `count` of them."""

    def __init__(self, plan: Plan, ending: ExitStack, vocabulary: int, count: int) -> None:
        path = model_files.small(plan, vocabulary)
        self.count = count
        self.model: Model = ending.enter_context(
            load(
                path, plan.device, context=count + 4, batch=1, progress=False,
                variants=Variants.expected(plan.device),
            )
        )  # fmt: skip
        self._ending = ending
        self._expected: list[int] = []

    def network(self, mechanisms: Mechanisms = ALL) -> Run:
        return Run(self, self._ending.enter_context(self.model.network(mechanisms)))

    def check(self, ids: list[int]) -> None:
        """All runs must make the same tokens, whichever mechanism is off."""
        self._expected = self._expected or ids
        expect(len(ids) == self.count and ids == self._expected, "decoding")


class Run:
    """One network of the model: `prepare`, `decode`, `check`, again and again."""

    def __init__(self, decoding: Decoding, network: Network) -> None:
        self.network = network
        self._decoding = decoding
        self._ids: list[int] = []

    def prepare(self) -> None:
        """Go back to the start, with one token made and the device idle."""
        self.network.restart(Sampling())
        self.network.prepare(1, self._decoding.count, "greedy")
        list(self.network.tokens([_START], 1, "greedy"))
        self._decoding.model.device.synchronize()

    def decode(self) -> None:
        self._ids = list(self.network.steps(self._decoding.count, "greedy"))

    def decode_and(self, at_token: Callable[[int], None]) -> None:
        """Decode, and call a function at each token, while later steps are in flight."""
        self._ids = []
        for number, token in enumerate(self.network.steps(self._decoding.count, "greedy")):
            self._ids.append(token)
            at_token(number)

    def check(self) -> None:
        self._decoding.check(self._ids)
