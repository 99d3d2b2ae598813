"""`--budget`: what to train, on images of which size and for how long, so that all of it ends in time.

The features of all images are computed first: they are needed whatever is trained. Then one step of each way to train
is timed, and the best way is chosen of which enough epochs fit into what is left. What was chosen becomes part of the
configuration; a deadline ends training early where the machine has become slower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nearfar.data import Table
from nearfar.durations import read_seconds, spoken
from nearfar.models import list_trunks
from nearfar.training.build import build_embedder
from nearfar.training.candidates import features_alone, on_cached_features
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import resolve, with_images_of
from nearfar.training.learner import make_optimisation
from nearfar.training.measure import embed
from nearfar.training.memory import freed_memory_kept
from nearfar.training.options import ConfigError
from nearfar.training.prepare import build
from nearfar.training.progress import Display
from nearfar.training.splits import Parts, split

SAFETY = 0.8  # of the time that is left is planned with: steps may turn out slower than the one that was timed
RESERVED, RESERVED_SHARE = 10.0, 0.06  # seconds, and share of the budget: to measure, and to write the report
TIMED = 24  # images
SMALLEST = 96  # pixels
LOOKS = 4  # at the held-out rows of a fold
WAYS = {"everything": "the whole network", "upper": "the upper blocks", "head": "the head, on cached features"}


@dataclass(frozen=True)
class Costs:
    """Seconds an image takes: to be embedded, and in a step of each way to train (None: it is no way here)."""

    embed: float
    everything: float | None
    upper: float | None
    head: float | None


@dataclass(frozen=True)
class Counts:
    """Images to train on, to validate on in every epoch, and to test; folds of whole networks and of heads, or 1."""

    train: int
    val: int
    test: int
    folds: int
    head_folds: int


@dataclass(frozen=True)
class Plan:
    """One of `WAYS` to train, for how many epochs, in how many folds, and the seconds that it will take."""

    way: str
    epochs: int
    folds: int
    seconds: float


def plan(costs: Costs, counts: Counts, seconds: float) -> Plan | None:
    """The best way to train for which there is time; None if there is for none.

    >>> costs, counts = Costs(0.01, 0.05, 0.03, 0.0005), Counts(1000, 100, 1000, 1, 5)
    >>> [found.way if (found := plan(costs, counts, seconds)) else None for seconds in (1, 30, 120, 1000)]
    [None, 'head', 'upper', 'everything']
    """
    for way, cost, folds, fewest, most in (
        ("everything", costs.everything, counts.folds, 8, 20),
        ("upper", costs.upper, counts.folds, 2 if counts.folds == 1 else 6, 20),
        ("head", costs.head, counts.head_folds, 10, 40),
        ("head", costs.head, 1, 5, 40),
        ("everything", costs.everything, 1, 1, 20),
    ):
        if cost is None:
            continue
        epoch = counts.train * cost * folds  # every fold trains on all rows but its own, and in the end all are
        measuring = 0.0
        if way != "head":
            measuring = costs.embed * (counts.test + (LOOKS * counts.train if folds > 1 else counts.val))
            epoch += counts.val * costs.embed if folds == 1 else 0.0
        epochs = min(int((seconds - measuring) / epoch), most)
        if epochs >= fewest:
            return Plan(way, epochs, folds, epochs * epoch + measuring)
    return None


class Budget:
    """A time in which a run is to end, counted from here.

    Args:
        text: such as 10min.
        clock: tells seconds.
    """

    def __init__(self, text: str, clock: Callable[[], float] = time.monotonic):
        self.text, self.seconds, self._clock = text, read_seconds(text), clock
        self._began = clock()

    @property
    def deadline(self) -> float:
        """When training has to end, by the clock: the rest is for measuring and for the report."""
        return self._began + self.seconds - RESERVED - RESERVED_SHARE * self.seconds

    def fitted(self, config: TrainConfig, table: Table, display: Display) -> TrainConfig:
        """The configuration with everything chosen that decides how long training takes; what was given stays."""
        parts, heads = (split(table, config.data, config.seed, frozen=frozen) for frozen in (False, True))
        embedding = self._timed(lambda: _embed(config, parts, _some(table), display)) / TIMED
        config = self._sized(config, embedding * len(table), parts, display)
        _embed(config, parts, table, display)
        left = self.deadline - self._clock()
        val, test = (0 if part is None else len(part) for part in (parts.val, parts.test))
        counts = Counts(len(parts.train), val, test, parts.folds or 1, heads.folds or 1)
        chosen = plan(self._costs(config, parts, embedding), counts, SAFETY * left)
        if chosen is None:
            raise ConfigError(
                f"--budget {self.text} is too short for {table.name}: the features of its {len(table):,} images took "
                f"{spoken(self._clock() - self._began)}, and no way to train fits into the rest. Give more time, or "
                "less data"
            )
        epochs = config.epochs or chosen.epochs
        display.note(
            f"budget {self.text}: {WAYS[chosen.way]}, {epochs} epochs"
            f"{f', in {chosen.folds} folds and once more on all' if chosen.folds > 1 else ''}: "
            f"about {spoken(chosen.seconds)}"
        )
        model = config.model
        model = replace(
            model,
            freeze=model.freeze or chosen.way == "head",
            freeze_to=_lower(config) if chosen.way == "upper" else model.freeze_to,
        )
        folds = chosen.folds if chosen.folds > 1 else 1
        return replace(config, model=model, data=replace(config.data, folds=folds), epochs=epochs)

    def _sized(self, config: TrainConfig, seconds: float, parts: Parts, display: Display) -> TrainConfig:
        """Smaller images where the features of all of them would take more than half of the time."""
        left = self.deadline - self._clock()
        size = build_embedder(_resolved(config, parts)).preprocess.size
        if seconds <= left / 2 or config.data.size is not None or not isinstance(size, int):
            return config
        smaller = max(SMALLEST, int(size * (left / 2 / seconds) ** 0.5) // 16 * 16)
        display.note(f"budget {self.text}: images of {smaller} pixels instead of {size}")
        return replace(config, data=replace(config.data, size=smaller))

    def _costs(self, config: TrainConfig, parts: Parts, embedding: float) -> Costs:
        model = config.model
        pretrained = features_alone(_resolved(config, parts)) is not None
        if model.freeze or parts.table.images is None:
            return Costs(embedding, None, None, self._step(config, parts))
        head = replace(config, model=replace(model, freeze=True)) if pretrained and model.lora is None else None
        lower = _lower(config) if pretrained and model.freeze_to is None else None
        upper = None if lower is None else replace(config, model=replace(model, freeze_to=lower))
        found = [None if way is None else self._step(way, parts) for way in (config, upper, head)]
        return Costs(embedding, *found)

    def _step(self, config: TrainConfig, parts: Parts) -> float:
        """Seconds that an image takes in a step: of two, the second."""
        prepared = build(config, parts)
        embedder, loss = prepared.embedder, prepared.loss
        if not bool(embedder.head_is_fitted):
            embedder.head_is_fitted.fill_(True)  # where the head starts does not matter to the clock
        optimiser = make_optimisation(prepared.config, embedder, loss, 2)[0]
        frozen = prepared.config.model.freeze
        batch = next(iter(prepared.loader))
        images, labels = (batch.images, batch.labels) if frozen else (batch.images[:TIMED], batch.labels[:TIMED])

        def step() -> None:
            optimiser.zero_grad()
            loss(embedder.project(images) if frozen else embedder(images), labels).backward()
            optimiser.step()

        embedder.train()
        with freed_memory_kept("cpu"):
            step()
            return self._timed(step) / len(images)

    def _timed(self, work: Callable[[], object]) -> float:
        began = self._clock()
        work()
        return self._clock() - began


def _resolved(config: TrainConfig, parts: Parts) -> TrainConfig:
    return resolve(config, parts.train, parts.fewest_to_train_on)


def _some(table: Table) -> Table:
    return table.select(np.random.default_rng(0).permutation(len(table))[:TIMED])


def _embed(config: TrainConfig, parts: Parts, table: Table, display: Display) -> None:
    """Have the features of a table in the cache, where the trunk is one whose features are kept."""
    resolved = _resolved(config, parts)
    embedder = build_embedder(resolved)
    resolved = with_images_of(resolved, embedder)
    network = features_alone(resolved) or embedder.eval()
    embedder.head_is_fitted.fill_(True)
    with display.looking("features", len(table)) as advance:
        embed(network, table, on_cached_features(resolved), advance=advance)


def _lower(config: TrainConfig) -> str | None:
    """The part of the trunk that stays as it is where its upper blocks are trained."""
    name = config.model.backbone or "efficientnet-lite0"
    return next((info.lower for info in list_trunks() if info.name == name), None)
