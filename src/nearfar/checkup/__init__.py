"""`nearfar doctor`: check a data set before training.

checkup.py      all checks, in order
files.py        unreadable files and exact duplicates
classes.py      too few, too small or too unequal classes
near.py         near-identical images on both sides of the split
batch.py        the batch doctor on the first batch
duration.py     the time that training would take
finding.py      `Finding` and its text
"""
