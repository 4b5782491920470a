"""`benchmarks launch --peers`: go round all peers, row by row, and say who is ahead where."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import penstock as ps
from benchmarks.compiled import NoCompiler, compile_c
from benchmarks.peers.conversation import Conversation, Lost
from benchmarks.peers.environments import KINDS, NotInstalled, interpreter
from benchmarks.tables import Row, Section, times
from penstock.bench.floors import programs as kernels
from penstock.bench.jobs import JOBS
from penstock.bench.measure import Case, Samples, interleave

_HERE = Path(__file__).parent
_AT_A_TIME = 4  # rounds that a peer runs before the next one's turn; the first warms its caches
_LAYER = "VK_LAYER_PENSTOCK_non_semantic_info"
OWN = ("penstock", "penstock-explicit")
FLOORS = ("c", "cffi", "numpy")

#: What Penstock wants to reach: row, at most how many times whom ("" is the fastest peer).
_AIMS = (
    ("record", 1.0, "hephaistos"),
    ("alternate", 1.0, "hephaistos"),
    ("trip", 1.0, "hephaistos"),
    ("wait", 1.05, "hephaistos"),
    ("result", 1.1, "hephaistos"),
    ("result", 0.5, "quadrants"),
    ("chain", 1.05, "c"),
    ("replay", 1.05, "c"),
    ("array", 1.2, "numpy"),
)


def compare(
    device: ps.Device, repeat: int, *, only: Iterable[str], directory: Path, reinstall: bool
) -> list[Section]:
    """Run every row on every peer that can be had."""
    absent: dict[str, str] = {}
    with ExitStack() as ending:
        programs = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        for name, code in kernels().items():
            (programs / f"{name}.spv").write_bytes(code)
        present: dict[str, Conversation] = {}
        for name in only:
            try:
                python = interpreter(name, directory, reinstall=reinstall, tell=_tell)
                environment = {"PENSTOCK_PEERS_DEVICE": device.name} | _layer(name, programs)
                present[name] = Conversation(name, python, programs, environment)
                ending.callback(present[name].close)
            except (NotInstalled, NoCompiler, Lost) as reason:
                absent[name] = str(reason)
                _tell(f"{name} does not take part: {reason}")
        measured = {row: _measure(row, present, repeat) for row in JOBS}
        tables = [_table(row, present, *measured[row]) for row in JOBS]
    samples = {row: taken for row, (taken, _) in measured.items()}
    apart = elsewhere({name: peer.about["device"] for name, peer in present.items()}, device.name)
    standing, aims = _standing(samples, apart), _aims(samples, apart)
    return [_participants(present, absent), *tables, standing, aims]


def elsewhere(devices: Mapping[str, str], device: str) -> list[str]:
    """The peers that do not run on this device: no measure of what can be done on its driver.

    `devices` has what each peer says that it runs on. A floor belongs to the device whatever it
    says: NumPy's copies run on none.
    """
    return [name for name, own in devices.items() if name not in FLOORS and device not in own]


def _layer(name: str, programs: Path) -> dict[str, str]:
    """What to set so that the Vulkan loader puts our layer in front of the driver."""
    if not KINDS[name].needs_layer:
        return {}
    library = compile_c(_HERE / "layer.c", programs / "layer.so")
    manifest = {
        "file_format_version": "1.2.0",
        "layer": {
            "name": _LAYER,
            "type": "GLOBAL",
            "library_path": str(library),
            "api_version": "1.3.0",
            "implementation_version": "1",
            "description": "Lists VK_KHR_shader_non_semantic_info",
        },
    }
    (programs / "layer.json").write_text(json.dumps(manifest))
    return {"VK_ADD_LAYER_PATH": str(programs), "VK_INSTANCE_LAYERS": _LAYER}


def _measure(
    row: str, present: dict[str, Conversation], repeat: int
) -> tuple[dict[str, Samples], dict[str, str]]:
    """The seconds of every peer that can do the row, and why others could not."""
    failed: dict[str, str] = {}

    def ask(name: str) -> list[float]:
        if name not in failed:
            try:
                return present[name].ask(row, _AT_A_TIME)
            except Lost as reason:
                failed[name] = str(reason)
        return []

    cases: dict[str, Case] = {n: partial(ask, n) for n, peer in present.items() if row in peer.how}
    rounds = max(1, round(repeat / _AT_A_TIME))
    samples = interleave(cases, rounds, warm_up=1, progress=partial(_progress, row))
    return {name: taken for name, taken in samples.items() if name not in failed}, failed


def _participants(present: dict[str, Conversation], absent: dict[str, str]) -> Section:
    rows: list[Row] = [
        {"peer": name, "version": peer.about["version"], "device": peer.about["device"]}
        for name, peer in present.items()
    ]
    rows += [
        {"peer": name, "version": "-", "device": f"does not take part: {reason}"}
        for name, reason in absent.items()
    ]
    notes = (
        "c is bare Vulkan from C and cffi the same calls from Python: the floors, which track and "
        "check nothing.",
        "penstock-explicit is Penstock with transfers and batches spelt out, as most peers ask for",
    )
    return Section("Who takes part", rows, notes)


def _table(
    row: str,
    present: dict[str, Conversation],
    samples: dict[str, Samples],
    failed: dict[str, str],
) -> Section:
    floor = JOBS[row].floor
    nothing = Samples()
    rows: list[Row] = []
    for name, peer in present.items():
        taken, base = samples.get(name, nothing), samples.get(floor, nothing)
        if row in peer.how:
            words = failed.get(name, peer.how[row])
        elif name in FLOORS or name == "penstock-explicit":
            continue
        else:
            words = f"none: {peer.lacks.get(row, 'there is no such thing')}"
        rows.append(
            {
                "peer": name,
                **times(taken, base),
                "what_is_timed": words,
            }
        )
    rounds = max((len(taken.seconds) for taken in samples.values()), default=0)
    note = f"{rounds} rounds of each, {_AT_A_TIME} at a time and then the next peer's turn; values"
    return Section(f"{JOBS[row].title}; ratios to {floor}", rows, (f"{note} checked in each",))


def _standing(samples: dict[str, dict[str, Samples]], apart: list[str]) -> Section:
    """Row by row: the fastest peer, the better way of Penstock's, and who is ahead."""
    rows: list[Row] = []
    for row, taken in samples.items():
        peer, own = _fastest(taken, _others(taken, apart)), _fastest(taken, OWN)
        if peer is None:
            continue
        line: Row = {"row": row, "fastest_peer": peer, "peer_min_us": taken[peer].minimum * 1e6}
        if own is None:
            line |= {"penstock_min_us": None, "ratio_of_medians": None, "ratio_of_minima": None}
            line["ahead"] = "penstock has nothing here"
        else:
            ratio = taken[own].minimum / taken[peer].minimum
            line |= {
                "penstock_min_us": taken[own].minimum * 1e6,
                "ratio_of_medians": taken[own].median / taken[peer].median,
                "ratio_of_minima": ratio,
                "ahead": f"{own}" if ratio <= 1 else f"{peer} is ahead of {own}",
            }
        rows.append(line)
    left_out = ", ".join(["the floors", *(f"{name} (on another driver)" for name in apart)])
    title = f"Penstock beside the fastest peer in each row; left out: {left_out}"
    return Section(title, rows or [{"row": "no peer was measured"}])


def _aims(samples: dict[str, dict[str, Samples]], apart: list[str]) -> Section:
    rows: list[Row] = []
    for row, most, whom in _AIMS:
        taken = samples[row]
        other = whom if whom in taken else None if whom else _fastest(taken, _others(taken, apart))
        # The aim is for what a user writes first; spelt out, only where that cannot be done.
        own = next((name for name in OWN if name in taken), None)
        ratio = taken[own].minimum / taken[other].minimum if own and other else None
        rows.append(
            {
                "row": row,
                "aim": f"at most {most:g} × {whom or 'the fastest peer'}",
                "ratio_of_minima": ratio,
                "ratio_of_medians": taken[own].median / taken[other].median
                if own and other
                else None,
                "by": own or "-",
                "met": "not measured" if ratio is None else "yes" if ratio <= most else "no",
            }
        )
    return Section("Penstock's aims, judged by the minima", rows)


def _others(taken: dict[str, Samples], apart: list[str]) -> list[str]:
    return [name for name in taken if name not in (*OWN, *FLOORS, *apart)]


def _fastest(taken: dict[str, Samples], names: Iterable[str]) -> str | None:
    here = [name for name in names if name in taken and taken[name].seconds]
    return min(here, key=lambda name: taken[name].minimum, default=None)


def _tell(message: str) -> None:
    print(f"benchmarks: {message}", file=sys.stderr, flush=True)


def _progress(row: str, number: int, of: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if number + 1 >= of else ""
        print(f"\rbenchmarks: {row}, round {number + 1} of {of}  ", end=end, file=sys.stderr)
