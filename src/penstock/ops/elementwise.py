"""Elementwise kernels, generated from one line of GLSL.

`dev.elementwise("y[i] = a * x[i] + y[i]", "in float32 x, inout float32 y, float32 a")` generates
the rest of the kernel: the bindings, the push constants, and a grid-stride loop, so that any number
of elements fits any number of groups.

As for a kernel, `__call__` is generated as Python source for its parameters, which makes calls
fast.
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
from penstock.launch.checks import check_array
from penstock.launch.kernel import Kernel
from penstock.shader.signature import parse
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.driver.protocol import Reference

#: The default of every argument: not given.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "(not given)"})()

_ARITHMETIC = "GL_EXT_shader_explicit_arithmetic_types_"

#: By dtype name: the GLSL type of an element, and the extension that it needs.
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
_CPU_GROUPS = 64  # on a CPU driver a group costs more than an iteration of the loop

#: Most elements per invocation: lavapipe ends an invocation's loops after 65,535 iterations in all.
_MOST_EACH = 60_000
_LOOP = re.compile(r"\b(for|while|do)\b")

#: What follows the user's text. A loop on `i < n` could overflow at its last step; `more` cannot.
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

#: What surrounds the user's text in HIP C++. The head is one line, so that line numbers of errors
#: can be mapped back.
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
    if {without}:
        penstock_self._explain_numbers({numbers})
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

    Call it with its parameters, in order or by name, and optionally `stream=`. All arrays must have
    the same shape. NumPy arrays are copied to the device, and back if written. An `out` array that
    is left out is allocated. The call returns the `out` array, or a tuple if there are several.
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
        source = _SOURCES[device.scheduler.driver.language](self.parameters, preamble, operation)
        flat = None if reference is None else _flat(self.parameters, reference)
        try:
            self.kernel = Kernel(device, source.form(self.name, local), flat)
        except CompileError as error:
            if not hasattr(error, "errors"):
                raise
            raise source.explain(self.name, error) from None
        self._outputs = {each.name: each for each in self.kernel.parameters if each.writes}
        groups = _most(device, "group_count")[0]
        # A loop in the operation would count towards the same iteration limit (see `_MOST_EACH`).
        if device.info.kind == "cpu" and not _LOOP.search(f"{preamble}\n{operation}"):
            groups = _CPU_GROUPS
        call = _make_call(self, groups * local)
        doc = f"{self.signature}\n\n{operation.strip()}\n\n{Elementwise.__doc__}"
        self.__class__ = type("Elementwise", (type(self),), {"__call__": call, "__doc__": doc})

    def __call__(self, *arguments: Any, stream: Any = None, **named: Any) -> Any:
        """Launch the operation on every element, in stream order. Blocks only as a kernel does."""
        raise AssertionError("replaced when the operation was made")

    @property
    def signature(self) -> str:
        """Its name and parameters, as text."""
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    def close(self) -> None:
        """Free the program once launches in flight are complete. Safe to call twice."""
        self.kernel.close()

    @property
    def closed(self) -> bool:
        return self.kernel.closed

    def __repr__(self) -> str:
        return f"<Elementwise {self.signature}: {' '.join(self.operation.split())}>"

    # The slow paths of a call.

    def _make(self, parameter: Parameter, shape: tuple[int, ...], stream: Any) -> Array:
        """An output, checked and bound here: a launch with it is none with a new array."""
        made = self.device.new_result(shape, parameter.dtype, stream)
        if made.size:
            with self.kernel.scheduler.lock:
                check_array(self.kernel, self._outputs[parameter.name], made, {})
                made.bind()
        return made

    def _explain_names(self, more: tuple[Any, ...], unknown: dict[str, Any]) -> NoReturn:
        what = f"no argument {', '.join(map(repr, sorted(unknown)))}" if unknown else ""
        if more:
            what = f"{len(more)} too many arguments"
        raise ArgumentError(f"{self.name}: {what}. Its signature: {self.signature}")

    def _explain_numbers(self, given: dict[str, Any]) -> NoReturn:
        missing = ", ".join(repr(name) for name, number in given.items() if number is MISSING)
        raise ArgumentError(f"{self.name}: {missing} is missing. Its signature: {self.signature}")

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
        """Check device and dtype of arrays without elements, which are not bound to the kernel."""
        self._explain_arrays(given)
        for parameter, array in zip(self._arrays, given, strict=True):
            if isinstance(array, Array) and array.device is not self.kernel.device:
                raise ArgumentError(
                    f"{self.name}: argument {parameter.name!r} is on {array.device}, the kernel on "
                    f"{self.kernel.device}; copy it to that device"
                )
            bound = np.dtype(np.uint8) if parameter.type == "bool" else parameter.dtype
            if not same_bytes(array.dtype, bound):
                raise DtypeMismatch(
                    f"{self.name}: argument {parameter.name!r} must be {parameter.type}, "
                    f"not {array.dtype}"
                )


def _most(device: Device, limit: str) -> tuple[int, ...]:
    value = device.info.limits[limit]
    return value[:1] if isinstance(value, tuple) else (value,)


def _make_call(made: Elementwise, most: int) -> Callable[..., Any]:
    """Generate `__call__`, with one Python parameter for each of the operation's."""
    arrays = [each.name for each in made.parameters if each.mode]
    numbers = [each.name for each in made.parameters if not each.mode]
    outputs = [each.name for each in made.parameters if each.mode == "out"]
    given = [name for name in arrays if name not in outputs]
    # If every array is `out`, the first one that is given determines the shape.
    first = given[0] if given else f"penstock_given({', '.join(outputs)})"
    makes = [
        f"if {name} is MISSING: "
        f"{name} = penstock_self._make(parameter_{name}, penstock_shape, stream)"
        for name in outputs
    ]
    source = _CALL.format(
        parameters=", ".join(f"{each.name}=MISSING" for each in made.parameters),
        first=first,
        one=arrays[0],
        make="\n        ".join(makes) or "pass",
        without=" or ".join(f"{name} is MISSING" for name in numbers) or "False",
        numbers="{" + ", ".join(f"{name!r}: {name}" for name in numbers) + "}",
        differ=" or ".join(f"{name}.shape != penstock_shape" for name in arrays),
        arrays=", ".join(arrays),
        arguments=", ".join(
            # `struct` packs Python's bool, but not NumPy's.
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
    # The file name lies in this package, so that receipts skip the frame to find the user's line.
    exec(compile(source, f"{Path(__file__).parent}/<call of {made.name}>", "exec"), scope)
    call: Callable[..., Any] = scope["__call__"]
    return call


class _Source:
    """The GLSL source of an operation, and which of its lines the user wrote."""

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

    def form(self, name: str, group_size: int) -> KernelSource:
        """The complete kernel source, for groups of this size."""
        return KernelSource(self.text, name, constants={"local_size_x": group_size})

    def _add(self, part: str, text: str) -> None:
        self._parts[part] = text.splitlines()
        self._starts[part] = len(self._lines)
        self._lines += self._parts[part]

    def explain(self, name: str, error: CompileError) -> CompileError:
        """Translate a compile error to the lines that the user wrote."""
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
        if line > start:  # errors after the text count too: an unclosed brace
            at = min(line - start, len(operation)) or 1
            return f"line {at} of the operation", (operation or [""])[at - 1], at
        at = line - self._starts["preamble"]
        if at > 0:
            lines = self._parts["preamble"] or [""]
            at = min(at, len(lines))
            return f"line {at} of the preamble", lines[at - 1], at
        return "parameters", ", ".join(map(str, self._parameters)), 0


class _HipSource(_Source):
    """The HIP C++ source of an operation, and which of its lines the user wrote."""

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

    def form(self, name: str, group_size: int) -> KernelSource:
        return KernelSource(self.text, name, signature=self.signature, group_size=group_size)


#: By the kernel language of a driver.
_SOURCES: dict[str, type[_Source]] = {"spirv": _Source, "hip": _HipSource}


def _hip_type(name: str) -> str:
    """The HIP C++ type of an element; a type that needs no header."""
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
    """Parse parameters such as `in float32 x, out float32 y, float32 a`."""
    parameters = []
    for mode, dtype, called, shape in parse(text, name):
        if dtype is None or shape:
            raise InvalidValue(
                f"{name}: {called!r} is not an array of numbers or a number; write 'in float32 x' "
                "(or out, inout) for an array and 'float32 a' for a number"
            )
        parameter = Parameter(mode, dtype.name, called)
        _check_name(name, parameter)
        parameters.append(parameter)
    if not any(each.mode for each in parameters):
        raise InvalidValue(
            f"{name}: no array among the parameters {text!r}; an array has in, out or inout"
        )
    return parameters


def _check_name(name: str, parameter: Parameter) -> None:
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
    """Wrap the reference so that it gets only the declared arrays and numbers."""

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
