"""The pointers of a SPIR-V module: which variable each points into, and how code accesses it.

Every pointer into a buffer, and every value that is a texel buffer, is followed; one that escapes
counts as read and written. A pointer must have the type of the part that it points to: drivers
crash on others.
"""

from __future__ import annotations

from array import array

from penstock.errors import InvalidSpirv
from penstock.shader import spirv_numbers as spv
from penstock.shader.spirv_types import Types

READ, WRITE = 1, 2

_ELEMENT_CHAINS = frozenset((67, 70))  # with an element index before the others
_ACCESS_CHAINS = _ELEMENT_CHAINS | {65, 66}
_CHAINS = _ACCESS_CHAINS | {spv.TEXEL_POINTER, 83, spv.IMAGE_OF_SAMPLED}  # 83: OpCopyObject
# Besides chains, a parameter, call, variable, load, bit cast, select or phi may yield a pointer.
_RESULTS = _CHAINS | {55, spv.FUNCTION_CALL, spv.VARIABLE, spv.LOAD, 124, 169, 245}

#: By opcode: which operands are pointers, and how the instruction accesses their memory.
OPERANDS: dict[int, tuple[tuple[int, int], ...]] = {
    spv.LOAD: ((3, READ),),
    spv.STORE: ((1, WRITE), (2, READ | WRITE)),  # storing a pointer lets it escape
    spv.COPY_MEMORY: ((1, WRITE), (2, READ)),
    spv.COPY_MEMORY_SIZED: ((1, WRITE), (2, READ)),
    spv.ARRAY_LENGTH: ((3, 0),),
    spv.ATOMIC_LOAD: ((3, READ),),
    spv.ATOMIC_STORE: ((1, WRITE),),
    spv.COOPERATIVE_LOAD: ((3, READ),),
    spv.COOPERATIVE_STORE: ((1, WRITE),),
    spv.IMAGE_FETCH: ((3, READ),),
    spv.IMAGE_READ: ((3, READ),),
    spv.IMAGE_WRITE: ((1, WRITE),),
    **dict.fromkeys(spv.IMAGE_SIZES, ((3, 0),)),
    spv.VARIABLE: ((4, READ | WRITE),),
    **dict.fromkeys(_CHAINS, ((3, 0),)),
}

# Instructions that take no pointer but may contain a literal that looks like an id: lines, shuffles
# and extracts, control flow, subgroup operations.
_NO_POINTER = frozenset((0, 8, 79, 81, 82, *range(246, 254), 317, *range(333, 367)))


class Pointers:
    """The pointers of the module with these words and types."""

    def __init__(self, words: array[int], types: Types) -> None:
        self._words = words
        self._types = types
        self.type_ids: dict[int, int] = {}  # of every pointer that is followed
        self.images: set[int] = set()  # variables that are images, samplers or texel buffers
        self.non_semantic: set[int] = set()  # sets of instructions that access nothing
        self._variables: dict[int, int] = {}  # from each pointer into a variable to that variable
        self._body: list[tuple[int, int, int, int]] = []  # function, opcode, start, end
        self._calls: dict[int, list[int]] = {}

    # Reading.

    def add_variable(self, number: int, *, image: bool) -> None:
        """Follow a variable of the module."""
        self._variables[number] = number
        if image:
            self.images.add(number)

    def add_initializer(self, at: int, end: int) -> None:
        """Follow what a variable of the module is initialized with, which can be a pointer."""
        self._body.append((0, spv.VARIABLE, at, end))

    def follow(self, function: int, op: int, at: int, end: int) -> None:
        """Follow the pointers of an instruction in a function."""
        words, variables = self._words, self._variables
        if op in _RESULTS and end > at + 2:
            self.check(op, at, end)
        if op in _CHAINS:
            base = variables.get(self._types.checked_id(words[at + 3]))
            if base is not None:
                variables[self._types.checked_id(words[at + 2])] = base
        elif op == spv.LOAD and variables.get(words[at + 3]) in self.images:
            # The value stands for the texel buffer, which it does not read.
            variables[self._types.checked_id(words[at + 2])] = variables[words[at + 3]]
        elif op == spv.FUNCTION_CALL:
            self._calls.setdefault(function, []).append(words[at + 3])
        if op not in _NO_POINTER and (op != spv.VARIABLE or end > at + 4):
            self._body.append((function, op, at, end))

    def check(self, op: int, at: int, end: int) -> None:
        """Store the type of a pointer, and check it against what the pointer is made from."""
        words, number = self._words, self._words[at + 2]
        kind, operands = self._types.declared.get(words[at + 1], (0, words[:0]))
        if op == spv.VARIABLE and (kind != spv.POINTER or operands[0] != words[at + 3]):
            raise InvalidSpirv(f"SPIR-V: variable {number} is of another storage than its type")
        if kind != spv.POINTER:
            return
        self.type_ids[number] = words[at + 1]
        if op in _ACCESS_CHAINS:
            base = self.type_ids.get(words[at + 3])
            if base is not None:
                storage, target = self._types.type(base)[1][:2]
                first = at + (5 if op in _ELEMENT_CHAINS else 4)
                target = self._types.part(target, words[first:end])
                if [storage, target] != operands[:2].tolist():
                    raise InvalidSpirv(f"SPIR-V: pointer {number} is of another type than its part")

    # Queries.

    def uses(self, entry: int) -> dict[int, int]:
        """By variable: how the functions reachable from `entry` access it."""
        reached = {0, entry}
        pending = [entry]
        while pending:
            for callee in self._calls.get(pending.pop(), ()):
                if callee not in reached:
                    reached.add(callee)
                    pending.append(callee)
        uses: dict[int, int] = {}
        for function, op, at, end in self._body:
            if function in reached:
                self._use(uses, op, at, end)
        return uses

    def _use(self, uses: dict[int, int], op: int, at: int, end: int) -> None:
        words, variables = self._words, self._variables
        if op in OPERANDS:
            for position, use in OPERANDS[op]:
                pointer = words[at + position]
                if pointer in variables:
                    variable = variables[pointer]
                    if op == spv.LOAD and variable in self.images:
                        use = 0
                    uses[variable] = uses.get(variable, 0) | use
                elif pointer >= self._types.bound:
                    self._types.checked_id(pointer)
        elif op != spv.EXT_INST or words[at + 3] not in self.non_semantic:
            operands = words[at + (5 if op == spv.EXT_INST else 1) : end]
            if not variables.keys().isdisjoint(operands):
                for operand in operands:
                    if operand in variables:
                        uses[variables[operand]] = READ | WRITE
