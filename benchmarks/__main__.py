"""`python -m benchmarks transfer`, `launch`, `access`, `loads`, `products`, `layers`, `peers`.

`penstock bench` has the harness; `transfer` and `launch` are groups of its `runtime`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Rounds, and with --quick.
_REPEAT = {
    "transfer": (30, 3), "launch": (200, 20), "access": (20, 2), "loads": (30, 2),
    "products": (30, 2),
    "layers": (30, 2), "peers": (200, 8),
}  # fmt: skip
#: What `penstock bench runtime` measures, by its groups.
_RUNTIME = {"transfer": ("transfer", "adopt"), "launch": ("launch", "tracing")}


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.peers and arguments.what != "launch":
        parser.error("--peers goes with launch")
    peers = arguments.peers or arguments.what == "peers"
    if arguments.what in ("launch", "peers"):
        # Lavapipe's worker threads would compete with the interpreter for the cores. Mesa reads
        # this when it is loaded, which is why everything that loads it is imported below.
        os.environ.setdefault("LP_NUM_THREADS", "0")
    repeat = arguments.repeat or _REPEAT[arguments.what][arguments.quick]

    import penstock as ps
    from benchmarks import access, kept, layers, loads, products, tables
    from benchmarks.peers import comparison, decoding, environments
    from penstock.bench import forms, measure, runtime

    unknown = sorted(set(arguments.only or ()) - set(environments.KINDS))
    if unknown:
        parser.error(f"--only knows {', '.join(environments.KINDS)}; not {', '.join(unknown)}")

    modules = {"access": access, "loads": loads, "products": products, "layers": layers}
    directory = arguments.peers_dir or environments.default_directory()
    try:
        with ps.Device(arguments.device) as device:
            if arguments.what in _RUNTIME and not peers:
                rows = runtime.measure(device, _RUNTIME[arguments.what], repeat)
                form = "json" if arguments.json else "md"
                for line in forms.write(form, rows, forms.runtime_columns()):
                    print(line, flush=True)
                return 0
            about = tables.machine(device)
            if peers:
                sections = comparison.compare(
                    device,
                    repeat,
                    only=arguments.only or environments.KINDS,
                    directory=directory,
                    reinstall=arguments.reinstall,
                )
            else:
                sections = modules[arguments.what].run(device, repeat)
            if arguments.what == "peers":
                sections.append(
                    decoding.compare(
                        device,
                        max(3, repeat // 20),
                        arguments.model or (),
                        directory=directory,
                        reinstall=arguments.reinstall,
                    )
                )
                print(f"kept in {kept.keep('peers', about, sections)}", file=sys.stderr)
    except (measure.WrongResult, ps.NoDevice) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    shown = tables.as_json if arguments.json else tables.as_text
    print(shown(arguments.what, about, sections))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        choices=list(_REPEAT),
        help="transfer: host to device and back, against numpy.copyto on the same memory; "
        "launch: the host's cost of a launch, against the bare Vulkan calls, and traced; "
        "access: waits for CPU access in a loop shaped like decoding, under five rules; "
        "loads: a load of 16 bytes through storage, uniform and texel buffers; "
        "products: weights a second of matrices in every file layout, against NumPy; "
        "layers: the other kernels of a decoder; "
        "peers: launch --peers, and decoding beside llama.cpp on the CPU; kept in results/",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds of the interleaved run")
    parser.add_argument("--device", metavar="NAME", help="a part of the device's name")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument(
        "--model", metavar="FILE", type=Path, action="append", help="with peers; may be repeated"
    )
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
        help="of the peers these alone, such as c,penstock,wgpu",
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
