"""The batch doctor: diagnose the pairs of a batch and the health of its embeddings.

    report = diagnose_batch(embeddings, labels, loss)
    print(report.table())
    for warning in report.warnings(): ...

`activity.py` finds the pairs that the loss still learns from.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.evaluation.spectrum import spectrum
from nearfar.losses import Loss
from nearfar.training.activity import NOTHING, Activity, activity, share_a_label
from nearfar.training.checks import comparing_samples

ONE_WAY = 0.99  # mean similarity of different classes; networks with random weights have 0.9 and recover
SIMILARITIES_AT_A_TIME = 2**22


@dataclass(frozen=True)
class Similarities:
    """Statistics of the cosines of positive or negative pairs; NaN if there are none."""

    pairs: int
    mean: float
    std: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class BatchReport:
    """The result of `diagnose_batch`."""

    samples: int
    classes: int
    dimension: int
    without_positive: int  # samples with no other of their class in the batch
    without_negative: int
    positive: Similarities
    negative: Similarities
    recall: float  # of the samples with a positive, the share whose nearest neighbour is one; ties count as misses
    effective_rank: float  # exp(entropy of the centred singular values)
    norms: tuple[float, float, float]  # lowest, mean, highest, before normalisation
    zero: int  # vectors of length 0
    not_finite: int  # vectors with NaN or infinity, which are excluded from everything else
    repeated: int  # samples with an exact copy of the same class in the batch
    confused: int  # samples with an exact copy of another class
    needs_pairs: bool  # whether the loss compares samples with each other; true if unknown
    activity: Activity | None  # None without a loss

    @property
    def most_rank(self) -> int:
        """The upper bound of the effective rank."""
        return min(self.samples - 1, self.dimension)

    def warnings(self) -> list[str]:
        """Problems, worst first, with remedies."""
        return [text for ill, text in _symptoms(self) if ill]

    def line(self) -> str:
        """A short summary for logs."""
        parts = [
            f"s_p {self.positive.mean:.3f} ± {self.positive.std:.3f}",
            f"s_n {self.negative.mean:.3f} ± {self.negative.std:.3f}",
            f"rank {self.effective_rank:.1f} of {self.most_rank}",
            f"no positive {self.without_positive}/{self.samples}",
        ]
        if self.activity is not None:
            active = [self.activity.positives, self.activity.negatives]
            if active != [None, None]:
                parts.append(f"active pairs {_percent(active[0])} + / {_percent(active[1])} -")
            else:
                parts.append(f"active samples {_percent(self.activity.samples)}")
        return ", ".join(parts)

    def table(self) -> str:
        """The whole report as text."""
        rows = [
            ("samples", f"{self.samples} of {self.classes} classes, {self.dimension} dimensions"),
            ("without a positive", f"{self.without_positive}"),
            ("without a negative", f"{self.without_negative}"),
            ("positive pairs", _described(self.positive)),
            ("negative pairs", _described(self.negative)),
            ("nearest is a positive", _percent(self.recall)),
            ("effective rank", f"{self.effective_rank:.1f} of at most {self.most_rank}"),
            ("norms", f"{self.norms[0]:.3g} to {self.norms[2]:.3g}, mean {self.norms[1]:.3g}"),
            ("zero, not finite", f"{self.zero}, {self.not_finite}"),
            ("exact copies", f"{self.repeated} of the same class, {self.confused} of another"),
        ]
        if self.activity is not None:
            rows += [
                ("loss", f"{self.activity.loss:.4g}, gradient norm {self.activity.gradient_norm:.3g}"),
            ]
            shares = {
                "active positive pairs": self.activity.positives,
                "active negative pairs": self.activity.negatives,
                "active samples": self.activity.samples,
            }
            rows += [(name, _percent(share)) for name, share in shares.items() if share is not None]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def diagnose_batch(embeddings: Tensor, labels: Tensor, loss: nn.Module | None = None) -> BatchReport:
    """Diagnose one batch. The loss's state, its gradients and the random generators do not change.

    Args:
        embeddings: (N, D), as the loss gets them.
        labels: class ids (N,), or multi-hot (N, L): positive pairs share a label.
        loss: the training loss, called with embeddings and labels. The activity of pairs is computed if it compares
            only samples, up to 1024 of them; else that of samples.

    Example:
        >>> x, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> report = diagnose_batch(x, labels)
        >>> report.positive.mean, report.negative.mean, report.without_positive, report.repeated
        (1.0, 0.0, 0, 8)
    """
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings must be (N, D), floating numbers, not {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    if labels.ndim not in (1, 2) or len(labels) != len(embeddings):
        raise InputError(f"labels must be (N,) or (N, L) with N = {len(embeddings)}, not {tuple(labels.shape)}")
    x = embeddings.detach()
    finite = x.isfinite().all(1)
    x, kept_labels = x[finite], labels.to(x.device)[finite]
    if len(x) < 2:
        raise InputError(f"{len(x)} of {len(embeddings)} embeddings are finite: a diagnosis needs at least two")
    wide = x.double()
    norms = wide.norm(dim=1)
    unit = wide / norms.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    pairs = _Pairs(unit, kept_labels)
    repeated, confused = _copies(x, kept_labels)
    return BatchReport(
        samples=len(embeddings),
        classes=len(torch.unique(kept_labels)) if kept_labels.ndim == 1 else int((kept_labels != 0).any(0).sum()),
        dimension=x.shape[1],
        without_positive=int((pairs.positives == 0).sum()),
        without_negative=int((pairs.negatives == 0).sum()),
        positive=pairs.positive.finished(),
        negative=pairs.negative.finished(),
        recall=pairs.recall(),
        effective_rank=spectrum(unit).effective_rank,
        norms=(float(norms.min()), float(norms.mean()), float(norms.max())),
        zero=int((norms == 0).sum()),
        not_finite=int((~finite).sum()),
        repeated=repeated,
        confused=confused,
        needs_pairs=_needs_pairs(loss),
        activity=None if loss is None else activity(x, kept_labels, loss),
    )


class _Moments:
    """Running moments of similarities."""

    def __init__(self) -> None:
        self.count, self.sum, self.squares, self.lowest, self.highest = 0, 0.0, 0.0, math.inf, -math.inf

    def add(self, values: Tensor) -> None:
        if len(values):
            self.count += len(values)
            self.sum += float(values.sum())
            self.squares += float(values.square().sum())
            self.lowest, self.highest = min(self.lowest, float(values.min())), max(self.highest, float(values.max()))

    def finished(self) -> Similarities:
        if not self.count:
            return Similarities(0, *[math.nan] * 4)
        mean = self.sum / self.count
        std = math.sqrt(max(self.squares / self.count - mean**2, 0.0))
        return Similarities(self.count // 2, mean, std, self.lowest, self.highest)


class _Pairs:
    """Statistics of all pairs, computed in strips of rows."""

    def __init__(self, unit: Tensor, labels: Tensor):
        self.positive, self.negative = _Moments(), _Moments()
        strips: list[tuple[Tensor, ...]] = []
        step = max(1, SIMILARITIES_AT_A_TIME // len(unit))
        for start in range(0, len(unit), step):
            rows = slice(start, min(start + step, len(unit)))
            s, alike = unit[rows] @ unit.T, share_a_label(labels, rows)
            other = ~alike
            itself = torch.arange(rows.start, rows.stop, device=unit.device)[:, None]
            alike.scatter_(1, itself, False)
            other.scatter_(1, itself, False)
            self.positive.add(s[alike])
            self.negative.add(s[other])
            nearest = s.masked_fill(~alike, -2).amax(1) > s.masked_fill(~other, -2).amax(1) + NOTHING
            strips.append((alike.sum(1), other.sum(1), nearest))
        self.positives, self.negatives, self._nearest = (torch.cat(values) for values in zip(*strips, strict=True))

    def recall(self) -> float:
        hits = self._nearest[self.positives > 0]
        return float(hits.double().mean()) if len(hits) else math.nan


def _copies(x: Tensor, labels: Tensor) -> tuple[int, int]:
    """The numbers of samples with an exact copy in the same class and in another class."""
    groups, counts = torch.unique(x, dim=0, return_inverse=True, return_counts=True)[1:]
    rows = (counts[groups] > 1).nonzero().flatten()
    same = groups[rows, None] == groups[rows]
    same.fill_diagonal_(False)
    alike = share_a_label(labels[rows], slice(None)) if len(rows) else same
    return int((same & alike).any(1).sum()), int((same & ~alike).any(1).sum())


def _needs_pairs(loss: nn.Module | None) -> bool:
    if loss is None or not any(isinstance(part, Loss) for part in loss.modules()):
        return True
    return any(True for _ in comparing_samples(loss))


def _symptoms(report: BatchReport) -> Iterator[tuple[bool, str]]:
    n, active = report.samples, report.activity
    usable = min(report.classes - 1, report.dimension)  # the rank if every class collapses to a point
    yield (
        report.not_finite > 0,
        f"{report.not_finite} of {n} embeddings are not finite numbers: lower the learning rate, clip gradients, or "
        "train in 32-true",
    )
    yield (
        report.zero > 0,
        f"{report.zero} of {n} embeddings are zero and get no gradient: check these images, and check for dead units "
        "before the head",
    )
    one_way = report.negative.pairs > 0 and report.negative.mean > ONE_WAY
    yield (
        one_way,
        f"different classes have a mean similarity of {report.negative.mean:.4f}: all embeddings point one way. A "
        "network with random weights may start this way; during training it is a collapse. Lower the learning rate, "
        "warm up, use softer negatives (not only the hardest), or start the head from principal components",
    )
    yield (
        report.classes >= 8 and not one_way and report.effective_rank < usable / 4,
        f"the embeddings use {report.effective_rank:.1f} directions where {report.classes} classes could use "
        f"{usable}: they are collapsing into few dimensions. Lower the learning rate or the weight decay, or "
        "put more classes into a batch",
    )
    yield (
        report.needs_pairs and report.without_positive == n,
        "no sample has another of its class in the batch: a pair loss learns nothing. Draw several images of each "
        "class (the sampler pk)",
    )
    yield (
        report.needs_pairs and n / 2 < report.without_positive < n,
        f"{report.without_positive} of {n} samples have no other of their class in the batch: for a pair loss, "
        "draw several images of each class (the sampler pk)",
    )
    yield (
        report.needs_pairs and report.without_negative > 0,
        f"{report.without_negative} of {n} samples have none of another class in the batch: draw more classes",
    )
    yield (
        report.confused > 0,
        f"{report.confused} samples have an exact copy of another class: the same image under two labels "
        "(nearfar duplicates finds them), or an embedding that no longer tells images apart",
    )
    yield (
        report.repeated > n / 4,
        f"{report.repeated} of {n} samples have an exact copy of their class in the batch: classes have fewer images "
        "than the sampler's k, or the data has duplicates",
    )
    if active is None:
        return
    yield (
        not math.isfinite(active.loss),
        f"the loss is {active.loss}: check its scale and margin, and train in 32-true",
    )
    yield (
        active.gradient_norm <= NOTHING and math.isfinite(active.loss),
        "this batch has no gradient: it already satisfies the loss, or it has no pairs. Raise the margin, put more "
        "classes into a batch, or stop training",
    )
    yield (
        active.gradient_norm > NOTHING and active.negatives is not None and active.negatives < 0.001,
        f"{_percent(active.negatives)} of the negative pairs are active: most of the batch is wasted. Put more "
        "classes into it (chunk= makes large batches fit), or remember past ones (memory=)",
    )


def _described(pairs: Similarities) -> str:
    if not pairs.pairs:
        return "none"
    return f"{pairs.pairs:,}, similarity {pairs.mean:.3f} ± {pairs.std:.3f}, {pairs.lowest:.3f} to {pairs.highest:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * share:.3g} %"
