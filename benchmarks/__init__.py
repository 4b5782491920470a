"""What Penstock costs, measured side by side with what it stands on.

`python -m benchmarks transfer` and `python -m benchmarks launch`, from the repository's root; with
`launch --peers` also beside other runtimes, each in a process and an environment of its own.
"""
