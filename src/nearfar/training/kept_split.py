"""The split of a run, kept with it: which rows of its data it trains on, chooses by, and is tested on.

`split.csv` in the run's folder names every row with its label, its role and a fingerprint of its picture. Everything
that measures the run goes by it, however the data have changed since: what was trained on is never called unseen.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nearfar.data
from nearfar.data import SPLITS, Table
from nearfar.data.default_splits import halves_note
from nearfar.data.opening import reopen
from nearfar.data.survey import Survey, row_name, survey
from nearfar.foundation.files import write_rows
from nearfar.foundation.run_folder import RunError
from nearfar.training.config import DataConfig
from nearfar.training.options import ConfigError
from nearfar.training.progress import counted
from nearfar.training.reading import readable
from nearfar.training.runs import Run
from nearfar.training.splits import TRAIN, VAL, Parts, split

FILE_NAME = "split.csv"
LEFT_OUT = "left out"  # the role of rows that could not be read
SEEN = ("train", "val")  # roles of rows that have had a say in the model
SHOWN = 3  # names in a note
ROW = "row"  # the column that says which row of the opened data a row of a run is
BEFORE = "this run was made before splits were kept: its split is made anew, from the data as they are now"


@dataclass(frozen=True)
class Row:
    """A line of `split.csv`."""

    image: str
    label: str
    role: str
    fold: str
    fingerprint: str
    reason: str


@dataclass(frozen=True)
class KeptSplit:
    """The rows of a run's data as they were when it began."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, table: Table, found: Survey, parts: Parts) -> "KeptSplit":
        """The split of a table of which `parts` have the readable rows, in their order."""
        roles = iter(SPLITS[number] for number in parts.table.split_ids.tolist())
        folds = iter([-1] * len(parts.table) if parts.fold is None else parts.fold.tolist())
        rows = []
        for row in range(len(table)):
            reason = found.broken.get(row, "")
            role, fold = (LEFT_OUT, -1) if reason else (next(roles), next(folds))
            marks = (role, "" if fold < 0 else str(fold), found.fingerprints[row], reason)
            rows.append(Row(row_name(table, row), table.label_name(row), *marks))
        return cls(tuple(rows))

    def save(self, run: Run) -> None:
        """Keep it in the run's folder."""
        write_rows(run.folder / FILE_NAME, Row.__dataclass_fields__, (vars(row).values() for row in self.rows))

    @classmethod
    def load(cls, run: Run) -> "KeptSplit | None":
        """That of a run; None if it was made before splits were kept."""
        path: Path = run.folder / FILE_NAME
        if not path.is_file():
            return None
        rows, why = list[Row](), ""
        try:
            with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
                rows = [Row(**line) for line in csv.DictReader(file)]
        except (TypeError, csv.Error):
            why = "it is no list of rows"
        expected = run.metrics.get("split_rows", len(rows))
        if why or len(rows) != expected:
            why = why or f"it has {len(rows):,} rows instead of {expected:,}"
            raise RunError(f"{path} is damaged ({why}): without it nobody knows what was trained on. Train again")
        return cls(tuple(rows))

    @property
    def open_set(self) -> bool:
        """Whether no class that was trained on is tested."""
        return not self.trained_classes & self.tested_classes

    @property
    def trained_classes(self) -> set[str]:
        """The classes that have had a say in the model."""
        return {row.label for row in self.rows if row.role in SEEN and row.label}

    @property
    def tested_classes(self) -> set[str]:
        """The classes that the run is tested on."""
        return {row.label for row in self.rows if row.role in SPLITS and row.role not in SEEN and row.label}

    def seen_in(self, table: Table, found: Survey) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
        """(N,) which rows of any table the run was trained on, and a note about them.

        Pictures are known by their content. Other pictures of trained classes are not unseen either where they are of
        the run's own data; elsewhere, a class may have the same name by chance, which is told.
        """
        contents = {row.fingerprint for row in self.rows if row.role in SEEN}
        then, trained = {(row.image, row.fingerprint) for row in self.rows}, self.trained_classes
        own = any((row_name(table, row), fingerprint) in then for row, fingerprint in enumerate(found.fingerprints))
        labels = np.array([table.label_name(row) in trained for row in range(len(table))], np.bool_)
        seen = np.array([fingerprint in contents for fingerprint in found.fingerprints], np.bool_)
        if own and self.open_set:
            seen |= labels
        told, namesakes = [], labels & ~seen
        if seen.any():
            told.append(f"left out, since they or their classes were trained on: {counted(int(seen.sum()), 'image')}")
        if namesakes.any() and self.open_set:
            told.append(f"in classes with the name of a trained one: {counted(int(namesakes.sum()), 'image')}")
        return seen, tuple(told)

    def match(self, table: Table, found: Survey) -> "Match":
        """The rows of the data as they are now, each with what it was then."""
        names = {row.image: row for row in self.rows}
        contents = {row.fingerprint: row for row in self.rows if row.fingerprint and row.role != LEFT_OUT}
        contents |= {row.fingerprint: row for row in self.rows if row.role in SEEN}  # of copies, the one that was seen
        here = {row_name(table, row) for row in range(len(table))}
        match = Match(self, table)
        for row in np.flatnonzero(found.readable).tolist():
            name, fingerprint = row_name(table, row), found.fingerprints[row]
            then, content = names.get(name), contents.get(fingerprint)
            if then is not None and then.role == LEFT_OUT:
                then = None
            if then is not None and then.fingerprint == fingerprint:
                match.add(row, then)
            elif content is not None and (then is None or content.role in SEEN):
                match.moved.append(name)
                match.add(row, content, again=content.image in here)
            elif then is not None:
                match.changed.append(name)
                match.add(row, then)
            else:
                match.new[row] = table.label_name(row)
        there = {then.image for then in match.then.values()}
        match.gone += [row.image for row in self.rows if row.role in SPLITS and row.image not in there]
        return match


@dataclass
class Match:
    """What became of the rows of a run's data.

    Attributes:
        then: the row of the split that each row of the table was, where it was one.
        new: rows that were not there, and their labels.
        gone, changed, moved: names of images that are no longer there, have other content, or another name.
    """

    split: KeptSplit
    table: Table
    then: dict[int, Row] = field(default_factory=dict)
    new: dict[int, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    copies: dict[int, Row] = field(default_factory=dict)

    def add(self, row: int, then: Row, *, again: bool = False) -> None:
        """Row `row` is what `then` was, or (`again`) a copy of what is still there."""
        (self.copies if again else self.then)[row] = then

    @property
    def relabelled(self) -> list[int]:
        """Rows to be tested whose label is now that of a class that was trained on."""
        if not self.split.open_set:
            return []
        trained = self.split.trained_classes
        tested = [row for row, then in self.then.items() if then.role not in SEEN]
        return [row for row in tested if self.table.label_name(row) in trained]

    def parts(self) -> Parts:
        """The run's own rows as far as they are still there; notes say what has changed."""
        left_out = set(self.relabelled)
        kept = [row for row in sorted(self.then) if row not in left_out]
        roles = np.array([SPLITS.index(self.then[row].role) for row in kept], np.int8)
        folds = np.array([int(self.then[row].fold or -1) for row in kept], np.int64)
        table = self.table.select(kept)
        table = replace(table, split_ids=roles, columns={**table.columns, ROW: np.array(kept, np.int64)}).compact()
        return Parts(table, self.split.open_set, tuple(self.notes()), folds if (folds >= 0).any() else None)

    def parts_to_go_on_with(self, run: Run) -> Parts:
        """The same for a run that is not finished: its training rows must be what they were."""
        seen = {row.image for row in self.split.rows if row.role in SEEN}
        lost = sorted(seen & {*self.gone, *self.changed})
        if lost:
            raise RunError(
                f"images that {run.folder} trains on are gone or changed: {len(lost):,} ({_some(lost)}). "
                "Put them back to go on; or begin a new run: nearfar train DATA"
            )
        return self.parts()

    def notes(self) -> Iterator[str]:
        """What has changed since the run began, in words."""
        trained, tested = self.split.trained_classes, self.split.tested_classes - self.split.trained_classes
        new = {row: label for row, label in self.new.items() if label}

        def named(rows: Iterable[int]) -> list[str]:
            return [row_name(self.table, row) for row in rows]

        images = {
            "no longer there": self.gone,
            "changed since the run began": self.changed,
            "renamed or copied since, and counted as what they were": self.moved,
            "moved to classes that were trained on, and not measured": named(self.relabelled),
            "new, in classes that were trained on": named(row for row, label in new.items() if label in trained),
            "new, in test classes, and not measured": named(row for row, label in new.items() if label in tested),
        }
        for what, names in images.items():
            if names:
                yield f"{what}: {counted(len(names), 'image')} ({_some(names)})"
        unknown = sorted(set(new.values()) - trained - tested)
        if unknown:
            classes = counted(len(unknown), "class", "classes")
            yield f"never seen by the run, and not measured: {classes} ({_some(unknown)})"


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:SHOWN], *(["..."] if len(names) > SHOWN else [])])


def parts_of(run: Run, advance: Callable[[int], None] | None = None) -> Parts:
    """The rows of a run's own data, as its split has them, and of the data that it is tested on."""
    if not (run.folder / FILE_NAME).is_file():
        return _made_anew(run, advance)
    match = match_of(run, advance)
    return with_test_data(match.parts(), match.split, run.config.data)


def with_test_data(parts: Parts, kept: KeptSplit, data: DataConfig) -> Parts:
    """With the rows of the data that the configuration names to test on, if it does."""
    if data.test is None:
        return parts
    rows, notes = unseen_rows(reopen(data.test), kept, data.max_broken)
    if (rows.images is None) != (parts.table.images is None):
        raise RunError(f"{data.path} and --test {data.test} must both be images, or both features")
    note = f"tested on {data.test}: {len(rows):,} images of {rows.num_classes:,} classes"
    return replace(parts, elsewhere=rows, notes=(*parts.notes, note, *notes))


def unseen_rows(
    data: str | os.PathLike[str] | Table, kept: KeptSplit | None, max_broken: float
) -> tuple[Table, tuple[str, ...]]:
    """The rows of other data to measure on, and what is to be said of them: its test rows, or all rows where it has no
    split of its own, without what was trained on.
    """
    table = data if isinstance(data, Table) else nearfar.data.open(data)
    _, found = readable(table, max_broken)
    seen, told = kept.seen_in(table, found) if kept is not None else (np.zeros(len(table), np.bool_), ())
    if halves_note(table.num_classes) not in table.notes and not set(table.split_names) <= {"train", "val"}:
        seen = seen | np.isin(table.split_ids, (TRAIN, VAL))  # a split of its own says what is for testing
    rows = table.select(found.readable & ~seen)
    if not len(rows):
        raise ConfigError(f"{table.name} has no image that was not trained on: nothing can be measured")
    left_out = ["\n".join(found.report(table))] if found.broken else []
    return rows, (*left_out, *told)


def changes_in(run: Run) -> tuple[str, ...]:
    """What has changed in a run's own data since it began; nothing is known of runs that kept no split."""
    return tuple(match_of(run).notes()) if (run.folder / FILE_NAME).is_file() else ()


def match_of(run: Run, advance: Callable[[int], None] | None = None) -> Match:
    """The rows of a run's own data as they are now, against its split."""
    kept = KeptSplit.load(run)
    assert kept is not None
    table = reopen(run.config.data.path, run.config.data.layout)
    return kept.match(table, survey(table, advance))


def _made_anew(run: Run, advance: Callable[[int], None] | None) -> Parts:
    config = run.config
    table = reopen(config.data.path, config.data.layout)
    numbered = replace(table, columns={**table.columns, ROW: np.arange(len(table))})
    readable = survey(table, advance).readable_rows(numbered)
    parts = split(readable, config.data, config.seed, frozen=config.model.freeze)
    return replace(parts, notes=(*parts.notes, BEFORE))
