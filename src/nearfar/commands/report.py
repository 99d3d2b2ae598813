"""`nearfar report`."""

import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """Its words."""
    words = Parser("report RUN [options]", "Write report.html of a run anew, from its files, its model and its data.")
    words.add_run()
    words.add_device()
    return words


def run(words: Sequence[str]) -> int:
    """Write the report of a run anew."""
    options = parser().parse_args(words)
    from nearfar.models.extraction import progress_bar
    from nearfar.report.run import write_run_report
    from nearfar.training.evaluate import rows_of
    from nearfar.training.measure import embed
    from nearfar.training.runs import Run

    found = Run(options.run)
    model = found.model(options.device)
    table, notes = rows_of(found, None)
    if model.binary and "compared_by" not in found.metrics:
        notes = (*notes, "the figures of the summary are of cosines: the run was made before codes were measured")
    for note in notes:
        print(f"note: {note}")
    with progress_bar(sys.stderr.isatty(), len(table)) as advance:
        embeddings = embed(model, table, found.config, advance=advance)
    print(write_run_report(found.folder, embeddings, table, binary=model.binary, notes=notes, seed=found.config.seed))
    return 0
