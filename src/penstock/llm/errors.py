"""The error of this package: a model file that is damaged, unsupported, or not a model."""

from __future__ import annotations

from penstock import Error

__all__ = ["ModelError"]


class ModelError(Error, ValueError):
    """A model file, tokenizer or chat template that cannot be used; the message says why."""


def not_finite(position: int) -> ModelError:
    """The error for logits that have a NaN: those that decide which token is at `position`."""
    return ModelError(
        f"the logits for the token at position {position} are not finite: one of them at least is "
        "NaN, so no token can be chosen. A weight in the file is NaN or infinite, or the model's "
        "numbers became too large for their type. Check the file, for example by its checksum, or "
        "download it again; if it is right, load it with cache='f32', or take a file with weights "
        "of another type"
    )
