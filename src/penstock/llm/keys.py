"""Typed access to the keys of a model's files, which may hold anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.llm.errors import ModelError


class Keys:
    """Typed access to untrusted keys; every error names the file and the key."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = values

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        if isinstance(value, np.ndarray) and value.size:  # one number per layer
            if not (value == value[0]).all():
                raise ModelError(f"{self.where}: {key} differs from layer to layer: not supported")
            value = value[0].item()
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        try:
            made = float(value)
        except OverflowError:
            made = math.inf
        if not math.isfinite(made):
            raise self._wrong(key, "a finite number", value)
        return made

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def inner(self, key: str) -> Keys:
        value = self._values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Keys(f"{self.where}: {key}", value or {})

    def _wrong(self, key: str, wanted: str, value: Any) -> ModelError:
        if value is None:
            return ModelError(f"{self.where}: {key} is missing; it must be {wanted}")
        shown = repr(value)
        return ModelError(f"{self.where}: {key} must be {wanted}, not {shown[:80]}")
