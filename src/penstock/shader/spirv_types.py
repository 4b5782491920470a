"""The types and scalar constants of a SPIR-V module, by id.

They are stored as they are declared, and resolved on demand. All that resolve them share one
budget, which bounds the work: types can share parts, or be cyclic.
"""

from __future__ import annotations

from array import array

import numpy as np

from penstock.dtypes import Dtype
from penstock.errors import InvalidSpirv
from penstock.shader import spirv_numbers as spv


class Types:
    """The types and scalar constants of a module whose ids are less than `bound`."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.declared: dict[int, tuple[int, array[int]]] = {}  # opcode, operands
        self.constants: dict[int, tuple[int, int, array[int]]] = {}  # opcode, type, operands
        self._budget = _BUDGET

    def checked_id(self, number: int) -> int:
        """The id itself; raises if it is out of range."""
        if not 0 < number < self.bound:
            raise InvalidSpirv(f"SPIR-V: id {number} is out of range (bound {self.bound})")
        return number

    def type(self, number: int) -> tuple[int, array[int]]:
        """The opcode and the operands of a type."""
        if number not in self.declared:
            raise InvalidSpirv(f"SPIR-V: id {number} is used as a type but is none")
        return self.declared[number]

    def scalar(self, number: int) -> Dtype | None:
        """The scalar that a type consists of: raw bytes if NumPy lacks it, None for a struct."""
        op, operands = self.type(number)
        while op in (spv.ARRAY, spv.RUNTIME_ARRAY, spv.VECTOR, spv.MATRIX):
            self.spend(1)
            op, operands = self.type(operands[0])
        if op == spv.POINTER and operands[0] == spv.PHYSICAL:
            return np.dtype(np.uint64)
        if op not in (spv.INT, spv.FLOAT):
            return None
        # A float with an extra operand has another encoding, such as bfloat16.
        other = op == spv.FLOAT and len(operands) > 1
        letter = "V" if other else "f" if op == spv.FLOAT else "i" if operands[1] else "u"
        dtype = _SCALARS.get((letter, operands[0]))
        if dtype is None:
            raise InvalidSpirv(f"SPIR-V: a number of {operands[0]} bits in type {number}")
        return dtype

    def part(self, type_: int, indices: array[int]) -> int:
        """The type that the indices of an access chain lead to."""
        for index in indices:
            op, operands = self.type(type_)
            if op == spv.STRUCT:
                constant = self.constants.get(index)
                at = self.literal(index)[1] if constant and constant[0] == spv.CONSTANT else -1
                if not isinstance(at, int) or not 0 <= at < len(operands):
                    raise InvalidSpirv(f"SPIR-V: structure {type_} has no member {at}")
                type_ = operands[at]
            elif op in (spv.ARRAY, spv.RUNTIME_ARRAY, spv.VECTOR, spv.MATRIX):
                type_ = operands[0]
            else:
                raise InvalidSpirv(f"SPIR-V: type {type_} has no parts to point to")
        return type_

    def literal(self, constant: int) -> tuple[Dtype, bool | int | float]:
        """The dtype and the (default) value of a constant."""
        op, type_, operands = self.constants[constant]
        if op in (spv.SPEC_TRUE, spv.SPEC_FALSE):
            return np.dtype(np.bool_), op == spv.SPEC_TRUE
        dtype = self.scalar(type_)
        raw = operands.tobytes()
        if dtype is None or dtype.kind == "V" or len(raw) < dtype.itemsize:
            raise InvalidSpirv(f"SPIR-V: constant {constant} is not a number")
        value: int | float = np.frombuffer(raw, dtype, 1)[0].item()
        return dtype, value

    def integer(self, constant: int) -> int | None:
        """The (default) value of an integer constant; None if it is computed."""
        if constant not in self.constants:
            raise InvalidSpirv(f"SPIR-V: id {constant} is used as a constant but is none")
        if self.constants[constant][0] == spv.SPEC_OP:
            return None
        value = self.literal(constant)[1]
        if not isinstance(value, int):
            raise InvalidSpirv(f"SPIR-V: constant {constant} is not an integer")
        return value

    def spend(self, steps: int) -> None:
        """Bound the work. A bound on depth is not enough: types can share parts, or be cyclic."""
        self._budget -= steps
        if self._budget < 0:
            raise InvalidSpirv("SPIR-V: its types are cyclic, or too large to be real")


_BUDGET = 1 << 16
_SCALARS: dict[tuple[str, int], Dtype] = {
    (letter, 8 * size): np.dtype(f"{letter}{size}")
    for letter, sizes in (("u", (1, 2, 4, 8)), ("i", (1, 2, 4, 8)), ("f", (2, 4, 8)), ("V", (1, 2)))
    for size in sizes
}
