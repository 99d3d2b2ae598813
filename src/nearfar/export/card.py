"""The model card `README.md`: YAML front matter for the Hugging Face hub, and text for readers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import nearfar
from nearfar.evaluation.class_means import interval_note
from nearfar.export import usage
from nearfar.export.accuracy import Accuracy
from nearfar.export.network import input_shape, trunk_name
from nearfar.export.parity import Parity
from nearfar.export.preprocessing import FILE_NAME, steps
from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.runs import COSINES
from nearfar.training.thresholds import said

# The hub's licence identifiers; another licence is written as "other" with its name in license_name.
_NAMES = (
    "apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause "
    "bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 "
    "cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
    "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 "
    "epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c "
    "ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl unknown other"
)
LICENCES = frozenset(_NAMES.split())

_SHOWN = ("recall@1", "recall@2", "recall@4", "recall@8", "recall@10", "r_precision", "map@r", "map", *COSINES)


@dataclass(frozen=True)
class CardFacts:
    """The contents of a card besides the model itself."""

    name: str
    kind: str
    config: TrainConfig
    metrics: Mapping[str, Any]
    licence: str | None
    parity: Parity
    accuracy: Accuracy | None
    files: Mapping[str, int]
    """Sizes in bytes, by name."""


def card(model: Embedder, facts: CardFacts) -> str:
    """The text of `README.md`."""
    front = yaml.safe_dump(front_matter(model, facts), sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n\n{_body(model, facts)}"


def front_matter(model: Embedder, facts: CardFacts) -> dict[str, Any]:
    """The metadata that the hub reads."""
    licence = facts.licence or "unknown"
    known = licence.lower() in LICENCES
    matter: dict[str, Any] = {"license": licence.lower() if known else "other"}
    if not known:
        matter["license_name"] = licence
    matter |= {
        "library_name": "onnx" if facts.kind == "onnx" else "nearfar",
        "pipeline_tag": _task(model),
        "tags": ["nearfar", "metric-learning", "image-retrieval", "embeddings", facts.kind],
    }
    results = _results(model, facts)
    if results:
        matter["model-index"] = [{"name": facts.name, "results": results}]
    return matter


def _task(model: Embedder) -> str:
    return "image-feature-extraction" if len(input_shape(model)) == 3 else "feature-extraction"


def _results(model: Embedder, facts: CardFacts) -> list[dict[str, Any]]:
    after = facts.metrics.get("after") or {}
    measured = [
        {"type": re.sub(r"\W+", "_", name.replace("@", "_at_")), "name": name, "value": round(float(after[name]), 6)}
        for name in _SHOWN
        if name in after
    ]
    if not measured:
        return []
    data = measured_name(facts.config)
    split = facts.metrics.get("measured_on", "test")
    dataset = {"type": re.sub(r"[^\w-]+", "-", data).strip("-").lower() or "data", "name": data, "split": split}
    task = {"type": _task(model), "name": "Retrieval"}
    return [{"task": task, "dataset": dataset, "metrics": measured}]


def data_name(config: TrainConfig) -> str:
    """The name of the data without its parent folders, which are private."""
    return Path(config.data.path).name or "data"


def measured_name(config: TrainConfig) -> str:
    """The name of the test data without their parent folders."""
    return Path(config.data.test or config.data.path).name or "data"


def _body(model: Embedder, facts: CardFacts) -> str:
    sections = [
        f"# {facts.name}",
        _summary(model, facts),
        f"## Use\n\n{usage.text(facts.kind, model, quantised=facts.accuracy is not None)}",
        _measured(facts),
        _quantised(facts.accuracy) if facts.accuracy is not None else "",
        _trained(model, facts),
        _preprocessing(model),
        _limits(model, facts),
        _files(facts),
        _licence(facts),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _summary(model: Embedder, facts: CardFacts) -> str:
    shape = input_shape(model)
    what = f"a binary code of {model.dimension} bits" if model.binary else f"{model.dimension} numbers"
    return (
        f"Maps {'an image' if len(shape) == 3 else 'features'} to {what}. Embeddings of the same class are near each "
        "other, those of different classes far apart: for search by example, open-set recognition, clustering and "
        f"deduplication. The network is `{trunk_name(model.trunk_description)}` with inputs of "
        f"{' × '.join(map(str, shape))} numbers, trained on "
        f"{_code(data_name(facts.config))} with nearfar {nearfar.__version__}."
    )


def _measured(facts: CardFacts) -> str:
    before, after = facts.metrics.get("before") or {}, facts.metrics.get("after") or {}
    names = [name for name in _SHOWN if name in after] + [name for name in after if name.endswith("accuracy")]
    if not names:
        return "## Results\n\nNot measured: there were no test data."
    classes = "classes that it was not trained on" if facts.metrics.get("open_set") else "other images of its classes"
    mirrored = ", an image and its mirror image averaged" if facts.config.evaluation.flip else ""
    features = ((facts.metrics.get("candidates") or {}).get("features") or {}).get("metrics")
    baseline, heading = (before, "before training") if features is None else (features, "pretrained features")
    kept = (facts.metrics.get("candidates") or {}).get(facts.metrics.get("kept")) or {}
    intervals: Mapping[str, Any] = kept.get("intervals", {})
    rows = [
        [name, _percent(baseline.get(name)), _percent(after[name]), _between(intervals.get(name))] for name in names
    ]
    header = ["", heading, "this model", "95 % interval"]
    stated = ""
    if intervals:
        stated = f"\n\n{interval_note(facts.metrics.get('classes', 0))}."
    else:
        header, rows = header[:3], [row[:3] for row in rows]
    how = ""
    if facts.metrics.get("compared_by") == "hamming":
        how = ", by Hamming distance of the codes (rows named cosine use the embeddings before binarisation)"
    return (
        f"## Results\n\nOn {_code(measured_name(facts.config))}, {classes} "
        f"({facts.metrics.get('measured_on', 'test')} rows){how}{mirrored}:\n\n"
        f"{markdown_table(header, rows)}{stated}"
    )


def _between(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"


def _quantised(accuracy: Accuracy) -> str:
    rows = [(name, _percent(accuracy.before[name]), _percent(accuracy.after[name])) for name in accuracy.after]
    return (
        "## 8-bit model\n\n"
        f"`model-int8.onnx` compared with `model.onnx` on {accuracy.rows:,} rows of {_code(accuracy.data)}:\n\n"
        f"{markdown_table(('', 'model.onnx', 'model-int8.onnx'), rows)}\n\n"
        f"The cosine between the two embeddings of an image is {accuracy.mean:.4f} on average, {accuracy.least:.4f} "
        "at least. Activations are quantised by their range in the batch, so the embedding of an image depends "
        "slightly on the rest of its batch. Search a gallery with the file that computed its embeddings."
    )


def _trained(model: Embedder, facts: CardFacts) -> str:
    config = facts.config
    losses = [
        f"{loss.name}({', '.join(f'{name}={value}' for name, value in loss.arguments.items())})"
        + (f" × {loss.weight:g}" if loss.weight != 1 else "")
        for loss in config.loss
    ]
    rows = [
        ("data", data_name(config)),
        ("loss", " + ".join(losses)),
        ("trunk", f"{trunk_name(model.trunk_description)}{', frozen' if config.model.freeze else ''}"),
        ("pooling, head", f"{model.settings.pool}, {model.settings.head}"),
        ("optimiser", f"{config.optimiser.name}, rate {config.optimiser.lr}, {config.schedule.kind}"),
        ("steps", f"{facts.metrics.get('steps', 'unknown')}"),
        ("seed", f"{config.seed}"),
    ]
    return f"## Training\n\n{markdown_table(('', ''), [(name, _code(value)) for name, value in rows])}"


def _preprocessing(model: Embedder) -> str:
    if len(input_shape(model)) == 1:
        return ""
    lines = "\n".join(f"{number}. {step}" for number, step in enumerate(steps(model.preprocess), 1))
    mean, std = (", ".join(f"{x:.6g}" for x in values) for values in (model.preprocess.mean, model.preprocess.std))
    return f"## Preprocessing\n\n{lines}\n\nmean: {mean}; std: {std}. `{FILE_NAME}` has the same values for programs."


def _limits(model: Embedder, facts: CardFacts) -> str:
    lines = [
        "- The results hold for these data. Measure the model on your own images first.",
        f"- The exported file was compared with PyTorch on {facts.parity.rows} rows of {_code(facts.parity.source)}: "
        f"cosine {facts.parity.least:.6f} at least, {facts.parity.mean:.6f} on average.",
    ]
    threshold = model.calibration.get("threshold")
    if isinstance(threshold, Mapping) and "threshold" in threshold:
        words = said(threshold)
        lines.append(f"- {words[0].upper()}{words[1:]}. Other data may need another threshold.")
    return "## Limits\n\n" + "\n".join(lines)


def _files(facts: CardFacts) -> str:
    rows = [(f"`{name}`", readable_size(size)) for name, size in sorted(facts.files.items())]
    return f"## Files\n\n{markdown_table(('file', 'size'), rows)}"


def _licence(facts: CardFacts) -> str:
    licence = f"This model: {_code(facts.licence)}." if facts.licence else "No licence was stated for this model."
    return (
        f"## Licence\n\n{licence} The pretrained weights and the training data have their own licences, which may "
        "restrict this model."
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown with its cells escaped.

    >>> print(markdown_table(("a", "b"), [("1|2", "3")]))
    | a | b |
    |---|---|
    | 1\\|2 | 3 |
    """
    lines = [
        head,
        ["---"] * len(head),
        *([re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(
        "|" + "|".join(cells) + "|" if number == 1 else "| " + " | ".join(cells) + " |"
        for number, cells in enumerate(lines)
    )


def readable_size(size: int) -> str:
    """A number of bytes with its unit.

    >>> readable_size(343_422), readable_size(1320), readable_size(13_570_000)
    ('343 kB', '1.32 kB', '13.6 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def _percent(value: Any) -> str:
    return f"{value:.2%}" if isinstance(value, (int, float)) else ""


def _code(text: str) -> str:
    """Inline code, in which Markdown and HTML are inert."""
    return f"`{text.replace('`', chr(39))}`"
