"""A call that waits for a value as two: one that does not wait, and one that takes the value later.

`float(x[0])` is `pending = x[0].read()` and `float(pending.result())`. The program may launch more
between the two.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

_METHODS = ("item", "numpy", "result", "tolist")  # of arrays and of pending values
_BUILTINS = ("bool", "complex", "float", "int")
_CONVERSIONS = ("array", "asarray", "asanyarray", "ascontiguousarray")  # NumPy's
_OPERANDS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp)
_LONGEST = 60  # characters of an expression that fits into a sentence


class Split(NamedTuple):
    """The two calls."""

    begin: str  #: does not wait
    take: str  #: waits for the value, which is the same

    @property
    def is_named(self) -> bool:
        """Whether the program already has a name for the pending value."""
        return self.begin.isidentifier()


def split_read(call: str) -> Split | None:
    """The split of a call that reads an array; None if the array is not evident."""
    found = _parts(call)
    if found is None or _method(found[1]) == "result":
        return None
    array, node = found
    begin = ast.unparse(ast.Call(ast.Attribute(array, "read", ast.Load()), [], []))
    is_array = _method(node) in ("numpy", *_CONVERSIONS) and not node.keywords
    return _fitting(begin, "pending.result()" if is_array else _with(node, "pending.result()"))


def split_pending(call: str) -> Split | None:
    """The split of a call that waits for a pending value; None if the value is not evident."""
    found = _parts(call)
    if found is None:
        return None
    begin = ast.unparse(found[0])
    return _fitting(begin, _with(found[1], begin if begin.isidentifier() else "pending"))


def view_of(call: str) -> str:
    """The call that shows in place what a call reads; "" if the array is not evident."""
    found = _parts(call)
    if found is None:
        return ""
    view = ast.Attribute(found[0], "view", ast.Load())
    return ast.unparse(ast.Call(view, [ast.Constant("r")], []))


def _parts(call: str) -> tuple[ast.expr, ast.Call] | None:
    """The array or pending value that a call takes the value of, and the call."""
    try:
        node = ast.parse(call, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        return None
    operand = _operand(node) if isinstance(node, ast.Call) else None
    return (
        (operand, node) if isinstance(node, ast.Call) and isinstance(operand, _OPERANDS) else None
    )


def _operand(node: ast.Call) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _METHODS:
            return value
        case ast.Call(func=ast.Attribute(attr=name), args=[value]) if name in _CONVERSIONS:
            return value
        case ast.Call(func=ast.Name(id=name), args=[value], keywords=[]) if name in _BUILTINS:
            return value
    return None


def _method(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _with(node: ast.Call, value: str) -> str:
    """The call, made of another value."""
    other = ast.parse(value, mode="eval").body
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        function = ast.Attribute(other, node.func.attr, ast.Load())
        return ast.unparse(ast.Call(function, node.args, node.keywords))
    return ast.unparse(ast.Call(node.func, [other], node.keywords))


def _fitting(begin: str, take: str) -> Split | None:
    return Split(begin, take) if max(len(begin), len(take)) <= _LONGEST else None
