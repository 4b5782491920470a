"""The call of a kernel, written out for its signature.

A launch costs microseconds of interpreter time, most of it in looking up what is the same every
time. So each kernel gets a function of its own, made from the template below as `dataclasses` and
`namedtuple` make theirs: named parameters (which `help` and tab completion then show), one line of
checks per array, one `pack` for all scalars. `benchmarks launch` shows what it buys.

The function only checks and gathers. What conflicts with what is decided in `Stream.begin`, and
what a failed check means is said by `Kernel`. Whatever may wait comes before the lock is taken.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.array.host_access import capturing
from penstock.driver.protocol import Program
from penstock.launch.numpy_arguments import bring_back
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.launch.kernel import Kernel
    from penstock.shader.spirv import Member

#: The default of every argument: not given.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "(not given)"})()

#: Types of numbers that are packed as they are, without a look at who else may be writing them.
PLAIN_NUMBERS = frozenset(
    {int, float, bool, *(np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + "efdg")}
)

_FUNCTION = """
def __call__(self, /, *positional, {parameters}stream=None, threads=None, groups=None, **unknown):
    {odd_names}
    if unknown or positional:
        self._explain_names(unknown, {given}, positional)
    if scheduler.captures and (graph := capturing(scheduler)) is not None:
        return graph.launch(self, {given}, stream, threads, groups)
    {carried}
    counts = counts_of.get(threads) if groups is None and type(threads) is int else None
    if counts is None:
        if type(groups) is Array:
            {indirect}
        counts = self._groups(threads, groups, self._index_at_rest)
    {scalars}
    if stream is None:
        stream = device.default_stream
    elif getattr(stream, "scheduler", None) is not scheduler:
        self._explain_stream(stream)
    if stream.deep:
        stream.make_room()
    {room}
    with scheduler.lock:
        if scheduler.closed or scheduler.lost is not None or self._closed or stream._closed:
            self._explain_closed(stream)
        {arrays}
        {ring}
        {result}
        if not counts[0]:
            {nothing}
        uses = ({uses})
        flat = ({flat})
        commands = stream.begin(uses, what)
        {taken}
        commands.dispatch(program, flat, block, counts)
        if events.active:
            why = ("%s in %s groups", self.name, counts)
            events.emit("launch", why, at=stream.here())
        {loud}value = stream.end()
    {end}
"""

_CARRIED = """
    if type({0}) is not Array:
        if carried is None:
            carried = []
        {0} = self._carry(slot_{1}, {0}, stream, carried, {given})
"""

_ARRAY = """
        if wants_{1} not in {0}.accepted:
            self.check_array(slot_{1}, {0}, {given})
        bound_{1} = {0}.bound
        buffer = {0}.buffer
        backing = buffer.backing
        if bound_{1}.backing is not backing or backing.views or buffer.closed{guarded}:
            as_usual = False
"""

_BOUND = """
        as_usual = True
        {arrays}
        if not as_usual:
            {bound}, = self.bind(({variables}, ), stream)
"""

# Before the lock is taken and anything is looked at: this may run code of the caller's, and what is
# not a plain number may have to be waited for.
_SCALARS = """
    try:
        block = pack({values}) if {plain} else self.pack_at_rest({values})
    except Exception:
        self._explain_scalars({given})
        raise
"""

# Before the lock is taken: a launch may have to wait for an earlier one.
_ROOM = """
    ring = stream.rings.get(self)
    if ring is not None:
        ring.make_room(stream.lane)
"""

_RING = """
        ring = stream.rings.get(self) or self.ring(stream)
        at = ring.put(block, stream.lane)
        block = b""
"""


def make_launch(kernel: Kernel) -> Callable[..., Any]:
    """The `__call__` of a kernel: of its array slots, its scalars, and its result if any."""
    slots = kernel.slots
    members = [member.name for member in kernel.interface.push]
    names = [slot.name for slot in slots] + members
    variables = {name: _variable(number, name) for number, name in enumerate(names)}
    plain = [name for name in names if variables[name] == name]
    given = "{" + ", ".join(f"{name!r}: {variables[name]}" for name in names) + "}"
    numbered = list(enumerate(slots))
    purposes = [binding.purpose for binding in kernel.interface.bindings]
    carried = "carried" if slots else "None"
    in_ring, has_result = "arguments" in purposes, "result" in purposes
    source = _FUNCTION.format(
        parameters="".join(f"{name}=MISSING, " for name in plain),
        odd_names="; ".join(
            f"{variables[name]} = unknown.pop({name!r}, MISSING)"
            for name in names
            if name not in plain
        )
        or "pass",
        given=given,
        carried="".join(
            ["carried = None"]
            + [_CARRIED.format(variables[s.name], number, given=given) for number, s in numbered]
        ).strip()
        if slots
        else "pass",
        indirect=f"return self._launch_indirect({given}, stream, threads, groups, {carried})",
        arrays=_BOUND.format(
            arrays="".join(
                _ARRAY.format(
                    variables[slot.name],
                    number,
                    given=given,
                    guarded=" or buffer.guarded" if slot.writes else "",
                )
                for number, slot in numbered
            ).strip(),
            bound=", ".join(f"bound_{number}" for number, _ in numbered),
            variables=", ".join(variables[slot.name] for slot in slots),
        ).strip()
        if slots
        else "pass",
        scalars=_SCALARS.format(
            values=", ".join(variables[name] for name in members),
            plain=" and ".join(
                _is_plain(variables[member.name], member) for member in kernel.interface.push
            ),
            given=given,
        ).strip()
        if members
        else "block = b''",
        ring=_RING.strip() if in_ring else "pass",
        result="result = results.new(what)" if has_result else "pass",
        nothing="return result" if has_result else "return",
        uses="".join(
            f"bound_{number}.{'writing' if slot.writes else 'reading'}, "
            for number, slot in numbered
        )
        + ("ring.use, " if in_ring else "")
        + ("result.slot.use, " if has_result else ""),
        flat=_flat(kernel),
        room=_ROOM.strip() if in_ring else "pass",
        # Before the launch is recorded: if an exception comes between, they count as used.
        taken="; ".join(
            ["ring.taken(stream.recorded)"] * in_ring
            + ["result.launched(stream.lane, stream.recorded)"] * has_result
        )
        or "pass",
        loud="stream.expect_result(); " if has_result else "",
        end=("if carried: bring_back(carried, stream, value)" if slots else "pass")
        + ("\n    return result" if has_result else ""),
    )
    program: Program = kernel.program
    scope: dict[str, Any] = {
        "Array": Array,
        "MISSING": MISSING,
        "bring_back": bring_back,
        "counts_of": kernel.counts_of,
        "device": kernel.device,
        "pack": kernel.pack,
        "plain_numbers": PLAIN_NUMBERS,
        "program": program,
        "capturing": capturing,
        "results": kernel.results,
        "scheduler": kernel.scheduler,
        "events": events,
        "what": kernel.what,
        **{f"slot_{number}": slot for number, slot in numbered},
        **{f"wants_{number}": slot.wants for number, slot in numbered},
    }
    # Named as a file of this package, so that receipts look past it for the user's line.
    file = f"{Path(__file__).parent}/<launch of {kernel.name}>"
    exec(compile(source, file, "exec"), scope)
    launch: Callable[..., Any] = scope["__call__"]
    return launch


def _is_plain(variable: str, member: Member) -> str:
    """Whether an argument is a number: nothing that is in memory, or whose value is on its way."""
    if member.shape:
        return "False"
    usual = "float" if member.dtype.kind == "f" else "int"
    return f"(type({variable}) is {usual} or type({variable}) in plain_numbers)"


def _flat(kernel: Kernel) -> str:
    """What the driver binds, in the order of the bindings: handle, offset, byte count."""
    parts = []
    number = 0
    for binding in kernel.interface.bindings:
        if binding.purpose == "arguments":
            parts.append("ring.handle, at, ring.nbytes, ")
        elif binding.purpose == "result":
            parts.append(f"result.slot.handle, result.slot.offset, {binding.min_size}, ")
        else:
            parts.append(f"*bound_{number}.place, ")
            number += 1
    return "".join(parts)


def _variable(number: int, name: str) -> str:
    """What the function calls an argument: itself, unless Python would not have it."""
    taken = name in _TAKEN or name.startswith(("__", "argument_", "bound_", "slot_", "wants_"))
    if not name.isidentifier() or keyword.iskeyword(name) or taken:
        return f"argument_{number}"
    return name


#: Names that mean something else in the function.
_TAKEN = {
    "Array", "Exception", "MISSING", "as_usual", "at", "backing", "block", "bring_back", "buffer",
    "carried", "commands", "counts", "counts_of", "device", "flat", "float", "getattr", "graph",
    "int", "pack", "plain_numbers", "positional", "program", "capturing", "result", "results",
    "ring", "scheduler", "self", "events", "type", "unknown", "uses", "value", "what", "why",
}  # fmt: skip
