"""Refuses conversations that hold more than text: models are run without their image encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import penstock as ps

_KINDS = ("image", "video", "audio")


def check_text_only(messages: Sequence[object]) -> None:
    """Raise `Unsupported` if a message has a part that is an image, a video or a sound."""
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list | tuple) else ():
            if not isinstance(part, Mapping):
                continue
            names = [str(part.get("type", "")), *(str(key) for key in part)]
            kind = next((kind for kind in _KINDS if any(kind in name for name in names)), None)
            if kind is not None:
                raise ps.Unsupported(
                    f"message {number} has a part of type {names[0][:40]!r}: only the text of "
                    f"models is run, and their encoders of {kind}s are ignored. Leave the part "
                    "out, or say in words what it shows"
                )
