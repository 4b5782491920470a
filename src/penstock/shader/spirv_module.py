"""A SPIR-V module: its instructions, read once into tables.

Reading is linear in the size of the module, and skips what need not be understood. It raises for
what is malformed, and for what makes drivers crash: ids out of range, strings without an end,
built-ins of other shader stages.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterator

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader import spirv_numbers as spv
from penstock.shader.spirv_pointers import OPERANDS, Pointers
from penstock.shader.spirv_types import Types

#: Bytes of the longest name of an argument, with the instruction that gives it.
MAX_NAME = 1024


class Module:
    """The tables of the module that `code` is."""

    def __init__(self, code: bytes) -> None:
        self._code = bytes(code)
        self._words = _words(self._code)
        self.version = (self._words[1] >> 16 & 0xFF, self._words[1] >> 8 & 0xFF)
        self.types = Types(bound=self._words[3])
        self.pointers = Pointers(self._words, self.types)
        self.capabilities: set[int] = set()
        self.entries: list[tuple[int, int, str]] = []  # execution model, function, name
        self.local_sizes: dict[int, array[int]] = {}
        self.local_size_ids: dict[int, list[int]] = {}
        self.preserved: set[tuple[int, int]] = set()  # function, width of floats
        self.work_group_sizes: list[int] = []
        self.composites: dict[int, list[int]] = {}
        self.variables: dict[int, tuple[int, int]] = {}  # pointer type, storage class
        self.shared: list[int] = []  # pointer types of variables in shared memory
        self.decorations: dict[int, dict[int, int]] = {}
        self.member_decorations: dict[tuple[int, int], dict[int, int]] = {}
        self.functions: set[int] = set()
        self._names: dict[int, tuple[int, int]] = {}  # position of the string
        self._member_names: dict[tuple[int, int], tuple[int, int]] = {}
        self._built_ins: list[tuple[int, int]] = []  # decorated id, and the built-in's number
        self._read()

    # Reading.

    def _read(self) -> None:
        words, end = self._words, len(self._words)
        known, follow = _OPS, self.pointers.follow
        at, function = 5, 0
        while at < end:
            word = words[at]
            size, op = word >> 16, word & 0xFFFF
            after = at + size
            if size == 0 or after > end:
                raise InvalidSpirv(f"SPIR-V: instruction {op} at word {at} runs past the end")
            if op in known and size < known[op]:
                raise InvalidSpirv(f"SPIR-V: instruction {op} at word {at} is too short")
            if op == spv.FUNCTION:
                function = self.types.checked_id(words[at + 2])
                self.functions.add(function)
            elif op == spv.FUNCTION_END:
                function = 0
            elif function:
                follow(function, op, at, after)
            elif op in known:
                self._declaration(op, at, after)
            at = after
        if function:
            raise InvalidSpirv("SPIR-V: the module is truncated, inside a function")
        for target, number in self._built_ins:
            self._check_built_in(target, number)

    def _declaration(self, op: int, at: int, end: int) -> None:
        words = self._words
        first, second = words[at + 1], words[at + 2] if end > at + 2 else 0
        if op in _TEXTS:
            self._check_text(at + _TEXTS[op], end)
        if op in (spv.NAME, spv.MEMBER_NAME) and 4 * (end - at) > MAX_NAME:
            pass  # too long to be used as an argument's name
        elif op == spv.NAME:
            self._names[first] = (at + 2, end)
        elif op == spv.MEMBER_NAME:
            self._member_names[first, second] = (at + 3, end)
        elif op == spv.DECORATE:
            self._decorate(self.decorations.setdefault(first, {}), at + 2, end)
            if second == spv.BUILT_IN:
                self._built_in(first, words[at + 3] if end > at + 3 else -1)
        elif op == spv.MEMBER_DECORATE:
            self._decorate(self.member_decorations.setdefault((first, second), {}), at + 3, end)
        elif op == spv.GROUP_DECORATE:
            for target in words[at + 2 : end]:
                self.decorations.setdefault(target, {}).update(self.decorations.get(first, {}))
        elif op == spv.GROUP_MEMBER_DECORATE:
            for pair in range(at + 2, end - 1, 2):
                key = words[pair], words[pair + 1]
                own = self.member_decorations.setdefault(key, {})
                own.update(self.decorations.get(first, {}))
        elif op in spv.TYPES:
            self.types.declared[self._new(first)] = (op, words[at + 2 : end])
            if op in (spv.INT, spv.FLOAT):
                self.types.scalar(first)
            elif op in (spv.VECTOR, spv.MATRIX) and not 2 <= words[at + 3] <= 4:
                raise InvalidSpirv(f"SPIR-V: a vector or matrix of {words[at + 3]:,} parts")
        elif op in spv.SCALAR_CONSTANTS:
            self.types.constants[self._new(second)] = (op, first, words[at + 3 : end])
        elif op in spv.COMPOSITE_CONSTANTS:
            self.composites[self._new(second)] = words[at + 3 : end].tolist()
            kind, operands = self.types.declared.get(first, (0, words[:0]))
            parts = operands[1] if kind in (spv.VECTOR, spv.MATRIX) else len(operands)
            if kind in (spv.VECTOR, spv.MATRIX, spv.STRUCT) and end - at - 3 != parts:
                raise InvalidSpirv(
                    f"SPIR-V: constant {second} has {end - at - 3} parts, not {parts}"
                )
        elif op == spv.VARIABLE:
            storage = words[at + 3]
            self.pointers.check(op, at, end)
            if storage in _BLOCK_STORAGE:
                self.variables[self._new(second)] = (first, storage)
                self.pointers.add_variable(second, image=storage == spv.UNIFORM_CONSTANT)
            elif storage == spv.WORKGROUP:
                self.shared.append(first)
            elif end > at + 4:
                self.pointers.add_initializer(at, end)
        elif op == spv.UNTYPED_VARIABLE:
            raise Unsupported("SPIR-V: the module uses untyped pointers")
        elif op == spv.CAPABILITY:
            self.capabilities.add(first)
        elif op == spv.ENTRY_POINT:
            self.entries.append((first, self.types.checked_id(second), self._string(at + 3, end)))
        elif op == spv.EXECUTION_MODE and second == spv.LOCAL_SIZE:
            self.local_sizes[first] = words[at + 3 : end]
        elif op == spv.EXECUTION_MODE and second == spv.PRESERVE and end > at + 3:
            self.preserved.add((first, words[at + 3]))
        elif op == spv.EXECUTION_MODE_ID and second == spv.LOCAL_SIZE_ID:
            self.local_size_ids[first] = words[at + 3 : end].tolist()
        elif op == spv.EXT_INST_IMPORT and self._string(at + 2, end).startswith("NonSemantic."):
            self.pointers.non_semantic.add(first)

    def _built_in(self, target: int, number: int) -> None:
        if number not in _COMPUTE_BUILT_INS:
            raise Unsupported(f"SPIR-V: built-in {number} is not one of compute kernels")
        if number == spv.WORKGROUP_SIZE:
            self.work_group_sizes.append(target)
        self._built_ins.append((target, number))

    def _check_built_in(self, target: int, number: int) -> None:
        """Raise unless a built-in variable has the type of that built-in."""
        if target not in self.pointers.type_ids:
            return
        pointee = self.types.type(self.pointers.type_ids[target])[1][1]
        op, operands = self.types.type(pointee)
        size = operands[1] if op == spv.VECTOR else 1
        scalar = self.types.scalar(pointee) if op in (spv.VECTOR, spv.INT) else None
        if scalar is None or scalar.kind not in "iu" or size != _COMPUTE_BUILT_INS[number]:
            raise InvalidSpirv(f"SPIR-V: built-in {number} is of a type that it cannot have")

    def _decorate(self, own: dict[int, int], at: int, end: int) -> None:
        if self._words[at] in _DECORATIONS:
            if self._words[at] in _VALUED and end == at + 1:
                raise InvalidSpirv(f"SPIR-V: a decoration at word {at} lacks its value")
            own[self._words[at]] = self._words[at + 1] if end > at + 1 else 0

    def _new(self, number: int) -> int:
        types = self.types
        if number in types.declared or number in types.constants or number in self.variables:
            raise InvalidSpirv(f"SPIR-V: id {number} is defined twice")
        return types.checked_id(number)

    def _check_text(self, at: int, end: int) -> None:
        """Raise unless a string ends in its instruction's last word: drivers would read past it."""
        length = self._code.find(b"\0", 4 * at, 4 * end) // 4
        if length != end - 1:
            raise InvalidSpirv(f"SPIR-V: the string at word {at} does not end with its instruction")

    def _string(self, at: int, end: int) -> str:
        text, nul, _ = self._code[4 * at : 4 * end].partition(b"\0")
        if not nul:
            raise InvalidSpirv(f"SPIR-V: the string at word {at} has no end")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise InvalidSpirv(f"SPIR-V: the string at word {at} is not UTF-8") from None

    # Queries.

    def name(self, number: int) -> str:
        """The name of an id, as Python normalizes it; empty if it has none."""
        return _normal(self._string(*self._names[number])) if number in self._names else ""

    def member_name(self, struct: int, index: int) -> str:
        """The same of a member of a structure."""
        where = self._member_names.get((struct, index))
        return _normal(self._string(*where)) if where else ""

    def declared(self, variable: int, struct: int | None, decoration: int) -> bool:
        """Whether a variable, or else each member of its block, carries the decoration."""
        if decoration in self.decorations.get(variable, {}) or struct is None:
            return decoration in self.decorations.get(variable, {})
        count = len(self.types.declared[struct][1])
        self.types.spend(count)
        return count > 0 and all(
            decoration in self.member_decorations.get((struct, index), {}) for index in range(count)
        )

    def spec_id(self, constant: int) -> int | None:
        """The number by which a caller specializes a constant, if it has one."""
        return self.decorations.get(constant, {}).get(spv.SPEC_ID)

    def spec_constants(self) -> Iterator[int]:
        """The constants that a caller can specialize."""
        for constant, (op, _, _) in self.types.constants.items():
            if op in spv.SPEC_CONSTANTS and self.spec_id(constant) is not None:
                yield constant


def _words(code: bytes) -> array[int]:
    # Vulkan expects words in the host's byte order, in which array("I") reads them.
    words = array("I", code[: len(code) // 4 * 4])
    if words and words[0] == 0x03022307:
        raise InvalidSpirv("SPIR-V: the module is byte-swapped; compile it for this host")
    if not words or words[0] != 0x07230203:
        raise InvalidSpirv(f"SPIR-V: wrong magic number, the bytes start with {code[:4]!r}")
    if len(code) % 4 or len(words) < 5:
        raise InvalidSpirv(f"SPIR-V: the module is truncated, at {len(code)} bytes")
    if words[1] >> 16 != 1:
        raise InvalidSpirv(f"SPIR-V: unknown version {words[1]:#x}")
    if words[3] > _MAX_BOUND:
        raise InvalidSpirv(
            f"SPIR-V: ids up to {words[3]:,}; the most there can be is {_MAX_BOUND:,}"
        )
    return words


def _normal(name: str) -> str:
    """The name as Python normalizes it in a call."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


_MAX_BOUND = 0x3FFFFF  # of ids, by the specification
_BLOCK_STORAGE = frozenset(
    (spv.UNIFORM_CONSTANT, spv.UNIFORM, spv.PUSH_CONSTANT, spv.STORAGE_BUFFER)
)
_VALUED = frozenset(
    (spv.SPEC_ID, spv.ARRAY_STRIDE, spv.MATRIX_STRIDE, spv.BINDING, spv.DESCRIPTOR_SET, spv.OFFSET)
)
_DECORATIONS = _VALUED.union(
    (spv.BLOCK, spv.BUFFER_BLOCK, spv.ROW_MAJOR, spv.NON_WRITABLE, spv.NON_READABLE)
)

# By opcode: the word at which its final string begins (names, source text, extensions).
_TEXTS = {4: 1, spv.NAME: 2, spv.MEMBER_NAME: 3, 7: 2, 10: 1, spv.EXT_INST_IMPORT: 2, 330: 1}

# By built-in: its number of components. Group and invocation counts and ids, subgroups, masks.
_COMPUTE_BUILT_INS = {
    **dict.fromkeys(range(24, 29), 3),
    **dict.fromkeys((29, 36, 38, 40, 41, 4438), 1),
    **dict.fromkeys(range(4416, 4421), 4),
}

# By opcode, for the instructions that are read: the minimum number of words.
_OPS: dict[int, int] = {
    **dict.fromkeys(spv.TYPES, 2),
    **dict.fromkeys((spv.INT, spv.VECTOR, spv.MATRIX, spv.ARRAY, spv.POINTER), 4),
    **dict.fromkeys((spv.FLOAT, spv.RUNTIME_ARRAY, spv.SAMPLED_IMAGE), 3),
    spv.IMAGE: 9,
    **dict.fromkeys(spv.SCALAR_CONSTANTS | spv.COMPOSITE_CONSTANTS, 3),
    **{op: 1 + max(at for at, _ in uses) for op, uses in OPERANDS.items()},
    **dict.fromkeys((spv.CAPABILITY, spv.GROUP_DECORATE, spv.GROUP_MEMBER_DECORATE), 2),
    **dict.fromkeys(
        (spv.NAME, spv.DECORATE, spv.EXECUTION_MODE, spv.EXECUTION_MODE_ID, spv.EXT_INST_IMPORT), 3
    ),
    **dict.fromkeys(
        (spv.MEMBER_NAME, spv.MEMBER_DECORATE, spv.ENTRY_POINT, spv.VARIABLE, spv.FUNCTION), 4
    ),
    **dict.fromkeys((spv.FUNCTION_CALL, spv.UNTYPED_VARIABLE), 4),
    spv.EXT_INST: 5,
    **{op: at + 1 for op, at in _TEXTS.items()},
}
