"""Rewriting of SPIR-V: moves push constants to a storage buffer if they exceed the device's limit.

A storage buffer may have the same layout as push constants, so only two things change: the storage
class of the block and of every pointer into it, and the block gets a binding.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from penstock.errors import Unsupported
from penstock.shader import spirv_numbers as spv
from penstock.shader.interface import Binding, Interface

# The numbers are those of the SPIR-V specification.
_PUSH_16, _STORAGE_16, _PUSH_8, _STORAGE_8 = 4435, 4433, 4450, 4448
_CAPABILITIES = {_PUSH_16: _STORAGE_16, _PUSH_8: _STORAGE_8}
_NAMES = {
    "StoragePushConstant16": "StorageBuffer16BitAccess",
    "StoragePushConstant8": "StorageBuffer8BitAccess",
}


def arguments_in_buffer(code: bytes, interface: Interface) -> tuple[bytes, Interface]:
    """The same kernel with its push constants in a storage buffer, at an additional binding."""
    if interface.version < (1, 3):
        raise Unsupported(
            f"{interface.push_size} bytes of push constants are too many for the device, and "
            "before version 1.3 of SPIR-V they cannot be moved to a buffer; compile for 1.3"
        )
    number = 1 + max((binding.binding for binding in interface.bindings), default=-1)
    moved = Binding(
        name="the scalar arguments", set=0, binding=number, kind="storage", access="r", dtype=None,
        header=0, stride=None, min_size=interface.push_size, purpose="arguments",
    )  # fmt: skip
    changed = replace(
        interface,
        bindings=(*interface.bindings, moved),
        push_size=0,
        capabilities=frozenset(_NAMES.get(name, name) for name in interface.capabilities),
    )
    return _rewritten(code, number), changed


def _rewritten(code: bytes, binding: int) -> bytes:
    words = array("I", code)  # native byte order, which `reflect` has checked to be little-endian
    variable = decorations_end = 0
    at = 5
    while at < len(words):
        size, op = words[at] >> 16, words[at] & 0xFFFF
        if op == spv.CAPABILITY:
            words[at + 1] = _CAPABILITIES.get(words[at + 1], words[at + 1])
        elif op == spv.POINTER and words[at + 2] == spv.PUSH_CONSTANT:
            words[at + 2] = spv.STORAGE_BUFFER
        elif op == spv.VARIABLE and words[at + 3] == spv.PUSH_CONSTANT:
            words[at + 3] = spv.STORAGE_BUFFER
            variable = words[at + 2]
        elif op in (spv.DECORATE, spv.MEMBER_DECORATE):
            decorations_end = at + size
        at += size
    new = [
        4 << 16 | spv.DECORATE, variable, spv.DESCRIPTOR_SET, 0,
        4 << 16 | spv.DECORATE, variable, spv.BINDING, binding,
        3 << 16 | spv.DECORATE, variable, spv.NON_WRITABLE,
    ]  # fmt: skip
    words[decorations_end:decorations_end] = array("I", new)
    return words.tobytes()
