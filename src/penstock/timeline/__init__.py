"""A trace that people can look at: a page for the browser, a file for Perfetto, JSON.

`document` is the trace as plain data, and both others are made from it. `flights` says when work
was on the device, as far as the host can know. `script` runs any program with a trace active.
"""
