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


def run(words: Sequence[str]) -> int:
    """Make an index of images, or change it."""
    options = parser().parse_args(words)
    from nearfar.retrieval.calibration import calibrated
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import are_files, gallery_for
    from nearfar.retrieval.index import index_exists, make_index, open_index
    from nearfar.retrieval.search import index_of
    from nearfar.training.kept_split import changes_in
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    found = Run(options.run)
    encoder = Encoder.of_run(found, options.device)
    where = index_of(options.run, options.index)
    adds = not (options.remove or options.prune or options.compact)
    gallery = None
    if adds:
        allowed, display = options.max_broken, Display()
        gallery = gallery_for(found.config.data, options.data, options.split, max_broken=allowed, display=display)
    new = adds and (options.rebuild or not index_exists(where))
    calibrates = new or options.far is not None or options.precision is not None
    goal = {name: getattr(options, name) for name in ("far", "precision", "share")}
    threshold = calibrated(found, encoder, **goal) if calibrates else None
    # The threshold of a new index is there with its images: interrupted in between, it would never come.
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
        result["notes"] = changes_in(found) if adds and not options.data else ()
    finally:
        index.close()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)
    return 1 if gallery is not None and gallery.left_out and are_files(options.data) else 0


def parser() -> Parser:
    """Its words."""
    words = Parser(
        "index RUN [DATA ...] [options]",
        "Index images for nearfar search. What is indexed already and has not changed is not embedded "
        "again; a build that was interrupted goes on where it was.",
    )
    words.add_run()
    words.add_argument("data", nargs="*", metavar="DATA", help="a data set, or image files; default: the run's data")
    words.add_argument("--index", metavar="WHERE", help="a folder, or milvus:ADDRESS (RUN/index)")
    words.add_argument("--kind", choices=("exact", "hnsw", "ivfpq"), help="how to search (exact)")
    words.add_argument("--split", metavar="NAME", help="only these rows: train, val, test, query or gallery")
    words.add_argument("--remove", nargs="+", metavar="ID", help="take out images, or all below a folder; add none")
    words.flag("--prune", help="take out images whose files are gone; add none")
    words.flag("--compact", help="put what many changes left into one piece; add none")
    words.flag("--rebuild", help="begin a new index in place of the old")
    goal = words.add_mutually_exclusive_group()
    goal.add_argument("--far", type=float, metavar="F", help="find the threshold of this false accept rate")
    goal.add_argument("--precision", type=float, metavar="P", help="find the threshold of this precision")
    words.add_argument("--share", type=float, metavar="S", help="of same pairs, that precision is for (the data's)")
    words.add_argument(
        "--max-broken", type=float, metavar="SHARE", help="of DATA that may be unreadable, and is left out (the run's)"
    )
    words.add_device()
    words.flag("--json", help="print what was done as JSON")
    return words


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
