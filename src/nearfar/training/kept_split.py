"""The saved split of a run: which rows of its data are for training, validation and test.

`split.csv` in the run's folder lists every row with its label, its role and a fingerprint of its image. All evaluations
of the run follow it, even if the data have changed since, so that training images are never taken for unseen ones.
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
SEEN = ("train", "val")  # roles of rows that influenced the model
SHOWN = 3  # names in a note
ROW = "row"  # the column with the row number in the opened data
BEFORE = "this run is older than saved splits: its split is computed again from the present data"


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
    """The rows of a run's data when it began."""

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, table: Table, survey_result: Survey, parts: Parts) -> "KeptSplit":
        """The split of a table; `parts` has its readable rows, in order."""
        roles = iter(SPLITS[number] for number in parts.table.split_ids.tolist())
        folds = iter([-1] * len(parts.table) if parts.fold is None else parts.fold.tolist())
        rows = []
        for row in range(len(table)):
            reason = survey_result.broken.get(row, "")
            role, fold = (LEFT_OUT, -1) if reason else (next(roles), next(folds))
            marks = (role, "" if fold < 0 else str(fold), survey_result.fingerprints[row], reason)
            rows.append(Row(row_name(table, row), table.label_name(row), *marks))
        return cls(tuple(rows))

    def save(self, run: Run) -> None:
        """Save the split in the run's folder."""
        write_rows(run.folder / FILE_NAME, Row.__dataclass_fields__, (vars(row).values() for row in self.rows))

    @classmethod
    def load(cls, run: Run) -> "KeptSplit | None":
        """Load the split of a run; None if the run is older than saved splits."""
        path: Path = run.folder / FILE_NAME
        if not path.is_file():
            return None
        rows, why = list[Row](), ""
        try:
            with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
                rows = [Row(**line) for line in csv.DictReader(file)]
        except (TypeError, csv.Error):
            why = "it is not a list of rows"
        expected = run.metrics.get("split_rows", len(rows))
        if why or len(rows) != expected:
            why = why or f"it has {len(rows):,} rows instead of {expected:,}"
            raise RunError(f"{path} is damaged ({why}): it is the only record of the training images. Train again")
        return cls(tuple(rows))

    @property
    def open_set(self) -> bool:
        """Whether training and test classes are disjoint."""
        return not self.trained_classes & self.tested_classes

    @property
    def trained_classes(self) -> set[str]:
        """The classes that influenced the model."""
        return {row.label for row in self.rows if row.role in SEEN and row.label}

    @property
    def tested_classes(self) -> set[str]:
        """The test classes of the run."""
        return {row.label for row in self.rows if row.role in SPLITS and row.role not in SEEN and row.label}

    def seen_in(self, table: Table, survey_result: Survey) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
        """Mask (N,) of the rows of any table that the run was trained on, and notes about them.

        Images are recognised by their content. In the run's own data, other images of training classes count as seen
        too; in other data, a class may have the same name by chance, which only adds a note.
        """
        contents = {row.fingerprint for row in self.rows if row.role in SEEN}
        then, trained = {(row.image, row.fingerprint) for row in self.rows}, self.trained_classes
        same_data = any(
            (row_name(table, row), fingerprint) in then for row, fingerprint in enumerate(survey_result.fingerprints)
        )
        labels = np.array([table.label_name(row) in trained for row in range(len(table))], np.bool_)
        seen = np.array([fingerprint in contents for fingerprint in survey_result.fingerprints], np.bool_)
        if same_data and self.open_set:
            seen |= labels
        notes, namesakes = [], labels & ~seen
        if seen.any():
            notes.append(f"left out, since they or their classes were trained on: {counted(int(seen.sum()), 'image')}")
        if namesakes.any() and self.open_set:
            notes.append(f"in classes with the name of a training class: {counted(int(namesakes.sum()), 'image')}")
        return seen, tuple(notes)

    def match(self, table: Table, survey_result: Survey) -> "Match":
        """Match the rows of the present data with those of the split."""
        names = {row.image: row for row in self.rows}
        contents = {row.fingerprint: row for row in self.rows if row.fingerprint and row.role != LEFT_OUT}
        contents |= {row.fingerprint: row for row in self.rows if row.role in SEEN}  # of several copies, a seen one
        present = {row_name(table, row) for row in range(len(table))}
        match = Match(self, table)
        for row in np.flatnonzero(survey_result.readable).tolist():
            name, fingerprint = row_name(table, row), survey_result.fingerprints[row]
            then, content = names.get(name), contents.get(fingerprint)
            if then is not None and then.role == LEFT_OUT:
                then = None
            if then is not None and then.fingerprint == fingerprint:
                match.add(row, then)
            elif content is not None and (then is None or content.role in SEEN):
                match.moved.append(name)
                match.add(row, content, copy=content.image in present)
            elif then is not None:
                match.changed.append(name)
                match.add(row, then)
            else:
                match.new[row] = table.label_name(row)
        matched = {then.image for then in match.then.values()}
        match.gone += [row.image for row in self.rows if row.role in SPLITS and row.image not in matched]
        return match


@dataclass
class Match:
    """The rows of a run's present data, matched with its split.

    Attributes:
        then: for each row of the table that is in the split, its row there.
        new: rows that are not in the split, and their labels.
        gone, changed, moved: names of images that are missing, have other content, or have another name.
        copies: rows that are copies of images that still exist.
    """

    split: KeptSplit
    table: Table
    then: dict[int, Row] = field(default_factory=dict)
    new: dict[int, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    copies: dict[int, Row] = field(default_factory=dict)

    def add(self, row: int, then: Row, *, copy: bool = False) -> None:
        """Match `row` with `then` of the split, as itself or as a copy of an image that still exists."""
        (self.copies if copy else self.then)[row] = then

    @property
    def relabelled(self) -> list[int]:
        """Test rows whose present label is a training class."""
        if not self.split.open_set:
            return []
        trained = self.split.trained_classes
        tested = [row for row, then in self.then.items() if then.role not in SEEN]
        return [row for row in tested if self.table.label_name(row) in trained]

    def parts(self) -> Parts:
        """The run's rows that still exist; notes say what has changed."""
        left_out = set(self.relabelled)
        kept = [row for row in sorted(self.then) if row not in left_out]
        roles = np.array([SPLITS.index(self.then[row].role) for row in kept], np.int8)
        folds = np.array([int(self.then[row].fold or -1) for row in kept], np.int64)
        table = self.table.select(kept)
        table = replace(table, split_ids=roles, columns={**table.columns, ROW: np.array(kept, np.int64)}).compact()
        return Parts(table, self.split.open_set, tuple(self.notes()), folds if (folds >= 0).any() else None)

    def parts_to_resume(self, run: Run) -> Parts:
        """The run's rows for resuming it; its training rows must be unchanged."""
        seen = {row.image for row in self.split.rows if row.role in SEEN}
        lost = sorted(seen & {*self.gone, *self.changed})
        if lost:
            raise RunError(
                f"training images of {run.folder} are missing or changed: {len(lost):,} ({_examples(lost)}). "
                "Restore them to resume, or start a new run: nearfar train DATA"
            )
        return self.parts()

    def notes(self) -> Iterator[str]:
        """Sentences on what has changed since the run began."""
        trained, tested = self.split.trained_classes, self.split.tested_classes - self.split.trained_classes
        new = {row: label for row, label in self.new.items() if label}

        def named(rows: Iterable[int]) -> list[str]:
            return [row_name(self.table, row) for row in rows]

        images = {
            "missing": self.gone,
            "changed since the run began": self.changed,
            "renamed or copied since, and treated as before": self.moved,
            "moved to training classes, and not evaluated": named(self.relabelled),
            "new, in training classes": named(row for row, label in new.items() if label in trained),
            "new, in test classes, and not evaluated": named(row for row, label in new.items() if label in tested),
        }
        for what, names in images.items():
            if names:
                yield f"{what}: {counted(len(names), 'image')} ({_examples(names)})"
        unknown = sorted(set(new.values()) - trained - tested)
        if unknown:
            classes = counted(len(unknown), "class", "classes")
            yield f"new classes, not evaluated: {classes} ({_examples(unknown)})"


def _examples(names: Sequence[str]) -> str:
    return ", ".join([*names[:SHOWN], *(["..."] if len(names) > SHOWN else [])])


def parts_of(run: Run, advance: Callable[[int], None] | None = None) -> Parts:
    """The rows of a run's own data by its split, with the other data that it is tested on, if any."""
    if not (run.folder / FILE_NAME).is_file():
        return _split_again(run, advance)
    match = match_of(run, advance)
    return with_test_data(match.parts(), match.split, run.config.data)


def with_test_data(parts: Parts, kept: KeptSplit, data: DataConfig) -> Parts:
    """Add the rows of the other data that the configuration tests on, if any."""
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
    """The rows of other data to evaluate on, and notes about them: its test rows, or all rows if it has no split,
    without those that the run was trained on.
    """
    table = data if isinstance(data, Table) else nearfar.data.open(data)
    _, survey_result = readable(table, max_broken)
    seen, notes = kept.seen_in(table, survey_result) if kept is not None else (np.zeros(len(table), np.bool_), ())
    if halves_note(table.num_classes) not in table.notes and not set(table.split_names) <= {"train", "val"}:
        seen = seen | np.isin(table.split_ids, (TRAIN, VAL))  # the data have their own split
    rows = table.select(survey_result.readable & ~seen)
    if not len(rows):
        raise ConfigError(f"all images of {table.name} were trained on, so nothing can be evaluated")
    left_out = ["\n".join(survey_result.report(table))] if survey_result.broken else []
    return rows, (*left_out, *notes)


def changes_in(run: Run) -> tuple[str, ...]:
    """What has changed in a run's own data since it began; empty for runs without a saved split."""
    return tuple(match_of(run).notes()) if (run.folder / FILE_NAME).is_file() else ()


def match_of(run: Run, advance: Callable[[int], None] | None = None) -> Match:
    """Match a run's present data with its split."""
    kept = KeptSplit.load(run)
    assert kept is not None
    table = reopen(run.config.data.path, run.config.data.layout)
    return kept.match(table, survey(table, advance))


def _split_again(run: Run, advance: Callable[[int], None] | None) -> Parts:
    config = run.config
    table = reopen(config.data.path, config.data.layout)
    numbered = replace(table, columns={**table.columns, ROW: np.arange(len(table))})
    readable = survey(table, advance).readable_rows(numbered)
    parts = split(readable, config.data, config.seed, frozen=config.model.freeze)
    return replace(parts, notes=(*parts.notes, BEFORE))
