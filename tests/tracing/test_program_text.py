"""What the text of a program tells about a value, and about what runs between two lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from penstock.tracing.program_text import has_code_between, only_keeps_value, value_use


def number_of(text: str, mark: str) -> int:
    (number,) = (i for i, line in enumerate(text.splitlines(), 1) if mark in line)
    return number


@pytest.mark.parametrize(
    ("body", "steers"),
    [
        ("if value(): pass  # here", True),
        ("while value() or x: x = 0  # here", True),
        ("y = 1 if value() else 2  # here", True),
        ("y = [i for i in x if value()]  # here", True),
        ("assert value()  # here", True),
        ("y = value() and f()  # here", True),
        ("y = f() and value()  # here", False),
        ("error = value()  # here\n    if error > 1: break", True),
        ("self.error = value()  # here\n    if self.error > 1: break", True),
        ("error = value()  # here\n    small = error < 1\n    if not small: continue", True),
        ("total += value()  # here\n    print(total)", False),
        ("values.append(value())  # here\n    if x: break", False),
        ("for _ in range(3):\n        error = value()  # here\n    if error: break", True),
    ],
)  # fmt: skip
def test_a_value_that_decides(tmp_path: Path, body: str, steers: bool) -> None:
    program = tmp_path / "program.py"
    text = f"for turn in range(9):\n    {body}\n"
    program.write_text(text)
    found = value_use(f"{program}:{number_of(text, '# here')}", "value()")
    assert found is not None
    assert found.steers is steers
    assert found.looped
    assert not found.leaves


def test_the_condition_of_the_loop_itself(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("error = 1\nwhile error > 1e-3:\n    error = float(x.max())\n")
    found = value_use(f"{program}:3", "float(x.max())")
    assert found is not None
    assert found.steers
    assert found.lines == {2}


def test_long_programs(tmp_path: Path) -> None:
    """Names that are given each other in thousands, last first, and calls that nest by hundreds."""
    program = tmp_path / "program.py"
    names = "".join(f"    a{n + 1} = a{n}\n" for n in reversed(range(3000)))
    program.write_text(
        f"for _ in range(9):\n    a0 = float(x.max())\n{names}    if a3000: break\n"
        f"    b = str(a0){'.strip()' * 500}\n"
    )
    found = value_use(f"{program}:2", "float(x.max())")
    assert found is not None
    assert found.steers
    assert len(found.lines) == 3002
    assert value_use(f"{program}:3004", "str(a0)") is not None
    assert not only_keeps_value(f"{program}:3004", "str(a0)", [f"{program}:{n}" for n in (2, 3004)])


def test_lines_that_use_the_value(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "for _ in range(9):\n    a = float(x.max())\n    b = 2 * a\n    f(x, b)\na\n"
    )
    found = value_use(f"{program}:2", "float(x.max())")
    assert found is not None
    assert found.lines == {3, 4}


def test_a_value_that_leaves_its_function(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = """\
    class C:
        def value(self):
            return float(self.x[0])  # returned
        def all(self):
            for x in self.xs:
                yield float(x[0])  # yielded
        def kept(self):
            self.y = float(self.x[0])  # kept
    """
    program.write_text(text := textwrap.dedent(text))
    uses = [
        value_use(f"{program}:{number_of(text, mark)}", "")
        for mark in ("# returned", "# yielded", "# kept")
    ]
    assert [use and (use.leaves, use.looped) for use in uses] == [
        (True, False), (True, True), (False, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keeps", "rest", "expected"),
    [
        ("total += value()", "f()", True),
        ("total = total + round(value(), 3)", "f()", True),
        ("values.append(value())", "f()", True),
        ("values[turn] = value()", "f()", True),
        ("a, (b, *c) = value(), (1, 2)", "f()", True),
        ("value()", "f()", True),
        ("total += value()", "total = 0", True),
        ("total += value()", "f(total)", False),
        ("total += value()", "total += 1", False),
        ("total += value()", "del total", False),
        ("total = (other := value())", "f(other)", False),
        ("values.append(value())", "f(values[-1])", False),
        ("values[turn] = value()", "values.sort()", False),
        ("a, (b, *c) = 1, (2, value())", "f(c)", False),
        ("self.total += value()", "f()", False),  # who has the object can use it
        ("self.values[0] = value()", "f()", False),
        ("self.values.append(value())", "f()", False),
        ("total = g(value())", "f()", False),  # which runs in the line itself
        ("print(value())", "f()", False),
        ("total = value().sum()", "f()", False),
        ("total = other()", "f()", False),  # not the call
        ("values[value()] = 1", "f()", False),
        ("with g(value()): pass", "f()", False),
        ("g(); total += value()", "f()", False),  # two statements in one line
    ],
)
def test_a_value_that_the_loop_only_keeps(
    tmp_path: Path, keeps: str, rest: str, expected: bool
) -> None:
    programs = {
        "script.py": (
            f"def f(): pass\nfor turn in range(9):\n    {keeps}  # here\n    {rest}\nprint(total)\n"
        ),
        "function.py": (
            f"def run(f):\n  while g():\n    step()\n    {keeps}  # here\n    {rest}\n  f(total)\n"
        ),
    }
    for name, text in programs.items():
        program = tmp_path / name
        program.write_text(text)
        line = number_of(text, "# here")
        where, after = f"{program}:{line}", f"{program}:{line + 1}"
        assert only_keeps_value(where, "value()", (where, after)) is expected
        assert not only_keeps_value(where, "", (where, after))
        assert not only_keeps_value(where, "value()", (where,))  # code in the line itself
        for elsewhere in (f"{program}:1", f"{program}:99", "other.py:3"):
            assert not only_keeps_value(where, "value()", (where, elsewhere))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(): print(total)\nwhile True:\n    total += value()  # here\n    f()\n", False),
        ("def f(): print(other)\nwhile True:\n    total += value()  # here\n    f()\n", True),
        ("def g():\n  def f(): print(total)\n  while True:\n    total = value()  # here\n    f()\n",
         False),
        ("def g():\n  f = lambda: total\n  while True:\n    total = value()  # here\n    f()\n",
         False),
        ("def f(): print(total)\ndef g():\n  while True:\n    total = value()  # here\n    f()\n",
         True),  # another name
        ("def f(): print(total)\ndef g():\n  global total\n  while True:\n"
         "    total += value()  # here\n    f()\n", False),
        ("def g():\n  global total\n  while True:\n    total += value()  # here\n    f()\n", True),
        ("while True:\n  total = 0\n  for _ in x:\n    total += value()  # here\n    f()\n"
         "  print(total)\n", False),  # needed in the next turn of the outer loop
        ("def g():\n    total = value()  # here\n    f()\n", False),  # no loop
    ],
)  # fmt: skip
def test_functions_and_loops_that_see_the_value(tmp_path: Path, text: str, expected: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    line = number_of(text, "# here")
    where, after = f"{program}:{line}", f"{program}:{line + 1}"
    assert only_keeps_value(where, "value()", (where, after)) is expected


def test_nothing_is_known_without_the_text(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("this is no program\n")
    for where in (f"{program}:1", f"{tmp_path}/none.py:1", "cell [3], line 2", ""):
        assert value_use(where, "f()") is None
        assert not only_keeps_value(where, "f()", (where, where))
        assert has_code_between(where, where)


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("f()\ng()\nh()\n", (1, 3), True),
        ("f()\n\n# nothing\ng()\n", (1, 4), False),
        ("for _ in range(3):\n    f()\n", (2, 2), False),
        ("for _ in range(3):\n    f()\n    h()\n", (2, 2), True),
        ("for _ in range(3):\n    g()\n    f()\n", (3, 3), True),
        ("for _ in range(3):\n    f()\n    g()\n", (3, 2), False),
        ("for _ in range(3):\n    f(\n        1)\n    pass\n", (2, 2), False),
        ("for batch in loader:\n    f()\n", (2, 2), True),
        ("while True:\n    f()\n", (2, 2), False),
        ("def f():\n    g()\n", (2, 2), True),  # called from elsewhere
    ],
)  # fmt: skip
def test_code_between_lines(
    tmp_path: Path, text: str, lines: tuple[int, int], expected: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    first, last = (f"{program}:{line}" for line in lines)
    assert has_code_between(first, last) is expected
    every = [f"{program}:{line}" for line in range(1, 9)]
    if "loader" not in text and "def" not in text:
        assert not has_code_between(first, last, every)
