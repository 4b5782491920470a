"""The call of a kernel, written out for its signature.

A launch costs microseconds of interpreter time, most of it in looking up what is the same every
time. So each kernel gets a function of its own, made from the template below as `dataclasses` and
`namedtuple` make theirs: named parameters (which `help` and tab completion then show), one line of
checks per array, one `pack` for all scalars. `benchmarks launch` shows what it buys.

The function does the common case of `Kernel.launch`: arrays of the device that it has seen before,
plain numbers, no view in the way, no graph being captured. Anything else it leaves to
`Kernel.launch`, before it has changed anything.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.launch.checks import MISSING, explain_names, explain_scalars
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.launch.kernel import Kernel
    from penstock.shader.spirv import Member

#: Types of numbers that are packed as they are, without a look at who else may be writing them.
PLAIN_NUMBERS = frozenset(
    {int, float, bool, *(np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + "efdg")}
)

_FUNCTION = """
def __call__(self, /, *positional, {parameters}stream=None, threads=None, groups=None, **unknown):
    {odd_names}
    if unknown or positional:
        explain_names(self, unknown, {given}, positional)
    if scheduler.captures or type(groups) is Array{unusual}:
        return self.launch({given}, stream, threads, groups)
    counts = counts_of.get(threads) if groups is None and type(threads) is int else None
    if counts is None:
        counts = self.group_counts(threads, groups, self._index_at_rest)
    {scalars}
    if stream is None:
        stream = device.default_stream
    elif getattr(stream, "scheduler", None) is not scheduler:
        scheduler.stream_or_default(stream)
    if stream.deep:
        stream.make_room()
    {room}
    with scheduler.lock:
        if not (scheduler.closed or scheduler.lost is not None or self._closed or stream._closed
                or not counts[0]{checks}):
            {ring}
            {result}
            uses = ({uses})
            flat = ({flat})
            commands = stream.begin(uses, what)
            {taken}
            commands.dispatch(program, flat, block, counts)
            if events.active:
                why = ("%s in %s groups", self.name, counts)
                events.emit("launch", why, at=stream.here())
            {expect}stream.end()
            return {returned}
    return self.launch({given}, stream, threads, groups)
"""

#: What is unusual about an array: never checked, moved, shown by a view, closed, or guarded.
_CHECK = """
                or wants_{1} not in {0}.accepted
                or (bound_{1} := {0}.bound).backing is not (backing := (buffer := {0}.buffer)
                    .backing)
                or backing.views or buffer.closed{guarded}"""

_SCALARS = """
    try:
        block = pack({values})
    except Exception:
        explain_scalars(self, {given})
        raise
"""

# Before the lock is taken: a launch may have to wait for an earlier one.
_ROOM = """
    ring = stream.rings.get(self)
    if ring is not None:
        ring.make_room(stream.lane)
"""

_RING = """
            if ring is None:
                ring = self.ring(stream)
            arguments = ring.put(block, stream.lane)
            block = b""
"""


def make_call(kernel: Kernel) -> Callable[..., Any]:
    """The `__call__` of a kernel."""
    parameters = list(enumerate(kernel.parameters))
    members = kernel.interface.push
    names = [each.name for _, each in parameters] + [member.name for member in members]
    variables = {name: _variable(number, name) for number, name in enumerate(names)}
    plain = [name for name in names if variables[name] == name]
    given = "{" + ", ".join(f"{name!r}: {variables[name]}" for name in names) + "}"
    in_ring = kernel.scalars_in_buffer
    has_result = kernel.results is not None
    source = _FUNCTION.format(
        parameters="".join(f"{name}=MISSING, " for name in plain),
        odd_names="; ".join(
            f"{variables[name]} = unknown.pop({name!r}, MISSING)"
            for name in names
            if name not in plain
        )
        or "pass",
        given=given,
        unusual="".join(
            [f" or type({variables[each.name]}) is not Array" for _, each in parameters]
            + [f" or not {_is_plain(variables[member.name], member)}" for member in members]
        ),
        scalars=_SCALARS.format(
            values=", ".join(variables[member.name] for member in members), given=given
        ).strip()
        if members
        else "block = b''",
        room=_ROOM.strip() if in_ring else "pass",
        checks="".join(
            _CHECK.format(
                variables[each.name], number, guarded=" or buffer.guarded" if each.writes else ""
            )
            for number, each in parameters
        ),
        ring=_RING.strip() if in_ring else "pass",
        result="result = results.new(what)" if has_result else "pass",
        uses="".join(
            f"bound_{number}.{'writing' if each.writes else 'reading'}, "
            for number, each in parameters
        )
        + ("ring.use, " if in_ring else "")
        + ("result.memory.use, " if has_result else ""),
        flat=_flat(kernel),
        # Before the launch is recorded: if an exception comes between, they count as used.
        taken="; ".join(
            ["ring.taken(stream.recorded)"] * in_ring
            + ["result.launched(stream.lane, stream.recorded)"] * has_result
        )
        or "pass",
        expect="stream.expect_result(); " if has_result else "",
        returned="result" if has_result else "None",
    )
    scope: dict[str, Any] = {
        "Array": Array,
        "MISSING": MISSING,
        "counts_of": kernel.counts_of,
        "device": kernel.device,
        "events": events,
        "explain_names": explain_names,
        "explain_scalars": explain_scalars,
        "pack": kernel.pack,
        "plain_numbers": PLAIN_NUMBERS,
        "program": kernel.program,
        "results": kernel.results,
        "scheduler": kernel.scheduler,
        "what": kernel.what,
        **{f"wants_{number}": each.wants for number, each in parameters},
    }
    # Named as a file of this package, so that receipts look past it for the user's line.
    file = f"{Path(__file__).parent}/<launch of {kernel.name}>"
    exec(compile(source, file, "exec"), scope)
    call: Any = scope["__call__"]
    call.__doc__ = f"{kernel.signature}\n\n{type(kernel).__call__.__doc__}"
    call.__signature__ = _signature(names)
    call.__wrapped__ = type(kernel).launch  # where tools that show source lead
    return call  # type: ignore[no-any-return]


def _signature(names: list[str]) -> inspect.Signature:
    """What `help` shows: the kernel's arguments by name, and how much to run."""
    named = inspect.Parameter.KEYWORD_ONLY
    own = "self"
    while own in names:
        own += "_"
    shown = [name for name in names if name.isidentifier() and not keyword.iskeyword(name)]
    return inspect.Signature(
        [inspect.Parameter(own, inspect.Parameter.POSITIONAL_ONLY)]
        + [inspect.Parameter(name, named) for name in shown]
        + [inspect.Parameter(name, named, default=None) for name in ("threads", "groups", "stream")]
    )


def _is_plain(variable: str, member: Member) -> str:
    """Whether an argument is a number: nothing that is in memory, or whose value is on its way."""
    if member.shape:
        return "False"
    usual = "float" if member.dtype.kind == "f" else "int"
    return f"(type({variable}) is {usual} or type({variable}) in plain_numbers)"


def _flat(kernel: Kernel) -> str:
    """What the driver binds, as `Bindings.flat` puts it together."""
    others = {
        "arguments": "*arguments, ",
        "result": f"result.memory.handle, result.memory.offset, {kernel.bindings.result_bytes}, ",
    }
    return "".join(
        f"*bound_{each}.place, " if isinstance(each, int) else others[each]
        for each in kernel.bindings.order
    )


def _variable(number: int, name: str) -> str:
    """What the function calls an argument: itself, unless Python would not have it."""
    taken = name in _TAKEN or name.startswith(("__", "argument_", "bound_", "wants_"))
    if not name.isidentifier() or keyword.iskeyword(name) or taken:
        return f"argument_{number}"
    return name


#: Names that mean something else in the function.
_TAKEN = {
    "Array", "Exception", "MISSING", "arguments", "backing", "block", "buffer", "commands",
    "counts", "counts_of", "device", "events", "explain_names", "explain_scalars", "flat", "float", "getattr",
    "int", "pack", "plain_numbers", "positional", "program", "result", "results", "ring",
    "scheduler", "self", "type", "unknown", "uses", "what", "why",
}  # fmt: skip
