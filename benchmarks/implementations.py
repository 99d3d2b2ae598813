"""The implementations: what each makes of a setting and a problem is a `Candidate`, a step that can be measured."""

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.cases import Case, Problem
from benchmarks.measure import Candidate, training_step
from benchmarks.settings import Setting
from nearfar.losses.engine import dense

IMPLEMENTATIONS = ("limit", "nearfar", "dense", "compiled", "pml", "fused-ce")
LIMIT = "matrix products"  # what stands for the loss in the limit's own rows


def limit(problem: Problem, per_class: int = 1) -> Candidate:
    """The three matrix products of similarities and gradients, and nothing else."""
    x = problem.embeddings.detach()
    w = x if problem.weight is None else problem.vectors(per_class)

    def products() -> tuple[Tensor, Tensor]:
        s = x @ w.T
        return s @ w, s.T @ x

    return Candidate(products, result_bytes=x.nbytes + w.nbytes)


def nearfar(setting: Setting, problem: Problem, plain: bool = False) -> Candidate:
    """The loss as it is, or with `plain` the same by whole matrices and autograd."""
    loss = setting.make(problem.case, dense=plain)
    if loss.weight is not None:
        loss.weight.data = problem.vectors(loss.vectors_per_class)
    other = problem.view if setting.info.level == "towers" else problem.labels
    parameters = [problem.embeddings, *loss.parameters()]
    return training_step(
        lambda: loss(problem.embeddings, other), parameters, setting.note, forget=lambda: loss.eval().train()
    )


def compiled(setting: Setting, problem: Problem) -> Candidate:
    """The dense form through torch.compile. What checks the input and finds the pairs stays outside the graph, as for
    every loss here.
    """
    # The process runs one implementation alone, so nobody else sees the replacement.
    dense.evaluate = torch.compile(dense.evaluate)
    return nearfar(setting, problem, plain=True)


def exists(implementation: str, setting: Setting, case: Case) -> bool:
    """Whether the implementation has this loss, for such a case."""
    if implementation == "pml":
        return setting.label in peers.PML and not (setting.info.level == "pair or class" and case.level == "class")
    if implementation == "fused-ce":
        return setting.label in peers.FUSED
    return setting.fits(case)


def build(implementation: str, setting: Setting, problem: Problem) -> Candidate:
    """The candidate of an implementation other than the limit."""
    if implementation == "dense":
        return nearfar(setting, problem, plain=True)
    builders = {"nearfar": nearfar, "compiled": compiled, "pml": peers.pml, "fused-ce": peers.fused_ce}
    return builders[implementation](setting, problem)
