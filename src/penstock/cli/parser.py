"""The parser of a command, and what a misspelt word may have meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class Parser(argparse.ArgumentParser):
    """Refuses unknown options itself: a command's parser would leave them to the one above it,
    whose usage has none of the command's options.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            first = next((word for word in unknown if word[:1] in self.prefix_chars), "")
            meant = did_you_mean(first.partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What to append to an error about a word; nothing if no known one is close."""
    meant = get_close_matches(word, known, n=1)
    return f"; did you mean {meant[0]}?" if meant else ""
