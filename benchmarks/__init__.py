"""Measure the losses: time against their matrix products, and memory, beside other implementations.

    python -m benchmarks losses      one process per (case, loss, implementation); rows appended to results/losses.csv
    python -m benchmarks tables      the tables and charts of README.md and docs/, from the newest rows
    python -m benchmarks check       nearfar's ratios against results/expected.json; fails if one got worse

    cases.py            what is measured: sizes and data
    settings.py         the losses, configured so that every implementation computes the same
    implementations.py  nearfar, dense, compiled, limit        peers.py   pml, fused-ce
    measure.py          time and memory, in one process        worker.py  that process, its memory cap
    run.py              all the processes                      results.py the rows, and the CSV file they are in
    tables.py, charts.py, regression.py

The unit of time is the limit: the three matrix products that the loss and its gradient cannot do without,
`s = x @ w.T; dx = s @ w; dw = s.T @ x`, measured in the same process, in turn with the implementation. Ratios so
measured survive a noisy or a different machine; milliseconds do not.
"""
