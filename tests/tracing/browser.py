"""A browser without a window, and just enough of the DevTools protocol to use a page in it.

Chromium speaks the protocol over a pair of pipes, so this takes no library: messages are JSON, and
end with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.handle import Closing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium's ends of the pipes must be descriptors 3 and 4.
_LAUNCH = """
import os, sys
own = [os.dup(int(number)) for number in sys.argv[1:3]]
high = [os.dup2(fd, 100 + n) for n, fd in enumerate(own)]
for n, fd in enumerate(high):
    os.dup2(fd, 3 + n)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser(Closing):
    """Chromium with one page. Everything it is asked must be answered within `patience` seconds."""

    def __init__(self, profile: Path, size: tuple[int, int] = (1280, 860), patience: float = 60):
        assert CHROMIUM
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        options = [*_OPTIONS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), CHROMIUM, *options],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._patience = patience
        self._buffer = b""
        self._calls = 0
        self._session = ""
        self.complaints: list[str] = []  # what the page logged as an error, or threw
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(*size)

    def open(self, page: Path) -> None:
        self.complaints.clear()
        self._call("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete' && window.penstock !== undefined")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page; a promise is waited for."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + self._patience
        while not self.ask(expression):
            assert not self.complaints, self.complaints
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def key(self, key: str) -> None:
        about: dict[str, Any] = {"key": key}
        written = key if len(key) == 1 else ""
        if key == "Enter":
            about["windowsVirtualKeyCode"], written = 13, "\r"
        if key == "Tab":
            about["windowsVirtualKeyCode"] = 9
        self._call("Input.dispatchKeyEvent", type="keyDown", text=written, **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **details: Any) -> None:
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **details)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            self.mouse(kind, x, y, button=button, clickCount=1)

    def wheel(self, x: float, y: float, dy: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=dy)

    def resize(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Light or dark, as the system would prefer."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path) -> None:
        data = self._call("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = about["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.complaints.append(f"request for {url}")

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer" if not ready else "it has ended")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
