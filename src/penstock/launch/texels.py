"""Arrays as texel buffers: the format that an array is bound in, its checks, and its view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.array.array import Array, Bound
from penstock.driver.protocol import PLACE, DeviceInfo
from penstock.errors import DtypeMismatch, InvalidValue, ShapeMismatch, Unsupported
from penstock.launch.arguments import KernelParameter, same_bytes
from penstock.shader.texels import FORMATS, TexelFormat, default_format

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler


def bind_texels(
    scheduler: Scheduler,
    parameters: Sequence[KernelParameter],
    arrays: Sequence[Array],
    bound: Sequence[Bound],
) -> None:
    """Make the views of arrays that are bound as texel buffers, unless they were made before."""
    for parameter, array, each in zip(parameters, arrays, bound, strict=True):
        key = parameter.format
        if key is None or key in each.texels:
            continue
        backing = each.backing
        texel = FORMATS.get(key) or default_format(array.dtype)
        assert texel is not None  # `check_texels` has seen it
        lo = backing.offset + array.layout.offset
        view = scheduler.retirement.texel_views.view(
            backing.memory, lo - array.lead, array.lead + array.nbytes, texel.name
        )
        place = PLACE.pack(view.handle, lo, array.nbytes)
        each.texels = {**each.texels, key: (place, view)}


def check_texels(parameter: KernelParameter, array: Array, label: str, info: DeviceInfo) -> None:
    """Raise unless an array can be bound as the texel buffer that a kernel declares."""
    texel = _format_of(parameter, array, label, info)
    if array.nbytes % texel.nbytes or not array.nbytes:
        raise ShapeMismatch(
            f"{label} has {array.nbytes:,} bytes, which are not whole texels of "
            f"{texel.nbytes} bytes ({texel.name}); pass an array whose size is a multiple of "
            f"{texel.count} elements"
        )
    count, most = (array.lead + array.nbytes) // texel.nbytes, info.limits["texel_elements"]
    assert isinstance(most, int)
    if count > most:
        raise Unsupported(
            f"{label} has {count:,} texels ({texel.name}); {info.name} views at most {most:,} at "
            f"once (dev.info.limits['texel_elements']). Pass it in slices of at most "
            f"{most * texel.count:,} elements, use a wider format, or let the kernel read a "
            "storage buffer"
        )
    lo = array.buffer.backing.offset + array.layout.offset - array.lead
    if lo % parameter.alignment:
        raise InvalidValue(
            f"{label} starts at byte {array.region.lo} of its buffer, and a texel buffer on "
            f"{info.name} at a multiple of {parameter.alignment} "
            "(dev.info.limits['texel_alignment']). Pass the array of "
            f"'{parameter.name}, first = x.texels({texel.name!r})', which starts at such a "
            f"multiple, and `first` to the kernel as a number; or {parameter.name}=x.copy()"
        )


def _format_of(
    parameter: KernelParameter, array: Array, label: str, info: DeviceInfo
) -> TexelFormat:
    """The format that the kernel has, or else the one with an element of the array per texel."""
    texel = FORMATS.get(parameter.format or "")
    if texel is not None:  # `check_limits` has seen that the device supports it
        if not array.window and not same_bytes(array.dtype, texel.dtype):
            raise DtypeMismatch(
                f"{label} must be {texel.dtype}, for texels of {texel.name}, not {array.dtype}; "
                f"x.reinterpret({texel.dtype.name!r}) has the same bytes"
            )
        return texel
    texel = default_format(array.dtype)
    if texel is None or texel.fetched != parameter.fetched:
        raise DtypeMismatch(
            f"{label} is a texel buffer of {parameter.fetched}, and its format follows from the "
            f"array's dtype, {array.dtype}, which does not fit. Give the kernel a format: "
            f"dev.kernel(…, formats={{{parameter.name!r}: {_EXAMPLES[parameter.fetched]!r}}})"
        )
    if texel.name not in info.texel_formats:
        raise Unsupported(
            f"{label} is {array.dtype}, and {info.name} has no texels of {texel.name}; it has "
            f"{', '.join(sorted(info.texel_formats))}"
        )
    return texel


_EXAMPLES: dict[Any, str] = {"float": "rgba32f", "int": "rgba32i", "uint": "rgba32ui"}
