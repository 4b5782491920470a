"""What the text of a program tells about its lines: where a value goes, and what runs between two.

Advice asks this before it moves the wait for a value, or code, out of a loop. It is no proof: a
value may leave a function, and come back. Where the text is not at hand, nothing is known.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Collection, Iterator
from typing import NamedTuple

from penstock.tracing.source_lines import file_and_line

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_TRIVIAL = (ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal)
_CONVERSIONS = ("abs", "bool", "complex", "float", "int", "round")  # which keep no value


class ValueUse(NamedTuple):
    """What a function does with the value of a call, in the loop around it."""

    steers: bool  #: whether it decides what the program does next
    lines: frozenset[int]  #: of the loop, that use it by a name
    leaves: bool  #: whether the function returns it, so that others use it
    looped: bool  #: whether there is a loop


def value_use(where: str, call: str) -> ValueUse | None:
    """What becomes of the value of a call; of all in the line if the call is ""."""
    path = _path(where)
    if not path:
        return None
    statement = path[-1]
    leaves = isinstance(statement, ast.Return) or any(
        isinstance(node, (ast.Yield, ast.YieldFrom, ast.Lambda)) for node in _heads(statement)
    )
    loop, names = _loop(path), _targets(statement)
    line = file_and_line(where)[1]
    if any(_decides(each, call) for each in path if line <= _head_end(each)):
        return ValueUse(True, frozenset(), leaves, loop is not None)
    inside = [] if loop is None else list(ast.walk(loop))
    names = _with_derived(inside, names)
    steers = any(_uses(test, names) for node in inside for test in _tests(node))
    lines = {
        node.lineno
        for node in inside
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and _name(node) in names
    }
    return ValueUse(steers, frozenset(lines), leaves, loop is not None)


def only_keeps_value(where: str, call: str, lines: Collection[str]) -> bool:
    """Whether the loop around a call, which has these lines in it, keeps its value without a use.

    False also where that is not evident, as of a value that is passed to a function.
    """
    path = _path(where)
    loop, names = _loop(path), _keeps(path[-1], call) if path else None
    file, line = file_and_line(where)
    if loop is None or names is None or len(lines) < 2:
        return False
    places = [file_and_line(each) for each in lines]
    if not all(other == file and loop.lineno <= at <= _end(loop) for other, at in places):
        return False
    if [each for each in _simple(loop) if each.lineno <= line <= _end(each)] != path[-1:]:
        return False  # several statements share the line
    others = set(ast.walk(loop))
    for function in _that_may_use(names, path, _tree(file)):
        others.update(ast.walk(function))
    return not any(_loads(node, names) for node in others.difference(ast.walk(path[-1])))


def has_code_between(first: str, last: str, known: Collection[str] = ()) -> bool:
    """Whether a program does anything between two lines, the second perhaps in the next turn.

    What it does at lines that are `known` does not count.
    """
    start, end = _path(first), _path(last)
    file = file_and_line(first)[0]
    if not start or not end or file != file_and_line(last)[0]:
        return True  # as far as is known
    before, after = start[-1], end[-1]
    if before.lineno < after.lineno:
        found = [
            each
            for each in _simple(_tree(file))
            if _end(before) < each.lineno <= _end(each) < after.lineno
        ]
    else:
        loop = _loop(start)
        if loop is None or (isinstance(loop, (ast.For, ast.AsyncFor)) and not _is_range(loop.iter)):
            return True
        found = [
            each
            for each in _simple(loop)
            if each not in (before, after)
            and (each.lineno > _end(before) or _end(each) < after.lineno)
        ]
    lines = {file_and_line(each) for each in known}
    return any((file, each.lineno) not in lines for each in found)


def _path(where: str) -> list[ast.stmt]:
    """The statements around a line, the outermost first; none if the text is not at hand."""
    file, line = file_and_line(where)
    found: list[ast.stmt] = []
    body = _tree(file).body
    while inner := next((each for each in body if each.lineno <= line <= _end(each)), None):
        found.append(inner)
        body = [each for each in ast.iter_child_nodes(inner) if isinstance(each, ast.stmt)]
        for handler in getattr(inner, "handlers", []):
            body += handler.body
        for case in getattr(inner, "cases", []):
            body += case.body
    return found


def _tree(file: str) -> ast.Module:
    return _parsed("".join(linecache.getlines(file)))


@functools.lru_cache(8)
def _parsed(text: str) -> ast.Module:
    """A program's tree; an empty one if the text is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _head_end(statement: ast.stmt) -> int:
    """The last line of a statement, without the statements within it."""
    lines = (getattr(node, "end_lineno", None) or 0 for node in _heads(statement))
    return max(statement.lineno, *lines, 0)


def _heads(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without those of statements within it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from ast.walk(child)


def _simple(root: ast.AST) -> Iterator[ast.stmt]:
    """The statements within one that do something and have none within them."""
    for node in ast.walk(root):
        if not isinstance(node, ast.stmt) or isinstance(node, _TRIVIAL):
            continue
        if not any(isinstance(each, ast.stmt) for each in ast.iter_child_nodes(node)):
            yield node


def _loop(path: list[ast.stmt]) -> ast.For | ast.AsyncFor | ast.While | None:
    """The outermost loop around the last statement, in the same function."""
    found = None
    for each in path:
        if isinstance(each, _SCOPES):
            found = None
        elif isinstance(each, _LOOPS) and (each is not path[-1] or isinstance(each, ast.While)):
            found = found or each
    return found


def _tests(node: ast.AST) -> list[ast.expr]:
    """The expressions by which a node decides."""
    match node:
        case (
            ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test)
        ):
            return [test]
        case ast.comprehension(ifs=tests):
            return tests
        case ast.BoolOp(values=values):
            return values[:-1]
        case ast.Match(subject=subject):
            return [subject]
    return []


def _decides(statement: ast.stmt, call: str) -> bool:
    tests = [test for node in (statement, *_heads(statement)) for test in _tests(node)]
    return any(
        not call or (isinstance(node, ast.Call) and _text(node) == call)
        for test in tests
        for node in ast.walk(test)
    )


def _targets(statement: ast.stmt) -> set[str]:
    """What a statement gives a value to."""
    return {
        name
        for node in _heads(statement)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
        if (name := _name(node))
    }


def _with_derived(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """These names, and those that are given something that is made of one of them."""
    made_of: dict[str, list[set[str]]] = {}
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
            targets = _targets(node)
            for name in _names(node.value):
                made_of.setdefault(name, []).append(targets)
    found, left = set(names), list(names)
    while left:
        for targets in made_of.get(left.pop(), ()):
            left += targets - found
            found |= targets
    return found


def _keeps(statement: ast.stmt, call: str) -> set[str] | None:
    """The names that keep the value of a call; None if a statement may do more with it."""
    names: set[str] = set()
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [value], [])):
            names.add(name)
        case ast.Expr(value) | ast.Assign(_, value) | ast.AugAssign(_, _, value):
            pass
        case _:
            return None
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    found = [node for node in calls if _text(node) == call]
    for outer in calls:
        passes = outer not in found and not set(found).isdisjoint(ast.walk(outer))
        if passes and _name(outer.func) not in _CONVERSIONS:
            return None
    for node in ast.walk(statement):
        match node:
            case ast.Name(name, ast.Store()) | ast.Subscript(ast.Name(name), _, ast.Store()):
                names.add(name)
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                return None  # others may use it by the object
    return names if found else None


def _that_may_use(names: set[str], path: list[ast.stmt], program: ast.Module) -> Iterator[ast.AST]:
    """The functions that a loop may call, and that see its names."""
    scopes = [each for each in path if isinstance(each, _SCOPES)]
    shared = not scopes or any(
        isinstance(node, (ast.Global, ast.Nonlocal)) and not names.isdisjoint(node.names)
        for node in ast.walk(scopes[-1])
    )
    root: ast.AST = program if shared else scopes[-1]
    for node in ast.walk(root):
        if node is not root and isinstance(node, _FUNCTIONS):
            yield node


def _loads(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Name(name, ast.Load() | ast.Del()) | ast.AugAssign(ast.Name(name)):
            return name in names
    return False


def _uses(node: ast.AST, names: set[str]) -> bool:
    return not names.isdisjoint(_names(node))


def _names(node: ast.AST) -> Iterator[str]:
    return filter(None, map(_name, ast.walk(node)))


def _name(node: ast.AST) -> str:
    """A name, with attributes: `a.b.c`; of any other expression, nothing."""
    attributes = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(attributes)]) if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str:
    """An expression as text; of one that is nested too deeply, nothing."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in ("range", "itertools.repeat")
