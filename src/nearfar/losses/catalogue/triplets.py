"""Triplets, and pairs on either side of a learned boundary."""

import functools
from dataclasses import KW_ONLY, InitVar
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nearfar.losses.catalogue.distances import DistanceKind, DistanceLoss
from nearfar.losses.engine.maps import Distance, softplus, through
from nearfar.losses.engine.pairs import Pairs, table_of
from nearfar.losses.engine.spec import LossSpec, StripSpec
from nearfar.losses.inputs import Batch
from nearfar.losses.labels import check_class_ids, class_ids
from nearfar.losses.loss import Loss
from nearfar.losses.mined import Triplets, TuplePairs
from nearfar.losses.registry import register

TOGETHER = 2**20  # triplets that are compared together
MANY = 64  # positives of a row from which on sorting its negatives is less work than comparing all triplets


@register("pair", "[d_p − d_n + m]₊; batch-hard: [max d_p − min d_n + m]₊")
class TripletMarginLoss(DistanceLoss):
    """Triplet loss, over the triplets that the mining keeps.

        l = [d_p - d_n + margin]_+        or log(1 + exp(...)) with smooth_loss

    "batch_hard": the furthest positive and the nearest negative of every anchor; "easy_positive": the nearest positive
    and the nearest negative. Both average over all anchors. "all": every triplet; "semihard": those with
    d_p < d_n < d_p + margin. Both average over the triplets whose loss is not zero. Triplets given as `indices_tuple`
    are taken as they are, and averaged like "all"; pairs given so are mined as above.

    Args:
        margin: in the distance's unit (0.2 as FaceNet has it). The soft margin of Hermans et al. is
            `margin=0, smooth_loss=True`.
        mining: as above.
        smooth_loss: softplus instead of the hinge.
        distance: "l2", "squared_l2" or "cosine" (1 - s).
        normalize: compare normalised vectors; False compares them as they are, as re-identification often does.

    Example:
        >>> import torch
        >>> loss = TripletMarginLoss(margin=0.3, mining="all")
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.3

    References: F. Schroff et al., "FaceNet", CVPR 2015, arXiv:1503.03832, Eq. 2; A. Hermans, L. Beyer, B. Leibe, "In
    Defense of the Triplet Loss for Person Re-Identification", 2017, arXiv:1703.07737, Eq. 5.
    """

    row_local = True
    margin: float = 0.2
    _: KW_ONLY
    mining: Literal["batch_hard", "easy_positive", "all", "semihard"] = "batch_hard"
    smooth_loss: bool = False
    distance: DistanceKind = "l2"

    def spec(self) -> LossSpec | StripSpec:
        if self.mining in ("all", "semihard"):
            if self.smooth_loss:
                return StripSpec(self._smooth_triplets, average="active", normalize=self.normalized)
            return StripSpec(self._triplets, average="active", normalize=self.normalized, closed=True)
        return LossSpec(
            positive=self.distance_map(self.distance, 1),
            negative=self.distance_map(self.distance, -1, self.margin),
            normalize=self.normalized,
            gather=("max" if self.mining == "batch_hard" else "min", "max"),
            act="softplus" if self.smooth_loss else "relu",
        )

    def listed_pairs(self, indices: tuple[Tensor, ...], rows: int, columns: int, same: bool) -> TuplePairs:
        if len(indices) == 4:
            return super().listed_pairs(indices, rows, columns, same)
        return Triplets(indices[0], indices[1], indices[2], rows, columns)

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        if not isinstance(pairs, Triplets):
            return super().over_pairs(pairs, batch)
        x, ref_emb = batch.embeddings, batch.ref_emb
        if not len(pairs):
            return self.zero(x, ref_emb, shape=(len(x),) if self.reduction == "none" else ())
        function = functools.partial(self._listed_triplets, pairs)
        spec = StripSpec(function, average="active", normalize=self.normalized)
        number = torch.arange(len(x), device=x.device)
        return self.evaluate(spec, pairs, x, ref_emb, None, number, row_weight=batch.sample_weight)

    def _listed_triplets(
        self, triplets: Triplets, s: Tensor, positive: Tensor, negative: Tensor, number: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum and the number of the active triplets of the consecutive anchors `number` (b,)."""
        first = int(number[0])
        row, p, n = triplets.between(first, first + len(s))
        d_p, d_n = (through(self.distance_map(self.distance), s[row, column]) for column in (p, n))
        over = d_p - d_n + self.margin
        losses = softplus(over) if self.smooth_loss else torch.relu(over)
        zeros = torch.zeros_like(s[:, 0])
        return zeros.index_add(0, row, losses), zeros.index_add(0, row, (losses > 0).to(s.dtype))

    def _triplets(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, list[Tensor] | None]:
        """The sum and the number of the active triplets, without forming them, and the slopes of the sum.

        The sum of d_p - d_n + margin is linear in the distances: each counts as often as it is in an active triplet.
        """
        kind, semihard = self.distance_map(self.distance), self.mining == "semihard"
        distance = kind.value(s)
        d_n = torch.where(negative, distance, torch.inf)
        columns, filled = table_of(positive)
        d_p = distance.gather(1, columns).masked_fill_(~filled, -torch.inf)
        count = _compared if columns.shape[1] < MANY else _sorted
        of_positives, of_negatives = count(d_p, d_n, self.margin, semihard)
        waits = s.device.type != "cpu" or torch.compiler.is_compiling()  # for the answer
        if not waits and not bool(of_positives.any()):
            nothing = distance.sum(1).mul_(0)  # NaN where a distance is NaN
            return nothing, nothing, None
        factor = of_negatives.neg_().scatter_add_(1, columns, of_positives)
        number = of_positives.sum(1)
        sums = torch.add((distance * factor).sum(1), number, alpha=self.margin)
        return sums, number, [factor.mul_(kind.slope_at(distance))]

    def _smooth_triplets(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        distance = through(self.distance_map(self.distance), s)
        d_p, filled = listed(distance, positive)
        losses, number = torch.zeros_like(s[:, 0]), torch.zeros_like(s[:, 0])

        def with_negatives(distance: Tensor, d_p: Tensor, filled: Tensor) -> tuple[Tensor, Tensor]:
            active = negative & filled
            if self.mining == "semihard":
                active = active & (distance > d_p) & (distance < d_p + self.margin)
            return torch.where(active, softplus(d_p - distance + self.margin), 0).sum(1), active.sum(1)

        for k in range(d_p.shape[1]):
            # One positive at a time, each computed again for its gradient: K matrices would take unbounded memory.
            slot = slice(k, k + 1)
            loss, active = checkpoint(with_negatives, distance, d_p[:, slot], filled[:, slot], use_reentrant=False)
            losses, number = losses + loss, number + active
        return losses, number


def _compared(d_p: Tensor, d_n: Tensor, margin: float, semihard: bool) -> tuple[Tensor, Tensor]:
    """The number of active triplets of each positive (b, K) and each negative (b, M), by blocks of positives.

    A triplet is active if d_n < d_p + margin; a semi-hard one if also d_p < d_n. Columns that are not positive have
    d_p = -inf, those that are not negative d_n = inf.
    """
    of_positives, of_negatives = [], torch.zeros_like(d_n)
    for block in torch.split(d_p, max(1, TOGETHER // max(1, d_n.numel())), 1):
        nearer, further = block.unsqueeze(2), d_n.unsqueeze(1)
        active = further < nearer + margin
        number = (active & (nearer < further) if semihard else active).to(d_n.dtype)  # booleans are slow to add
        of_positives.append(number.sum(2))
        of_negatives += number.sum(1)
    return torch.cat(of_positives, 1), of_negatives


def _sorted(d_p: Tensor, d_n: Tensor, margin: float, semihard: bool) -> tuple[Tensor, Tensor]:
    """The same for many positives, from the rank of each among the sorted negatives, and the reverse."""
    slots, nearest = d_p.shape[1], d_n.sort(1).values
    of_positives = torch.searchsorted(nearest, d_p + margin)
    of_negatives = slots - torch.searchsorted((d_p + margin).sort(1).values, d_n, right=True)
    if semihard:
        of_positives = (of_positives - torch.searchsorted(nearest, d_p, right=True)).clamp_min_(0)
        of_negatives = (of_negatives - slots + torch.searchsorted(d_p.sort(1).values, d_n)).clamp_min_(0)
    return of_positives.to(d_n.dtype), of_negatives.to(d_n.dtype)


def listed(distance: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The distances of the positives as a table (b, K), and which of its slots are filled."""
    columns, filled = table_of(positive)
    return distance.gather(1, columns), filled


@register("pair", "[m + d_p − β]₊ + [m − d_n + β]₊, over the pairs that are not zero")
class MarginLoss(Loss):
    """Margin loss: positives nearer and negatives further than a boundary β that is learned.

        L = sum ([margin + d_p - beta]_+ + [margin - d_n + beta]_+) / (number of terms that are not zero) + nu mean beta

    d is the Euclidean distance of normalised vectors. With `sampling="distance_weighted"` each positive pair meets one
    negative, drawn with probability proportional to min(1 / cutoff density, 1 / q(d)), q the density of distances on
    the sphere; otherwise all pairs count.

    Args:
        margin: α of the paper.
        nu: weight of β itself.
        beta: the boundary at first.
        learn_beta: whether it is a parameter.
        num_classes: give it for a boundary per class, by the anchor's class id.
        sampling: "all" or "distance_weighted".
        cutoff: the sampling raises smaller distances to this one.
        nonzero_loss_cutoff: negatives further than this are not drawn.

    Example:
        >>> import torch
        >>> loss = MarginLoss(beta=1.0, learn_beta=True)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.614

    References: C.-Y. Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, arXiv:1706.07567.
    """

    row_local = True
    margin: float = 0.2
    nu: float = 0.0
    beta: InitVar[float] = 1.2
    _: KW_ONLY
    learn_beta: InitVar[bool] = False
    num_classes: InitVar[int | None] = None
    sampling: Literal["all", "distance_weighted"] = "all"
    cutoff: float = 0.5
    nonzero_loss_cutoff: float = 1.4

    def set_up(self, beta: float, learn_beta: bool, num_classes: int | None) -> None:
        self.needs_class_ids = num_classes is not None
        self.beta_at_first = float(beta)
        value = torch.full(() if num_classes is None else (num_classes,), self.beta_at_first)
        if learn_beta:
            self.beta = nn.Parameter(value)
        else:
            self.register_buffer("beta", value)

    def _apply(self, fn: Any, recurse: bool = True) -> "MarginLoss":
        """Convert a boundary that has not moved from its exact setting, not from its rounding in the old precision."""
        unmoved = not self._beta.is_meta and bool((self._beta == self.beta_at_first).all())
        super()._apply(fn, recurse)
        if unmoved and not self._beta.is_meta:
            with torch.no_grad():
                self._beta.fill_(self.beta_at_first)
        return self

    @property
    def _beta(self) -> Tensor:
        assert isinstance(self.beta, Tensor)  # the setting has become a buffer or a parameter
        return self.beta

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        """The rows' boundaries, and for drawn negatives a random number in [0, 1) and the dimension."""
        boundary = self._boundaries(embeddings, labels)
        if self.sampling == "all":
            return (boundary,)
        draw = self.uniform(pairs, boundary)
        return boundary, draw, torch.full_like(draw, embeddings.shape[1])

    def _boundaries(self, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        if self._beta.ndim == 0:
            return self._beta.expand(len(embeddings))
        labels = class_ids(labels, "MarginLoss with a boundary per class")
        check_class_ids(labels, len(self._beta))
        return self._beta[labels]

    def penalty(self, embeddings: Tensor, labels: Tensor | None) -> Tensor | None:
        return self.nu * self._boundaries(embeddings, labels) if self.nu else None

    def spec(self) -> StripSpec:
        if self.sampling == "all":
            return StripSpec(self._pairs_about, average="active", closed=True)
        return StripSpec(self._drawn_pairs, average="active")

    def _pairs_about(
        self, s: Tensor, positive: Tensor, negative: Tensor, boundary: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        distance, slope = Distance("l2").slopes(s)
        assert isinstance(slope, Tensor)
        over = distance.sub_(boundary.unsqueeze(1))
        pull, push = (
            (self.margin + over).clamp_min_(0).mul_(positive),
            (self.margin - over).clamp_min_(0).mul_(negative),
        )
        # At most one of the two is not zero.
        sums, pulled, pushed = pull.add(push).sum(1), pull.sign_(), push.sign_()
        direction = pulled - pushed
        return sums, pulled.add_(pushed).sum(1), [slope.mul_(direction), direction.sum(1).neg_()]

    def _drawn_pairs(
        self, s: Tensor, positive: Tensor, negative: Tensor, boundary: Tensor, draw: Tensor, dimension: Tensor
    ) -> tuple[Tensor, Tensor]:
        distance = through(Distance("l2"), s)
        d_p, filled = listed(distance, positive)
        columns, possible = self._draw_negatives(distance.detach(), negative, draw, dimension[:, None], d_p.shape[1])
        filled = filled & possible[:, None]
        pull = torch.where(filled, torch.relu(self.margin + d_p - boundary[:, None]), 0)
        push = torch.where(filled, torch.relu(self.margin - distance.gather(1, columns) + boundary[:, None]), 0)
        return (pull + push).sum(1), ((pull > 0).sum(1) + (push > 0).sum(1)).to(s.dtype)

    def _draw_negatives(
        self, distance: Tensor, negative: Tensor, draw: Tensor, dimension: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        """Columns (b, number) of negatives, drawn with weights 1 / q(d), and whether the row has any (b,).

        q(d) = d^(D-2) (1 - d^2/4)^((D-3)/2) is the density of distances of points on the unit sphere of D dimensions.
        """
        d = distance.clamp_min(self.cutoff)
        log_weight = (2.0 - dimension) * d.log() - (dimension - 3) / 2 * (1 - d * d / 4).clamp_min(1e-8).log()
        allowed = negative & (distance < self.nonzero_loss_cutoff)
        log_weight = log_weight.masked_fill(~allowed, -torch.inf)
        possible = allowed.any(1)
        top = log_weight.amax(1, keepdim=True).masked_fill(~possible[:, None], 0)
        cumulated = (log_weight - top).exp().cumsum(1)
        # Equidistant numbers from a random start: each is uniform, and the slots differ.
        golden = torch.arange(number, device=draw.device, dtype=draw.dtype) * 0.6180339887498949
        point = ((draw[:, None] + golden) % 1.0) * cumulated[:, -1:]
        columns = torch.searchsorted(cumulated, point, right=True).clamp_max(distance.shape[1] - 1)
        return columns, possible
