"""Training: from a folder of images to an evaluated model, resumable at every step.

config.py, options.py    one tree of options: Python, YAML and the command line
train.py                 `train`: open, split, build, check, train, evaluate
learner.py, recorder.py  one training step; curves, validation and checkpoints between steps
runs.py                  the run folder
gradcache.py, subset.py  large batches in little memory: exact gradients, or those of the samples that matter
optimisers.py            learning rates, schedules, clipping, averaged weights
checks.py, doctor.py     checks before training; diagnosis of a batch
recipes                  the protocols of papers

    run = nearfar.train("photos", loss="CircleLoss", freeze=True)
    run.metrics["after"]["recall@1"]

Requires `pip install 'nearfar[training]'`. These modules are imported where they are used, since Lightning takes
seconds to load.
"""
