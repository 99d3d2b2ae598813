"""Collapse: a training after which all embeddings point one way, whatever is in the image.

It shows in the batches themselves: samples of different classes have a mean similarity near 1, and those of one class
are hardly nearer. A network of random weights may begin so, and a loss may need steps to get out of it; a training in
which two looks, a third of an epoch apart, find it so, and no better than at its first step, does not recover.
"""

from nearfar.foundation.run_folder import RunError
from nearfar.training.config import TrainConfig
from nearfar.training.doctor import ONE_WAY

HARDLY = 0.75  # of the distance between classes: what is left of it within a class where training learns, is less
ONE_POINT = 0.9999  # mean similarity of different classes beyond which what tells them apart is mostly rounding
FEWEST, MOST = 10, 500  # steps between two looks


class CollapseError(RunError):
    """Training was stopped because it had collapsed; the message says what to try."""

    exit_code = 3


class CollapseWatch:
    """Looks at the similarities of a batch three times an epoch.

    Args:
        epoch: steps of an epoch.
    """

    def __init__(self, epoch: int):
        self.every = min(max(FEWEST, epoch // 3), MOST)
        self._first: float | None = None
        self._before = False  # what the last look found

    def due(self, step: int) -> bool:
        """Whether to look after this step."""
        return step == 1 or step % self.every == 0

    def sees(self, positive: float, negative: float) -> bool:
        """Whether this look, with these mean similarities of the pairs of each kind, confirms the one before; NaN where
        there are no pairs.
        """
        left = (1 - positive) / max(1 - negative, 1e-12)
        first, self._first = self._first, left if self._first is None else self._first
        learns = left < HARDLY or (first is not None and left < 0.9 * first)
        now = negative > ONE_POINT or (negative > ONE_WAY and not learns)
        confirmed, self._before = now and self._before, now and first is not None
        return confirmed


def advice(config: TrainConfig, step: int) -> str:
    """What to say of it."""
    names = " + ".join(loss.name for loss in config.loss)
    hard = any(loss.arguments.get("mining") == "batch_hard" for loss in config.loss)
    easier = "softer triplets (--loss.mining all), " if hard else ""
    going_on = "" if config.on_collapse == "continue" else " To train on all the same: --on-collapse continue"
    return (
        f"training has collapsed (step {step:,}): all embeddings point one way, and samples of one class are hardly "
        f"nearer to each other than to those of others. {names} does not recover from that. Try {easier}a lower --lr "
        f"(it is {config.optimiser.lr:g}), --schedule.warmup_steps {warm(config)}, more classes in a batch, or another "
        f"loss.{going_on}"
    )


def warm(config: TrainConfig) -> int:
    """Steps of warm-up that are worth a try."""
    return max(100, 2 * (config.schedule.warmup_steps or 0))
