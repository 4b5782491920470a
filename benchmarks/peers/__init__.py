"""`python -m benchmarks launch --peers`: the same jobs in Penstock, its peers and bare Vulkan.

A peer runs in a process of its own, in a virtual environment of its own (`environments`), and is
asked on its standard input to run one row a few times (`worker`, `conversation`). The asking side
goes round all of them in ever new order (`comparison`), so that they are measured side by side in
one run. `penstock.bench.jobs` has what is timed and the check that stands beside every figure, once
for all, and what a peer must be able to do; the module named after each says how it does it.
"""
