"""The papers' analyses, on any data.

study.py              options, Findings, run_study: what a study is given, what it finds, how that is written
NAME.py               a study: `Options` (a frozen dataclass) and `run(options, folder, progress) -> Findings`

fields.py, margins.py what losses pull at, and where they draw the line, read off the losses themselves
toy.py                embeddings of two and three dimensions, to look at
heads.py              heads trained on cached features, by the very steps of `nearfar compare`; crossing.py: their pairs
networks.py           whole small networks, as `nearfar train` trains them; footprint.py: the memory of a step
sweep.py, heat.py     means over seeds, and how they are drawn

    from nearfar.studies.study import run_study
    found = run_study("gradients", out="studies/gradients")
    found.sentences

Needs the packages of `pip install 'nearfar[compare]'`.
"""

STUDIES = {
    "gradients": "what losses pull at, over the plane of a negative's and a positive's similarity",
    "boundary": "where the softmax family draws the line, on circle and sphere, trained live; logits by angle",
    "sensitivity": "scale, margin and dimension: how much of a choice they are",
    "convergence": "similarities and Recall@1 by steps and seconds; pairs as they cross the boundary",
    "subsets": "batches that fit memory by choice: the whole, and hard and random parts, by time and memory",
    "batch-size": "Recall@1 by the size of the batch",
    "noise": "wrong labels: proxies against pairs",
    "few": "few samples of every class",
    "transfer": "trained on one set, tested on others",
    "hashing": "bits against floating-point numbers",
    "proxies": "several proxies for every class",
    "centres": "Center loss from spread and from near-zero centres, against SphereFace",
    "complexity": "measured cost by batch and classes, beside what the papers claim",
}
"""Every study by its name, and what it is about; the module of batch-size is batch_size.py."""
