"""Blocks: how the members of a buffer, of push constants or of a result lie in memory.

A block is a structure with an offset for each member and a stride for each array and matrix.
Specialization constants may set the lengths of its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader import spirv_numbers as spv
from penstock.shader.interface import Elements, Member
from penstock.shader.spirv_module import MAX_NAME, Module

_MAX_DIMENSIONS = 32  # the limit of NumPy 1


class Blocks:
    """The blocks of a module, with the `chosen` values of specialization constants, by id."""

    def __init__(self, module: Module, chosen: Mapping[int, bytes]) -> None:
        self.module = module
        self.sized_by: set[int] = set()  # ids of constants that set the lengths of arrays
        self._types = module.types
        self._chosen = chosen

    def of(self, variable: int) -> int:
        """The structure that a variable is a block of."""
        op, operands = self._types.type(self.module.variables[variable][0])
        target = operands[1] if op == spv.POINTER else 0
        kind = self._types.type(target)[0]
        if kind in (spv.ARRAY, spv.RUNTIME_ARRAY):
            raise Unsupported(f"SPIR-V: {self.module.name(variable)!r} is an array of buffers")
        if kind != spv.STRUCT:
            raise InvalidSpirv(f"SPIR-V: variable {self.module.name(variable)!r} is not a block")
        return target

    def members(self, variable: int, what: str) -> tuple[Member, ...]:
        """The members of a block, each of a dtype; `what` they are, for error messages."""
        members = tuple(self.leaves(self.of(variable)))
        for member in members:
            if member.dtype.kind == "V":
                raise Unsupported(f"SPIR-V: {what} {member.name!r} is of a type NumPy lacks")
        return members

    def packed_size(self, pointer: int) -> int:
        """Size of the pointee in bytes, without padding; parts of unknown size count as 0."""
        total = 0
        stack = [(self._types.type(pointer)[1][1], 1)]
        while stack:
            self._types.spend(1)
            number, count = stack.pop()
            op, operands = self._types.type(number)
            if op == spv.STRUCT:
                self._types.spend(len(operands))
                stack += [(member, count) for member in operands]
            elif op == spv.ARRAY:
                length = self._chosen_length(operands[1])
                if length is not None and length < 1:
                    raise InvalidSpirv(f"SPIR-V: array type {number} has length {length}")
                stack.append((operands[0], count * (length or 0)))
            elif op in (spv.VECTOR, spv.MATRIX):
                stack.append((operands[0], count * operands[1]))
            elif op in (spv.INT, spv.FLOAT):
                total += count * operands[0] // 8
        return total

    def fixed_part(self, struct: int) -> tuple[int, int, int | None]:
        """The size of a block without its runtime array, and that array's offset and stride."""
        members = self._types.declared[struct][1]
        header, stride = 0, None
        if members and self._types.type(members[-1])[0] == spv.RUNTIME_ARRAY:
            header = self._offset(struct, len(members) - 1)
            stride = self._stride(members[-1])
        leaves = self.leaves(struct, skip_runtime_array=True)
        return max((leaf.offset + leaf.size for leaf in leaves), default=0), header, stride

    def elements(self, struct: int) -> Elements:
        """The layout of a block's last member, if it is an array or the only member."""
        members = self._types.declared[struct][1]
        if not members:
            return Elements()
        last = len(members) - 1
        number = members[last]
        if last and self._types.type(number)[0] not in (spv.ARRAY, spv.RUNTIME_ARRAY):
            return Elements(fields=self._fields(struct))
        offset = self._offset(struct, last)
        levels: list[tuple[int, int | None]] = []  # stride and number of elements
        op, operands = self._types.type(number)
        try:
            while op in (spv.ARRAY, spv.RUNTIME_ARRAY):
                self._types.spend(1)
                count = self._length(number) if op == spv.ARRAY else None
                levels.append((self._stride(number), count))
                number = operands[0]
                op, operands = self._types.type(number)
            layout = self.module.member_decorations.get((struct, last), {})
            if op == spv.MATRIX and spv.MATRIX_STRIDE in layout:
                column, of = self._types.type(operands[0])
                if column != spv.VECTOR:
                    raise InvalidSpirv(f"SPIR-V: matrix {number} does not consist of vectors")
                columns, rows = operands[1], of[1]
                if spv.ROW_MAJOR in layout:
                    columns, rows = rows, columns
                levels.append((layout[spv.MATRIX_STRIDE], columns))
                used = rows * self._scalar_size(number)
            elif op == spv.STRUCT:
                used = sum(leaf.dtype.itemsize * prod(leaf.shape) for leaf in self.leaves(number))
            else:
                used = self._scalar_size(number) * (operands[1] if op == spv.VECTOR else 1)
        except Unsupported:  # the length depends on specialization constants
            return Elements(offset=offset)
        fields = self._fields(number) if op == spv.STRUCT else ()
        pitches, used = _to_first_gap(levels, used, records=op == spv.STRUCT)
        return Elements(offset, pitches, used, fields)

    def _fields(self, struct: int) -> tuple[tuple[str, int], ...]:
        count = len(self._types.declared[struct][1])
        self._types.spend(count)
        return tuple(
            (self.module.member_name(struct, index), self._offset(struct, index))
            for index in range(count)
        )

    def _scalar_size(self, number: int) -> int:
        dtype = self._types.scalar(number)
        if dtype is None:
            raise InvalidSpirv(f"SPIR-V: type {number} cannot be in a block")
        return dtype.itemsize

    def leaves(self, struct: int, skip_runtime_array: bool = False) -> Iterator[Member]:
        """All members of a block, with nested structs flattened."""
        shape: tuple[int, ...]
        strides: tuple[int, ...]
        stack: list[tuple[int, str, int, tuple[int, ...], tuple[int, ...], dict[int, int]]]
        stack = [(struct, "", 0, (), (), {})]
        while stack:
            self._types.spend(1)
            number, name, offset, shape, strides, layout = stack.pop()
            op, operands = self._types.type(number)
            if op == spv.STRUCT:
                count = len(operands)
                if skip_runtime_array and number == struct and count:
                    count -= self._types.type(operands[-1])[0] == spv.RUNTIME_ARRAY
                self._types.spend(count)
                for index in reversed(range(count)):
                    member = self.module.member_name(number, index) or f"member{index}"
                    path = f"{name}.{member}"[:MAX_NAME] if name else member
                    start = offset + self._offset(number, index)
                    layout = self.module.member_decorations[number, index]
                    stack.append((operands[index], path, start, shape, strides, layout))
                continue
            if op == spv.ARRAY:
                shape, strides = (*shape, self._length(number)), (*strides, self._stride(number))
                if len(shape) > _MAX_DIMENSIONS:
                    raise InvalidSpirv("SPIR-V: arrays are nested too deeply")
                stack.append((operands[0], name, offset, shape, strides, layout))
                continue
            dtype = self._types.scalar(number)
            if dtype is None or op == spv.RUNTIME_ARRAY:
                raise InvalidSpirv(f"SPIR-V: {name!r} cannot be in a block here (opcode {op})")
            if op == spv.MATRIX:
                if spv.MATRIX_STRIDE not in layout:
                    raise InvalidSpirv(f"SPIR-V: matrix {name!r} has no stride")
                column, rows = self._types.type(operands[0])
                if column != spv.VECTOR:
                    raise InvalidSpirv(f"SPIR-V: matrix {name!r} does not consist of vectors")
                steps = (layout[spv.MATRIX_STRIDE], dtype.itemsize)
                shape = (*shape, operands[1], rows[1])
                strides = (*strides, *(steps[::-1] if spv.ROW_MAJOR in layout else steps))
            elif op == spv.VECTOR:
                shape, strides = (*shape, operands[1]), (*strides, dtype.itemsize)
            if 0 in shape:
                raise InvalidSpirv(f"SPIR-V: {name!r} is a vector of no components")
            yield Member(name, offset, dtype, shape, strides)

    def _offset(self, struct: int, index: int) -> int:
        offset = self.module.member_decorations.get((struct, index), {}).get(spv.OFFSET)
        if offset is None:
            raise InvalidSpirv(
                f"SPIR-V: member {index} of {self.module.name(struct)!r} has no offset"
            )
        return offset

    def _stride(self, number: int) -> int:
        stride = self.module.decorations.get(number, {}).get(spv.ARRAY_STRIDE)
        if not stride:
            raise InvalidSpirv(f"SPIR-V: array type {number} in a block has no stride")
        return stride

    def _length(self, number: int) -> int:
        length = self._chosen_length(self._types.declared[number][1][1])
        if length is None:
            raise Unsupported("SPIR-V: an array's length is computed from specialization constants")
        if length < 1:
            raise InvalidSpirv(f"SPIR-V: array type {number} has length {length}")
        return length

    def _chosen_length(self, constant: int) -> int | None:
        """The length that a constant sets; the caller of `reflect` may have specialized it."""
        number = self.module.spec_id(constant)
        if number is None:
            return self._types.integer(constant)
        default = self._types.integer(constant)
        self.sized_by.add(number)
        if number not in self._chosen or default is None:
            return default
        signed = self._types.literal(constant)[0].kind == "i"
        return int.from_bytes(self._chosen[number], "little", signed=signed)


def _to_first_gap(
    levels: list[tuple[int, int | None]], innermost: int, *, records: bool
) -> tuple[tuple[int, ...], int]:
    """The pitches down to the first with a gap, and the bytes used of that one.

    Without a gap, all pitches for `records`, else none.
    """
    sizes = [stride * (count or 0) for stride, count in levels]
    pitches = [size for size in sizes[:1] if size]  # the whole block, if its size is fixed
    for (stride, count), inside in zip(levels, [*sizes[1:], innermost], strict=False):
        pitches.append(stride)
        if stride > inside and count != 1:
            return tuple(pitches), inside
    return (tuple(pitches), pitches[-1]) if records and pitches else ((), 0)
