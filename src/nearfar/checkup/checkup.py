"""`check_up`: a data set and a configuration, looked at as `nearfar train` would see them; nothing is trained.

result = check_up(config)
print(result.text())
result.findings             # what is to be done, worst first; none if nothing is wrong
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nearfar.checkup import classes, files
from nearfar.checkup.batch import look_at_batch
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
ROW = "row"  # a column with the numbers of the rows, by which parts are told
PATIENCE = 120.0  # seconds for features, which training needs too; beyond, a sample is looked at


@dataclass(frozen=True)
class CheckUp:
    """What was found.

    Attributes:
        name: of the data.
        facts: what there is, in lines by subject.
        batch: a report on the first batch; None where training would not come so far.
        findings: what is to be done, worst first.
        unseen: what could not be looked at.
    """

    name: str
    facts: Mapping[str, list[str]]
    batch: BatchReport | None
    findings: list[Finding] = field(default_factory=list)
    unseen: str = ""

    def text(self) -> str:
        """All of it, to be read."""
        sections = [f"{self.name}\n{aligned(self.facts)}"]
        if self.batch is not None:
            table = "\n".join(f"  {line}" for line in self.batch.table().splitlines())
            sections.append(f"the first batch\n{table}")
        if self.findings:
            sections.append(f"to do, worst first\n{numbered(self.findings)}")
        else:
            sections.append(f"nothing wrong was found, but {self.unseen}" if self.unseen else "nothing is wrong")
        return "\n\n".join(sections)


def check_up(config: TrainConfig, display: Display | None = None) -> CheckUp:
    """Look at the data of a configuration, and at the first batch."""
    display = display or Display(quiet=True)
    whole = reopen(config.data.path, config.data.layout)
    with display.looking("reading every image once", len(whole)) as advance:
        found = survey(whole, advance)
    unreadable = files.unreadable(whole, found, config.data.max_broken)
    facts = {"pictures": [_pictures(whole, found)]}
    if len(found.broken) == len(whole):
        return CheckUp(whole.name, facts, None, unreadable)
    table = found.readable_rows(whole)
    facts["classes"] = [_classes(table)]
    fingerprints = np.array(found.fingerprints)[found.readable]
    parts, refused = _split(table, config)
    if parts is None:
        bad, copies = files.identical(table, fingerprints, np.full(len(table), ""))
        return CheckUp(whole.name, facts, None, [*refused, *unreadable, *bad, *classes.alone(table), *copies])
    facts["split"] = [_division(parts), *parts.notes]
    where = _parts_of(table, parts)
    bad, copies = files.identical(table, fingerprints, where)
    network = _through_the_network(config, table, parts, (where, fingerprints), display)
    facts |= network.facts
    findings = [
        *network.refused,
        *bad,
        *unreadable,
        *network.near,
        *network.batch_findings,
        *classes.too_few(table, parts),
        *classes.alone(table),
        *classes.unequal(table),
        *copies,
    ]
    return CheckUp(whole.name, facts, network.report, findings, network.unseen)


def check_run(run: Run, display: Display | None = None) -> CheckUp:
    """Look at the first batch of a run, with the model that it came to."""
    config = run.config
    whole = reopen(config.data.path, config.data.layout)
    found = survey(whole)
    prepared, report = look_at_batch(config, found.readable_rows(whole), run, display)
    facts = {"pictures": [_pictures(whole, found)], "split": [_division(prepared.parts)], **_model(prepared)}
    return CheckUp(f"{run.folder}, on {whole.name}", facts, report, [Finding(text, "") for text in report.warnings()])


@dataclass
class _Network:
    """What the network has to say."""

    facts: dict[str, list[str]] = field(default_factory=dict)
    refused: list[Finding] = field(default_factory=list)
    near: list[Finding] = field(default_factory=list)
    report: BatchReport | None = None
    unseen: str = ""

    @property
    def batch_findings(self) -> list[Finding]:
        return [] if self.report is None else [Finding(text, "") for text in self.report.warnings()]


def _through_the_network(
    config: TrainConfig, table: Table, parts: Parts, columns: tuple[Strings, Strings], display: Display
) -> _Network:
    """`columns`: of each row, its part and its fingerprint."""
    if refused := _refused(config, table, parts):
        return _Network(refused=refused)
    result = _Network()
    times = duration(config, table)
    model = resolve(config, parts.train).model
    pretrained = table.images is not None and is_pretrained(model.backbone or "", model.weights)
    rows = np.arange(len(table))
    if pretrained and (times.features > PATIENCE or len(table) > MOST_IMAGES):
        rows = sample(table, min(int(PATIENCE / times.image), MOST_IMAGES), config.seed)
    if pretrained:
        where, fingerprints = (column[rows] for column in columns)
        with display.looking("features", len(rows)) as advance:
            result.near, result.unseen = nearly_identical(config, table.select(rows), where, fingerprints, advance)
    elif table.images is not None and not table.embedded:  # of which no two are the same
        result.unseen = f"{model.backbone} is not pretrained, and cannot tell which pictures are nearly the same: {SEE}"
    prepared, result.report = look_at_batch(config, table.select(rows), display=display)
    result.facts = _model(prepared) | {"time": _times(times)}
    if len(rows) < len(table):
        result.unseen = result.unseen or (
            f"only {len(rows):,} of {counted(len(table), 'picture')} were compared with each other, since all of them "
            f"take {in_words(times.features)}: {SEE}"
        )
    if result.unseen:
        result.facts["not seen"] = [result.unseen]
    return result


def _refused(config: TrainConfig, table: Table, parts: Parts) -> list[Finding]:
    """What training would refuse, before any image is decoded."""
    try:
        resolve(config, parts.train)
        model = config.model if table.images is None else replace(config.model, freeze=False, views=1)
        prepare(replace(config, model=model), table)
    except ValueError as error:
        return [Finding(f"training would be refused: {error}", "")]
    return []


def _split(table: Table, config: TrainConfig) -> tuple[Parts | None, list[Finding]]:
    numbered = replace(table, columns={**table.columns, ROW: np.arange(len(table))})
    try:
        return split(numbered, config.data, config.seed, frozen=config.model.freeze or table.images is None), []
    except ValueError as error:
        return None, [Finding(f"training would be refused: {error}", "")]


def _parts_of(table: Table, parts: Parts) -> Strings:
    """Of each row, whether it is trained on ("train"), validated on ("val") or tested ("test"); "" for none of them."""
    where = np.full(len(table), "", "U5")
    for name, part in (("train", parts.train), ("val", parts.val), ("test", parts.test)):
        if part is not None:
            where[part.columns[ROW]] = name
    return where


def _pictures(table: Table, found: Survey) -> str:
    what = "feature vector" if table.images is None else "picture"
    broken = f", of which {len(found.broken):,} cannot be read" if found.broken else ""
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
    there = [
        f"{name} {len(part):,} of {counted(part.num_classes, 'class', 'classes')}"
        for name, part in named
        if part is not None
    ]
    return ", ".join(there)


def _model(prepared: Prepared) -> dict[str, list[str]]:
    config = prepared.config
    loss = " + ".join(loss.name for loss in config.loss)
    frozen = " (frozen)" if config.model.freeze else ""
    dimension = f"{prepared.embedder.dimension} dimensions"
    known = len(prepared.parts.train) - 1
    if config.model.head_start in FITTED and known < prepared.embedder.dimension:
        dimension += f" (the pictures to train on vary in {known:,} of them)"
    first = f"{config.model.backbone}{frozen} to {dimension}, {loss}, batches of {config.sampler.batch_size}"
    return {"model": [first]}


def _times(times: Duration) -> list[str]:
    """Of both ways to train."""
    ways = {"nearfar train": times.full, "with --freeze": times.frozen}
    return ["; ".join(f"{name}: {in_words(seconds)}" for name, seconds in ways.items() if seconds is not None)]
