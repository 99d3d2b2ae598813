"""The batch doctor, against plain loops over pairs and against losses written as functions of a matrix of cosines."""

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nearfar import losses
from nearfar.training.doctor import BatchReport, diagnose_batch


def batch(n: int = 24, dimension: int = 6, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, dimension, generator=generator)
    return centres[labels] + torch.randn(n, dimension, generator=generator), labels


def cosines(x: Tensor) -> Tensor:
    x = x.double()
    return torch.stack([torch.nn.functional.cosine_similarity(row[None], x) for row in x])


# Counting


@pytest.mark.parametrize("multi_hot", [False, True])
def test_statistics_by_loops(multi_hot: bool) -> None:
    x, labels = batch()
    given = torch.nn.functional.one_hot(labels, 5) if multi_hot else labels
    s = cosines(x)
    positive, negative, right, with_positive = [], [], 0, 0
    for i in range(24):
        near = {True: -2.0, False: -2.0}
        for j in range(24):
            if i != j:
                same = bool(labels[i] == labels[j])
                (positive if same else negative).append(float(s[i, j]))
                near[same] = max(near[same], float(s[i, j]))
        with_positive += near[True] > -2
        right += near[True] > near[False]
    report = diagnose_batch(x, given)
    assert (report.samples, report.classes, report.dimension) == (24, len(labels.unique()), 6)
    for found, values in ((report.positive, positive), (report.negative, negative)):
        wanted = torch.tensor(values, dtype=torch.float64)
        assert found.pairs == len(values) / 2
        assert found.mean == pytest.approx(float(wanted.mean()))
        assert found.std == pytest.approx(float(wanted.std(correction=0)))
        assert (found.lowest, found.highest) == pytest.approx((min(values), max(values)))
    assert report.recall == pytest.approx(right / with_positive)
    assert 0 < report.recall < 1
    assert list(report.norms) == pytest.approx([float(f(x.norm(dim=1))) for f in (torch.min, torch.mean, torch.max)])
    assert report.activity is None


def test_strips_are_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = batch(50)
    whole = diagnose_batch(x, labels)
    monkeypatch.setattr("nearfar.training.doctor.SIMILARITIES_AT_A_TIME", 350)  # seven rows
    strips = diagnose_batch(x, labels)
    assert strips.positive.mean == pytest.approx(whole.positive.mean)
    assert strips.negative.std == pytest.approx(whole.negative.std)
    assert (strips.recall, strips.without_positive) == (whole.recall, whole.without_positive)


def test_lone_samples_and_lone_classes() -> None:
    x = batch(6)[0]
    report = diagnose_batch(x, torch.tensor([0, 0, 1, 2, 3, 4]))
    assert (report.without_positive, report.without_negative) == (4, 0)
    assert any("4 of 6 samples have no other of their class" in text for text in report.warnings())
    alone = diagnose_batch(x, torch.arange(6))
    assert (alone.without_positive, alone.positive.pairs) == (6, 0)
    assert math.isnan(alone.positive.mean) and math.isnan(alone.recall)
    assert any("no sample has another of its class" in text for text in alone.warnings())
    one = diagnose_batch(x, torch.zeros(6, dtype=torch.long))
    assert (one.without_negative, one.negative.pairs) == (6, 0)
    assert any("6 of 6 samples have none of another class" in text for text in one.warnings())
    assert all(isinstance(r.table() + r.line(), str) for r in (report, alone, one))


@pytest.mark.parametrize(
    ("loss", "needed"),
    [
        (None, True),
        (losses.CircleLoss(), True),
        (losses.CircleLoss() + losses.ProxyAnchorLoss(6, 6), True),
        (losses.ProxyAnchorLoss(6, 6), False),
        (losses.SphereFaceLoss(6, 6) + losses.CenterLoss(6, 6), False),
        (losses.CrossBatchMemory(losses.CircleLoss(), 6), False),  # its pairs are in the memory
    ],
)
def test_pairs_are_missed_where_they_are_needed(loss: nn.Module | None, needed: bool) -> None:
    report = diagnose_batch(batch(6)[0], torch.arange(6), loss)
    assert report.needs_pairs is needed
    assert any("no sample has another of its class" in text for text in report.warnings()) is needed


def test_copies_zeros_and_nan() -> None:
    x = batch(8)[0]
    x[1] = x[0]
    x[4] = x[3]
    x[6] = 0
    x[7, 2] = math.nan
    report = diagnose_batch(x, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    assert (report.repeated, report.confused, report.zero, report.not_finite) == (2, 2, 1, 1)
    assert report.samples == 8
    texts = report.warnings()
    assert "1 of 8 embeddings are not finite numbers" in texts[0]
    assert "1 of 8 embeddings are zero" in texts[1]
    assert any("2 samples have an exact copy of another class" in text for text in texts)


def test_ties_count_against_the_model() -> None:
    assert diagnose_batch(torch.ones(6, 3), torch.arange(6) % 2).recall == 0


# Collapse


def test_a_healthy_batch_has_nothing_to_warn_of() -> None:
    x, labels = batch(64, 32, 16)
    assert diagnose_batch(x, labels, losses.MultiSimilarityLoss()).warnings() == []


def test_collapse_to_a_point() -> None:
    x, labels = batch(64, 32, 16)
    report = diagnose_batch(torch.ones(32) + 0.01 * x, labels)
    assert report.negative.mean > 0.99
    (text,) = report.warnings()
    assert "all embeddings point one way" in text
    fresh = diagnose_batch(torch.ones(32) + 0.2 * x, labels)  # a cone, as networks of random weights make it
    assert 0.8 < fresh.negative.mean < 0.99
    assert fresh.warnings() == []


def test_collapse_into_few_dimensions() -> None:
    x, labels = batch(64, 32, 16)
    flat = torch.cat([x[:, :2], torch.zeros(64, 30)], 1)
    report = diagnose_batch(flat, labels)
    assert report.effective_rank < 2.01
    (text,) = report.warnings()
    assert "use 2.0 directions where 16 classes could use 15" in text


def test_effective_rank_by_singular_values() -> None:
    x, labels = batch(40, 6)
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    values = torch.linalg.svdvals(unit - unit.mean(0))
    shares = values / values.sum()
    assert diagnose_batch(x, labels).effective_rank == pytest.approx(float((-(shares * shares.log()).sum()).exp()))


# Activity: what the loss's gradient by each cosine is, written as functions of the matrix of cosines


def circle(s: Tensor, p: Tensor, n: Tensor) -> Tensor:
    m, gamma = 0.3, 24.0
    up = -gamma * (1 + m - s.detach()).clamp_min(0) * (s - (1 - m))
    un = gamma * (s.detach() + m).clamp_min(0) * (s - m)
    rows = [
        torch.nn.functional.softplus(up[i][p[i]].logsumexp(0) + un[i][n[i]].logsumexp(0))
        for i in range(len(s))
        if p[i].any() and n[i].any()
    ]
    return torch.stack(rows).mean()


def contrastive(s: Tensor, p: Tensor, n: Tensor) -> Tensor:
    d = (2 - 2 * s.clamp_max(1 - 1e-12)).sqrt()
    pull, push = (d - 0.9).clamp_min(0)[p], (1.1 - d).clamp_min(0)[n]
    return pull.sum() / (pull > 0).sum() + push.sum() / (push > 0).sum()


def hardest_triplets(s: Tensor, p: Tensor, n: Tensor) -> Tensor:
    d = (2 - 2 * s.clamp_max(1 - 1e-12)).sqrt()
    rows = [(d[i][p[i]].max() - d[i][n[i]].min() + 0.2).clamp_min(0) for i in range(len(s)) if p[i].any()]
    return torch.stack(rows).mean()


CASES: list[tuple[nn.Module, Callable[[Tensor, Tensor, Tensor], Tensor]]] = [
    (losses.CircleLoss(m=0.3, gamma=24.0), circle),
    (losses.ContrastiveLoss(pos_margin=0.9, neg_margin=1.1, power=1), contrastive),
    (losses.TripletMarginLoss(margin=0.2, mining="batch_hard"), hardest_triplets),
    (
        2.0 * losses.CircleLoss(m=0.3, gamma=24.0) + losses.ContrastiveLoss(pos_margin=0.9, neg_margin=1.1, power=1),
        lambda s, p, n: 2 * circle(s, p, n) + contrastive(s, p, n),
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_active_pairs_are_those_with_a_gradient(case: int) -> None:
    loss, naive = CASES[case]
    x, labels = batch(30, seed=case)
    s = cosines(x).requires_grad_()
    alike = labels[:, None] == labels
    p, n = alike & ~torch.eye(30, dtype=torch.bool), ~alike
    value = naive(s, p, n)
    value.backward()
    assert s.grad is not None
    pairs = (s.grad + s.grad.T).abs()
    report = diagnose_batch(x, labels, loss)
    assert report.activity is not None
    assert report.activity.loss == pytest.approx(float(value.detach()), rel=1e-4)
    for kind, found in ((p, report.activity.positives), (n, report.activity.negatives)):
        active = (pairs[kind] > 1e-3 * pairs[kind].max()).double().mean()
        assert 0 < active < 1  # else this test says nothing
        assert found == pytest.approx(float(active))
    assert report.activity.gradient_norm > 0


def test_active_pairs_of_dot_products() -> None:
    """N-pairs sees products, not cosines: its gradient by a cosine has both norms in it."""
    torch.manual_seed(2)
    x, labels = 4 * torch.randn(12, 6), torch.arange(12) // 2
    norms = x.double().norm(dim=1)
    s = cosines(x).requires_grad_()
    z = s * norms[:, None] * norms
    rows = []
    for i in range(12):
        other = labels != labels[i]
        rows.append(torch.nn.functional.softplus(z[i][other].logsumexp(0) - z[i, i ^ 1]))
    torch.stack(rows).mean().backward()
    assert s.grad is not None
    pairs = (s.grad + s.grad.T).abs()
    alike = labels[:, None] == labels
    active = (pairs[~alike] > 1e-3 * pairs[~alike].max()).double().mean()
    assert 0.05 < active < 0.95
    report = diagnose_batch(x, labels, losses.NPairsLoss())
    assert report.activity is not None
    assert report.activity.negatives == pytest.approx(float(active))


def test_class_level_losses_are_looked_at_by_sample() -> None:
    x, labels = batch()
    loss = losses.ProxyAnchorLoss(5, 6)
    leaf = x.clone().requires_grad_()
    loss(leaf, labels).backward()
    norms = leaf.grad.norm(dim=1)
    report = diagnose_batch(x, labels, loss)
    assert report.activity is not None
    assert (report.activity.positives, report.activity.negatives) == (None, None)
    assert report.activity.samples == pytest.approx(float((norms > 1e-3 * norms.max()).double().mean()))
    assert report.activity.gradient_norm == pytest.approx(float(leaf.grad.norm()), rel=1e-5)
    assert "active samples" in report.line()


def test_a_satisfied_loss_is_said_to_be() -> None:
    x, labels = torch.eye(8).repeat_interleave(2, 0), torch.arange(16) // 2
    x = x + 1e-3 * torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    report = diagnose_batch(x, labels, losses.TripletMarginLoss(margin=0.1))
    assert report.activity is not None
    assert (report.activity.loss, report.activity.positives, report.activity.samples) == (0, 0, 0)
    assert any("this batch has no gradient" in text for text in report.warnings())


@pytest.mark.parametrize(
    "loss",
    [
        losses.CrossBatchMemory(losses.CircleLoss(), 6, memory_size=64),
        losses.SphereFaceLoss(5, 6) + losses.CenterLoss(5, 6),
        losses.MarginLoss(sampling="distance_weighted", learn_beta=True),
        losses.MatryoshkaLoss(losses.CircleLoss(), [2, 6]),
        losses.SignalToNoiseRatioContrastiveLoss(),
        losses.CircleLoss(reduction="none"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_nothing_is_disturbed(loss: nn.Module) -> None:
    x, labels = batch()
    x.requires_grad_()
    loss.train()
    state, random = copy.deepcopy(loss.state_dict()), torch.get_rng_state()
    report = diagnose_batch(x, labels, loss)
    assert report.activity is not None and report.activity.gradient_norm > 0
    torch.testing.assert_close(loss.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert x.grad is None and all(p.grad is None for p in loss.parameters())
    assert all(module.training for module in loss.modules())


def test_it_is_quiet_where_the_loss_would_warn() -> None:
    x = batch(6)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = diagnose_batch(x, torch.arange(6), losses.CircleLoss())
    assert report.activity is not None and report.activity.positives is None
    assert any("no gradient" in text for text in report.warnings())


def test_text() -> None:
    x, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(8) // 2
    report = diagnose_batch(x, labels, losses.ContrastiveLoss(neg_margin=1.5))
    assert isinstance(report, BatchReport)
    lines = dict(line.split("  ", 1) for line in report.table().splitlines())
    assert lines["samples"].strip() == "8 of 4 classes, 4 dimensions"
    assert lines["positive pairs"].strip() == "4, similarity 1.000 ± 0.000, 1.000 to 1.000"
    assert lines["negative pairs"].strip() == "24, similarity 0.000 ± 0.000, 0.000 to 0.000"
    assert lines["active negative pairs"].strip() == "100 %"
    assert lines["exact copies"].strip() == "8 of the same class, 0 of another"
    assert report.line() == (
        "s_p 1.000 ± 0.000, s_n 0.000 ± 0.000, rank 3.0 of 4, no positive 0/8, active pairs 100 % + / 100 % -"
    )


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"embeddings must be \(N, D\)"):
        diagnose_batch(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"labels must be \(N,\) or \(N, L\) with N = 3"):
        diagnose_batch(torch.zeros(3, 2), torch.zeros(4))
    with pytest.raises(ValueError, match="1 of 3 embeddings are finite"):
        diagnose_batch(torch.tensor([[0.0, 1], [math.nan, 0], [math.inf, 0]]), torch.zeros(3))
    with pytest.raises(ValueError, match="InfoNCELoss compares two towers"):
        diagnose_batch(torch.ones(3, 2), torch.zeros(3), losses.InfoNCELoss())
