"""Mutation testing: do the tests notice when the code is wrong?

    python -m benchmarks.mutation            a sample of mutants per file of nearfar.losses and nearfar.evaluation

A mutant is the library with one small fault: `<` for `<=`, `+` for `-`, a constant off by one, `min` for `max`, a
condition negated, a statement left out. It is killed if a test fails, and it survives if none does: then a test is
missing, or the fault makes no difference (an equivalent mutant), which only a reader can tell.

    mutants.py   the faults that a file can have
    reach.py     which tests reach which lines: found once, by running the tests under coverage
    trial.py     one mutant against the tests that reach it, in a process of its own
    run.py       the sample, the table, and results/mutation.csv

The files on disk are never changed: a trial imports the faulty module through an import hook. Trials are forked from a
process that has imported torch already, so most take two seconds.
"""
