"""What is wrong with a data set, before anything is trained on it: `nearfar doctor`.

checkup.py      all of it, in order
files.py        what cannot be read, and what is there more than once
classes.py      too few, too small, too unequal
near.py         pictures that are nearly the same on both sides of the split
batch.py        the batch doctor on the first batch
duration.py     how long a run would take
finding.py      what a finding is, and how it is shown
"""
