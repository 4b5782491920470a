"""What Penstock costs beside other runtimes, and what its parts cost its developers.

`python -m benchmarks launch`, from the repository's root; with `--peers` also beside other
runtimes, each in a process and an environment of its own. How things are measured, and the bare
launch that they are compared with, are in `penstock.bench`.
"""
