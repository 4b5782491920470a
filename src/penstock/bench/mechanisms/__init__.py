"""What each mechanism is worth where its effect lies: the same work with it on and off.

`comparison` times both sides of a comparison in one interleaved run, checks their values, and takes
the receipt's counts and the device's idle time. `load`, `transfers`, `busy_writes`, `scratch`,
`peeks`, `sampling` and `launches` each describe one `Mechanism`: what on and off mean, the cases,
and what a device with memory of its own would add. `measuring` lists them and makes the rows.

Everything else is made from rows: `findings` says what they show, `document` writes tables and
prose for the terminal, the page and docs/performance-tables.md, and `pictures` draws the plots.
"""
