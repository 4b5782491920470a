"""Language models on Penstock: `load` a model, and let it `generate` and `chat`.

Uses only the public API of `penstock`. Needs the packages of the extra `llm`
(`pip install penstock-gpu[llm]`), and imports each on first use.
"""

from typing import TYPE_CHECKING

from penstock.llm.errors import ModelError

if TYPE_CHECKING:
    from penstock.llm.answers import Part
    from penstock.llm.chat import ChatTemplate
    from penstock.llm.config import Config, RopeScaling
    from penstock.llm.costs import Cost, Receipt
    from penstock.llm.generation import Generation, Logprob, TokenLogprobs
    from penstock.llm.model import Model, load
    from penstock.llm.modelfile import ModelFile, Tensor, open_model
    from penstock.llm.optimizations import Mechanisms
    from penstock.llm.tokens import Decoder, Tokenizer
    from penstock.llm.tools import ToolCall
    from penstock.llm.variants import Variants
    from penstock.llm.weights import Piece, Weight, Weights, place

__all__ = [
    "ChatTemplate",
    "Config",
    "Cost",
    "Decoder",
    "Generation",
    "Logprob",
    "Mechanisms",
    "Model",
    "ModelError",
    "ModelFile",
    "Part",
    "Piece",
    "Receipt",
    "RopeScaling",
    "Tensor",
    "TokenLogprobs",
    "Tokenizer",
    "ToolCall",
    "Variants",
    "Weight",
    "Weights",
    "load",
    "open_model",
    "place",
]

# Modules are imported on first use: generating from ids needs no tokenizer, and opening a file no
# GPU.
_HOMES = {
    "ChatTemplate": "chat",
    "Config": "config",
    "Cost": "costs",
    "Decoder": "tokens",
    "Generation": "generation",
    "Logprob": "generation",
    "Mechanisms": "optimizations",
    "Model": "model",
    "ModelFile": "modelfile",
    "Part": "answers",
    "Piece": "weights",
    "Receipt": "costs",
    "RopeScaling": "config",
    "Tensor": "modelfile",
    "TokenLogprobs": "generation",
    "Tokenizer": "tokens",
    "ToolCall": "tools",
    "Variants": "variants",
    "Weight": "weights",
    "Weights": "weights",
    "load": "model",
    "open_model": "modelfile",
    "place": "weights",
}


# Not for type checkers, as in `penstock`.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'penstock.llm' has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"penstock.llm.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*__all__, "__doc__"})
