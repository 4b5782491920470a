"""Sampling: what may be drawn, how often, and what a step leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.llm.device_state import NO_TOKEN, DeviceState
from penstock.llm.sampling import ROW, Sampler, Shape, ranks_in
from penstock.llm.sampling_settings import MOST_RANKS, Sampling
from tests.llm.references import Host

_made: dict[tuple[int, int, str], Drawer] = {}


class Drawer:
    """A sampler with logits of its own, and its steps recorded."""

    def __init__(self, dev: ps.Device, vocabulary: int, variant: str) -> None:
        self.sampler = Sampler(dev, vocabulary, variant=variant)  # type: ignore[arg-type]
        self.progress = DeviceState.new(dev, history=16, ring=4096)
        self.logits = dev.zeros(vocabulary)
        self._graphs: list[ps.Graph] = []
        for greedy in (False, True):
            with dev.record() as graph:
                self.sampler.sample(self.logits, self.progress, greedy=greedy)
            self._graphs.append(graph)

    def draw(self, logits: Host, times: int, greedy: bool = False, **settings: Any) -> Host:
        """The tokens of so many steps from position 0, each from the same logits."""
        self.logits.write(logits)
        self.sampler.set(Sampling(**settings))
        self.progress.restart()
        for _ in range(times):
            self._graphs[greedy].replay()
        return self.progress.ring.numpy()[:times]


def drawer(dev: ps.Device, vocabulary: int, variant: str = "cpu") -> Drawer:
    """Kept, since compiling costs more than drawing."""
    key = (id(dev), vocabulary, variant)
    if key not in _made:
        _made[key] = Drawer(dev, vocabulary, variant)
    return _made[key]


def random_logits(vocabulary: int, seed: int = 1) -> Host:
    return np.random.default_rng(seed).standard_normal(vocabulary).astype(np.float32) * 3


def distribution(logits: Host, settings: Sampling) -> Host:
    """The probability of every token, by float64 and a full sort."""
    logits = logits.astype(np.float64)
    order = np.lexsort((np.arange(logits.size), -logits))
    if settings.top_k:
        order = order[: settings.top_k]
    weights = np.exp((logits[order] - logits.max()) / settings.temperature)
    weights /= weights.sum()
    if settings.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(weights), settings.top_p)) + 1
        order, weights = order[:kept], weights[:kept]
    kept = weights >= settings.min_p * weights[0]
    found = np.zeros(logits.size)
    found[order[kept]] = weights[kept] / weights[kept].sum()
    return found


@pytest.mark.parametrize("vocabulary", [2, 7, 1000, 300_001])
def test_greedy_takes_the_highest(dev: ps.Device, vocabulary: int) -> None:
    logits = random_logits(vocabulary)
    for at in (0, vocabulary // 2, vocabulary - 1):
        logits[at] = logits.max() + 1
        assert drawer(dev, vocabulary).draw(logits, 2, greedy=True).tolist() == [at, at]
        assert drawer(dev, vocabulary).draw(logits, 2, temperature=0.0).tolist() == [at, at]


@pytest.mark.parametrize("greedy", [True, False])
def test_first_of_equals_is_taken(dev: ps.Device, variant: str, greedy: bool) -> None:
    logits = np.full(1000, -1, np.float32)
    logits[[333, 334, 990]] = 4
    draw = drawer(dev, 1000, variant).draw
    assert set(draw(logits, 5, greedy=greedy, temperature=0.0)) == {333}
    logits[:] = 0
    logits[::2] = -0.0  # equal to 0
    assert set(draw(logits, 5, greedy=greedy, temperature=0.0)) == {0}


SETTINGS = [
    {"temperature": 0.7},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 5000},  # more than there are
    {"top_k": 500, "temperature": 0.1, "top_p": 0.99},  # more than have any weight
    {"top_k": 600, "temperature": 9.0, "min_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"top_p": 0.3, "temperature": 3.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 1.5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [7, 1000])
def test_tokens_come_as_often_as_they_should(
    dev: ps.Device, vocabulary: int, settings: dict[str, Any]
) -> None:
    """Exactly the kept tokens are drawn; chi-square of their numbers, which the seed fixes."""
    logits = random_logits(vocabulary)
    times = 250
    found = drawer(dev, vocabulary).draw(logits, times, seed=5, **settings)
    expected = distribution(logits, Sampling(**settings)) * times
    assert (expected[found] > 0).all()
    # Rare tokens are counted together, since chi-square needs a few of each.
    often = expected >= 5
    numbers = np.bincount(found, minlength=vocabulary)
    pairs = [*zip(numbers[often], expected[often], strict=True)]
    if expected[~often].sum() >= 5:
        pairs.append((numbers[~often].sum(), expected[~often].sum()))
    chi_square = sum((n - e) ** 2 / e for n, e in pairs)
    freedom = len(pairs) - 1
    assert chi_square <= freedom + 4 * np.sqrt(2 * freedom) + 1e-9


@pytest.mark.parametrize(
    ("vocabulary", "variant"), [(1000, "cpu"), (1000, "gpu"), (300_001, "cpu")]
)
def test_support_is_exact(dev: ps.Device, vocabulary: int, variant: str) -> None:
    """With kept tokens that are almost as likely, many draws see all of them and no other."""
    logits = -(random_logits(vocabulary) ** 2) / 1e3
    top = 8
    best = np.lexsort((np.arange(vocabulary), -logits))[:top]
    share = float(distribution(logits, Sampling())[best].sum())
    # A little less than the sum, so that rounding cannot decide.
    for settings in ({"top_k": top}, {"top_p": share * (1 - 0.3 / top)}):
        found = drawer(dev, vocabulary, variant).draw(logits, 60, seed=3, **settings)
        assert sorted(set(found.tolist())) == sorted(best.tolist())


def test_equal_logits_at_the_cut_are_kept_by_id(dev: ps.Device, variant: str) -> None:
    logits = np.zeros(1000, np.float32)
    logits[500:504] = 1
    draw = drawer(dev, 1000, variant).draw
    assert set(draw(logits, 60, top_k=6)) == {0, 1, 500, 501, 502, 503}
    logits = np.full(1000, -100, np.float32)
    logits[[10, 20, 900, 999]] = 3
    assert set(draw(logits, 40, top_p=0.5)) == {10, 20}  # exactly half
    assert set(draw(logits, 40, top_p=0.501)) == {10, 20, 900}
    assert set(draw(logits, 40, top_k=3, top_p=0.5)) == {10, 20}  # a share of what top-k keeps


def test_top_p_over_a_flat_vocabulary(dev: ps.Device) -> None:
    logits = np.zeros(1000, np.float32)
    found = drawer(dev, 1000).draw(logits, 200, top_p=0.25)
    assert 240 < found.max() < 250
    assert len(set(found.tolist())) > 120


def test_same_seed_gives_the_same_text_on_every_device(dev: ps.Device, variant: str) -> None:
    """The text is that of Philox and the distribution, whatever the device."""
    logits = random_logits(1000)
    settings: dict[str, Any] = {"temperature": 1.3, "top_p": 0.99, "top_k": 500, "seed": 2**40 + 7}
    found = drawer(dev, 1000, variant).draw(logits, 100, **settings).tolist()
    assert found == [_by_hand(logits, position, settings) for position in range(1, 101)]
    other = drawer(dev, 1000, variant).draw(logits, 20, **(settings | {"seed": 2**41 + 7}))
    assert other.tolist() != found[:20]


def _by_hand(logits: Host, position: int, settings: dict[str, Any]) -> int:
    random = _philox(position, settings["seed"])
    kept = distribution(logits, Sampling(**settings))
    return int(np.searchsorted(np.cumsum(kept), random / 2**64, side="right"))


def _philox(position: int, seed: int) -> int:
    """Philox 4x32-10, its first 64 bits."""
    c, key = [position, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0] | c[1] << 32


def test_philox_of_the_test_is_that_of_its_authors() -> None:
    assert _philox(0, 0) == 0xE169C58D_6627E8D5


def test_position_decides_not_the_step(dev: ps.Device) -> None:
    """Going on from the middle of a text gives its second half."""
    logits = random_logits(1000)
    made = drawer(dev, 1000)
    whole = made.draw(logits, 20, temperature=2.0, seed=9)
    made.progress.restart(12)
    for _ in range(8):
        made.sampler.sample(made.logits, made.progress)
    assert made.progress.ring.numpy()[:8].tolist() == whole[12:].tolist()


@pytest.mark.parametrize("greedy", [True, False])
def test_penalty(dev: ps.Device, greedy: bool) -> None:
    """Each of the last tokens once, however often it occurs; older ones not at all."""
    logits = random_logits(1000)
    logits[[5, 6, 7]] = 3, -2, 0
    made = drawer(dev, 1000)
    made.logits.write(logits)
    made.sampler.set(Sampling(penalty=1.5, last_n=4))
    made.progress.history.write(np.array([9, 5, 5, 6, 7, *[0] * 11], np.uint32))
    made.progress.restart(4)  # tokens 0 to 4 are known: 3 and older ones are not looked at
    made.sampler.sample(made.logits, made.progress, greedy=greedy)
    expected = logits.copy()
    expected[[5, 6]] = 3 * np.float32(1 / 1.5), -2 * np.float32(1.5)
    np.testing.assert_array_equal(made.logits.numpy(), expected)


def test_penalty_looks_no_further_than_the_history(dev: ps.Device) -> None:
    logits = np.ones(1000, np.float32)
    made = drawer(dev, 1000)
    made.logits.write(logits)
    made.sampler.set(Sampling(penalty=2.0, last_n=1 << 31))
    history = np.arange(100, 116, dtype=np.uint32)
    history[3] = 4_000_000_000  # not a token
    made.progress.history.write(history)
    made.progress.restart(1000)
    made.sampler.sample(made.logits, made.progress, greedy=True)
    expected = logits.copy()
    expected[np.delete(np.arange(100, 116), 3)] = 0.5
    np.testing.assert_array_equal(made.logits.numpy(), expected)


def test_penalty_keeps_a_text_from_repeating(dev: ps.Device) -> None:
    logits = np.zeros(1000, np.float32)
    logits[:8] = 10 - np.arange(8)
    made = drawer(dev, 1000)
    assert made.draw(logits, 4, greedy=True).tolist() == [0, 0, 0, 0]
    made.progress.history.fill(999)
    found = made.draw(logits, 4, greedy=True, penalty=100.0)
    # Penalised in place, a logit stays low.
    assert found.tolist() == [0, 1, 2, 3]


# Bias, frequency, presence, and log-probabilities.


def penalised(logits: Host, sampled: list[int], settings: Sampling) -> Host:
    """Bias, then repetition, then frequency and presence, by float64; as llama.cpp orders them."""
    found = logits.astype(np.float64)
    for token, bias in settings.bias.items():
        found[token] += bias
    for token in set(sampled[-settings.last_n :]):
        found[token] *= settings.penalty ** (1 if found[token] <= 0 else -1)
    for token in set(sampled):
        found[token] -= settings.frequency * sampled.count(token) + settings.presence
    return found


ADJUSTED = [
    {"bias": {3: 50.0, 999: -2.5}},
    {"frequency": 0.6},
    {"presence": 1.5},
    {"frequency": -0.25, "presence": 0.5},
    {"bias": {7: 2.0, 0: -1.0}, "penalty": 1.3, "last_n": 5, "frequency": 0.3, "presence": 0.2},
]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("settings", ADJUSTED, ids=str)
def test_bias_and_penalties_are_those_of_the_reference(
    dev: ps.Device, variant: str, settings: dict[str, Any], greedy: bool
) -> None:
    """Step after step, each from fresh logits; the penalties count what was sampled before."""
    logits = random_logits(1000)
    logits[[3, 7]] = logits.max() + np.array([0.1, 0.2])
    made = drawer(dev, 1000, variant)
    wanted = Sampling(temperature=1.0, seed=4, **settings)
    made.sampler.set(wanted)
    made.progress.restart()
    made.progress.history.fill(7777)  # no token
    sampled: list[int] = []
    for step in range(12):
        made.logits.write(logits)
        made.sampler.sample(made.logits, made.progress, greedy=greedy, extras=wanted.extras)
        expected = penalised(logits, sampled, wanted)
        np.testing.assert_allclose(made.logits.numpy(), expected, rtol=1e-6, atol=1e-6)
        sampled.append(int(made.progress.ring.numpy()[step]))
        if greedy:
            assert sampled[-1] == expected.argmax()
    made.sampler.set(wanted)  # counts anew
    made.logits.write(logits)
    made.progress.restart()
    made.progress.history.fill(7777)
    made.sampler.sample(made.logits, made.progress, greedy=greedy, extras=wanted.extras)
    np.testing.assert_allclose(made.logits.numpy(), penalised(logits, [], wanted), rtol=1e-6)


def test_a_bias_of_every_token_and_infinite_ones(dev: ps.Device) -> None:
    logits = random_logits(1000)
    made = drawer(dev, 1000)

    def first(**settings: Any) -> int:
        made.sampler.set(Sampling(**settings))
        made.logits.write(logits)
        made.progress.restart()
        made.sampler.sample(made.logits, made.progress, extras=["bias"])
        return int(made.progress.ring.numpy()[0])

    every = {token: float(-logits[token]) for token in range(1000)}
    for seed in range(3):
        assert first(bias=every | {5: np.inf, 6: 10**400}, seed=seed) == 5
        banned = dict.fromkeys(range(1000), -np.inf)
        del banned[17]
        assert first(bias=banned, seed=seed) == 17
    for token in (-1, 1000, 1 << 40):
        with pytest.raises(ps.InvalidValue, match=f"token {token};"):
            made.sampler.set(Sampling(bias={token: 1.0}))


@pytest.mark.parametrize(
    "extreme",
    [{"temperature": 1e38}, {"temperature": 10**400}, {"temperature": 1e-45}, {"penalty": 1e38},
     {"penalty": 10**400}, {"penalty": 1e-300}, {"penalty": 1e-38, "temperature": 1e300},
     {"frequency": 1e30, "presence": -1e30}],
    ids=lambda each: f"{each!s:.40}",
)  # fmt: skip
def test_infinite_biases_outlast_every_other_setting(
    dev: ps.Device, variant: str, extreme: dict[str, Any]
) -> None:
    """Also where a penalty applies: tokens 0 to 7 are in the history."""
    made = drawer(dev, 1000, variant)
    banned = dict.fromkeys(range(1000), -np.inf)
    del banned[17]
    for bias, wanted in ((banned, 17), ({5: np.inf}, 5)):
        how = Sampling(bias=bias, seed=3, **extreme)
        made.sampler.set(how)
        made.progress.restart()
        made.progress.history[:8] = np.arange(8, dtype=np.uint32)
        made.progress.state[:1] = np.array([8], np.uint32)
        for _ in range(3):
            made.logits.write(random_logits(1000))
            made.sampler.sample(made.logits, made.progress, extras=how.extras)
        assert made.progress.ring.numpy()[:3].tolist() == [wanted] * 3


def log_softmax(logits: Host) -> Host:
    wide = logits.astype(np.float64)
    highest = wide.max()
    with np.errstate(invalid="ignore"):
        below = np.where(wide == highest, 0.0, wide - highest)
    found: Host = below - np.log(np.exp(below).sum())
    return found


def listed(rows: ps.Array, step: int, count: int) -> tuple[float, list[int], Host]:
    """Read the step's row: the log-probability of its token; ids and log-probabilities listed."""
    row = rows.numpy()[step]
    floats = row.view(np.float32)
    ids = row[1 : 1 + count].tolist()
    return float(floats[0]), ids, floats[1 + MOST_RANKS : 1 + MOST_RANKS + count]


@pytest.mark.parametrize("vocabulary", [7, 1000, 300_001])
def test_logprobs_are_of_the_logits_as_computed(
    dev: ps.Device, variant: str, vocabulary: int
) -> None:
    """Whatever bias, penalties and temperature do; ties are listed by id."""
    logits = random_logits(vocabulary)
    logits[-3:] = logits.max()
    if vocabulary == 1000:
        logits[[600, 601]] = -np.inf, 40
    made = drawer(dev, vocabulary, variant)
    settings = Sampling(
        temperature=0.3, bias={0: 5.0}, frequency=1.0, penalty=2.0, logprobs=20, seed=3
    )
    rows = dev.zeros((4, ROW["ROW"]), np.uint32)
    made.sampler.set(settings)
    made.progress.restart()
    for _ in range(3):
        made.logits.write(logits)
        made.sampler.sample(made.logits, made.progress, extras=settings.extras, rows=rows)
    wanted = log_softmax(logits)
    order = np.lexsort((np.arange(vocabulary), -wanted))[:20]
    for step in range(3):
        own, ids, logprobs = listed(rows, step, 20)
        token = made.progress.ring.numpy()[step]
        np.testing.assert_allclose(own, wanted[token], rtol=1e-5, atol=1e-5)
        assert ids == [*order, *[0xFFFFFFFF] * (20 - len(order))]
        finite = np.maximum(wanted[order], -1e30)
        np.testing.assert_allclose(logprobs[: len(order)], finite, rtol=1e-5, atol=1e-5)


def test_a_launch_may_list_only_some_ranks(dev: ps.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with vocabularies so large that listing all at once would loop too often."""
    logits = random_logits(1000)
    made = drawer(dev, 1000)
    found = []
    for each in (20, 3):
        monkeypatch.setattr(Shape, "ranks_each", each)
        rows = dev.zeros((2, ROW["ROW"]), np.uint32)
        made.sampler.set(Sampling(logprobs=10))
        made.logits.write(logits)
        made.progress.restart()
        made.sampler.sample(made.logits, made.progress, extras=["logprobs"], rows=rows)
        found.append(rows.numpy()[0])
    np.testing.assert_array_equal(*found)
    assert found[0][1:11].tolist() == np.argsort(-logits)[:10].tolist()
    assert not found[0][11:21].any()


ODD = {
    "all NaN": ([np.nan] * 7, {NO_TOKEN}, {NO_TOKEN}),
    "some NaN": ([1, 1, np.nan, 1, -np.inf, 0, 1], {NO_TOKEN}, {NO_TOKEN}),
    "-NaN at the end": ([1, 1, 2, 1, -np.inf, 0, -np.nan], {NO_TOKEN}, {NO_TOKEN}),
    "NaN and +inf": ([0, np.inf, 3e38, np.inf, np.nan, -np.inf, 1], {NO_TOKEN}, {NO_TOKEN}),
    "all -inf": ([-np.inf] * 7, {0}, set(range(7))),
    "some -inf": ([-np.inf, 1, -np.inf, 1, -np.inf, 0, 1], {1}, {1, 3, 5, 6}),
    "+inf": ([0, np.inf, 3e38, np.inf, 2, -np.inf, 1], {1}, {1, 3}),
    "largest apart": ([-3e38, 3e38, 3e38, 0, 0, 0, 0], {1}, {1, 2}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_logits(dev: ps.Device, name: str) -> None:
    values, greedy, drawn = ODD[name]
    logits = np.array(values, np.float32)
    made = drawer(dev, 7)
    assert set(made.draw(logits, 3, greedy=True)) == greedy
    assert set(made.draw(logits, 60, seed=2)) == drawn
    assert set(made.draw(logits, 30, seed=2, top_k=6, top_p=0.999, min_p=1e-6)) <= drawn


@pytest.mark.parametrize("vocabulary", [1000, 50_001])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.3, "top_k": 5},
        {"top_p": 0.5, "min_p": 0.1},
        {"penalty": 2.0, "frequency": 1.0, "presence": 1.0},
        {"bias": {3: -np.inf, 17: -np.inf}},
        {"logprobs": 20},
    ],
    ids=str,
)
def test_every_way_notices_a_nan(
    dev: ps.Device, variant: str, vocabulary: int, settings: dict[str, Any]
) -> None:
    """A single one, wherever it is; and none in the step after it, which has no NaN."""
    how = Sampling(**settings)
    made = drawer(dev, vocabulary, variant)
    rows = dev.zeros((4, ROW["ROW"]), np.uint32)
    made.sampler.set(how)
    made.progress.restart()
    for place in (3, vocabulary - 1, None):
        logits = random_logits(vocabulary)
        if place is not None:
            logits[place] = np.nan
        made.logits.write(logits)
        made.sampler.sample(
            made.logits, made.progress, greedy=how.temperature == 0, extras=how.extras, rows=rows
        )
    found = made.progress.ring.numpy()[:3].tolist()
    assert found[:2] == [NO_TOKEN, NO_TOKEN]
    assert found[2] < vocabulary


def test_no_penalty_makes_a_nan(dev: ps.Device) -> None:
    """Penalties beyond what float32 holds, and logits of 0."""
    made = drawer(dev, 7)
    made.progress.restart()
    for penalty in (1e300, 1e300, 1e-300):
        made.sampler.set(Sampling(temperature=0.0, penalty=penalty))
        made.logits.write(np.zeros(7, np.float32))
        made.sampler.sample(made.logits, made.progress, greedy=True)
    assert made.progress.ring.numpy()[:3].tolist() == [0, 0, 0]


def test_extreme_temperatures(dev: ps.Device) -> None:
    logits = random_logits(1000)
    assert set(drawer(dev, 1000).draw(logits, 20, temperature=1e-40)) == {logits.argmax()}
    assert len(set(drawer(dev, 1000).draw(logits, 100, temperature=1e30).tolist())) > 80


def test_what_a_step_leaves_behind(dev: ps.Device, variant: str) -> None:
    """After a batch of three the token is at its position, its step, and first in line."""
    logits = random_logits(1000)
    best = int(logits.argmax())
    made = drawer(dev, 1000, variant)
    progress = DeviceState.new(dev, batch=4, history=5, ring=2)
    made.logits.write(logits)
    made.sampler.set(Sampling(temperature=0.0))
    for greedy in (True, False):
        progress.restart(6)
        for array in (progress.tokens, progress.history, progress.ring):
            array.fill(7777)
        for _ in range(3):
            made.sampler.sample(made.logits, progress, count=3, greedy=greedy)
        assert progress.state.numpy()[:2].tolist() == [15, 3]
        assert progress.tokens.numpy().tolist() == [best, 7777, 7777, 7777]
        # Positions 9, 12 and 15.
        assert progress.history.numpy().tolist() == [best, 7777, best, 7777, best]
        assert progress.ring.numpy().tolist() == [best, best]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"penalty": 0}, "repetition_penalty=0: it must be finite and above 0"),
        ({"top_k": -1, "seed": -2}, "top_k=-1: it must be 0 or more, below 2.*; seed=-2"),
        ({"logprobs": 21}, "logprobs=21"),
        ({"logprobs": True}, "logprobs=True: it must be a whole number"),
        ({"frequency": float("inf")}, "frequency_penalty=inf"),
        ({"presence": "much"}, "presence_penalty='much': it must be a number"),
        ({"top_k": 1.5}, "top_k=1.5: it must be a whole number"),
        ({"presence": 1e31}, "presence_penalty=1e\\+31: it must be up to 1e\\+30, positive or"),
        ({"bias": {3: float("nan")}}, "logit_bias of token 3 is nan"),
        ({"bias": {"a": 1.0}}, "logit_bias is a dict of token ids"),
        ({"bias": [1, 2]}, "logit_bias is a dict of token ids"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises((ps.InvalidValue, ps.ArgumentError), match=says):
        Sampling(**settings)


def test_wrong_sizes_are_refused(dev: ps.Device) -> None:
    made = drawer(dev, 1000)
    with pytest.raises(ps.ShapeMismatch, match="999 logits for a vocabulary of 1000"):
        made.sampler.sample(dev.zeros(999), made.progress)
    with pytest.raises(ps.InvalidValue, match="a vocabulary of 0"):
        Sampler(dev, 0)


def test_what_a_row_of_ranks_holds_beyond_those_asked_for_is_not_read() -> None:
    row = np.full(ROW["ROW"], 0x7F800001, np.uint32)  # a signalling NaN: converting it warns
    values = row.view(np.float32)
    row[1:4] = 7, 5, NO_TOKEN
    values[0], values[1 + MOST_RANKS : 3 + MOST_RANKS] = -0.5, (-0.25, -1e30)
    assert ranks_in(row, 3) == (-0.5, [7, 5], [-0.25, -np.inf])
    assert ranks_in(row, 0) == (-0.5, [], [])
