"""`--budget`: choose what to train, the image size and the epochs so that the run ends in time.

The features of all images are computed first: every way to train needs them. Then one step of each way is timed, and
the best way is chosen that fits enough epochs into the remaining time. The choice becomes part of the configuration;
a deadline ends training early if the machine turns out slower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from nearfar.data import Table
from nearfar.data.opening import reopen
from nearfar.foundation.durations import duration, read_seconds
from nearfar.training.build import build_embedder
from nearfar.training.candidates import features_only, on_cached_features
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.measure import embed
from nearfar.training.options import ConfigError
from nearfar.training.progress import Display
from nearfar.training.splits import Parts, split
from nearfar.training.timing import Costs, Counts, counted, lower_part, measured, training_time

SAFETY = 0.8  # share of the remaining time to plan with: steps may be slower than the timed one
RESERVED, RESERVED_SHARE = 10.0, 0.06  # seconds, and share of the budget, for evaluation and report
SMALLEST = 96  # pixels
FOR_FEATURES = 0.75  # share of the time: a head trains on them in seconds, and smaller images cost much quality
WAYS = {"everything": "the whole network", "upper": "the upper blocks", "head": "the head, on cached features"}


@dataclass(frozen=True)
class Plan:
    """One of `WAYS` to train, with its epochs, folds and estimated seconds."""

    way: str
    epochs: int
    folds: int
    seconds: float


def plan(costs: Costs, counts: Counts, seconds: float) -> Plan | None:
    """Choose the best way to train that fits into the time; None if none fits.

    >>> costs, counts = Costs(0.01, 0.05, 0.03, 0.0005), Counts(1000, 100, 1000, 1, 5)
    >>> [best.way if (best := plan(costs, counts, seconds)) else None for seconds in (1, 30, 120, 1000)]
    [None, 'head', 'upper', 'everything']
    """
    for way, folds, fewest, most in (
        ("everything", counts.folds, 8, 20),
        ("upper", counts.folds, 2 if counts.folds == 1 else 6, 20),
        ("head", counts.head_folds, 10, 40),
        ("head", 1, 5, 40),
        ("everything", 1, 1, 20),
    ):
        if getattr(costs, way) is None:
            continue
        once, twice = (training_time(way, epochs, folds, costs, counts) for epochs in (1, 2))
        epochs = min(int((seconds - once) / (twice - once)) + 1, most) if seconds >= once else 0
        if epochs >= fewest:
            return Plan(way, epochs, folds, training_time(way, epochs, folds, costs, counts))
    return None


class Budget:
    """The time in which a run has to end, counted from construction.

    Args:
        text: a duration such as 10min.
        clock: returns seconds.
    """

    def __init__(self, text: str, clock: Callable[[], float] = time.monotonic):
        self.text, self.seconds, self._clock = text, read_seconds(text, "--budget"), clock
        self._began = clock()

    @property
    def deadline(self) -> float:
        """When training has to end, by the clock; the rest is for evaluation and the report."""
        return self._began + self.seconds - RESERVED - RESERVED_SHARE * self.seconds

    def fitted(self, config: TrainConfig, table: Table, display: Display) -> TrainConfig:
        """Fill in the settings that decide how long training takes; those already set stay."""
        elsewhere = None if config.data.test is None else reopen(config.data.test)
        parts, heads = (
            replace(split(table, config.data, config.seed, frozen=frozen), elsewhere=elsewhere)
            for frozen in (False, True)
        )
        costs = measured(config, parts)
        config = self._sized(config, costs.embed * len(table), parts, display)
        compute_features(config, parts, display)
        left = self.deadline - self._clock()
        chosen = plan(costs, counted(parts, heads), SAFETY * left)
        if chosen is None:
            raise ConfigError(
                f"--budget {self.text} is too short for {table.name}: {duration(self._clock() - self._began)} went "
                f"into the features of its {len(table):,} images, and no way to train fits into the rest. Allow more "
                "time, or use less data"
            )
        epochs = config.epochs or chosen.epochs
        folds = f", in {chosen.folds} folds and once more on all classes" if chosen.folds > 1 else ""
        what = f"{WAYS[chosen.way]}, {epochs} epochs{folds}"
        display.note(f"budget {self.text}: {what}: about {duration(chosen.seconds)}")
        model = config.model
        model = replace(
            model,
            freeze=model.freeze or chosen.way == "head",
            freeze_to=lower_part(config) if chosen.way == "upper" else model.freeze_to,
        )
        return replace(config, model=model, data=replace(config.data, folds=chosen.folds), epochs=epochs)

    def _sized(self, config: TrainConfig, seconds: float, parts: Parts, display: Display) -> TrainConfig:
        """Reduce the image size where computing the features would take too much of the time."""
        left = self.deadline - self._clock()
        size = build_embedder(resolve(config, parts.train)).preprocess.size
        if seconds <= FOR_FEATURES * left or config.data.size is not None or not isinstance(size, int):
            return config
        smaller = max(SMALLEST, int(size * (FOR_FEATURES * left / seconds) ** 0.5) // 16 * 16)
        display.note(f"budget {self.text}: images of {smaller} pixels instead of {size}")
        return replace(config, data=replace(config.data, size=smaller))


def compute_features(config: TrainConfig, parts: Parts, display: Display) -> None:
    """Compute the features of all images into the cache, if the trunk is pretrained."""
    config = resolve(config, parts.train)
    network = features_only(config)
    for table in (parts.table, parts.elsewhere):
        if network is not None and table is not None and table.images is not None:
            with display.looking("features", len(table)) as advance:
                embed(network, table, on_cached_features(config), advance=advance)
