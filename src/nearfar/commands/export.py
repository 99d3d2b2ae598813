"""`nearfar export`."""

import sys
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """Its words."""
    words = Parser(
        "export RUN [options]",
        "Write the model of a run to a folder from which others can use it, compared with PyTorch, with a "
        "model card: ready for the Hugging Face hub.",
    )
    words.add_run()
    words.add_argument("--format", choices=("onnx", "torchscript", "safetensors"), default="onnx", help="(onnx)")
    words.add_argument(
        "--quantise", choices=("int8",), help="of onnx: write it in eight bits too, and measure what that costs"
    )
    words.add_argument("--out", metavar="DIR", help="folder to be made (RUN/export-FORMAT)")
    words.add_argument("--licence", metavar="NAME", help="of the model, for its card, such as apache-2.0")
    words.add_argument("--data", metavar="DATA", help="compare and measure on these data (the run's test rows)")
    words.add_argument(
        "--rows", type=int, metavar="N", help="measure int8 on so many rows at most, of whole classes (all)"
    )
    words.flag("--replace", help="put it in the place of an export that is there")
    return words


def run(words: Sequence[str]) -> int:
    """Write a run's model for others."""
    options = parser().parse_args(words)
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
    print(f"{exported.folder} holds it, with a card in README.md{_licence_hint(options.licence)}")
    print(f"to the hub:  hf upload NAME {exported.folder}")
    return 0


def _licence_hint(licence: str | None) -> str:
    return "" if licence else " (no licence stated: --licence)"
