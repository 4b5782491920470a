"""Proof that the conformance suite can fail: the runtime with one safeguard taken out at a time.

`python -m mutation` runs the corpus and random programs on the simulator against each mutant of the
production code. A mutant that survives is either a needless wait, to be deleted from the product,
or a hole in the suite, to be closed. `python -m mutation litmus` asks it the other way round: each
named program, in each transfer mode, without the safeguard that it is about. `python -m mutation
--driver vulkan` does the first for the calls of the Vulkan driver.
"""
