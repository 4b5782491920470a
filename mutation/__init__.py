"""Proof that the conformance suite can fail: runs it with one safeguard removed at a time.

`python -m mutation` runs the corpus and random programs on the simulator against each mutant of the
production code. A mutant that survives is either a needless wait, to be deleted from the product,
or a hole in the suite, to be closed. `python -m mutation litmus` asks the converse: it runs each
named program, in each transfer mode, without the safeguard that the program tests. `python -m
mutation --driver vulkan` mutates the calls of the Vulkan driver, and `--driver hip` those of HIP.
"""
