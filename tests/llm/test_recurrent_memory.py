"""The memory of DeltaNet layers: random conversations that go back, on the simulator.

A kernel that stands for a layer does with the slots what the shaders do, in arithmetic that loses
nothing: each number of a slot depends on all tokens before its position. The simulator delays and
overlaps whatever nothing orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock.llm.delta_net import DeltaNet
from penstock.llm.optimizations import AHEAD
from penstock.llm.recurrent_memory import COPIES, SLOTS, RecurrentMemory
from tests.conftest import simulated

Host = npt.NDArray[Any]

NET = DeltaNet(frozenset({1, 4}), 1, 2, 4, 3, 4)
PRIME = 8191  # numbers stay below 2**24, so that float32 is exact
BATCH = 7

_LAYER = """
layout(local_size_x = 64) in;
layout(binding = 0) buffer Memory { float memory[]; };
layout(binding = 1) readonly buffer State { uint state[]; };
layout(binding = 2) readonly buffer Tokens { uint tokens[]; };
layout(push_constant) uniform P { uint count; uint slots; uint size; uint layer; };
void main() {
    uint i = gl_GlobalInvocationID.x, position = state[0];
    if (i >= size) return;
    float number = position == 0u ? 0.0 : memory[position % slots * size + i];
    for (uint t = 0u; t < count; ++t) number = mod(number * 3.0 + i + tokens[t] + layer, 8191.0);
    memory[(position + count) % slots * size + i] = number;
}
"""
_NEXT = """
layout(local_size_x = 1) in;
layout(binding = 0) readonly buffer Memory { float memory[]; };
layout(binding = 1) buffer State { uint state[]; };
layout(binding = 2) buffer Tokens { uint tokens[]; };
layout(push_constant) uniform P { uint count; uint slots; uint size; };
void main() {
    state[0] += count;
    float sum = 0.0;
    for (uint i = 0u; i < size; ++i) sum += memory[state[0] % slots * size + i];
    tokens[0] = uint(sum) % 97u;
}
"""


def after(old: Host, token: int, layer: int) -> Host:
    """What a slot holds after a token."""
    return (old * 3 + np.arange(old.size) + token + layer) % PRIME


def chosen(slot: Host) -> int:
    """The token that follows, which depends on all tokens before."""
    return int(slot.sum()) % 97


def of_layer(
    *, memory: Host, state: Host, tokens: Host, count: int, slots: int, size: int, layer: int,
    threads: object,
) -> None:  # fmt: skip
    position = int(state[0])
    rows = memory.reshape(int(slots), int(size))
    row = rows[position % int(slots)].copy() if position else np.zeros(int(size), np.float32)
    for token in tokens[: int(count)]:
        row = after(row, int(token), int(layer))
    rows[(position + int(count)) % int(slots)] = row


def of_next(
    *, memory: Host, state: Host, tokens: Host, count: int, slots: int, size: int,
    threads: object,
) -> None:  # fmt: skip
    state[0] += np.uint32(count)
    tokens[0] = chosen(memory.reshape(int(slots), -1)[int(state[0]) % int(slots)])


class Conversation:
    """A text that grows and is cut, as `Network` does it, and what the memory must hold."""

    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.memory = RecurrentMemory(device, NET)
        self.size = next(iter(self.memory.of_layer.values())).shape[1]
        self.state = device.zeros(1, np.uint32, name="state")
        self.tokens = device.zeros(BATCH, np.uint32, name="tokens")
        self.text: list[int] = []
        self.ends: list[int] = []  # of prompts
        kernel: Callable[..., Any] = device.kernel
        layer = kernel(_LAYER, name="layer", reference=of_layer)
        following = kernel(_NEXT, name="next", reference=of_next)
        self.graphs = {}
        for count in range(1, BATCH + 1):
            with device.record() as graph:
                for number, memory in self.memory.of_layer.items():
                    layer(
                        memory=memory, state=self.state, tokens=self.tokens, count=count,
                        slots=SLOTS, size=self.size, layer=number, threads=self.size,
                    )  # fmt: skip
                following(
                    memory=self.memory.of_layer[1], state=self.state, tokens=self.tokens,
                    count=count, slots=SLOTS, size=self.size, threads=1,
                )  # fmt: skip
            self.graphs[count] = graph

    def expected(self, layer: int) -> Host:
        slot = np.zeros(self.size, np.float32)
        for token in self.text:
            slot = after(slot, token, layer)
        return slot

    def read(self, ids: list[int]) -> None:
        """Read a prompt in batches."""
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            self.tokens[: len(part)].write(np.array(part, np.uint32))
            self._do(part)
        self.memory.keep(len(self.text))
        self.ends.append(len(self.text))

    def step(self) -> None:
        self._do([chosen(self.expected(1))])

    def _do(self, ids: list[int]) -> None:
        self.memory.begin(len(self.text) + len(ids))
        self.graphs[len(ids)].replay()
        self.text += ids
        self.memory.advance(len(self.text))

    def go_back(self, position: int) -> int:
        kept = self.memory.go_back(position)
        self.state.write(np.array([kept], np.uint32))
        del self.text[kept:]
        self.ends = [end for end in self.ends if end <= kept]
        return kept

    def check(self) -> None:
        for layer, memory in self.memory.of_layer.items():
            if self.text:
                got = memory[len(self.text) % SLOTS].numpy()
                np.testing.assert_array_equal(got, self.expected(layer))


@pytest.mark.parametrize("seed", range(5))
def test_random_conversations(seed: int) -> None:
    random = np.random.default_rng(seed)
    with simulated(seed) as device:
        talk = Conversation(device)
        for _ in range(12):
            talk.read(random.integers(0, 97, random.integers(1, 3 * BATCH)).tolist())
            for _ in range(random.integers(0, 8)):
                talk.step()
            if random.random() < 0.5:
                talk.check()
            # A token ended the text, and the steps issued ahead of it are discarded.
            back = int(random.integers(0, AHEAD + 1))
            if back <= len(talk.text) - talk.ends[-1]:
                wanted = len(talk.text) - back
                assert talk.go_back(wanted) == wanted
            if random.random() < 0.5:
                talk.check()
            if random.random() < 0.4:
                # Back to an earlier turn. What was copied last must still be there.
                wanted = int(random.integers(0, len(talk.text) + 1))
                ends = [end for end in talk.ends[-COPIES // 2 :] if end <= wanted]
                kept = talk.go_back(wanted)
                assert max(ends, default=0) <= kept <= wanted
                talk.check()
        talk.check()


def test_what_was_discarded_is_not_gone_back_to() -> None:
    with simulated(0) as device:
        talk = Conversation(device)
        talk.read([1, 2, 3])
        for _ in range(AHEAD):
            talk.step()
        assert talk.go_back(3) == 3
        talk.read([4, 5, 6, 7, 8, 9, 10])  # one batch, which leaves the slots of 4 and 5 alone
        assert talk.go_back(5) == 3
        talk.check()


def test_going_back_twice_to_one_token() -> None:
    """The second time the ring has moved on."""
    with simulated(4) as device:
        talk = Conversation(device)
        talk.read([1, 2, 3])
        talk.step()
        for _ in range(2):
            assert talk.go_back(4) == 4
            talk.read(list(range(3 * BATCH)))  # which writes every slot
        talk.check()


def test_a_restart_needs_nothing_cleared() -> None:
    with simulated(1) as device:
        talk = Conversation(device)
        talk.read([5, 6, 7])
        assert talk.go_back(0) == 0
        talk.read([8])
        talk.check()


def test_memory_does_not_grow_with_turns() -> None:
    with simulated(2) as device:
        talk = Conversation(device)
        sizes = []
        for turn in range(3 * COPIES):
            talk.read([turn, turn + 1])
            talk.step()
            if turn % 5 == 4:
                talk.go_back(len(talk.text) // 2)
            sizes.append(talk.memory.held.nbytes)
        rows = SLOTS + COPIES
        assert max(sizes) <= 4 * len(NET.layers) * rows * talk.size
        assert sizes[-1] == sizes[-2 * COPIES]


def test_work_that_fails_to_be_issued_holds_nothing() -> None:
    """Its slot may be half written, so nothing takes it for what it held before."""
    with simulated(3) as device:
        talk = Conversation(device)
        talk.read([1, 2])
        for _ in range(SLOTS - 1):
            talk.step()
        end = talk.ends[-1]
        for position in (end, end + 1):  # the first was copied as a prompt's end
            talk.go_back(position)  # and the second because the text went back to it
            talk.memory.begin(position + SLOTS)
            for memory in talk.memory.of_layer.values():
                memory[position % SLOTS].fill(3)
            assert talk.go_back(position) == position
            talk.check()
            for token in range(SLOTS - 1):
                talk.read([token])
