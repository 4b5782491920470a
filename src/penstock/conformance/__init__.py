"""The specification as programs, named and random, run on a device and checked against NumPy.

A `Program` is a list of operations over a few small arrays and streams. The `Oracle` executes it
one operation after another on plain NumPy arrays; `run` executes it on a device through the public
API, and compares everything that the program observes. The author of a driver runs `penstock check`
to learn whether it keeps the contract; a failing program is shrunk and printed as a script.
"""

from penstock.conformance.corpus import CORPUS
from penstock.conformance.generator import generate
from penstock.conformance.lab import Lab
from penstock.conformance.oracle import Invalid, Oracle
from penstock.conformance.program import Program
from penstock.conformance.runner import Bench, Failure, run
from penstock.conformance.script import as_script
from penstock.conformance.shrinker import shrink

__all__ = [
    "CORPUS",
    "Bench",
    "Failure",
    "Invalid",
    "Lab",
    "Oracle",
    "Program",
    "as_script",
    "generate",
    "run",
    "shrink",
]
