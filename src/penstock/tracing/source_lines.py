"""Lines of the user's program as receipts name them: `train.py:12`, or `cell [3], line 2`.

Also the calls in them: the text of the expression whose evaluation led into Penstock.

A notebook runs each cell as a file that does not exist: `<ipython-input-3-…>` in IPython, and a
file in a folder of its own in a kernel of Jupyter's, which knows the cell's number.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import sys
from types import CodeType

_IPYTHON = re.compile(r"<ipython-input-(\d+)-\w+>")
_KERNEL = re.compile(r".*[/\\]ipykernel_\d+[/\\]\w+\.py")
_NUMBER = re.compile(r"In\s*\[(\d+)\]")
_CELL_LINE = re.compile(r"(cell \[.*\]), line (\d+)")
_UNIT = 2  # bytes of code that have a position of their own


def line_in_words(file: str, line: int) -> str:
    """File and line, or the number of a notebook's cell and the line in it."""
    if found := _IPYTHON.fullmatch(file):
        return f"cell [{found[1]}], line {line}"
    if _KERNEL.fullmatch(file):
        return f"cell [{_number(file) or '?'}], line {line}"
    return f"{file}:{line}"


def file_and_line(where: str) -> tuple[str, int]:
    """The file, or the cell, and the number of a line as `line_in_words` names it."""
    if found := _CELL_LINE.fullmatch(where):
        return found[1], int(found[2])
    file, _, number = where.rpartition(":")
    return file, int(number) if number.isdecimal() else 0


def call_text(code: CodeType, instruction: int) -> str:
    """The source of the call that an instruction makes, on one line; "" if it cannot be found."""
    positions = itertools.islice(code.co_positions(), instruction // _UNIT, None)
    first, last, start, end = next(positions, (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return ""
    linecache.checkcache(code.co_filename)  # it may have been edited, and run again
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if len(lines) != last - first + 1:
        return ""
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][start:]
    try:
        found = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
        return ast.unparse(found) if isinstance(found, ast.Call) else ""
    except (SyntaxError, ValueError):  # the file is not the one that runs
        return ""
    except (RecursionError, MemoryError):  # hundreds of expressions within each other
        return ""


def _number(file: str) -> str:
    """The number of the cell behind a file of a kernel, as far as IPython knows it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    formatted = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    found = _NUMBER.search(" ".join(map(str, formatted))) if formatted else None
    return found[1] if found else ""
