"""Lines of the user's program as receipts name them: `train.py:12`, or `cell [3], line 2`.

A notebook runs each cell as a file that does not exist: `<ipython-input-3-…>` in IPython, and a
file in a folder of its own in a kernel of Jupyter's, which knows the cell's number.
"""

from __future__ import annotations

import re
import sys

_IPYTHON = re.compile(r"<ipython-input-(\d+)-\w+>")
_KERNEL = re.compile(r".*[/\\]ipykernel_\d+[/\\]\w+\.py")
_NUMBER = re.compile(r"In\s*\[(\d+)\]")


def line_in_words(file: str, line: int) -> str:
    """File and line, or the number of a notebook's cell and the line in it."""
    if found := _IPYTHON.fullmatch(file):
        return f"cell [{found[1]}], line {line}"
    if _KERNEL.fullmatch(file):
        return f"cell [{_number(file) or '?'}], line {line}"
    return f"{file}:{line}"


def _number(file: str) -> str:
    """The number of the cell behind a file of a kernel, as far as IPython knows it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    formatted = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    found = _NUMBER.search(" ".join(map(str, formatted))) if formatted else None
    return found[1] if found else ""
