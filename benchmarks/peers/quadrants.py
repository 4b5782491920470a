"""Quadrants: Taichi's interface under another name."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.peers import taichi


class Worker(taichi.Worker):
    package: ClassVar[str] = "quadrants"
