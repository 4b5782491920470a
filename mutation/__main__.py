"""`python -m mutation`: run every mutant and print a table; exit code 1 if one survives.

`python -m mutation --driver vulkan`: the same for the calls of the Vulkan driver, with programs on
the devices of this machine and the tests that check the calls. `--driver hip`: the same for the HIP
driver, over the stand-in for its library.

`python -m mutation litmus`: run every named program, in every transfer mode, with its own safeguard
removed; exit code 1 if one passes.

`python -m mutation tracing`: the analysis of traces, by its tests; `python -m mutation recurrence`:
the memory of DeltaNet layers, by random conversations; `python -m mutation reuse`: memory that goes
to a result while work uses it, by random programs.

`python -m mutation native`: the same for the C code of the native step (`mutation.native`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mutation.hip import HIP
from mutation.mutants import MUTANTS, Mutant
from mutation.recurrence import RECURRENCE
from mutation.reuse import REUSE
from mutation.tracing import TRACING
from mutation.vulkan import VULKAN

_LIMIT = 600  # seconds for one process: a mutant may hang


def main(words: Sequence[str]) -> int:
    if words[:1] == ["litmus"]:
        return _litmus(words[1:])
    if words[:1] == ["native"]:
        from mutation import native

        return native.main(words[1:])
    if words[:1] == ["tracing"]:
        return _by_tests(TRACING, words[1:])
    if words[:1] == ["recurrence"]:
        return _by_tests(RECURRENCE, words[1:])
    if words[:1] == ["reuse"]:
        return _by_tests(REUSE, words[1:])
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of mutants, or parts of them (default: all)")
    parser.add_argument("--programs", type=int, default=2000, help="most random ones per mutant")
    parser.add_argument("--driver", choices=["sim", "vulkan", "hip"], default="sim")
    _add_formats(parser)
    arguments = parser.parse_args(words)
    mutants = {"sim": MUTANTS, "vulkan": VULKAN, "hip": HIP}[arguments.driver]
    chosen = [m for m in mutants if not arguments.only or any(o in m.name for o in arguments.only)]
    looks: dict[str, str] = {}
    if arguments.driver != "sim":
        (looks,) = _in_processes("calls", [[mutant.name for mutant in chosen]])
    outcomes: dict[str, dict[str, Any]] = {}
    hunts = _in_processes("hunt", [(m.name, str(arguments.programs)) for m in chosen])
    for number, (mutant, found) in enumerate(zip(chosen, hunts, strict=True), 1):
        outcomes[mutant.name] = found
        if looks:
            found["calls"] = looks[mutant.name]
        if not arguments.json and not arguments.markdown:
            print(f"{number:>3}/{len(chosen)}  {mutant.name:<52} {_verdict(found)}", flush=True)
    survivors = [
        name for name, found in outcomes.items() if not (found["caught"] or found.get("calls"))
    ]
    if arguments.json:
        print(json.dumps(outcomes, indent=2))
    elif arguments.markdown:
        print(_markdown(outcomes))
    else:
        print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


def _by_tests(mutants: Sequence[Mutant], only: Sequence[str]) -> int:
    """Run mutants that have tests of their own (`mutation.calls`), and print a table."""
    chosen = [m.name for m in mutants if not only or any(part in m.name for part in only)]
    (found,) = _in_processes("calls", [chosen])
    for name, test in found.items():
        print(f"{name:<60} {f'caught by {test}' if test else 'SURVIVED'}")
    print(f"{sum(map(bool, found.values()))} of {len(chosen)} mutants caught")
    return 0 if all(found.values()) else 1


def _litmus(words: Sequence[str]) -> int:
    from mutation.litmus import SAFEGUARDS

    parser = argparse.ArgumentParser(prog="python -m mutation litmus", description=__doc__)
    _add_formats(parser)
    arguments = parser.parse_args(words)
    mutants = list(SAFEGUARDS.values())
    intact, *proofs = _in_processes("prove", [(name,) for name in ("", *mutants)])
    found = dict(zip(SAFEGUARDS, proofs, strict=True))
    if arguments.json:
        print(json.dumps({"intact": intact, "without": found}, indent=2))
    elif arguments.markdown:
        print(_litmus_markdown(intact))
    else:
        for name, proof in found.items():
            fail = sum(bool(each["why"]) for each in proof)
            print(f"{SAFEGUARDS[name]:<80} {fail} of {len(proof)} fail")
    wrong = [f"{each['program']} [{each['mode']}] fails" for each in intact if each["why"]]
    wrong += [
        f"{each['program']} [{each['mode']}] passes although {SAFEGUARDS[name]}"
        for name, proof in found.items()
        for each in proof
        if not each["why"]
    ]
    count = sum(map(len, proofs))
    print(
        *wrong,
        f"{len(intact)} programs and modes pass with every safeguard in; "
        f"{count - len(wrong)} of {count} times one fails with its own taken out",
        sep="\n", file=sys.stderr if arguments.json or arguments.markdown else sys.stdout,
    )  # fmt: skip
    return 1 if wrong else 0


def _add_formats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="a table, for docs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _in_processes(module: str, arguments: Sequence[Sequence[str]]) -> Iterator[Any]:
    """Run the module for each list of arguments, one process per core; yield its JSON output."""

    def run(words: Sequence[str]) -> Any:
        command = [sys.executable, "-m", f"mutation.{module}", *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_LIMIT
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(f"mutation: {words[0]!r} takes more than {_LIMIT} s") from None
        if module == "hunt" and done.returncode < 0:
            crash = {"by": "a program", "why": "a crash"}
            return {"caught": True, "tried": "?", "operations": "?", **crash}
        if done.returncode:
            raise SystemExit(f"mutation: {module} of {words[0]!r} broke down:\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(run, arguments)


def _verdict(found: dict[str, Any]) -> str:
    looked = f"; by {found['calls'] or 'no test'}" if "calls" in found else ""
    if not found["caught"]:
        return f"SURVIVED {found['tried']} programs{looked}"
    count = f"program {found['tried']}, {found['operations']} operations"
    return f"caught by {found['by']!r} ({count}){looked}"


def _markdown(outcomes: dict[str, dict[str, Any]]) -> str:
    looked = any("calls" in found for found in outcomes.values())
    last = "test of the calls" if looked else "operations in the smallest program"
    lines = [f"| safeguard taken out | caught by | {last} |", "|---|---|---|"]
    for name, found in outcomes.items():
        caught = found["by"] if found["caught"] else f"no program of {found['tried']}"
        if looked:
            caught += f": {_kind(found['why'])}" if found["caught"] else ""
            lines.append(f"| {name} | {caught} | `{found['calls']}` |")
        else:
            lines.append(f"| {name} | {caught} | {found.get('operations', '')} |")
    return "\n".join(lines)


def _kind(why: str) -> str:
    """Summarize in a word or two how a program on a device failed."""
    message = re.search(r"\[ ([\w-]+) \]", why)
    if message:
        return f"validation, `{message[1]}`"
    return "wrong values" if "elements are wrong" in why else why.split(":")[0]


def _litmus_markdown(intact: list[dict[str, Any]]) -> str:
    """A table with a row per program: by mode, the paths of its transfers, and its safeguards."""
    from mutation.litmus import GUARDS, SAFEGUARDS
    from penstock.array.transfer import MODES

    paths = {(each["program"], each["mode"]): each["paths"] for each in intact}
    lines = [f"| program | {' | '.join(MODES)} |", "|---" * (len(MODES) + 1) + "|"]
    for program, guards in GUARDS.items():
        if not guards:
            continue  # tests refusals or losses, not order
        cells = (_cell(paths[program, mode], guards[mode]) for mode in MODES)
        lines.append(f"| {program} | {' | '.join(cells)} |")
    lines += ["", "| safeguard | the mutant without it |", "|---|---|"]
    lines += [f"| {name} | {mutant} |" for name, mutant in SAFEGUARDS.items()]
    return "\n".join(lines)


def _cell(paths: list[str], guards: Sequence[str]) -> str:
    taken: dict[str, list[str]] = {}
    for kind, path in map(str.split, paths):
        taken.setdefault(kind, []).append(path)
    ways = ", ".join(f"{kind} {'/'.join(found)}" for kind, found in taken.items())
    shown = "; ".join(f"**{guard}**" for guard in guards)
    return f"{ways}: {shown}" if ways else shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
