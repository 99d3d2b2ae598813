"""`nearfar export`."""

import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "export RUN [options]",
        "Export the model of a run to a folder with a model card, ready for the Hugging Face hub. The export is "
        "compared with PyTorch.",
    )
    command.add_run()
    command.add_argument(
        "--format", choices=("onnx", "torchscript", "safetensors"), default="onnx", help="format of the model (onnx)"
    )
    command.add_argument(
        "--quantise", choices=("int8",), help="for onnx: also write an int8 model, and measure its accuracy and speed"
    )
    command.add_argument("--out", metavar="DIR", help="folder to create (RUN/export-FORMAT)")
    command.add_argument("--licence", metavar="NAME", help="licence of the model, for its card, such as apache-2.0")
    command.add_argument("--data", metavar="DATA", help="compare and evaluate on these data (the run's test rows)")
    command.add_argument(
        "--rows", type=int, metavar="N", help="largest number of rows, of whole classes, to evaluate int8 on (all)"
    )
    command.flag("--replace", help="replace an existing export")
    return command


def run(arguments: Sequence[str]) -> int:
    """Export a run's model."""
    options = parser().parse_args(arguments)
    from nearfar.export import export
    from nearfar.export.card import readable_size
    from nearfar.training.progress import print_table

    exported = export(
        options.run,
        options.format,
        quantise=options.quantise,
        out=options.out,
        licence=options.licence,
        data=options.data,
        rows=options.rows,
        replace=options.replace,
        progress=sys.stderr.isatty(),
    )
    for note in exported.notes:
        print(f"note: {note}")
    parity, accuracy = exported.parity, exported.accuracy
    print(
        f"against PyTorch, on {parity.rows} rows of {parity.source}: cosine {parity.least:.6f} at least, "
        f"{parity.mean:.6f} on average"
    )
    if accuracy is not None:
        print_table(f"{accuracy.data}: {accuracy.rows:,} rows", {"float32": accuracy.before, "int8": accuracy.after})
        before, after = accuracy.milliseconds
        print(
            f"int8 against float32: cosine {accuracy.mean:.4f} on average, {accuracy.least:.4f} at least; "
            f"{after:.1f} ms a row instead of {before:.1f}"
        )
    for name, size in exported.files.items():
        print(f"  {name:<20} {readable_size(size):>10}")
    print(f"exported to {exported.folder}, with a model card in README.md{_licence_hint(options.licence)}")
    print(f"to the hub:  hf upload NAME {exported.folder}")
    return 0


def _licence_hint(licence: str | None) -> str:
    return "" if licence else " (no licence stated: --licence)"
