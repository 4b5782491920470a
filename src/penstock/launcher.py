"""The call of a kernel, written out for its signature.

A launch costs microseconds of interpreter time, most of it in looking up what is the same every
time. So each kernel gets a function of its own, made from the template below as `dataclasses` and
`namedtuple` make theirs: named parameters (which `help` and tab completion then show), one line of
checks per array, one `pack_into` for all scalars. `benchmarks launch` shows what it buys.

The function only checks and gathers. What conflicts with what is decided in `Stream.begin`, and
what a failed check means is said by `Kernel`.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import tracing
from penstock.array import Array
from penstock.driver.protocol import Program

if TYPE_CHECKING:
    from penstock.kernel import Kernel, Slot

#: The default of every argument: not given.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "(not given)"})()

_FUNCTION = """
def __call__(self, *, {parameters}stream=None, threads=None, groups=None, **unknown):
    {odd_names}
    if unknown:
        self._explain_names(unknown, {given})
    counts = counts_of.get(threads) if groups is None and type(threads) is int else None
    if counts is None:
        counts = self._groups(threads, groups)
    with scheduler.lock:
        if scheduler.closed or scheduler.lost is not None or self._closed:
            self._explain_closed()
        if stream is None:
            stream = device.default_stream
        elif getattr(stream, "scheduler", None) is not scheduler or stream.closed:
            self._explain_stream(stream)
        {arrays}
        {scalars}
        if not counts[0]:
            return
        uses = ({uses})
        stream.begin(uses).dispatch(program, ({flat}), counts)
        if tracing.active:
            tracing.emit("launch", f"{{self.name}} in {{counts}} groups")
        stream.note(uses, what)
"""

_ARRAY = """
        if type({0}) is not Array or wants_{1} not in {0}.accepted:
            self._check_array(slot_{1}, {0}, {given})
        buffer = {0}.buffer
        backing_{1} = buffer.backing
        if buffer.closed or backing_{1}.views:
            backing_{1} = self._backing(slot_{1}, {0}, stream)
"""

_SCALARS = """
        try:
            if {arrays}:
                raise TypeError
            pack_into(push, 0, {values})
        except Exception:
            self._explain_scalars({given})
            raise
"""


def make_launch(
    kernel: Kernel, slots: list[Slot], members: list[str], pack_into: Callable[..., None]
) -> Callable[..., None]:
    """The `__call__` of a kernel with these array slots and scalar members."""
    names = [slot.name for slot in slots] + members
    variables = {name: _variable(number, name) for number, name in enumerate(names)}
    plain = [name for name in names if variables[name] == name]
    given = "{" + ", ".join(f"{name!r}: {variables[name]}" for name in names) + "}"
    numbered = list(enumerate(slots))
    source = _FUNCTION.format(
        parameters="".join(f"{name}=MISSING, " for name in plain),
        odd_names="; ".join(
            f"{variables[name]} = unknown.pop({name!r}, MISSING)"
            for name in names
            if name not in plain
        )
        or "pass",
        given=given,
        arrays="".join(
            _ARRAY.format(variables[slot.name], number, given=given) for number, slot in numbered
        ).strip()
        or "pass",
        scalars=_SCALARS.format(
            values=", ".join(variables[name] for name in members),
            arrays=" or ".join(f"type({variables[name]}) is Array" for name in members),
            given=given,
        ).strip()
        if members
        else "pass",
        uses="".join(
            f"(backing_{number}.history, {variables[slot.name]}.region, {slot.writes}), "
            for number, slot in numbered
        ),
        flat="".join(
            "backing_{0}.memory.handle, backing_{0}.offset + {1}.region.lo, {1}.nbytes, ".format(
                number, variables[slot.name]
            )
            for number, slot in numbered
        ),
    )
    program: Program = kernel.program
    scope: dict[str, Any] = {
        "Array": Array,
        "MISSING": MISSING,
        "counts_of": kernel.counts_of,
        "device": kernel.device,
        "pack_into": pack_into,
        "program": program,
        "push": program.push,
        "scheduler": kernel.scheduler,
        "tracing": tracing,
        "what": kernel.what,
        **{f"slot_{number}": slot for number, slot in numbered},
        **{f"wants_{number}": slot.wants for number, slot in numbered},
    }
    # Named as a file of this package, so that receipts look past it for the user's line.
    file = f"{Path(__file__).parent}/<launch of {kernel.name}>"
    exec(compile(source, file, "exec"), scope)
    launch: Callable[..., None] = scope["__call__"]
    return launch


def _variable(number: int, name: str) -> str:
    """What the function calls an argument: itself, unless Python would not have it."""
    taken = name in _TAKEN or name.startswith(("__", "argument_", "backing_", "slot_", "wants_"))
    if not name.isidentifier() or keyword.iskeyword(name) or taken:
        return f"argument_{number}"
    return name


#: Names that mean something else in the function.
_TAKEN = {
    "Array", "MISSING", "buffer", "counts", "counts_of", "device", "pack_into", "program", "push",
    "scheduler", "self", "tracing", "unknown", "uses", "what",
}  # fmt: skip
