"""`python -m benchmarks documents`: the tables in the docs, made from kept results.

`write` replaces the generated blocks of documents with tables of the newest result that is kept
(`--keep`), and a test compares them, so that no figure is copied by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kept import DIRECTORY
from benchmarks.peers.comparison import FLOORS, OWN, elsewhere
from penstock.bench import forms
from penstock.bench.generated_block import GeneratedBlock
from penstock.bench.jobs import JOBS
from penstock.bench.mechanisms.document import sections, summary_table, titled
from penstock.bench.mechanisms.findings import effect, figure, largest, summary

Result = Any  # of `benchmarks` a dict, of `penstock bench` a list of rows

ROOT = Path(__file__).parents[1]


def write(root: Path = ROOT) -> list[Path]:
    """Replace every generated block; returns the files."""
    files = []
    for name, (path, make) in BLOCKS.items():
        file = root / path
        _block(name).write(file, make(newest(name.partition(" ")[0])))
        files.append(file)
    return files


def current(name: str, root: Path = ROOT) -> tuple[str, str]:
    """The block that a document has, and the one that it should have."""
    path, make = BLOCKS[name]
    return _block(name).read(root / path), make(newest(name.partition(" ")[0]))


def newest(benchmark: str) -> Result:
    """The result of a benchmark that was kept last."""
    found = [json.loads(f.read_text("utf-8")) for f in DIRECTORY.glob(f"*{benchmark}-*.json")]
    return max(found, key=lambda each: each[0]["test_time"] if type(each) is list else each["date"])


def _block(name: str) -> GeneratedBlock:
    return GeneratedBlock("python -m benchmarks documents", name)


# Arrays.


def _arrays(result: Result) -> str:
    """A row for each operation: its ratio to NumPy in every size, and its costs in one."""
    tables = {section["title"]: section["rows"] for section in result["sections"]}
    by_size = {
        title.partition(" ")[0]: {row["operation"]: row for row in rows}
        for title, rows in tables.items()
    }
    names = list(dict.fromkeys(name for rows in by_size.values() for name in rows))
    above = {
        size: sum(float(row["ratio"]) > float(row["most"]) for row in rows.values())
        for size, rows in by_size.items()
    }
    large = [size for size in by_size if len(size.replace(",", "")) > 6]
    counts = ", ".join(f"{above[size]} of {len(by_size[size])} at {size}" for size in large)
    head = ["operation", "aim", *by_size, "launches", "waits", "allocations"]
    lines = [
        *_about(result), "",
        f"Time relative to NumPy's, by number of elements. **Bold** is above the aim: {counts}.",
        "", _line(head), _line(["---", *["---:"] * (len(head) - 1)]),
    ]  # fmt: skip
    for name in names:
        rows = {size: own[name] for size, own in by_size.items() if name in own}
        some = list(rows.values())[-1]
        cells = [_ratio(rows.get(size), judged=size in large) for size in by_size]
        costs = [str(some[cost]) for cost in ("launches", "waits", "allocations")]
        lines.append(_line([f"`{name}`", f"{some['most']:g}", *cells, *costs]))
    return "\n".join(lines)


def _ratio(row: Result | None, *, judged: bool) -> str:
    if row is None:
        return ""
    ratio = float(row["ratio"])
    text = f"{ratio:.1f}" if ratio < 99.5 else f"{ratio:,.0f}"
    return f"**{text}**" if judged and ratio > float(row["most"]) else text


# Peers.


def _peers(result: Result) -> str:
    """A row for each peer, a column for each job: least µs, and the best on the same driver."""
    table = _least_times(result)
    found = dict.fromkeys(peer for own in table.values() for peer in own)
    peers = [*(name for name in FLOORS if name in found), *(n for n in found if n not in FLOORS)]
    apart = {name: device for name, device in _elsewhere(result).items() if name in found}
    jobs = [job for job in table if table[job]]
    lines = [*_about(result), "", _line(["µs", *jobs]), _line(["---", *["---:"] * len(jobs)])]
    for peer in peers:
        cells = []
        for job in jobs:
            least = table[job].get(peer)
            ranked = [t for name, t in table[job].items() if name not in (*FLOORS, *apart)]
            text = "" if least is None else _three_digits(least)
            best = peer not in (*FLOORS, *apart) and least == min(ranked)
            cells.append(f"**{text}**" if best else text)
        lines.append(_line([peer, *cells]))
    said = "; ".join(f"*{job}*: {JOBS[job].title}" for job in jobs)
    lines += ["", f"Each column is a job, with its least time. {said}."]
    if apart:
        named = "; ".join(f"*{name}* ({device})" for name, device in apart.items())
        lines += ["", f"Not on this driver, and so not ranked: {named}."]
    return "\n".join(lines)


def _elsewhere(result: Result) -> dict[str, str]:
    """The peers that are on another driver than Penstock, and what they say that they run on."""
    rows = next(each["rows"] for each in result["sections"] if each["title"] == "Who takes part")
    devices = {row["peer"]: row["device"] for row in rows}
    return {name: devices[name] for name in elsewhere(devices, result["machine"]["gpu_info"])}


def _least_times(result: Result) -> dict[str, dict[str, float]]:
    """By job and peer: the least µs."""
    tables = {section["title"]: section["rows"] for section in result["sections"]}
    found = {}
    for job, about in JOBS.items():
        rows = tables[f"{about.title}; ratios to {about.floor}"]
        found[job] = {row["peer"]: row["min_us"] for row in rows if row["min_us"] is not None}
    return found


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


# Models.


def _models(result: Result) -> str:
    """A row for each model, number of threads and prompt: before, now, and llama.cpp."""
    head = ["model", "threads", "prompt", "prompt, ms: before → now", "×", "llama.cpp",
            "decode, ms: before → now", "×", "llama.cpp"]  # fmt: skip
    lines = [*_about(result), "", _line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    for case in _model_cases(result):
        cells = [case.model, str(case.threads), case.prompt]
        for time, ratio in _TIMES:
            before, now, peer = (case.time(name, time) for name in _PROGRAMS)
            cells += [f"{_figure(before)} → {_figure(now)}",
                      _figure(case.rows["penstock"].get(ratio)), _figure(peer)]  # fmt: skip
        lines.append(_line(cells))
    return "\n".join(lines)


def _models_in_short(result: Result) -> str:
    """A row for each model, with one thread after the shortest prompt; and the range of ratios."""
    head = ["model", "prompt", "llama.cpp", "decode", "llama.cpp"]
    lines = [*_about(result), "", _line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    cases = [case for case in _model_cases(result) if case.prompt.isdigit()]
    shortest = min(int(case.prompt) for case in cases)
    for case in cases:
        if case.threads == 1 and int(case.prompt) == shortest:
            cells = [case.model]
            for time, _ in _TIMES:
                cells += [_figure(case.time(name, time)) for name in ("penstock", "llama.cpp")]
            lines.append(_line(cells))
    prompt, decode = (
        [own / peer for case in cases
         if (own := case.time("penstock", time)) and (peer := case.time("llama.cpp", time))]
        for time, _ in _TIMES
    )  # fmt: skip
    lines += [
        "",
        "In all cases, with two threads and longer prompts too, a decoded token takes "
        f"{min(decode):.1f} to {max(decode):.1f} times llama.cpp's processor time, and a token of "
        f"a prompt {min(prompt):.1f} to {max(prompt):.1f} times.",
    ]
    return "\n".join(lines)


_PROGRAMS = ("against", "penstock", "llama.cpp")
#: Columns of a row: a time, and how many times as long it was before.
_TIMES = (("processor", "prompt ×"), ("processor, decode", "decode ×"))


class _Case(NamedTuple):
    """A model, a number of threads and a prompt: what every program took."""

    model: str
    threads: int
    prompt: str
    rows: dict[str, dict[str, Any]]  # by program

    def time(self, program: str, column: str) -> float | None:
        return self.rows.get(program, {}).get(column)


def _model_cases(result: Result) -> Iterator[_Case]:
    for title, rows in _tables(result, "Models"):
        cases: dict[tuple[str, int, int], dict[str, dict[str, Any]]] = {}
        for row in rows:
            key = row["model"], row["threads"], row["prompt"]
            cases.setdefault(key, {})[row["program"]] = row
        for (model, threads, prompt), programs in cases.items():
            yield _Case(model, threads, f"{prompt}{_at_depth(title)}", programs)


def _model_kernels(result: Result) -> str:
    """A row for each kernel of a token and of a prompt, with one thread."""
    head = ["model", "part", "kernel", "launches", "ms", "share", "GB/s", "G multiply-adds/s",
            "of the limit"]  # fmt: skip
    lines = [_line(head), _line(["---", "---", "---", *["--:"] * (len(head) - 3)])]
    for title, rows in _tables(result, "Kernels"):
        for row in rows:
            if row["threads"] == 1:
                limit = row["% of limit"]
                lines.append(_line([
                    f"{row['model']}{_at_depth(title)}", row["part"], row["kernel"],
                    str(row["launches"]), f"{row['ms']:.1f}", f"{row['share %']:.1f} %",
                    _figure(row["GB/s"]),
                    _figure(row["G multiply-adds/s"]), "" if limit is None else f"{limit:.0f} %",
                ]))  # fmt: skip
    limits = [row for _, rows in _tables(result, "The machine") for row in rows]
    for what, name in (("reads", "GB/s"), ("multiplies and adds", "G multiply-adds/s")):
        found = sorted(row[name] for row in limits if row["threads"] == 1)
        figures = " to ".join(dict.fromkeys(f"{each:.1f}" for each in (found[0], found[-1])))
        lines += ["", f"NumPy {what} {figures} {name} with one thread."]
    return "\n".join(lines)


def _at_depth(title: str) -> str:
    """Which depth a section is of, if its tokens are not the first."""
    depth = title.partition("depth of ")[2].partition(" ")[0].rstrip(",")
    return f" at {depth}" if depth else ""


def _tables(result: Result, first: str) -> list[tuple[str, list[Any]]]:
    return [
        (each["title"], each["rows"])
        for each in result["sections"]
        if each["title"].startswith(first)
    ]


def _figure(number: float | None) -> str:
    return "" if number is None else _three_digits(number)


# Mechanisms.


def _mechanisms(result: Result) -> str:
    about = result[0]
    said = (
        f"`penstock bench mechanisms`: {about['gpu_info']} on {about['cpu_info']} with "
        f"{about['cpu_count']} cores, {about['test_time'][:10]}."
    )
    return "\n".join([*summary_table(result), "", said])


# The runtime.


def _runtime(rows: Result) -> str:
    """Every test but those of how costs grow, which are a plot."""
    shown = [row for row in rows if row["group"] != "scaling"]
    lines = forms.write("md", shown, forms.runtime_columns())
    return "\n".join([_about_rows(rows, "penstock bench runtime"), "", *lines])


# Decoding.


def _ablation(rows: Result) -> str:
    """A row for each mechanism that decoding goes without."""
    lines = forms.write("md", rows, forms.ablation_columns())
    return "\n".join([_about_rows(rows, rows[0]["command"]), "", *lines])


def _context(rows: Result) -> str:
    """A row for each number of tokens in the context before those that are generated."""
    lines = forms.write("md", rows, forms.model_columns(()))
    return "\n".join([_about_rows(rows, rows[0]["command"]), "", *lines])


def _about_rows(rows: Result, command: str) -> str:
    about = rows[0]
    loads = " to ".join(dict.fromkeys(str(pick(r["load"] for r in rows)) for pick in (min, max)))
    return (
        f"`{command}`: {about['gpu_info']} on {about['cpu_info']} with "
        f"{about['cpu_count']} cores, load {loads}; {about['settings']}; commit "
        f"{about['build_commit']}, {about['test_time'][:10]}."
    )


# What the page on performance, and its part of the README, begin with.


def _findings(rows: Result, docs: str = "") -> str:
    """Five findings; `docs` is where the pages are, seen from the document."""
    shown = [(each.title, largest(each.rows)) for each in sections(rows)]
    gains = sorted(
        ((row["ratio"], title) for title, row in shown if effect(row) == "gain"), reverse=True
    )
    best, least = gains[0], gains[-1]
    load = next(row for row in reversed(rows) if row["group"] == "load")
    memory = {one["what"]: one for one in load["figures"]}["a second process adds"]
    compared = newest("peers")
    jobs, apart = _least_times(compared), _elsewhere(compared)
    recorded, trip = jobs["record"], jobs["trip"]
    peers = [name for name in recorded if name not in (*FLOORS, *OWN, *apart)]
    fastest = min(peers, key=lambda name: float(recorded[name]))
    arrays = newest("arrays")["sections"]
    four = next(each["rows"] for each in arrays if each["title"].startswith("4,000,000"))
    median = sorted(float(row["ratio"]) for row in four)[len(four) // 2]
    return "\n".join([
        f"1. **{len(gains)} of {len(shown)} mechanisms of the runtime save time** in the work that "
        f"they are made for: without one, it takes {least[0]:.2g} times ({least[1]}) to "
        f"{best[0]:.3g} times ({best[1]}) as long. "
        f"[Each of them]({docs}performance-tables.md#mechanisms-on-and-off).",
        f"2. **Recording a launch takes {recorded['penstock']:.2g} µs**, with every access "
        f"tracked. A bare call from C, which tracks nothing, takes {recorded['c']:.2g} µs, and "
        f"the fastest peer, {fastest}, {recorded[fastest]:.2g}. A round trip of 4 KiB takes "
        f"{trip['penstock']:.3g} µs, against {trip['c']:.3g} in C and {trip[fastest]:.3g} with "
        f"{fastest}. "
        f"[Other runtimes]({docs}performance.md#compared-with-other-runtimes).",
        f"3. **Loading copies nothing.** A second process that loads the same {load['test'][8:]} "
        f"adds {figure(memory['on'], memory['unit'])} of memory instead of "
        f"{figure(memory['off'], memory['unit'])}. "
        f"[Zero-copy load]({docs}performance-tables.md#zero-copy-load).",
        "4. **A decoded token costs four bytes, no allocation and no wait but the one for its own "
        "value**, in every architecture. "
        f"[What a token costs]({docs}llm-internals.md#what-a-token-costs).",
        f"5. **On a CPU, arrays are {'slower' if median > 1 else 'faster'} than NumPy's**: an "
        f"operation takes {median:.2g} times as long (the median of {len(four)} operations on "
        "4 million elements), on the same cores, through a driver that was not made for speed. "
        f"[Each operation]({docs}performance-tables.md#arrays-compared-with-numpy).",
        "",
        *titled(summary([each.rows for each in sections(rows)]), f"{docs}images/mechanisms.png"),
    ])  # fmt: skip


# All.


def _about(result: Result) -> list[str]:
    machine = result["machine"]
    return [
        f"`{result['command']}`: {machine['gpu_info']} on {machine['cpu_info']} with "
        f"{machine['cpu_count']} cores, load {machine['load']}; Python {machine['python']}, NumPy "
        f"{machine['numpy']}; commit {result['commit']}, {result['date'][:10]}."
    ]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


#: By name, which begins with that of the benchmark: the document, and what makes the block.
BLOCKS: dict[str, tuple[str, Callable[[Result], str]]] = {
    "arrays": ("docs/performance-tables.md", _arrays),
    "peers": ("docs/performance.md", _peers),
    "peers in short": ("README.md", _peers),
    "runtime": ("docs/performance-tables.md", _runtime),
    "models": ("docs/performance-tables.md", _models),
    "models in short": ("docs/performance.md", _models_in_short),
    "models and kernels": ("docs/performance-tables.md", _model_kernels),
    "second host, models": ("docs/performance-tables.md", _models),
    "ablation": ("docs/performance-tables.md", _ablation),
    "context": ("docs/performance-tables.md", _context),
    "mechanisms": ("docs/performance.md", _mechanisms),
    "mechanisms and more": ("docs/performance.md", _findings),
    "mechanisms and more, linked": ("README.md", lambda rows: _findings(rows, "docs/")),
}
