"""`nearfar index`."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nearfar.commands.grammar import Parser

if TYPE_CHECKING:
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import Gallery
    from nearfar.retrieval.index import Index


def run(arguments: Sequence[str]) -> int:
    """Create or change an index of images."""
    options = parser().parse_args(arguments)
    from nearfar.retrieval.calibration import calibrated
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import are_files, gallery_for
    from nearfar.retrieval.index import index_exists, make_index, open_index
    from nearfar.retrieval.search import index_of
    from nearfar.training.kept_split import changes_in
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    training_run = Run(options.run)
    encoder = Encoder.of_run(training_run, options.device)
    where = index_of(options.run, options.index)
    adds = not (options.remove or options.prune or options.compact)
    gallery = None
    if adds:
        allowed, display = options.max_broken, Display()
        gallery = gallery_for(
            training_run.config.data, options.data, options.split, max_broken=allowed, display=display
        )
    new = adds and (options.rebuild or not index_exists(where))
    calibrates = new or options.far is not None or options.precision is not None
    goal = {name: getattr(options, name) for name in ("far", "precision", "share")}
    threshold = calibrated(training_run, encoder, **goal) if calibrates else None
    # A new index is created with its threshold: an interruption could otherwise leave it without one.
    about = encoder.about(options.kind or "exact", threshold)
    index = make_index(where, about, replace=True) if new else open_index(where)
    try:
        index.check(encoder.fingerprint)
        result = _removed(options, index) if gallery is None else _added(index, encoder, gallery)
        if options.compact or (options.kind and options.kind != index.about.kind):
            index.compact(options.kind)
        if calibrates and not new:
            index.set_threshold(threshold)
        result |= _described(index)
        result["notes"] = changes_in(training_run) if adds and not options.data else ()
    finally:
        index.close()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)
    return 1 if gallery is not None and gallery.left_out and are_files(options.data) else 0


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "index RUN [DATA ...] [options]",
        "Index images for nearfar search. Indexed images that have not changed are not embedded again; running the "
        "command again resumes an interrupted build.",
    )
    command.add_run()
    command.add_argument("data", nargs="*", metavar="DATA", help="a data set, or image files; default: the run's data")
    command.add_argument("--index", metavar="WHERE", help="a folder, or milvus:ADDRESS (RUN/index)")
    command.add_argument("--kind", choices=("exact", "hnsw", "ivfpq"), help="kind of index (exact)")
    command.add_argument("--split", metavar="NAME", help="only these rows: train, val, test, query or gallery")
    command.add_argument(
        "--remove", nargs="+", metavar="ID", help="remove images, or all images below a folder; add none"
    )
    command.flag("--prune", help="remove images whose files are gone; add none")
    command.flag("--compact", help="merge the segments that changes left; add none")
    command.flag("--rebuild", help="replace the index by a new one")
    goal = command.add_mutually_exclusive_group()
    goal.add_argument("--far", type=float, metavar="F", help="calibrate the threshold for this false accept rate")
    goal.add_argument("--precision", type=float, metavar="P", help="calibrate the threshold for this precision")
    command.add_argument(
        "--share", type=float, metavar="S", help="share of same pairs that precision assumes (the data's)"
    )
    command.add_argument(
        "--max-broken",
        type=float,
        metavar="SHARE",
        help="largest share of unreadable images, which are left out (the run's)",
    )
    command.add_device()
    command.flag("--json", help="print the result as JSON")
    return command


def _added(index: "Index", encoder: "Encoder", gallery: "Gallery") -> dict[str, Any]:
    from nearfar.models.extraction import progress_bar
    from nearfar.retrieval.build import add_images

    with progress_bar(sys.stderr.isatty(), len(gallery)) as advance:
        added = dict(vars(add_images(index, encoder, gallery, advance=advance)))
    return {**added, "broken": added["broken"] + len(gallery.left_out), "left_out": dict(gallery.left_out)}


def _removed(options: argparse.Namespace, index: "Index") -> dict[str, Any]:
    from nearfar.retrieval.build import gone, named

    ids = named(index, options.remove or []) + (gone(index) if options.prune else [])
    if not (options.remove or options.prune):
        return {}
    with index.change() as change:
        return {"removed": change.remove(ids)}


def _described(index: "Index") -> dict[str, Any]:
    from nearfar.retrieval.recall import measured_recall

    about = index.about
    result: dict[str, Any] = {
        "index": index.where,
        "images": len(index),
        "kind": about.kind,
        "similarity": about.similarity,
    }
    recall = None if about.kind == "exact" else measured_recall(index)
    return {**result, "threshold": about.threshold, "recall": None if recall is None else vars(recall)}


def _print(result: dict[str, Any]) -> None:
    from nearfar.retrieval.calibration import described
    from nearfar.retrieval.recall import Recall

    what = f"{result['kind']}, {'binary codes' if result['similarity'] == 'hamming' else 'cosines'}"
    print(f"{result['index']}: {result['images']:,} images ({what})")
    if "embedded" in result:
        broken = f", {result['broken']:,} cannot be read" if result["broken"] else ""
        done = f"{result['embedded']:,} embedded, {result['unchanged']:,} unchanged{broken}"
        print(f"{done}; {result['seconds']:.1f} s")
    if "removed" in result:
        print(f"{result['removed']:,} removed")
    for note in result["notes"]:
        print(f"note: {note}")
    if result["recall"] is not None:
        print(Recall(**result["recall"]))
    print(described(result["threshold"]))
