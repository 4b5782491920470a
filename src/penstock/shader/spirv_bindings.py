"""The bindings of a kernel: what the variables of a module say of its buffers.

The access of a buffer is derived from the code (`uses`: by variable, `READ` and `WRITE`), and
narrowed by declarations such as `readonly`. "w" means that nothing is read, not that everything is
written.

A texel buffer (`samplerBuffer`, `imageBuffer`) is a binding, too: an image of dimension "buffer".
Its format is the declared one, if there is one.

A kernel returns a result by writing a storage block named `Result` of fixed size:
`layout(binding = 2) buffer Result { float sum; };`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader import spirv_numbers as spv
from penstock.shader.interface import Access, Binding, Elements, Kind, Member
from penstock.shader.spirv_blocks import Blocks
from penstock.shader.spirv_module import Module
from penstock.shader.spirv_pointers import READ, WRITE
from penstock.shader.spirv_texels import declared_format, texel_buffer

_MAX_BINDING = 4095  # drivers allocate for all bindings up to the highest
_ACCESS: dict[int, Access] = {READ: "r", WRITE: "w", READ | WRITE: "rw"}


def bindings(blocks: Blocks, variables: list[int], uses: dict[int, int]) -> tuple[Binding, ...]:
    """The bindings of these variables, in the order of their numbers."""
    found: dict[tuple[int, int], Binding] = {}
    used: dict[tuple[Any, ...], Binding] = {}
    for variable in variables:
        inferred = uses.get(variable, 0)
        if variable in blocks.module.pointers.images:
            new = _texel_binding(blocks.module, variable, inferred)
        else:
            new = _block_binding(blocks, variable, inferred)
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


def result_members(
    blocks: Blocks, variables: list[int], uses: dict[int, int]
) -> tuple[Member, ...]:
    """What the kernel returns: the members of its block named `Result`."""
    found = [each for each in variables if _is_result(blocks, each, uses.get(each, 0))]
    if len(found) > 1:
        raise Unsupported("SPIR-V: a kernel can have only one block named 'Result'")
    return blocks.members(found[0], "result") if found else ()


def _place(module: Module, variable: int, name: str) -> tuple[int, int]:
    """The set and binding of a variable."""
    decorations = module.decorations.get(variable, {})
    where = decorations.get(spv.DESCRIPTOR_SET), decorations.get(spv.BINDING)
    if where[0] is None or where[1] is None:
        raise InvalidSpirv(f"SPIR-V: buffer {name!r} has no set or no binding")
    if where[1] > _MAX_BINDING:
        raise Unsupported(
            f"SPIR-V: buffer {name!r} is at binding {where[1]:,}; number them up to "
            f"{_MAX_BINDING:,}"
        )
    return where[0], where[1]


def _texel_binding(module: Module, variable: int, inferred: int) -> Binding:
    name = module.name(variable)
    where = _place(module, variable, name)
    found = texel_buffer(module, variable)
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


def _block_binding(blocks: Blocks, variable: int, inferred: int) -> Binding:
    module, struct = blocks.module, blocks.of(variable)
    members = module.types.declared[struct][1]
    name = module.name(variable)
    if not name and len(members) == 1:
        name = module.member_name(struct, 0)
    name = name or module.name(struct)
    where = _place(module, variable, name)

    storage = module.variables[variable][1]
    marks = module.decorations.get(struct, {})
    stored = storage == spv.STORAGE_BUFFER or spv.BUFFER_BLOCK in marks
    kind: Kind = "storage" if stored else "uniform"
    if kind == "uniform" and spv.BLOCK not in marks:
        raise InvalidSpirv(f"SPIR-V: buffer {name!r} is not decorated as a block")

    fixed, header, stride = blocks.fixed_part(struct)
    last = module.types.type(members[-1])[0] if members else 0
    parts = members[-1:] if last in (spv.ARRAY, spv.RUNTIME_ARRAY) else members
    scalars = {module.types.scalar(part) for part in parts}
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
        purpose="result" if _is_result(blocks, variable, inferred) else "array",
        elements=blocks.elements(struct),
    )


def _is_result(blocks: Blocks, variable: int, inferred: int) -> bool:
    module = blocks.module
    if variable in module.pointers.images:
        return False
    struct = blocks.of(variable)
    if module.name(struct) != "Result" or module.variables[variable][1] != spv.STORAGE_BUFFER:
        return False
    runtime = blocks.fixed_part(struct)[2] is not None
    return not runtime and _allowed_access(module, variable, struct, inferred) != "r"


def _allowed_access(module: Module, variable: int, struct: int | None, inferred: int) -> Access:
    allowed = READ | WRITE
    if module.declared(variable, struct, spv.NON_WRITABLE):
        allowed = READ
    elif module.declared(variable, struct, spv.NON_READABLE):
        allowed = WRITE
    # An unused buffer counts as "r", which restricts least, unless it is declared write-only.
    return _ACCESS[inferred & allowed or (allowed & READ or allowed)]


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
