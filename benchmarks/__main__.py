"""`python -m benchmarks WHAT`: measurements of transfers, launches, kernels and models.

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
    "layers": (30, 2), "models": (3, 1), "peers": (200, 8), "arrays": (15, 1), "documents": (1, 1),
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
    if arguments.what == "arrays":  # matrix products of one thread
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments.what == "models":  # which has threads of its own, to measure what a core can do
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    repeat = arguments.repeat or _REPEAT[arguments.what][arguments.quick]

    if arguments.what == "documents":
        from benchmarks import documents

        print("\n".join(str(file) for file in documents.write()))
        return 0

    import penstock as ps
    from benchmarks import access, arrays, kept, layers, loads, models, products, tables
    from benchmarks.peers import comparison, conversation, decoding, environments
    from penstock.bench import forms, measure, runtime

    known = models.PROGRAMS if arguments.what == "models" else tuple(environments.KINDS)
    unknown = sorted(set(arguments.only or ()) - set(known))
    if unknown:
        parser.error(f"--only knows {', '.join(known)}; not {', '.join(unknown)}")

    modules = {
        "access": access, "arrays": arrays, "loads": loads, "products": products, "layers": layers,
    }  # fmt: skip
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
            elif arguments.what == "models":
                sections = models.run(
                    models.Plan(
                        arguments.model or (), arguments.prompts, arguments.tokens, arguments.depth,
                        arguments.threads, repeat, arguments.device, arguments.against,
                        arguments.only or known, directory, arguments.reinstall,
                    )
                )  # fmt: skip
            elif arguments.what == "arrays":
                sections = arrays.run(device, repeat, tuple(arguments.sizes))
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
    except (measure.WrongResult, ps.NoDevice, conversation.Lost) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    if arguments.keep or arguments.what == "peers":
        kind = "peers" if peers else arguments.what
        print(f"kept in {kept.keep(kind, about, sections)}", file=sys.stderr)
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
        "arrays: operations on arrays beside NumPy's, with the receipt's counts; "
        "models: whole models beside llama.cpp on the CPU and another checkout, and each kernel; "
        "peers: launch --peers, and decoding beside llama.cpp on the CPU; kept in results/; "
        "documents: write the tables of the docs from what is kept there",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--keep", action="store_true", help="also write JSON to results/")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds of the interleaved run")
    parser.add_argument("--device", metavar="NAME", help="a part of the device's name")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    parser.add_argument(
        "--model", metavar="FILE", type=Path, action="append",
        help="with models and peers; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--against", metavar="DIR", type=Path, help="with models: another checkout of Penstock"
    )
    parser.add_argument(
        "--prompts", metavar="N,…", type=_numbers, default=[64, 512],
        help="with models: the lengths of prompts (64,512)",
    )  # fmt: skip
    parser.add_argument(
        "--sizes", metavar="N,…", type=_numbers, default=[1000, 64000, 1000000, 4000000, 16000000],
        help="with arrays: the numbers of elements (1,000 to 16 million)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", metavar="N", type=int, default=32, help="with models: tokens to generate (32)"
    )
    parser.add_argument(
        "--depth", metavar="N", type=int, default=0,
        help="with models: tokens in the cache before the prompt (0)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", metavar="N,…", type=_numbers, default=[1, 2],
        help="with models: threads of every program (1,2)",
    )  # fmt: skip
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
        help="of the peers these alone, such as c,penstock,wgpu; with models: of penstock, against "
        "and llama.cpp",
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


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
