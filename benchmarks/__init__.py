"""What Penstock costs, measured side by side with what it stands on.

`python -m benchmarks transfer` and `python -m benchmarks launch`, from the repository's root.
"""
