"""What four processes check: that what four of them save, three, two and one go on with to the same end."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar import losses
from nearfar.losses.distributed import distribute, full_state, is_sharded
from nearfar.training.parts import (
    lazy_rows,
    load_plain_loss_state,
    make_room,
    optimiser_shards,
    plain_loss_state,
    plain_optimiser_state,
    table_shards,
)
from nearfar.training.shards import load_shards, save_shards, whole
from tests.losses.distributed.processes import Check

CLASSES, SIZE, INPUTS, BATCH, STEPS, SAVED_AT = 11, 6, 8, 9, 7, 3
OPTIMISERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}
CASES: dict[str, tuple[Any, str, float]] = {
    "softmax with biases": (lambda: losses.SoftmaxLoss(CLASSES, SIZE, sharded=True), "adamw", 1.0),
    "several vectors of a class": (lambda: losses.SoftTripleLoss(CLASSES, SIZE, 3, sharded=True), "adamw", 1.0),
    "proxies as rows, sampled": (lambda: losses.ProxyAnchorLoss(CLASSES, SIZE, sharded=True), "adamw", 0.4),
    "several vectors, sampled": (lambda: losses.SoftTripleLoss(CLASSES, SIZE, 2, sharded=True), "sgd", 0.4),
    "centres, which are no parameter": (
        lambda: losses.CenterLoss(CLASSES, SIZE, sharded=True) + losses.ArcFaceLoss(CLASSES, SIZE, sharded=True),
        "adamw",
        1.0,
    ),
}


class Training:
    """A linear model and a loss, in the processes of a group."""

    def __init__(self, case: str, group: Any):
        make, name, rate = CASES[case]
        self.group = group
        torch.manual_seed(0)
        self.model = nn.Linear(INPUTS, SIZE).double()
        self.loss = distribute(make().double(), group, sample_rate=rate, seed=5)
        # What has no values takes its type, too, where it is made.
        self.optimiser = OPTIMISERS[name]([*self.model.parameters(), *self.loss.parameters()])
        self.lazy = lazy_rows(self.loss, self.optimiser) if rate < 1 else None

    def train(self, start: int, stop: int) -> None:
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        for step in range(start, stop):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64)
            labels = torch.randint(CLASSES, (BATCH,), generator=generator)
            own = np.array_split(np.arange(BATCH), size)[rank]
            self.optimiser.zero_grad()
            self.loss(self.model(x[own]), labels[own]).backward()
            for parameter in (*self.model.parameters(), *(p for p in self.loss.parameters() if not is_sharded(p))):
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.group)
                    parameter.grad /= size
            if self.lazy is not None:
                self.lazy.step()
            self.optimiser.step()

    def save(self, folder: Path) -> None:
        shards = table_shards(self.loss) | optimiser_shards(self.loss, self.optimiser)
        state = {
            "model": self.model.state_dict(),
            "loss": plain_loss_state(self.loss),
            "optimiser": plain_optimiser_state(self.loss, self.optimiser),
            "shards": list(shards),
        }
        save_shards(folder / "shards", shards, self.group)
        if dist.get_rank() == 0:
            torch.save(state, folder / "last.pt")
        dist.barrier(self.group)

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "last.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        load_plain_loss_state(self.loss, state["loss"])
        self.optimiser.load_state_dict(state["optimiser"])
        make_room(self.loss, self.optimiser, state["shards"])
        shards = table_shards(self.loss) | optimiser_shards(self.loss, self.optimiser)
        assert list(shards) == state["shards"]
        load_shards(folder / "shards", shards, self.group)

    def state(self) -> dict[str, Tensor]:
        model = {f"model.{name}": value.clone() for name, value in self.model.state_dict().items()}
        return {**{name: value.clone() for name, value in full_state(self.loss).items()}, **model}


def checks(folder: Path) -> dict[str, Check]:
    groups = {size: dist.new_group(list(range(size))) for size in (1, 2, 3, 4)}

    def check(case: str, at: Path) -> Check:
        def run() -> None:
            whole_run = Training(case, groups[4])
            start = full_state(whole_run.loss)
            whole_run.train(0, SAVED_AT)
            os.makedirs(at, exist_ok=True)
            whole_run.save(at)
            saved = whole_run.state()
            _check_files(at, saved)
            whole_run.train(SAVED_AT, STEPS)
            expected = whole_run.state()
            for size in (4, 3, 2, 1):
                if dist.get_rank() < size:
                    again = Training(case, groups[size])
                    again.load(at)
                    again.train(SAVED_AT, STEPS)
                    found = again.state()
                    for name, value in expected.items():
                        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10, msg=f"{size} {name}")
                        if name in start and value.ndim == 2:
                            assert not torch.equal(value, saved[name]) and not torch.equal(value, start[name])
                dist.barrier()

        return run

    return {case: check(case, folder / str(number)) for number, case in enumerate(CASES)}


def _check_files(at: Path, state: dict[str, Tensor]) -> None:
    """One process reads the class weights whole; the state beside them has none."""
    if dist.get_rank() == 0:
        tables = {name: value for name, value in whole(at / "shards").items() if name.startswith("loss.")}
        assert tables
        for name, table in tables.items():
            assert torch.equal(table, state[name.removeprefix("loss.")])
        plain = torch.load(at / "last.pt", weights_only=True)
        assert not set(plain["loss"]) & {name.removeprefix("loss.") for name in tables}
