"""Transfer: heads trained on one data set are tested on others, with unseen classes and unseen kinds of images.

With `--others`, the sets are DATA and these. Otherwise they are parts of DATA: by a column of its table (`--by`), or
the alphabets and fonts of the glyphs. A head is trained on the training rows of each set, and tested on the test
classes of each: of the same set (zero-shot), and of the others (with a domain shift). Training did harm if results are
below those of the untrained features.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure

from nearfar.compare.spaces import read_contestant
from nearfar.data import Table
from nearfar.data.opening import path_of
from nearfar.report import style
from nearfar.studies.heads import Heads, Measured, measured, read_rows, study_config
from nearfar.studies.heat import squares
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import Row, one, over_seeds, per_cent
from nearfar.training.build import build_embedder
from nearfar.training.config import TrainConfig, option
from nearfar.training.measure import embed
from nearfar.training.options import ConfigError

METRIC = "recall@1"
FEATURES = "untrained features"
FEWEST_CLASSES = 8  # classes of a set, for training and for testing
FACES, ALPHABETS, SETS = "faces", "alphabets", "sets"
Sets = Mapping[str, tuple[Table, Table]]
"""Training and test rows by set."""


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    trained_with: str = option("MultiSimilarityLoss", "the loss")
    others: tuple[str, ...] = option((), "more data sets, separated by commas")
    by: str | None = option(None, "column of the table whose values are the sets; for glyphs: alphabets, faces")

    def __post_init__(self) -> None:
        super().__post_init__()
        read_contestant(self.trained_with)
        if self.others and self.by is not None:
            raise ConfigError("--others names further sets, --by divides one set: leave one of them out")

    def small(self) -> Self:
        config = replace(self.config, max_steps=3)
        glyphs = self.config.data.path == "glyphs" and not self.others
        return replace(self, by=FACES if glyphs and self.by is None else self.by, seeds=1, classes=24, config=config)


def families(options: Options, config: TrainConfig, say: Progress | None = None) -> dict[str, Sets]:
    """The families of sets, by what distinguishes the sets."""
    train, test = rows = read_rows(config, options.classes, say)
    if options.others:
        sets = {Path(config.data.path).name: rows}
        for path in options.others:
            other = replace(config, data=replace(config.data, path=path_of(path), layout=None))
            sets[Path(path).name] = read_rows(other, options.classes, say)
        if len(sets) <= len(options.others):
            raise ConfigError("two of the data sets have the same name: rename a folder")
        return {SETS: sets}
    if train.embedded:
        kinds = (ALPHABETS, FACES) if options.by is None else (options.by,)
        if unknown := [kind for kind in kinds if kind not in (ALPHABETS, FACES)]:
            raise ConfigError(f"glyphs differ by alphabets and by faces, not by {unknown[0]}")
        return {kind: parted(train, test, glyph_parts(train, kind), glyph_parts(test, kind)) for kind in kinds}
    if options.by is None:
        raise ConfigError(
            f"{train.name} is only one set: name others with --others, or a column of its table with --by"
        )
    return {options.by: parted(train, test, column(train, options.by), column(test, options.by))}


def column(table: Table, name: str) -> list[str]:
    """The values of a column as names."""
    if name not in table.columns:
        raise ConfigError(f"{table.name} has no column {name}, only {', '.join(table.columns) or 'labels'}")
    names = table.names.get(name)
    return [str(value) if names is None else names[value] for value in table.columns[name].tolist()]


def glyph_parts(table: Table, kind: str) -> list[str]:
    """The alphabet of every row, by the first word of its character's name (or Symbols), or its font family: DejaVu
    Sans, DejaVu Sans Mono, DejaVu Serif or STIX.
    """
    if kind == ALPHABETS:
        return [_alphabet(table.label_name(row)) for row in range(len(table))]
    return ["STIX" if name.startswith("STIX") else name.partition("-")[0] for name in column(table, "face")]


def _alphabet(character: str) -> str:
    letter = unicodedata.category(character).startswith("L")
    return unicodedata.name(character).split()[0].capitalize() if letter else "Symbols"


def parted(train: Table, test: Table, train_parts: Sequence[str], test_parts: Sequence[str]) -> Sets:
    """The rows of each part that has enough classes with at least two images for training and for testing."""
    result = {}
    for part in sorted(set(train_parts) & set(test_parts)):
        tables = []
        for table, parts in ((train, train_parts), (test, test_parts)):
            rows = table.select(np.array(parts) == part)
            sizes = np.bincount(rows.labels[rows.labels >= 0], minlength=1)
            tables.append(rows.select(sizes[rows.labels] >= 2))
        if all(table.num_classes >= FEWEST_CLASSES for table in tables):
            result[part] = (tables[0].compact(), tables[1])
    if len(result) < 2:
        raise ConfigError(
            f"transfer needs two sets with at least {FEWEST_CLASSES} classes of two images for training and for "
            f"testing, but there are {len(result)}"
        )
    return result


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train on every set, and test on all."""
    tables: dict[str, list[Row]] = {}
    figures: dict[str, Drawing] = {}
    texts: list[str] = []
    for kind, sets in families(options, study_config(options.config), progress).items():
        settings = [{"by": kind, "trained on": FEATURES, "seed": options.seed}]
        settings += [{"by": kind, "trained on": name, "seed": seed} for name in sets for seed in options.all_seeds]
        trainings = cells(settings, Trainings(options, sets).measure, folder, progress)
        long = [
            {"trained on": cell["trained on"], "tested on": name, "seed": cell["seed"], METRIC: cell[name]}
            for cell in trainings
            for name in sets
        ]
        tables[kind] = over_seeds(long, ["trained on", "tested on"], [METRIC])
        figures[kind] = Drawing(draw(tables[kind], list(sets)), f"Recall@1 on unseen classes, by {kind}")
        texts += sentences(tables[kind], list(sets), kind)
    return Findings(tables, figures, texts)


class Trainings:
    """Trains heads on each of the sets; caches the features of the last one."""

    def __init__(self, options: Options, sets: Sets):
        self._options, self._sets = options, sets
        self._last: tuple[str, Heads] | None = None

    def measure(self, setting: Mapping[str, Any]) -> Measured:
        """Recall@1 on the test rows of every set, by its name."""
        name = setting["trained on"]
        if name == FEATURES:
            return self._untrained()
        if self._last is None or self._last[0] != name:
            self._last = name, Heads(self._options.config, rows=self._sets[name])
        heads = self._last[1]
        workbench = heads.workbench

        def look() -> Measured:
            result = {}
            for other, (_, test) in self._sets.items():
                result[other] = measured(embed(workbench.embedder, test, workbench.config), test)[METRIC]
            return result

        trained = heads.train(read_contestant(self._options.trained_with), setting["seed"], look=look)
        return trained or dict.fromkeys(self._sets)

    def _untrained(self) -> Measured:
        config = Heads(self._options.config, rows=next(iter(self._sets.values()))).workbench.config
        config = replace(config, model=replace(config.model, head="none", dimension=None, head_start="random"))
        plain = build_embedder(config)
        return {name: measured(embed(plain, test, config), test)[METRIC] for name, (_, test) in self._sets.items()}


def draw(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Recall@1 by the set trained on and the set tested on. Colours are by column: how good it is for that test."""
    lines = [FEATURES, *names]
    values = np.full((len(lines), len(names)), np.nan)
    texts = [["diverged"] * len(names) for _ in lines]
    for r, trained in enumerate(lines):
        for c, tested in enumerate(names):
            row = one(rows, **{"trained on": trained, "tested on": tested})
            if row[METRIC] is not None:
                values[r, c], texts[r][c] = row[METRIC], per_cent(row, METRIC, "\n± ")
    low, high = np.nanmin(values, 0), np.nanmax(values, 0)
    shades = (values - low) / np.where(high > low, high - low, 1)
    with style.figure(2.3 + 0.95 * len(names), 1.4 + 0.52 * len(lines)) as drawn:
        axes = drawn.subplots()
        squares(axes, names, lines, shades, texts, (0.0, 1.0))
        axes.invert_yaxis()  # as a table is read
        axes.set(xlabel="tested on unseen classes of", ylabel="trained on")
        axes.tick_params(axis="x", labelrotation=30 if max(map(len, names)) > 8 else 0)
    return drawn


def sentences(rows: Sequence[Row], names: Sequence[str], kind: str) -> list[str]:
    """Describe the gains by training on the same set and on other sets."""
    values = {(row["trained on"], row["tested on"]): row[METRIC] for row in rows}
    if any(value is None for value in values.values()):
        return [f"By {kind}: some of the trainings diverged."]
    same_set = np.mean([values[name, name] - values[FEATURES, name] for name in names])
    pairs = [(a, b) for a in names for b in names if a != b]
    gains = {pair: values[pair] - values[FEATURES, pair[1]] for pair in pairs}
    helped = sum(gain > 0 for gain in gains.values())
    diagonal = sum(values[name, name] == max(values[other, name] for other in names) for name in names)
    worst = min(gains, key=lambda pair: gains[pair])
    elsewhere = 100 * np.mean(list(gains.values()))
    return [
        f"By {kind}: training on the same set gained {100 * same_set:+.1f} points of Recall@1 over the untrained "
        f"features on average, on another set {elsewhere:+.1f}; {helped} of {len(pairs)} transfers gained.",
        f"By {kind}: {diagonal} of {len(names)} sets are served best by training on themselves; the worst transfer, "
        f"from {worst[0]} to {worst[1]}, changed Recall@1 by {100 * gains[worst]:+.1f} points.",
    ]
