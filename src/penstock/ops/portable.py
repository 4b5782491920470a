"""Kernels of whole arrays written once, for GLSL and for HIP C++.

A `Program` names a file of `shaders/` with the kernel's body, and declares its arrays (as 32-bit
words), numbers, constants and results. The body is in the words that both languages share:

- a function begins with `FN`, is defined before its use, and `FN void run()` is the kernel's;
- an array is `name[i].bits`; a number, and a constant, is its name; `RESULT(name)` is a result;
- `GROUP`, `GROUPS`, `LANE`, `LANES` say which invocation this is, and of how many;
- `MULHI(a, b)` is the high word of a product; `AND(place, v)`, `OR(place, v)` change a word
  atomically, and `SWAP(place, expected, v)` replaces it if it is as expected, and returns it;
- `REAL(bits)`, `BITS(real)` convert between float and its bits, `WIDE_REAL(low, high)`,
  `LOW_BITS(real)`, `HIGH_BITS(real)` between double and its words; `EXACT` in front of a variable
  keeps what is stored in it from being contracted; `uvec2(x, y)` is a pair of words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.launch.kernel import Kernel
from penstock.ops.word_texels import reads_texels
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device

SHADERS = Path(__file__).with_name("shaders")

#: Loop turns that an invocation takes at most; lavapipe ends its loops after 65,535.
MOST_TURNS = 32_768

_GROUPS = 512  # of a launch, unless its invocations would take too many turns

Access = Literal["in", "out", "inout"]

_QUALIFIERS = {"in": "readonly ", "out": "", "inout": ""}

_GLSL = """
#define FN
#define RESULT(name) name
#define GROUP gl_WorkGroupID.x
#define GROUPS gl_NumWorkGroups.x
#define LANE gl_LocalInvocationID.x
#define LANES gl_WorkGroupSize.x
#define AND(place, v) atomicAnd(place, v)
#define OR(place, v) atomicOr(place, v)
#define SWAP(place, expected, v) atomicCompSwap(place, expected, v)
#define REAL(bits) uintBitsToFloat(bits)
#define BITS(real) floatBitsToUint(real)
#define EXACT precise
#define WIDE_REAL(low, high) packDouble2x32(uvec2(low, high))
#define LOW_BITS(real) unpackDouble2x32(real).x
#define HIGH_BITS(real) unpackDouble2x32(real).y
uint MULHI(uint a, uint b) { uint high, low; umulExtended(a, b, high, low); return high; }
"""

_HIP = """
typedef unsigned int uint;
struct uvec2 {
    uint x, y;
    __device__ uvec2(uint a, uint b) : x(a), y(b) {}
    __device__ bool operator==(const uvec2 &b) const { return x == b.x && y == b.y; }
    __device__ bool operator!=(const uvec2 &b) const { return !(*this == b); }
};
struct Word { uint bits; };
#define FN __device__
#define RESULT(name) result->name
#define GROUP ((uint)blockIdx.x)
#define GROUPS ((uint)gridDim.x)
#define LANE ((uint)threadIdx.x)
#define LANES ((uint)blockDim.x)
#define AND(place, v) __atomic_fetch_and(&(place), v, __ATOMIC_RELAXED)
#define OR(place, v) __atomic_fetch_or(&(place), v, __ATOMIC_RELAXED)
static __device__ uint SWAP(uint &place, uint expected, uint v) {
    __atomic_compare_exchange_n(&place, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static __device__ float REAL(uint bits) { return __builtin_bit_cast(float, bits); }
static __device__ uint BITS(float real) { return __builtin_bit_cast(uint, real); }
#define EXACT volatile
static __device__ double WIDE_REAL(uint low, uint high) {
    return __builtin_bit_cast(double, (unsigned long long)high << 32 | low);
}
static __device__ uint LOW_BITS(double real) {
    return (uint)__builtin_bit_cast(unsigned long long, real);
}
static __device__ uint HIGH_BITS(double real) {
    return (uint)(__builtin_bit_cast(unsigned long long, real) >> 32);
}
static __device__ uint MULHI(uint a, uint b) { return (uint)((unsigned long long)a * b >> 32); }
static __device__ uint min(uint a, uint b) { return a < b ? a : b; }
static __device__ uint max(uint a, uint b) { return a > b ? a : b; }
"""


class Program:
    """The declaration of a kernel. All numbers are uint32, and so are the results."""

    def __init__(
        self,
        name: str,
        arrays: Mapping[str, Access],
        numbers: tuple[str, ...],
        constants: Mapping[str, int],
        *,
        returns: tuple[str, ...] = (),
        uses: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.arrays = arrays
        self.numbers = numbers
        self.constants = constants  # with their defaults
        self.returns = returns
        self._files = (*uses, name)

    @cached_property
    def _body(self) -> str:
        return "\n".join(_text(name) for name in self._files)

    @cached_property
    def glsl(self) -> str:
        return self._glsl(texels=False)

    @cached_property
    def texel_glsl(self) -> str:
        """The same with the arrays that it reads as texel buffers, of format r32ui."""
        return self._glsl(texels=True)

    @property
    def texel_formats(self) -> dict[str, str]:
        return {name: "r32ui" for name, access in self.arrays.items() if access == "in"}

    def _glsl(self, *, texels: bool) -> str:
        lines = ["layout(local_size_x_id = 0) in;", "struct Word { uint bits; };"]
        for place, (name, value) in enumerate(self.constants.items(), 1):
            lines.append(f"layout(constant_id = {place}) const int {name} = {value};")
        body = self._body
        for place, (name, access) in enumerate(self.arrays.items()):
            bound = f"{_QUALIFIERS[access]}buffer Words{place} {{ Word {name}[]; }}"
            if texels and access == "in":
                bound = f"uniform usamplerBuffer {name}"
                body = re.sub(
                    rf"\b{name}\[([^][]*)\]\.bits", rf"texelFetch({name}, int(\1)).x", body
                )
            lines.append(f"layout(binding = {place}) {bound};")
        numbers = " ".join(f"uint {name};" for name in self.numbers)
        lines.append(f"layout(push_constant) uniform Numbers {{ {numbers} }};")
        if self.returns:
            values = " ".join(f"uint {name};" for name in self.returns)
            lines.append(
                f"layout(binding = {len(self.arrays)}) writeonly buffer Result {{ {values} }};"
            )
        return "\n".join([*lines, _GLSL, body, "void main() { run(); }", ""])

    @cached_property
    def hip(self) -> str:
        """A struct whose members are what GLSL has as globals, so that the body is the same."""
        own = [
            f"{'const ' if access == 'in' else ''}Word *{name}"
            for name, access in self.arrays.items()
        ]
        own += [f"uint {name}" for name in self.numbers]
        lines = [_HIP]
        if self.returns:
            own.append("Result *result")
            values = " ".join(f"uint {name};" for name in self.returns)
            lines.append(f"struct Result {{ {values} }};")
        names = [each.rpartition(" ")[2].lstrip("*") for each in own]
        entry = f"penstock_{self.name}"  # C has functions of some of the names
        lines += [
            "struct Body {", *(f"    {each};" for each in own), self._body, "};",
            f'extern "C" __global__ void {entry}({", ".join(own)}) {{',
            f"    Body body{{{', '.join(names)}}};", "    body.run();", "}", "",
        ]  # fmt: skip
        return "\n".join(lines)

    @cached_property
    def signature(self) -> str:
        declared = [f"{access} bytes {name}" for name, access in self.arrays.items()]
        declared += [f"uint32 {name}" for name in self.numbers]
        arrow = f" -> {', '.join(f'uint32 {name}' for name in self.returns)}"
        return ", ".join(declared) + (arrow if self.returns else "")


@cache
def _text(name: str) -> str:
    return (SHADERS / f"{name}.glsl").read_text("utf-8")


class Programs:
    """The kernels of one device, made from programs when they are first wanted."""

    def __init__(self, device: Device) -> None:
        self.device = device
        info: Any = device.info
        self.on_cpu = info.kind == "cpu"
        #: Invocations per group: on a CPU, where barriers are slow, one subgroup.
        self.lanes = int(info.limits["subgroup_size"]) if self.on_cpu else 256
        self.lanes = min(self.lanes, int(info.limits["group_invocations"]))
        self.range = int(info.limits["binding_range"])
        self._texels = reads_texels(device)
        self._made: dict[Any, Kernel] = {}

    def kernel(
        self,
        program: Program,
        reference: Callable[..., None],
        called: str = "",
        /,
        **constants: int,
    ) -> Kernel:
        """The kernel of a program with some constants; `reference` gets them, too.

        `called` is its name on receipts, if not the program's.
        """
        called = called or program.name
        key = (program.name, called, *constants.values())
        found = self._made.get(key)
        if found is None:
            values = {**program.constants, **constants}

            def simulated(**arguments: Any) -> None:
                reference(**values, **arguments)

            found = Kernel.of_forms(
                self.device,
                simulated,
                spirv=KernelSource(
                    program.texel_glsl if self._texels else program.glsl, called, {},
                    {"local_size_x": self.lanes, **values},
                    formats=program.texel_formats if self._texels else {},
                ),
                hip=KernelSource(
                    program.hip, called, values, signature=program.signature,
                    group_size=self.lanes,
                ),
            )  # fmt: skip
            found = self._made.setdefault(key, found)
        return found

    def groups(self, count: int, turns: int = 1, least: int = 1) -> int:
        """The groups for `count` items, each of which takes an invocation `turns` loop turns.

        A group has at least `least` items for each invocation, and none has too many turns.
        """
        wanted = min(-(-count // (self.lanes * least)), _GROUPS)
        return max(1, wanted, -(-count * turns // (self.lanes * MOST_TURNS)))


def signed(number: int) -> int:
    """A number modulo 2^32, as kernels take strides and offsets."""
    return number & 0xFFFFFFFF
