"""Analyses of papers, on any data.

study.py              options, Findings, run_study: input, results and files of a study
NAME.py               a study: `Options` (a frozen dataclass) and `run(options, folder, progress) -> Findings`

fields.py, margins.py gradients and decision boundaries, computed from the losses themselves
toy.py                two- and three-dimensional embeddings, for pictures
heads.py              heads trained on cached features, with the steps of `nearfar compare`; crossing.py: their pairs
networks.py           whole small networks, trained as by `nearfar train`; footprint.py: the memory of a step
sweep.py, heat.py     means over seeds, and their figures

    from nearfar.studies.study import run_study
    findings = run_study("gradients", out="studies/gradients")
    findings.sentences

Requires `pip install 'nearfar[compare]'`.
"""

STUDIES = {
    "gradients": "gradients of losses over the plane of a negative's and a positive's similarity",
    "boundary": "decision boundaries of the softmax family on circle and sphere; logits by angle",
    "sensitivity": "the influence of scale, margin and dimension",
    "convergence": "similarities and Recall@1 by steps and seconds; pairs as they cross the boundary",
    "subsets": "backpropagating whole batches or hard and random subsets, by time and memory",
    "batch-size": "Recall@1 by batch size",
    "noise": "wrong labels: proxies against pairs",
    "few": "few samples of every class",
    "transfer": "training on one data set, testing on others",
    "hashing": "binary codes against floating-point embeddings",
    "proxies": "several proxies for every class",
    "centres": "Center loss from spread and from near-zero centres, against SphereFace",
    "complexity": "measured cost by batch size and classes, beside the claims of papers",
}
"""The studies and their subjects, by name; the module of batch-size is batch_size.py."""
