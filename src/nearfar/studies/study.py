"""The interface of studies: options, a run function, and findings written as files.

A study is a module of this package with

    @dataclass(frozen=True)
    class Options(StudyOptions):            # or HeadOptions, to train heads on a data set
        gammas: tuple[float, ...] = option((32.0, 64.0), "scales to try")

        def small(self) -> Self: ...        # the same study in a few seconds

    def run(options: Options, folder: Path, progress: Progress) -> Findings: ...

`run_study` calls it and writes `study.yaml`, a CSV file for each table, a PNG and an SVG file for each figure, and
`report.html`. Long sweeps use `cells`, which saves every result at once: a study that is run again in the same folder
with the same options resumes, and writes the same files.
"""

import importlib
import io
import json
import os
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from matplotlib.figure import Figure

from nearfar.compare.journal import Journal
from nearfar.foundation.files import write_file, write_rows
from nearfar.foundation.folders import numbered_folder
from nearfar.foundation.suggestions import suggestion
from nearfar.report import Page, style
from nearfar.report.page import Cell
from nearfar.studies import STUDIES
from nearfar.training.config import TrainConfig, option
from nearfar.training.options import ConfigError, Option, to_dict

FILE, CELLS, PAGE = "study.yaml", "cells.jsonl", "report.html"
DOTS_PER_INCH, COLOURS = 150, 128  # for PNG files
SHOWN_ROWS = 200  # rows of a table on the page; the CSV file has all

Row = Mapping[str, Cell]
Progress = Callable[[str], None]
"""Called with a line of progress."""


@dataclass(frozen=True)
class StudyOptions(ABC):
    """The options of every study. Subclasses add fields with `option(default, help)`."""

    seed: int = option(0, "seed of everything random")

    @abstractmethod
    def small(self) -> Self:
        """A version that takes a few seconds, for tests and first results."""


@dataclass(frozen=True)
class HeadOptions(StudyOptions):
    """The options of studies that train on a data set, mostly heads on cached features. `config` has DATA and the
    options of `nearfar train`.
    """

    seeds: int = option(3, "trainings of every setting, with consecutive seeds from `seed`")
    classes: int | None = option(None, "use only the first N training classes and N test classes")
    config: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1, not {self.seeds}")
        if self.classes is not None and self.classes < 2:
            raise ConfigError(f"classes must be at least 2, not {self.classes}")

    @property
    def all_seeds(self) -> range:
        """The seeds to train with."""
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class Drawing:
    """A figure made with `nearfar.report.style.figure`, its caption, and whether it takes the page's full width."""

    figure: Figure
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Findings:
    """The results of a study.

    Attributes:
        tables: rows by name, written to NAME.csv; all rows of a table have the same keys.
        figures: figures by name, written to NAME.png and NAME.svg.
        sentences: the results in words, generated from the numbers.
    """

    tables: Mapping[str, Sequence[Row]]
    figures: Mapping[str, Drawing]
    sentences: Sequence[str]


def study_module(name: str) -> Any:
    """The module of a study."""
    if name not in STUDIES:
        raise ConfigError(f"there is no study {name}: {suggestion(name, STUDIES)}")
    return importlib.import_module(f"nearfar.studies.{name.replace('-', '_')}")


def run_study(
    name: str,
    options: StudyOptions | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Run a study and write its findings.

    Args:
        name: a name in `nearfar.studies.STUDIES`.
        options: the `Options` of the study's module; by default its defaults.
        out: the folder; by default studies/NAME-NUMBER. The same study with the same options in this folder is resumed.
        progress: called with lines of progress; by default prints them to standard error.
    """
    module = study_module(name)
    chosen: StudyOptions = module.Options() if options is None else options
    folder = numbered_folder("studies", name) if out is None else Path(out)
    say = progress or _say
    begin(folder, name, chosen)
    say(f"{folder}: if this is stopped, the same command with --out {folder} resumes it")
    findings: Findings = module.run(chosen, folder, say)
    write(folder, name, chosen, findings)
    return findings


def begin(folder: Path, name: str, options: StudyOptions) -> None:
    """Record the study in its folder; reject a folder with another study."""
    text = described(name, options)
    path = folder / FILE
    if path.is_file():
        if path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{folder} contains another study, or this one with other options (see {path}): choose another --out"
            )
        return
    if (folder / CELLS).exists():
        raise ConfigError(f"{folder} has results of a study but no {FILE}: choose another --out")
    write_file(path, text)


def described(name: str, options: StudyOptions) -> str:
    """Format the study and its options as YAML."""
    import yaml

    values = {"study": name, **to_dict(options)}
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


def cells(
    settings: Sequence[Mapping[str, Any]],
    measure: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    folder: Path,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Measure every setting, and return settings with results, in order: [{**setting, **values}, ...].

    Each result is appended to cells.jsonl in the folder at once, and not measured again when the study is resumed.
    `measure` must depend only on its setting, not on the order of the settings.

    Args:
        settings: settings of JSON values, each only once.
        measure: returns JSON values.
    """
    journal = Journal(folder / CELLS)
    result = []
    for number, setting in enumerate(settings, 1):
        key = json.dumps(setting, sort_keys=True)
        entry = journal.get(key)
        if entry is None:
            # Converted by JSON, so that measured and loaded values are identical.
            entry = journal.add(key, values=json.loads(json.dumps(measure(setting))))
            progress(f"{number} of {len(settings)}: {_words({**setting, **entry['values']})}")
        result.append({**setting, **entry["values"]})
    return result


def write(folder: Path, name: str, options: StudyOptions, findings: Findings) -> None:
    """Write all files of a finished study."""
    for title, rows in findings.tables.items():
        _write_csv(folder / f"{title}.csv", rows)
    for title, drawing in findings.figures.items():
        write_figure(drawing.figure, folder / title)
    page = Page(f"Study: {name}", STUDIES[name])
    section = page.section("Findings")
    for sentence in findings.sentences:
        section.paragraph(sentence)
    for drawing in findings.figures.values():
        section.figure(style.svg(drawing.figure), drawing.caption, wide=drawing.wide)
    section = page.section("Numbers")
    for title, rows in findings.tables.items():
        more = f", {SHOWN_ROWS} of {len(rows):,} rows" if len(rows) > SHOWN_ROWS else ""
        header = list(rows[0]) if rows else []
        lines = [list(row.values()) for row in rows[:SHOWN_ROWS]]
        section.table(header, lines, fold=f"{title}.csv{more}")
    page.section("Options").preformatted(described(name, options))
    page.write(folder / PAGE)


def write_figure(drawn: Figure, path: Path) -> None:
    """Write PATH.png and PATH.svg, on white; the same figure gives the same files."""
    from PIL import Image

    drawings = {kind: io.BytesIO() for kind in ("png", "svg")}
    with style.figure():  # its settings also apply to writing
        drawn.savefig(drawings["png"], format="png", facecolor="white", dpi=DOTS_PER_INCH)
        drawn.savefig(drawings["svg"], format="svg", facecolor="white", metadata={"Date": None})
    small = io.BytesIO()
    with Image.open(drawings["png"]) as image:  # a palette takes a third of the space
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    for kind, content in (("png", small), ("svg", drawings["svg"])):
        write_file(path.with_name(f"{path.name}.{kind}"), content.getvalue())


def own_options(kind: type[StudyOptions]) -> dict[str, Option]:
    """The options of a study by name, except those of its configuration."""
    hints = typing.get_type_hints(kind)
    return {
        f.name: Option(f.name, hints[f.name], f.default, f.metadata["help"]) for f in fields(kind) if f.name != "config"
    }


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    header = list(rows[0]) if rows else []
    for row in rows:
        if list(row) != header:
            raise ValueError(f"the rows of {path.name} have different columns: {list(row)} and {header}")
    write_rows(path, header, (row.values() for row in rows))


def _words(values: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in values.items() if isinstance(value, (str, int, float))}
    return ", ".join(f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in shown.items())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
