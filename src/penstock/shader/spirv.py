"""Reflection: reads the interface of a compute kernel from its SPIR-V.

`reflect` returns what a caller must pass to a kernel, and what the kernel needs: its buffers and
how it accesses each, push constants, result, specialization constants, local size and capabilities.
It is not a validator, and skips what it need not understand. But for any input it either returns or
raises `InvalidSpirv` or `Unsupported`, in time linear in the size of the module. Beyond the
interface it checks what makes drivers crash: numbers by which they allocate (ids, bindings),
built-ins of other shader stages, and pointers that leave the object they point into.

Names are normalized to NFKC, as Python normalizes the names of keyword arguments.

A texel buffer (`samplerBuffer`, `imageBuffer`) is a binding, too: an image of dimension "buffer".
Its format is the declared one, if there is one.

A kernel returns a result by writing a storage block named `Result` of fixed size:
`layout(binding = 2) buffer Result { float sum; };`.

The access of a buffer is derived from the code, and narrowed by declarations such as `readonly`.
Every pointer into a buffer, and every value that is a texel buffer, is followed; one that escapes
counts as read and written. "w" means that
nothing is read, not that everything is written.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader.spirv_texels import TexelBuffer, declared_format, texel_buffer
from penstock.shader.texels import Fetched

__all__ = ["Binding", "Constant", "Elements", "Interface", "Member", "reflect"]

Dtype: TypeAlias = "np.dtype[Any]"
Access: TypeAlias = Literal["r", "w", "rw"]
Kind: TypeAlias = Literal["storage", "uniform", "uniform_texel", "storage_texel"]
Purpose: TypeAlias = Literal["array", "arguments", "result"]


@dataclass(frozen=True, slots=True)
class Elements:
    """The layout of the array that a block ends with, or consists of.

    `pitches` are the strides in bytes, outermost dimension first, down to the first stride that is
    larger than its element: there the layout has a gap.
    """

    offset: int = 0  # of the first element
    pitches: tuple[int, ...] = ()  # empty if there are no gaps, or the layout is not known
    used: int = 0  # bytes used of the last pitch; all of them if there is no gap
    fields: tuple[tuple[str, int], ...] = ()  # name and offset of a struct's members


@dataclass(frozen=True, slots=True)
class Binding:
    """One buffer. Variables that alias a binding form one `Binding`, named after the first."""

    name: str
    set: int
    binding: int
    kind: Kind
    access: Access
    dtype: Dtype | None  # scalar of the last array, or of all members; None if not one of NumPy's
    header: int  # bytes before the runtime array
    stride: int | None  # of the runtime array
    min_size: int  # bytes of the fixed part and, of a runtime array, one element
    purpose: Purpose = "array"  # the caller passes only those with purpose "array"
    elements: Elements = Elements()
    fetched: Fetched | None = None  # of a texel buffer: what the shader gets from a texel
    format: str = ""  # of a texel buffer: declared, or given by the caller; see `shader.texels`

    @property
    def is_texel(self) -> bool:
        """Whether it is a texel buffer."""
        return self.fetched is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A scalar argument or a part of a result: an array of `shape` and `strides` at `offset`.

    A matrix has shape (columns, rows), in either storage order. In an array of structs, each member
    of the struct gets one more leading dimension.
    """

    name: str
    offset: int
    dtype: Dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes from the first used to the last used, without trailing padding."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.dtype.itemsize + sum((count - 1) * stride for count, stride in steps)


@dataclass(frozen=True, slots=True)
class Constant:
    """A specialization constant. A bool takes four bytes (VkBool32) when it is set."""

    name: str
    id: int
    dtype: Dtype
    default: bool | int | float


@dataclass(frozen=True, slots=True)
class Interface:
    """Everything needed to call a kernel, and what it needs of the device."""

    entry: str
    local_size: tuple[int, int, int]
    local_size_ids: tuple[int | None, int | None, int | None]  # constants that set the local size
    bindings: tuple[Binding, ...]
    push: tuple[Member, ...]
    push_size: int  # a multiple of four, as Vulkan requires; 0 if the scalars are in a buffer
    constants: tuple[Constant, ...]
    capabilities: frozenset[str]  # those that the device must support
    shared_size: int  # bytes of shared memory, at least
    version: tuple[int, int]  # of SPIR-V: 1.5 needs Vulkan 1.2, 1.6 needs Vulkan 1.3
    result: tuple[Member, ...] = ()
    parameters: tuple[str, ...] = ()  # their order, for kernels with positional parameters
    sized_by: frozenset[int] = frozenset()  # ids of constants that set the lengths of arrays

    @property
    def scalars_in_buffer(self) -> bool:
        """Whether the scalars are in a buffer, because they exceed the limit of push constants."""
        return any(binding.purpose == "arguments" for binding in self.bindings)

    @property
    def scalar_bytes(self) -> int:
        """The size of the block of all scalars, wherever they are passed."""
        passed = [b.min_size for b in self.bindings if b.purpose == "arguments"]
        return passed[0] if passed else self.push_size


def reflect(
    code: bytes, entry: str | None = None, constants: Mapping[int, bytes] | None = None
) -> Interface:
    """Read the interface of the compute kernel in `code`.

    `entry` selects the entry point; it can be left out if there is only one. `constants` are values
    of specialization constants by id, which may determine the lengths of arrays.
    """
    module = _Module(code, constants or {})
    function, name = _choose_entry(module, entry)
    uses = module.uses(function)
    blocks, push = _blocks(module, uses)
    size_constants, local_size = _local_size(module, function)
    members = () if push is None else _members(module, push, "push constant")
    push_size = max((member.offset + member.size for member in members), default=0)
    if push_size > _MAX_PUSH:
        raise InvalidSpirv(f"SPIR-V: push constants of {push_size} bytes are more than {_MAX_PUSH}")
    size_ids = [module.spec_id(constant) for constant in size_constants]
    return Interface(
        entry=name,
        local_size=local_size,
        local_size_ids=(size_ids[0], size_ids[1], size_ids[2]),
        bindings=_bindings(module, blocks, uses),
        push=members,
        push_size=-(-push_size // 4) * 4,
        constants=_constants(module, size_constants),
        capabilities=_capabilities(module, function),
        shared_size=sum(module.packed_size(pointer) for pointer in module.shared),
        version=module.version,
        result=_result_members(module, blocks, uses),
        sized_by=frozenset(module.sized_by),
    )


def _capabilities(module: _Module, function: int) -> frozenset[str]:
    numbers = module.capabilities - _FREE_CAPABILITIES
    names = {_CAPABILITIES.get(number, f"capability {number}") for number in numbers}
    if _PRESERVE_NAME in names:
        # A device has it for floats of some widths; the execution modes say for which it is used.
        names.remove(_PRESERVE_NAME)
        widths = [width for mode, width in module.preserved if mode == function]
        names |= {f"{_PRESERVE_NAME}Float{width}" for width in widths or [32]}
    return frozenset(names)


def _choose_entry(module: _Module, wanted: str | None) -> tuple[int, str]:
    kernels = {name: function for model, function, name in module.entries if model == _GL_COMPUTE}
    names = ", ".join(repr(name) for name in list(kernels)[:16])
    if not kernels:
        raise InvalidSpirv("SPIR-V: the module has no compute (GLCompute) entry point")
    if wanted is None and len(kernels) > 1:
        raise InvalidSpirv(f"SPIR-V: the module has several entry points, choose one of {names}")
    name = next(iter(kernels)) if wanted is None else wanted
    if name not in kernels:
        raise InvalidSpirv(f"SPIR-V: the module has no entry point {name!r}, only {names}")
    if kernels[name] not in module.functions:
        raise InvalidSpirv(
            f"SPIR-V: entry point {name!r} has no function; is the module cut short?"
        )
    return kernels[name], name


def _blocks(module: _Module, uses: dict[int, int]) -> tuple[list[int], int | None]:
    """The buffer variables of the entry point, and its push-constant variable if it has one."""
    blocks = []
    push = None
    # A single entry point owns all variables, used or not: its arguments must not change when its
    # code stops using one.
    lone = len(module.entries) == 1
    for variable, (_, storage) in module.variables.items():
        if not lone and variable not in uses:
            continue
        if storage in (_UNIFORM, _STORAGE_BUFFER):
            blocks.append(variable)
        elif storage == _UNIFORM_CONSTANT:
            module.texel_buffer(variable)
            blocks.append(variable)
        elif push is not None:
            raise InvalidSpirv("SPIR-V: more than one block of push constants")
        else:
            push = variable
    return blocks, push


def _bindings(module: _Module, blocks: list[int], uses: dict[int, int]) -> tuple[Binding, ...]:
    found: dict[tuple[int, int], Binding] = {}
    used: dict[tuple[Any, ...], Binding] = {}
    for variable in blocks:
        inferred = uses.get(variable, 0)
        make = _texel_binding if variable in module.images else _binding
        new = make(module, variable, inferred)
        old = found.setdefault((new.set, new.binding), new)
        if old is not new:
            found[new.set, new.binding] = _merge(old, new)
        # Blocks of several layouts share a binding on purpose; of one layout, by mistake.
        layout = (new.dtype, new.header, new.stride, new.min_size, new.elements, new.fetched)
        other = used.setdefault((new.set, new.binding, layout), new) if variable in uses else new
        if other is not new:
            raise Unsupported(
                f"SPIR-V: {other.name!r} and {new.name!r} are both at set {new.set}, binding "
                f"{new.binding}, with the same elements. A launch passes one array for each "
                "binding, so both would be that array: give one of them a binding of its own; if "
                "they are to be one array, declare one block"
            )
    return tuple(found[key] for key in sorted(found))


def _place(module: _Module, variable: int, name: str) -> tuple[int, int]:
    """The set and binding of a variable."""
    decorations = module.decorations.get(variable, {})
    where = decorations.get(_DESCRIPTOR_SET), decorations.get(_BINDING)
    if where[0] is None or where[1] is None:
        raise InvalidSpirv(f"SPIR-V: buffer {name!r} has no set or no binding")
    if where[1] > _MAX_BINDING:
        raise Unsupported(
            f"SPIR-V: buffer {name!r} is at binding {where[1]:,}; number them up to "
            f"{_MAX_BINDING:,}"
        )
    return where[0], where[1]


def _texel_binding(module: _Module, variable: int, inferred: int) -> Binding:
    name = module.name(variable)
    where = _place(module, variable, name)
    found = module.texel_buffer(variable)
    texel = declared_format(name, where[1], found)
    return Binding(
        name=name or f"set{where[0]}_binding{where[1]}",
        set=where[0],
        binding=where[1],
        kind="storage_texel" if found.stored else "uniform_texel",
        access=_allowed_access(module, variable, None, inferred) if found.stored else "r",
        dtype=None if texel is None else texel.dtype,
        header=0,
        stride=None if texel is None else texel.nbytes,
        min_size=1 if texel is None else texel.nbytes,
        fetched=found.fetched,
        format="" if texel is None else texel.name,
    )


def _binding(module: _Module, variable: int, inferred: int) -> Binding:
    struct = module.block_of(variable)
    members = module.types[struct][1]
    name = module.name(variable)
    if not name and len(members) == 1:
        name = module.member_name(struct, 0)
    name = name or module.name(struct)
    where = _place(module, variable, name)

    storage = module.variables[variable][1]
    marks = module.decorations.get(struct, {})
    kind: Kind = "storage" if storage == _STORAGE_BUFFER or _BUFFER_BLOCK in marks else "uniform"
    if kind == "uniform" and _BLOCK not in marks:
        raise InvalidSpirv(f"SPIR-V: buffer {name!r} is not decorated as a block")

    fixed, header, stride = module.fixed_part(struct)
    last = module.type(members[-1])[0] if members else 0
    parts = members[-1:] if last in (_ARRAY, _RUNTIME_ARRAY) else members
    scalars = {module.scalar(part) for part in parts}
    dtype = scalars.pop() if len(scalars) == 1 else None
    return Binding(
        name=name or f"set{where[0]}_binding{where[1]}",
        set=where[0],
        binding=where[1],
        kind=kind,
        access=_allowed_access(module, variable, struct, inferred) if kind == "storage" else "r",
        dtype=None if dtype is None or dtype.kind == "V" else dtype,
        header=header,
        stride=stride,
        min_size=max(fixed, header + (stride or 0)),
        purpose="result" if _is_result(module, variable, inferred) else "array",
        elements=module.elements(struct),
    )


def _is_result(module: _Module, variable: int, inferred: int) -> bool:
    if variable in module.images:
        return False
    struct = module.block_of(variable)
    if module.name(struct) != "Result" or module.variables[variable][1] != _STORAGE_BUFFER:
        return False
    runtime = module.fixed_part(struct)[2] is not None
    return not runtime and _allowed_access(module, variable, struct, inferred) != "r"


def _result_members(module: _Module, blocks: list[int], uses: dict[int, int]) -> tuple[Member, ...]:
    found = [block for block in blocks if _is_result(module, block, uses.get(block, 0))]
    if len(found) > 1:
        raise Unsupported("SPIR-V: a kernel can have only one block named 'Result'")
    return _members(module, found[0], "result") if found else ()


def _allowed_access(module: _Module, variable: int, struct: int | None, inferred: int) -> Access:
    allowed = _READ | _WRITE
    if module.declared(variable, struct, _NON_WRITABLE):
        allowed = _READ
    elif module.declared(variable, struct, _NON_READABLE):
        allowed = _WRITE
    # An unused buffer counts as "r", which restricts least, unless it is declared write-only.
    return _ACCESS[inferred & allowed or (allowed & _READ or allowed)]


def _merge(old: Binding, new: Binding) -> Binding:
    both = f"SPIR-V: {old.name!r} and {new.name!r} are one binding"
    where = f"(set {new.set}, binding {new.binding}); give one of them a binding of its own"
    if old.kind != new.kind:
        raise Unsupported(f"{both} of two kinds of buffer {where}")
    if (old.fetched, old.format) != (new.fetched, new.format):
        raise Unsupported(f"{both} of two formats {where}")
    return replace(
        old,
        access=old.access if old.access == new.access else "rw",
        dtype=old.dtype if old.dtype == new.dtype else None,
        min_size=max(old.min_size, new.min_size),
        purpose="array",
        elements=max(old.elements, new.elements, key=_gap),
    )


def _gap(elements: Elements) -> int:
    """Bytes that the shader leaves unused between elements."""
    return elements.pitches[-1] - elements.used if elements.pitches else 0


def _members(module: _Module, block: int, what: str) -> tuple[Member, ...]:
    members = tuple(module.leaves(module.block_of(block)))
    for member in members:
        if member.dtype.kind == "V":
            raise Unsupported(f"SPIR-V: {what} {member.name!r} is of a type NumPy lacks")
    return members


def _local_size(module: _Module, function: int) -> tuple[list[int], tuple[int, int, int]]:
    """The ids of the constants that set the local size (0 for a literal), and their values."""
    constants = [0, 0, 0]
    values: list[int | None] = list(module.local_sizes.get(function, ()))
    if function in module.local_size_ids:
        constants = module.local_size_ids[function]
    # Per the SPIR-V specification this built-in, where present, overrides the execution mode.
    for composite in module.work_group_sizes:
        constants = module.composites.get(composite, constants)
    if any(constants):
        values = [module.integer(constant) for constant in constants]
    if not values:
        raise InvalidSpirv("SPIR-V: the entry point has no local size")
    if None in values:
        raise Unsupported("SPIR-V: the local size is computed from specialization constants")
    x, y, z = (value or 0 for value in values) if len(values) == 3 else (0, 0, 0)
    if min(x, y, z) < 1:
        raise InvalidSpirv(f"SPIR-V: a local size of {values[:4]} is not three positive numbers")
    return constants, (x, y, z)


def _constants(module: _Module, size_constants: list[int]) -> tuple[Constant, ...]:
    found: dict[int, Constant] = {}
    fallback = dict(zip(size_constants, _SIZE_NAMES, strict=True))
    # GLSL's `local_size_x_id = 0` together with `constant_id = 0` makes two constants with one id;
    # the named one is the one that the author declared.
    for constant in sorted(module.spec_constants(), key=lambda constant: not module.name(constant)):
        number = module.decorations[constant][_SPEC_ID]
        dtype, default = module.literal(constant)
        name = module.name(constant) or fallback.get(constant) or f"constant{number}"
        found.setdefault(number, Constant(name, number, dtype, default))
    return tuple(found[number] for number in sorted(found))


class _Module:
    """The tables of a module: instructions are read once, types are resolved on demand."""

    def __init__(self, code: bytes, chosen: Mapping[int, bytes]) -> None:
        self.chosen = chosen
        self.sized_by: set[int] = set()
        self.code = bytes(code)
        self.words = _words(self.code)
        self.version = (self.words[1] >> 16 & 0xFF, self.words[1] >> 8 & 0xFF)
        self.bound = self.words[3]
        self.capabilities: set[int] = set()
        self.entries: list[tuple[int, int, str]] = []  # execution model, function, name
        self.local_sizes: dict[int, array[int]] = {}
        self.local_size_ids: dict[int, list[int]] = {}
        self.preserved: set[tuple[int, int]] = set()  # function, width of floats
        self.work_group_sizes: list[int] = []
        self.built_ins: list[tuple[int, int]] = []  # decorated id, and the built-in's number
        self.types: dict[int, tuple[int, array[int]]] = {}  # opcode, operands
        self.constants: dict[int, tuple[int, int, array[int]]] = {}  # opcode, type, operands
        self.composites: dict[int, list[int]] = {}
        self.variables: dict[int, tuple[int, int]] = {}  # pointer type, storage class
        self.images: set[int] = set()  # variables that are images, samplers or texel buffers
        self.shared: list[int] = []  # pointer types of variables in shared memory
        self.decorations: dict[int, dict[int, int]] = {}
        self.member_decorations: dict[tuple[int, int], dict[int, int]] = {}
        self.names: dict[int, tuple[int, int]] = {}  # position of the string
        self.member_names: dict[tuple[int, int], tuple[int, int]] = {}
        self.non_semantic: set[int] = set()
        self.body: list[tuple[int, int, int, int]] = []  # function, opcode, start, end
        self.functions: set[int] = set()
        self.calls: dict[int, list[int]] = {}
        self.pointers: dict[int, int] = {}  # from each pointer into a variable to that variable
        self.pointer_types: dict[int, int] = {}  # of every pointer that is followed
        self.budget = _BUDGET
        self._read()

    # Reading.

    def _read(self) -> None:
        words, end = self.words, len(self.words)
        known, no_pointer, body = _OPS, _NO_POINTER, self.body
        at, function = 5, 0
        while at < end:
            word = words[at]
            size, op = word >> 16, word & 0xFFFF
            after = at + size
            if size == 0 or after > end:
                raise InvalidSpirv(f"SPIR-V: instruction {op} at word {at} runs past the end")
            if op in known and size < known[op]:
                raise InvalidSpirv(f"SPIR-V: instruction {op} at word {at} is too short")
            if op == _FUNCTION:
                function = self._id(words[at + 2])
                self.functions.add(function)
            elif op == _FUNCTION_END:
                function = 0
            elif function:
                if op in _POINTER_RESULTS and size > 2:
                    self._pointer(op, at, after)
                if op in _CHAINS:
                    base = self.pointers.get(self._id(words[at + 3]))
                    if base is not None:
                        self.pointers[self._id(words[at + 2])] = base
                elif op == _LOAD and self.pointers.get(words[at + 3]) in self.images:
                    # The value stands for the texel buffer, which it does not read.
                    self.pointers[self._id(words[at + 2])] = self.pointers[words[at + 3]]
                elif op == _FUNCTION_CALL:
                    self.calls.setdefault(function, []).append(words[at + 3])
                if op not in no_pointer and (op != _VARIABLE or size > 4):
                    body.append((function, op, at, after))
            elif op in known:
                self._declaration(op, at, after)
            at = after
        if function:
            raise InvalidSpirv("SPIR-V: the module is truncated, inside a function")
        for target, number in self.built_ins:
            self._check_built_in(target, number)

    def _declaration(self, op: int, at: int, end: int) -> None:
        words = self.words
        first, second = words[at + 1], words[at + 2] if end > at + 2 else 0
        if op in _TEXTS:
            self._check_text(at + _TEXTS[op], end)
        if op in (_NAME, _MEMBER_NAME) and 4 * (end - at) > _MAX_NAME:
            pass  # too long to be used as an argument's name
        elif op == _NAME:
            self.names[first] = (at + 2, end)
        elif op == _MEMBER_NAME:
            self.member_names[first, second] = (at + 3, end)
        elif op == _DECORATE:
            self._decorate(self.decorations.setdefault(first, {}), at + 2, end)
            if second == _BUILT_IN:
                self._built_in(first, words[at + 3] if end > at + 3 else -1)
        elif op == _MEMBER_DECORATE:
            self._decorate(self.member_decorations.setdefault((first, second), {}), at + 3, end)
        elif op == _GROUP_DECORATE:
            for target in words[at + 2 : end]:
                self.decorations.setdefault(target, {}).update(self.decorations.get(first, {}))
        elif op == _GROUP_MEMBER_DECORATE:
            for pair in range(at + 2, end - 1, 2):
                key = words[pair], words[pair + 1]
                own = self.member_decorations.setdefault(key, {})
                own.update(self.decorations.get(first, {}))
        elif op in _TYPES:
            self.types[self._new(first)] = (op, words[at + 2 : end])
            if op in (_INT, _FLOAT):
                self.scalar(first)
            elif op in (_VECTOR, _MATRIX) and not 2 <= words[at + 3] <= 4:
                raise InvalidSpirv(f"SPIR-V: a vector or matrix of {words[at + 3]:,} parts")
        elif op in _SCALAR_CONSTANTS:
            self.constants[self._new(second)] = (op, first, words[at + 3 : end])
        elif op in _COMPOSITE_CONSTANTS:
            self.composites[self._new(second)] = words[at + 3 : end].tolist()
            kind, operands = self.types.get(first, (0, words[:0]))
            parts = operands[1] if kind in (_VECTOR, _MATRIX) else len(operands)
            if kind in (_VECTOR, _MATRIX, _STRUCT) and end - at - 3 != parts:
                raise InvalidSpirv(
                    f"SPIR-V: constant {second} has {end - at - 3} parts, not {parts}"
                )
        elif op == _VARIABLE:
            self._pointer(op, at, end)
            if words[at + 3] in _BLOCK_STORAGE:
                self.variables[self._new(second)] = (first, words[at + 3])
                self.pointers[second] = second
                if words[at + 3] == _UNIFORM_CONSTANT:
                    self.images.add(second)
            elif words[at + 3] == _WORKGROUP:
                self.shared.append(first)
            elif end > at + 4:  # an initializer, which can be a pointer
                self.body.append((0, op, at, end))
        elif op == _UNTYPED_VARIABLE:
            raise Unsupported("SPIR-V: the module uses untyped pointers")
        elif op == _CAPABILITY:
            self.capabilities.add(first)
        elif op == _ENTRY_POINT:
            self.entries.append((first, self._id(second), self._string(at + 3, end)))
        elif op == _EXECUTION_MODE and second == _LOCAL_SIZE:
            self.local_sizes[first] = words[at + 3 : end]
        elif op == _EXECUTION_MODE and second == _PRESERVE and end > at + 3:
            self.preserved.add((first, words[at + 3]))
        elif op == _EXECUTION_MODE_ID and second == _LOCAL_SIZE_ID:
            self.local_size_ids[first] = words[at + 3 : end].tolist()
        elif op == _EXT_INST_IMPORT and self._string(at + 2, end).startswith("NonSemantic."):
            self.non_semantic.add(first)

    def _built_in(self, target: int, number: int) -> None:
        if number not in _COMPUTE_BUILT_INS:
            raise Unsupported(f"SPIR-V: built-in {number} is not one of compute kernels")
        if number == _WORKGROUP_SIZE:
            self.work_group_sizes.append(target)
        self.built_ins.append((target, number))

    def _check_built_in(self, target: int, number: int) -> None:
        """Raise unless a built-in variable has the type of that built-in."""
        if target not in self.pointer_types:
            return
        pointee = self.type(self.pointer_types[target])[1][1]
        op, operands = self.type(pointee)
        size = operands[1] if op == _VECTOR else 1
        scalar = self.scalar(pointee) if op in (_VECTOR, _INT) else None
        if scalar is None or scalar.kind not in "iu" or size != _COMPUTE_BUILT_INS[number]:
            raise InvalidSpirv(f"SPIR-V: built-in {number} is of a type that it cannot have")

    def _pointer(self, op: int, at: int, end: int) -> None:
        """Store the type of a pointer, and check it against what the pointer is made from."""
        words, number = self.words, self.words[at + 2]
        kind, operands = self.types.get(words[at + 1], (0, words[:0]))
        if op == _VARIABLE and (kind != _POINTER or operands[0] != words[at + 3]):
            raise InvalidSpirv(f"SPIR-V: variable {number} is of another storage than its type")
        if kind != _POINTER:
            return
        self.pointer_types[number] = words[at + 1]
        if op in _ACCESS_CHAINS:
            base = self.pointer_types.get(words[at + 3])
            if base is not None:
                storage, target = self.type(base)[1][:2]
                first = at + (5 if op in _ELEMENT_CHAINS else 4)
                target = self._part(target, words[first:end])
                if [storage, target] != operands[:2].tolist():
                    raise InvalidSpirv(f"SPIR-V: pointer {number} is of another type than its part")

    def _part(self, type_: int, indices: array[int]) -> int:
        """The type that the indices of an access chain lead to."""
        for index in indices:
            op, operands = self.type(type_)
            if op == _STRUCT:
                constant = self.constants.get(index)
                at = self.literal(index)[1] if constant and constant[0] == _CONSTANT else -1
                if not isinstance(at, int) or not 0 <= at < len(operands):
                    raise InvalidSpirv(f"SPIR-V: structure {type_} has no member {at}")
                type_ = operands[at]
            elif op in (_ARRAY, _RUNTIME_ARRAY, _VECTOR, _MATRIX):
                type_ = operands[0]
            else:
                raise InvalidSpirv(f"SPIR-V: type {type_} has no parts to point to")
        return type_

    def _decorate(self, own: dict[int, int], at: int, end: int) -> None:
        if self.words[at] in _DECORATIONS:
            if self.words[at] in _VALUED and end == at + 1:
                raise InvalidSpirv(f"SPIR-V: a decoration at word {at} lacks its value")
            own[self.words[at]] = self.words[at + 1] if end > at + 1 else 0

    def _id(self, number: int) -> int:
        if not 0 < number < self.bound:
            raise InvalidSpirv(f"SPIR-V: id {number} is out of range (bound {self.bound})")
        return number

    def _new(self, number: int) -> int:
        if number in self.types or number in self.constants or number in self.variables:
            raise InvalidSpirv(f"SPIR-V: id {number} is defined twice")
        return self._id(number)

    def _check_text(self, at: int, end: int) -> None:
        """Raise unless a string ends in its instruction's last word: drivers would read past it."""
        length = self.code.find(b"\0", 4 * at, 4 * end) // 4
        if length != end - 1:
            raise InvalidSpirv(f"SPIR-V: the string at word {at} does not end with its instruction")

    def _string(self, at: int, end: int) -> str:
        text, nul, _ = self.code[4 * at : 4 * end].partition(b"\0")
        if not nul:
            raise InvalidSpirv(f"SPIR-V: the string at word {at} has no end")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise InvalidSpirv(f"SPIR-V: the string at word {at} is not UTF-8") from None

    # Queries.

    def name(self, number: int) -> str:
        return _normal(self._string(*self.names[number])) if number in self.names else ""

    def member_name(self, struct: int, index: int) -> str:
        where = self.member_names.get((struct, index))
        return _normal(self._string(*where)) if where else ""

    def type(self, number: int) -> tuple[int, array[int]]:
        if number not in self.types:
            raise InvalidSpirv(f"SPIR-V: id {number} is used as a type but is none")
        return self.types[number]

    def block_of(self, variable: int) -> int:
        op, operands = self.type(self.variables[variable][0])
        target = operands[1] if op == _POINTER else 0
        kind = self.type(target)[0]
        if kind in (_ARRAY, _RUNTIME_ARRAY):
            raise Unsupported(f"SPIR-V: {self.name(variable)!r} is an array of buffers")
        if kind != _STRUCT:
            raise InvalidSpirv(f"SPIR-V: variable {self.name(variable)!r} is not a block")
        return target

    def packed_size(self, pointer: int) -> int:
        """Size of the pointee in bytes, without padding; parts of unknown size count as 0."""
        total = 0
        stack = [(self.type(pointer)[1][1], 1)]
        while stack:
            self._spend(1)
            number, count = stack.pop()
            op, operands = self.type(number)
            if op == _STRUCT:
                self._spend(len(operands))
                stack += [(member, count) for member in operands]
            elif op == _ARRAY:
                length = self._chosen_length(operands[1])
                if length is not None and length < 1:
                    raise InvalidSpirv(f"SPIR-V: array type {number} has length {length}")
                stack.append((operands[0], count * (length or 0)))
            elif op in (_VECTOR, _MATRIX):
                stack.append((operands[0], count * operands[1]))
            elif op in (_INT, _FLOAT):
                total += count * operands[0] // 8
        return total

    def texel_buffer(self, variable: int) -> TexelBuffer:
        """The texel buffer that a variable is; raises if it is another image or a sampler."""
        image = self.type(self.variables[variable][0])[1][1]
        return texel_buffer(self.name(variable), image, self.type, self.scalar)

    def declared(self, variable: int, struct: int | None, decoration: int) -> bool:
        """Whether a variable, or else each member of its block, carries the decoration."""
        if decoration in self.decorations.get(variable, {}) or struct is None:
            return decoration in self.decorations.get(variable, {})
        count = len(self.types[struct][1])
        self._spend(count)
        return count > 0 and all(
            decoration in self.member_decorations.get((struct, index), {}) for index in range(count)
        )

    def spec_id(self, constant: int) -> int | None:
        return self.decorations.get(constant, {}).get(_SPEC_ID)

    def spec_constants(self) -> Iterator[int]:
        for constant, (op, _, _) in self.constants.items():
            if op in _SPEC_CONSTANTS and self.spec_id(constant) is not None:
                yield constant

    def literal(self, constant: int) -> tuple[Dtype, bool | int | float]:
        op, type_, operands = self.constants[constant]
        if op in (_SPEC_TRUE, _SPEC_FALSE):
            return np.dtype(np.bool_), op == _SPEC_TRUE
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
        if self.constants[constant][0] == _SPEC_OP:
            return None
        value = self.literal(constant)[1]
        if not isinstance(value, int):
            raise InvalidSpirv(f"SPIR-V: constant {constant} is not an integer")
        return value

    def scalar(self, number: int) -> Dtype | None:
        """The scalar that a type consists of: raw bytes if NumPy lacks it, None for a struct."""
        op, operands = self.type(number)
        while op in (_ARRAY, _RUNTIME_ARRAY, _VECTOR, _MATRIX):
            self._spend(1)
            op, operands = self.type(operands[0])
        if op == _POINTER and operands[0] == _PHYSICAL:
            return np.dtype(np.uint64)
        if op not in (_INT, _FLOAT):
            return None
        # A float with an extra operand has another encoding, such as bfloat16.
        other = op == _FLOAT and len(operands) > 1
        letter = "V" if other else "f" if op == _FLOAT else "i" if operands[1] else "u"
        dtype = _SCALARS.get((letter, operands[0]))
        if dtype is None:
            raise InvalidSpirv(f"SPIR-V: a number of {operands[0]} bits in type {number}")
        return dtype

    def fixed_part(self, struct: int) -> tuple[int, int, int | None]:
        """The size of a block without its runtime array, and that array's offset and stride."""
        members = self.types[struct][1]
        header, stride = 0, None
        if members and self.type(members[-1])[0] == _RUNTIME_ARRAY:
            header = self._offset(struct, len(members) - 1)
            stride = self._stride(members[-1])
        leaves = self.leaves(struct, skip_runtime_array=True)
        return max((leaf.offset + leaf.size for leaf in leaves), default=0), header, stride

    def elements(self, struct: int) -> Elements:
        """The layout of a block's last member, if it is an array or the only member."""
        members = self.types[struct][1]
        if not members:
            return Elements()
        last = len(members) - 1
        number = members[last]
        if last and self.type(number)[0] not in (_ARRAY, _RUNTIME_ARRAY):
            return Elements(fields=self._fields(struct))
        offset = self._offset(struct, last)
        levels: list[tuple[int, int | None]] = []  # stride and number of elements
        op, operands = self.type(number)
        try:
            while op in (_ARRAY, _RUNTIME_ARRAY):
                self._spend(1)
                count = self._length(number) if op == _ARRAY else None
                levels.append((self._stride(number), count))
                number = operands[0]
                op, operands = self.type(number)
            layout = self.member_decorations.get((struct, last), {})
            if op == _MATRIX and _MATRIX_STRIDE in layout:
                column, of = self.type(operands[0])
                if column != _VECTOR:
                    raise InvalidSpirv(f"SPIR-V: matrix {number} does not consist of vectors")
                columns, rows = operands[1], of[1]
                if _ROW_MAJOR in layout:
                    columns, rows = rows, columns
                levels.append((layout[_MATRIX_STRIDE], columns))
                used = rows * self._scalar_size(number)
            elif op == _STRUCT:
                used = sum(leaf.dtype.itemsize * prod(leaf.shape) for leaf in self.leaves(number))
            else:
                used = self._scalar_size(number) * (operands[1] if op == _VECTOR else 1)
        except Unsupported:  # the length depends on specialization constants
            return Elements(offset=offset)
        fields = self._fields(number) if op == _STRUCT else ()
        pitches, used = _to_first_gap(levels, used, records=op == _STRUCT)
        return Elements(offset, pitches, used, fields)

    def _fields(self, struct: int) -> tuple[tuple[str, int], ...]:
        count = len(self.types[struct][1])
        self._spend(count)
        return tuple(
            (self.member_name(struct, index), self._offset(struct, index)) for index in range(count)
        )

    def _scalar_size(self, number: int) -> int:
        dtype = self.scalar(number)
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
            self._spend(1)
            number, name, offset, shape, strides, layout = stack.pop()
            op, operands = self.type(number)
            if op == _STRUCT:
                count = len(operands)
                if skip_runtime_array and number == struct and count:
                    count -= self.type(operands[-1])[0] == _RUNTIME_ARRAY
                self._spend(count)
                for index in reversed(range(count)):
                    member = self.member_name(number, index) or f"member{index}"
                    path = f"{name}.{member}"[:_MAX_NAME] if name else member
                    start = offset + self._offset(number, index)
                    layout = self.member_decorations[number, index]
                    stack.append((operands[index], path, start, shape, strides, layout))
                continue
            if op == _ARRAY:
                shape, strides = (*shape, self._length(number)), (*strides, self._stride(number))
                if len(shape) > _MAX_DIMENSIONS:
                    raise InvalidSpirv("SPIR-V: arrays are nested too deeply")
                stack.append((operands[0], name, offset, shape, strides, layout))
                continue
            dtype = self.scalar(number)
            if dtype is None or op == _RUNTIME_ARRAY:
                raise InvalidSpirv(f"SPIR-V: {name!r} cannot be in a block here (opcode {op})")
            if op == _MATRIX:
                if _MATRIX_STRIDE not in layout:
                    raise InvalidSpirv(f"SPIR-V: matrix {name!r} has no stride")
                column, rows = self.type(operands[0])
                if column != _VECTOR:
                    raise InvalidSpirv(f"SPIR-V: matrix {name!r} does not consist of vectors")
                steps = (layout[_MATRIX_STRIDE], dtype.itemsize)
                shape = (*shape, operands[1], rows[1])
                strides = (*strides, *(steps[::-1] if _ROW_MAJOR in layout else steps))
            elif op == _VECTOR:
                shape, strides = (*shape, operands[1]), (*strides, dtype.itemsize)
            if 0 in shape:
                raise InvalidSpirv(f"SPIR-V: {name!r} is a vector of no components")
            yield Member(name, offset, dtype, shape, strides)

    def _offset(self, struct: int, index: int) -> int:
        offset = self.member_decorations.get((struct, index), {}).get(_OFFSET)
        if offset is None:
            raise InvalidSpirv(f"SPIR-V: member {index} of {self.name(struct)!r} has no offset")
        return offset

    def _stride(self, number: int) -> int:
        stride = self.decorations.get(number, {}).get(_ARRAY_STRIDE)
        if not stride:
            raise InvalidSpirv(f"SPIR-V: array type {number} in a block has no stride")
        return stride

    def _length(self, number: int) -> int:
        length = self._chosen_length(self.types[number][1][1])
        if length is None:
            raise Unsupported("SPIR-V: an array's length is computed from specialization constants")
        if length < 1:
            raise InvalidSpirv(f"SPIR-V: array type {number} has length {length}")
        return length

    def _chosen_length(self, constant: int) -> int | None:
        """The length that a constant sets; the caller of `reflect` may have specialized it."""
        number = self.spec_id(constant)
        if number is None:
            return self.integer(constant)
        default = self.integer(constant)
        self.sized_by.add(number)
        if number not in self.chosen or default is None:
            return default
        signed = self.literal(constant)[0].kind == "i"
        return int.from_bytes(self.chosen[number], "little", signed=signed)

    def _spend(self, steps: int) -> None:
        """Bound the work. A bound on depth is not enough: types can share parts, or be cyclic."""
        self.budget -= steps
        if self.budget < 0:
            raise InvalidSpirv("SPIR-V: its types are cyclic, or too large to be real")

    # Following pointers.

    def uses(self, entry: int) -> dict[int, int]:
        """By variable: how the functions reachable from `entry` access it."""
        reached = {0, entry}
        pending = [entry]
        while pending:
            for callee in self.calls.get(pending.pop(), ()):
                if callee not in reached:
                    reached.add(callee)
                    pending.append(callee)
        uses: dict[int, int] = {}
        for function, op, at, end in self.body:
            if function in reached:
                self._use(uses, op, at, end)
        return uses

    def _use(self, uses: dict[int, int], op: int, at: int, end: int) -> None:
        words, pointers = self.words, self.pointers
        if op in _POINTER_OPERANDS:
            for position, use in _POINTER_OPERANDS[op]:
                pointer = words[at + position]
                if pointer in pointers:
                    variable = pointers[pointer]
                    if op == _LOAD and variable in self.images:
                        use = 0
                    uses[variable] = uses.get(variable, 0) | use
                elif pointer >= self.bound:
                    self._id(pointer)
        elif op != _EXT_INST or words[at + 3] not in self.non_semantic:
            operands = words[at + (5 if op == _EXT_INST else 1) : end]
            if not pointers.keys().isdisjoint(operands):
                for operand in operands:
                    if operand in pointers:
                        uses[pointers[operand]] = _READ | _WRITE


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


# The numbers below are those of the SPIR-V specification.

_MAX_NAME = 1024
_MAX_PUSH = 1 << 16
_MAX_BOUND = 0x3FFFFF  # of ids, by the specification
_MAX_BINDING = 4095  # drivers allocate for all bindings up to the highest
_MAX_DIMENSIONS = 32  # the limit of NumPy 1
_BUDGET = 1 << 16

_READ, _WRITE = 1, 2
_ACCESS: dict[int, Access] = {_READ: "r", _WRITE: "w", _READ | _WRITE: "rw"}
_SIZE_NAMES = ("local_size_x", "local_size_y", "local_size_z")
_SCALARS: dict[tuple[str, int], Dtype] = {
    (letter, 8 * size): np.dtype(f"{letter}{size}")
    for letter, sizes in (("u", (1, 2, 4, 8)), ("i", (1, 2, 4, 8)), ("f", (2, 4, 8)), ("V", (1, 2)))
    for size in sizes
}

_GL_COMPUTE = 5
_LOCAL_SIZE, _LOCAL_SIZE_ID = 17, 38
_PRESERVE, _PRESERVE_NAME = 4461, "SignedZeroInfNanPreserve"
_WORKGROUP_SIZE = 25
_UNIFORM_CONSTANT, _UNIFORM, _PUSH_CONSTANT, _STORAGE_BUFFER, _PHYSICAL = 0, 2, 9, 12, 5349
_WORKGROUP = 4
_BLOCK_STORAGE = frozenset((_UNIFORM_CONSTANT, _UNIFORM, _PUSH_CONSTANT, _STORAGE_BUFFER))

_SPEC_ID, _BLOCK, _BUFFER_BLOCK, _ROW_MAJOR, _ARRAY_STRIDE, _MATRIX_STRIDE = 1, 2, 3, 4, 6, 7
_BUILT_IN, _NON_WRITABLE, _NON_READABLE, _BINDING, _DESCRIPTOR_SET, _OFFSET = 11, 24, 25, 33, 34, 35
_VALUED = frozenset((_SPEC_ID, _ARRAY_STRIDE, _MATRIX_STRIDE, _BINDING, _DESCRIPTOR_SET, _OFFSET))
_DECORATIONS = _VALUED | {_BLOCK, _BUFFER_BLOCK, _ROW_MAJOR, _NON_WRITABLE, _NON_READABLE}

_NAME, _MEMBER_NAME, _EXT_INST_IMPORT, _EXT_INST = 5, 6, 11, 12
# By opcode: the word at which its final string begins (names, source text, extensions).
_TEXTS = {4: 1, _NAME: 2, _MEMBER_NAME: 3, 7: 2, 10: 1, _EXT_INST_IMPORT: 2, 330: 1}
_ENTRY_POINT, _EXECUTION_MODE, _CAPABILITY, _EXECUTION_MODE_ID = 15, 16, 17, 331
_DECORATE, _MEMBER_DECORATE, _GROUP_DECORATE, _GROUP_MEMBER_DECORATE = 71, 72, 74, 75
_INT, _FLOAT, _VECTOR, _MATRIX, _ARRAY, _RUNTIME_ARRAY = 21, 22, 23, 24, 28, 29
_IMAGE, _SAMPLED_IMAGE, _STRUCT, _POINTER = 25, 27, 30, 32
_TYPES = frozenset((*range(19, 39), 4456, 5341, 5358))
_CONSTANT, _SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_OP = 43, 48, 49, 50, 52
_SPEC_CONSTANTS = frozenset((_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT))
_SCALAR_CONSTANTS = _SPEC_CONSTANTS | {_CONSTANT, _SPEC_OP}
_COMPOSITE_CONSTANTS = frozenset((44, 51))
_FUNCTION, _FUNCTION_END, _FUNCTION_CALL, _VARIABLE, _UNTYPED_VARIABLE = 54, 56, 57, 59, 4418
_LOAD, _STORE, _COPY_MEMORY, _COPY_MEMORY_SIZED, _ARRAY_LENGTH = 61, 62, 63, 64, 68
_ATOMIC_LOAD, _ATOMIC_STORE = 227, 228
_COOPERATIVE_LOAD, _COOPERATIVE_STORE = 4457, 4458
_TEXEL_POINTER, _IMAGE_FETCH, _IMAGE_READ, _IMAGE_WRITE, _IMAGE_OF_SAMPLED = 60, 95, 98, 99, 100
_IMAGE_SIZES = (103, 104)
_ELEMENT_CHAINS = frozenset((67, 70))  # with an element index before the others
_ACCESS_CHAINS = _ELEMENT_CHAINS | {65, 66}
_CHAINS = _ACCESS_CHAINS | {_TEXEL_POINTER, 83, _IMAGE_OF_SAMPLED}  # 83: OpCopyObject
# Besides chains, a parameter, call, variable, load, bit cast, select or phi may yield a pointer.
_POINTER_RESULTS = _CHAINS | {55, _FUNCTION_CALL, _VARIABLE, _LOAD, 124, 169, 245}

# By built-in: its number of components. Group and invocation counts and ids, subgroups, masks.
_COMPUTE_BUILT_INS = {
    **dict.fromkeys(range(24, 29), 3),
    **dict.fromkeys((29, 36, 38, 40, 41, 4438), 1),
    **dict.fromkeys(range(4416, 4421), 4),
}

# By opcode: which operands are pointers, and how the instruction accesses their memory.
_POINTER_OPERANDS: dict[int, tuple[tuple[int, int], ...]] = {
    _LOAD: ((3, _READ),),
    _STORE: ((1, _WRITE), (2, _READ | _WRITE)),  # storing a pointer lets it escape
    _COPY_MEMORY: ((1, _WRITE), (2, _READ)),
    _COPY_MEMORY_SIZED: ((1, _WRITE), (2, _READ)),
    _ARRAY_LENGTH: ((3, 0),),
    _ATOMIC_LOAD: ((3, _READ),),
    _ATOMIC_STORE: ((1, _WRITE),),
    _COOPERATIVE_LOAD: ((3, _READ),),
    _COOPERATIVE_STORE: ((1, _WRITE),),
    _IMAGE_FETCH: ((3, _READ),),
    _IMAGE_READ: ((3, _READ),),
    _IMAGE_WRITE: ((1, _WRITE),),
    **dict.fromkeys(_IMAGE_SIZES, ((3, 0),)),
    _VARIABLE: ((4, _READ | _WRITE),),
    **dict.fromkeys(_CHAINS, ((3, 0),)),
}

# Instructions that take no pointer but may contain a literal that looks like an id: lines, shuffles
# and extracts, control flow, subgroup operations.
_NO_POINTER = frozenset((0, 8, 79, 81, 82, *range(246, 254), 317, *range(333, 367)))

# By opcode, for the instructions that are read: the minimum number of words.
_OPS: dict[int, int] = {
    **dict.fromkeys(_TYPES, 2),
    **dict.fromkeys((_INT, _VECTOR, _MATRIX, _ARRAY, _POINTER), 4),
    **dict.fromkeys((_FLOAT, _RUNTIME_ARRAY, _SAMPLED_IMAGE), 3),
    _IMAGE: 9,
    **dict.fromkeys(_SCALAR_CONSTANTS | _COMPOSITE_CONSTANTS, 3),
    **{op: 1 + max(at for at, _ in uses) for op, uses in _POINTER_OPERANDS.items()},
    **dict.fromkeys((_CAPABILITY, _GROUP_DECORATE, _GROUP_MEMBER_DECORATE), 2),
    **dict.fromkeys((_NAME, _DECORATE, _EXECUTION_MODE, _EXECUTION_MODE_ID, _EXT_INST_IMPORT), 3),
    **dict.fromkeys((_MEMBER_NAME, _MEMBER_DECORATE, _ENTRY_POINT, _VARIABLE, _FUNCTION), 4),
    **dict.fromkeys((_FUNCTION_CALL, _UNTYPED_VARIABLE), 4),
    _EXT_INST: 5,
    **{op: at + 1 for op, at in _TEXTS.items()},
}

#: What every Vulkan device has: Matrix, Shader, SampledBuffer, ImageBuffer, ImageQuery, and
#: StorageImageExtendedFormats, as what a device supports is listed by format.
_FREE_CAPABILITIES = frozenset((0, 1, 46, 47, 49, 50))
_CAPABILITIES = {
    9: "Float16",
    10: "Float64",
    11: "Int64",
    12: "Int64Atomics",
    22: "Int16",
    28: "UniformBufferArrayDynamicIndexing",
    30: "StorageBufferArrayDynamicIndexing",
    39: "Int8",
    55: "StorageImageReadWithoutFormat",
    56: "StorageImageWriteWithoutFormat",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad",
    4423: "SubgroupBallotKHR",
    4428: "WorkgroupMemoryExplicitLayoutKHR",
    4429: "WorkgroupMemoryExplicitLayout8BitAccessKHR",
    4430: "WorkgroupMemoryExplicitLayout16BitAccessKHR",
    4431: "SubgroupVoteKHR",
    4433: "StorageBuffer16BitAccess",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    4441: "VariablePointersStorageBuffer",
    4442: "VariablePointers",
    4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess",
    4450: "StoragePushConstant8",
    4464: "DenormPreserve",
    4465: "DenormFlushToZero",
    4466: _PRESERVE_NAME,
    4467: "RoundingModeRTE",
    4468: "RoundingModeRTZ",
    5055: "ShaderClockKHR",
    5116: "BFloat16TypeKHR",
    5117: "BFloat16DotProductKHR",
    5118: "BFloat16CooperativeMatrixKHR",
    5297: "GroupNonUniformPartitionedNV",
    5301: "ShaderNonUniform",
    5302: "RuntimeDescriptorArray",
    5345: "VulkanMemoryModel",
    5346: "VulkanMemoryModelDeviceScope",
    5347: "PhysicalStorageBufferAddresses",
    5357: "CooperativeMatrixNV",
    5612: "AtomicFloat32MinMaxEXT",
    5613: "AtomicFloat64MinMaxEXT",
    5616: "AtomicFloat16MinMaxEXT",
    5629: "ExpectAssumeKHR",
    6016: "DotProductInputAll",
    6017: "DotProductInput4x8Bit",
    6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct",
    6022: "CooperativeMatrixKHR",
    6026: "GroupNonUniformRotateKHR",
    6033: "AtomicFloat32AddEXT",
    6034: "AtomicFloat64AddEXT",
    6095: "AtomicFloat16AddEXT",
}
