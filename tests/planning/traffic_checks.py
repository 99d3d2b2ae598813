"""What four processes check: that a step sends what a plan says."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from nearfar import losses
from nearfar.losses.distributed import count_traffic, distribute, is_sharded
from nearfar.planning import Job, traffic_of
from tests.losses.distributed.processes import Check

JOB = Job(classes=37, dimension=6, batch=1_100, world=4, parameters=0, activations=0)
SINGLE_NUMBERS = 400  # bytes: how many samples and rows there are, and the like
CASES: dict[str, tuple[Any, Job]] = {
    "softmax": (lambda: losses.ArcFaceLoss(37, 6, sharded=True), JOB),
    "more columns than a tile has, and several strips": (
        lambda: losses.NormFaceLoss(8_800, 6, sharded=True),
        replace(JOB, classes=8_800),
    ),
    "several vectors": (lambda: losses.SubCenterArcFaceLoss(37, 6, sub_centers=2), replace(JOB, vectors_per_class=2)),
    "replicated": (lambda: losses.CircleLoss(num_classes=37, embedding_size=6), replace(JOB, sharded=False)),
    "proxies": (lambda: losses.ProxyAnchorLoss(37, 6, sharded=True), replace(JOB, kind="proxy")),
    "pairs": (lambda: losses.MultiSimilarityLoss(), replace(JOB, kind="pair")),
}


def checks() -> dict[str, Check]:
    def check(case: str) -> Check:
        def run() -> None:
            make, job = CASES[case]
            loss = distribute(make(), sharded=job.sharded)
            generator = torch.Generator().manual_seed(dist.get_rank())
            embeddings = torch.randn(job.samples, job.dimension, generator=generator, requires_grad=True)
            labels = torch.randint(37, (job.samples,), generator=generator)
            with count_traffic() as traffic:
                loss(embeddings, labels).backward()
                for parameter in loss.parameters():
                    if not is_sharded(parameter):
                        dist.all_reduce(parameter.grad)
            planned = traffic_of(job)
            assert abs(traffic.sent - planned.sent) <= SINGLE_NUMBERS, (traffic, planned)
            assert abs(traffic.calls.total() - planned.messages) <= 2, (traffic, planned)

        return run

    return {case: check(case) for case in CASES}
