"""`python -m benchmarks transfer`, `launch` (also with `--peers`), `access`, and `layers`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Rounds, and with --quick.
_REPEAT = {"transfer": (30, 3), "launch": (200, 20), "access": (20, 2), "layers": (20, 1)}


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.peers and arguments.what != "launch":
        parser.error("--peers goes with launch")
    if arguments.what == "launch":
        # Lavapipe's worker threads would compete with the interpreter for the cores. Mesa reads
        # this when it is loaded, which is why everything that loads it is imported below.
        os.environ.setdefault("LP_NUM_THREADS", "0")
    repeat = arguments.repeat or _REPEAT[arguments.what][arguments.quick]

    import penstock as ps
    from benchmarks import access, launch, layers, measure, report, transfer
    from benchmarks.peers import comparison, environments

    unknown = sorted(set(arguments.only or ()) - set(environments.KINDS))
    if unknown:
        parser.error(f"--only knows {', '.join(environments.KINDS)}; not {', '.join(unknown)}")

    benchmarks = {"transfer": transfer, "launch": launch, "access": access, "layers": layers}
    chosen = benchmarks[arguments.what]
    try:
        with ps.Device(arguments.device) as device:
            about = report.machine(device)
            if arguments.peers:
                sections = comparison.compare(
                    device,
                    repeat,
                    only=arguments.only or environments.KINDS,
                    directory=arguments.peers_dir or environments.default_directory(),
                    reinstall=arguments.reinstall,
                )
            else:
                sections = chosen.run(device, repeat)
    except (measure.WrongResult, ps.NoDevice) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    form = report.as_json if arguments.json else report.as_text
    print(form(arguments.what, about, sections))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        choices=list(_REPEAT),
        help="transfer: host to device and back, against numpy.copyto on the same memory; "
        "launch: the host's cost of a launch, against the bare Vulkan calls; "
        "access: waits for CPU access in a loop shaped like decoding, under five rules; "
        "layers: the kernels of a decoder layer besides its products, and sampling",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds of the interleaved run")
    parser.add_argument("--device", metavar="NAME", help="a part of the device's name")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="with launch: the same jobs in other runtimes, side by side. What is missing of them "
        "is installed first, from the package index, in virtual environments of their own",
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        type=lambda names: names.split(","),
        help="with --peers: these alone, such as c,penstock,wgpu",
    )
    parser.add_argument(
        "--peers-dir",
        metavar="DIR",
        type=Path,
        help="with --peers: where they are installed; below ~/.cache/penstock if not given",
    )
    parser.add_argument(
        "--reinstall", action="store_true", help="with --peers: install them anew, failed ones too"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
