"""The GLSL of elementwise kernels: one text for every function of a family and every dtype.

A text computes in one compute type. Which function it computes, and the dtypes of its operands, are
specialization constants, so a few texts serve all functions. An invocation computes units of a few
elements (`unit_elements`), which it stores side by side: one unit, or with LOOP as many as it
takes, while its group walks a span of neighbouring units. With WIDE it stores 16 bytes at a time.
There are two ways to load the operands of a unit:

- *flat*: every operand is contiguous and of the compute type's size, so that a unit is one load of
  a word, a vector or two. Operands start at whole units. Texels allow another start, A_SHIFT bytes
  after the first texel's: a unit is then taken out of neighbouring texels.
- *strided*: operands of any dtype and strides, up to `MOST_AXES` axes. If the innermost axis holds
  whole units (WHOLE), the place of a unit is found once, and the words of an operand that is
  contiguous there (bits of ADJACENT) are loaded together; otherwise each element is found alone.

An operand may be a number instead (bits of NUMBERS), which travels among the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.ops.arithmetic import FUNCTIONS, REAL_OF, TYPES, Compute, Function
from penstock.ops.elements import SOURCES, Abilities, decoder, encoder, every_ability, words

MOST_AXES = 6

_COSTLY = frozenset(
    {
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "exp2",
        "expm1", "hypot", "log", "log10", "log1p", "log2", "logaddexp", "pow", "sin", "sinh", "tan",
        "tanh",
    }
)  # fmt: skip
_NUMBER = {name: number for number, name in enumerate(FUNCTIONS)}


class Family(NamedTuple):
    """Functions that share a text: as many operands, and of a similar size."""

    operands: int
    costly: bool = False
    condition: bool = False  # as `Function.condition`
    cast: bool = False  # converts elements to any dtype

    @classmethod
    def of(cls, function: Function) -> Family:
        return cls(function.operands, function.name in _COSTLY, function.condition)

    def functions(self, compute: Compute) -> list[Function]:
        """Its functions that are defined for a compute type."""
        if self == CAST:
            return [FUNCTIONS["positive"]]
        return [f for f in FUNCTIONS.values() if Family.of(f) == self and f.takes(compute)]


CAST = Family(1, cast=True)


class Text(NamedTuple):
    """What a text depends on."""

    family: Family
    compute: Compute
    flat: int  # bytes of an element of flat operands; 0 if they are strided
    abilities: Abilities
    texels: bool = False  # operands are texel buffers, in `texel_format`s


def unit_elements(family: Family, flat: int, *, texels: bool) -> int:
    """The elements of a unit: four, or as many small ones as 16 bytes hold.

    The large unit is for texels, which drivers for CPUs load: others combine neighbouring loads.
    """
    small = texels and flat in (1, 2) and not family.costly and not family.cast
    return 16 // flat if small else 4


def operation_number(name: str) -> int:
    """The value of the constant OPERATION for a function."""
    return _NUMBER[name]


def loops(function: Function | None, compute: Compute) -> bool:
    """Whether an invocation computes many units: cheap ones, for which a group costs too much.

    A function of many branches runs without the loop: SwiftShader takes minutes to compile a loop
    around one.
    """
    if function is None:
        return compute not in ("i64", "u64", *REAL_OF)
    return function.name not in (*_COSTLY, "floor_divide", "remainder") and compute not in REAL_OF


def constant_ids(family: Family) -> dict[str, int]:
    """The ids of a text's specialization constants, by name."""
    general = (
        "OPERATION", "NUMBERS", "OUT_DTYPE", "OUT_SIZE", "AXES", "WHOLE", "ADJACENT", "LOOP",
        "WIDE",
    )  # fmt: skip
    names = "ABC"[: family.operands]
    own = (f"{name}_{what}" for name in names for what in ("DTYPE", "SIZE", "SHIFT"))
    return {name: number for number, name in enumerate((*general, *own), 1)}


def write(text: Text) -> str:
    """The GLSL of a text."""
    family, compute = text.family, text.compute
    mixed = not text.flat and not family.cast
    sources = text.abilities.those_of(SOURCES[compute]) if mixed else (compute,)
    results = {compute} if family == CAST else {f.returns(compute) for f in _functions(text)}
    targets = text.abilities.those_of(TYPES) if family == CAST else tuple(sorted(results))
    names = "abc"[: family.operands]
    lines = [
        "layout(local_size_x_id = 0) in;",
        *(
            f"layout(constant_id = {number}) const int {name} = 0;"
            for name, number in constant_ids(family).items()
        ),
        words(texels=text.texels),
        *(decoder(compute, sources, name) for name in _typed(text, names)),
        *(
            encoder(result, targets if family == CAST else (result,), f"encode_{result}")
            for result in sorted(results)
        ),
        _operation(text, names),
        *(_flat_main(text, names) if text.flat else _strided_main(text, names)),
    ]
    body = "\n".join(lines) + "\n"
    return text.abilities.library(body, {*sources, *targets, compute}) + body


def _functions(text: Text) -> list[Function]:
    return text.family.functions(text.compute)


def _operation(text: Text, names: str) -> str:
    """The function `computed`: the bits of one element of the result."""
    kind = TYPES[text.compute]
    parameters = [
        f"{'bool' if name == 'a' and text.family.condition else kind} {name}" for name in names
    ]
    head = f"uvec4 computed({', '.join(parameters)}) {{"
    if text.family == CAST:
        return f"{head} return encode_{text.compute}(a); }}"
    cases = [
        f"    case {_NUMBER[f.name]}: return encode_{f.returns(text.compute)}"
        f"({f.expression(text.compute)});"
        for f in _functions(text)
    ]
    return "\n".join(
        (head, "    switch (OPERATION) {", *cases, "    }", "    return uvec4(0u);", "}")
    )


# Arguments.


def _numbers(names: str) -> Iterator[str]:
    """Members of the push constants: the numbers that stand for operands."""
    for name in ("number", "third")[: max(1, len(names) - 1)]:
        yield from (f"uint {name}_{part};" for part in range(4))


def _number_of(name: str) -> str:
    which = "third" if name == "c" else "number"
    return f"uvec4({', '.join(f'{which}_{part}' for part in range(4))})"


def _of_numbers(text: Text, names: str) -> Iterator[str]:
    """Variables of the operands that are numbers."""
    for name in _typed(text, names):
        yield (f"    {TYPES[text.compute]} {name}_number = decode_{name}({_number_of(name)});")


def _typed(text: Text, names: str) -> str:
    """The operands that are of the compute type: all but a condition."""
    return names[1:] if text.family.condition else names


def _operand(text: Text, names: str, name: str, bits: str) -> str:
    if text.family.condition and name == "a":
        return f"(({bits}).x & 0xFFu) != 0u"
    bit = 1 << names.index(name)
    return f"(NUMBERS & {bit}) != 0 ? {name}_number : decode_{name}({bits})"


# The loop, and the stores.

_MAIN = """
void main() {
    uint units = (count + UNITu - 1u) / UNITu;
    uint lane = gl_LocalInvocationID.x, lanes = gl_WorkGroupSize.x;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    switch (LOOP) {
    case 0: {
        uint at = group * lanes + lane;
        if (at < units) unit(at);
        break;
    }
    case 1: {
        uint span = (units + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x;
        uint end = min(group * span + span, units);
        for (uint at = group * span + lane; at < end; at += lanes) unit(at);
        break;
    }
    }
}"""


def _main(elements: int) -> str:
    return _MAIN.replace("UNIT", str(elements))


def _store(text: Text, elements: int) -> Iterator[str]:
    """Stores the unit r0, r1, …: whole words, the last of which may have padding, or 16 bytes."""
    sizes = _result_sizes(text)
    yield f"        uint word = first + at * uint({elements // 4} * OUT_SIZE);"
    yield "        uint last = first + (count * uint(OUT_SIZE) + 3u) / 4u;"
    yield "        switch (WIDE) {"
    yield "        case 0: {"
    for size in sizes:
        yield f"            if (OUT_SIZE == {size}) {{"
        for place, bits in enumerate(_result_words(elements, size)):
            condition = f"if (word + {place}u < last) " if place else ""
            yield f"                {condition}out_words[word + {place}u].bits = {bits};"
        yield "            }"
    yield "            break;"
    yield "        }"
    yield "        case 1: {"
    for size in sizes:
        parts = _result_words(elements, size)
        yield f"            if (OUT_SIZE == {size}) {{"
        for place in range(len(parts) // 4):
            vector = ", ".join(parts[4 * place : 4 * place + 4])
            yield f"                out_vectors[word / 4u + {place}u].bits = uvec4({vector});"
        yield "            }"
    yield "            break;"
    yield "        }"
    yield "        }"
    yield "}"


def _result_words(elements: int, size: int) -> list[str]:
    """The words of a unit of results that take `size` bytes each."""
    if size >= 4:
        return [f"r{each}.{'xyzw'[part]}" for each in range(elements) for part in range(size // 4)]
    each_word = 4 // size
    return [
        " | ".join(f"r{first + k}.x << {8 * size * k}" for k in range(each_word))
        for first in range(0, elements, each_word)
    ]


def _result_sizes(text: Text) -> list[int]:
    """The sizes of the results that a text may store: from flat operands no larger ones."""
    if text.family == CAST:
        return [1, 2, 4, 8, 16]
    results = {f.returns(text.compute) for f in _functions(text)}
    sizes = {size for result in results for size in _SIZES[result]}
    return sorted(size for size in sizes if size <= (text.flat or size))


def _interface(text: Text, names: str, kinds: dict[str, str], more: Iterator[str]) -> Iterator[str]:
    for index, name in enumerate(names):
        block = f"readonly buffer {name.upper()} {{ {kinds[name]} {name}[]; }}"
        bound = f"uniform usamplerBuffer {name}" if text.texels else block
        yield f"layout(binding = {index}) {bound};"
    out = f"layout(binding = {len(names)}) writeonly buffer"
    yield "struct Vector { uvec4 bits; };"
    yield f"{out} Out {{ Word out_words[]; }};"
    yield f"{out} Wide {{ Vector out_vectors[]; }};"
    yield "layout(push_constant) uniform Arguments {"
    yield "    uint count;"
    yield "    uint first;  // word of the output"
    yield from more
    yield from (f"    {each}" for each in _numbers(names))
    yield "};"


# Flat.

_UNITS = {1: "uint bits", 2: "uvec2 bits", 4: "uvec4 bits", 8: "uvec4 bits[2]", 16: "uvec4 bits[4]"}


def texel_format(nbytes: int) -> str:
    """The format of an operand: a texel has a unit's bytes, or 16 of them; a word if strided."""
    return {0: "r32ui", 4: "r32ui", 8: "rg32ui"}.get(nbytes, "rgba32ui")


def _flat_main(text: Text, names: str) -> Iterator[str]:
    elements = unit_elements(text.family, text.flat, texels=text.texels)
    sizes = {name: 1 if name == "a" and text.family.condition else text.flat for name in names}
    for size in sorted({*sizes.values()}):
        yield f"struct Unit{size} {{ {_UNITS[size]}; }};"
    kinds = {name: f"Unit{size}" for name, size in sizes.items()}
    yield from _interface(text, names, kinds, iter(()))
    yield "void unit(uint at) {"
    yield from _of_numbers(text, names)
    found: dict[str, list[str]] = {}
    for name in names:
        load = _texels_of_unit if text.texels else _struct_of_unit
        lines, found[name] = load(name, sizes[name], elements)
        yield from (f"        {line}" for line in lines)
    for element in range(elements):
        operands = ", ".join(
            _operand(text, names, name, _element(sizes[name], found[name], element))
            for name in names
        )
        yield f"        uvec4 r{element} = computed({operands});"
    yield from _store(text, elements)
    yield _main(elements)


def _struct_of_unit(name: str, size: int, elements: int) -> tuple[list[str], list[str]]:
    """The lines that load the unit at `at` from a buffer of units, and its words."""
    parts = {1: [""], 2: [".x", ".y"], 4: [f".{c}" for c in "xyzw"]}.get(
        size, [f"[{k // 4}].{'xyzw'[k % 4]}" for k in range(size)]
    )
    return [f"Unit{size} {name}_unit = {name}[at];"], [f"{name}_unit.bits{part}" for part in parts]


def _texels_of_unit(name: str, size: int, elements: int) -> tuple[list[str], list[str]]:
    """The lines that load the unit at `at` from a texel buffer, and its words.

    A unit that is shifted begins in the middle of a texel, and ends in another.
    """
    words = elements * size // 4
    count = max(1, words // 4)
    lines = [
        f"uvec4 {name}_{k} = texelFetch({name}, int({count}u * at + {k}u));" for k in range(count)
    ]
    bits = [f"{name}_{k // 4}.{'xyzw'[k % 4]}" for k in range(words)]
    if words < 4:
        return lines, bits
    shift, last = f"{name.upper()}_SHIFT", f"uint(textureSize({name})) - 1u"
    next_one = f"texelFetch({name}, int(min({count}u * at + {count}u, {last})))"
    bits += [f"{name}_next.{c}" for c in "xyzw"]
    lines += [
        f"uvec4 {name}_next = uvec4(0u);",
        f"if ({shift} != 0) {name}_next = {next_one};",
        f"uint {name}_loaded[] = uint[]({', '.join(bits)});",
        f"const int {name}_skip = {shift} / 4, {name}_cut = {shift} % 4 * 8;",
    ]
    for k in range(words):
        low, high = (f"{name}_loaded[{name}_skip + {at}]" for at in (k, k + 1))
        lines += [
            f"uint {name}_word_{k} = {low} >> {name}_cut;",
            f"if ({name}_cut != 0) {name}_word_{k} |= {high} << (32 - {name}_cut);",
        ]
    return lines, [f"{name}_word_{k}" for k in range(words)]


def _element(size: int, words: list[str], element: int) -> str:
    """The bits of one of the elements of a unit, as a uvec4."""
    if size < 4:
        each_word = 4 // size
        shift = 8 * size * (element % each_word)
        return f"uvec4({words[element // each_word]} >> {shift}u, 0u, 0u, 0u)"
    count = size // 4
    parts = [*words[element * count : element * count + count], "0u", "0u", "0u"]
    return f"uvec4({', '.join(parts[:4])})"


# Strided.

_OVER = """
uint over(uint i, uint inverse, int axis) {
    uint high, low;
    umulExtended(i, inverse, high, low);
    return high >> bitfieldExtract(shifts, 5 * axis, 5);
}"""


def _strided_main(text: Text, names: str) -> Iterator[str]:
    yield from _interface(text, names, dict.fromkeys(names, "Word"), _steps(names))
    yield _OVER
    passed = "".join(f", {TYPES[text.compute]} {name}_number" for name in _typed(text, names))
    for name in names:
        yield from _place(name)
    yield f"uvec4 single(uint i{passed}) {{"
    operands = ", ".join(
        _operand(text, names, name, f"RAW({name}, {name}_place(i), {name.upper()}_SIZE)")
        for name in names
    )
    yield f"    return computed({operands});"
    yield "}"
    yield "void unit(uint at) {"
    yield from _of_numbers(text, names)
    yield "        uvec4 r0, r1, r2, r3;"
    yield "        if (WHOLE != 0) {"
    for name in names:
        yield f"            uvec4 {name}0, {name}1, {name}2, {name}3;"
        yield f"            uint {name}_byte = {name}_place(4u * at);"
        yield f"            if ((ADJACENT & {1 << names.index(name)}) != 0) {{"
        yield f"                UNIT({name}, {name}_byte, {name.upper()}_SIZE)"
        yield "            } else {"
        for element in range(4):
            step = f"uint({name}_step_0) * min({element}u, count - 1u - 4u * at)"
            yield (
                f"                {name}{element} = RAW({name}, {name}_byte + {step}, "
                f"{name.upper()}_SIZE);"
            )
        yield "            }"
    for element in range(4):
        operands = ", ".join(_operand(text, names, name, f"{name}{element}") for name in names)
        yield f"            r{element} = computed({operands});"
    yield "        } else {"
    given = "".join(f", {name}_number" for name in _typed(text, names))
    for element in range(4):
        yield f"            r{element} = single(min(4u * at + {element}u, count - 1u){given});"
    yield "        }"
    yield from _store(text, 4)
    yield _main(4)


def _steps(names: str) -> Iterator[str]:
    """Members of the push constants: the axes, and where operands start and step."""
    yield from (f"    uint size_{axis}; uint inverse_{axis};" for axis in range(MOST_AXES - 1))
    yield "    uint shifts;  // five bits for each inverse"
    for name in names:
        yield f"    uint {name}_at;"
        yield from (f"    int {name}_step_{axis};" for axis in range(MOST_AXES))


def _place(name: str) -> Iterator[str]:
    """The function that finds the byte of an operand's element."""
    yield f"uint {name}_place(uint i) {{"
    yield f"    uint place = {name}_at, rest = i, more;"
    for axis in range(MOST_AXES - 1):
        yield f"    if (AXES > {axis + 1}) {{"
        yield f"        more = over(rest, inverse_{axis}, {axis});"
        yield f"        place += (rest - more * size_{axis}) * uint({name}_step_{axis});"
        yield "        rest = more;"
        yield "    }"
    last = "".join(f"AXES == {k + 1} ? {name}_step_{k} : " for k in range(MOST_AXES - 1))
    yield f"    return place + rest * uint({last}{name}_step_{MOST_AXES - 1});"
    yield "}"


# Every text that a wheel carries.

_SIZES: dict[Compute, tuple[int, ...]] = {
    "b": (1,), "i32": (1, 2, 4), "u32": (1, 2, 4), "i64": (8,), "u64": (8,), "f32": (2, 4),
    "f64": (8,), "c64": (8,), "c128": (16,),
}  # fmt: skip


def every_text() -> Iterator[str]:
    """The GLSL of every elementwise kernel on every known class of devices, once each."""
    seen: set[str] = set()
    families = {Family.of(function): None for function in FUNCTIONS.values()}
    for abilities in every_ability():
        for family in (*families, CAST):
            for compute in abilities.those_of(_SIZES):
                if not family.functions(compute):
                    continue
                for flat in (*_SIZES[compute], 0):
                    # Drivers for CPUs that view enough texels have every type.
                    for texels in (False, True)[: 1 + abilities.float64]:
                        text = write(Text(family, compute, flat, abilities, texels))
                        if text not in seen:
                            seen.add(text)
                            yield text
