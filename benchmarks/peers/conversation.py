"""The asking side of `worker`: start a peer's process, ask for rows, and notice when it fails."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent.parent
_PATIENCE = 300.0  # seconds for one answer, compiling kernels included


class Lost(Exception):
    """The peer does not run, or no longer; the text says why."""


class Conversation:
    """A running peer. `close` ends its process."""

    def __init__(
        self,
        name: str,
        python: Path,
        programs: Path,
        environment: Mapping[str, str],
        *,
        module: str = "benchmarks.peers.worker",
        patience: float = _PATIENCE,
        source: Path = _ROOT / "src",
    ) -> None:
        """`source` is where the process finds Penstock; another checkout's makes it that one."""
        self._patience = patience
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), "-m", module, name, str(programs)],
            cwd=_ROOT,
            env={**os.environ, **environment, "PYTHONPATH": _python_path(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            greeting = self._answer()
            if "unavailable" in greeting:
                raise Lost(greeting["unavailable"])
        except Lost:
            self.close()
            raise
        self.about: dict[str, str] = greeting["about"]
        self.how: dict[str, str] = greeting["how"]
        self.lacks: dict[str, str] = greeting["lacks"]

    def ask(self, row: str | Mapping[str, int], rounds: int = 1) -> list[float]:
        """The seconds of each round; of other workers, what they answer to a question.

        Raises Lost if a value was wrong, or the process ended.
        """
        question = {"row": row, "rounds": rounds} if isinstance(row, str) else row
        seconds: list[float] = self.answer_to(question)["seconds"]
        return seconds

    def answer_to(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer. Raises Lost as `ask` does."""
        assert self._process.stdin
        try:
            print(json.dumps(dict(question)), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise Lost(self._last_words()) from None
        answer = self._answer()
        if "wrong" in answer:
            raise Lost(answer["wrong"])
        return answer

    def close(self) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put("")  # the end

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=self._patience)
        except queue.Empty:
            self._process.kill()
            raise Lost(f"no answer within {self._patience:.0f} s") from None
        if not line:
            raise Lost(self._last_words())
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return f"ended with {self._process.returncode}: {lines[-1].strip() if lines else 'no word'}"


def _python_path(source: Path) -> str:
    """For this repository's own workers also where Penstock is, if that is not installed."""
    return os.pathsep.join([str(_ROOT), str(source)])
