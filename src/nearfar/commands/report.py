"""`nearfar report`."""

import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "report RUN [options]", "Write report.html of a run again, from its files, its model and its data."
    )
    command.add_run()
    command.add_device()
    return command


def run(arguments: Sequence[str]) -> int:
    """Write the report of a run again."""
    options = parser().parse_args(arguments)
    from nearfar.models.extraction import progress_bar
    from nearfar.report.run import write_run_report
    from nearfar.training.evaluate import rows_of
    from nearfar.training.measure import embed
    from nearfar.training.runs import Run

    training_run = Run(options.run)
    model = training_run.model(options.device)
    table, notes = rows_of(training_run, None)
    if model.binary and "compared_by" not in training_run.metrics:
        notes = (*notes, "the metrics of the summary are by cosine: the run is older than metrics of codes")
    for note in notes:
        print(f"note: {note}")
    with progress_bar(sys.stderr.isatty(), len(table)) as advance:
        embeddings = embed(model, table, training_run.config, advance=advance)
    print(
        write_run_report(
            training_run.folder, embeddings, table, binary=model.binary, notes=notes, seed=training_run.config.seed
        )
    )
    return 0
