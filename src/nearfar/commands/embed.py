"""`nearfar embed`."""

import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """Its words."""
    words = Parser(
        "embed RUN [DATA ...] --out FILE [options]",
        "Embed images with the model of a run: paths, labels and vectors, in a file.",
    )
    words.add_run()
    words.add_argument("data", nargs="*", metavar="DATA", help="a data set, or image files; default: the run's data")
    words.add_argument("--out", required=True, metavar="FILE", help="NAME.parquet or NAME.npz")
    words.add_argument("--split", metavar="NAME", help="only these rows: train, val, test, query or gallery")
    words.add_argument(
        "--max-broken", type=float, metavar="SHARE", help="of DATA that may be unreadable, and is left out (the run's)"
    )
    words.add_device()
    return words


def run(words: Sequence[str]) -> int:
    """Embed a data set with the model of a run, to a file."""
    options = parser().parse_args(words)
    from nearfar.models.extraction import progress_bar
    from nearfar.retrieval.embed import check_name, write_embeddings
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import are_files, gallery_for
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    check_name(options.out)
    found = Run(options.run)
    encoder = Encoder.of_run(found, options.device)
    allowed, display = options.max_broken, Display()
    gallery = gallery_for(found.config.data, options.data, options.split, max_broken=allowed, display=display)
    with progress_bar(sys.stderr.isatty(), len(gallery)) as advance:
        written = write_embeddings(encoder, gallery, options.out, advance=advance)
    broken = written.broken + len(gallery.left_out)
    left_out = f"; {broken:,} images cannot be read" if broken else ""
    print(f"{written.path}: {written.images:,} embeddings of {encoder.dimension} numbers{left_out}")
    return 1 if gallery.left_out and are_files(options.data) else 0
