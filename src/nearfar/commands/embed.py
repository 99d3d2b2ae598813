"""`nearfar embed`."""

import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "embed RUN [DATA ...] --out FILE [options]",
        "Embed images with the model of a run, and write paths, labels and vectors to a file.",
    )
    command.add_run()
    command.add_argument("data", nargs="*", metavar="DATA", help="a data set, or image files; default: the run's data")
    command.add_argument("--out", required=True, metavar="FILE", help="NAME.parquet or NAME.npz")
    command.add_argument("--split", metavar="NAME", help="only these rows: train, val, test, query or gallery")
    command.add_argument(
        "--max-broken",
        type=float,
        metavar="SHARE",
        help="largest share of unreadable images, which are left out (the run's)",
    )
    command.add_device()
    return command


def run(arguments: Sequence[str]) -> int:
    """Embed a data set with the model of a run, and write it to a file."""
    options = parser().parse_args(arguments)
    from nearfar.models.extraction import progress_bar
    from nearfar.retrieval.embed import check_name, write_embeddings
    from nearfar.retrieval.encoder import Encoder
    from nearfar.retrieval.gallery import are_files, gallery_for
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    check_name(options.out)
    training_run = Run(options.run)
    encoder = Encoder.of_run(training_run, options.device)
    allowed, display = options.max_broken, Display()
    gallery = gallery_for(training_run.config.data, options.data, options.split, max_broken=allowed, display=display)
    with progress_bar(sys.stderr.isatty(), len(gallery)) as advance:
        written = write_embeddings(encoder, gallery, options.out, advance=advance)
    broken = written.broken + len(gallery.left_out)
    left_out = f"; {broken:,} images cannot be read" if broken else ""
    print(f"{written.path}: {written.images:,} embeddings of {encoder.dimension} numbers{left_out}")
    return 1 if gallery.left_out and are_files(options.data) else 0
