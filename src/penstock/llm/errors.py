"""The error of this package: a model file that is damaged, unsupported, or not a model."""

from __future__ import annotations

from penstock import Error

__all__ = ["ModelError"]


class ModelError(Error, ValueError):
    """A model file, tokenizer or chat template that cannot be used; the message says why."""
