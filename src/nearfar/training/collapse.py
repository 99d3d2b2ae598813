"""Detection of collapse: all embeddings point in one direction, whatever the image shows.

In a collapsed batch, samples of different classes have a mean similarity near 1, and samples of one class are hardly
more similar. A network with random weights may start this way and need some steps to leave this state. A training that
is collapsed in two checks, a third of an epoch apart, and no better than at its first step, does not recover.
"""

from nearfar.foundation.run_folder import RunError
from nearfar.training.config import TrainConfig
from nearfar.training.doctor import ONE_WAY

HARDLY = 0.75  # distance within classes over that between classes: a network that learns is below
ONE_POINT = 0.9999  # mean similarity of different classes beyond which their differences are mostly rounding errors
FEWEST, MOST = 10, 500  # steps between two checks


class CollapseError(RunError):
    """Training stopped because it collapsed; the message says what to try."""

    exit_code = 3


class CollapseWatch:
    """Checks the similarities of a batch three times an epoch.

    Args:
        epoch: steps in an epoch.
    """

    def __init__(self, epoch: int):
        self.every = min(max(FEWEST, epoch // 3), MOST)
        self._first: float | None = None
        self._before = False  # whether the last check found a collapse

    def due(self, step: int) -> bool:
        """Whether to check after this step."""
        return step == 1 or step % self.every == 0

    def sees(self, positive: float, negative: float) -> bool:
        """Whether this check confirms the collapse that the previous one found.

        Args:
            positive, negative: mean similarities of the pairs of each kind; NaN without pairs.
        """
        ratio = (1 - positive) / max(1 - negative, 1e-12)
        first, self._first = self._first, ratio if self._first is None else self._first
        learns = ratio < HARDLY or (first is not None and ratio < 0.9 * first)
        now = negative > ONE_POINT or (negative > ONE_WAY and not learns)
        confirmed, self._before = now and self._before, now and first is not None
        return confirmed


def advice(config: TrainConfig, step: int) -> str:
    """The message about a collapse."""
    names = " + ".join(loss.name for loss in config.loss)
    hard = any(loss.arguments.get("mining") == "batch_hard" for loss in config.loss)
    easier = "softer triplets (--loss.mining all), " if hard else ""
    keep_going = "" if config.on_collapse == "continue" else " To continue anyway: --on-collapse continue"
    return (
        f"training has collapsed (step {step:,}): all embeddings point one way, and samples of one class are hardly "
        f"closer to each other than to other classes. {names} does not recover from this. Try {easier}a lower --lr "
        f"(it is {config.optimiser.lr:g}), --schedule.warmup_steps {warm(config)}, more classes in a batch, or another "
        f"loss.{keep_going}"
    )


def warm(config: TrainConfig) -> int:
    """The number of warm-up steps to suggest."""
    return max(100, 2 * (config.schedule.warmup_steps or 0))
