"""`penstock bench`: measurements, compared with bare driver calls and with earlier versions.

`models` measures language models as llama-bench does, `ablation` decoding without each mechanism,
`mechanisms` each mechanism where its effect lies, `runtime` the runtime without a model, and
`scaling` how costs grow. All return rows: plain dictionaries with their samples. `forms` prints
rows, `compare` compares two sets of them, and `report` makes a page of them. `measure` does the
timing. `jobs` has the work by which launches are measured; `floors` does it by bare driver calls,
`tracked` through Penstock, and `benchmarks/` of the repository on other runtimes.
"""
