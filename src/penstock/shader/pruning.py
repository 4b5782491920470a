"""Removes from SPIR-V the cases of a `switch` that a specialization constant rules out.

A text with many functions is compiled once; what a kernel does not use is removed before a driver
sees it. Drivers would do the same, but some take seconds for what takes milliseconds here.

The rules are few because the code comes from a compiler that does not optimise: a case of a
`switch` on a constant is a block of its own, and no value crosses its borders.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

Words = tuple[int, ...]

_NAME, _MEMBER_NAME, _ENTRY_POINT = 5, 6, 15
_FUNCTION, _FUNCTION_CALL = 54, 57
_VARIABLE, _STORAGE_BUFFER = 59, 12
_ACCESS_CHAIN, _IN_BOUNDS, _ARRAY_LENGTH = 65, 66, 68
_DECORATE, _MEMBER_DECORATE = 71, 72
_LABEL = 248
_SWITCH = 251
_SPEC_ID = 1
_CAPABILITY, _EXECUTION_MODE = 17, 16
_PRESERVE, _PRESERVED = 4466, 4461  # SignedZeroInfNanPreserve: the capability and the mode


def pruned(code: bytes, constants: Mapping[int, int], preserved: Iterable[int] = ()) -> bytes:
    """The module without what it does not use when its constants have these values, by SpecId.

    The driver is asked to keep NaN, infinities and signed zeros of floats of `preserved` widths.
    """
    header, instructions = code[:20], list(_instructions(code))
    known = {
        words[1]: constants[words[3]]
        for words in instructions
        if _op(words) == _DECORATE and words[2] == _SPEC_ID and words[3] in constants
    }
    first = next(i for i, words in enumerate(instructions) if _op(words) == _FUNCTION)
    before, functions = instructions[:first], _functions(instructions[first:])
    bodies = {body[0][2]: _decided(body, known) for body in functions}
    entry = next(words[2] for words in before if _op(words) == _ENTRY_POINT)
    kept = _called(entry, bodies)
    dropped = {
        result
        for body in functions
        for words in body
        if (result := _result_of(words))
    } - {
        result
        for name in kept
        for words in bodies[name]
        if (result := _result_of(words))
    }  # fmt: skip
    left = [words for body in functions if body[0][2] in kept for words in bodies[body[0][2]]]
    unused = _unused_buffers(before, left)
    dropped |= unused
    head = [
        _without(words, unused) if _op(words) == _ENTRY_POINT else words
        for words in before
        if not (_annotates(words) and words[1] in dropped)
        and not (_op(words) == _VARIABLE and words[2] in unused)
    ]
    _ask_to_preserve(head, entry, preserved)
    flat = [word for words in (*head, *left) for word in words]
    return header + struct.pack(f"<{len(flat)}I", *flat)


def _unused_buffers(before: list[Words], left: list[Words]) -> set[int]:
    """The storage buffers that none of the instructions left accesses."""
    buffers = {
        words[2] for words in before if _op(words) == _VARIABLE and words[3] == _STORAGE_BUFFER
    }
    accessed = {
        words[3] for words in left if _op(words) in (_ACCESS_CHAIN, _IN_BOUNDS, _ARRAY_LENGTH)
    }
    # A function that is passed a buffer accesses it by another id; compilers inline such calls.
    accessed.update(word for words in left if _op(words) == _FUNCTION_CALL for word in words[4:])
    return buffers - accessed


def _without(entry_point: Words, variables: set[int]) -> Words:
    """An entry point whose interface does not list these variables."""
    name_end = 3 + next(i for i, word in enumerate(entry_point[3:]) if word >> 24 == 0)
    kept = tuple(word for word in entry_point[name_end + 1 :] if word not in variables)
    words = entry_point[: name_end + 1] + kept
    return (len(words) << 16 | _ENTRY_POINT, *words[1:])


def _ask_to_preserve(head: list[Words], entry: int, widths: Iterable[int]) -> None:
    """Add the execution modes that keep special values of floats of some widths."""
    wanted = sorted(widths)
    if not wanted:
        return
    capabilities = sum(_op(words) == _CAPABILITY for words in head)
    head.insert(capabilities, (2 << 16 | _CAPABILITY, _PRESERVE))
    place = next(i for i, words in enumerate(head) if _op(words) == _EXECUTION_MODE)
    mode = 4 << 16 | _EXECUTION_MODE
    head[place:place] = [(mode, entry, _PRESERVED, width) for width in wanted]


def _instructions(code: bytes) -> Iterator[Words]:
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield words[at : at + length]
        at += length


def _op(words: Words) -> int:
    return words[0] & 0xFFFF


def _annotates(words: Words) -> bool:
    return _op(words) in (_NAME, _MEMBER_NAME, _DECORATE, _MEMBER_DECORATE)


def _functions(instructions: list[Words]) -> list[list[Words]]:
    found: list[list[Words]] = []
    for words in instructions:
        if _op(words) == _FUNCTION:
            found.append([])
        found[-1].append(words)
    return found


def _decided(body: list[Words], known: Mapping[int, int]) -> list[Words]:
    """A function whose switches on known constants have one case, without unreachable blocks.

    The `switch` itself stays: an inliner that meets a `return` in it leaves the function a call,
    without which SwiftShader takes a minute for some kernels.
    """
    start = next(i for i, words in enumerate(body) if _op(words) == _LABEL)
    blocks: dict[int, list[Words]] = {}
    for words in body[start:-1]:
        if _op(words) == _LABEL:
            blocks[words[1]] = []
            at = words[1]
        blocks[at].append(words)
    changed = False
    for block in blocks.values():
        last = block[-1]
        if _op(last) == _SWITCH and last[1] in known:
            value = known[last[1]]
            targets = dict(zip(last[3::2], last[4::2], strict=True))
            left_over = (value, targets[value]) if value in targets else ()
            block[-1] = (3 + len(left_over) << 16 | _SWITCH, *last[1:3], *left_over)
            changed = True
    if not changed:
        return body
    reached, left = set(), [next(iter(blocks))]
    while left:
        label = left.pop()
        if label not in reached:
            reached.add(label)
            left += _targets(blocks[label])
    kept = [words for label, block in blocks.items() if label in reached for words in block]
    return [*body[:start], *kept, body[-1]]


def _targets(block: list[Words]) -> Iterator[int]:
    """The blocks that a block leads to, and those that its structure needs."""
    for words in block[-2:]:
        match _op(words):
            case 246:  # OpLoopMerge: the merge block and the continue target
                yield from words[1:3]
            case 247 | 249:  # OpSelectionMerge, OpBranch
                yield words[1]
            case 250:  # OpBranchConditional
                yield from words[2:4]
            case 251:  # OpSwitch
                yield words[2]
                yield from words[4::2]


def _called(entry: int, bodies: Mapping[int, list[Words]]) -> set[int]:
    kept: set[int] = set()
    left = [entry]
    while left:
        name = left.pop()
        if name not in kept:
            kept.add(name)
            left += [words[3] for words in bodies[name] if _op(words) == _FUNCTION_CALL]
    return kept


def _result_of(words: Words) -> int:
    """The id that an instruction of a function may define; 0 if it is short."""
    if _op(words) == _LABEL:
        return words[1]
    return words[2] if len(words) > 2 else 0
