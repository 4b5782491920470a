"""Which safeguard each named program tests, by transfer mode.

Different safeguards make the same program correct in different modes: while a kernel reads x, a
write of x is safe because it goes to a fresh backing, because a device copy is ordered after the
kernel, or because the copier thread waits for it. This module names the safeguards. `python -m
mutation litmus` shows that each program passes with all of them, and fails in that mode without its
own.
"""

from __future__ import annotations

from penstock.array.transfer import MODES
from penstock.conformance import CORPUS, Program

#: Short names of safeguards, and the mutants that lack them.
SAFEGUARDS = {
    "fresh backing": "a rename keeps the busy backing",
    "busy check": "a busy array counts as idle",
    "barrier": "no barrier between commands",
    "submit wait": "a submission waits for nothing",
    "read lanes": "reads of several lanes count as one",
    "reads noted": "a write does not mind reads",
    "copier waits": "an ordered copy does not wait for its predecessors",
    "copier submits": "predecessors of an ordered copy are not submitted",
    "copy noted": "an ordered copy is not written down",
    "acquire": "host copy not acquired by the device",
    "event: own work": "an event forgets the stream's own work",
    "event: copies": "an event forgets host copies",
    "event: waits": "an event forgets what the stream waits for",
    "event submits": "an event drops what is recorded",
    "event keeps copies": "an event drops host copies",
    "stream wait": "Stream.wait does nothing",
    "write at once": "a write is made after the call",
    "snapshot at once": "a snapshot is taken after the call",
    "read at once": "a read is made after the call",
    "write at once, or event: copies": "a write is made after the call, and an event forgets it",
    "write at once, or noted": "a borrowed write is made after the call, and not written down",
    "write at once, noted, or fresh backing": (
        "a borrowed write is made after the call, not written down, and a rename keeps the backing"
    ),
    "borrow asked for": "every write counts as borrowed",
    "view kept": "a held view is written under its holder",
    "rest kept": "a rename loses what is not overwritten",
    "shown kept": "memory shown to the host is reused",
    "used kept": "memory in use by the device is reused",
    "own result": "reads share the memory of their results",
    "publish": "a recording with a barrier is not published to the host",
    "host wait": "the host takes a barrier for a wait",
    "temporary": "a copy onto itself goes without a temporary",
    "rows": "a strided write counts as one block",
    "host waits for value": "the host waits for the newest work of a lane",
    "stream waits for value": "a stream waits for the newest work of another",
    "copier waits for value": "an ordered copy waits for the newest work of a lane",
    "copy waits for value": "a host copy waits for the newest copy of a lane",
    "view flushed": "what was written through a view is not flushed",
    "graph barriers": "a graph has no barriers",
    "graph noted": "a graph minds no other work",
    "own slot": "launches share the place of their results",
    "result published": "results of kernels are not published",
    "first look": "the host looks at scratch as it is",
    "history kept": "scratch memory handed on without its history",
    "look in between": "memory counts as hidden until the first look is over",
    "writes of the gone": "what earlier arrays have of unpublished writes is forgotten",
    "refusal": "a closed device goes on",
}

#: The order of two commands: a barrier if both are on one stream, else a wait of the submission.
IN_ORDER = "barrier or wait"

Guards = tuple[str, ...]


def _modes(most: str | Guards, **others: str | Guards) -> dict[str, Guards]:
    """The safeguards in most modes, and in the `others`; "unmapped" defaults to "staged"."""
    if "staged" in others:
        others.setdefault("unmapped", others["staged"])
    chosen = {mode: others.get(mode, most) for mode in MODES}
    return {mode: (each,) if isinstance(each, str) else each for mode, each in chosen.items()}


_WHOLE = _modes("fresh backing", direct="busy check", staged=IN_ORDER)
_WHOLE_BORROWED = {**_WHOLE, "ordered": ("copier waits",)}
_PART = _modes(IN_ORDER, direct="busy check")
_PART_BORROWED = {**_PART, "ordered": ("copier waits",)}
_FILL = _modes(("busy check", IN_ORDER), unmapped=IN_ORDER)
_EVENT_OF_PART = _modes("event: own work", ordered="event: copies")

GUARDS: dict[str, dict[str, Guards]] = {
    "read, then write": _WHOLE,
    "read, then write, borrowed": _WHOLE_BORROWED,
    "write, then write": _WHOLE,
    "write, then write, borrowed": _WHOLE_BORROWED,
    # A first write that is neither staged nor ordered is done when its call returns. If it were
    # not, the second write would wait for it; and a rename gives the two different memory anyway.
    "pinned, then ordinary": _modes(
        "write at once, or noted",
        rename="write at once, noted, or fresh backing",
        staged=IN_ORDER,
        ordered="fresh backing",
    ),
    "read, then overwrite": _modes("read at once", unmapped=IN_ORDER),
    "read between writes": _modes((IN_ORDER, "copier waits")),
    "changed source": _modes(
        "write at once",
        staged="snapshot at once",
        ordered=("write at once", "borrow asked for"),
    ),
    "event covers a read": _modes("event: copies"),
    # A write that is done when its call returns needs no event.
    "event covers a write": _modes(
        "write at once, or event: copies", staged="event: own work", ordered="event: copies"
    ),
    "blocking write": _WHOLE,
    "blocking write, borrowed": _WHOLE_BORROWED,
    "fill of what is read": _FILL,
    "host writes b0": _PART,
    "host writes b0, borrowed": _PART_BORROWED,
    "copy dropped at an event": _modes(("event submits", "event: own work")),
    "copy dropped at an event, borrowed": _modes(
        ("event submits", "event: own work"), ordered="event keeps copies"
    ),
    "deferred clear": _FILL,
    "read after a borrowed write": {
        **_WHOLE_BORROWED,
        "ordered": ("copier waits", "copy noted", "acquire"),
    },
    "readers on two streams": _modes("read lanes"),
    "readers on two streams, one stream": _modes("reads noted"),
    "held view": _modes(("view kept", "rest kept"), unmapped="shown kept"),
    "results of two streams": _modes("own result"),
    "visible to the device, not to the host": _modes("publish"),
    "a barrier is not a wait": _modes("host wait", unmapped="barrier"),
    "reused memory": _modes("used kept"),
    "a chain through streams": _modes("stream wait"),
    "a chain through streams, one stream": _EVENT_OF_PART,
    "a stream that only waits": _modes(("event: waits", "stream wait")),
    "a stream that only waits, one stream": _EVENT_OF_PART,
    "overlapping copies": _modes("temporary"),
    "value 1, not value 2": _modes("host waits for value"),
    "a stream waits for value 1, not value 2": _modes("stream waits for value"),
    "a copy between two launches": {**_WHOLE, "ordered": ("copier waits for value",)},
    "copies that take turns": {**_PART, "ordered": ("copy waits for value",)},
    "a copy behind held work": {**_WHOLE, "ordered": ("copier submits",)},
    "borrowed writes on two streams": {**_PART, "ordered": ("copy noted", "copier waits")},
    "strided write beside device writes": _modes("rows", staged="barrier"),
    "adopted memory": _PART,
    "write through a view": _modes("view flushed", unmapped="used kept"),
    "a graph in itself": _modes("graph barriers"),
    "a graph among other work": _modes("graph noted"),
    "deferred clear of what a graph reads": _FILL,
    "results of many launches": _modes("own slot"),
    "a result alone": _modes("result published"),
    "a look at scratch": _modes("first look", unmapped="used kept"),
    "scratch in memory that is busy": _modes("history kept"),
    "memory of an earlier array": _modes("writes of the gone", unmapped="barrier"),
    "a closed device": _modes("refusal"),
    "a first look beside launches": _modes("look in between", unmapped="submit wait"),
    # These test refusals and losses, not order.
    "write beside a writable view": {},
    "host copies without the lock": {},
    "append after a reset": {},
    "rows appended in any order": {},
}


def guards_of(program: Program) -> dict[str, Guards]:
    """By transfer mode, the safeguards without each of which the program must fail."""
    one = not any(getattr(operation, "stream", 0) for operation in program.operations)
    order = "barrier" if one else "submit wait"
    name = program.name
    declared = GUARDS[name if name in GUARDS else name.removesuffix(", one stream")]
    return {
        mode: tuple(order if guard == IN_ORDER else guard for guard in guards)
        for mode, guards in declared.items()
    }


def programs_of(mutant: str) -> list[tuple[Program, str]]:
    """The programs and modes that must fail with this mutant."""
    return [
        (program, mode)
        for program in CORPUS
        for mode, guards in guards_of(program).items()
        if mutant in [SAFEGUARDS[guard] for guard in guards]
    ]
