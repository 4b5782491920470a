"""What goes wrong with a model: a file that is damaged, unusual, or not a model at all."""

from __future__ import annotations

from penstock import Error

__all__ = ["ModelError"]


class ModelError(Error, ValueError):
    """A model file, tokenizer or chat template that cannot be used; says which part, and why."""
