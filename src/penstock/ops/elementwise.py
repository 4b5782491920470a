"""Kernels that do the same to every element, from one line of GLSL.

`dev.elementwise("y[i] = a * x[i] + y[i]", "in float32 x, inout float32 y, float32 a")` writes the
rest of the kernel: the bindings, the push constants, and a loop in which each invocation takes
every so many-th element, so that any number of elements fits any number of groups.

As for a kernel, the call is written out once for its parameters, because it is made often.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.errors import ArgumentError, CompileError, DtypeMismatch, InvalidValue, ShapeMismatch
from penstock.handle import Closing
from penstock.launch.arguments import how_to_pass, same_bytes
from penstock.launch.call import MISSING
from penstock.launch.kernel import Kernel

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.driver.protocol import Reference

_ARITHMETIC = "GL_EXT_shader_explicit_arithmetic_types_"

#: By name: what GLSL calls an element, and the extension it needs.
_TYPES = {
    "bool": ("uint8_t", _ARITHMETIC + "int8"),
    "int8": ("int8_t", _ARITHMETIC + "int8"),
    "uint8": ("uint8_t", _ARITHMETIC + "int8"),
    "int16": ("int16_t", _ARITHMETIC + "int16"),
    "uint16": ("uint16_t", _ARITHMETIC + "int16"),
    "int32": ("int", ""),
    "uint32": ("uint", ""),
    "int64": ("int64_t", _ARITHMETIC + "int64"),
    "uint64": ("uint64_t", _ARITHMETIC + "int64"),
    "float16": ("float16_t", _ARITHMETIC + "float16"),
    "float32": ("float", ""),
    "float64": ("double", ""),
}
_QUALIFIERS = {"in": "readonly ", "out": "writeonly ", "inout": ""}

_GROUP_SIZE = 256
_CPU_GROUPS = 64  # on a CPU driver a group costs more than a turn of the loop

#: The most elements for an invocation: lavapipe ends all loops of one after 65,535 turns together.
_MOST_EACH = 60_000
_LOOP = re.compile(r"\b(for|while|do)\b")

#: What follows the user's text. The last step of a loop that counts up could overflow.
_MAIN = """
;}
void main() {
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    uint i = gl_GlobalInvocationID.x;
    bool more = i < n;
    while (more) {
        penstock_operation(i);
        more = n - i > step;
        i += step;
    }
}
"""

#: What stands around the user's text in HIP C++. One line before, so that lines can be counted.
_HIP_HEAD = (
    'extern "C" __global__ void penstock_elementwise({parameters}) {{ '
    "unsigned int penstock_step = gridDim.x * blockDim.x; "
    "unsigned int penstock_i = blockIdx.x * blockDim.x + threadIdx.x; "
    "bool penstock_more = penstock_i < n; while (penstock_more) {{ [&](unsigned int i) {{"
)
_HIP_END = """
;}(penstock_i);
penstock_more = n - penstock_i > penstock_step;
penstock_i += penstock_step; } }
"""

_CALL = """
def __call__(penstock_self, {parameters}, *penstock_more, stream=None, **penstock_unknown):
    if penstock_more or penstock_unknown:
        penstock_self._explain_names(penstock_more, penstock_unknown)
    try:
        penstock_shape = {first}.shape
        {make}
        if {differ}:
            penstock_self._explain_shapes(({arrays},))
        penstock_count = {one}.size
    except AttributeError:
        penstock_self._explain_arrays(({arrays},))
        raise
    if not penstock_count:
        penstock_self._check_nothing(({arrays},))
        return {outputs}
    penstock_kernel(
        {arguments}, n=penstock_count, stream=stream,
        threads=penstock_count if penstock_count < penstock_most else
            penstock_most if penstock_count <= {far} else -(-penstock_count // {each}),
    )
    return {outputs}
"""


class Parameter(NamedTuple):
    """An array (`in`, `out` or `inout`) or, without a mode, a number."""

    mode: str
    type: str
    name: str

    @property
    def dtype(self) -> Dtype:
        return np.dtype(self.type)

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


class Elementwise(Closing):
    """An operation on every element of its arrays. Made by `Device.elementwise`.

    Call it with its parameters, in order or by name, and `stream=` if need be. The arrays have
    one common shape; NumPy arrays are moved to the device, and back if written. An `out` array
    that is left out is made. The call returns the `out` array, or a tuple if there are several.
    """

    def __init__(
        self,
        device: Device,
        operation: str,
        parameters: str,
        *,
        name: str = "",
        preamble: str = "",
        reference: Reference | None = None,
    ) -> None:
        self.device = device
        self.name = name or "elementwise"
        self.operation = operation
        for what, text in (
            ("operation", operation), ("parameters", parameters), ("preamble", preamble),
        ):  # fmt: skip
            if not isinstance(text, str):
                raise ArgumentError(f"{self.name}: {what} is text, not {type(text).__name__}")
        self.parameters = _parse(self.name, parameters)
        self._arrays = [each for each in self.parameters if each.mode]
        local = min(_GROUP_SIZE, *_most(device, "group_size"), *_most(device, "group_invocations"))
        hip = device.scheduler.driver.language == "hip"
        source = (_HipSource if hip else _Source)(self.parameters, preamble, operation)
        try:
            self.kernel = Kernel(
                device,
                source.text,
                name=self.name,
                defines={},
                constants={} if hip else {"local_size_x": local},
                reference=None if reference is None else _flat(self.parameters, reference),
                signature=source.signature,
                group_size=local if hip else None,
            )
        except CompileError as error:
            if not hasattr(error, "errors"):
                raise
            raise source.explain(self.name, error) from None
        groups = _most(device, "group_count")[0]
        # A loop of the operation's own must not share its turns with the loop over elements.
        if device.info.kind == "cpu" and not _LOOP.search(f"{preamble}\n{operation}"):
            groups = _CPU_GROUPS
        call = _make_call(self, groups * local)
        doc = f"{self.signature}\n\n{operation.strip()}\n\n{Elementwise.__doc__}"
        self.__class__ = type("Elementwise", (type(self),), {"__call__": call, "__doc__": doc})

    def __call__(self, *arguments: Any, stream: Any = None, **named: Any) -> Any:
        """Do it to every element, in stream order. Blocks only as a kernel's call does."""
        raise AssertionError("replaced when the operation was made")

    @property
    def signature(self) -> str:
        """What to call it with."""
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    def close(self) -> None:
        """Give the program back; launches in flight finish first. Safe to call twice."""
        self.kernel.close()

    @property
    def closed(self) -> bool:
        return self.kernel.closed

    def __repr__(self) -> str:
        return f"<Elementwise {self.signature}: {' '.join(self.operation.split())}>"

    # What a call does when it is not plain sailing.

    def _make(self, parameter: Parameter, shape: tuple[int, ...]) -> Array:
        return self.device.empty(shape, parameter.dtype)

    def _explain_names(self, more: tuple[Any, ...], unknown: dict[str, Any]) -> NoReturn:
        what = f"no argument {', '.join(map(repr, sorted(unknown)))}" if unknown else ""
        if more:
            what = f"{len(more)} too many arguments"
        raise ArgumentError(f"{self.name}: {what}. Its signature: {self.signature}")

    def _explain_arrays(self, given: tuple[Any, ...]) -> None:
        missing = [
            p.name
            for p, array in zip(self._arrays, given, strict=True)
            if array is MISSING and p.mode != "out"
        ]
        if missing or all(array is MISSING for array in given):
            what = ", ".join(map(repr, missing)) or "every array, and so the shape,"
            raise ArgumentError(f"{self.name}: {what} is missing. Its signature: {self.signature}")
        for parameter, array in zip(self._arrays, given, strict=True):
            if array is not MISSING and not isinstance(array, Array | np.ndarray):
                raise ArgumentError(
                    f"{self.name}: {parameter.name!r} must be a penstock or NumPy array, not "
                    f"{type(array).__name__}{how_to_pass(array)}. Its signature: {self.signature}"
                )

    def _explain_shapes(self, given: tuple[Any, ...]) -> NoReturn:
        self._explain_arrays(given)
        shapes = [f"{p.name} {a.shape}" for p, a in zip(self._arrays, given, strict=True)]
        raise ShapeMismatch(
            f"{self.name}: all arrays must have one shape; they have {', '.join(shapes)}. "
            "x.broadcast_to(shape).copy() repeats one"
        )

    def _check_nothing(self, given: tuple[Any, ...]) -> None:
        """Arrays of no elements are not bound, and yet must be what was declared."""
        self._explain_arrays(given)
        for parameter, array in zip(self._arrays, given, strict=True):
            if isinstance(array, Array) and array.device is not self.kernel.device:
                raise ArgumentError(
                    f"{self.name}: argument {parameter.name!r} is on {array.device}, the kernel on "
                    f"{self.kernel.device}; copy it over"
                )
            if not same_bytes(array.dtype, self._bound(parameter)):
                raise DtypeMismatch(
                    f"{self.name}: argument {parameter.name!r} must be {parameter.type}, "
                    f"not {array.dtype}"
                )

    def _bound(self, parameter: Parameter) -> Dtype:
        return np.dtype(np.uint8) if parameter.type == "bool" else parameter.dtype


def _most(device: Device, limit: str) -> tuple[int, ...]:
    value = device.info.limits[limit]
    return value[:1] if isinstance(value, tuple) else (value,)


def _make_call(made: Elementwise, most: int) -> Callable[..., Any]:
    """The `__call__`, with a Python parameter for each of the operation's."""
    arrays = [each.name for each in made.parameters if each.mode]
    outputs = [each.name for each in made.parameters if each.mode == "out"]
    given = [name for name in arrays if name not in outputs]
    # Where nothing is read, any of the arrays tells the shape.
    first = given[0] if given else f"penstock_given({', '.join(outputs)})"
    makes = [
        f"if {name} is MISSING: {name} = penstock_self._make(parameter_{name}, penstock_shape)"
        for name in outputs
    ]
    source = _CALL.format(
        parameters=", ".join(f"{each.name}=MISSING" for each in made.parameters),
        first=first,
        one=arrays[0],
        make="\n        ".join(makes) or "pass",
        differ=" or ".join(f"{name}.shape != penstock_shape" for name in arrays),
        arrays=", ".join(arrays),
        arguments=", ".join(
            # What `struct` packs is a Python bool, not one of NumPy's.
            f"{name}=bool({name}) if type({name}) is penstock_bool else {name}"
            if type_ == "bool" and not mode
            else f"{name}={name}"
            for mode, type_, name in made.parameters
        ),
        outputs=", ".join(outputs) or "None",
        each=_MOST_EACH,
        far=most * _MOST_EACH,
    )
    scope: dict[str, Any] = {
        "MISSING": MISSING,
        "penstock_bool": np.bool_,
        "penstock_given": lambda *arrays: next((a for a in arrays if a is not MISSING), MISSING),
        "penstock_kernel": made.kernel,
        "penstock_most": most,
        **{f"parameter_{each.name}": each for each in made.parameters},
    }
    # Named as a file of this package, so that receipts look past it for the user's line.
    exec(compile(source, f"{Path(__file__).parent}/<call of {made.name}>", "exec"), scope)
    call: Callable[..., Any] = scope["__call__"]
    return call


class _Source:
    """The GLSL of an operation, and which of its lines the user wrote."""

    signature: str | None = None  # GLSL says it itself

    def __init__(self, parameters: list[Parameter], preamble: str, operation: str) -> None:
        self._parameters = parameters
        self._parts: dict[str, list[str]] = {}  # by name: the user's lines
        self._starts: dict[str, int] = {}
        self._lines: list[str] = []
        self._write(parameters, preamble, operation)

    def _write(self, parameters: list[Parameter], preamble: str, operation: str) -> None:
        extensions = sorted({_TYPES[each.type][1] for each in parameters} - {""})
        self._lines += [f"#extension {name} : require" for name in extensions]
        self._lines.append("layout(local_size_x_id = 0) in;")
        arrays = [each for each in parameters if each.mode]
        numbers = [each for each in parameters if not each.mode]
        self._lines += [
            f"layout(binding = {number}) {_QUALIFIERS[mode]}buffer Penstock{number} "
            f"{{ {_TYPES[type_][0]} {name}[]; }};"
            for number, (mode, type_, name) in enumerate(arrays)
        ]
        self._lines.append("layout(push_constant) uniform PenstockNumbers { uint n;")
        self._lines += [
            f"{'bool' if type_ == 'bool' else _TYPES[type_][0]} {name};"
            for _, type_, name in numbers
        ]
        self._lines.append("};")
        self._add("preamble", preamble)
        self._lines.append("void penstock_operation(uint i) {")
        self._add("operation", operation)
        self.text = "\n".join(self._lines) + _MAIN

    def _add(self, part: str, text: str) -> None:
        self._parts[part] = text.splitlines()
        self._starts[part] = len(self._lines)
        self._lines += self._parts[part]

    def explain(self, name: str, error: CompileError) -> CompileError:
        """The error in terms of what the user wrote."""
        said = []
        errors = []
        for line, message in error.errors:
            place, text, at = self._place(line)
            said.append(f"{name}, {place}: {message}\n    {text.strip()}")
            errors.append((at, message))
        made = type(error)("\n".join(said))
        made.errors = errors
        return made

    def _place(self, line: int) -> tuple[str, str, int]:
        operation = self._parts["operation"]
        start = self._starts["operation"]
        if line > start:  # what comes after belongs to it too: a brace that is not closed
            at = min(line - start, len(operation)) or 1
            return f"line {at} of the operation", (operation or [""])[at - 1], at
        at = line - self._starts["preamble"]
        if at > 0:
            lines = self._parts["preamble"] or [""]
            at = min(at, len(lines))
            return f"line {at} of the preamble", lines[at - 1], at
        return "parameters", ", ".join(map(str, self._parameters)), 0


class _HipSource(_Source):
    """The same in HIP C++."""

    def _write(self, parameters: list[Parameter], preamble: str, operation: str) -> None:
        arrays = [each for each in parameters if each.mode]
        numbers = [Parameter("", "uint32", "n"), *(each for each in parameters if not each.mode)]
        self.signature = ", ".join(map(str, [*arrays, *numbers]))
        declared = [
            f"{'const ' if mode == 'in' else ''}{_hip_type(type_)} *{name}"
            for mode, type_, name in arrays
        ]
        declared += [
            f"{'bool' if type_ == 'bool' else _hip_type(type_)} {name}"
            for _, type_, name in numbers
        ]
        self._add("preamble", preamble)
        self._lines.append(_HIP_HEAD.format(parameters=", ".join(declared)))
        self._add("operation", operation)
        self.text = "\n".join(self._lines) + _HIP_END


def _hip_type(name: str) -> str:
    """What HIP C++ calls an element, without any header."""
    plain = {
        "float16": "_Float16",
        "float32": "float",
        "float64": "double",
        "bool": "unsigned char",
    }
    if name in plain:
        return plain[name]
    words = {"8": "char", "16": "short", "32": "int", "64": "long long"}
    return ("unsigned " if name[0] == "u" else "signed ") + words[name.lstrip("uint")]


def _parse(name: str, text: str) -> list[Parameter]:
    """Parameters from text like `in float32 x, out float32 y, float32 a`."""
    parameters: list[Parameter] = []
    for part in text.split(","):
        words = part.split()
        mode = words.pop(0) if words and words[0] in _QUALIFIERS else ""
        if len(words) != 2:
            raise InvalidValue(
                f"{name}: {part.strip()!r} is not a parameter; write 'in float32 x' (or out, "
                "inout) for an array and 'float32 a' for a number, with commas between them"
            )
        parameter = Parameter(mode, *words)
        _check_parameter(name, parameter)
        if parameter.name in {each.name for each in parameters}:
            raise InvalidValue(f"{name}: two parameters are called {parameter.name!r}")
        parameters.append(parameter)
    if not any(each.mode for each in parameters):
        raise InvalidValue(
            f"{name}: no array among the parameters {text!r}; an array has in, out or inout"
        )
    return parameters


def _check_parameter(name: str, parameter: Parameter) -> None:
    if parameter.type not in _TYPES:
        raise InvalidValue(
            f"{name}: {str(parameter)!r} has the unknown dtype {parameter.type!r}; there are "
            f"{', '.join(_TYPES)}"
        )
    called = parameter.name
    if not re.fullmatch(r"[A-Za-z_]\w*", called, re.ASCII):
        raise InvalidValue(f"{name}: {called!r} in {str(parameter)!r} is not a name")
    why = _RESERVED.get(called)
    if called in _GLSL_WORDS:
        why = "is a word of GLSL"
    elif keyword.iskeyword(called):
        why = "is a word of Python"
    elif called.startswith(("gl_", "penstock_", "parameter_")) or "__" in called:
        why = "starts or reads like names of GLSL's or Penstock's own"
    if why:
        raise InvalidValue(f"{name}: a parameter cannot be called {called!r}, which {why}")


def _flat(parameters: list[Parameter], reference: Reference) -> Reference:
    """The reference with the arrays and numbers as they were declared, and nothing else."""

    def run(**given: Any) -> None:
        reference(
            **{
                name: given[name].view(type_) if mode else np.dtype(type_).type(given[name])
                for mode, type_, name in parameters
            }
        )

    return run


_RESERVED = {
    "i": "is the index of the element",
    "n": "is the number of elements",
    "stream": "a call uses for itself",
    "threads": "a call uses for itself",
    "groups": "a call uses for itself",
    "MISSING": "a call uses for itself",
    "main": "is the kernel itself",
}

_GLSL_WORDS = frozenset(
    """
    active asm atomic_uint attribute bool break buffer bvec2 bvec3 bvec4 case cast centroid class
    coherent common const continue default discard dmat2 dmat3 dmat4 do double dvec2 dvec3 dvec4
    else enum extern external false filter fixed flat float for fvec2 fvec3 fvec4 goto half highp
    hvec2 hvec3 hvec4 if in inline inout input int int16_t int32_t int64_t int8_t interface
    invariant ivec2 ivec3 ivec4 layout long lowp mat2 mat3 mat4 mediump namespace noinline
    noperspective out output packed partition patch precise precision public readonly resource
    restrict return sample sampler sampler1D sampler2D sampler3D shared short sizeof smooth static
    struct subroutine superp switch template this true typedef uint uint16_t uint32_t uint64_t
    uint8_t uniform union unsigned using uvec2 uvec3 uvec4 varying vec2 vec3 vec4 void volatile
    while writeonly float16_t float32_t float64_t
    """.split()  # noqa: SIM905
)
