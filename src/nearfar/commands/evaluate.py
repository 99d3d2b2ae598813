"""`nearfar evaluate`."""

import json
import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    command = Parser("evaluate RUN [DATA] [options]", "Evaluate the model of a run.")
    command.add_run()
    command.add_argument("data", nargs="?", metavar="DATA", help="other data; training images are left out (the run's)")
    command.add_argument("--ks", type=int, nargs="+", metavar="K", help="values of k for recall@k (the run's)")
    command.flag("--ci", help="add 95 %% intervals over classes")
    command.flag("--flip", default=None, help="average the embeddings of an image and its mirror image")
    command.add_argument("--size", type=int, metavar="N", help="side of the images (the run's)")
    command.add_device()
    command.flag("--json", help="print all metrics as JSON")
    return command


def run(arguments: Sequence[str]) -> int:
    """Evaluate a run."""
    options = parser().parse_args(arguments)
    from nearfar.evaluation.class_means import interval_note
    from nearfar.training.evaluate import evaluate
    from nearfar.training.progress import print_table
    from nearfar.training.runs import COSINES

    ks = tuple(options.ks) if options.ks else None
    chosen = {name: getattr(options, name) for name in ("ci", "flip", "size", "device")}
    metrics = evaluate(options.run, options.data, ks=ks, progress=sys.stderr.isatty(), **chosen)
    if options.json:
        print(json.dumps(metrics, indent=2))
        return 0
    numbers = {name: value for name, value in metrics.items() if isinstance(value, float)}
    # For binary codes, the table shows only some metrics by cosine; --json has all.
    columns = {"": {n: value for n, value in numbers.items() if n in COSINES or not n.startswith("cosine ")}}
    if options.ci:
        for number, side in enumerate(("low", "high")):
            columns[side] = {name: interval[number] for name, interval in metrics["ci"].items()}
    for note in metrics["notes"]:
        print(f"note: {note}")
    how = ", codes by Hamming distance" if metrics["compared_by"] == "hamming" else ""
    print_table(f"{metrics['data']}: {metrics['images']:,} images{how}", columns)
    if options.ci:
        print(interval_note(metrics["ci_classes"]))
    return 0
