"""`penstock doctor --report`: the text with which a person reports a run on their device.

It has the device, its driver and limits, how the conformance suite went, and three timings, as
Markdown to paste into an issue. It names no file, host or user: every text that a driver or an
error supplied goes through `scrub`. The suite and the timings run in processes of their own: the
report of a device whose driver crashes says so.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock import __version__, accelerator
from penstock.cli.doctor import Checked
from penstock.cli.timings import ELEMENTS, Timings
from penstock.driver import list_devices
from penstock.driver.choosing import choose
from penstock.driver.protocol import DeviceInfo
from penstock.shader import glsl

_PATIENCE = 1200.0  # seconds for the suite, or for the timings
#: A path of POSIX, absolute or from the home folder, or of Windows.
_PATH = re.compile(r"(?<![\w/])~?(?:/[\w.@+*…-]+)+/?|(?<!\w)[A-Za-z]:(?:\\[\w.@+*~-]+)+")


@dataclass(frozen=True)
class Report:
    """What ran on one device. `passed` if the conformance suite did, and the timings ran."""

    device: Checked
    check: dict[str, Any]  # as `penstock check --json` prints it, or {"problem": why it did not}
    timings: Timings | None
    problem: str = ""  # why there are no timings
    penstock: str = __version__
    python: str = platform.python_version()
    numpy: str = np.__version__
    system: str = ""
    native: str = ""
    compilers: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.check.get("passed")) and self.timings is not None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible values."""
        plain = {**vars(self), "passed": self.passed, "device": self.device.as_dict()}
        plain["limits"] = dict(self.device.info.limits)
        plain["features"] = sorted(self.device.info.features)
        plain["timings"] = asdict(self.timings) if self.timings else None
        return plain

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def report(
    which: str | None = None,
    driver: str = "vulkan",
    programs: int = 100,
    transfers: str = "all",
    elements: int = ELEMENTS,
) -> Report:
    """Check and time a device; says on stderr what it is doing. Takes from seconds to minutes."""
    found = list_devices(driver)
    info = found[choose(which, found)]
    _say(f"conformance suite on {info.name}: all named programs and {programs} random ones")
    words = ["--driver", driver, "--device", info.name, "--programs", str(programs)]
    check = _run("penstock", "check", "--json", *words, "--transfers", transfers)
    check.pop("device", None)
    _say(f"timings on {info.name}")
    timed = _run("penstock.cli.timings", str(info.index), driver, str(elements))
    problem = timed.get("problem", "")
    return Report(
        Checked(info, bool(check.get("passed"))),
        _scrubbed(check),
        None if problem else Timings(**timed),
        scrub(problem),
        system=_system(),
        native=scrub(accelerator.status),
        compilers=glsl.compilers(),
    )


def scrub(text: str) -> str:
    """The text with paths, and the names of the user and the host, replaced by an ellipsis."""
    for place in (Path.home(), Path.cwd(), Path(sys.prefix), Path(__file__).parents[1]):
        if place != Path(place.anchor):  # these may have spaces, which end a path below
            text = text.replace(str(place), "/…")
    text = _PATH.sub("…", text)
    for name in _private_names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text)
    return text


def _private_names() -> set[str]:
    host = platform.node()
    names = {host, host.partition(".")[0], Path.home().name}
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        names.add(getpass.getuser())
    return {name for name in names if name}


def _scrubbed(value: Any) -> Any:
    """JSON with every text in it scrubbed."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: _scrubbed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_scrubbed(each) for each in value]
    return value


def _system() -> str:
    """System, kernel and processor, without what a person may have named them."""
    release = re.match(r"[\d.]*\d", platform.release())
    kernel = f" {release[0]}" if release else ""
    return f"{platform.system()}{kernel}, {platform.machine()}, {os.cpu_count()} processors"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(module: str, *words: str) -> dict[str, Any]:
    """What a module of this package prints as JSON, in a process of its own."""
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        # -P: a folder of the same name in the working directory is not the package.
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, *words], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, timeout=_PATIENCE,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"problem": f"it did not end within {_PATIENCE:.0f} s"}
    try:
        printed: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"problem": _ending(done.returncode)}
    return printed


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"


# Formatting.


def _lines(made: Report) -> Iterator[str]:
    info = made.device.info
    yield f"### Penstock {made.penstock} on {info.name}"
    yield ""
    yield from _table(["", ""], _facts(made))
    yield ""
    yield from _check_lines(made.check)
    yield ""
    if made.timings is None:
        yield f"**Timings:** none: {made.problem}"
    else:
        yield from _table(["timing (median)", ""], _timing_rows(made.timings))
    yield ""
    yield "<details><summary>Limits and features</summary>"
    yield ""
    yield from _table(["limit", ""], _limit_rows(info))
    yield ""
    yield f"Features: {', '.join(sorted(info.features)) or 'none'}"
    yield ""
    yield "</details>"


def _table(head: Sequence[str], rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    for name, value in rows:
        cell = value.replace("|", "\\|")
        yield f"| {name} | {cell} |"


def _facts(made: Report) -> Iterator[tuple[str, str]]:
    info, able = made.device.info, made.device.abilities()
    lacks = ", ".join(what for what, has in able.items() if not has)
    yield "device", f"{info.name} ({info.kind}), {info.memory / 2**30:.1f} GiB"
    yield "driver", f"{info.driver_info}, {info.driver} {info.api_version}".rstrip()
    yield "has", ", ".join(what for what, has in able.items() if has)
    if info.driver == "vulkan":  # elsewhere features are not listed, and are not missing
        yield "lacks", lacks or "none of what Penstock looks for"
    yield "system", made.system
    yield "Python", f"{made.python}, NumPy {made.numpy}"
    yield "native step", made.native
    yield "GLSL compilers", ", ".join(made.compilers) or "none"


def _check_lines(check: dict[str, Any]) -> Iterator[str]:
    if "problem" in check:
        yield f"**Conformance suite:** did not end: {check['problem']}"
        return
    ran = f"{check['corpus']} named and {check['programs']} random programs"
    if check["passed"]:
        yield f"**Conformance suite:** {ran} in {check['seconds']:.1f} s: all passed"
        return
    failure = check["failure"]
    yield f"**Conformance suite:** FAILED after {ran}: {failure['name']}"
    yield ""
    yield from _block("", [failure["what"], *failure["messages"]])
    yield f"The smallest program that was found, {failure['operations']} operations:"
    yield ""
    yield from _block("python", [failure["script"].rstrip()])


def _block(language: str, texts: list[str]) -> Iterator[str]:
    yield f"```{language}"
    yield from texts
    yield "```"


def _timing_rows(timed: Timings) -> Iterator[tuple[str, str]]:
    count = f"{timed.elements:,} float32"
    add, beside = timed.add * 1e3, timed.add_numpy * 1e3
    write, read = timed.rate(timed.write) / 1e9, timed.rate(timed.read) / 1e9
    yield "launch of 64 elements, and wait", f"{timed.launch * 1e6:.1f} µs"
    yield f"`x + y`, {count}", f"{add:.2f} ms; NumPy {beside:.2f} ms"
    yield f"write, read of {count}", f"{write:.1f} GB/s, {read:.1f} GB/s"


def _limit_rows(info: DeviceInfo) -> Iterator[tuple[str, str]]:
    for name, value in sorted(info.limits.items()):
        numbers = value if isinstance(value, tuple) else (value,)
        yield name, ", ".join(f"{number:,}" for number in numbers)


def run(arguments: Any) -> int:
    """Run `penstock doctor --report`."""
    made = report(arguments.device, arguments.driver, arguments.programs)
    print(json.dumps(made.as_dict(), indent=2) if arguments.json else made)
    return 0 if made.passed else 1
