"""`check_up`: check a data set and a configuration as `nearfar train` would use them, without training.

result = check_up(config)
print(result.text())
result.findings             # problems, worst first
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nearfar.checkup import classes, files
from nearfar.checkup.batch import diagnose_first_batch
from nearfar.checkup.duration import Duration, duration, in_words
from nearfar.checkup.finding import Finding, aligned, numbered
from nearfar.checkup.near import MOST_IMAGES, Strings, nearly_identical, sample
from nearfar.data import Table
from nearfar.data.opening import reopen
from nearfar.data.survey import Survey, survey
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import FITTED, is_pretrained, resolve
from nearfar.training.doctor import BatchReport
from nearfar.training.prepare import Prepared, prepare
from nearfar.training.progress import Display, counted
from nearfar.training.runs import Run
from nearfar.training.splits import Parts, split

SEE = "nearfar duplicates DATA compares all of them"
ROW = "row"  # column of row numbers, to map the rows of a split to those of the table
PATIENCE = 120.0  # seconds for computing features, which training needs too; beyond, only a sample is checked


@dataclass(frozen=True)
class CheckUp:
    """The result of a check.

    Attributes:
        name: the name of the data.
        facts: lines of facts by subject.
        batch: the report on the first batch; None if training would be rejected before.
        findings: problems, worst first.
        unseen: what could not be checked.
    """

    name: str
    facts: Mapping[str, list[str]]
    batch: BatchReport | None
    findings: list[Finding] = field(default_factory=list)
    unseen: str = ""

    def text(self) -> str:
        """The whole result as text."""
        sections = [f"{self.name}\n{aligned(self.facts)}"]
        if self.batch is not None:
            table = "\n".join(f"  {line}" for line in self.batch.table().splitlines())
            sections.append(f"the first batch\n{table}")
        if self.findings:
            sections.append(f"to do, worst first\n{numbered(self.findings)}")
        else:
            sections.append(f"no problems found, but {self.unseen}" if self.unseen else "no problems found")
        return "\n\n".join(sections)


def check_up(config: TrainConfig, display: Display | None = None) -> CheckUp:
    """Check the data of a configuration and the first batch."""
    display = display or Display(quiet=True)
    whole = reopen(config.data.path, config.data.layout)
    with display.looking("reading every image once", len(whole)) as advance:
        survey_result = survey(whole, advance)
    unreadable = files.unreadable(whole, survey_result, config.data.max_broken)
    facts = {"pictures": [_pictures(whole, survey_result)]}
    if len(survey_result.broken) == len(whole):
        return CheckUp(whole.name, facts, None, unreadable)
    table = survey_result.readable_rows(whole)
    facts["classes"] = [_classes(table)]
    fingerprints = np.array(survey_result.fingerprints)[survey_result.readable]
    parts, rejected = _split(table, config)
    if parts is None:
        bad, copies = files.identical(table, fingerprints, np.full(len(table), ""))
        return CheckUp(whole.name, facts, None, [*rejected, *unreadable, *bad, *classes.single(table), *copies])
    facts["split"] = [_division(parts), *parts.notes]
    split_names = _split_of_rows(table, parts)
    bad, copies = files.identical(table, fingerprints, split_names)
    network = _check_with_network(config, table, parts, (split_names, fingerprints), display)
    facts |= network.facts
    findings = [
        *network.rejected,
        *bad,
        *unreadable,
        *network.near,
        *network.batch_findings,
        *classes.too_few(table, parts),
        *classes.single(table),
        *classes.unequal(table),
        *copies,
    ]
    return CheckUp(whole.name, facts, network.report, findings, network.unseen)


def check_run(run: Run, display: Display | None = None) -> CheckUp:
    """Diagnose the first batch of a run with its model."""
    config = run.config
    whole = reopen(config.data.path, config.data.layout)
    survey_result = survey(whole)
    prepared, report = diagnose_first_batch(config, survey_result.readable_rows(whole), run, display)
    facts = {"pictures": [_pictures(whole, survey_result)], "split": [_division(prepared.parts)], **_model(prepared)}
    return CheckUp(f"{run.folder}, on {whole.name}", facts, report, [Finding(text, "") for text in report.warnings()])


@dataclass
class _Network:
    """The results of the checks that need the network."""

    facts: dict[str, list[str]] = field(default_factory=dict)
    rejected: list[Finding] = field(default_factory=list)
    near: list[Finding] = field(default_factory=list)
    report: BatchReport | None = None
    unseen: str = ""

    @property
    def batch_findings(self) -> list[Finding]:
        return [] if self.report is None else [Finding(text, "") for text in self.report.warnings()]


def _check_with_network(
    config: TrainConfig, table: Table, parts: Parts, columns: tuple[Strings, Strings], display: Display
) -> _Network:
    """Find near-identical images and diagnose the first batch. `columns`: split and fingerprint of each row."""
    if rejected := _rejections(config, table, parts):
        return _Network(rejected=rejected)
    result = _Network()
    times = duration(config, table)
    model = resolve(config, parts.train).model
    pretrained = table.images is not None and is_pretrained(model.backbone or "", model.weights)
    rows = np.arange(len(table))
    if pretrained and (times.features > PATIENCE or len(table) > MOST_IMAGES):
        rows = sample(table, min(int(PATIENCE / times.image), MOST_IMAGES), config.seed)
    if pretrained:
        split_names, fingerprints = (column[rows] for column in columns)
        with display.looking("features", len(rows)) as advance:
            result.near, result.unseen = nearly_identical(
                config, table.select(rows), split_names, fingerprints, advance
            )
    elif table.images is not None and not table.embedded:  # the built-in glyphs are all different
        result.unseen = f"{model.backbone} is not pretrained, so near-identical pictures were not searched: {SEE}"
    prepared, result.report = diagnose_first_batch(config, table.select(rows), display=display)
    result.facts = _model(prepared) | {"time": _times(times)}
    if len(rows) < len(table):
        result.unseen = result.unseen or (
            f"only {len(rows):,} of {counted(len(table), 'picture')} were compared with each other, since comparing "
            f"all takes {in_words(times.features)}: {SEE}"
        )
    if result.unseen:
        result.facts["not checked"] = [result.unseen]
    return result


def _rejections(config: TrainConfig, table: Table, parts: Parts) -> list[Finding]:
    """The error of training with this configuration, before any image is decoded."""
    try:
        resolve(config, parts.train)
        model = config.model if table.images is None else replace(config.model, freeze=False, views=1)
        prepare(replace(config, model=model), table)
    except ValueError as error:
        return [Finding(f"training would fail: {error}", "")]
    return []


def _split(table: Table, config: TrainConfig) -> tuple[Parts | None, list[Finding]]:
    numbered = replace(table, columns={**table.columns, ROW: np.arange(len(table))})
    try:
        return split(numbered, config.data, config.seed, frozen=config.model.freeze or table.images is None), []
    except ValueError as error:
        return None, [Finding(f"training would fail: {error}", "")]


def _split_of_rows(table: Table, parts: Parts) -> Strings:
    """The split of each row: "train", "val", "test", or "" for none."""
    split_names = np.full(len(table), "", "U5")
    for name, part in (("train", parts.train), ("val", parts.val), ("test", parts.test)):
        if part is not None:
            split_names[part.columns[ROW]] = name
    return split_names


def _pictures(table: Table, survey_result: Survey) -> str:
    what = "feature vector" if table.images is None else "picture"
    broken = f", of which {len(survey_result.broken):,} cannot be read" if survey_result.broken else ""
    return f"{counted(len(table), what)}{broken}"


def _classes(table: Table) -> str:
    sizes = classes.sizes_of(table)
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return "none"
    each = f"{sizes.min():,} to {sizes.max():,} each, median {np.median(sizes):g}"
    return f"{len(sizes):,}, of {each if sizes.min() < sizes.max() else f'{sizes[0]:,} each'}"


def _division(parts: Parts) -> str:
    named = (("train", parts.train), ("validation", parts.val), ("test", parts.test))
    sizes = [
        f"{name} {len(part):,} of {counted(part.num_classes, 'class', 'classes')}"
        for name, part in named
        if part is not None
    ]
    return ", ".join(sizes)


def _model(prepared: Prepared) -> dict[str, list[str]]:
    config = prepared.config
    loss = " + ".join(loss.name for loss in config.loss)
    frozen = " (frozen)" if config.model.freeze else ""
    dimension = f"{prepared.embedder.dimension} dimensions"
    rank = len(prepared.parts.train) - 1
    if config.model.head_start in FITTED and rank < prepared.embedder.dimension:
        dimension += f" (the training pictures span only {rank:,} of them)"
    line = f"{config.model.backbone}{frozen} to {dimension}, {loss}, batches of {config.sampler.batch_size}"
    return {"model": [line]}


def _times(times: Duration) -> list[str]:
    """The times of both ways to train."""
    ways = {"nearfar train": times.full, "with --freeze": times.frozen}
    return ["; ".join(f"{name}: {in_words(seconds)}" for name, seconds in ways.items() if seconds is not None)]
