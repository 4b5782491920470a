"""`penstock bench`: what things cost, beside their floors, before and after, with the noise.

`models` measures language models as llama-bench does, `ablation` what each mechanism is worth,
`runtime` the runtime without a model, `scaling` how costs grow. All of them give rows, plain
dictionaries with their samples, which `forms` prints, `compare` holds against each other, and
`report` shows. `measure` is how anything is timed, `jobs` what a launch is measured by, `floors`
the same by bare driver calls and `tracked` through Penstock; `benchmarks/` of the repository runs
them on other runtimes, too.
"""
