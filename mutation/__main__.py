"""`python -m mutation`: hunt every mutant; the table, and exit code 1 if one survives."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from mutation.mutants import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of mutants, or parts of them (default: all)")
    parser.add_argument("--programs", type=int, default=2000, help="random ones, at most, for each")
    parser.add_argument(
        "--markdown", action="store_true", help="a table with the programs, for docs"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if not arguments.only or any(o in m.name for o in arguments.only)]
    outcomes: dict[str, dict[str, Any]] = {}
    for number, mutant in enumerate(chosen, 1):
        outcomes[mutant.name] = found = _hunt(mutant.name, arguments.programs)
        if not arguments.json and not arguments.markdown:
            print(f"{number:>3}/{len(chosen)}  {mutant.name:<52} {_verdict(found)}", flush=True)
    survivors = [name for name, found in outcomes.items() if not found["caught"]]
    if arguments.json:
        print(json.dumps(outcomes, indent=2))
    elif arguments.markdown:
        print(_markdown(outcomes))
    else:
        print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


def _hunt(name: str, programs: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mutation.hunt", name, str(programs)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"mutation: the hunt for {name!r} broke down:\n{done.stderr}")
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def _verdict(found: dict[str, Any]) -> str:
    if not found["caught"]:
        return f"SURVIVED {found['tried']} programs"
    return f"caught by {found['by']!r} (program {found['tried']}), {found['operations']} operations"


def _markdown(outcomes: dict[str, dict[str, Any]]) -> str:
    lines = ["| safeguard taken out | caught by | smallest program |", "|---|---|---|"]
    for name, found in outcomes.items():
        caught = f"`{found['by']}`" if found["caught"] else "**not caught**"
        lines.append(f"| {name} | {caught} | {found.get('operations', '')} operations |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
