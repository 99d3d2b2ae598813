"""Training: from a folder of pictures to a measured model, resumable at every step.

config.py, options.py    one tree of options: Python, YAML and the command line
train.py                 train: opens, splits, builds, checks, trains, measures
learner.py, recorder.py  a step; what happens around the steps
runs.py                  the run folder
gradcache.py, subset.py   large batches in little memory: with the gradients of the whole, or of the samples that matter
optimisers.py            rates, schedules, clipping, averaged weights
checks.py, doctor.py     refusals before training; what is wrong with a batch
recipes                  the papers' protocols

    run = nearfar.train("photos", loss="CircleLoss", freeze=True)
    run.metrics["after"]["recall@1"]

Needs the packages of `pip install 'nearfar[training]'`. What is listed here is imported where it is used, since
Lightning takes seconds to load.
"""
