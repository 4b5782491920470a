"""Reflection: reads the interface of a compute kernel from its SPIR-V.

`reflect` returns what a caller must pass to a kernel, and what the kernel needs: its buffers and
how it accesses each, push constants, result, specialization constants, local size and capabilities.
It is not a validator, and skips what it need not understand. But for any input it either returns or
raises `InvalidSpirv` or `Unsupported`, in time linear in the size of the module. Beyond the
interface it checks what makes drivers crash: numbers by which they allocate (ids, bindings),
built-ins of other shader stages, and pointers that leave the object they point into.

`spirv_module` reads the instructions, `spirv_types` and `spirv_pointers` keep what they declare,
`spirv_blocks` and `spirv_bindings` make the arguments of it.

Names are normalized to NFKC, as Python normalizes the names of keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader import capabilities
from penstock.shader import spirv_numbers as spv
from penstock.shader.interface import Constant, Interface
from penstock.shader.spirv_bindings import bindings, result_members
from penstock.shader.spirv_blocks import Blocks
from penstock.shader.spirv_module import Module
from penstock.shader.spirv_texels import texel_buffer

_MAX_PUSH = 1 << 16
_SIZE_NAMES = ("local_size_x", "local_size_y", "local_size_z")


def reflect(
    code: bytes, entry: str | None = None, constants: Mapping[int, bytes] | None = None
) -> Interface:
    """Read the interface of the compute kernel in `code`.

    `entry` selects the entry point; it can be left out if there is only one. `constants` are values
    of specialization constants by id, which may determine the lengths of arrays.
    """
    module = Module(code)
    blocks = Blocks(module, constants or {})
    function, name = _choose_entry(module, entry)
    uses = module.pointers.uses(function)
    buffers, push = _variables(module, uses)
    size_constants, local_size = _local_size(module, function)
    members = () if push is None else blocks.members(push, "push constant")
    push_size = max((member.offset + member.size for member in members), default=0)
    if push_size > _MAX_PUSH:
        raise InvalidSpirv(f"SPIR-V: push constants of {push_size} bytes are more than {_MAX_PUSH}")
    preserved = [width for mode, width in module.preserved if mode == function]
    size_ids = [module.spec_id(constant) for constant in size_constants]
    return Interface(
        entry=name,
        local_size=local_size,
        local_size_ids=(size_ids[0], size_ids[1], size_ids[2]),
        bindings=bindings(blocks, buffers, uses),
        push=members,
        push_size=-(-push_size // 4) * 4,
        constants=_constants(module, size_constants),
        capabilities=capabilities.needed(module.capabilities, preserved),
        shared_size=sum(blocks.packed_size(pointer) for pointer in module.shared),
        version=module.version,
        result=result_members(blocks, buffers, uses),
        sized_by=frozenset(blocks.sized_by),
    )


def _choose_entry(module: Module, wanted: str | None) -> tuple[int, str]:
    kernels = {
        name: function for model, function, name in module.entries if model == spv.GL_COMPUTE
    }
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


def _variables(module: Module, uses: dict[int, int]) -> tuple[list[int], int | None]:
    """The buffer variables of the entry point, and its push-constant variable if it has one."""
    buffers = []
    push = None
    # A single entry point owns all variables, used or not: its arguments must not change when its
    # code stops using one.
    lone = len(module.entries) == 1
    for variable, (_, storage) in module.variables.items():
        if not lone and variable not in uses:
            continue
        if storage in (spv.UNIFORM, spv.STORAGE_BUFFER):
            buffers.append(variable)
        elif storage == spv.UNIFORM_CONSTANT:
            texel_buffer(module, variable)  # raises if it is none
            buffers.append(variable)
        elif push is not None:
            raise InvalidSpirv("SPIR-V: more than one block of push constants")
        else:
            push = variable
    return buffers, push


def _local_size(module: Module, function: int) -> tuple[list[int], tuple[int, int, int]]:
    """The ids of the constants that set the local size (0 for a literal), and their values."""
    constants = [0, 0, 0]
    values: list[int | None] = list(module.local_sizes.get(function, ()))
    if function in module.local_size_ids:
        constants = module.local_size_ids[function]
    # Per the SPIR-V specification this built-in, where present, overrides the execution mode.
    for composite in module.work_group_sizes:
        constants = module.composites.get(composite, constants)
    if any(constants):
        values = [module.types.integer(constant) for constant in constants]
    if not values:
        raise InvalidSpirv("SPIR-V: the entry point has no local size")
    if None in values:
        raise Unsupported("SPIR-V: the local size is computed from specialization constants")
    x, y, z = (value or 0 for value in values) if len(values) == 3 else (0, 0, 0)
    if min(x, y, z) < 1:
        raise InvalidSpirv(f"SPIR-V: a local size of {values[:4]} is not three positive numbers")
    return constants, (x, y, z)


def _constants(module: Module, size_constants: list[int]) -> tuple[Constant, ...]:
    found: dict[int, Constant] = {}
    fallback = dict(zip(size_constants, _SIZE_NAMES, strict=True))
    # GLSL's `local_size_x_id = 0` together with `constant_id = 0` makes two constants with one id;
    # the named one is the one that the author declared.
    for constant in sorted(module.spec_constants(), key=lambda constant: not module.name(constant)):
        number = module.decorations[constant][spv.SPEC_ID]
        dtype, default = module.types.literal(constant)
        name = module.name(constant) or fallback.get(constant) or f"constant{number}"
        found.setdefault(number, Constant(name, number, dtype, default))
    return tuple(found[number] for number in sorted(found))
