"""Two runs in the processes that torchrun starts: one undisturbed, one whose second process is killed the first time."""

import os
import signal
import sys

from torch import Tensor

from nearfar.data import Batch
from nearfar.training.learner import Learner
from nearfar.training.train import train
from nearfar.training.world import joined, started
from tests.training.making import SMALL, patterns

# Everything that has a state, in parts and whole; augmentations, batch normalisation, a norm over all processes.
OPTIONS = {
    **SMALL, "epochs": 3, "batch_size": 8, "pad": 2, "k": 2, "sampler.kind": "pk", "ema": 0.9, "checkpoints.steps": 2,
    "loss": "ProxyAnchorLoss + SoftTripleLoss + CircleLoss", "loss.ProxyAnchorLoss.sharded": True,
    "loss.SoftTripleLoss.sharded": True, "loss.CircleLoss.memory": 24, "optimiser.clip_norm": 1.0, "sample_rate": 0.5,
}  # fmt: skip
KILLED_IN = 8  # step; the last checkpoint before it is of step 6


def killed(self: Learner, batch: Batch) -> Tensor:
    if self.done + 1 == KILLED_IN and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch)


if __name__ == "__main__":
    world = started()
    assert world is not None and world.size == 2
    with joined(world, "cpu"):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            train(patterns(), quiet=True, out=sys.argv[1], **OPTIONS)
            step = Learner.training_step
            Learner.training_step = killed  # type: ignore[method-assign]
        train(patterns(), quiet=True, out=sys.argv[2], **OPTIONS)
