"""The memory of DeltaNet layers, with a slot too few, a copy not made, a state not forgotten."""

from __future__ import annotations

from mutation.mutants import Mutant


def _mutant(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "llm.recurrent_memory", old, new, driver="recurrence")


RECURRENCE = [
    _mutant("the ring has a slot too few", "SLOTS = AHEAD + 1", "SLOTS = AHEAD"),
    _mutant(
        "a slot holds its state while it is overwritten",
        "        self._held.pop(position % SLOTS, None)\n",
        "        pass\n",
    ),
    _mutant(
        "the state of the position before is copied",
        "into[layer].copy_from(memory[position % SLOTS])",
        "into[layer].copy_from(memory[(position - 1) % SLOTS])",
    ),
    _mutant(
        "of several layers, one is copied",
        "            into[layer].copy_from(memory[position % SLOTS])\n",
        "            into[layer].copy_from(memory[position % SLOTS])\n            break\n",
    ),
    _mutant(
        "a copy is not restored",
        "self.of_layer[layer][position % SLOTS].copy_from(copy)",
        "pass",
    ),
    _mutant(
        "a copy is restored to the slot of the next position",
        "self.of_layer[layer][position % SLOTS].copy_from(copy)",
        "self.of_layer[layer][(position + 1) % SLOTS].copy_from(copy)",
    ),
    _mutant(
        "states of discarded tokens are not forgotten",
        "for slot, one in self._held.items() if one <= position}",
        "for slot, one in self._held.items()}",
    ),
    _mutant(
        "copies of discarded tokens are not forgotten",
        "for later in [one for one in self._copies if one > position]:",
        "for later in list[int]():",
    ),
    _mutant(
        "a position counts as held without a state",
        "position = max((one for one in known if one <= position), default=0)",
        "position = position if known else 0",
    ),
    _mutant(
        "a later state is taken for an earlier one",
        "max((one for one in known if one <= position), default=0)",
        "min(max(known, default=0), position)",
    ),
    _mutant(
        "the newest copy makes room, and not the oldest",
        "self._copies.pop(next(iter(self._copies)))",
        "self._copies.pop(next(reversed(self._copies)))",
    ),
    _mutant(
        "no copy where the text went back to",
        "        self.keep(position)\n        return position\n",
        "        return position\n",
    ),
    _mutant(
        "no room is made for a copy",
        "        if len(self._copies) >= COPIES:\n",
        "        if len(self._copies) >= COPIES << 10:\n",
    ),
]
